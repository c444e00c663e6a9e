// Branches and loops: what an iteration of a loop costs beside the same ops written out, and an op
// of a branch that is not taken beside one that is.

#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

namespace {

constexpr std::uint32_t iterations = 1000, ops_of_branch = 100;
const tensor_spec row{dtype::f32, {16}};

value looped(graph& g, value x) {
  const auto one = constant(g, 1), most = constant(g, float(iterations));
  return while_loop(
      {constant(g, 0), x}, [&](auto v) { return less(v[0], most); },
      [&](auto v) { return std::vector{add(v[0], one), relu(v[1])}; })[1];
}
value written_out(graph&, value x) {
  for (std::uint32_t i = 0; i < iterations; ++i) x = relu(x);
  return x;
}

// A chain in one branch; the other one hands x on.
value branched(graph& g, value x, bool is_taken) {
  const auto condition = less(constant(g, is_taken ? 0 : 1),
                              reduce_sum(exp(mul(x, constant(g, 0)))) * constant(g, 1.0F / 32));
  return cond(
      condition,
      [&] {
        auto y = x;
        for (std::uint32_t i = 0; i < ops_of_branch; ++i) y = relu(y);
        return y;
      },
      [&] { return x; });
}

result<std::unique_ptr<graph_driver>> start(process& p,
                                            const std::function<value(graph&, value)>& build) {
  graph g(p.ops());
  const auto y = build(g, input(g, row, "x"));
  if (g.first_error()) return *g.first_error();
  auto compiled = compile_steps(g, std::array{y}, {.name = "loop", .fuse = false});
  if (!compiled) return compiled.error();
  return graph_driver::start(p, std::move(*compiled), {view_of(p).self.id});
}

// Ours and the baseline, in nanoseconds for each of `count`.
result<void> compare(const bench_options& o, bench_report& report, process& p, std::string what,
                     const char* baseline, std::uint32_t count,
                     const std::array<std::function<value(graph&, value)>, 2>& builds) {
  std::array<std::unique_ptr<graph_driver>, 2> drivers;
  for (std::size_t i = 0; i < 2; ++i) {
    auto started = start(p, builds[i]);
    if (!started) return started.error();
    drivers[i] = std::move(*started);
  }
  const std::uint64_t steps = o.is_quick ? 5 : 200;
  const auto run = [&](std::size_t i) -> result<double> {
    auto seconds = drivers[i]->run(steps, 1);
    return seconds ? result<double>(*seconds * 1e9 / (double(steps) * count)) : seconds;
  };
  auto figures = take_turns(o.runs, {[&] { return run(0); }, [&] { return run(1); }});
  if (!figures) return figures.error();
  report.add({"loop", std::move(what), "ns", (*figures)[0], drivers[0]->actors(), baseline,
              (*figures)[1], bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace

result<void> bench_loop(const bench_options& o, bench_report& report) {
  auto p = process::start({});
  if (!p) return p.error();
  if (auto ok =
          compare(o, report, **p, fmt::format("an iteration of {}, two variables", iterations),
                  "written out", iterations, {looped, written_out});
      !ok)
    return ok;
  return compare(o, report, **p, fmt::format("an op of a branch of {}, not taken", ops_of_branch),
                 "taken", ops_of_branch,
                 {[](graph& g, value x) { return branched(g, x, false); },
                  [](graph& g, value x) { return branched(g, x, true); }});
}

}  // namespace troupe
