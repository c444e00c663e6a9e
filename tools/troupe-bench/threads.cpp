// The decision about threads, measured: chains of bare typed actors under the pinned scheduler and
// under CAF's own.

#include "tools/troupe-bench/chain.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/actors/base/scheduler.hpp"

#include <caf/actor_system.hpp>
#include <fmt/format.h>

namespace troupe {

namespace {

constexpr std::uint32_t actors_in_a_chain = 1000;

struct pinned_config : scheduler_config {
  pinned_config() {
    streams = 2;
    pinned();
  }
};

struct stealing_config : caf::actor_system_config {
  stealing_config() {
    set("scheduler.policy", caf::atom("stealing"));
    set("scheduler.max-threads", std::size_t{2});
  }
};

}  // namespace

result<void> bench_threads(const bench_options& o, bench_report& report) {
  pinned_config config;
  caf::actor_system pinned{config};
  stealing_config config_of_caf;
  caf::actor_system stealing{config_of_caf};
  auto& workers = static_cast<pinned_scheduler&>(pinned.scheduler());
  bare_chain one(pinned, actors_in_a_chain, false,
                 [&](std::uint32_t) { return workers.stream(0); });
  bare_chain halves(pinned, actors_in_a_chain, false, [&](std::uint32_t i) {
    return workers.stream(i < actors_in_a_chain / 2 ? 0 : 1);
  });
  bare_chain crossing(pinned, actors_in_a_chain, false,
                      [&](std::uint32_t i) { return workers.stream(i % 2); });
  bare_chain anywhere(stealing, actors_in_a_chain, false, [](std::uint32_t) { return nullptr; });

  for (const std::uint64_t in_flight : {1, 8, 64}) {
    const std::uint64_t steps = o.is_quick ? in_flight : 256;
    const auto few = std::max<std::uint64_t>(in_flight, steps / 8);
    const auto turn = [&](bare_chain& c, std::uint64_t n) -> contender {
      return [&c, n, in_flight]() -> result<double> {
        return c.run(n, in_flight) * 1e9 / (double(n) * actors_in_a_chain);
      };
    };
    auto figures = take_turns(o.runs, {turn(one, steps), turn(halves, steps), turn(crossing, few),
                                       turn(anywhere, steps)});
    if (!figures) return figures.error();
    const std::string_view names[] = {"one stream", "half and half over two streams",
                                      "every hop crosses"};
    for (std::size_t i = 0; i < 3; ++i)
      report.add({"threads", fmt::format("pinned, {}, {} in flight", names[i], in_flight), "ns",
                  (*figures)[i], actors_in_a_chain, "CAF's stealing, 2 threads", (*figures)[3],
                  bench_ratio::ours_to_baseline, ""});
  }
  return {};
}

}  // namespace troupe
