// Figures of one GPU, a line each: what, unit, median, spread over turns.
//
//   gpu_bench [--help] [--turns N]
//
// Without a GPU: one line that says why, and 77.

#include "devices/cuda/cuda_device.hpp"
#include "devices/cuda/find_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::cuda;

namespace {

// A benchmark ends at its first error.
template <class T>
T fine(result<T> r) {
  if (!r) {
    std::printf("failed: %s\n", r.error().text().c_str());
    std::exit(1);
  }
  return std::move(*r);
}
void fine(result<void> r) {
  if (r) return;
  std::printf("failed: %s\n", r.error().text().c_str());
  std::exit(1);
}

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct line {
  std::string what, unit;
  std::vector<double> values;
  void print() {
    std::ranges::sort(values);
    std::printf("%-64s %-8s %10.3f  (%.3f to %.3f)\n", what.c_str(), unit.c_str(), values[values.size() / 2], values.front(), values.back());
    std::fflush(stdout);
  }
};

std::span<std::byte> bytes_of(device_memory m) { return {m.bytes, m.size_bytes}; }

class bench {
 public:
  bench(cuda_device& d, int turns) : device_(d), turns_(turns), stream_(fine(d.make_cuda_stream(stream_kind::compute))) {}

  // n small ops one after the other: enqueued one by one, and as a captured step.
  void tiny_ops() {
    constexpr int n = 1000;
    const tensor_spec spec{dtype::f32, {16}};
    const auto table = make_cuda_kernels();
    auto add = fine(table.make("add", {}, device_.chip()));
    const std::vector<tensor_spec> in{spec, spec}, out{spec};
    fine(add->prepare(in, out));
    const auto a = take(spec.size_bytes()), b = take(spec.size_bytes());
    const std::byte* const from[] = {a.bytes, b.bytes};
    std::byte* const to[] = {a.bytes};
    const auto all = [&] {
      for (int i = 0; i < n; ++i) fine(stream_->enqueue("add", {}, [&] { return add->enqueue(stream_->site("add", nullptr, {}), from, to); }));
    };
    all();
    fine(stream_->synchronize());
    line host{"host time of an op enqueued, of 1,000 adds of 16 floats", "us", {}}, step{"a step of 1,000 adds of 16 floats, one by one", "ms", {}};
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
    fine(stream_->begin_capture());
    all();
    const auto captured = fine(stream_->end_capture());
    fine(stream_->replay("step", *captured));
    fine(stream_->synchronize());
    line host_replay{"host time of an op, replayed", "us", {}}, replay{"the same step, replayed", "ms", {}};
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

  // A chain of products: replayed as a graph, and cuBLASLt called in a loop, by turns in one run.
  void products(dtype type, product_mode mode, std::int64_t n, int count) {
    const product p{.type = type, .mode = mode, .m = n, .n = n, .k = n, .stride_a = n, .stride_b = n, .stride_c = n};
    const auto plan = fine(device_.chip().plan_product(p));
    const auto bytes = static_cast<std::size_t>(n * n) * size_of(type);
    const auto a = take(bytes), b = take(bytes), c = take(bytes), workspace = take(plan->workspace_bytes);
    for (const auto m : {a, b, c}) fine(stream_->fill_zero("zero", bytes_of(m)));
    const auto bare = [&] {
      for (int i = 0; i < count; ++i) fine(device_.chip().multiply(stream_->site("matmul", nullptr, {}), *plan, a.bytes, b.bytes, nullptr, c.bytes, workspace.bytes));
    };
    bare();
    fine(stream_->synchronize());
    attributes attrs;
    if (mode == product_mode::tf32) attrs.set("tf32", std::int64_t{1});
    auto kernel = fine(make_cuda_kernels().make("matmul", attrs, device_.chip()));
    const tensor_spec spec{type, {n, n}};
    const std::vector<tensor_spec> in{spec, spec}, out{spec};
    fine(kernel->prepare(in, out));
    const auto own = take(kernel->workspace_bytes());
    const std::byte* const from[] = {a.bytes, b.bytes};
    std::byte* const to[] = {c.bytes};
    fine(stream_->begin_capture());
    for (int i = 0; i < count; ++i) fine(stream_->enqueue("matmul", {}, [&] { return kernel->enqueue(stream_->site("matmul", own.bytes, {}), from, to); }));
    const auto captured = fine(stream_->end_capture());
    const auto what = fmt::format("{} products of {}^3, {}{}", count, n, to_string(type), mode == product_mode::tf32 ? " as tf32" : "");
    line of_replay{what + ", replayed", "TFLOP/s", {}}, of_bare{what + ", cuBLASLt in a loop", "TFLOP/s", {}}, ratio{what + ": replayed / loop", "x", {}};
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) * count;
    const auto wait = [&] { fine(stream_->synchronize()); };
    for (int t = 0; t < turns_; ++t) {
      const auto replayed = seconds_of([&] { fine(stream_->replay("step", *captured)), wait(); });
      const auto looped = seconds_of([&] { bare(), wait(); });
      of_replay.values.push_back(flops / replayed / 1e12);
      of_bare.values.push_back(flops / looped / 1e12);
      ratio.values.push_back(looped / replayed);
    }
    of_replay.print();
    of_bare.print();
    ratio.print();
    for (const auto m : {a, b, c, workspace, own}) stream_->free(m);
  }

