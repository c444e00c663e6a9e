#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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
  a.planned.output_specs.assign(hand_over_ports(shard.planned.shard), shard.planned.shard.spec);
  a.planned.ops.push_back({std::string(hand_over_op),
                           a.planned.name,
                           {{"variable", h.variable}},
                           {},
                           shard.planned.source});
  return a;
}

// By shard: the input ports that its versions go to.
std::vector<std::vector<port_ref>> consumers_of_shards(const draft& d) {
  std::vector<std::vector<port_ref>> consumers(d.actors.size());
  for (std::uint32_t c = 0; c < d.actors.size(); ++c)
    for (std::uint32_t port = 0; port < d.actors[c].from.size(); ++port)
      if (const auto from = d.actors[c].from[port].actor;
          d.actors[from].planned.kind == actor_kind::shard)
        consumers[from].push_back({c, port});
  return consumers;
}

// Workers on the task of a shard's replica read there, so that versions do not cross for them: what
// the replica is sent, they need not be. Their ports, with what reads at them, go from the shard to
// actor `replica`, which is still to be made.
std::vector<shard_reader> move_readers(draft& d, std::uint32_t shard, std::uint32_t replica,
                                       std::uint32_t task, const std::vector<port_ref>& consumers) {
  auto& s = d.actors[shard].planned.shard;
  std::vector<std::uint8_t> is_there(s.readers.size());
  for (std::size_t i = 0; i < s.readers.size(); ++i) is_there[i] = s.readers[i].worker >= 0;
  for (const auto& c : consumers)
    if (d.actors[c.actor].planned.task != task) is_there[d.actors[c.actor].from[c.port].port] = 0;
  std::vector<shard_reader> here, there;
  std::vector<port_ref> now(s.readers.size());
  for (std::size_t i = 0; i < s.readers.size(); ++i) {
    auto& to = is_there[i] != 0 ? there : here;
    now[i] = {is_there[i] != 0 ? replica : shard, static_cast<std::uint32_t>(to.size())};
    to.push_back(s.readers[i]);
  }
  for (const auto& c : consumers) {
    auto& from = d.actors[c.actor].from[c.port];
    from = now[from.port];
  }
  d.actors[shard].planned.output_specs.resize(here.size());
  s.readers = std::move(here);
  return there;
}

// Follows shard `from`, which comes to forward to it. A step is taken up only when the one before
// is in the replica (awaits_receipt).
draft_actor make_replica(draft_actor& shard, std::uint32_t from, std::uint32_t task,
                         std::vector<shard_reader> readers, const tensor_spec& pushed) {
  auto& s = shard.planned.shard;
  s.forwards = true;
  draft_actor a;
  a.owner = owner_kind::shard;
  a.index = shard.index;
  a.planned = shard.planned;
  a.planned.name = "replica/0/" + s.variable;
  a.planned.task = task;
  a.planned.awaits_receipt = true;
  auto& r = a.planned.shard;
  r.forwards = false;
  r.follows = true;
  r.readers = std::move(readers);
  a.planned.output_specs.assign(r.readers.size(), r.spec);
  r.cut_every = 0;
  r.cuts_at_end = false;
  if (r.update == update_kind::sync) {
    r.pushes_rows = false;  // it gets their sum
    r.steps.resize(1);
    if (!r.start.empty()) r.start.resize(1);
  }
  for (std::uint32_t port = 0; port < forward_ports(s); ++port) {
    a.from.push_back({from, static_cast<std::uint32_t>(s.readers.size()) + port});
    shard.planned.output_specs.push_back(r.pushes_rows ? pushed : s.spec);
  }
  return a;
}

void hand_to(draft_actor& shard, const handed_variable& h, std::uint32_t from) {
  shard.planned.shard.restore = restore_kind::handed;
  shard.planned.shard.handed = h.applied;
  for (std::uint32_t port = 0; port < hand_over_ports(shard.planned.shard); ++port)
    shard.from.push_back({from, port});
}

}  // namespace

draft begin(draft d, const epoch_start& start, const places& where, pass_report* report) {
  const auto count = d.actors.size();
  const auto consumers =
      where.replica_task.empty() ? std::vector<std::vector<port_ref>>() : consumers_of_shards(d);
  for (std::size_t i = 0; i < count; ++i) {
    auto& p = d.actors[i].planned;
    if (p.kind == actor_kind::fetch) {
      // What is observed at the end is sent again: nobody knows whether it arrived.
      if (p.name == loss_fetch) p.start = first_loss(d.actors[i], start);
      continue;
    }
    if (p.kind != actor_kind::shard) {
      if (d.actors[i].owner == owner_kind::worker || p.kind == actor_kind::feed)
        p.start = first_step(start, d.actors[i].index);
      continue;
    }
    begin_shard(p.shard, start);
    const auto h = std::find_if(start.handed.begin(), start.handed.end(),
                                [&](const auto& x) { return x.variable == p.shard.variable; });
    const auto is_handed = h != start.handed.end();
    if (is_handed) p.shard.handed = h->applied;  // what the replica has not to be sent
    const auto k = d.actors[i].index;
    const auto replica_task = k < where.replica_task.size() ? where.replica_task[k] : no_task;
    const bool has_replica = replica_task != no_task && replica_task != p.task;
    const auto hand_over = static_cast<std::uint32_t>(d.actors.size()),
               replica = hand_over + (is_handed ? 1 : 0);
    std::vector<draft_actor> more;
    if (is_handed) more.push_back(make_hand_over(d.actors[i], *h));
    if (has_replica) {
      const auto from = d.actors[i].from.front();
      const auto pushed = d.actors[from.actor].planned.output_specs[from.port];
      auto readers =
          move_readers(d, static_cast<std::uint32_t>(i), replica, replica_task, consumers[i]);
      more.push_back(make_replica(d.actors[i], static_cast<std::uint32_t>(i), replica_task,
                                  std::move(readers), pushed));
    }
    if (is_handed && h->to_shard) hand_to(d.actors[i], *h, hand_over);
    if (is_handed && h->to_replica && has_replica) hand_to(more.back(), *h, hand_over);
    if (report != nullptr)
      for (const auto& a : more)
        report->add(a.planned.name, a.planned.source, [&] {
          return fmt::format("is put in on {}", where.task_names[a.planned.task]);
        });
    std::move(more.begin(), more.end(), std::back_inserter(d.actors));
  }
  return d;
}

}  // namespace troupe::passes
