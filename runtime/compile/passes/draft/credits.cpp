#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::passes {

// Pieces on their way from one rank of a collective to another, at the least: 2 MiB; not tuned.
constexpr std::uint32_t rank_credits = 8;

// Every actor takes one item per port and firing and holds none back, and all edges of a fork carry
// the same tags, so that one credit is enough to never deadlock; each further one lets a producer
// run one step ahead. Where an item has to be received before the next one is made, there is one. A
// gradient needs no more: the worker's next one comes from the version that is made of it.
plan connect(draft d, std::uint32_t credits, std::size_t edge_bytes, pass_report* report) {
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
      const auto& spec = producer.output_specs[from[port].port];
      const bool are_ranks = p.actors[c].collective && port >= p.actors[c].collective->own_inputs();
      if (are_ranks) {
        p.edges.push_back({from[port],
                           {c, port},
                           spec,
                           std::max(rank_credits, fewest_credits(producer.collective->spec) + 1)});
        continue;
      }
      const bool is_single = p.actors[c].awaits_receipt || producer.awaits_receipt,
                 is_gradient =
                     p.actors[c].kind == actor_kind::collective ||
                     (p.actors[c].kind == actor_kind::shard &&
                      (producer.kind == actor_kind::op || producer.kind == actor_kind::receive ||
                       producer.kind == actor_kind::collective ||
                       producer.kind == actor_kind::copy));
      const auto fitting =
          std::max<std::size_t>(1, edge_bytes / std::max<std::size_t>(1, spec.size_bytes()));
      const auto some = is_single || is_gradient
                            ? 1
                            : static_cast<std::uint32_t>(std::min<std::size_t>(credits, fitting));
      if (report != nullptr && some < credits)
        report->add(p.actors[c].name, p.actors[c].source, [&] {
          return is_single
                     ? fmt::format(
                           "input {} has one credit, not {}: an item is received before the next one is made",
                           port, credits)
                 : is_gradient
                     ? fmt::format(
                           "input {} has one credit, not {}: the worker's next gradient needs the "
                           "version that is made from this one",
                           port, credits)
                     : fmt::format(
                           "input {} has {} {}, not {}: an item has {} bytes, and an edge gets {}",
                           port, some, some == 1 ? "credit" : "credits", credits, spec.size_bytes(),
                           edge_bytes);
        });
      p.edges.push_back({from[port], {c, port}, spec, some});
    }
  }
  return p;
}

}  // namespace troupe::passes
