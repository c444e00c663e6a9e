#pragma once
// What a thread records of itself while somebody wants to know: what it ran, for which step, from
// when to when.
//
// Each worker of a process has a lane. While nobody records, a firing looks at one pointer, which
// is null, beside a counter that it writes anyway. While somebody does, it reads the clock once and
// writes 40 bytes into a ring that only its thread writes.
//
//   writer: the worker's thread      slice(), falls_asleep(), wakes(), transfer()
//   reader: the node's actor         switch_on(), switch_off(), and read() with a cursor of its own
//                                    for each who records
//
// A stream of a device has a lane too, whose writer is the thread that enqueues there: it writes
// what the stream tells it (device_work(), knows_until()), which is later than it ran.
//
// RI-1  A writer never waits: when a ring is full the oldest event is written over.
// RI-2  A reader gets each event whole, once and in order, or counts it as lost: what it got and
//       what it lost are what was written since its cursor began.
// RI-3  Slices of a lane do not overlap and come in the order of time: one begins where the one
//       before it ended, or where its thread woke up, so a firing costs one look at the clock. Its
//       time includes taking the message that made it fire out of the mailbox. Those of a device's
//       stream begin and end as its work did.
// RI-4  A ring's memory comes with the first switch_on() and stays with the lane, since its writer
//       may be in the midst of an event when it is switched off. The system gives pages of it as
//       they are written.
//
// Threading: as above. Readers may be many; all are on the node's thread.

#include "troupe/schema/error.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace troupe {

// The numbers are on the wire.
enum class trace_kind : std::uint8_t {
  // Of an actor of a plan: it took an item of `step` at each input (or at `where`), and emitted one
  // at each output.
  firing = 1,
  apply = 2,  // of a shard: it took gradients of `step` at each input (or at `where`)
  emit = 3,   // of a shard: it emitted an item of `step` at output port `where`
  open = 4,   // an actor made its kernels
  // A tensor of `step` was between the link and the peer's acknowledgement; these overlap.
  transfer = 5,
  // An actor that belongs to no plan handled messages; `subject` is its name, a text that lives as
  // long as the program.
  turn = 6,
  idle = 7,  // the thread slept
  // A device ran one of an actor's kernels: number `where`; everywhere: the actor has but this.
  kernel = 8,
  replay = 9,  // a device ran a captured step of an actor: `where` kernels
  copy = 10,   // a device copied `bytes` for an actor
};
inline constexpr std::uint8_t trace_kind_last = 10;
constexpr bool has_bytes(trace_kind k) noexcept {
  return k == trace_kind::transfer || k == trace_kind::copy;
}
constexpr bool is_device_work(trace_kind k) noexcept {
  return k == trace_kind::kernel || k == trace_kind::replay || k == trace_kind::copy;
}

struct trace_event {
  static constexpr std::uint32_t everywhere = 0xffffff;

  std::int64_t begin_ns = 0, end_ns = 0;  // of the lane's clock
  trace_kind kind = trace_kind::idle;
  std::uint64_t subject = 0;  // part << 32 | actor + 1; of a turn an address
  std::uint64_t step = 0;
  std::uint32_t where = everywhere;  // a port, or as the kind says
  // What the actor waited for before: actor_record's word of state and port.
  std::uint32_t waited = 0;
  std::uint64_t bytes = 0;  // of a transfer or a copy

  friend bool operator==(const trace_event&, const trace_event&) = default;
};

// The last `capacity` events of one thread.
class trace_ring {
 public:
  explicit trace_ring(std::size_t capacity)
      : mask_(capacity - 1), words_(new std::uint64_t[capacity * event_words]) {
    expects(std::has_single_bit(capacity) && capacity >= 2, "a ring's capacity is a power of two");
  }

  // --- writer ------------------------------------------------------------------------------------
  // Every store releases what came before it, above all the count: a reader that sees a word of an
  // event sees that the event in whose place it stands was given up. On most processors that costs
  // nothing.
  void write(const trace_event& e) noexcept {
    const auto n = written_.load(std::memory_order_relaxed);
    auto* to = &words_[(n & mask_) * event_words];
    const std::uint64_t words[] = {static_cast<std::uint64_t>(e.begin_ns),
                                   static_cast<std::uint64_t>(e.end_ns), e.subject, e.step,
                                   packed(e)};
    for (std::size_t i = 0; i < event_words; ++i)
      std::atomic_ref(to[i]).store(words[i], std::memory_order_release);
    written_.store(n + 1, std::memory_order_release);
  }

