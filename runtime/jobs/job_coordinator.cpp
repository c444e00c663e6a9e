#include "troupe/runtime/jobs/job_coordinator.hpp"

#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/jobs/blob_pull.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t claim_again_ns = 1'000'000'000;
// Between two ticks: else this process stood still.
constexpr std::int64_t pause_max_ns = 1'000'000'000;
constexpr auto all_steps = std::numeric_limits<std::uint64_t>::max();
constexpr std::string_view moved_reason = "its work has moved to other nodes";
// Of all losses that a journal may have.
constexpr std::size_t losses_bytes_max = 32 * loss_history::losses_max;

bool has_role(const role_map& roles, node_id n) {
  return std::count(roles.workers.begin(), roles.workers.end(), n) > 0 ||
         std::count(roles.shards.begin(), roles.shards.end(), n) > 0 ||
         std::count(roles.replicas.begin(), roles.replicas.end(), n) > 0;
}

std::uint64_t sum(const std::vector<std::uint64_t>& v) {
  return std::accumulate(v.begin(), v.end(), std::uint64_t{0});
}

// Of all workers together; 0: not by steps, or (sync) up to the shards.
std::uint64_t steps_between_cuts(const job_setup& s) {
  const bool is_async = s.program ? s.program->spec().update == update_kind::async
                                  : s.fixed.update == update_kind::async;
  const auto workers = s.program ? s.program->spec().workers : s.fixed.workers;
  return is_async ? s.checkpoints.every_steps * workers : 0;
}

}  // namespace

std::string_view to_string(job_phase p) noexcept {
  static constexpr std::string_view names[] = {"placing", "running",  "halting", "pausing",
                                               "waiting", "claiming", "handing", "over"};
  return names[static_cast<std::size_t>(p)];
}

job_coordinator::job_coordinator(job_setup setup, std::span<const member_info> members,
                                 std::size_t message_bytes_max)
    : setup_(std::move(setup)),
      message_bytes_max_(message_bytes_max),
      roles_(setup_.roles),
      failures_(setup_.name),
      limiter_(setup_.limits),
      cuts_(steps_between_cuts(setup_), setup_.checkpoints.every_ns,
            setup_.checkpoints.resume_from ? sum(setup_.checkpoints.resume_from->worker_steps) : 0,
            setup_.bugs),
      succession_(setup_.id, setup_.recipe, setup_.after ? setup_.after->losses : loss_history{}) {
  for (const auto& m : members) members_.emplace(m.id, m);
  const auto workers = setup_.program ? setup_.program->spec().workers : setup_.fixed.workers;
  if (setup_.program) steps_asked_ = setup_.program->spec().steps;
  first_steps_.assign(workers, 0);
  closed_.resize(workers);
  if (const auto& from = setup_.checkpoints.resume_from) first_steps_ = from->worker_steps;
  next_loss_ = first_steps_;
}

std::vector<job_step> job_coordinator::take_actions() {
  if (succession_.is_on()) keep_successors_told();
  return std::exchange(actions_, {});
}

// --- placing -------------------------------------------------------------------------------------

void job_coordinator::begin(std::int64_t now_ns) {
  now_ = now_ns;
  cuts_.begin(now_ns);
  epoch_ = setup_.checkpoints.epoch;
  if (setup_.after) return take_over();
  if (const auto& from = setup_.checkpoints.resume_from) start_ = start_of(*from);
  if (succession_.recipe_bytes() + (succession_.is_on() ? losses_bytes_max : 0) >
      message_bytes_max_)
    return fail(at_node(
        {}, fmt::format("its graph takes {}, and at most {} can be sent to a node that would go on "
                        "with the job: leave outlives_program out",
                        format_bytes(succession_.recipe_bytes()),
                        format_bytes(message_bytes_max_ - losses_bytes_max))));
  place();
}

// The epoch is claimed first: from then on it is this coordinator's job, whoever else may think so.
void job_coordinator::take_over() {
  const auto& j = setup_.after->journal;
  epoch_ = j.epoch;
  first_steps_ = j.first_steps;
  next_loss_ = j.next_losses;
  closed_ = j.closed;
  for (const auto& d : j.data) data_.emplace(d.what, known_data{d, 0});
  data_messages_ = j.data_messages;
  recoveries_ = j.recoveries;
  checkpoints_before_ = j.checkpoints;
  in_vain_ = !setup_.has_failed_before ? 0 : sum(j.next_losses) > j.progress ? 1 : j.in_vain + 1;
  if (in_vain_ > setup_.limits.in_vain_max)
    return fail(
        at_node({}, fmt::format("{} (given up after {} coordinators without a step forward)",
                                setup_.why_after, in_vain_)));
  // Whatever they keep of it. Of other programs nobody has a part.
  for (const auto& [id, m] : members_)
    if (m.kind == member_kind::node || id == setup_.client || id == j.coordinator)
      releases_.insert(id);
  // What there is to describe an epoch by that this coordinator has not placed.
  const auto where = place_roles(roles_, setup_.client);
  auto placed = setup_.program->place(where, {});
  if (!placed) return fail(at_node({}, placed.error().text()));
  plan_ = std::make_shared<const plan>(std::move(*placed));
  nodes_ = where.nodes;
  parties_.emplace(*plan_, nodes_);
  accounts_.emplace(plan_->workers, std::vector<std::uint64_t>{});
  is_finishing_ = j.is_finishing;
  is_suspending_ = j.is_suspending;
  if (j.last_step != 0) {
    if (auto program = setup_.program->with_steps(j.last_step)) {
      setup_.program = std::move(*program);
      last_step_ = j.last_step;
    }
  }
  is_taking_over_ = true;
  claim();
}

// All of it is in the program: there is nothing to place elsewhere.
bool job_coordinator::is_embedded() const {
  const auto self = members_.find(setup_.client);
  return std::all_of(roles_.workers.begin(), roles_.workers.end(),
                     [&](auto n) { return n == setup_.client; }) &&
         (self == members_.end() || self->second.kind != member_kind::node);
}

