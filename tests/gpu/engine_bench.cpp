// Figures of graphs that sessions run on one GPU, a line each: what, unit, median, spread over
// turns. Beside them, by turns, cuBLASLt alone.
//
//   engine_bench [--help] [--turns N] [--only products|tiny|pipeline] [--stand-in]
//
// --stand-in: smaller, on the asynchronous host device and with nothing beside, to see that the
// graphs run. Steps overlap as a program's do that feeds ahead: a step is a part of the time that
// many take. Without a GPU: one line that says why, and 77.

#include "tests/gpu/figures.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/cuda/cuda_device.hpp"
#include "troupe/devices/cuda/libraries/find_devices.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <sys/resource.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::test;

namespace {

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

tensor waves(const tensor_spec& spec, float scale) {
  auto t = tensor::make(spec);
  for (std::int64_t i = 0; i < t.elements(); ++i)
    t.data<float>()[i] = scale * std::sin(static_cast<float>(i % 1'000'003) * 1.7F);
  return t;
}

// A graph that is fed one tensor, x, and gives one.
struct fed_graph {
  std::unique_ptr<stepper> run;
  tensor x;

  struct taken {
    double wall = 0, processor = 0;  // seconds a step
  };
  taken run_steps(int steps) {
    constexpr int ahead = 2;
    const auto processor = processor_seconds();
    const auto wall = seconds_of([&] {
      for (int i = 0; i < steps; ++i) {
        fine(run->feed("x", x));
        if (i >= ahead) (void)fine(run->fetch());
      }
      for (int i = 0; i < std::min(ahead, steps); ++i) (void)fine(run->fetch());
    });
    return {wall / steps, (processor_seconds() - processor) / steps};
  }
};

class bench {
 public:
  // `d`: null with a stand-in.
  bench(session& s, cuda::cuda_device* d, int turns) : session_(s), device_(d), turns_(turns) {
    if (d != nullptr) stream_ = fine(d->make_cuda_stream(stream_kind::compute));
  }

  // A chain of products, and beside it as many by cuBLASLt, captured as one graph and replayed as
  // often. What else the session's graph has are two small kernels: the factor, made of what is
  // fed, so that nothing can be computed ahead, and a piece of the last product, which is fetched.
  void products(dtype type, std::int64_t n, int count, int steps) {
    graph g(session_.ops());
    const auto x = input(g, tensor_spec{dtype::f32, {1, n}}, "x");
    const float scale = std::sqrt(2.0F / static_cast<float>(n));
    const auto made = constant(g, waves({dtype::f32, {n, 1}}, scale)) * x;
    const auto factor = type == dtype::f32 ? made : cast(made, type);
    auto y = factor;
    for (int i = 0; i < count; ++i) y = matmul(y, factor);
    const auto piece = slice(y, {{1, 2}, {0, fetched_columns}});
    const auto out = type == dtype::f32 ? piece : cast(piece, dtype::f32);
    fed_graph ours{
        fine(session_.compile(g, std::span(&out, 1), {.name = "products", .device = "/gpu:0"})),
        waves({dtype::f32, {1, n}}, scale)};
    if (device_ == nullptr) return look_at(ours, type, count);

    const cuda::product p{
        .type = type, .m = n, .n = n, .k = n, .stride_a = n, .stride_b = n, .stride_c = n};
    const auto plan = fine(device_->chip().plan_product(p));
    const auto bytes = static_cast<std::size_t>(n * n) * size_of(type);
    const auto a = take(bytes), b = take(bytes), c = take(bytes),
               workspace = take(std::max<std::size_t>(plan->workspace_bytes, 1));
    fill(type, n, ours.x, a, b);
    const auto all = [&] {
      for (int i = 0; i < count; ++i) {
        const auto &from = i % 2 == 0 ? a : c, &to = i % 2 == 0 ? c : a;
        fine(device_->chip().multiply(stream_->site("matmul", nullptr, {}), *plan, from.bytes,
                                      b.bytes, nullptr, to.bytes, workspace.bytes));
      }
    };
    all();
    fine(stream_->synchronize());
    fine(stream_->begin_capture());
    all();
    const auto captured = fine(stream_->end_capture());
    const auto bare = [&] {
      return seconds_of([&] {
               for (int i = 0; i < steps; ++i) fine(stream_->replay("step", *captured));
               fine(stream_->synchronize());
             }) /
             steps;
    };
    (void)bare();
    (void)ours.run_steps(16);  // until each set of addresses is captured
    const auto what =
        fmt::format("a session's graph of {} products of {}^3, {}", count, n, to_string(type));
    figure of_ours{what, "TFLOP/s", {}}, of_bare{"as many by cuBLASLt, replayed", "TFLOP/s", {}},
        ratio{what + " / cuBLASLt", "x", {}};
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) *
                         static_cast<double>(n) * count / 1e12;
    for (int t = 0; t < turns_; ++t) {
      const auto here = ours.run_steps(steps).wall, there = bare();
      of_ours.add(flops / here);
      of_bare.add(flops / there);
      ratio.add(there / here);
    }
    for (auto* f : {&of_ours, &of_bare, &ratio}) f->print();
    for (const auto m : {a, b, c, workspace}) stream_->free(m);
  }

