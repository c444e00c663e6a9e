#pragma once
// A job as the one who coordinates it sees it: who takes part, how far it is, what to do about a
// failure.
//
// A job runs in epochs. In one epoch every actor is where it is and starts once. When a node is
// lost, an actor fails or a node is to be taken in, the epoch ends on all nodes (halt), each tells
// what it keeps of the variables, and the next one begins with the newest cut that they have in
// common, else with a checkpoint, else from the start, on the nodes that are there then.
//
// The owner reports what happens, then carries out take_actions().
//
//   report                         phase                 what follows
//   begin()                        -                     send place to everybody -> placing
//   on_placed, on_local_part       placing               when all have: send start -> running
//   on_want_blob                   any                   send a piece of what the plan names
//   on_loss, on_saved              running               tell the program; write a manifest
//   on_ended                       running               when all have: -> over
//   on_lost, on_ended (failed)     placing, running      send halt to all that live -> halting
//   on_lost_by                     placing to halting    the same, if who says so is believed
//                                                        (JC-8)
//   on_halted                      halting               when all have: pausing (back-off), waiting
//                                                        (no node), claiming
//   on_rejoined                    any                   as if everybody else were lost
//   on_leaving                     running; claiming     the work of that node moves (JC-9)
//   on_member                      waiting; running      there is a node again; the work is spread
//                                                        anew if that helps (JC-7)
//   on_epoch                       claiming              send place to everybody -> placing
//   on_finish                      any                   halt, then an epoch that ends where the
//                                                        last one got to
//   on_suspend                     any                   the same, and it is told as suspended:
//                                                        its checkpoint there has all that was told
//   on_hand_over, on_detach        any                   halt -> handing, until the other one has
//                                                        the journal and halts us -> over
//   on_moved                       any                   -> over: another one coordinates the job
//   on_stop, or give-up            any                   send stop to all -> over
//
// A job with a recipe (job_journal.hpp) goes on without its coordinator: successors are told how
// far it is, and one of them begins with what it was told (job_setup::after). It claims an epoch,
// halts all nodes, and goes on as after any failure.
//
// JC-1  finished, suspended, stopped, moved or failed is told once, and is the last thing told.
// JC-2  In each epoch every logical worker and every shard has one place, and a node gets `place`
//       for an epoch only when all that took part in earlier ones have halted, or are lost, which
//       they learn no later than their next sign of life (they are told stop).
// JC-3  Reports of another epoch than the current one change nothing but the ledger.
// JC-4  The program gets each step's loss once, in order (sync), and of a job that is resumed only
//       when the step is committed: when every shard has applied it, and every replica. A
//       checkpoint becomes visible when the program has got the losses of all steps that are in it.
// JC-5  fed = applied + dropped + in flight, for every worker, over all epochs; in flight counts
//       what was made again.
// JC-6  A job that cannot go on is given up: SV-5; no node for waiting_max_ns; a part that does not
//       answer for answer_max_ns.
// JC-7  Work is spread anew only when the epoch has begun everywhere, replicas included: a planned
//       halt before would leave variables that had just one holder with that one alone for as long
//       as it lasts.
// JC-8  Who is alive for us, and mute, or not reached by another node, is left out of the job for
//       excluded_ns, not for good. Where one node holds another one dead that is the other, and
//       what it says from then on is not believed; of two without a link it is the one that keeps
//       less of the variables. The program's node is never left out.
// JC-9  Who wants to leave is given no part of an epoch that begins later, where there is another
//       node that can take it.
//
// JC-10 A job that is to finish ends at the step that its furthest worker has got to, and no
//       earlier than after one step; later failures do not move it.
// JC-11 With successors a loss is used up only when each of them has it: one that is not there
//       would take no step back.
// JC-12 Who has lost the job to a newer epoch of another coordinator ends nothing elsewhere: it is
//       no longer its job.
// JC-13 A job without a program does not end while its last checkpoint is missing: that is made
//       again, until it is there or a program comes. One that has diverged (CU-5) fails.
// JC-14 Who hands the job over keeps it until it hears that the other one has an epoch of its own.
// JC-16 Nodes that read the same data from files of their own read the same contents: before the
//       first step others end the job, since nobody knows which are right; from then on who has
//       others than those that it was trained with is left out.
// JC-17 Who refuses its part, and keeps no variable of the job, is left out for excluded_ns where
//       the other nodes could take the work.
// JC-18 Time in which this process itself stood still (between two ticks more than a second passed)
//       counts against nobody.
// JC-15 A job is suspended when a checkpoint is there of the step that it ends at, which has the
//       loss of every step before it told, and of none behind it; else it has failed, or is done.
//
// Threading: one owner. Time is passed in, monotonic, in nanoseconds.

