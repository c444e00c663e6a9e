// The collectives that a program calls (runtime/graph/collectives.hpp), as ranks: one on every task
// that runs members of a group, with a part for each of these.
//
// Up to here they are ops, one in each worker's copy of the graph; here it is known where workers
// run. The ranks of a group take what its members' ops took, and whoever took something of those
// ops takes it of the rank on its task. A group of one worker exchanges nothing: its op is left
// out.

#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace troupe::passes {
namespace {

error at_op(std::string text, const flow_op& op) {
  return error(error_code::usage, fmt::format("{} '{}': {}", op.type, op.name, text))
      .at(op.source.file, op.source.line);
}

result<void> check_call(const flow_op& op, const training_spec* training) {
  const auto workers = training != nullptr ? training->workers : 1;
  std::size_t members = 0;
  const auto among = groups_of(op.attrs);
  for (const auto& g : among.groups)
    for (const auto w : g) {
      ++members;
      if (w >= workers && training == nullptr)
        return at_op(
            fmt::format(
                "worker {} is in its groups, but a graph that is run by feeds and fetches has one "
                "worker, number 0",
                w),
            op);
      if (w >= workers)
        return at_op(fmt::format("worker {} is in its groups, but the job has {}: 0 to {}", w,
                                 workers, workers - 1),
                     op);
    }
  if (training == nullptr) return {};
  if (has_slices(kind_of(op.type)) && members < workers)
    return at_op(
        fmt::format(
            "{} of {} workers are in its groups, and its result has another shape than the value "
            "that the others keep: put every worker into a group",
            members, workers),
        op);
  if (op.region != 0 || op.loop_level != 0)
    return at_op(
        "it lies in a branch or loop, where workers may go different ways and wait for each other for ever: call it outside",
        op);
  if (training->update != update_kind::sync && workers > 1)
    return at_op(
        "asynchronous workers each make steps at their own pace: collectives need synchronous "
        "training",
        op);
  if (training->workers > parts_max)
    return at_op(fmt::format("a group has at most {} workers", parts_max), op);
  return {};
}

// Pieces are as large as those of gradients (passes/draft/all_reduce.cpp).
constexpr std::int64_t piece_elements = 64 * 1024;

bool is_call(const planned_actor& a) {
  return a.kind == actor_kind::op && a.ops.size() == 1 && is_collective(a.ops[0].type);
}

class exchanger {
 public:
  exchanger(draft d, bool any_order, pass_report* report, std::vector<placement_reason>* reasons)
      : d_(std::move(d)), any_order_(any_order), report_(report), reasons_(reasons) {}

  draft run() {
    std::vector<std::string> names;
    std::map<std::string, std::vector<std::uint32_t>> calls;  // by op: each worker's
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      const auto& p = d_.actors[i].planned;
      if (!is_call(p)) continue;
      auto& of = calls[p.ops[0].name];
      if (of.empty()) names.push_back(p.ops[0].name);
      of.push_back(i);
    }
    count_ = d_.actors.size();
    goes_to_.resize(d_.actors.size());
    is_left_out_.resize(d_.actors.size());
    for (const auto& name : names) replace(calls[name]);
    for (auto& a : d_.actors)
      for (auto& f : a.from) f = source_of(f);
    return sorted();
  }

