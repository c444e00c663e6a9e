#pragma once
// Failures, as whoever has to do something about them keeps them: the root cause, its one line for
// people, and how often somebody may be restarted.
//
// SV-1  The root is the first failure to arrive that is not derived. A derived one (a wait that
//       failed because somebody died) becomes the root only when settle_ns have passed without its
//       cause: deaths are noticed at different times on different nodes.
// SV-2  The user reads one line, whatever the texts contain.
// SV-5  A job that fails again and again without a step forward is given up, after delays that
//       grow; each step forward forgives all failures before it, but for the limit of failures in a
//       window of time.
//
// Threading: pure; one owner. Time is passed in, monotonic, in nanoseconds.

#include <cstdint>
#include <deque>
#include <optional>
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

}  // namespace troupe