#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/jobs/gradient_ledger.hpp"
#include "troupe/runtime/jobs/job_cuts.hpp"
#include "troupe/runtime/jobs/job_journal.hpp"
#include "troupe/runtime/jobs/job_succession.hpp"
#include "troupe/runtime/jobs/participants.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/jobs/recovery.hpp"
#include "troupe/runtime/jobs/training_totals.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/plan/plan_blobs.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/supervision/failure.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

struct job_setup {
  job_id id{};
  std::string name;
  node_id client{};
  // A training that may be placed again and again ...
  std::optional<training_program> program;
  role_map roles;
  failure_policy on_failure = failure_policy::stop;
  restart_limits limits;
  checkpoint_policy checkpoints;
  // ... or a plan that is placed once.
  plan fixed;
  std::vector<node_id> nodes;          // by task
  const planted_bugs* bugs = nullptr;  // tests only
  // encode(job_recipe) of a training that outlives its coordinator; null: it does not.
  std::shared_ptr<const std::vector<std::byte>> recipe;
  std::uint64_t started_unix_ns = 0;
  // It goes on with what an earlier coordinator left, for this reason.
  std::shared_ptr<const kept_journal> after;
  std::string why_after;
  bool has_failed_before = false;  // that one died
  bool has_program = true;         // that gets the variables at its end
};

enum class job_event_kind : std::uint8_t {
  started,
  loss,
  worker_lost,
  recovering,
  resumed,
  note,
  finished,
  stopped,
  suspended,  // step: of its last checkpoint; text: the reason
  moved,      // another one coordinates it; text: who
  failed
};

struct job_event {
  job_event_kind kind{};
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
  float loss = 0;
  std::string text{};
};

struct job_action {
  struct send {
    node_id to{};
    control_message body;
  };
  struct claim_epoch {              // then on_epoch()
    bool wants_checkpoint = false;  // and the newest whole one
    // Processes that may have claimed a newer epoch and have the job then; others that did are
    // gone.
    std::vector<node_id> rivals;
    bool is_anybody_a_rival = false;
  };
  using write_manifest = cut_manifest;  // then on_manifest()
  struct drop_cut {                     // nobody writes to it any more, and it will not be whole
    std::uint64_t step = 0;
    std::uint32_t epoch = 0;
  };
  struct give_loss_credits {  // so many, the oldest first
    std::size_t count = 0;
  };
};
using job_step = std::variant<job_action::send, job_action::claim_epoch, job_action::write_manifest,
                              job_action::drop_cut, job_action::give_loss_credits, job_event>;

enum class job_phase : std::uint8_t {
  placing,
  running,
  halting,
  pausing,
  waiting,
  claiming,
  handing,
  over
};
std::string_view to_string(job_phase p) noexcept;

class job_coordinator {
 public:
  static constexpr std::int64_t answer_max_ns = 30'000'000'000;
  static constexpr std::int64_t excluded_ns = 30'000'000'000;
  static constexpr std::int64_t waiting_max_ns = 600'000'000'000;
  static constexpr std::int64_t save_again_ns = 1'000'000'000;

  // `members`: who has a link to the coordinator, and itself.
  job_coordinator(job_setup setup, std::span<const member_info> members,
                  std::size_t message_bytes_max);

  void begin(std::int64_t now_ns);

