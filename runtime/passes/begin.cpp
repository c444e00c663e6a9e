#include "runtime/passes/passes.hpp"

#include <numeric>

namespace troupe::passes {
namespace {

std::uint64_t first_step(const epoch_start& start, std::uint32_t worker) {
  return start.worker_steps.empty() ? 0 : start.worker_steps[worker];
}

// The losses of all steps that are not made again.
std::uint64_t first_loss(const draft_actor& fetch, const epoch_start& start) {
  if (!fetch.planned.fires_on_any) return first_step(start, 0);
  return std::accumulate(start.worker_steps.begin(), start.worker_steps.end(), std::uint64_t{0});
}

}  // namespace

draft begin(draft d, const epoch_start& start) {
  for (auto& a : d.actors) {
    auto& p = a.planned;
    switch (p.kind) {
      case actor_kind::shard:
        p.shard.restore = start.restore;
        p.shard.is_saved = start.is_saved;
        p.shard.version = start.version;
        p.shard.start = start.worker_steps;
        break;
      case actor_kind::fetch:
        // What is observed at the end is sent again: nobody knows whether it arrived.
        if (p.name == loss_fetch) p.start = first_loss(a, start);
        break;
      default:
        if (a.owner == owner_kind::worker) p.start = first_step(start, a.index);
    }
  }
  return d;
}

}  // namespace troupe::passes