void job_coordinator::place() {
  phase_ = job_phase::placing;
  since_ = now_;
  if (setup_.program) {
    choose_handed();
    std::vector<node_id> others;
    for (const auto& [variable, h] : handed_) others.push_back(h.from);
    auto where = place_roles(roles_, setup_.client, others);
    add_nodes(where, [&](node_id n) {
      const auto at = members_.find(n);
      return at == members_.end() ? nullptr : &at->second;
    });
    start_.handed.clear();
    for (const auto& [variable, h] : handed_) {
      const auto task =
          std::find(where.nodes.begin(), where.nodes.end(), h.from) - where.nodes.begin();
      start_.handed.push_back(
          {variable, static_cast<std::uint32_t>(task), h.applied, h.to_shard, h.to_replica});
      for (const auto n : h.to_copies)
        start_.handed.back().to_tasks.push_back(static_cast<std::uint32_t>(
            std::find(where.nodes.begin(), where.nodes.end(), n) - where.nodes.begin()));
    }
    lag_ = std::any_of(roles_.replicas.begin(), roles_.replicas.end(),
                       [](auto n) { return raw(n) != 0; })
               ? 2
               : 1;
    auto placed = setup_.program->place(where, start_);
    if (!placed) return fail(at_node({}, placed.error().text()));
    plan_ = std::make_shared<const plan>(std::move(*placed));
    nodes_ = where.nodes;
  } else {
    plan_ = std::make_shared<const plan>(setup_.fixed);
    nodes_ = setup_.nodes;
  }
  has_begun_ = false;
  made_ = start_.worker_steps;
  made_.resize(next_loss_.size());
  ahead_ = made_;
  const auto kept = kept_steps();
  for (std::size_t w = 0; w < ahead_.size(); ++w) ahead_[w] = std::max(ahead_[w], kept[w]);
  parties_.emplace(*plan_, nodes_);
  accounts_.emplace(plan_->workers, start_.worker_steps);
  awaited_ = parties_->running();
  has_local_part_ = awaited_.contains(setup_.client);
  is_local_part_there_ = false;
  std::set<node_id> savers;
  for (const auto& a : plan_->actors)
    if (a.kind == actor_kind::shard && !a.shard.follows) savers.insert(nodes_[a.task]);
  cuts_.begin_epoch(std::move(savers));
  const bool is_all_here = awaited_.size() == 1 && has_local_part_;
  place_part placing{.job = setup_.id,
                     .epoch = epoch_,
                     .plan = {},
                     .nodes = nodes_,
                     .checkpoints = setup_.checkpoints.folder,
                     .restore_from = restore_from_,
                     .may_move = succession_.is_on(),
                     .here = is_all_here ? plan_ : nullptr};
  refused_.clear();
  if (sum(next_loss_) == sum(first_steps_)) data_.clear();  // JC-16: nothing is trained yet
  blobs_ = nullptr;
  if (!is_all_here && !put_plan(placing)) return;
  succession_.touch();
  for (auto n : awaited_)
    if (!is_alive(n)) return trouble(at_node(n, "is not known here"));
  for (auto n : awaited_) {
    auto m = placing;
    if (n == setup_.client) m.blobs_here = blobs_;
    send(n, std::move(m));
  }
}

// What is large goes by itself, where a node asks for it (on_want_blob).
bool job_coordinator::put_plan(place_part& to) {
  auto made = encode_apart(*plan_, known_blobs_);
  if (made.bytes.size() > plan_bytes_max) {
    fail(at_node({}, fmt::format("its plan of {} actors takes {}, and at most {} can be sent to "
                                 "other nodes; train fewer ops in one job",
                                 plan_->actors.size(), format_bytes(made.bytes.size()),
                                 format_bytes(plan_bytes_max))));
    return false;
  }
  if (made.bytes.size() <= message_bytes_max_) {
    to.plan = std::move(made.bytes);
  } else {
    shared_bytes whole(std::move(made.bytes));
    to.plan_id = id_of(whole.view());
    made.blobs.emplace(to.plan_id, std::move(whole));
  }
  blobs_ = std::make_shared<const blob_map>(std::move(made.blobs));
  return true;
}

void job_coordinator::on_want_blob(node_id from, const want_blob& w) {
  if (std::find(nodes_.begin(), nodes_.end(), from) == nodes_.end()) return;  // it has no part
  send(from, piece_of(w, blobs_ != nullptr ? *blobs_ : blob_map{}));
  // It is at it.
  if (phase_ == job_phase::placing && awaited_.contains(from)) since_ = now_;
}

void job_coordinator::on_placed(node_id from, const part_placed& p) {
  const bool has_refused = !p.error.empty() && raw(p.unlinked) == 0;
  // Also who says so when another one has ended the epoch already.
  if (p.epoch == epoch_ && has_refused &&
      (phase_ == job_phase::placing || phase_ == job_phase::halting))
    refused_.insert(from);
  if (phase_ != job_phase::placing || p.epoch != epoch_) return;
  // Two nodes that do not reach each other cannot share a job (JC-8).
  if (raw(p.unlinked) != 0) {
    const bool is_other_worth_more = p.unlinked == setup_.client ||
                                     (from != setup_.client && kept_by(from) < kept_by(p.unlinked));
    exclude(is_other_worth_more ? from : p.unlinked);
  }
  if (!p.error.empty()) return trouble(at_node(from, "refused its part: " + p.error));
  for (const auto& d : p.data) {
    const auto& known =
        data_.try_emplace(d.what, known_data{{d.what, d.hash, at_node(from, {}).node}, epoch_})
            .first->second;
    if (known.read.hash == d.hash) continue;
    auto f = at_node(from, fmt::format("the {} has other contents than on {}: every node needs "
                                       "the same files",
                                       d.what, known.read.node));
    if (known.epoch == epoch_) return fail(std::move(f));  // JC-16
    refused_.insert(from);
    return trouble(std::move(f));
  }
  awaited_.erase(from);
  start_if_placed();
}

void job_coordinator::on_local_part(std::uint32_t epoch) {
  if (epoch != epoch_) return;
  is_local_part_there_ = true;
  start_if_placed();
}

void job_coordinator::start_if_placed() {
  if (phase_ != job_phase::placing || !awaited_.empty() ||
      (has_local_part_ && !is_local_part_there_))
    return;
  phase_ = job_phase::running;
  since_ = now_;
  derived_.reset();
  for (auto n : parties_->running()) send(n, start_part{setup_.id});
  if (std::count(roles_.replicas.begin(), roles_.replicas.end(), node_id{}) > 0)
    note("variables have no replica until another node comes");
  if (setup_.bugs != nullptr && setup_.bugs->releases_givers_early) release_keepers();
  if (is_finishing_ && last_step_ == 0) return end_early();
  if (!std::exchange(has_started_, true)) return tell({.kind = job_event_kind::started});
  const auto from = plan_->update == update_kind::sync ? start_.version : sum(start_.worker_steps);
  const auto what = ends_as_suspended()
                        ? fmt::format("ends at step {} with a checkpoint", last_step_)
                        : fmt::format("goes on from step {}", from);
  tell({job_event_kind::resumed, from, 0, 0, fmt::format("{} (epoch {})", what, epoch_)});
}

// --- running -------------------------------------------------------------------------------------

std::uint64_t job_coordinator::step() const noexcept {
  const bool is_sync = plan_ == nullptr || plan_->update == update_kind::sync;
  if (next_loss_.empty()) return 0;
  return is_sync ? next_loss_.front() : sum(next_loss_);
}

void job_coordinator::on_loss(std::uint32_t worker, std::uint64_t step, float loss) {
  if (phase_ == job_phase::over) return;
  // One that it has needs no keeping, but its credit goes back in its turn.
  succession_.on_loss({step, worker, loss}, step >= next_loss_[worker]);
  const bool is_sync = plan_->update == update_kind::sync;
  for (std::uint32_t w = 0; w < accounts_->workers(); ++w)
    if (is_sync || w == worker) accounts_->on_loss(w);
  for (std::uint32_t w = 0; w < made_.size(); ++w)
    if (is_sync || w == worker) made_[w] = std::max(made_[w], step + 1);
  if (!has_begun_ && phase_ == job_phase::running &&
      step >= ahead_[worker] + (lag_ > 1 ? lag_ : 0)) {
    release_keepers();
    spread_if_better();  // who has come meanwhile
  }
  if (step < next_loss_[worker]) return;  // JC-4: made again
  for (std::uint32_t w = 0; w < next_loss_.size(); ++w)
    if (is_sync || w == worker) next_loss_[w] = step + 1;
  write_manifests();
  if (!is_sync) return tell({job_event_kind::loss, this->step() - 1, worker, loss, {}});
  if (is_recoverable())
    commit(step, loss);
  else
    tell({job_event_kind::loss, step, 0, loss, {}});
}