  // --- reports -----------------------------------------------------------------------------------
  void on_member(const member_info& m);
  void on_lost(node_id n, const std::string& reason, bool has_left);
  // Another one that takes part says so. For us `n` may be alive.
  void on_lost_by(node_id from, node_id n, const std::string& reason, bool has_left);
  // The cluster held this process dead; it is `self` now, and nobody of the others takes part any
  // more.
  void on_rejoined(const member_info& self);
  // The node wants to leave: its work moves, then it is told stop.
  void on_leaving(node_id n);
  void on_noted(node_id from, const part_noted& n);
  void on_placed(node_id from, const part_placed& p);
  void on_want_blob(node_id from, const want_blob& w);
  void on_local_part(std::uint32_t epoch);
  void on_ended(node_id from, const part_ended& p);
  void on_halted(node_id from, part_halted p);
  void on_saved(node_id from, const part_saved& p);
  void on_manifest(std::uint64_t step, std::uint32_t epoch, const result<void>& written);
  // `newest`: the checkpoint that was asked for; nothing: there is none that fits.
  void on_epoch(const result<std::uint32_t>& epoch, const std::optional<known_checkpoint>& newest);
  // One more loss: of all workers together (sync; worker 0), or of one.
  void on_loss(std::uint32_t worker, std::uint64_t step, float loss);
  // Of a training: it is stopped. Of a plan that is placed once: with job_done_reason the program
  // needs it no more, and it is finished; else it has failed.
  void on_stop(const std::string& reason);
  // `at_least`: so many steps of each worker are to be made in any case, which the program has fed.
  // Errors: usage: it cannot be finished before its last step.
  result<void> on_finish(std::uint64_t at_least = 0);
  // For a reason: it ends as by on_finish(), and may be resumed. Errors: usage: it writes no
  // checkpoints, or is observed between; unreachable: no node is there that could.
  result<void> on_suspend(const std::string& reason);
  // This process ends in good order, and successors may go on: as if it had died.
  void on_let_go();
  // The program leaves the job to the cluster. Errors: usage: the job ends with its coordinator;
  // unreachable: there is no other node.
  result<void> on_detach();
  // To that node or program, which has asked for it. Errors: usage: as above; unreachable.
  result<void> on_hand_over(node_id to);
  void on_kept(node_id from, const journal_kept& k);
  void on_moved(const job_moved& m);
  void want_checkpoint();
  void tick(std::int64_t now_ns);

  std::vector<job_step> take_actions();

  // --- what it is --------------------------------------------------------------------------------
  job_phase phase() const noexcept { return phase_; }
  std::uint32_t epoch() const noexcept { return epoch_; }
  const plan& current_plan() const noexcept { return *plan_; }
  const std::vector<node_id>& nodes() const noexcept { return nodes_; }  // by task
  const role_map& roles() const noexcept { return roles_; }
  std::uint64_t step() const noexcept;
  training_totals totals() const;
  const std::string& cause() const noexcept { return cause_; }
  bool may_move() const noexcept { return succession_.is_on(); }
  const loss_history& losses() const noexcept { return succession_.losses(); }

 private:
  struct handover {
    node_id from{};
    std::vector<std::uint64_t> applied{};
    bool to_shard = false, to_replica = false;
    std::set<node_id> to_copies{};  // with all_reduce
  };

  bool is_recoverable() const noexcept {
    return setup_.program.has_value() && setup_.on_failure != failure_policy::stop;
  }
  bool is_alive(node_id n) const { return members_.contains(n); }
  bool is_embedded() const;
  bool is_excluded(node_id n) const;
  bool has_leavers(const std::vector<member_info>& nodes) const;
  failure at_node(node_id n, std::string text) const;
  std::string first_actor_on(node_id n) const;
  void send(node_id to, control_message body);
  void tell(job_event e) { actions_.emplace_back(std::move(e)); }
  void note(std::string text) { tell({job_event_kind::note, 0, 0, 0, std::move(text)}); }
  void note_if(std::optional<std::string> text) {
    if (text) note(std::move(*text));
  }

  void place();
  bool put_plan(place_part& to);  // false: the job has failed
  void start_if_placed();
  void finish_if_ended();
  void lose(node_id n, const std::string& reason, bool has_left, bool is_gone);
  void trouble(failure f);
  void blame(failure f);
  void halt(const std::string& why);
  void go_on_if_halted();
  void close_epoch();
  epoch_start start_of(const known_checkpoint& k);
  void choose_start();
  void claim();
  void forget(node_id n);
  bool keeps(node_id n, const std::string& variable) const;
  void choose_handed();
  void choose_keepers();
  void release_keepers();
  void place_next();
  void fail(failure f);
  void end(const std::string& reason);
  void take_over();
  std::vector<std::uint64_t> kept_steps() const;
  bool end_where_it_is();
  void end_early();
  bool ends_as_suspended() const;
  void count_unseen_losses();
  void choose_successors();
  void keep_successors_told();
  void hand_over_if_told();
  void keep_job();
  bool is_unfit(node_id n) const;
  void move_to(node_id to, const std::string& text);
  job_journal journal() const;
  std::string lack_at(const member_info& m) const;
  std::vector<member_info> living_nodes() const;
  std::string lack_of_devices(std::span<const member_info> nodes) const;
  void wait_for_node(std::string why);
  std::optional<role_map> better_roles() const;
  void spread_if_better();
  void commit(std::uint64_t step, float loss);
  void flush_losses(std::uint64_t below);
  void leave_out_refused();
  void exclude(node_id n);
  std::pair<std::size_t, std::size_t> kept_by(node_id n) const;
  void write_manifests();
  void cut_if_due();