  // Input, copy, compute, copy out, on streams of their own, two buffers each.
  void pipeline() {
    constexpr std::size_t bytes = std::size_t{256} << 20;
    constexpr int steps = 100, buffers = 2;
    auto in = fine(device_.make_cuda_stream(stream_kind::copy_in)), out = fine(device_.make_cuda_stream(stream_kind::copy_out));
    const tensor_spec spec{dtype::f32, {static_cast<std::int64_t>(bytes / 4)}};
    auto kernel = fine(make_cuda_kernels().make("gelu", {}, device_.chip()));
    fine(kernel->prepare({&spec, 1}, {&spec, 1}));
    device_memory host_in = fine(device_.allocate_pinned(bytes)), host_out = fine(device_.allocate_pinned(bytes)), x[buffers], y[buffers];
    std::memset(host_in.bytes, 0, bytes);
    for (int i = 0; i < buffers; ++i) x[i] = take(bytes), y[i] = take(bytes);
    fine(stream_->synchronize());
    const auto copy_in = [&](int i) { fine(in->copy("in", bytes_of(x[i % buffers]), memory_kind::device, bytes_of(host_in), memory_kind::pinned)); };
    const auto copy_out = [&](int i) { fine(out->copy("out", bytes_of(host_out), memory_kind::pinned, bytes_of(y[i % buffers]), memory_kind::device)); };
    const auto compute = [&](int i) {
      const std::byte* const from[] = {x[i % buffers].bytes};
      std::byte* const to[] = {y[i % buffers].bytes};
      fine(stream_->enqueue("gelu", {}, [&] { return kernel->enqueue(stream_->site("gelu", nullptr, {}), from, to); }));
    };
    const auto alone = [&](device_stream& s, const std::function<void(int)>& each) {
      each(0);
      fine(s.synchronize());
      return seconds_of([&] {
        for (int i = 0; i < 10; ++i) each(i);
        fine(s.synchronize());
      }) / 10;
    };
    const double of_in = alone(*in, copy_in), of_compute = alone(*stream_, compute), of_out = alone(*out, copy_out);
    device_event read[buffers], written[buffers];
    const auto whole = seconds_of([&] {
      for (int i = 0; i < steps; ++i) {
        fine(in->wait(read[i % buffers]));
        copy_in(i);
        const auto here = fine(in->record());
        fine(stream_->wait(here));
        fine(stream_->wait(written[i % buffers]));
        compute(i);
        read[i % buffers] = fine(stream_->record());
        fine(out->wait(read[i % buffers]));
        copy_out(i);
        written[i % buffers] = fine(out->record());
      }
      fine(out->synchronize());
    });
    const double longest = std::max({of_in, of_compute, of_out});
    std::printf("%-64s %-8s %10.3f\n", "copy of 256 MiB in, alone", "GB/s", static_cast<double>(bytes) / of_in / 1e9);
    std::printf("%-64s %-8s %10.3f\n", "copy of 256 MiB out, alone", "GB/s", static_cast<double>(bytes) / of_out / 1e9);
    std::printf("%-64s %-8s %10.3f\n", "gelu of 256 MiB, alone", "ms", of_compute * 1e3);
    std::printf("%-64s %-8s %10.3f\n", "100 steps in, gelu, out: a step", "ms", whole / steps * 1e3);
    std::printf("%-64s %-8s %10.3f\n", "the longest of the three alone / a step", "x", longest / (whole / steps));
    device_.free_pinned(host_in);
    device_.free_pinned(host_out);
    for (int i = 0; i < buffers; ++i) stream_->free(x[i]), stream_->free(y[i]);
  }

 private:
  device_memory take(std::size_t bytes) { return fine(stream_->allocate(bytes, "bench")); }

  cuda_device& device_;
  int turns_;
  std::unique_ptr<cuda_stream> stream_;
};

}  // namespace

int main(int argc, char** argv) {
  int turns = 9;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
      turns = std::max(1, std::atoi(argv[++i]));
    } else {
      std::printf("gpu_bench [--turns N]: figures of the first CUDA device, a line each: what, unit, median, spread\n");
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
  b.products(dtype::bf16, product_mode::exact, 8192, 10);
  b.pipeline();
  return 0;
}
