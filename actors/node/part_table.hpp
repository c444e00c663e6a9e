#pragma once
// The parts of jobs on a node: placing them, ending them, and what stays of their variables in
// between.
//
//   of a job          what the table does
//   place_part        ask for what its plan names, wait for the links it needs, load its
//                     variables, spawn it, bind it to the links; then part_placed
//   blob_piece        a piece of what its plan names (blob_pull.hpp)
//   start_part        let its sources fire
//   halt_part         end its actors, keep its variables; then part_halted of that epoch
//   epoch_begun       forget what is kept of variables whose shard or replica is elsewhere
//   cancel_run        loops of that step end
//   begin_cut         mark what its workers make next
//   stop_part         end its actors, forget its variables
//
// NO-1  A node runs at most one part of a job; `place` for an epoch that is not newer than the last
//       one is ignored.
// NO-2  A part whose coordinator is dead or gone is stopped at once; one of a job that may move
//       (place_part) waits orphaned_max_ns for whoever goes on with it, unless it was stopped.
// NO-3  A part is `placed` only when every link knows its edges: nothing can arrive for it before.
// NO-5  Variables are kept from a part to the next one of the same job, and no longer than the job.
// NO-6  A part whose supervisor fails has failed; its actors have ended before the next epoch's
//       begin.
// NO-9  A part obeys the coordinator of the newest epoch that it has heard of; a former one that
//       asks for something, or whose part another one halts, is told job_moved.
// NO-8  A halt is answered once its coordinator is a peer, which another node may have known before
//       us: nothing that was asked stays without an answer.
// NO-13  Who may say what of a job that has a part here. A message from anybody else is counted,
//        noted as an event, and changes nothing; a former coordinator is told who has the job.
//          start, cut, begun, cancel   its coordinator
//          halt, place                 its coordinator; where that is no peer any more, or the job
//                                      may move, whoever goes on with it, with a newer epoch
//          stop                        its coordinator; where the job may move and that is gone,
//                                      whoever goes on with it; of a part that waits to be placed,
//                                      who has asked for that
//        Of a job that is coordinated here and cannot move, nobody is believed that it has moved.
// NO-15  Of a part that has ended, and whose job does not go on, stays what is listed, for a
// minute,
//        of 100 parts and 20,000 actors at most, the newest: neither constants nor variables nor
//        buffers (ended_part.hpp).
// NO-14  Of what a plan names a node asks the coordinator for what it does not have, and keeps it
//        for the next epochs of the job.
// NO-12  A part begins on a device when those that are about to end there have ended (PT-2).
//
// Threading: the node's.

#include "troupe/actors/messages/archive_messages.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/node/part_supervisor.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/analysis/op_times.hpp"
#include "troupe/runtime/jobs/blob_pull.hpp"
#include "troupe/runtime/plan/plan_blobs.hpp"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe {

struct peer_entry {
  member_info member;
  caf::actor link;
  std::shared_ptr<actor_record> record;
};

struct part_entry {
  std::shared_ptr<part_context> context;
  std::vector<std::uint32_t> actors;
  std::vector<node_id> nodes;  // by task
  node_id coordinator{};
  std::uint32_t epoch = 0;
  std::uint64_t memory_bytes = 0;
  caf::actor supervisor;
  std::shared_ptr<part_handles> handles;  // until its actors have ended
  std::uint64_t started_ns = 0;
  std::uint64_t ended_ns = 0;  // 0: runs
  std::string reason{};        // why it was stopped; job_done_reason: its job is done
  bool has_failed = false;     // it has told so, and is about to be stopped
  std::size_t unbound = 0;     // links that do not know its edges yet
  bool is_started = false;     // its actors were told to begin
  // Or will be when it has ended: its variables wait for the next epoch.
  bool is_halted = false;
  // That was to end, of which this part may be an older one: its place had to wait for our end.
  std::uint32_t halted_epoch = 0;
  bool may_move = false;
  std::int64_t orphaned_ns = 0;  // since when its coordinator is gone; 0: it is there
  bool is_about_to_end() const noexcept { return ended_ns == 0 && (has_failed || !reason.empty()); }
};

// What the table needs of its node.
class part_services {
 public:
  virtual ~part_services() = default;
  virtual const node_environment& environment() const = 0;
  virtual const std::map<node_id, peer_entry>& peers() const = 0;
  virtual caf::actor handle() = 0;
  virtual void send(node_id to, control_message body) = 0;
  virtual caf::execution_unit* context() = 0;
  virtual void note(event what) = 0;
  virtual void parts_changed() = 0;  // membership weighs a cluster by its jobs
  // Of a job that is coordinated here: its actor, and who takes what it fetches; null where it is
  // not.
  virtual caf::actor job_actor(job_id job) const = 0;
  virtual caf::actor fetches_to(job_id job) const = 0;
  virtual const std::vector<std::shared_ptr<stream_meter>>& meters() const = 0;
};

class part_table {
 public:
  static constexpr std::int64_t orphaned_max_ns = 30'000'000'000;

  part_table(part_services& node, caf::actor_system& sys) : node_(node), system_(sys) {}
  ~part_table();  // of a node that failed: its parts end too
  part_table(const part_table&) = delete;
  part_table& operator=(const part_table&) = delete;

