// Random graphs of element-wise ops and small products, from building them to the first step, and a
// step: all of that has to grow with the ops.

#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/random_values.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <memory>
#include <vector>

namespace troupe {

namespace {

// In use by the program: what the system has given it may have been in use before.
double heap_bytes() {
  const auto m = mallinfo2();
  return double(m.uordblks) + double(m.hblkhd);
}

struct times {
  double total = 0, step = 0, bytes = 0;
  std::uint64_t actors = 0;
};

result<times> once(std::uint32_t ops, bool fuse) {
  auto p = process::start({});
  if (!p) return p.error();
  const auto before = heap_bytes();
  const auto began = std::chrono::steady_clock::now();
  graph g((*p)->ops());
  const auto fetches = random_values(g, ops);
  auto compiled = compile_steps(g, fetches, {.name = "random", .fuse = fuse});
  if (!compiled) return compiled.error();
  auto driver = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
  if (!driver) return driver.error();
  if (auto first = (*driver)->run(1, 1); !first) return first.error();
  times t{seconds_since(began), 0, heap_bytes() - before, (*driver)->actors()};
  auto more = (*driver)->run(3, 1);
  if (!more) return more.error();
  t.step = *more / 3;
  return t;
}

}  // namespace

result<void> bench_random_graph(const bench_options& o, bench_report& report) {
  for (const bool fuse : {true, false}) {
    std::vector<double> smaller;
    for (const std::uint32_t ops : {1'000U, 10'000U, 100'000U}) {
      if (o.is_quick && ops > 1'000) break;
      times t;
      std::vector<double> steps;
      double bytes = 0;
      auto figures = take_turns(std::min(o.runs, 3), {[&]() -> result<double> {
                                  auto one = once(ops, fuse);
                                  if (!one) return one.error();
                                  t = *one;
                                  steps.push_back(t.step / ops * 1e9);
                                  bytes = std::max(bytes, t.bytes / ops);
                                  return t.total * 1e6 / ops;
                                }});
      if (!figures) return figures.error();
      if (smaller.empty()) smaller = (*figures)[0];
      report.add(
          {"random_graph",
           fmt::format("{} ops{}, build to first step, an op", ops, fuse ? "" : ", --fuse off"),
           "us", (*figures)[0], t.actors, "with 1,000 ops", smaller, bench_ratio::ours_to_baseline,
           ""});
      steps.erase(steps.begin());  // of the turn that does not count
      report.add({"random_graph",
                  fmt::format("{} ops{}, a step, an op", ops, fuse ? "" : ", --fuse off"), "ns",
                  steps, t.actors, "bytes of memory an op",
                  std::vector<double>(steps.size(), bytes), bench_ratio::ours_to_baseline, ""});
      smaller.resize((*figures)[0].size());
    }
  }
  return {};
}

}  // namespace troupe
