#include "runtime/passes/passes.hpp"

#include <fmt/format.h>

namespace troupe::passes {

// Every actor takes one item per port and firing and holds none back, and all edges of a fork carry the same tags, so
// that one credit is enough to never deadlock; each further one lets a producer run one step ahead.
// Where an item has to be received before the next one is made, there is one.
plan connect(draft d, std::uint32_t credits, pass_report* report) {
  plan p;
  p.actors.reserve(d.actors.size());
  std::size_t edges = 0;
  for (auto& a : d.actors) {
    a.planned.outputs.resize(a.planned.output_specs.size());
    edges += a.from.size();
    p.actors.push_back(std::move(a.planned));
  }
  p.edges.reserve(edges);
  for (std::uint32_t c = 0; c < d.actors.size(); ++c) {
    const auto& from = d.actors[c].from;
    for (std::uint32_t port = 0; port < from.size(); ++port) {
      const auto edge = static_cast<std::uint32_t>(p.edges.size());
      auto& producer = p.actors[from[port].actor];
      producer.outputs[from[port].port].push_back(edge);
      p.actors[c].inputs.push_back(edge);
      const bool is_single = p.actors[c].awaits_receipt || producer.awaits_receipt;
      if (report != nullptr && is_single && credits > 1)
        report->add(p.actors[c].name, p.actors[c].source, [&] { return fmt::format("input {} has one credit, not {}: an item is received before the next one is made", port, credits); });
      p.edges.push_back({from[port], {c, port}, producer.output_specs[from[port].port], is_single ? 1 : credits});
    }
  }
  return p;
}

}  // namespace troupe::passes