// The loss of step t + 1 was computed from version t + 1 of every variable. Where they have
// replicas, these have version t then: a shard takes a step up when its replica has the one before.
void job_coordinator::commit(std::uint64_t step, float loss) {
  held_losses_.emplace_back(step, loss);
  flush_losses(step + 1 - std::min(step + 1, lag_));
}

// Of steps below, and of all of them with the greatest number.
void job_coordinator::flush_losses(std::uint64_t below) {
  while (!held_losses_.empty() && held_losses_.front().first < below) {
    tell({job_event_kind::loss, held_losses_.front().first, 0, held_losses_.front().second, {}});
    held_losses_.pop_front();
  }
}

void job_coordinator::on_ended(node_id from, const part_ended& p) {
  if (phase_ == job_phase::over || p.epoch != epoch_) return;
  for (const auto& r : p.shards) accounts_->on_shard(r);
  if (phase_ == job_phase::halting) return;  // its report comes with its answer
  data_messages_ += p.data_messages;
  if (!p.error.empty()) {
    auto f = at_node(from, p.error);
    f.actor = p.actor;
    f.step = p.step;
    f.is_derived = p.is_derived;
    if (!f.is_derived) return trouble(std::move(f));
    // SV-1: whose end it followed from is told soon, or it was not.
    if (!derived_) derived_ = std::move(f);
    return;
  }
  parties_->ended(from);
  finish_if_ended();
}

void job_coordinator::finish_if_ended() {
  if (phase_ != job_phase::running || !parties_->all_over() || !cuts_.is_idle()) return;
  // It has got to its end meanwhile.
  if (is_finishing_ && last_step_ == 0) is_finishing_ = is_suspending_ = false;
  flush_losses(all_steps);
  const bool is_spoilt = cuts_.why_lost().ends_with(diverged_text);
  if (!setup_.has_program && cuts_.lost_since() > 0 && is_spoilt)
    return fail(at_node({}, "it has diverged: " + cuts_.why_lost()));
  if (!setup_.has_program && cuts_.lost_since() > 0) {  // JC-13
    incident_.clear();
    note("its last checkpoint was not written, and no program has its variables: it is made again");
    pause_ns_ = save_again_ns;
    return halt("its last checkpoint is made again");
  }
  if (!ends_as_suspended()) {
    end(std::string(job_done_reason));
    return tell({.kind = job_event_kind::finished});
  }
  if (cuts_.lost_since() > 0)
    return fail(at_node({}, "it was to be suspended, and its checkpoint was not written"));
  cause_ = fmt::format("at step {}: {}", step(), why_suspended_);
  end(fmt::format("{}{}", job_suspended_prefix, cause_));
  tell({job_event_kind::suspended, step(), 0, 0, cause_});
}

// --- failures ------------------------------------------------------------------------------------

failure job_coordinator::at_node(node_id n, std::string text) const {
  failure f;
  f.time_ns = now_;
  f.text = std::move(text);
  if (raw(n) == 0) return f;
  auto at = members_.find(n);
  f.node = at == members_.end() ? fmt::format("{:x}", raw(n)) : at->second.name;
  if (at != members_.end()) f.pid = at->second.pid;
  return f;
}

std::string job_coordinator::first_actor_on(node_id n) const {
  for (const auto& a : plan_->actors)
    if (nodes_[a.task] == n && (a.kind == actor_kind::op || a.kind == actor_kind::shard))
      return a.name;
  return {};
}

void job_coordinator::send(node_id to, control_message body) {
  actions_.emplace_back(job_action::send{to, std::move(body)});
}

void job_coordinator::on_lost(node_id n, const std::string& reason, bool has_left) {
  lose(n, reason, has_left, true);
}

// Who has left has said so itself, to whoever tells us. What our own process says is what we see.
void job_coordinator::on_lost_by(node_id from, node_id n, const std::string& reason,
                                 bool has_left) {
  if (from == setup_.client || has_left) return on_lost(n, reason, has_left);
  // Between two epochs nobody needs the other: who is unlinked then turns out when the next one is
  // placed.
  if (phase_ != job_phase::placing && phase_ != job_phase::running && phase_ != job_phase::halting)
    return;
  if (!is_alive(from) || is_excluded(from) || parties_->is_lost(from)) return;
  const bool is_client = n == setup_.client;
  lose(is_client ? from : n, is_client ? "it considers the program's node dead: " + reason : reason,
       false, false);
}

// `is_gone`: for us, too; else it is one of two that do not reach each other.
void job_coordinator::lose(node_id n, const std::string& reason, bool has_left, bool is_gone) {
  if (phase_ == job_phase::over) return;
  auto f = at_node(n, {});
  exclude(n);
  if (n == handing_to_) {
    note(fmt::format("{} has gone, to which the job was to go: it stays here", f.node));
    keep_job();
    if (phase_ == job_phase::handing) {
      members_.erase(n);
      return place_next();
    }
  }
  const auto drop = [&] {
    if (is_gone) members_.erase(n);
    releases_.erase(n);
  };
  if (phase_ == job_phase::halting) {
    send(n, stop_part{setup_.id, "another participant considers this node dead"});
    f.text = fmt::format("{}: {}; it ran {}", has_left ? "left the cluster" : "died", reason,
                         parties_->describe(n));
    const bool is_missed = parties_->lose(n) != loss_verdict::irrelevant || awaited_.contains(n);
    if (is_missed && has_left && incident_.empty())
      note(fmt::format("{} has left", f.node));
    else if (is_missed && !is_recoverable())
      return fail(std::move(f));
    else if (is_missed)
      blame(std::move(f));
    drop();
    kept_.erase(n);
    if (awaited_.erase(n) > 0) go_on_if_halted();
    return;
  }
  if (phase_ != job_phase::placing && phase_ != job_phase::running) {
    f.text = fmt::format("{}: {}", has_left ? "left the cluster" : "died", reason);
    if (kept_.contains(n)) note(f.where_and_why());
    return forget(n);
  }
  if (parties_->is_lost(n)) return drop();
  const auto workers = parties_->workers_on(n);
  const auto verdict = parties_->lose(n);
  f.text = fmt::format("{}: {}; it ran {}", has_left ? "left the cluster" : "died", reason,
                       parties_->describe(n));
  f.step = step();
  f.actor = first_actor_on(n);
  send(n, stop_part{setup_.id, "another participant considers this node dead"});
  drop();
  if (verdict == loss_verdict::irrelevant) return finish_if_ended();
  // It had none of our work yet when it went.
  if (has_left && phase_ == job_phase::placing && is_recoverable()) {
    incident_.clear();
    note(fmt::format("{} has left: its work moves to other nodes", f.node));
    return halt("a node has left");
  }
  if (is_recoverable() || phase_ == job_phase::placing || verdict == loss_verdict::fatal)
    return trouble(std::move(f));
  // Without recovery a node has one.
  tell({job_event_kind::worker_lost, 0, workers.empty() ? 0 : workers.front(), 0,
        f.where_and_why()});
  finish_if_ended();
}

