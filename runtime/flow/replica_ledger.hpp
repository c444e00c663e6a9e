#pragma once
// What the gather of replicas tells their deal, which is on another thread: what is done, and so
// need not be kept any longer (kept_replicas.hpp, recovered_replicas.hpp).
//
// Threading: two threads, the gather's, which writes, and the deal's, which reads.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/stage.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace troupe {

// At the end, a deal looks so often whether all is done.
inline constexpr std::int64_t deal_looks_each_ns = 1'000'000;

// Tickets count round; those that are under way are close together.
inline bool is_before(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) < 0;
}
inline std::uint32_t ticket_after(std::uint32_t ticket) noexcept {
  return ticket + 1 == no_port ? 0 : ticket + 1;
}

// A lane's state after so many of its tickets.
struct lane_cut {
  std::uint64_t tickets = 0;
  tensor state;
};

class replica_ledger {
 public:
  // One of both is 0.
  replica_ledger(std::size_t kept, std::size_t lanes) : ended(kept), lanes_(lanes) {}
  replica_ledger(const replica_ledger&) = delete;
  replica_ledger& operator=(const replica_ledger&) = delete;
  ~replica_ledger() {
    for (auto& l : lanes_) delete l.newest.load();
  }

  // Some replica is in another process. Set before any of them runs.
  bool can_lose = false;
  // Of kept replicas: tickets, by replica.
  std::vector<std::atomic<std::uint64_t>> ended;
  // When a lane is asked for a cut: as many bytes kept, or so long after the last one.
  std::uint64_t cut_bytes = std::uint64_t{1} << 20;
  std::int64_t cut_ns = 1'000'000'000;

  bool has_lanes() const noexcept { return !lanes_.empty(); }
  void tell(std::size_t lane, lane_cut cut) {
    auto& l = lanes_[lane];
    delete l.newest.exchange(new lane_cut(std::move(cut)));
    l.cuts.fetch_add(1);
  }
  // The newest one since the last call; null: there was none.
  std::unique_ptr<lane_cut> take(std::size_t lane) {
    auto& newest = lanes_[lane].newest;
    return std::unique_ptr<lane_cut>(newest.load() != nullptr ? newest.exchange(nullptr) : nullptr);
  }
  std::uint64_t cuts(std::size_t lane) const noexcept { return lanes_[lane].cuts.load(); }
  // The lane cannot be made again: it has not said its state.
  void give_up(std::size_t lane) noexcept { lanes_[lane].is_given_up.store(true); }
  bool is_given_up(std::size_t lane) const noexcept { return lanes_[lane].is_given_up.load(); }
  void end(std::size_t lane) noexcept { lanes_[lane].has_ended.store(true); }
  bool has_ended(std::size_t lane) const noexcept { return lanes_[lane].has_ended.load(); }

 private:
  struct lane {
    std::atomic<lane_cut*> newest{nullptr};
    std::atomic<std::uint64_t> cuts{0};
    std::atomic<bool> has_ended{false}, is_given_up{false};
  };
  std::vector<lane> lanes_;
};

}  // namespace troupe
