#pragma once
// How many replicas of a stage work: as the program says it, and as it may change while the
// topology runs.
//
// All replicas that there may be are built before it runs, and their deal gives items to some of
// them. One that gets none any more finishes what it has and waits, with what it has learnt: so
// nothing is moved, and nobody stands still, when their number changes.
//
// RPC-1  A deal gives items to `working` of its replicas, or to as many as are left; a change
//        counts from the next item on.
// Threading: `working` and `reason` are read and written by any thread.

#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

namespace troupe {

// `.replicas` of a stage: a number, between(1, 8), or automatic.
class replica_count {
 public:
  static constexpr std::uint32_t most_of_all = 256;

  template <std::integral N>
  constexpr replica_count(N n) noexcept  // 4 is one
      : at_first_(bounded(n)), most_(at_first_) {}
  constexpr std::uint32_t at_first() const noexcept { return at_first_; }
  constexpr std::uint32_t most() const noexcept { return most_; }
  constexpr bool is_automatic() const noexcept { return is_automatic_; }
  constexpr bool may_change() const noexcept { return is_automatic_ || most_ > at_first_; }
  constexpr bool is_one() const noexcept { return !may_change() && most_ == 1; }
  // Neither none nor too many.
  constexpr bool is_sound() const noexcept {
    return is_automatic_ || (at_first_ >= 1 && at_first_ <= most_ && most_ <= most_of_all);
  }

 private:
  friend constexpr replica_count between(std::int64_t at_first, std::int64_t most) noexcept;
  friend struct automatic_replicas;
  constexpr replica_count() noexcept = default;
  template <std::integral N>
  static constexpr std::uint32_t bounded(N n) noexcept {
    if (std::cmp_less(n, 0)) return 0;
    return std::cmp_greater(n, most_of_all) ? most_of_all + 1 : static_cast<std::uint32_t>(n);
  }

  std::uint32_t at_first_ = 1, most_ = 1;
  bool is_automatic_ = false;
};

// So many at first, which topology::set_replicas() and `troupe topology replicas` change while it
// runs.
constexpr replica_count between(std::int64_t at_first, std::int64_t most) noexcept {
  replica_count c;
  c.at_first_ = replica_count::bounded(at_first);
  c.most_ = replica_count::bounded(most);
  return c;
}

struct automatic_replicas {
  static constexpr replica_count count() noexcept {
    replica_count c;
    c.is_automatic_ = true;
    return c;
  }
};
// One at first; more where a replica is busy all the time and more of them help
// (replica_tuner.hpp). Of a stage that computes up to the number of cores, of one that sleeps up to
// 16, on nodes up to 8.
inline constexpr replica_count automatic = automatic_replicas::count();

// Why so many work.
enum class replica_reason : std::uint8_t {
  as_said,    // by the program, or a tool
  suffices,   // they are not busy all the time
  no_help,    // more of them made it no faster
  no_thread,  // they are busy, and so are all threads
  all,        // there are no more
};

struct replica_control {
  replica_control(std::uint32_t at_first, std::uint32_t all, bool tunes)
      : most(all), is_automatic(tunes), working(at_first), order(all), is_lost(all) {
    for (std::uint32_t i = 0; i < all; ++i) order[i].store(i);
  }
  const std::uint32_t most;
  const bool is_automatic;
  std::atomic<std::uint32_t> working;
  std::atomic<replica_reason> reason{replica_reason::as_said};
  // Somebody has said how many: it is tuned no longer.
  std::atomic<bool> is_set{false};
  // Replicas in the order in which they are asked to work. Where two change their places, a deal
  // may see one of them twice for an item.
  std::vector<std::atomic<std::uint32_t>> order;
  std::vector<std::atomic<bool>> is_lost;  // with their process
  std::atomic<bool> is_moving{false};      // somebody changes the order
  std::atomic<std::uint32_t> moves{0};
};

// The ports of a deal that get items.
inline std::uint32_t working_ports(const replica_control* c, std::uint32_t ports) noexcept {
  if (c == nullptr) return ports;
  const auto n = c->working.load(std::memory_order_relaxed);
  return n < ports ? n : ports;
}

}  // namespace troupe