void job_coordinator::on_rejoined(const member_info& self) {
  if (phase_ == job_phase::over) return;
  auto f =
      at_node({}, "the cluster considered this process dead, and the process has joined it again");
  if (!is_recoverable()) return fail(std::move(f));
  setup_.client = self.id;
  keep_job();
  was_held_dead_ = true;
  members_.clear();
  members_.emplace(self.id, self);
  excluded_.clear();
  leaving_.clear();
  kept_.clear();
  if (phase_ == job_phase::waiting || phase_ == job_phase::pausing || phase_ == job_phase::claiming)
    return note(f.text);
  trouble(std::move(f));
}

// JC-17. When all have halted, and so said what they keep.
void job_coordinator::leave_out_refused() {
  for (const auto n : std::exchange(refused_, {})) {
    if (kept_by(n).second > 0) continue;
    auto others = living_nodes();
    std::erase_if(others, [n](const member_info& m) { return m.id == n; });
    if (!others.empty() && lack_of_devices(others).empty()) exclude(n);
  }
}

void job_coordinator::exclude(node_id n) {
  if (is_alive(n) && n != setup_.client) excluded_[n] = now_ + excluded_ns;
}

bool job_coordinator::is_excluded(node_id n) const {
  const auto at = excluded_.find(n);
  return n != setup_.client && at != excluded_.end() && at->second > now_;
}

// Variables that nobody else keeps who may be given work, and all.
std::pair<std::size_t, std::size_t> job_coordinator::kept_by(node_id n) const {
  const auto keeps = [&](node_id who, const std::string& variable) {
    const auto at = kept_.find(who);
    return at != kept_.end() && is_alive(who) && !is_excluded(who) &&
           std::any_of(at->second.begin(), at->second.end(), [&](const auto& k) {
             return k.variable == variable && !k.versions.empty();
           });
  };
  std::pair<std::size_t, std::size_t> count;
  if (!setup_.program) return count;
  for (const auto& [variable, spec] : setup_.program->variables()) {
    if (!keeps(n, variable)) continue;
    ++count.second;
    if (std::none_of(kept_.begin(), kept_.end(), [&](const auto& other) {
          return other.first != n && keeps(other.first, variable);
        }))
      ++count.first;
  }
  return count;
}

void job_coordinator::trouble(failure f) {
  if (phase_ == job_phase::over) return;
  f.step = f.step ? f.step : step();
  if (!is_recoverable()) return fail(std::move(f));
  incident_.clear();
  blame(std::move(f));
  halt(incident_);
}

// The first failure of an epoch is why it ends; what follows from it, or happens meanwhile, is
// noted.
void job_coordinator::blame(failure f) {
  f.step = f.step ? f.step : step();
  if (!incident_.empty()) return note(f.where_and_why());
  failures_ = failure_log(setup_.name);
  failures_.add(f);
  incident_ = f.where_and_why();
  tell({job_event_kind::recovering, step(), 0, 0, incident_});
}

// Everybody who takes part and lives ends the epoch.
void job_coordinator::halt(const std::string& why) {
  phase_ = job_phase::halting;
  since_ = now_;
  kept_.clear();
  cuts_.end_epoch();
  awaited_.clear();
  for (auto n : std::set<node_id>(nodes_.begin(), nodes_.end()))
    if (is_alive(n) && !parties_->is_lost(n)) awaited_.insert(n);
  for (auto n : releases_)
    if (is_alive(n)) awaited_.insert(n);
  for (auto n : awaited_) send(n, halt_part{setup_.id, epoch_, why});
  go_on_if_halted();
}

void job_coordinator::on_halted(node_id from, part_halted p) {
  if (phase_ != job_phase::halting || p.epoch != epoch_) return;
  for (const auto& r : p.shards) accounts_->on_shard(r);
  data_messages_ += p.data_messages;
  if (parties_->is_lost(from)) return;  // it was told to end, and forgets what it keeps
  kept_.insert_or_assign(from, std::move(p.kept));
  if (awaited_.erase(from) > 0) go_on_if_halted();
}

void job_coordinator::go_on_if_halted() {
  if (phase_ != job_phase::halting || !awaited_.empty()) return;
  leave_out_refused();
  close_epoch();
  std::int64_t delay = 0;
  if (!incident_.empty()) {
    const auto wait = limiter_.on_failure(now_, sum(next_loss_));
    if (!wait) {
      auto f = *failures_.root();
      f.text = fmt::format("{} (given up after {})", f.text, limiter_.why());
      return fail(std::move(f));
    }
    ++recoveries_;
    delay = *wait;
  }
  if (raw(handing_to_) != 0) {
    phase_ = job_phase::handing;
    since_ = now_;
    return succession_.touch();
  }
  delay = std::max(delay, std::exchange(pause_ns_, 0));
  if (delay == 0) return place_next();
  phase_ = job_phase::pausing;
  until_ = now_ + delay;
}

// What was fed and not applied for good is in flight: it is made again, or never.
void job_coordinator::close_epoch() {
  for (std::uint32_t w = 0; w < accounts_->workers(); ++w) {
    const auto l = accounts_->of(w);
    closed_[w].fed += l.fed;
    closed_[w].dropped += l.dropped;
  }
  accounts_.emplace(accounts_->workers(), start_.worker_steps);
}

// What was kept there is gone, and so the choice of where to begin.
void job_coordinator::forget(node_id n) {
  leaving_.erase(n);
  members_.erase(n);
  kept_.erase(n);
}

epoch_start job_coordinator::start_of(const known_checkpoint& k) {
  restore_from_ = checkpoint_folder_name({k.epoch, k.step});
  const bool is_sync = setup_.program->spec().update == update_kind::sync;
  return {restore_kind::kept, is_sync ? k.worker_steps.front() : sum(k.worker_steps),
          k.worker_steps, true};
}

void job_coordinator::choose_start() {
  restore_from_.clear();
  needs_checkpoint_ = false;
  start_ = {restore_kind::initial, 0, std::vector<std::uint64_t>(next_loss_.size()), false};
  if (setup_.on_failure != failure_policy::resume && !is_finishing_) return;
  // Of a variable that was being handed over two nodes may have something: the newer counts.
  holders_.clear();
  for (const auto& [node, reports] : kept_)
    for (const auto& k : reports) {
      if (k.versions.empty() || !is_alive(node) || is_excluded(node)) continue;
      const auto [at, is_new] = holders_.try_emplace(k.variable, node, k);
      const auto newest = at->second.second.versions.back();
      const bool is_shard =
          std::find(roles_.shards.begin(), roles_.shards.end(), node) != roles_.shards.end();
      if (!is_new && (newest < k.versions.back() || (newest == k.versions.back() && is_shard)))
        at->second = {node, k};
    }
  std::map<std::string, kept_report> kept;
  for (const auto& [variable, holder] : holders_) kept.emplace(variable, holder.second);
  if (auto cut = common_cut(*setup_.program, kept, next_loss_, setup_.bugs)) {
    start_ = std::move(*cut);
  } else if (sum(next_loss_) == 0) {
    return;  // no step is lost
  } else if (setup_.checkpoints.folder.empty()) {
    note("variables are lost with their node, and there are no checkpoints: back to step 0");
  } else {
    needs_checkpoint_ = true;
  }
}