  // --- messages of coordinators ------------------------------------------------------------------
  void place(node_id from, place_part p);
  void start(node_id from, const start_part& s);
  void halt(node_id from, const halt_part& h);
  void stop(node_id from, const stop_part& s);
  void on_piece(node_id from, blob_piece& p);
  void cut(node_id from, const begin_cut& c);
  void cancel(node_id from, const cancel_run& c);
  void begun(node_id from, const epoch_begun& b);

  // --- what happens here -------------------------------------------------------------------------
  void on_event(part_event& e);
  void on_orphaned(const part_orphaned& m);
  void on_bound(job_id job);
  void on_loaded(shards_loaded& m);
  void on_lost(const member_info& m);  // dead, or has left
  void place_waiting();                // somebody has come, or time has passed
  void stop_all(const std::string& reason);
  // Ended parts; and what they have freed goes back to the system.
  void forget_old(std::uint64_t before_ns);

  // --- looking -----------------------------------------------------------------------------------
  const std::map<job_id, part_entry>& all() const noexcept { return parts_; }
  std::uint32_t running() const noexcept;  // parts whose job is not over
  // Those of them that their coordinators can place elsewhere.
  // How long ops took here, up to now.
  op_times times() const;
  void set_times(op_times t) { times_ = std::move(t); }
  std::vector<std::pair<job_id, node_id>> movable() const;
  bool is_idle() const noexcept;  // no actor of a part is left
  std::uint64_t stray_messages() const noexcept { return stray_messages_; }

 private:
  // A part whose links are not all there yet, or whose variables are being read, or whose older
  // epoch has not ended.
  struct waiting_place {
    node_id from{};
    place_part place;
    std::int64_t since_ns = 0;
    // From the first attempt on: the plan without its blobs, and when those are here, whole.
    std::shared_ptr<unfinished_plan> unfinished{};
    std::shared_ptr<plan> job_plan{};
    bool is_loading = false, is_loaded = false;
  };
  using kept_shards = std::map<std::string, std::shared_ptr<kept_shard>>;

  enum class reading : std::uint8_t { done, wait, refused };
  reading read_plan(waiting_place& w);
  void ask(blob_pull& pull, job_id job);
  void try_to_place(waiting_place w);
  void refuse(node_id from, const place_part& p, const std::string& why);
  void load(waiting_place w, const plan& p, std::uint32_t own);
  std::string lack_of_devices(const plan& p, std::uint32_t task) const;
  enum class wait_or_refuse : std::uint8_t { neither, wait, refuse };
  std::pair<wait_or_refuse, std::string> lack_of_communicators(const plan& p, std::uint32_t task,
                                                               job_id job) const;
  bool shares_ending_device(const plan& p, std::uint32_t task, job_id job) const;
  std::string exceeds_memory(const memory_need& need, job_id but) const;
  std::int64_t missing_link(const plan& p, const std::vector<node_id>& nodes,
                            std::uint32_t own) const;
  caf::actor supervise(job_id job, part_request request);
  void spawn(const waiting_place& w, std::shared_ptr<plan> job_plan, std::uint32_t own,
             std::vector<caf::actor> links);
  std::shared_ptr<part_context> make_context(const place_part& p, const plan& job_plan);
  static void make_buffers(part_context& context, const plan& p, std::uint32_t own);
  std::shared_ptr<actor_record> make_record(const part_context& context, const plan& p,
                                            std::uint32_t i, const std::vector<bool>& sparse);
  void give_handles(job_id job, part_entry& part,
                    const std::shared_ptr<const part_handles>& handles);
  void tell_placed(job_id job, const part_entry& part);
  void stop(job_id job, part_entry& part, const std::string& reason);
  void note_of(job_id job, const part_entry& part, event_kind kind, std::string text,
               std::uint32_t epoch = 0);
  void note_end(job_id job, const part_entry& part, const std::string& reason, bool is_lost);
  void end_actors(part_entry& part, const std::string& reason);
  void let_go(part_entry& part);
  void answer_halt(job_id job, node_id to, std::uint32_t epoch);
  void answer_waiting_halts();
  void stop_orphans();
  void obey(job_id job, part_entry& part, node_id from, std::uint32_t epoch);
  bool is_former(node_id from, job_id job, const part_entry& part, std::uint32_t epoch,
                 const char* what);
  part_entry* find_running(job_id job);
  // NO-13.
  part_entry* find_running_of(node_id from, job_id job, std::uint32_t epoch, const char* what);
  bool may_take_over(node_id from, const part_entry& part) const;
  void ignore(node_id from, job_id job, const char* what, node_id coordinator);
  static void note_times(const part_entry& part, op_times& to);
  static std::uint64_t data_messages(const part_entry& part);
  static std::vector<shard_report> reports(const part_entry& part);

  part_services& node_;
  caf::actor_system& system_;
  std::map<job_id, part_entry> parts_;
  std::map<job_id, kept_shards> kept_;
  // Of jobs with a part, or one that waits.
  std::map<job_id, blob_pull> blobs_;
  // Of halted jobs, so that the next epoch need not read them again.
  std::map<job_id, std::vector<std::shared_ptr<const idx_dataset>>> data_;
  std::vector<waiting_place> waiting_;
  // NO-8: halts: of whom, of which epoch.
  std::map<job_id, std::pair<node_id, std::uint32_t>> unanswered_;
  op_times times_;
  std::uint32_t last_part_ = 0;
  bool has_freed_memory_ = false;                 // that the process may still hold
  std::uint64_t stray_messages_ = 0;              // NO-4
  std::set<std::pair<job_id, node_id>> ignored_;  // whose messages were noted: NO-13
};

}  // namespace troupe