  job_setup setup_;
  std::map<node_id, member_info> members_;
  // Alive for us, and dead for another participant, or mute; until when.
  std::map<node_id, std::int64_t> excluded_;
  // By what it is.
  struct known_data {
    read_data read;
    std::uint32_t epoch = 0;  // in which it was said first; 0: to another coordinator
  };
  std::map<std::string, known_data> data_;
  std::size_t message_bytes_max_;
  std::int64_t now_ = 0;
  std::vector<job_step> actions_;

  job_phase phase_ = job_phase::placing;
  std::int64_t since_ = 0;  // of the phase
  // Of a pause, or of the first exclusion that ends while a node is waited for.
  std::int64_t until_ = 0;
  std::uint32_t epoch_ = 0;
  role_map roles_;
  epoch_start start_;
  bool needs_checkpoint_ = false;  // to know where to begin
  bool is_claim_due_ = false;      // after the pause
  std::string restore_from_;       // folder of a checkpoint, within that of the job
  std::shared_ptr<const plan> plan_;
  std::vector<node_id> nodes_;  // by task
  // Of the epoch's plan; null: it leaves this process nowhere.
  std::shared_ptr<const blob_map> blobs_;
  known_blobs known_blobs_;
  std::set<node_id> refused_;  // its part of this epoch, for a reason of its own
  std::set<node_id> awaited_;  // who has not answered to place or halt
  bool has_local_part_ = false, is_local_part_there_ = false;
  bool has_started_ = false;
  std::optional<participants> parties_;
  std::optional<ledger> accounts_;                    // of this epoch
  std::vector<worker_totals> closed_;                 // of the epochs before: fed and dropped
  std::vector<std::uint64_t> first_steps_;            // of the first epoch
  std::map<node_id, std::vector<kept_report>> kept_;  // in answers to halt
  // Of the variables that the next epoch begins with.
  std::map<std::string, std::pair<node_id, kept_report>> holders_;
  std::map<std::string, handover> handed_;  // what moves, by variable
  // The loss of step t + lag_ shows that step t is committed.
  std::uint64_t lag_ = 1;
  // Nodes that have nothing to do any more once the epoch has begun everywhere.
  std::set<node_id> releases_;
  bool has_begun_ = false;
  std::set<node_id> leaving_;
  std::string newest_;  // of the nodes that have come and got no work yet
  std::uint64_t data_messages_ = 0, recoveries_ = 0;
  failure_log failures_;
  std::optional<failure> derived_;  // of this epoch: its cause has not been told yet
  restart_limiter limiter_;
  std::string waits_for_;  // in phase waiting
  std::string incident_;   // why there is a recovery; empty: it was planned
  // By worker: first step whose loss the program has not got.
  std::vector<std::uint64_t> next_loss_;
  std::deque<std::pair<std::uint64_t, float>> held_losses_;  // not committed yet
  // By worker: first step whose loss did not come in this epoch.
  std::vector<std::uint64_t> made_;
  // Async, by worker: steps that some variable has from the epoch before.
  std::vector<std::uint64_t> ahead_;
  std::string cause_;
  job_cuts cuts_;
  job_succession succession_;
  // As successors, until when: they have said so, or nothing.
  std::map<node_id, std::int64_t> unfit_;
  bool has_given_ = false;      // to handing_to_, which has not begun yet
  bool was_held_dead_ = false;  // and has claimed nothing since
  std::uint32_t in_vain_ = 0;
  bool is_taking_over_ = false;
  std::uint64_t finish_at_ = 0;  // steps of each worker, at least
  bool is_finishing_ = false;
  bool is_suspending_ = false;  // then it is finishing, too
  std::string why_suspended_ = "its program has asked for that";
  std::uint64_t steps_asked_ = 0;  // of each worker, by its training
  std::uint64_t last_step_ = 0;    // where the job is to end; 0: where its training does
  node_id handing_to_{};
  std::int64_t pause_ns_ = 0;             // before the next epoch
  std::uint64_t checkpoints_before_ = 0;  // by earlier coordinators
};

}  // namespace troupe
