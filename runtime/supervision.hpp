#pragma once
// What the coordinator of a job knows about failures: the root cause, who may be lost, and where
// every gradient went.
//
// Pure: the job actor reports what happened and asks.
//
// SV-1  The root is the first failure to arrive that is not derived. A derived one (a wait that
//       failed because somebody died) becomes the root only when settle_ns have passed without its
//       cause: deaths are noticed at different times on different nodes.
// SV-2  The user reads one line, whatever the texts contain.
// SV-3  Asynchronous training goes on without a node that held nothing but workers, while another
//       worker is left. Any other loss is fatal, but of a node whose part has ended and that nobody
//       who has not ended takes something from.
// SV-4  fed = applied + dropped + in flight, for every worker, at any moment, whatever reports came
//       or did not come.
// SV-5  A job that fails again and again without a step forward is given up, after delays that
//       grow; each step forward forgives all failures before it, but for the limit of failures in a
//       window of time.
//
// Threading: one owner. Time is passed in, monotonic, in nanoseconds.

#include "runtime/control_message.hpp"
#include "runtime/plan.hpp"
#include "schema/ids.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// What a job does about a fatal failure.
enum class failure_policy : std::uint8_t {
  stop,     // it ends
  restart,  // it begins again, from step 0
  // It goes on: with what the nodes keep, else from the newest checkpoint, else from step 0.
  resume,
};
std::string_view to_string(failure_policy p) noexcept;

// --- restarts: as OTP's supervisors limit them (Armstrong 2003), by intensity and period, and by
// progress

struct restart_limits {
  std::uint32_t failures_max = 60;  // in window_ns
  std::int64_t window_ns = 60'000'000'000;
  std::uint32_t in_vain_max = 6;        // in a row, without a step forward
  std::int64_t delay_ns = 100'000'000;  // before the second one in a row; it doubles
  std::int64_t delay_max_ns = 5'000'000'000;
};

class restart_limiter {
 public:
  explicit restart_limiter(const restart_limits& limits = {}) : limits_(limits) {}

  // A failure, when `progress` steps were done in all. How long to wait before the restart;
  // nullopt: give up (why() says why).
  std::optional<std::int64_t> on_failure(std::int64_t now_ns, std::uint64_t progress);
  const std::string& why() const noexcept { return why_; }

 private:
  restart_limits limits_;
  std::deque<std::int64_t> failures_;  // times within the window
  std::uint64_t progress_ = 0;
  std::uint32_t in_vain_ = 0;
  bool has_failed_ = false;
  std::string why_;
};

// --- root cause first ----------------------------------------------------------------------------

struct failure {
  std::string node;       // its name; "": not known
  std::uint32_t pid = 0;  // 0: not known
  std::string actor;      // "": the node itself
  std::optional<std::uint64_t> step;
  std::string text;  // why
  bool is_derived = false;
  std::int64_t time_ns = 0;  // of its arrival

  // "node n2 (pid 123), actor worker/1/dense_1, step 431: why"
  std::string where_and_why() const;
};

class failure_log {
 public:
  static constexpr std::int64_t settle_ns = 1'500'000'000;  // a lease, and the time to say so
  static constexpr std::size_t kept_max = 64;

  explicit failure_log(std::string job) : job_(std::move(job)) {}

  void add(failure f);
  bool has_failed() const noexcept { return own_count_ + derived_count_ > 0; }
  // There is a failure, and its cause is known or will not be: SV-1.
  bool is_settled(std::int64_t now_ns) const noexcept;
  // When is_settled() becomes true by time alone; empty: it is, or nothing failed.
  std::optional<std::int64_t> deadline_ns() const noexcept;
  // The root, or else the first derived failure; null: none.
  const failure* root() const noexcept;
  // "job NAME failed: node n2 (pid 123), actor worker/1/dense_1, step 431: why", without a line
  // break: SV-2. Empty: none failed.
  std::string line() const;

  // The first ones, in order of arrival, and how many in all.
  const std::vector<failure>& own() const noexcept { return own_; }
  const std::vector<failure>& derived() const noexcept { return derived_; }
  std::uint64_t own_count() const noexcept { return own_count_; }
  std::uint64_t derived_count() const noexcept { return derived_count_; }

 private:
  std::string job_;
  std::vector<failure> own_, derived_;
  std::uint64_t own_count_ = 0, derived_count_ = 0;
};

// --- who may be lost -----------------------------------------------------------------------------

enum class loss_verdict : std::uint8_t {
  irrelevant,  // takes no part, or its part has ended
  tolerated,   // the others go on
  fatal,
};

class participants {
 public:
  // `nodes[i]` runs tasks[i] of a checked plan.
  participants(const plan& p, std::span<const node_id> nodes);

  // The node's part has done all its steps.
  void ended(node_id n);
  // Whatever becomes of the node from now on, nothing hangs on it.
  void release(node_id n);
  // The node is dead or has left: decides, and counts it as gone.
  loss_verdict lose(node_id n);
  bool is_lost(node_id n) const noexcept { return lost_.contains(n); }
  // Nothing runs any more, by ended() or lose().
  bool all_over() const noexcept { return running_.empty(); }
  const std::set<node_id>& running() const noexcept { return running_; }
  // Logical workers on that node.
  std::vector<std::uint32_t> workers_on(node_id n) const;
  // What it runs, for people: "/job:worker/task:1 (worker 1), /job:ps/task:0 (shard 0)".
  std::string describe(node_id n) const;

 private:
  struct role {
    std::vector<std::string> tasks;
    std::set<std::uint32_t> workers, shards, replicas;
    bool is_client = false;
    bool has_program_side = false;  // a feed or a fetch: the program is here
    bool hands_over = false;        // a variable, to another node
    std::set<node_id> takers;       // who takes something from it
  };
  std::map<node_id, role> roles_;
  std::set<node_id> running_, lost_;
  bool is_async_ = false;
};

// The task of each logical worker: where its gradients come from. Workers that no shard knows are
// -1.
std::vector<std::int32_t> worker_tasks(const plan& p);

// --- the ledger ----------------------------------------------------------------------------------

// Of one worker. A step counts as applied once every shard has applied its gradient, as dropped
// once a shard dropped it.
struct worker_ledger {
  std::uint64_t fed = 0;
  std::uint64_t applied = 0;
  std::uint64_t dropped = 0;
  std::uint64_t in_flight = 0;
  friend bool operator==(const worker_ledger&, const worker_ledger&) = default;
};

class ledger {
 public:
  // Of one epoch, in which worker w's first step is start[w] (empty: 0). What was applied before is
  // not counted.
  explicit ledger(std::uint32_t workers, std::vector<std::uint64_t> start = {});

  // The loss of one more step of `worker` was seen.
  void on_loss(std::uint32_t worker);
  // A shard's counters by worker; older or shorter ones than before take nothing back.
  void on_shard(const shard_report& r);

  std::uint32_t workers() const noexcept { return static_cast<std::uint32_t>(losses_.size()); }
  // fed: as many as anybody has seen, by their losses or gradients.
  worker_ledger of(std::uint32_t worker) const;
  worker_ledger total() const;

 private:
  std::vector<std::uint64_t> start_, losses_;
  std::map<std::uint32_t, shard_report> shards_;  // by actor
};

// "worker 1: fed 431 = applied 428 + dropped 0 + in flight 3"
std::string to_string(std::uint32_t worker, const worker_ledger& l);

}  // namespace troupe
