#pragma once
// Supervisors as in OTP (Armstrong 2003): a tree that says who is stopped and who is started when
// somebody ends, and when a supervisor itself gives up.
//
// Pure: who owns the tree reports what became of its children, carries out the actions in their
// order, and passes the time in.
//
//   report      of                 effect                                         actions
//   start       the owner, once    the top starts its children                    start
//   on_started  a child that was   it runs; the next one of its supervisor may    start
//               to start           start
//   on_ended    a child, by        restart it and whom its supervisor's strategy  stop, start,
//               itself or stopped  says                                           escalate, give_up
//   tick        a clock            what waited for the end of its back-off        start
//                                  starts
//   stop        the owner          everything ends; is_over() when it has         stop
//
// SU-1  A child is started only when it has ended, and stopped only once between a start and its
//       end: nobody runs twice.
// SU-2  Children of one supervisor start in the order in which they were added, each when the one
//       before it runs (one_for_one: or waits for its back-off); they are stopped from the last to
//       the first, each when the one behind it has ended. Nobody starts while somebody of the same
//       supervisor is being stopped.
// SU-3  A supervisor that counts more failures than its limits allow stops its children and then
//       fails to its own supervisor: the action escalate; the top: give_up, the last action of all.
//       A supervisor that is started again counts from 0.
// SU-4  Root cause first: the end of a child that is to be stopped, or that is said to be derived,
//       is noted and not counted, and what escalates is the failure of the child that began it,
//       through all supervisors.
// SU-5  A failure that is not counted restarts its child after delay_ns at the earliest; a counted
//       one after the back-off of its supervisor, which grows with failures between which there was
//       no quiet window, and begins anew after one.
// SU-6  Without further reports and with time passing the tree comes to rest: all who should run
//       do, or it is over.
//
// Who carries out owes a report for each action: on_started or on_ended for a start, on_ended for a
// stop (also if it had ended before). A report that fits nothing, such as one of a child that was
// removed, is ignored.
//
// Threading: one owner. Time is monotonic, in nanoseconds.

#include "troupe/runtime/supervision/failure.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// Who ends and starts again with a child that is restarted.
enum class restart_strategy : std::uint8_t {
  one_for_one,   // it alone
  one_for_all,   // all children of its supervisor
  rest_for_one,  // it and those added after it, which build on it
};

enum class restart_kind : std::uint8_t {
  permanent,  // restarted whenever it ends
  transient,  // restarted when it fails; a normal end means that its work is done
  temporary,  // never restarted
};
std::string_view to_string(restart_strategy s) noexcept;
std::string_view to_string(restart_kind k) noexcept;

// What is done about the end of an actor of some kind; each kind declares its own beside its table
// of messages.
struct supervision_policy {
  restart_kind restart = restart_kind::permanent;
  restart_strategy strategy = restart_strategy::one_for_one;  // of its supervisor
  restart_limits limits{};                                    // of its supervisor
};

// Of a supervisor that restarts nobody: the first failure is its own.
inline constexpr restart_limits no_restarts{
    .failures_max = 0, .in_vain_max = std::numeric_limits<std::uint32_t>::max()};

// A child or a supervisor of one tree; never used again.
enum class supervised_id : std::uint32_t {};
inline constexpr supervised_id top_supervisor{0};

enum class supervision_action_kind : std::uint8_t {
  start,     // child
  stop,      // child
  escalate,  // of a supervisor below the top; for people
  give_up,   // of the top: nothing of the tree runs any more
};

struct supervision_action {
  supervision_action_kind kind = supervision_action_kind::start;
  supervised_id who{};
  failure cause{};  // escalate, give_up: `actor` is the path of the child, below the top
};

class supervision_tree {
 public:
  // The top's strategy and limits. `name` is that of the tree, for people.
  supervision_tree(std::string name, restart_strategy strategy, const restart_limits& limits);

  // --- who belongs to it -------------------------------------------------------------------------
  // Behind the others of `under`. Below a supervisor that runs the new one is started.
  supervised_id add_supervisor(supervised_id under, std::string name, restart_strategy strategy,
                               const restart_limits& limits);
  supervised_id add_child(supervised_id under, std::string name, restart_kind restart);
  // A child that is nobody's business any more, whatever it does.
  void remove(supervised_id child, std::int64_t now_ns);

  // --- reports -----------------------------------------------------------------------------------
  void start(std::int64_t now_ns);
  void on_started(supervised_id child, std::int64_t now_ns);
  // `failed`: why; nullopt: a normal end. `is_derived`: it follows from the failure of somebody
  // else.
  void on_ended(supervised_id child, std::optional<std::string> failed, std::int64_t now_ns,
                bool is_derived = false);
  void tick(std::int64_t now_ns);
  void stop(std::int64_t now_ns);

  // --- what is to be done ------------------------------------------------------------------------
  std::vector<supervision_action> take_actions();
  // When tick() has something to do; nullopt: not before the next report.
  std::optional<std::int64_t> deadline_ns() const;

  // --- looking -----------------------------------------------------------------------------------
  bool is_running(supervised_id who) const;
  // A child that may be started now: its start was asked for, and it has neither started nor ended
  // since.
  bool is_starting(supervised_id who) const;
  // Stopped, or given up.
  bool is_over() const;
  // Why the top gives up, from the moment at which that is certain; its children may still be
  // ending. Null: it does not.
  const failure* verdict() const;
  // Failures of children: own ones are those that no other one explains.
  const failure_log& log() const noexcept { return log_; }

 private:
  enum class condition : std::uint8_t { ended, starting, running, stopping };
  struct entry {
    std::optional<supervised_id> supervisor;  // nullopt: the top
    std::string name;
    restart_kind restart = restart_kind::permanent;
    condition state = condition::ended;
    bool is_wanted = false;          // it runs, or shall start as soon as it may
    bool must_end = false;           // before anything else of its supervisor happens
    std::int64_t not_before_ns = 0;  // its back-off ends
    // Of a supervisor:
    bool is_supervisor = false;
    restart_strategy strategy = restart_strategy::one_for_one;
    restart_limits limits;
    restart_limiter limiter;
    std::uint64_t quiet_windows = 0;
    std::optional<std::int64_t> failed_ns;  // the last counted failure
    std::vector<supervised_id> children;
    std::optional<failure> verdict;  // why it fails itself
  };

  supervised_id add(supervised_id under, entry e);
  void work(std::int64_t now_ns);
  bool advance(supervised_id s, std::int64_t now_ns);
  bool stop_last(entry& s, bool& has_changed);
  bool start_next(entry& s, std::int64_t now_ns);
  std::vector<supervised_id> waiting_to_start(const entry& s) const;
  void begin(entry& supervisor);
  void begin_stop(supervised_id who, entry& e);
  void end_children(entry& supervisor);
  void end_supervisor(supervised_id who, std::int64_t now_ns);
  void ended(supervised_id who, const std::optional<failure>& failed, bool is_derived,
             std::int64_t now_ns);
  std::optional<std::int64_t> count_failure(entry& s, std::int64_t now_ns);
  void restart(entry& s, supervised_id from, std::int64_t not_before_ns);
  std::string path(supervised_id who) const;
  entry& at(supervised_id who) { return entries_.at(who); }
  const entry& at(supervised_id who) const { return entries_.at(who); }

  std::map<supervised_id, entry> entries_;
  std::uint32_t last_id_ = 0;
  failure_log log_;
  std::vector<supervision_action> actions_;
};

}  // namespace troupe
