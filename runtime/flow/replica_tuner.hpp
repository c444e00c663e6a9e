#pragma once
// Decides how many replicas of stages work that leave it to Troupe (`.replicas = automatic`). Pure:
// it is told what was measured, and says what to change.
//
// A stage whose replicas are busy most of the time is what the others wait for: it gets twice as
// many, on trial, or four times as many where they sleep and cost no core. They stay if more items
// a second go through, or if its replicas are no longer busy all the time (then something else is
// what bounds it); else they are taken back, and it rests. One trial at a time, so that what has
// changed is known. Replicas that have little to do go one by one.
//
// RPT-1  No stage has fewer than one, or more than its most.
// RPT-2  Where nothing changes outside, it comes to rest: a trial that failed is made again after
//        twice the time, up to a minute.
// RPT-3  A stage that computes gets no more while no thread has time left for them.
// Threading: one thread.

#include "troupe/runtime/flow/replica_control.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe {

// Of one stage, up to now.
struct tuned_stage {
  std::uint32_t working = 1, most = 1;
  bool is_tuned = true;    // false: somebody else says how many work
  bool sleeps = false;     // it has threads of its own, or is on other nodes
  bool is_far = false;     // what is known of it comes some times a second
  double busy_ns = 0;      // of all its replicas together
  std::uint64_t done = 0;  // items
};

class replica_tuner {
 public:
  explicit replica_tuner(std::size_t stages) : stages_(stages) {}

  struct change {
    std::size_t stage = 0;
    std::uint32_t working = 1;
  };
  // To be called some times a second. `idle_threads`: of those that compute, the part that was idle
  // since the last look.
  std::optional<change> look(std::int64_t now_ns, std::span<const tuned_stage> now,
                             double idle_threads);
  // Something has stood still: what was measured before says nothing.
  void forget();
  replica_reason reason(std::size_t stage) const noexcept { return stages_[stage].reason; }

 private:
  struct tuned {
    double busy_before = 0;         // at the begin of the window
    std::uint64_t done_before = 0;  // the same
    std::int64_t rests_until_ns = 0, rest_ns = 0;
    std::int64_t spare_since_ns = 0;  // it could do with fewer
    replica_reason reason = replica_reason::suffices;
  };
  void begin_window(std::int64_t now_ns, std::span<const tuned_stage> now);
  std::optional<change> judge(std::int64_t now_ns, const tuned_stage& s);
  std::optional<change> spare(std::int64_t now_ns, std::span<const tuned_stage> now);

  std::vector<tuned> stages_;
  std::int64_t window_ns_ = -1;  // when it began; -1: it has not
  double idle_ = 0, looks_ = 0;  // of the window
  // The trial that is under way.
  bool is_on_trial_ = false;
  std::size_t tried_ = 0;
  std::uint32_t working_before_ = 1;
  double rate_before_ = 0;  // items a nanosecond
};

}  // namespace troupe
