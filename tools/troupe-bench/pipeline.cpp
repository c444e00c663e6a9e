// Four stages of equal products of about 1 ms in a row, two on each of 2 streams, steps overlapping
// as far as credits allow.
//
// The bound is what the streams' threads compute: the figure is their CPU time, as a share of what
// two threads have in the time that it took.

#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <ctime>
#include <memory>

namespace troupe {

namespace {

constexpr std::int64_t side = 320;

result<plan> pipeline_plan(const op_table& ops) {
  graph g(ops);
  const tensor_spec spec{dtype::f32, {side, side}};
  auto x = input(g, spec, "x");
  const auto w = input(g, spec, "w");
  for (std::uint32_t stage = 0; stage < 4; ++stage) {
    const auto here = g.device_scope(fmt::format("/cpu:{}", stage / 2));
    // A product of that size takes some 0.4 ms; a stage has three.
    for (int i = 0; i < 3; ++i) x = matmul(x, w);
  }
  return compile_steps(g, {&x, 1}, {.name = "pipeline"});
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

}  // namespace

result<void> bench_pipeline(const bench_options& o, bench_report& report) {
  process_options two;
  two.streams = 2;
  auto p = process::start(two);
  if (!p) return p.error();
  auto compiled = pipeline_plan((*p)->ops());
  if (!compiled) return compiled.error();
  auto graph = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
  if (!graph) return graph.error();
  const std::uint64_t steps = o.is_quick ? 5 : 200;
  std::vector<double> shares;
  auto figures = take_turns(
      o.runs, {[&]() -> result<double> {
                 const auto before = cpu_seconds();
                 auto seconds = (*graph)->run(steps, 4);
                 if (!seconds) return seconds;
                 shares.push_back((cpu_seconds() - before) / 2 / *seconds);
                 return *seconds * 1e6 / double(steps);
               },
               // One step at a time: what pipelining gives.
               [&]() -> result<double> {
                 auto seconds = (*graph)->run(steps / 2 + 1, 1);
                 return seconds ? result<double>(*seconds * 1e6 / double(steps / 2 + 1)) : seconds;
               }});
  if (!figures) return figures.error();
  shares.erase(shares.begin());  // of the turn that does not count
  report.add({"pipeline", "4 stages on 2 streams, a step", "us", (*figures)[0], (*graph)->actors(),
              "one step at a time", (*figures)[1], bench_ratio::ours_to_baseline, ""});
  report.add({"pipeline", "CPU time of 2 streams", "of 1", shares, (*graph)->actors(),
              "all of the time", std::vector<double>(shares.size(), 1.0),
              bench_ratio::ours_to_baseline, ">= 0.95"});
  return {};
}

}  // namespace troupe
