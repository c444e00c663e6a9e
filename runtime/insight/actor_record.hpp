#pragma once
// What can be seen of one actor at any time: counters, state, and the wait it is in.
//
// What can be seen is the protocol itself. The actor's own thread writes
// plain counters (a relaxed store each, never a locked instruction); anybody reads. Times are
// coarse ticks that the node's clock advances, since reading a clock costs as much as a small op.
//
// AR-1  Every counter has one writer, the thread that runs the actor.
// AR-2  A wait names its port; the port names the actor at the other end. So "why" is a walk over
//       records.

#include "troupe/runtime/firing/credit.hpp"
#include "troupe/runtime/insight/busy_mean.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/ids.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// Coarse time of a node: one writer (its clock's timer), any reader.
class coarse_clock {
 public:
  static constexpr std::uint64_t tick_ns = 10'000'000;
  std::uint32_t now() const noexcept { return ticks_.load(std::memory_order_relaxed); }
  void set(std::uint64_t now_ns) noexcept {
    ticks_.store(static_cast<std::uint32_t>(now_ns / tick_ns), std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> ticks_{0};
};

struct port_record {
  bool is_input = false;
  std::uint32_t index = 0;  // port of the actor
  std::string peer;         // actor name in the same job; "program" for feeds and fetches
  std::string peer_task;    // where the peer runs, for people
  const edge_credit* credit = nullptr;  // of the edge, where both ends are in this process
  std::uint32_t credits_max = 0;
  // A wait here lasts by design: runtime/analysis/sparse_edges.hpp.
  bool is_sparse = false;
  std::atomic<std::uint32_t> queued{0};  // items that wait at this input port
  // Items that have come to this input port, or gone out by this output port: where the two ends
  // differ, some are on their way. And credits that this input port has given back to another
  // process.
  std::atomic<std::uint64_t> items{0}, returned{0};
  void count_item() noexcept { add(items, 1); }
  void count_return(std::uint64_t n = 1) noexcept { add(returned, n); }
  // Where `credit` is null: what the actor itself counts (remote edges, the program)
  std::atomic<std::int32_t> credits_left{0};

 private:
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

class actor_record {
 public:
  actor_record(actor_kind kind, std::string name, std::string job, const coarse_clock& clock)
      : kind(kind),
        name(std::move(name)),
        job(std::move(job)),
        clock_(clock),
        since_(clock.now()) {}

  const actor_kind kind;
  const std::string name;
  const std::string job;
  std::vector<std::unique_ptr<port_record>> ports;  // filled before the actor starts, then constant
  std::shared_ptr<const void> keeps;                // what the ports' credits live in
  // They come first among the ports.
  std::size_t inputs() const noexcept {
    std::size_t n = 0;
    while (n < ports.size() && ports[n]->is_input) ++n;
    return n;
  }

  // Of ops whose cost nobody knows before (runtime/analysis/op_times.hpp): what their kernel took.
  void count_kernel(std::int64_t ns) noexcept {
    add(kernel_runs, 1), add(kernel_ns, static_cast<std::uint64_t>(ns > 0 ? ns : 0));
  }
  // Written by the actor.
  void count_in(std::uint64_t bytes) noexcept { add(messages_in, 1), add(bytes_in, bytes); }
  void count_out(std::uint64_t bytes) noexcept { add(messages_out, 1), add(bytes_out, bytes); }
  // A wait that follows is a new one, also for an actor that never ran in between.
  void count_step() noexcept { add(steps, 1), begin_again(); }
  // The same where a step is not complete: a round of a loop.
  void begin_again() noexcept { since_.store(clock_.now(), std::memory_order_relaxed); }
  void set_queued(std::uint32_t n) noexcept { queue.store(n, std::memory_order_relaxed); }
  // Entering the state it is in already keeps the time it began.
  void enter(actor_state s, std::uint32_t port = 0) noexcept {
    const auto word = pack(s, port);
    if (state_.load(std::memory_order_relaxed) == word) return;
    state_.store(word, std::memory_order_relaxed);
    since_.store(clock_.now(), std::memory_order_relaxed);
  }
  // The word of the state before comes back.
  std::uint32_t enter_running() noexcept {
    const auto before = word();
    enter(actor_state::running);
    return before;
  }

  // A wait for the memory that `reader`, an actor of the plan, is yet to be done with. Counts as
  // one for a credit.
  void enter_buffer_wait(std::uint32_t reader) noexcept {
    enter(actor_state::waiting_for_credit, buffer_wait | reader);
  }

  // State << 24 | port: what a timeline keeps of a wait.
  std::uint32_t word() const noexcept { return state_.load(std::memory_order_relaxed); }
  actor_state state() const noexcept { return state_of(word()); }
  std::uint32_t waiting_port() const noexcept { return port_of(word()); }  // index into ports
  static actor_state state_of(std::uint32_t word) noexcept {
    return static_cast<actor_state>(word >> 24);
  }
  static std::uint32_t port_of(std::uint32_t word) noexcept { return word & 0xffffff; }
  static bool is_buffer_wait(std::uint32_t word) noexcept {
    return state_of(word) == actor_state::waiting_for_credit && (word & buffer_wait) != 0;
  }
  std::optional<std::uint32_t> waiting_reader() const noexcept {
    const auto port = waiting_port();
    return state() == actor_state::waiting_for_credit && (port & buffer_wait) != 0
               ? std::optional(port & ~buffer_wait)
               : std::nullopt;
  }
  double seconds_in_state() const noexcept {
    const auto since = since_.load(std::memory_order_relaxed);  // first: never later than now
    return double(clock_.now() - since) * double(coarse_clock::tick_ns) * 1e-9;
  }

  std::atomic<std::uint64_t> messages_in{0}, messages_out{0}, bytes_in{0}, bytes_out{0}, steps{0};
  std::atomic<std::uint64_t> kernel_runs{0}, kernel_ns{0};
  std::atomic<std::uint64_t> iteration{0};  // of the condition of a loop: that of its last firing
  std::atomic<std::uint32_t> queue{0};
  busy_mean busy;  // of the node's sampler, which alone writes and reads it

 private:
  static constexpr std::uint32_t buffer_wait = 0x800000;
  static_assert(plan_actors_max <= buffer_wait);
  static std::uint32_t pack(actor_state s, std::uint32_t port) noexcept {
    return static_cast<std::uint32_t>(s) << 24 | (port & 0xffffff);
  }
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  const coarse_clock& clock_;
  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> since_;
};

}  // namespace troupe
