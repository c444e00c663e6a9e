#include "troupe/runtime/flow/drain.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

const stage_totals& flow_totals::of(std::string_view stage) const {
  static const stage_totals none;
  const auto at = std::ranges::find(stages, stage, &stage_totals::name);
  return at != stages.end() ? *at : none;
}

stage_totals totals_of(const std::string& name, const stage_counters& c) {
  const auto n = [](const std::atomic<std::uint64_t>& a) {
    return a.load(std::memory_order_relaxed);
  };
  return {name, n(c.items_in), n(c.items_out), n(c.skipped), n(c.dropped), n(c.restarts)};
}

flow_totals totals_of(const flow_group& g) {
  flow_totals t;
  for (std::uint32_t i = 0; i < g.graph().stages().size(); ++i)
    t.stages.push_back(totals_of(g.graph().stages()[i].name, g.counters(i)));
  return t;
}

std::string why_stuck(const flow_group& g) {
  std::string text;
  for (std::uint32_t i = 0; i < g.graph().edges().size(); ++i) {
    if (!g.has_edge(i)) continue;
    const auto& m = *g.meter(i);
    const auto waiting = m.put_items.load() - m.taken_items.load();
    if (waiting == 0) continue;
    const auto& e = g.graph().edges()[i];
    text += fmt::format("{}{} items of {} wait before {}", text.empty() ? "" : ", ", waiting,
                        g.graph().stages()[e.from].name, g.graph().stages()[e.to].name);
  }
  return text.empty() ? "every stage waits for items" : text;
}

result<flow_totals> drain(flow_graph& g) {
  if (auto ok = g.check(); !ok) return std::move(ok.error());
  flow_group all(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
  if (all.failure()) return all.failure()->why;
  std::int64_t now = 1'000'000'000;
  const auto clock = [&] { return now += 1000; };
  for (;;) {
    switch (all.run(clock, never_ns, nullptr)) {
      case flow_group::state::failed: return std::move(all.failure()->why);
      case flow_group::state::over: return totals_of(all);
      case flow_group::state::more: continue;
      case flow_group::state::idle: break;
    }
    const auto at = all.wakes_at();
    if (at == never_ns)
      return error(error_code::failed, "the topology is stuck: " + why_stuck(all));
    now = std::max(now, at);
  }
}

}  // namespace troupe
