#include "troupe/runtime/firing/edge_credits.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <type_traits>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t line_bytes = 64, a_line = line_bytes / sizeof(edge_credit);
static_assert(line_bytes % sizeof(edge_credit) == 0 &&
              std::is_trivially_destructible_v<edge_credit>);

}  // namespace

edge_credits::edge_credits(const plan& p, std::uint32_t streams) : place_(p.edges.size()) {
  // First how many each pair of streams has, then where it begins.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> next;
  const auto streams_of = [&](const planned_edge& e) {
    return std::pair(worker_of(p.actors[e.from.actor].stream, streams),
                     worker_of(p.actors[e.to.actor].stream, streams));
  };
  for (const auto& e : p.edges) ++next[streams_of(e)];
  std::size_t size = 0;
  for (auto& [pair, count] : next)
    size += (std::exchange(count, size) + a_line - 1) / a_line * a_line;
  if (size == 0) return;
  expects(size <= std::numeric_limits<std::uint32_t>::max(),
          "a plan has at most plan_edges_max edges");
  credits_.reset(
      static_cast<edge_credit*>(std::aligned_alloc(line_bytes, size * sizeof(edge_credit))));
  if (!credits_) throw std::bad_alloc();
  for (std::size_t i = 0; i < p.edges.size(); ++i) {
    const auto at = next[streams_of(p.edges[i])]++;
    place_[i] = static_cast<std::uint32_t>(at);
    new (credits_.get() + at) edge_credit(static_cast<std::int32_t>(p.edges[i].credits));
  }
}

std::vector<std::uint32_t> by_stream(const plan& p, std::vector<std::uint32_t> actors,
                                     std::uint32_t streams) {
  std::stable_sort(actors.begin(), actors.end(), [&](auto a, auto b) {
    return worker_of(p.actors[a].stream, streams) < worker_of(p.actors[b].stream, streams);
  });
  return actors;
}

}  // namespace troupe
