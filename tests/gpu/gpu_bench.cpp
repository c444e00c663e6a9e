// Figures of one GPU, a line each: what, unit, median, spread over turns.
//
//   gpu_bench [--help] [--turns N] [--picture FILE]     --picture: the timeline of a pipeline, as
//                                                       SVG
//
// Without a GPU: one line that says why, and 77.

#include "troupe/devices/cuda/cuda_device.hpp"
#include "troupe/devices/cuda/libraries/find_devices.hpp"

#include "tests/gpu/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::cuda;
using namespace troupe::test;

namespace {

std::span<std::byte> bytes_of(device_memory m) { return {m.bytes, m.size_bytes}; }

class bench {
 public:
  bench(cuda_device& d, int turns)
      : device_(d), turns_(turns), stream_(fine(d.make_cuda_stream(stream_kind::compute))) {}

  // n small ops one after the other: enqueued one by one, and as a captured step.
  void tiny_ops() {
    constexpr int n = 1000;
    const tensor_spec spec{dtype::f32, {16}};
    auto add = fine(table_.make("add", {}, device_.chip()));
    const std::vector<tensor_spec> in{spec, spec}, out{spec};
    fine(add->prepare(in, out));
    const auto a = take(spec.size_bytes()), b = take(spec.size_bytes());
    const std::byte* const from[] = {a.bytes, b.bytes};
    std::byte* const to[] = {a.bytes};
    const auto all = [&] {
      for (int i = 0; i < n; ++i)
        fine(stream_->enqueue(
            "add", {}, [&] { return add->enqueue(stream_->site("add", nullptr, {}), from, to); }));
    };
    all();
    fine(stream_->synchronize());
    figure host{"host time of an op enqueued, of 1,000 adds of 16 floats", "us", {}},
        step{"a step of 1,000 adds of 16 floats, one by one", "ms", {}};
    for (int t = 0; t < turns_; ++t) {
      double enqueued = 0;
      const auto whole = seconds_of([&] {
        enqueued = seconds_of(all);
        fine(stream_->synchronize());
      });
      host.values.push_back(enqueued / n * 1e6);
      step.values.push_back(whole * 1e3);
    }
    host.print();
    step.print();
    const auto captured = capture(all);
    fine(stream_->replay("step", *captured));
    fine(stream_->synchronize());
    figure host_replay{"host time of an op, replayed", "us", {}},
        replay{"the same step, replayed", "ms", {}};
    for (int t = 0; t < turns_; ++t) {
      double enqueued = 0;
      const auto whole = seconds_of([&] {
        enqueued = seconds_of([&] { fine(stream_->replay("step", *captured)); });
        fine(stream_->synchronize());
      });
      host_replay.values.push_back(enqueued / n * 1e6);
      replay.values.push_back(whole * 1e3);
    }
    host_replay.print();
    replay.print();
  }