  // 1,000 ops of 16 numbers: element-wise ones, which fusing makes few kernels of, and others, each
  // a kernel of a step that is replayed.
  void tiny() {
    constexpr int ops = 1000, steps = 200;
    for (const bool is_fused : {true, false}) {
      graph g(session_.ops());
      const auto x = input(g, tensor_spec{dtype::f32, {1, 16}}, "x");
      const auto b = constant(g, waves({dtype::f32, {1, 16}}, 0.5F));
      auto y = x;
      for (int i = 0; i < ops; ++i)
        y = !is_fused ? softmax(y) : i % 3 == 0 ? y + b : i % 3 == 1 ? y * b : maximum(y, x);
      fed_graph ours{
          fine(session_.compile(g, std::span(&y, 1), {.name = "tiny", .device = "/gpu:0"})),
          waves({dtype::f32, {1, 16}}, 1)};
      (void)ours.run_steps(16);
      const std::string what = is_fused
                                   ? "1,000 adds, products and maxima of 16 floats in a session"
                                   : "1,000 softmax of 16 floats in a session, replayed";
      figure step{what + ": a step", "ms", {}}, one{what + ": processor time an op", "us", {}};
      for (int t = 0; t < turns_; ++t) {
        const auto took = ours.run_steps(steps);
        step.add(took.wall * 1e3);
        one.add(took.processor / ops * 1e6);
      }
      step.print();
      one.print();
    }
    empty();
  }

  // What a step costs by itself: fed, copied in, one kernel, copied out, fetched.
  void empty() {
    graph g(session_.ops());
    const auto y = gelu(input(g, tensor_spec{dtype::f32, {1, 16}}, "x"));
    fed_graph ours{
        fine(session_.compile(g, std::span(&y, 1), {.name = "empty", .device = "/gpu:0"})),
        waves({dtype::f32, {1, 16}}, 1)};
    (void)ours.run_steps(16);
    figure ahead{"a step of one kernel, fed ahead", "us", {}},
        alone{"a step of one kernel, each fetched before the next is fed", "us", {}};
    constexpr int steps = 500;
    for (int t = 0; t < turns_; ++t) {
      ahead.add(ours.run_steps(steps).wall * 1e6);
      alone.add(seconds_of([&] {
                  for (int i = 0; i < steps; ++i) {
                    fine(ours.run->feed("x", ours.x));
                    (void)fine(ours.run->fetch());
                  }
                }) /
                steps * 1e6);
    }
    ahead.print();
    alone.print();
  }

  // 256 MiB from a program's own memory to the chip, gelu, and back into it.
  void pipeline() {
    const std::int64_t elements = device_ != nullptr ? std::int64_t{64} << 20 : 1000;
    constexpr int steps = 12;
    graph g(session_.ops());
    const auto y = gelu(input(g, tensor_spec{dtype::f32, {elements}}, "x"));
    fed_graph ours{
        fine(session_.compile(
            g, std::span(&y, 1),
            {.name = "pipeline", .edge_bytes = std::size_t{1} << 30, .device = "/gpu:0"})),
        waves({dtype::f32, {elements}}, 1)};
    (void)ours.run_steps(4);
    figure step{"256 MiB fed, gelu, fetched by a session, from and to pageable memory", "ms", {}};
    for (int t = 0; t < std::min(turns_, 3); ++t) step.add(ours.run_steps(steps).wall * 1e3);
    step.print();
  }