  // --- reader ------------------------------------------------------------------------------------
  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }

  // At most `max` events behind `cursor`, the number of those that were read or lost so far, which
  // moves on. Says how many were lost.
  std::uint64_t read(std::uint64_t& cursor, std::size_t max, std::vector<trace_event>& out) const {
    const auto oldest = first_whole(written());
    auto lost = oldest > cursor ? oldest - cursor : 0;
    cursor += lost;
    const auto first = cursor, last = std::min<std::uint64_t>(written(), first + max);
    const auto before = out.size();
    for (; cursor < last; ++cursor) out.push_back(at(cursor));
    // What the writer came to meanwhile may be torn.
    const auto whole = first_whole(written());
    const auto torn = whole > first ? std::min(whole, last) - first : 0;
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(before),
              out.begin() + static_cast<std::ptrdiff_t>(before + torn));
    return lost + torn;
  }

 private:
  static constexpr std::size_t event_words = 5;

  // The last word: 8 bits of kind, then 56 of bytes, or 24 of the port and 32 of the wait.
  static std::uint64_t packed(const trace_event& e) noexcept {
    const auto rest =
        has_bytes(e.kind) ? e.bytes : (e.where & 0xffffff) | std::uint64_t{e.waited} << 24;
    return static_cast<std::uint64_t>(e.kind) | rest << 8;
  }

  // The writer may be at number `written`, in the place of the one a whole ring before.
  std::uint64_t first_whole(std::uint64_t written) const noexcept {
    return written > mask_ ? written - mask_ : 0;
  }

  trace_event at(std::uint64_t number) const noexcept {
    auto* from = &words_[(number & mask_) * event_words];
    std::array<std::uint64_t, event_words> w{};
    for (std::size_t i = 0; i < event_words; ++i)
      w[i] = std::atomic_ref(from[i]).load(std::memory_order_acquire);
    trace_event e{static_cast<std::int64_t>(w[0]), static_cast<std::int64_t>(w[1]),
                  static_cast<trace_kind>(w[4] & 0xff), w[2], w[3]};
    if (has_bytes(e.kind)) {
      e.bytes = w[4] >> 8;
    } else {
      e.where = static_cast<std::uint32_t>(w[4] >> 8) & 0xffffff;
      e.waited = static_cast<std::uint32_t>(w[4] >> 32);
    }
    return e;
  }

  const std::uint64_t mask_;
  const std::unique_ptr<std::uint64_t[]> words_;  // not initialised, so not yet in memory
  std::atomic<std::uint64_t> written_{0};
};

// A worker's ring and whether it is written.
class trace_lane {
 public:
  // Events of a stream: two steps of 100 op actors in flight are one per 200 ns; 2^18 hold 50 ms of
  // that, in 10 MiB.
  static constexpr std::size_t stream_events = std::size_t{1} << 18,
                               worker_events = std::size_t{1} << 15;
  // Of a device's stream: kernels of 3 us are as many in 200 ms; in 2.5 MiB.
  static constexpr std::size_t device_events = std::size_t{1} << 16;

  trace_lane(std::function<std::int64_t()> now_ns, std::size_t capacity)
      : now_ns_(std::move(now_ns)), capacity_(capacity) {}
  trace_lane(const trace_lane&) = delete;
  trace_lane& operator=(const trace_lane&) = delete;

  // --- writer ------------------------------------------------------------------------------------
  bool is_on() const noexcept { return ring_.load(std::memory_order_acquire) != nullptr; }
  std::int64_t now_ns() const { return now_ns_(); }

  // What the thread did since the slice before.
  void slice(trace_kind kind, std::uint64_t subject, std::uint64_t step = 0,
             std::uint32_t where = trace_event::everywhere, std::uint32_t waited = 0) {
    if (auto* ring = ring_.load(std::memory_order_acquire)) [[unlikely]]
      write_slice(*ring, kind, subject, step, where, waited);
  }
  // What came before and made nothing fire belongs to no slice.
  void falls_asleep() {
    if (is_on()) last_ns_ = now_ns_();
    is_asleep_.store(true, std::memory_order_relaxed);
  }
  void wakes() {
    is_asleep_.store(false, std::memory_order_relaxed);
    slice(trace_kind::idle, 0);
  }
  void transfer(std::int64_t begin_ns, std::uint64_t subject, std::uint64_t step,
                std::uint64_t bytes) {
    if (auto* ring = ring_.load(std::memory_order_acquire))
      ring->write({begin_ns, now_ns_(), trace_kind::transfer, subject, step,
                   trace_event::everywhere, 0, bytes});
  }

  // Of a device's stream.
  void device_work(const trace_event& e) {
    if (auto* ring = ring_.load(std::memory_order_acquire)) ring->write(e);
  }
  // All that had ended by then has been written, or was not to be.
  void knows_until(std::int64_t ns) noexcept {
    known_until_ns_.store(ns, std::memory_order_release);
  }

  // --- reader ------------------------------------------------------------------------------------
  std::int64_t known_until_ns() const noexcept {
    return known_until_ns_.load(std::memory_order_acquire);
  }
  void switch_on(std::int64_t now_ns) {
    if (memory_ == nullptr) memory_ = std::make_unique<trace_ring>(capacity_);
    on_since_ns_.store(now_ns, std::memory_order_relaxed);
    ring_.store(memory_.get(), std::memory_order_release);
  }
  void switch_off() noexcept { ring_.store(nullptr, std::memory_order_relaxed); }
  bool is_asleep() const noexcept { return is_asleep_.load(std::memory_order_relaxed); }
  const trace_ring* ring() const noexcept { return memory_.get(); }  // null: never switched on

 private:
  void write_slice(trace_ring& ring, trace_kind kind, std::uint64_t subject, std::uint64_t step,
                   std::uint32_t where, std::uint32_t waited) {
    // What began before it was switched on is cut off there.
    const auto now = now_ns_(),
               begin =
                   std::min(now, std::max(last_ns_, on_since_ns_.load(std::memory_order_relaxed)));
    ring.write({begin, now, kind, subject, step, where, waited});
    last_ns_ = now;
  }

  std::atomic<trace_ring*> ring_{nullptr};
  std::atomic<std::int64_t> on_since_ns_{0}, known_until_ns_{0};
  std::int64_t last_ns_ = 0;  // the writer's: where its last slice ended
  std::atomic<bool> is_asleep_{false};
  const std::function<std::int64_t()> now_ns_;
  std::unique_ptr<trace_ring> memory_;  // the reader's
  const std::size_t capacity_;
};

}  // namespace troupe