// Those that may be given work; who wants to leave only where there is nobody else.
// Of a library that the job's ops are in; empty: of none.
std::string job_coordinator::lack_at(const member_info& m) const {
  return setup_.program ? lack_of(setup_.program->libraries(), m.libraries, m.name) : std::string();
}

std::vector<member_info> job_coordinator::living_nodes() const {
  std::vector<member_info> all, staying;
  for (const auto& [id, m] : members_) {
    if (is_excluded(id) || !takes_trainings(m) || !lack_at(m).empty()) continue;
    all.push_back(m);
    if (!leaving_.contains(id)) staying.push_back(m);
  }
  auto nodes = nodes_in_order(staying);
  return nodes.empty() || !lack_of_devices(nodes).empty() ? nodes_in_order(all) : nodes;
}

// Of what some role wishes for, among those nodes together (not empty); empty: none.
std::string job_coordinator::lack_of_devices(std::span<const member_info> nodes) const {
  if (!setup_.program) return {};
  const auto ok = check_devices(nodes, setup_.program->devices());
  return ok ? std::string() : ok.error().text();
}

void job_coordinator::wait_for_node(std::string why) {
  // JC-15: who asked for it wants the job's end in any case.
  if (is_suspending_)
    return on_stop(
        fmt::format("it was to be suspended, and no node takes its work ({}): what is "
                    "kept is its newest checkpoint",
                    why));
  if (phase_ != job_phase::waiting) since_ = now_;  // who comes and cannot help ends no waiting
  phase_ = job_phase::waiting;
  waits_for_ = std::move(why);
  until_ = std::numeric_limits<std::int64_t>::max();
  for (const auto& [id, until] : excluded_)
    if (is_alive(id) && until > now_) until_ = std::min(until_, until);
  note("waits for a node that takes work: " + waits_for_);
}

void job_coordinator::place_next() {
  if (is_taking_over_) return claim();  // nobody has halted yet
  choose_start();
  if (is_finishing_ && !end_where_it_is()) return;
  const bool is_here = is_embedded();
  const auto nodes = living_nodes();
  if (nodes.empty() && !is_here) return wait_for_node("there is none");
  if (!is_here)
    if (auto lack = lack_of_devices(nodes); !lack.empty()) return wait_for_node(std::move(lack));
  // Variables that are in a node's memory stay there after a failure: it is quicker.
  const bool is_kept =
      start_.restore == restore_kind::kept && !needs_checkpoint_ && !incident_.empty();
  if (!is_here)
    roles_ = next_roles(roles_, nodes, is_kept ? rebalancing::workers : rebalancing::all,
                        setup_.program->devices());
  choose_handed();
  choose_keepers();
  if (!setup_.checkpoints.folder.empty()) return claim();
  ++epoch_;
  place();
}

// Nodes without work that keep variables stay until the epoch has begun everywhere: who gets them
// may die before.
void job_coordinator::choose_keepers() {
  auto all = std::set<node_id>(nodes_.begin(), nodes_.end());
  all.merge(std::exchange(releases_, {}));
  const bool is_kept = start_.restore == restore_kind::kept && !needs_checkpoint_;
  for (auto n : all) {
    if (!is_alive(n) || n == setup_.client || has_role(roles_, n)) continue;
    if (is_kept && kept_.contains(n) && !kept_.at(n).empty())
      releases_.insert(n);
    else
      send(n, stop_part{setup_.id, std::string(moved_reason)});
  }
}

// Whether that node can begin with what it keeps itself. Asynchronous versions of a shard and its
// replica differ, since gradients are added up in another order: both begin with one of them.
bool job_coordinator::keeps(node_id n, const std::string& variable) const {
  if (holders_.at(variable).first == n) return true;
  const auto at = kept_.find(n);
  if (at == kept_.end() || setup_.program->spec().update == update_kind::async) return false;
  return std::any_of(at->second.begin(), at->second.end(), [&](const kept_report& k) {
    return k.variable == variable &&
           std::binary_search(k.versions.begin(), k.versions.end(), start_.version);
  });
}

// Variables whose shard or replica is not where they are kept. What comes from a checkpoint is read
// by the shard's node.
void job_coordinator::choose_handed() {
  handed_.clear();
  if (start_.restore != restore_kind::kept || needs_checkpoint_) return;
  const auto variables = setup_.program->variables();
  const auto shards = setup_.program->shard_of_variables();
  for (std::size_t v = 0; v < variables.size(); ++v) {
    const auto& name = variables[v].first;
    const auto shard = roles_.shards[shards[v]];
    const auto replica =
        shards[v] < roles_.replicas.size() ? roles_.replicas[shards[v]] : node_id{};
    const auto is_read = !restore_from_.empty();
    handover h{is_read ? shard : holders_.at(name).first,
               is_read ? start_.worker_steps : holders_.at(name).second.applied};
    h.to_shard = !is_read && !keeps(shard, name);
    h.to_replica = raw(replica) != 0 && (is_read || !keeps(replica, name));
    if (setup_.program->spec().all_reduce)
      for (const auto n : roles_.workers)
        if (n != shard && (is_read || !keeps(n, name))) h.to_copies.insert(n);
    if (h.to_shard || h.to_replica || !h.to_copies.empty()) handed_.emplace(name, std::move(h));
  }
}

// A loss of the epoch proves that every shard has begun; one of two steps later, that every replica
// has.
void job_coordinator::release_keepers() {
  has_begun_ = true;
  for (auto n : std::set<node_id>(nodes_.begin(), nodes_.end()))
    if (start_.restore == restore_kind::kept && is_alive(n) && !releases_.contains(n))
      send(n, epoch_begun{setup_.id, epoch_});
  for (auto n : std::exchange(releases_, {})) {
    parties_->release(n);
    send(n, stop_part{setup_.id, std::string(moved_reason)});
  }
}

bool job_coordinator::has_leavers(const std::vector<member_info>& nodes) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const auto& m) { return leaving_.contains(m.id); });
}

void job_coordinator::on_leaving(node_id n) {
  if (!is_recoverable() || phase_ == job_phase::over || !leaving_.insert(n).second) return;
  const bool takes_part = std::find(nodes_.begin(), nodes_.end(), n) != nodes_.end();
  if (!takes_part) return send(n, stop_part{setup_.id, std::string(moved_reason)});
  const auto others = living_nodes();
  if (has_leavers(others))
    return note(
        fmt::format("{} wants to leave, and there is no other node: its work stays until one comes",
                    at_node(n, {}).node));
  // Its work moves with the next epoch.
  if (phase_ != job_phase::running && phase_ != job_phase::placing) return;
  incident_.clear();
  note(fmt::format("{} leaves: its work moves to other nodes", at_node(n, {}).node));
  halt("a node leaves");
}

void job_coordinator::claim() {
  phase_ = job_phase::claiming;
  since_ = now_;
  is_claim_due_ = false;
  // Who has claimed and died does not have the job.
  std::vector<node_id> rivals;
  for (const auto& [id, m] : members_)
    if (id != setup_.client) rivals.push_back(id);
  actions_.emplace_back(
      job_action::claim_epoch{needs_checkpoint_, std::move(rivals), was_held_dead_});
}

