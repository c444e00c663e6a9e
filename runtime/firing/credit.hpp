#pragma once
// The credit of an edge inside a process: a counter, and a promise of at most one message.
//
// A producer starts with N credits, one per output buffer of the edge. Sending an item uses one,
// the consumer's return gives it back. As long as credits are free, neither side sends the other a
// message about them; only a producer that found none is told, once, about the next one.
//
//   producer   take()  true: it holds a credit and may fill a buffer and send. false: it waits. It
//                      must not take again until the `credit` message comes; that message *is* the
//                      credit, so it then sends without another take().
//   consumer   give()  true: the producer waits, so send it one `credit` message. false: nothing to
//                      do.
//
// The counter is the number of free credits, or -1 while the producer waits: the failed take() has
// already taken the next credit out of the counter, and the give() that fills the hole passes it on
// as the message.
//
// CR-1  Credits are conserved: free + in use = N, where in use counts items sent and not given
//       back, credits held by the producer, and `credit` messages on their way.
// CR-2  At most one waiter and at most one `credit` message on its way; the counter is in -1..N.
// CR-3  A waiting producer is told exactly once, by the first give() after its failed take(): no
//       wake-up is lost.
// CR-4  A buffer is written again only after its reader is done: take() acquires what give()
//       released.
//
// Threading: one producer and one consumer at a time, on any two threads; free() and is_waiting()
// from any thread. Where many edges lie side by side, their owner decides about cache lines: both
// ends write this word.

#include "troupe/schema/error.hpp"

#include <atomic>
#include <cstdint>

namespace troupe {

class edge_credit {
 public:
  // `initial` in 1..credits_max (runtime/plan/plan.hpp).
  explicit edge_credit(std::int32_t initial) : count_(initial), initial_(initial) {
    expects(initial >= 1, "an edge has at least one credit");
  }
  edge_credit(const edge_credit&) = delete;
  edge_credit& operator=(const edge_credit&) = delete;

  // Producer only, and not while it waits.
  [[nodiscard]] bool take() {
    const auto before = count_.fetch_sub(1, std::memory_order_acq_rel);
    expects(before >= 0, "a producer that waits for a credit takes none");
    return before > 0;
  }

  // Consumer only, once for each item that it received.
  [[nodiscard]] bool give() {
    const auto before = count_.fetch_add(1, std::memory_order_acq_rel);
    expects(before < initial_, "a consumer gives back no more credits than it received items");
    return before == -1;
  }

  // Inspection: true at one moment, maybe not at the next.
  std::int32_t free() const noexcept {
    const auto now = count_.load(std::memory_order_relaxed);
    return now > 0 ? now : 0;
  }
  bool is_waiting() const noexcept { return count_.load(std::memory_order_relaxed) < 0; }
  std::int32_t initial() const noexcept { return initial_; }

 private:
  std::atomic<std::int32_t> count_;
  const std::int32_t initial_;
};

}  // namespace troupe
