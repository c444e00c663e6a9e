#pragma once
// What can be seen of a stage at any time, at no cost to it: plain counters, each with one writer.
//
// SCT-1  Counters have one writer, the thread that runs the stage's group; anybody reads.
// SCT-2  busy + starved + blocked is the time that a stage was there: what it was neither busy nor
//       blocked (an item in hand, and no room behind it or no unit of a resource) it has waited for
//       items.

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace troupe {

// What a wait or a call is timed by: reading a clock costs as much as a light stage.
inline constexpr std::int64_t coarse_tick_ns = 10'000'000;

// Durations by powers of two, each in eight parts: within 9 % of the true one.
class duration_histogram {
 public:
  void add(std::int64_t ns) noexcept {
    auto& n = counts_[bucket(ns)];
    n.store(n.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (ns > worst_.load(std::memory_order_relaxed)) worst_.store(ns, std::memory_order_relaxed);
  }
  std::uint64_t count() const noexcept {
    std::uint64_t all = 0;
    for (const auto& n : counts_) all += n.load(std::memory_order_relaxed);
    return all;
  }
  // The duration that `part` of all are not above; 0: there was none.
  std::int64_t quantile(double part) const noexcept {
    const auto all = count();
    if (all == 0) return 0;
    const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(all - 1)) + 1;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      seen += counts_[i].load(std::memory_order_relaxed);
      if (seen >= wanted) return upper(i);
    }
    return worst();
  }
  std::int64_t worst() const noexcept { return worst_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t buckets = 64 * 8;
  static std::size_t bucket(std::int64_t ns) noexcept {
    const auto v = static_cast<std::uint64_t>(ns > 0 ? ns : 0);
    if (v < 8) return static_cast<std::size_t>(v);
    const auto log = static_cast<std::size_t>(std::bit_width(v)) - 1;  // from 3 on
    return (log - 2) * 8 + static_cast<std::size_t>(v >> (log - 3) & 7);
  }
  static std::int64_t upper(std::size_t i) noexcept {
    if (i < 8) return static_cast<std::int64_t>(i);
    const auto log = i / 8 + 2;
    return static_cast<std::int64_t>(((8 + i % 8 + 1) << (log - 3)) - 1);
  }
  std::array<std::atomic<std::uint64_t>, buckets> counts_{};
  std::atomic<std::int64_t> worst_{0};
};

struct stage_counters {
  std::atomic<std::uint64_t> items_in{0}, items_out{0}, bytes_in{0}, bytes_out{0};
  std::atomic<std::uint64_t> skipped{0};   // failures that were borne
  std::atomic<std::uint64_t> dropped{0};   // by a lossy edge, or because nobody needs it any more
  std::atomic<std::uint64_t> restarts{0};  // with a fresh state
  std::atomic<std::uint64_t> measured{0};  // calls whose time stands in measured_ns
  std::atomic<std::uint64_t> measured_ns{0};
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> blocked_ns{0};
  std::atomic<bool> is_blocked{false}, is_over{false};
  std::atomic<bool> is_borrowing{false};     // it waits for a resource
  std::atomic<std::uint32_t> last_ticks{0};  // when it was last called, or was blocked
  duration_histogram latency;  // of a stage without outputs: since its items' sources made them

  static void add(std::atomic<std::uint64_t>& c, std::uint64_t n) noexcept {
    c.store(c.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  // An estimate, where only some calls were measured.
  double busy_ns() const noexcept {
    const auto n = measured.load(std::memory_order_relaxed);
    if (n == 0) return 0;
    return static_cast<double>(measured_ns.load(std::memory_order_relaxed)) /
           static_cast<double>(n) * static_cast<double>(calls.load(std::memory_order_relaxed));
  }
};

// Which stage of a group runs now.
struct group_pulse {
  static constexpr std::uint32_t nobody = ~std::uint32_t{0};
  std::atomic<std::uint32_t> running{nobody};
  std::atomic<std::uint32_t> since_ticks{0};
};

}  // namespace troupe