void job_coordinator::on_epoch(const result<std::uint32_t>& epoch,
                               const std::optional<known_checkpoint>& newest) {
  if (phase_ != job_phase::claiming) return;
  if (!epoch && epoch.error().code() == error_code::denied && succession_.is_on()) {
    if (is_taking_over_)  // who has given the job away keeps it
      send(setup_.after->from, journal_kept{setup_.id, setup_.after->number, epoch.error().text()});
    return move_to({}, epoch.error().text());
  }
  if (!epoch && epoch.error().code() == error_code::denied)
    return fail(at_node({}, epoch.error().text()));
  if (!epoch) {  // the disk may come back
    note(fmt::format("waits for the folder of its checkpoints: {}", epoch.error().text()));
    phase_ = job_phase::pausing;
    until_ = now_ + claim_again_ns;
    is_claim_due_ = true;
    return;
  }
  epoch_ = *epoch;
  was_held_dead_ = false;
  if (raw(handing_to_) != 0) {  // the next one has to know of the claim
    phase_ = job_phase::handing;
    since_ = now_;
    return succession_.touch();
  }
  if (std::exchange(is_taking_over_, false)) {
    succession_.take_over(setup_.after->journal.successors, setup_.client);
    incident_.clear();
    auto f = at_node({}, setup_.why_after);
    if (setup_.has_failed_before)
      blame(std::move(f));
    else
      note(f.where_and_why());
    return halt(setup_.why_after);
  }
  // Somebody may have died meanwhile, or want to leave (JC-9).
  const bool may_move = !has_leavers(living_nodes());
  const auto has_gone = [&](node_id n) {
    return raw(n) != 0 && (!is_alive(n) || (may_move && leaving_.contains(n)));
  };
  const auto have_gone = [&](const std::vector<node_id>& nodes) {
    return std::any_of(nodes.begin(), nodes.end(), has_gone);
  };
  const bool has_givers = std::all_of(handed_.begin(), handed_.end(),
                                      [&](const auto& h) { return is_alive(h.second.from); });
  if (!has_givers || have_gone(roles_.workers) || have_gone(roles_.shards) ||
      have_gone(roles_.replicas))
    return place_next();
  if (needs_checkpoint_ && newest) {
    start_ = start_of(*newest);
    note(fmt::format("variables are lost with their node: back to the checkpoint of step {}",
                     newest->step));
    count_unseen_losses();
  } else if (needs_checkpoint_) {
    note("variables are lost with their node, and there is no checkpoint yet: back to step 0");
  }
  needs_checkpoint_ = false;
  place();
}

// A checkpoint that is ahead of the losses is another coordinator's, which this one did not see.
void job_coordinator::count_unseen_losses() {
  std::uint64_t unseen = 0;
  for (std::size_t w = 0; w < next_loss_.size(); ++w) {
    const auto more = start_.worker_steps[w] - std::min(start_.worker_steps[w], next_loss_[w]);
    unseen += more;
    closed_[w].fed += more;
    next_loss_[w] += more;
  }
  if (unseen > 0)
    note(fmt::format(
        "{} losses are not known here: another coordinator made these steps",
        setup_.program->spec().update == update_kind::sync ? unseen / next_loss_.size() : unseen));
}

void job_coordinator::on_member(const member_info& m) {
  members_.insert_or_assign(m.id, m);
  const bool is_node =
      m.kind == member_kind::node && m.state == member_state::alive && takes_trainings(m);
  if (const auto lack = is_node && is_recoverable() ? lack_at(m) : std::string(); !lack.empty())
    return note("gets no work: " + lack);
  if (phase_ == job_phase::waiting) return takes_trainings(m) ? place_next() : void();
  if (is_node) newest_ = m.name;
  spread_if_better();
}

void job_coordinator::spread_if_better() {
  if (phase_ != job_phase::running || !has_begun_ || newest_.empty() || !is_recoverable() ||
      !better_roles())
    return;
  const auto name = std::exchange(newest_, {});
  incident_.clear();
  note(fmt::format("{} has joined: the work is spread anew", name));
  halt(name + " has joined");
}

std::optional<role_map> job_coordinator::better_roles() const {
  const auto nodes = living_nodes();
  if (nodes.empty() || is_embedded()) return std::nullopt;
  if (!lack_of_devices(nodes).empty()) return std::nullopt;
  auto next = next_roles(roles_, nodes, rebalancing::all, setup_.program->devices());
  return next == roles_ ? std::nullopt : std::optional(std::move(next));
}

void job_coordinator::on_stop(const std::string& reason) {
  if (phase_ == job_phase::over) return;
  if (!setup_.program && reason == job_done_reason) {
    end(reason);
    return tell({.kind = job_event_kind::finished});
  }
  auto f = at_node({}, reason);
  f.step = step();
  if (!setup_.program) return fail(std::move(f));
  if (has_given_) return move_to(handing_to_, {});  // it is that one's to stop
  flush_losses(all_steps);
  cause_ = reason;
  end(fmt::format("{}{}", job_stopped_prefix, reason));
  tell({job_event_kind::stopped, step(), 0, 0, reason});
}

// --- an end before the last step -----------------------------------------------------------------

result<void> job_coordinator::on_finish(std::uint64_t at_least) {
  if (phase_ == job_phase::over) return error(error_code::usage, "the job is over");
  if (!setup_.program) return error(error_code::usage, "the job is no training: it is stopped");
  if (!setup_.program->spec().may_end_early())
    return error(error_code::usage,
                 "the training ends at its last step, or is stopped: to finish one earlier, start "
                 "it with may_finish, with checkpoints, or to be resumed after failures");
  if (last_step_ != 0 && at_least > last_step_)
    return error(error_code::usage, fmt::format("it ends at step {} already", last_step_));
  is_finishing_ = true;
  finish_at_ = std::max(finish_at_, at_least);
  is_suspending_ = false;  // who wants both wants its variables
  end_early();
  return {};
}

result<void> job_coordinator::on_suspend(const std::string& reason) {
  if (phase_ == job_phase::over) return error(error_code::usage, "the job is over");
  if (!setup_.program || setup_.checkpoints.folder.empty())
    return error(error_code::usage,
                 "the job writes no checkpoints (--checkpoint DIR), so nothing of it is kept");
  if (!setup_.program->spec().may_end_early())
    return error(error_code::usage,
                 "the job is observed at steps between (observe_every), and cannot be suspended: "
                 "what is kept is its newest checkpoint");
  if (phase_ == job_phase::waiting)
    return error(error_code::unreachable,
                 fmt::format("the job waits for a node that takes work ({}), and cannot be "
                             "suspended: what is kept is its newest checkpoint",
                             waits_for_));
  if (is_finishing_) return {};
  is_finishing_ = is_suspending_ = true;
  why_suspended_ = reason;
  end_early();
  return {};
}

// With this epoch, or the next one.
void job_coordinator::end_early() {
  if (last_step_ != 0 || phase_ != job_phase::running) return;
  incident_.clear();
  note(is_suspending_ ? "is to be suspended at the step that it has got to: " + why_suspended_
                      : "is to finish: ends at the step that it has got to");
  halt(is_suspending_ ? "the job is to be suspended" : "the job is to finish");
}