 private:
  // What steps of products give: (w x)^(count + 1), where w is the column and x the row, is
  // w (x w)^count x.
  void look_at(fed_graph& ours, dtype type, int count) {
    double norm = 0;  // w and x have the same numbers
    const auto* x = ours.x.data<float>();
    for (std::int64_t i = 0; i < ours.x.elements(); ++i) norm += double(x[i]) * double(x[i]);
    const double factor = double(x[1]) * std::pow(norm, count);
    for (int i = 0; i < 8; ++i) {
      fine(ours.run->feed("x", ours.x));
      const auto got = fine(ours.run->fetch());
      const auto& row = got.front();
      double apart = 0, most = 0;
      for (std::int64_t j = 0; j < row.elements(); ++j) {
        apart = std::max(apart, std::abs(double(row.data<float>()[j]) - factor * double(x[j])));
        most = std::max(most, std::abs(factor * double(x[j])));
      }
      std::printf("%d products of %s: at most %g from the expected numbers, the largest is %g\n",
                  count, std::string(to_string(type)).c_str(), apart, most);
      if (row.elements() != fetched_columns || !(apart <= (type == dtype::f32 ? 1e-4 : 0.1) * most))
        end(error(error_code::failed, fmt::format("products of {} are {} from what they should be",
                                                  to_string(type), apart)));
    }
  }
  device_memory take(std::size_t bytes) { return fine(stream_->allocate(bytes, "bench")); }
  // The same numbers as the session's graph has.
  void fill(dtype type, std::int64_t n, const tensor& x, device_memory a, device_memory b) {
    auto made = cuda::make_cuda_kernels();
    const tensor_spec wide{dtype::f32, {1, n}}, narrow{type, {1, n}}, square{type, {n, n}};
    const auto m_x = take(wide.size_bytes()), m_row = take(wide.size_bytes());
    fine(stream_->copy("x", {m_x.bytes, m_x.size_bytes}, memory_kind::device, x.bytes(),
                       memory_kind::pageable));
    const std::byte* const from_x[] = {m_x.bytes};
    std::byte* const to_row[] = {m_row.bytes};
    auto cast = fine(cuda::make_fused_cuda_kernel({{"cast", {0}, type}}, device_->chip()));
    fine(cast->prepare({&wide, 1}, {&narrow, 1}));
    fine(stream_->enqueue("cast", {}, [&] {
      return cast->enqueue(stream_->site("cast", nullptr, {}), from_x, to_row);
    }));
    attributes attrs;
    attrs.set("transpose_a", std::int64_t{1});
    auto product = fine(made.make("matmul", attrs, device_->chip()));
    const std::vector<tensor_spec> in{narrow, narrow};
    fine(product->prepare(in, {&square, 1}));
    const auto workspace = take(std::max<std::size_t>(product->workspace_bytes(), 1));
    const std::byte* const rows[] = {m_row.bytes, m_row.bytes};
    for (const auto m : {a, b}) {
      std::byte* const to[] = {m.bytes};
      fine(stream_->enqueue("matmul", {}, [&] {
        return product->enqueue(stream_->site("matmul", workspace.bytes, {}), rows, to);
      }));
    }
    fine(stream_->synchronize());
    for (const auto m : {m_x, m_row, workspace}) stream_->free(m);
  }

  static constexpr std::int64_t fetched_columns = 16;

  session& session_;
  cuda::cuda_device* device_;
  int turns_;
  std::unique_ptr<cuda::cuda_stream> stream_;
};

}  // namespace

int main(int argc, char** argv) {
  int turns = 7;
  std::string only;
  bool is_stand_in = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
      turns = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--stand-in") == 0) {
      is_stand_in = true;
    } else {
      std::printf(
          "engine_bench [--turns N] [--only products|tiny|pipeline] [--stand-in]: figures of graphs on the first CUDA device, a line each: what, unit, median, spread\n");
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
  }
  std::vector<std::unique_ptr<cuda::cuda_device>> devices;
  if (!is_stand_in) {
    auto found = cuda::make_cuda_devices(1, {}, {});
    if (!found) {
      std::printf("skipped: %s\n", found.error().text().c_str());
      return 77;
    }
    devices = std::move(*found);
    std::printf("%s, %d turns\n", devices.front()->hardware().c_str(), turns);
  }
  auto s = fine(session::open(
      {.gpus = is_stand_in ? "host:1" : "1", .gpu_memory_bytes = std::uint64_t{16} << 30}));
  bench b(*s, is_stand_in ? nullptr : devices.front().get(), turns);
  const auto runs = [&](const char* what) { return only.empty() || only == what; };
  if (runs("products") && is_stand_in) {
    for (const auto type : {dtype::f32, dtype::bf16}) b.products(type, 32, 6, 1);
  } else if (runs("products")) {
    for (const auto type : {dtype::f32, dtype::bf16})
      for (const std::int64_t n : {512, 1024}) b.products(type, n, 50, 20);
    b.products(dtype::bf16, 8192, 10, 5);
  }
  if (runs("tiny")) b.tiny();
  if (runs("pipeline")) b.pipeline();
  return 0;
}