  // Products one after the other: the op's kernel replayed as a graph, and cuBLASLt alone, called
  // in a loop and captured as well, by turns in one run.
  void products(dtype type, product_mode mode, std::int64_t n, int count) {
    const product p{.type = type,
                    .mode = mode,
                    .m = n,
                    .n = n,
                    .k = n,
                    .stride_a = n,
                    .stride_b = n,
                    .stride_c = n};
    const auto plan = fine(device_.chip().plan_product(p));
    const auto bytes = static_cast<std::size_t>(n * n) * size_of(type);
    const auto a = take(bytes), b = take(bytes), c = take(bytes),
               workspace = take(std::max<std::size_t>(plan->workspace_bytes, 1));
    fill(type, a, 1), fill(type, b, 2);
    const auto bare = [&] {
      for (int i = 0; i < count; ++i)
        fine(device_.chip().multiply(stream_->site("matmul", nullptr, {}), *plan, a.bytes, b.bytes,
                                     nullptr, c.bytes, workspace.bytes));
    };
    bare();
    fine(stream_->synchronize());
    attributes attrs;
    if (mode == product_mode::tf32) attrs.set("tf32", std::int64_t{1});
    auto kernel = fine(table_.make("matmul", attrs, device_.chip()));
    const tensor_spec spec{type, {n, n}};
    const std::vector<tensor_spec> in{spec, spec}, out{spec};
    fine(kernel->prepare(in, out));
    const auto own = take(std::max<std::size_t>(kernel->workspace_bytes(), 1));
    const std::byte* const from[] = {a.bytes, b.bytes};
    std::byte* const to[] = {c.bytes};
    const auto captured = capture([&] {
      for (int i = 0; i < count; ++i)
        fine(stream_->enqueue("matmul", {}, [&] {
          return kernel->enqueue(stream_->site("matmul", own.bytes, {}), from, to);
        }));
    });
    const auto captured_bare = capture(bare);
    const auto what = fmt::format("{} products of {}^3, {}{}", count, n, to_string(type),
                                  mode == product_mode::tf32 ? " as tf32" : "");
    figure of_replay{what + ", the op replayed", "TFLOP/s", {}},
        of_bare{what + ", cuBLASLt replayed", "TFLOP/s", {}},
        of_loop{what + ", cuBLASLt in a loop", "TFLOP/s", {}},
        ratio{what + ": op / cuBLASLt, both replayed", "x", {}};
    const double flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) * count;
    const auto timed = [&](const auto& enqueue) {
      return seconds_of([&] {
        enqueue();
        fine(stream_->synchronize());
      });
    };
    // A graph's first launch takes it to the chip.
    for (const auto* g : {captured.get(), captured_bare.get()})
      (void)timed([&] { fine(stream_->replay("step", *g)); });
    for (int t = 0; t < turns_; ++t) {
      const auto replayed = timed([&] { fine(stream_->replay("step", *captured)); });
      const auto bare_replayed = timed([&] { fine(stream_->replay("step", *captured_bare)); });
      of_replay.add(flops / replayed / 1e12);
      of_bare.add(flops / bare_replayed / 1e12);
      of_loop.add(flops / timed(bare) / 1e12);
      ratio.add(bare_replayed / replayed);
    }
    for (auto* f : {&of_replay, &of_bare, &of_loop, &ratio}) f->print();
    for (const auto m : {a, b, c, workspace, own}) stream_->free(m);
  }

  // Input, copy, compute, copy out, on streams of their own, two buffers each.
  void pipeline(const std::string& picture) {
    constexpr std::size_t bytes = std::size_t{256} << 20;
    constexpr int steps = 100;
    auto in = fine(device_.make_cuda_stream(stream_kind::copy_in)),
         out = fine(device_.make_cuda_stream(stream_kind::copy_out));
    const tensor_spec spec{dtype::f32, {static_cast<std::int64_t>(bytes / 4)}};
    auto kernel = fine(table_.make("gelu", {}, device_.chip()));
    fine(kernel->prepare({&spec, 1}, {&spec, 1}));
    device_memory host_in = fine(device_.allocate_pinned(bytes)),
                  host_out = fine(device_.allocate_pinned(bytes)), x[buffers], y[buffers];
    std::memset(host_in.bytes, 0, bytes);
    for (int i = 0; i < buffers; ++i) x[i] = take(bytes), y[i] = take(bytes);
    fine(stream_->synchronize());
    const auto copy_in = [&](int i) {
      fine(in->copy("in", bytes_of(x[i % buffers]), memory_kind::device, bytes_of(host_in),
                    memory_kind::pinned));
    };
    const auto copy_out = [&](int i) {
      fine(out->copy("out", bytes_of(host_out), memory_kind::pinned, bytes_of(y[i % buffers]),
                     memory_kind::device));
    };
    const auto compute = [&](int i) {
      const std::byte* const from[] = {x[i % buffers].bytes};
      std::byte* const to[] = {y[i % buffers].bytes};
      fine(stream_->enqueue("gelu", {}, [&] {
        return kernel->enqueue(stream_->site("gelu", nullptr, {}), from, to);
      }));
    };
    const auto alone = [&](device_stream& s, const std::function<void(int)>& each) {
      each(0);
      fine(s.synchronize());
      return seconds_of([&] {
               for (int i = 0; i < 10; ++i) each(i);
               fine(s.synchronize());
             }) /
             10;
    };
    const double of_in = alone(*in, copy_in), of_compute = alone(*stream_, compute),
                 of_out = alone(*out, copy_out);
    const auto whole = seconds_of([&] {
      run_pipeline(steps, *in, *out, copy_in, compute, copy_out, [](device_stream&, int) {});
    });
    print("copy of 256 MiB in, alone", "GB/s", static_cast<double>(bytes) / of_in / 1e9);
    print("copy of 256 MiB out, alone", "GB/s", static_cast<double>(bytes) / of_out / 1e9);
    print("gelu of 256 MiB, alone", "ms", of_compute * 1e3);
    print("100 steps of 256 MiB in, gelu, out: a step", "ms", whole / steps * 1e3);
    print("the longest of the three alone / a step of the 100", "x",
          std::max({of_in, of_compute, of_out}) / (whole / steps));
    if (!picture.empty()) draw(picture, *in, *out, copy_in, compute, copy_out);
    device_.free_pinned(host_in);
    device_.free_pinned(host_out);
    for (int i = 0; i < buffers; ++i) stream_->free(x[i]), stream_->free(y[i]);
  }

