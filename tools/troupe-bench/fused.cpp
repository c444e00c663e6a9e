// 1,000 element-wise ops in one actor: add, mul and maximum in turn, of 16 floats that are fed,
// bound by position in a prepared call.
//
// The feeds, the fetch and the messages of a step are counted in. The baseline is the same ops,
// each a loop over 16 floats that is called by pointer.

#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace troupe {

namespace {

constexpr std::uint32_t ops_in_a_chain = 1000;
constexpr std::int64_t elements = 16;
constexpr std::size_t operands = 3;

result<plan> chain_plan(const op_table& ops, bool fuse) {
  graph g(ops);
  const tensor_spec spec{dtype::f32, {elements}};
  auto x = input(g, spec, "x");
  std::array<value, operands> by{};
  for (std::size_t i = 0; i < operands; ++i) by[i] = input(g, spec, fmt::format("operand_{}", i));
  for (std::uint32_t i = 0; i < ops_in_a_chain; ++i)
    x = i % 3 == 0 ? add(x, by[0]) : i % 3 == 1 ? mul(x, by[1]) : maximum(x, by[2]);
  return compile_steps(g, {&x, 1}, {.name = "fused", .fuse = fuse});
}

using row_function = void (*)(float*, const float*, const float*);
void add_row(float* out, const float* a, const float* b) {
  for (std::int64_t i = 0; i < elements; ++i) out[i] = a[i] + b[i];
}
void mul_row(float* out, const float* a, const float* b) {
  for (std::int64_t i = 0; i < elements; ++i) out[i] = a[i] * b[i];
}
void maximum_row(float* out, const float* a, const float* b) {
  for (std::int64_t i = 0; i < elements; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
}

double call_rows(std::uint64_t steps) {
  std::vector<row_function> rows;
  for (std::uint32_t i = 0; i < ops_in_a_chain; ++i)
    rows.push_back(i % 3 == 0 ? &add_row : i % 3 == 1 ? &mul_row : &maximum_row);
  std::array<float, elements> x{}, operand{};
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t s = 0; s < steps; ++s)
    for (const auto row : rows) row(x.data(), x.data(), operand.data());
  volatile float last = x[0];
  static_cast<void>(last);
  return seconds_since(began);
}

}  // namespace

result<void> bench_fused(const bench_options& o, bench_report& report) {
  auto p = process::start({});
  if (!p) return p.error();
  std::array<std::unique_ptr<graph_driver>, 2> drivers;
  for (const bool fuse : {true, false}) {
    auto compiled = chain_plan((*p)->ops(), fuse);
    if (!compiled) return compiled.error();
    auto started = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
    if (!started) return started.error();
    drivers[fuse ? 0 : 1] = std::move(*started);
  }
  const std::uint64_t steps = o.is_quick ? 50 : 2000;
  const auto per_op = 1e9 / (double(steps) * ops_in_a_chain);
  const auto run = [&](graph_driver& d, std::uint64_t fewer) -> result<double> {
    auto seconds = d.run(steps / fewer, 1);
    return seconds ? result<double>(*seconds * per_op * double(fewer)) : seconds;
  };
  auto figures =
      take_turns(o.runs, {[&] { return run(*drivers[0], 1); }, [&] { return run(*drivers[1], 10); },
                          [&]() -> result<double> { return call_rows(steps) * per_op; }});
  if (!figures) return figures.error();
  report.add({"fused", fmt::format("{} ops of {} floats, one actor", ops_in_a_chain, elements),
              "ns", (*figures)[0], drivers[0]->actors(), "a loop called by pointer", (*figures)[2],
              bench_ratio::ours_to_baseline, ""});
  report.add({"fused", fmt::format("{} ops of {} floats, --fuse off", ops_in_a_chain, elements),
              "ns", (*figures)[1], drivers[1]->actors(), "a loop called by pointer", (*figures)[2],
              bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace troupe
