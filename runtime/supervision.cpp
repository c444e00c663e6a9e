#include "runtime/supervision.hpp"

#include "schema/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

// SV-2: texts come from kernels, systems and peers.
std::string on_one_line(std::string text) {
  for (auto& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

void append(std::string& list, const std::string& what) {
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

std::string_view to_string(failure_policy p) noexcept {
  static constexpr std::string_view names[] = {"stop", "restart", "resume"};
  return names[static_cast<std::size_t>(p)];
}

// --- restarts ------------------------------------------------------------------------------------

std::optional<std::int64_t> restart_limiter::on_failure(std::int64_t now_ns,
                                                        std::uint64_t progress) {
  if (!has_failed_ || progress > progress_) in_vain_ = 0;
  has_failed_ = true;
  progress_ = std::max(progress_, progress);
  ++in_vain_;
  failures_.push_back(now_ns);
  while (now_ns - failures_.front() > limits_.window_ns) failures_.pop_front();
  if (in_vain_ > limits_.in_vain_max) {
    why_ = fmt::format("{} attempts in a row without a step forward", in_vain_ - 1);
    return std::nullopt;
  }
  if (failures_.size() > limits_.failures_max) {
    why_ =
        fmt::format("{} failures within {} s", failures_.size(), limits_.window_ns / 1'000'000'000);
    return std::nullopt;
  }
  if (in_vain_ == 1) return 0;
  return std::min(limits_.delay_max_ns,
                  limits_.delay_ns << std::min<std::uint32_t>(in_vain_ - 2, 20));
}

// --- root cause first ----------------------------------------------------------------------------

std::string failure::where_and_why() const {
  std::string where;
  if (!node.empty())
    append(where,
           pid != 0 ? fmt::format("node {} (pid {})", node, pid) : fmt::format("node {}", node));
  if (!actor.empty()) append(where, fmt::format("actor {}", actor));
  if (step) append(where, fmt::format("step {}", *step));
  const auto why = text.empty() ? std::string("no reason given") : text;
  return on_one_line(where.empty() ? why : fmt::format("{}: {}", where, why));
}

void failure_log::add(failure f) {
  auto& list = f.is_derived ? derived_ : own_;
  ++(f.is_derived ? derived_count_ : own_count_);
  if (list.size() < kept_max) list.push_back(std::move(f));
}

const failure* failure_log::root() const noexcept {
  return !own_.empty() ? &own_.front() : !derived_.empty() ? &derived_.front() : nullptr;
}

bool failure_log::is_settled(std::int64_t now_ns) const noexcept {
  const auto deadline = deadline_ns();
  return has_failed() && (!deadline || now_ns >= *deadline);
}

std::optional<std::int64_t> failure_log::deadline_ns() const noexcept {
  if (!own_.empty() || derived_.empty()) return std::nullopt;
  return derived_.front().time_ns + settle_ns;
}

std::string failure_log::line() const {
  const auto* f = root();
  return f == nullptr ? ""
                      : on_one_line(fmt::format("job {} failed: {}", job_, f->where_and_why()));
}

// --- who may be lost -----------------------------------------------------------------------------

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
  for (const auto& t : at->second.tasks) append(tasks, t);
  for (auto w : at->second.workers) append(what, fmt::format("worker {}", w));
  for (auto s : at->second.shards) append(what, fmt::format("shard {}", s));
  for (auto s : at->second.replicas) append(what, fmt::format("replica {}", s));
  if (at->second.is_client || at->second.has_program_side) append(what, "the program's side");
  return what.empty() ? tasks : fmt::format("{} ({})", tasks, what);
}

// --- the ledger ----------------------------------------------------------------------------------

ledger::ledger(std::uint32_t workers, std::vector<std::uint64_t> start)
    : start_(std::move(start)), losses_(workers) {
  start_.resize(workers);
}

void ledger::on_loss(std::uint32_t worker) {
  if (worker < losses_.size()) ++losses_[worker];
}

void ledger::on_shard(const shard_report& r) {
  auto& known = shards_[r.actor];
  known.actor = r.actor;
  const auto take = [this](std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
    to.resize(losses_.size());
    for (std::size_t w = 0; w < std::min(to.size(), from.size()); ++w)
      to[w] = std::max(to[w], from[w]);
  };
  take(known.received, r.received);
  take(known.applied, r.applied);
  take(known.dropped, r.dropped);
  take(known.duplicates, r.duplicates);
}

// Not negative: with t the shard that dropped most, applied + dropped <= applied(t) + dropped(t) <=
// fed.
worker_ledger ledger::of(std::uint32_t worker) const {
  expects(worker < losses_.size(), "the ledger knows the job's workers");
  worker_ledger out;
  out.fed = losses_[worker];
  const auto new_ones = [&](std::uint64_t n) { return n - std::min(n, start_[worker]); };
  bool is_first = true;
  for (const auto& [actor, s] : shards_) {
    const auto applied = new_ones(s.applied[worker]);
    out.applied = is_first ? applied : std::min(out.applied, applied);
    out.dropped = std::max(out.dropped, s.dropped[worker]);
    out.fed = std::max(
        {out.fed, new_ones(s.received[worker] - std::min(s.received[worker], s.duplicates[worker])),
         applied + s.dropped[worker]});
    is_first = false;
  }
  out.in_flight = out.fed - out.applied - out.dropped;
  return out;
}

worker_ledger ledger::total() const {
  worker_ledger out;
  for (std::uint32_t w = 0; w < workers(); ++w) {
    const auto l = of(w);
    out.fed += l.fed;
    out.applied += l.applied;
    out.dropped += l.dropped;
    out.in_flight += l.in_flight;
  }
  return out;
}

std::string to_string(std::uint32_t worker, const worker_ledger& l) {
  return fmt::format("worker {}: fed {} = applied {} + dropped {} + in flight {}", worker, l.fed,
                     l.applied, l.dropped, l.in_flight);
}

}  // namespace troupe