 private:
  device_memory take(std::size_t bytes) { return fine(stream_->allocate(bytes, "bench")); }

  template <class Enqueue>
  std::unique_ptr<captured_step> capture(const Enqueue& enqueue) {
    fine(stream_->begin_capture());
    enqueue();
    return fine(stream_->end_capture());
  }
  // Numbers as a layer has them: a chip takes less power for zeros, and is faster.
  void fill(dtype type, device_memory to, std::uint64_t seed) {
    const tensor_spec spec{dtype::f32, {static_cast<std::int64_t>(to.size_bytes / size_of(type))}};
    attributes drawn;
    drawn.set("seed", static_cast<std::int64_t>(seed));
    drawn.set("low", -0.05);
    drawn.set("high", 0.05);
    auto draw = fine(table_.make("random_uniform", drawn, device_.chip()));
    fine(draw->prepare({}, {&spec, 1}));
    const auto wide = take(spec.size_bytes()),
               workspace = take(std::max<std::size_t>(draw->workspace_bytes(), 1));
    std::byte* const drawn_to[] = {wide.bytes};
    fine(stream_->enqueue("random_uniform", {}, [&] {
      return draw->enqueue(stream_->site("random_uniform", workspace.bytes, {}), {}, drawn_to);
    }));
    if (type == dtype::f32) {
      fine(stream_->copy("copy", bytes_of(to), memory_kind::device, bytes_of(wide),
                         memory_kind::device));
    } else {
      auto cast = fine(make_fused_cuda_kernel({{"cast", {0}, type}}, device_.chip()));
      const tensor_spec narrow{type, spec.shape};
      fine(cast->prepare({&spec, 1}, {&narrow, 1}));
      const std::byte* const from[] = {wide.bytes};
      std::byte* const cast_to[] = {to.bytes};
      fine(stream_->enqueue("cast", {}, [&] {
        return cast->enqueue(stream_->site("cast", nullptr, {}), from, cast_to);
      }));
    }
    for (const auto m : {wide, workspace}) stream_->free(m);
  }

  static constexpr int buffers = 2;
  using work = std::function<void(int)>;
  // `mark` is called behind each piece of work, when it has been enqueued.
  template <class Mark>
  void run_pipeline(int steps, cuda_stream& in, cuda_stream& out, const work& copy_in,
                    const work& compute, const work& copy_out, const Mark& mark) {
    device_event read[buffers], written[buffers];
    for (int i = 0; i < steps; ++i) {
      fine(in.wait(read[i % buffers]));
      copy_in(i);
      mark(in, i);
      const auto here = fine(in.record());
      fine(stream_->wait(here));
      fine(stream_->wait(written[i % buffers]));
      compute(i);
      mark(*stream_, i);
      read[i % buffers] = fine(stream_->record());
      fine(out.wait(read[i % buffers]));
      copy_out(i);
      mark(out, i);
      written[i % buffers] = fine(out.record());
    }
    fine(out.synchronize());
  }