// One whose last step is that of its training is done.
bool job_coordinator::ends_as_suspended() const {
  return is_suspending_ && last_step_ != 0 && last_step_ < steps_asked_;
}

// By worker: the steps that are in any variable which the epoch begins with.
std::vector<std::uint64_t> job_coordinator::kept_steps() const {
  std::vector<std::uint64_t> steps(next_loss_.size());
  if (start_.restore != restore_kind::kept || !restore_from_.empty()) return steps;
  for (const auto& [variable, holder] : holders_)
    for (std::size_t w = 0; w < steps.size() && w < holder.second.applied.size(); ++w)
      steps[w] = std::max(steps[w], holder.second.applied[w]);
  return steps;
}

// JC-10. False: it is over.
bool job_coordinator::end_where_it_is() {
  if (last_step_ != 0) return true;
  const auto& spec = setup_.program->spec();
  if (setup_.on_failure == failure_policy::stop && start_.restore != restore_kind::kept &&
      sum(next_loss_) > 0) {
    constexpr auto why = "what its shards keep is of no common step";
    if (is_suspending_)
      on_stop(fmt::format("it was to be suspended, and {}: what is kept is its newest checkpoint",
                          why));
    else
      fail(at_node({}, fmt::format("it was to finish, and {}", why)));
    return false;
  }
  // A step whose loss was told is made again if it is not in the variables.
  auto last = std::max<std::uint64_t>(1, finish_at_);
  for (const auto s : next_loss_) last = std::max(last, s);
  for (const auto s : start_.worker_steps) last = std::max(last, s);
  // A shard may have applied gradients of steps whose losses nobody has told yet.
  for (const auto s : kept_steps()) last = std::max(last, s);
  last_step_ = std::min(last, spec.steps);
  auto program = setup_.program->with_steps(last_step_);
  if (program) {
    setup_.program = std::move(*program);
    return true;
  }
  fail(at_node({}, program.error().text()));
  return false;
}

// --- another coordinator -------------------------------------------------------------------------

void job_coordinator::choose_successors() {
  if (!succession_.is_on() || phase_ == job_phase::over) return;
  std::vector<member_info> able;
  for (const auto& [id, m] : members_)
    if (id != setup_.client && !is_excluded(id) && !leaving_.contains(id) && !is_unfit(id) &&
        takes_trainings(m) && lack_at(m).empty())
      able.push_back(m);
  std::vector<node_id> ids;
  for (const auto& m : nodes_in_order(able)) ids.push_back(m.id);
  succession_.choose(std::move(ids), handing_to_);
}

bool job_coordinator::is_unfit(node_id n) const {
  const auto at = unfit_.find(n);
  return at != unfit_.end() && at->second > now_;
}

// Nobody takes it.
void job_coordinator::keep_job() {
  handing_to_ = {};
  has_given_ = false;
}

void job_coordinator::keep_successors_told() {
  if (phase_ == job_phase::over) return;
  choose_successors();
  for (auto& [to, m] : succession_.take(journal(), now_)) send(to, std::move(m));
  if (const auto n = succession_.take_credits(); n > 0)
    actions_.emplace_back(job_action::give_loss_credits{n});
}

job_journal job_coordinator::journal() const {
  job_journal j;
  j.epoch = epoch_;
  j.coordinator = setup_.client;
  j.roles = roles_;
  j.first_steps = first_steps_;
  j.next_losses = next_loss_;
  j.closed = closed_;
  if (accounts_)
    for (std::uint32_t w = 0; w < accounts_->workers(); ++w) {
      const auto l = accounts_->of(w);
      j.closed[w].fed += l.fed;
      j.closed[w].dropped += l.dropped;
    }
  j.data_messages = data_messages_;
  j.recoveries = recoveries_;
  j.checkpoints = checkpoints_before_ + cuts_.count();
  j.last_step = last_step_;
  j.is_finishing = is_finishing_;
  j.is_suspending = is_suspending_;
  j.in_vain = in_vain_;
  j.progress = setup_.after ? sum(setup_.after->journal.next_losses) : 0;
  j.started_unix_ns = setup_.started_unix_ns;
  for (const auto& [what, known] : data_) j.data.push_back(known.read);
  return j;
}

void job_coordinator::on_kept(node_id from, const journal_kept& k) {
  if (phase_ == job_phase::over) return;
  if (!k.error.empty()) {
    note(fmt::format("{} could not go on with the job: {}", at_node(from, {}).node, k.error));
    unfit_[from] = now_ + excluded_ns;
    if (from == handing_to_) {
      keep_job();
      if (phase_ == job_phase::handing) place_next();
    }
    return;
  }
  succession_.on_kept(from, k.number);
  hand_over_if_told();
}

result<void> job_coordinator::on_detach() {
  if (!succession_.is_on())
    return error(error_code::usage,
                 "the job ends with its program: start it with outlives_program (--outlive)");
  if (raw(handing_to_) != 0) return {};  // it goes already
  for (const auto n : succession_.successors())
    if (is_alive(n)) return on_hand_over(n);
  return error(error_code::unreachable,
               "there is no other node that could go on with the job: it stays here");
}

result<void> job_coordinator::on_hand_over(node_id to) {
  if (phase_ == job_phase::over) return error(error_code::usage, "the job is over");
  if (!succession_.is_on())
    return error(error_code::usage,
                 "the job ends with its program: it was started without outlives_program");
  const auto at = members_.find(to);
  if (at == members_.end())
    return error(error_code::unreachable, "it has no link to who is to have the job");
  if (auto lack = lack_at(at->second); !lack.empty()) return error(error_code::usage, lack);
  if (is_unfit(to))
    return error(error_code::denied, fmt::format("{} could not take it", at->second.name));
  if (raw(handing_to_) != 0 && handing_to_ != to)
    return error(error_code::denied,
                 fmt::format("the job is on its way to {}", at_node(handing_to_, {}).node));
  handing_to_ = to;
  switch (phase_) {
    case job_phase::placing:
    case job_phase::running:
      incident_.clear();
      note(fmt::format("goes to {}, which coordinates it from now on", at->second.name));
      halt("the job gets another coordinator");
      return {};
    case job_phase::pausing:
    case job_phase::waiting:
      phase_ = job_phase::handing;
      since_ = now_;
      succession_.touch();
      return {};
    default: return {};  // when all have halted, or the epoch is claimed
  }
}

void job_coordinator::hand_over_if_told() {
  if (phase_ != job_phase::handing || has_given_ || !succession_.has_all(handing_to_)) return;
  has_given_ = true;
  since_ = now_;
  send(handing_to_, give_job{setup_.id, "its program or a tool has asked for that"});
}

void job_coordinator::on_let_go() {
  if (phase_ == job_phase::over) return;
  move_to({}, "this process ends");
}

void job_coordinator::on_moved(const job_moved& m) {
  if (phase_ == job_phase::over || m.epoch <= epoch_ || m.node == setup_.client) return;
  move_to(m.node, m.node == handing_to_ ? "" : "this one was held dead");
}