 private:
  void replace(const std::vector<std::uint32_t>& call) {
    const auto op = d_.actors[call.front()].planned.ops[0];  // actors move while ranks come
    auto groups = groups_of(op.attrs).groups;
    if (groups.empty()) {
      groups.emplace_back(call.size());
      std::iota(groups[0].begin(), groups[0].end(), 0U);
    }
    std::map<std::uint32_t, std::uint32_t> actor_of;  // by worker
    for (const auto i : call) actor_of[d_.actors[i].index] = i;
    for (const auto i : call) {
      is_left_out_[i] = true;
      goes_to_[i] = {d_.actors[i].from[0]};  // of no group, or alone
    }
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      std::vector<std::uint32_t> members;
      for (const auto w : groups[g]) members.push_back(actor_of.at(w));
      // Its first part is what a root sends.
      if (op.type == broadcast_op)
        std::rotate(members.begin(),
                    members.begin() + static_cast<std::ptrdiff_t>(op.attrs.integer("root")),
                    members.end());
      if (members.size() > 1) exchange(members, fmt::format("collective/{}/{}", op.name, g));
    }
  }

  void exchange(const std::vector<std::uint32_t>& members, const std::string& name) {
    const auto op = d_.actors[members.front()].planned.ops[0];
    const auto spec = d_.actors[members.front()].planned.output_specs[0];
    std::vector<std::uint32_t> tasks;
    std::vector<std::vector<std::uint32_t>> parts;
    for (std::uint32_t k = 0; k < members.size(); ++k) {
      const auto task = d_.actors[members[k]].planned.task;
      const auto at =
          static_cast<std::size_t>(std::find(tasks.begin(), tasks.end(), task) - tasks.begin());
      if (at == tasks.size()) tasks.push_back(task), parts.emplace_back();
      parts[at].push_back(k);
    }
    planned_collective c;
    c.spec.kind = kind_of(op.type);
    c.spec.reduction = static_cast<reduction_kind>(op.attrs.integer("reduction"));
    c.spec.type = spec.type;
    c.spec.parts = parts;
    c.spec.piece_elements = piece_elements;
    c.spec.elements = spec.shape.elements();
    if (c.spec.kind == collective_kind::reduce_scatter)
      c.spec.elements *= static_cast<std::int64_t>(members.size());
    const auto bytes = static_cast<std::size_t>(c.spec.elements) * size_of(c.spec.type);
    c.spec.algorithm =
        choose_algorithm(c.spec.kind, bytes, c.spec.ranks(), parts_of(c.spec), any_order_);
    const auto first = static_cast<std::uint32_t>(d_.actors.size());
    for (std::uint32_t r = 0; r < tasks.size(); ++r) {
      d_.actors.push_back(make_rank(members, c, tasks[r], r, first, name));
      goes_to_.emplace_back();
      is_left_out_.push_back(false);
      for (std::uint32_t lane = 0; lane < parts[r].size(); ++lane)
        goes_to_[members[parts[r][lane]]] = {
            {first + r, c.spec.kind == collective_kind::reduce_scatter ? lane : 0}};
    }
    if (report_ != nullptr)
      report_->add(d_.actors[first].planned.name, d_.actors[first].planned.source, [&] {
        return fmt::format(
            "{}is put in: {} of {} workers over {} {}, {} bytes, by {}",
            tasks.size() > 1 ? fmt::format("and {} more ", tasks.size() - 1) : std::string(),
            op.type, members.size(), tasks.size(), tasks.size() == 1 ? "task" : "tasks", bytes,
            to_string(c.spec.algorithm));
      });
  }

  draft_actor make_rank(const std::vector<std::uint32_t>& members, planned_collective c,
                        std::uint32_t task, std::uint32_t rank, std::uint32_t first,
                        const std::string& name) const {
    c.spec.rank = rank;
    const auto& own = c.spec.parts[rank];
    const auto peers = peers_of(c.spec);
    c.peers_from = peers.from;
    c.peers_to = peers.to;
    c.tensors =
        c.spec.kind == collective_kind::reduce_scatter ? static_cast<std::uint32_t>(own.size()) : 1;
    const auto& member = d_.actors[members[own.front()]];
    draft_actor a;
    a.owner = owner_kind::worker;
    a.index = member.index;
    a.planned.kind = actor_kind::collective;
    a.planned.name = fmt::format("{}/{}", name, rank);
    a.planned.source = member.planned.source;
    a.planned.task = task;
    a.planned.steps = member.planned.steps;
    a.planned.start = member.planned.start;
    a.planned.output_specs.assign(c.tensors, member.planned.output_specs[0]);
    a.planned.output_specs.insert(a.planned.output_specs.end(), c.peers_to.size(),
                                  piece_spec(c.spec));
    for (const auto part : own) {
      a.from.push_back(d_.actors[members[part]].from[0]);
      c.workers.push_back(d_.actors[members[part]].index);
    }
    for (const auto peer : c.peers_from) {
      auto other = c.spec;
      other.rank = peer;
      const auto to = peers_of(other).to;
      const auto results = c.spec.kind == collective_kind::reduce_scatter
                               ? static_cast<std::uint32_t>(c.spec.parts[peer].size())
                               : 1;
      a.from.push_back({first + peer,
                        results + static_cast<std::uint32_t>(std::find(to.begin(), to.end(), rank) -
                                                             to.begin())});
    }
    a.planned.collective = std::move(c);
    return a;
  }

  // Ops that are left out are looked through.
  port_ref source_of(port_ref r) const {
    while (is_left_out_[r.actor]) r = goes_to_[r.actor][0];
    return r;
  }

  // Without those that are left out, and each behind what it takes (PS-2).
  draft sorted() {
    const auto n = static_cast<std::uint32_t>(d_.actors.size());
    constexpr std::uint32_t not_yet = ~0U;
    std::vector<std::uint32_t> now(n, not_yet), order;
    // Actors, and which of their inputs is looked at next.
    std::vector<std::pair<std::uint32_t, std::size_t>> path;
    std::vector<bool> is_seen(n);
    const auto waits_for = [&](std::uint32_t i, std::size_t port) {
      const auto& a = d_.actors[i].planned;
      const auto from = d_.actors[i].from[port].actor;
      const bool are_ranks = a.kind == actor_kind::collective &&
                             d_.actors[from].planned.kind == actor_kind::collective &&
                             port >= a.collective->own_inputs();
      const bool comes_back =
          a.kind == actor_kind::op && a.ops.front().type == loop_enter_op && port == 1;
      return a.kind != actor_kind::shard && d_.actors[from].planned.kind != actor_kind::shard &&
             !are_ranks && !comes_back;
    };
    for (std::uint32_t i = 0; i < n; ++i) {
      if (is_seen[i] || is_left_out_[i]) continue;
      is_seen[i] = true;
      path.emplace_back(i, 0);
      while (!path.empty()) {
        auto& [at, port] = path.back();
        if (port == d_.actors[at].from.size()) {
          now[at] = static_cast<std::uint32_t>(order.size());
          order.push_back(at);
          path.pop_back();
          continue;
        }
        const auto from = d_.actors[at].from[port].actor;
        const bool follows = waits_for(at, port) && !is_seen[from];
        ++port;
        if (!follows) continue;
        is_seen[from] = true;
        path.emplace_back(from, 0);
      }
    }
    draft out;
    out.actors.reserve(order.size());
    std::vector<placement_reason> why;
    for (const auto i : order) {
      out.actors.push_back(std::move(d_.actors[i]));
      if (reasons_ == nullptr) continue;
      if (i < reasons_->size()) why.push_back(std::move((*reasons_)[i]));
      // The others, which were put in before, stand behind all that have a reason.
      if (i >= count_) why.push_back({placement_reason::kind::worker, out.actors.back().index});
    }
    for (auto& a : out.actors)
      for (auto& f : a.from) f.actor = now[f.actor];
    if (reasons_ != nullptr) *reasons_ = std::move(why);
    return out;
  }

  draft d_;
  bool any_order_;
  pass_report* report_;
  std::vector<placement_reason>* reasons_;
  // By actor that is left out: what stands for its result.
  std::vector<std::vector<port_ref>> goes_to_;
  std::vector<bool> is_left_out_;
  std::size_t count_ = 0;  // of actors before ranks came
};

}  // namespace

result<void> check_collectives(const flow& f, const training_spec* training) {
  for (const auto& op : f.ops)
    if (is_collective(op.type))
      if (auto ok = check_call(op, training); !ok) return ok;
  return {};
}

bool calls_collectives(const draft& d) {
  return std::any_of(d.actors.begin(), d.actors.end(),
                     [](const auto& a) { return is_call(a.planned); });
}

draft collectives(draft d, bool any_order, pass_report* report,
                  std::vector<placement_reason>* reasons) {
  return exchanger(std::move(d), any_order, report, reasons).run();
}

}  // namespace troupe::passes