  // When each piece of 12 steps ended, by functions that the driver calls behind it; it began when
  // what it waited for had ended.
  void draw(const std::string& file, cuda_stream& in, cuda_stream& out, const work& copy_in,
            const work& compute, const work& copy_out) {
    constexpr int steps = 12, lanes = 3;
    std::atomic<double> ends[lanes][steps] = {};
    const auto began = std::chrono::steady_clock::now();
    run_pipeline(steps, in, out, copy_in, compute, copy_out, [&](device_stream& s, int i) {
      auto& to = ends[&s == &in ? 0 : &s == &out ? 2 : 1][i];
      fine(s.call_host([&to, began] {
        to = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
                 .count();
      }));
    });
    for (device_stream* s :
         {static_cast<device_stream*>(&in), static_cast<device_stream*>(stream_.get())})
      fine(s->synchronize());
    const auto end_of = [&](int lane, int i) { return i < 0 ? 0.0 : ends[lane][i].load(); };
    const double last = end_of(2, steps - 1), width = 1100, left = 90;
    std::ofstream to(file);
    to << fmt::format(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='170' font-family='sans-serif' font-size='12'>\n",
        left + width + 20);
    to << fmt::format(
        "<text x='10' y='18'>{}: 12 steps of 256 MiB in, gelu, out, {:.1f} ms</text>\n",
        device_.hardware(), last);
    const char* const names[] = {"copy in", "compute", "copy out"};
    const char* const colours[] = {"#4878a8", "#c86432", "#508c50"};
    for (int lane = 0; lane < lanes; ++lane) {
      const int y = 35 + 40 * lane;
      to << fmt::format("<text x='10' y='{}'>{}</text>\n", y + 20, names[lane]);
      for (int i = 0; i < steps; ++i) {
        const double begin = std::max({end_of(lane, i - 1),
                                       lane > 0 ? end_of(lane - 1, i) : end_of(1, i - buffers),
                                       lane == 1 ? end_of(2, i - buffers) : 0.0}),
                     end = end_of(lane, i);
        to << fmt::format(
            "<rect x='{:.1f}' y='{}' width='{:.1f}' height='30' fill='{}' stroke='white'/><text x='{:.1f}' y='{}' fill='white'>{}</text>\n",
            left + begin / last * width, y, std::max(0.5, (end - begin) / last * width),
            colours[lane], left + begin / last * width + 3, y + 20, i);
      }
    }
    to << "</svg>\n";
    to.close();
    if (!to) test::end(error(error_code::failed, "cannot write " + file));
    std::printf("the timeline of 12 steps is in %s\n", file.c_str());
  }

  cuda_device& device_;
  int turns_;
  const cuda_kernel_table table_ = make_cuda_kernels();
  std::unique_ptr<cuda_stream> stream_;
};

}  // namespace

int main(int argc, char** argv) {
  int turns = 9;
  std::string picture;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
      turns = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--picture") == 0 && i + 1 < argc) {
      picture = argv[++i];
    } else {
      std::printf(
          "gpu_bench [--turns N] [--picture FILE]: figures of the first CUDA device, a line each: what, unit, median, spread\n");
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
  }
  auto devices = make_cuda_devices(1, {}, {});
  if (!devices) {
    std::printf("skipped: %s\n", devices.error().text().c_str());
    return 77;
  }
  auto& device = *devices->front();
  std::printf("%s, %d turns\n", device.hardware().c_str(), turns);
  bench b(device, turns);
  b.tiny_ops();
  for (const std::int64_t n : {512, 1024}) {
    b.products(dtype::f32, product_mode::exact, n, 50);
    b.products(dtype::bf16, product_mode::exact, n, 50);
  }
  b.products(dtype::f32, product_mode::tf32, 4096, 10);
  b.products(dtype::bf16, product_mode::exact, 4096, 20);
  b.products(dtype::bf16, product_mode::exact, 8192, 10);
  b.pipeline(picture);
  return 0;
}
