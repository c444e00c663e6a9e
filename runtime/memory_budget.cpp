#include "runtime/memory_budget.hpp"

#include "runtime/shard_state.hpp"

#include <limits>

namespace troupe {

namespace {

constexpr auto most = std::numeric_limits<std::uint64_t>::max();

std::uint64_t add(std::uint64_t a, std::uint64_t b) { return a > most - b ? most : a + b; }

std::uint64_t times(std::uint64_t n, std::uint64_t bytes) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(n, bytes, &product) ? most : product;
}

std::uint64_t credits_of(const plan& p, const std::vector<std::uint32_t>& edges) {
  std::uint64_t n = 0;
  for (auto e : edges) n += p.edges[e].credits;
  return n;
}

}  // namespace

std::uint64_t memory_of_actor(const plan& p, const planned_actor& a) {
  std::uint64_t bytes = 0;
  switch (a.kind) {
    case actor_kind::op:
    case actor_kind::feed:
      for (std::size_t port = 0; port < a.outputs.size(); ++port)
        bytes = add(bytes, times(1 + credits_of(p, a.outputs[port]), a.output_specs[port].size_bytes()));
      return bytes;
    case actor_kind::receive:
      return times(2 * std::uint64_t{p.edges[a.inputs[0]].credits} + 1, p.edges[a.inputs[0]].spec.size_bytes());
    case actor_kind::shard: {
      const std::uint64_t state = slot_count(a.shard.optimizer);
      std::uint64_t buffers = std::uint64_t{shard_state::slots_wanted(a.shard)} + state;
      buffers += a.shard.keeps * state;               // the optimizer state of each older version
      if (a.shard.cuts_at_end) buffers += 1 + state;  // a cut that is being written
      if (a.shard.pushes_rows) buffers += a.shard.steps.size();  // each worker's, unpacked
      for (const auto& edges : a.outputs) buffers += credits_of(p, edges);
      return times(buffers, a.shard.spec.size_bytes());
    }
    default: return 0;
  }
}

memory_need memory_of_part(const plan& p, std::uint32_t task) {
  memory_need need;
  for (const auto& a : p.actors) {
    if (a.task != task) continue;
    const auto bytes = memory_of_actor(p, a);
    need.bytes = add(need.bytes, bytes);
    if (bytes <= need.largest_bytes) continue;
    need.largest_bytes = bytes;
    need.largest = a.name;
  }
  return need;
}

}  // namespace troupe
