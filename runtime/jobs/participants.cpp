#include "troupe/runtime/jobs/participants.hpp"

#include "troupe/schema/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

void add_to_list(std::string& list, const std::string& what) {
  if (!list.empty()) list += ", ";
  list += what;
}

// The actor that makes what comes in at `edge`: transfers are passed through. A checked plan has no
// cycle of transfers (PL-4).
const planned_actor& maker(const plan& p, std::uint32_t edge) {
  const auto* actor = &p.actors[p.edges[edge].from.actor];
  while ((actor->kind == actor_kind::send || actor->kind == actor_kind::receive ||
          actor->kind == actor_kind::copy) &&
         !actor->inputs.empty())
    actor = &p.actors[p.edges[actor->inputs.front()].from.actor];
  return *actor;
}

}  // namespace

std::vector<std::int32_t> worker_tasks(const plan& p) {
  std::vector<std::int32_t> out(p.workers, -1);
  for (const auto& a : p.actors) {
    if (a.kind == actor_kind::collective)
      for (const auto w : a.collective->workers)
        if (w < out.size()) out[w] = static_cast<std::int32_t>(a.task);
    if (a.kind != actor_kind::shard || a.shard.follows || a.shard.takes_sums) continue;
    for (std::size_t w = 0; w < std::min<std::size_t>(out.size(), a.inputs.size()); ++w)
      out[w] = static_cast<std::int32_t>(maker(p, a.inputs[w]).task);
  }
  return out;
}

participants::participants(const plan& p, std::span<const node_id> nodes)
    : running_(nodes.begin(), nodes.end()),
      is_async_(p.update == update_kind::async && p.workers > 0) {
  expects(nodes.size() == p.tasks.size(), "every task of a job has a node");
  for (std::size_t t = 0; t < nodes.size(); ++t) {
    auto& r = roles_[nodes[t]];
    r.tasks.push_back(p.tasks[t].name);
    r.is_client = r.is_client || p.tasks[t].is_client;
  }
  for (const auto& a : p.actors) {
    auto& r = roles_.at(nodes[a.task]);
    if (a.kind == actor_kind::shard)
      (a.shard.follows ? r.replicas : r.shards).insert(a.shard.shard);
    r.hands_over = r.hands_over || (a.kind == actor_kind::op && !a.ops.empty() &&
                                    a.ops.front().type == hand_over_op);
    if (a.kind == actor_kind::feed || a.kind == actor_kind::fetch) r.has_program_side = true;
  }
  for (const auto& e : p.edges)
    if (const auto from = nodes[p.actors[e.from.actor].task], to = nodes[p.actors[e.to.actor].task];
        from != to)
      roles_.at(from).takers.insert(to);
  const auto tasks = worker_tasks(p);
  for (std::uint32_t w = 0; w < tasks.size(); ++w)
    if (tasks[w] >= 0) roles_.at(nodes[static_cast<std::size_t>(tasks[w])]).workers.insert(w);
}

void participants::ended(node_id n) { running_.erase(n); }

void participants::release(node_id n) {
  running_.erase(n);
  lost_.insert(n);
}

loss_verdict participants::lose(node_id n) {
  const auto at = roles_.find(n);
  const bool was_running = running_.erase(n) > 0;
  if (at == roles_.end() || !lost_.insert(n).second) return loss_verdict::irrelevant;
  const auto& r = at->second;
  // What it has made may still be on its way, and then it is lost.
  const bool is_awaited = std::any_of(r.takers.begin(), r.takers.end(),
                                      [&](node_id t) { return running_.contains(t); });
  if (!was_running &&
      (!is_awaited || (is_async_ && r.shards.empty() && r.replicas.empty() && !r.hands_over)))
    return loss_verdict::irrelevant;
  if (!is_async_ || r.is_client || r.has_program_side || !r.shards.empty() || !r.replicas.empty() ||
      r.workers.empty())
    return loss_verdict::fatal;
  const bool others_work = std::any_of(roles_.begin(), roles_.end(), [&](const auto& e) {
    return !e.second.workers.empty() && !lost_.contains(e.first);
  });
  return others_work ? loss_verdict::tolerated : loss_verdict::fatal;
}

std::vector<std::uint32_t> participants::workers_on(node_id n) const {
  const auto at = roles_.find(n);
  return at == roles_.end()
             ? std::vector<std::uint32_t>{}
             : std::vector<std::uint32_t>(at->second.workers.begin(), at->second.workers.end());
}

std::string participants::describe(node_id n) const {
  const auto at = roles_.find(n);
  if (at == roles_.end()) return "nothing";
  std::string tasks, what;
  for (const auto& t : at->second.tasks) add_to_list(tasks, t);
  for (auto w : at->second.workers) add_to_list(what, fmt::format("worker {}", w));
  for (auto s : at->second.shards) add_to_list(what, fmt::format("shard {}", s));
  for (auto s : at->second.replicas) add_to_list(what, fmt::format("replica {}", s));
  if (at->second.is_client || at->second.has_program_side) add_to_list(what, "the program's side");
  return what.empty() ? tasks : fmt::format("{} ({})", tasks, what);
}

}  // namespace troupe