// JC-12. `to`: 0: not known.
void job_coordinator::move_to(node_id to, const std::string& text) {
  phase_ = job_phase::over;
  const auto who = raw(to) == 0 ? std::string("another process") : at_node(to, {}).node;
  tell({job_event_kind::moved, step(), 0, 0,
        text.empty() ? fmt::format("{} coordinates the job now", who)
                     : fmt::format("{} coordinates the job now: {}", who, text)});
}

void job_coordinator::fail(failure f) {
  if (phase_ == job_phase::over) return;
  if (!f.step && has_started_) f.step = step();
  failures_ = failure_log(setup_.name);
  failures_.add(std::move(f));
  cause_ = failures_.line();
  flush_losses(all_steps);
  end(cause_);
  tell({job_event_kind::failed, 0, 0, 0, cause_});
}

void job_coordinator::end(const std::string& reason) {
  phase_ = job_phase::over;
  auto all = std::set<node_id>(nodes_.begin(), nodes_.end());
  all.merge(releases_);
  for (auto n : all) send(n, stop_part{setup_.id, reason});
  for (auto& [to, m] : succession_.dismiss(epoch_)) send(to, std::move(m));
}

training_totals job_coordinator::totals() const {
  training_totals t;
  t.data_messages = data_messages_;
  t.recoveries = recoveries_;
  t.checkpoints = checkpoints_before_ + cuts_.count();
  t.checkpoints_missing = cuts_.lost_since();
  if (plan_ == nullptr) return t;
  t.actors = plan_->actors.size();
  t.op_actors = static_cast<std::uint64_t>(
      std::count_if(plan_->actors.begin(), plan_->actors.end(),
                    [](const auto& a) { return a.kind == actor_kind::op; }));
  for (std::uint32_t w = 0; w < accounts_->workers(); ++w) {
    const auto now = accounts_->of(w);
    worker_totals a = closed_[w];
    a.fed += now.fed;
    a.dropped += now.dropped;
    a.applied = now.applied;
    // Of the steps before this epoch's, those that earlier ones have left out were not applied.
    // (One that was left out and is made again counts as if it had been before.)
    if (!start_.worker_steps.empty()) {
      const auto before =
          start_.worker_steps[w] - std::min(start_.worker_steps[w], first_steps_[w]);
      a.applied += before - std::min(before, closed_[w].dropped);
    }
    a.in_flight = a.fed - std::min(a.fed, a.applied + a.dropped);
    t.redone += a.in_flight;
    t.workers.push_back(a);
  }
  return t;
}

// --- time ----------------------------------------------------------------------------------------

void job_coordinator::tick(std::int64_t now_ns) {
  if (const auto stood = now_ns - now_; stood > pause_max_ns) {
    succession_.excuse(now_ns);
    since_ += stood;  // JC-18
  }
  now_ = now_ns;
  for (const auto n : succession_.mute(now_)) {
    note(fmt::format("{} does not say that it could go on with the job: another one is asked",
                     at_node(n, {}).node));
    unfit_[n] = now_ + excluded_ns;
  }
  const auto mute = [&] { return now_ - since_ > answer_max_ns && !awaited_.empty(); };
  switch (phase_) {
    case job_phase::placing:
      if (!mute()) return;
      exclude(*awaited_.begin());
      return trouble(at_node(*awaited_.begin(),
                             fmt::format("has not answered for {} s whether it takes its part of "
                                         "the plan",
                                         answer_max_ns / 1'000'000'000)));
    case job_phase::halting:
      while (mute() && phase_ == job_phase::halting)
        lose(*awaited_.begin(),
             fmt::format("it has not ended its part for {} s", answer_max_ns / 1'000'000'000),
             false, false);
      return;
    case job_phase::pausing:
      if (now_ >= until_) is_claim_due_ ? claim() : place_next();
      return;
    case job_phase::waiting:
      if (now_ >= until_) return place_next();  // somebody may be given work again
      if (now_ - since_ > waiting_max_ns)
        fail(at_node({}, fmt::format("no node that takes work has come for {} s ({}); before: {}",
                                     waiting_max_ns / 1'000'000'000, waits_for_, incident_)));
      return;
    case job_phase::handing:
      if (now_ - since_ <= answer_max_ns) return;
      note(fmt::format("{} has not taken the job for {} s: it stays here",
                       at_node(handing_to_, {}).node, answer_max_ns / 1'000'000'000));
      keep_job();
      return place_next();
    case job_phase::running:
      if (derived_ && now_ >= derived_->time_ns + failure_log::settle_ns)
        return trouble(*std::exchange(derived_, {}));
      return cut_if_due();
    default: return;
  }
}

// --- cuts ----------------------------------------------------------------------------------------

void job_coordinator::want_checkpoint() {
  cuts_.want();
  cut_if_due();
}

// By time, or (async) by steps: whoever sets the marks is told.
void job_coordinator::cut_if_due() {
  if (phase_ != job_phase::running || setup_.checkpoints.folder.empty() ||
      !cuts_.is_due(now_, sum(next_loss_)))
    return;
  // A mark on a gradient that some variable has already would be lost there.
  for (std::size_t w = 0; w < made_.size(); ++w)
    if (plan_->update == update_kind::async && made_[w] < ahead_[w]) return;
  const auto mark = cuts_.ask(now_, sum(next_loss_));
  for (auto n : parties_->running()) send(n, begin_cut{setup_.id, epoch_, mark});
}

void job_coordinator::on_noted(node_id from, const part_noted& n) {
  if (phase_ != job_phase::running || n.epoch != epoch_) return;
  auto f = at_node(from, n.text);
  f.actor = n.actor;
  f.step = n.step;
  note(f.where_and_why());
}

void job_coordinator::on_saved(node_id from, const part_saved& p) {
  // Of an epoch that has ended nothing becomes visible any more: the next one may be claimed
  // already.
  const bool is_late =
      phase_ != job_phase::running && (setup_.bugs == nullptr || !setup_.bugs->takes_late_parts ||
                                       phase_ == job_phase::over || phase_ == job_phase::halting);
  if (is_late || p.epoch != epoch_) return;
  std::string error;
  if (!p.error.empty())
    error = at_node(from, p.error).where_and_why();
  else if (p.worker_steps.size() != next_loss_.size())
    error = at_node(from, fmt::format("it saved steps of {} workers, but the job has {}",
                                      p.worker_steps.size(), next_loss_.size()))
                .where_and_why();
  if (!cuts_.on_saved(from, p, error)) {
    note_if(cuts_.lost(p.step, cuts_.why_lost()));
    actions_.emplace_back(job_action::drop_cut{p.step, epoch_});
  }
  write_manifests();
}

void job_coordinator::write_manifests() {
  for (auto& m : cuts_.take_manifests(next_loss_)) actions_.emplace_back(std::move(m));
}

void job_coordinator::on_manifest(std::uint64_t step, std::uint32_t epoch,
                                  const result<void>& written) {
  if (!cuts_.on_manifest(step, epoch) || phase_ == job_phase::over) return;
  if (written)
    note_if(cuts_.written(step));
  else if (written.error().code() == error_code::denied && succession_.is_on())
    return move_to({}, written.error().text());
  else if (written.error().code() == error_code::denied)
    return fail(at_node({}, written.error().text()));  // another program has the job
  else
    note_if(cuts_.lost(step, written.error().text()));
  finish_if_ended();
}

}  // namespace troupe
