#include "troupe/runtime/analysis/sparse_edges.hpp"

#include <algorithm>

namespace troupe {

std::vector<bool> sparse_edges(const plan& p) {
  std::vector<bool> sparse(p.edges.size(), false);
  std::vector<std::uint32_t> to_follow;
  const auto mark = [&](const std::vector<std::uint32_t>& edges) {
    for (const auto e : edges)
      if (!sparse[e]) sparse[e] = true, to_follow.push_back(e);
  };
  for (const auto& a : p.actors)
    for (std::size_t port = 0; port < a.shard.readers.size(); ++port)
      if (const auto& r = a.shard.readers[port]; r.worker < 0 && (r.at_end || r.stride > 1))
        mark(a.outputs[port]);
  while (!to_follow.empty()) {
    const auto& consumer = p.actors[p.edges[to_follow.back()].to.actor];
    to_follow.pop_back();
    const bool fires =
        !consumer.fires_on_any || std::all_of(consumer.inputs.begin(), consumer.inputs.end(),
                                              [&](auto e) { return sparse[e]; });
    if (consumer.kind == actor_kind::shard || !fires) continue;
    for (const auto& edges : consumer.outputs) mark(edges);
  }
  return sparse;
}

}  // namespace troupe
