// 1,000 independent ops of 16 floats over 2 streams, every op an actor, all of them fetched: what a
// node of a wide graph costs.
//
// The baseline is the same graph with all ops on one stream. Beside it run sched.cpp's fan-out
// (oneTBB) of another program.

#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <vector>

namespace troupe {

namespace {

constexpr std::uint32_t width = 1000;

result<plan> fan_plan(const op_table& ops, std::uint32_t streams) {
  graph g(ops);
  const auto x = input(g, {dtype::f32, {16}}, "x");
  std::vector<value> all;
  for (std::uint32_t i = 0; i < width; ++i) {
    const auto here = g.device_scope(fmt::format("/cpu:{}", i % streams));
    all.push_back(relu(x));
  }
  return compile_steps(g, all, {.name = "fan", .fuse = false, .share = false});
}

}  // namespace

result<void> bench_fan(const bench_options& o, bench_report& report) {
  process_options two;
  two.streams = 2;
  auto p = process::start(two);
  if (!p) return p.error();
  std::array<std::unique_ptr<graph_driver>, 2> drivers;
  for (std::uint32_t streams : {1U, 2U}) {
    auto compiled = fan_plan((*p)->ops(), streams);
    if (!compiled) return compiled.error();
    auto started = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
    if (!started) return started.error();
    drivers[streams - 1] = std::move(*started);
  }
  const std::uint64_t steps = o.is_quick ? 10 : 300;
  const auto per_node = 1e9 / (double(steps) * width);
  for (const std::uint64_t in_flight : {1U, 2U}) {
    const auto run = [&](std::size_t i) -> result<double> {
      auto seconds = drivers[i]->run(steps, in_flight);
      return seconds ? result<double>(*seconds * per_node) : seconds;
    };
    auto figures = take_turns(o.runs, {[&] { return run(1); }, [&] { return run(0); }});
    if (!figures) return figures.error();
    report.add({"fan", fmt::format("{} independent ops, 2 streams, {} in flight", width, in_flight),
                "ns", (*figures)[0], drivers[1]->actors(), "on one stream", (*figures)[1],
                bench_ratio::ours_to_baseline, ""});
  }
  return {};
}

}  // namespace troupe
