#include "runtime/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
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

void begin_shard(shard_spec& s, const epoch_start& start) {
  s.restore = start.restore;
  s.is_saved = start.is_saved;
  s.version = start.version;
  s.start = start.worker_steps;
}

// An op on the node that keeps the variable, which fires once.
draft_actor make_hand_over(const draft_actor& shard, const handed_variable& h) {
  draft_actor a;
  a.planned.kind = actor_kind::op;
  a.planned.name = fmt::format("hand_over/{}", h.variable);
  a.planned.source = shard.planned.source;
  a.planned.task = h.task;
  a.planned.steps = 1;
  a.planned.output_specs = {shard.planned.shard.spec, shard.planned.shard.spec};
  a.planned.ops.push_back({std::string(hand_over_op), a.planned.name, {{"variable", h.variable}}, {}, shard.planned.source});
  return a;
}

}  // namespace

draft begin(draft d, const epoch_start& start) {
  const auto count = d.actors.size();
  for (std::size_t i = 0; i < count; ++i) {
    auto& p = d.actors[i].planned;
    if (p.kind == actor_kind::fetch) {
      // What is observed at the end is sent again: nobody knows whether it arrived.
      if (p.name == loss_fetch) p.start = first_loss(d.actors[i], start);
      continue;
    }
    if (p.kind != actor_kind::shard) {
      if (d.actors[i].owner == owner_kind::worker) p.start = first_step(start, d.actors[i].index);
      continue;
    }
    begin_shard(p.shard, start);
    const auto h = std::find_if(start.handed.begin(), start.handed.end(), [&](const auto& x) { return x.variable == p.shard.variable; });
    if (h == start.handed.end()) continue;
    p.shard.restore = restore_kind::handed;
    p.shard.handed = h->applied;
    const auto from = static_cast<std::uint32_t>(d.actors.size());
    auto source = make_hand_over(d.actors[i], *h);
    d.actors[i].from.push_back({from, 0});
    d.actors[i].from.push_back({from, 1});
    d.actors.push_back(std::move(source));
  }
  return d;
}

}  // namespace troupe::passes
