#pragma once
// One op on several threads: its work is cut into tiles, and threads of the process that have
// nothing to do take some of them.
//
//   device.team().run(tiles, [&](std::size_t tile, std::size_t worker) -> result<void> { ... });
//
// The caller takes tiles too and returns when all are done, so with nobody idle it does them all,
// one after the other. There are no threads besides those of the streams: what a process was given
// (--threads) is what it uses, whether it has many small ops or few large ones.
//
// Threading: run() from any thread; help() from threads of the process, at most one less than
// threads(). Bodies run at the same time on several threads: they may read what the kernel has, and
// write their own part of the result and what belongs to `worker`. No lock: who takes a tile
// exchanges one number. Who waits for the last tiles, on other threads, sleeps (std::atomic::wait).
//
// TT-1  Each tile runs exactly once, before run() returns; after an error, those that nobody has
//       begun do not.
// TT-2  Two bodies that run at the same time have different workers, below threads(), and at most
//       the number of tiles.
// TT-3  Tiles are cut by shapes alone, never by threads() or by who is idle: so is whatever depends
//       on how they are cut.

#include "troupe/schema/error.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>

namespace troupe {

class tile_team {
 public:
  static constexpr std::size_t tiles_max = 0xFFFF, threads_max = 0xFF;

  // Before anything runs. `wake(n)`: tiles for up to n more threads are here, and who sleeps does
  // not know; on the thread that runs the op.
  void set_up(std::size_t threads, std::function<void(std::size_t)> wake);
  std::size_t threads() const noexcept { return threads_; }

  // The first error of a body (of several at once, any).
  template <class Body>
  result<void> run(std::size_t tiles, Body&& body) {
    if (threads_ > 1 && tiles > 1)
      if (auto* s = take_slot())
        return run_with_others(
            *s, tiles, {&body, [](void* b, std::size_t tile, std::size_t worker) {
                          return (*static_cast<std::remove_reference_t<Body>*>(b))(tile, worker);
                        }});
    for (std::size_t tile = 0; tile < tiles; ++tile)
      if (auto ok = body(tile, std::size_t{0}); !ok) return ok;
    return {};
  }

  // Takes part in whatever runs until it has no tiles left. False: nothing runs that a thread could
  // join.
  bool help() noexcept;
  bool has_work() const noexcept;

 private:
  struct body_ref {
    void* body = nullptr;
    result<void> (*call)(void*, std::size_t tile, std::size_t worker) = nullptr;
  };
  // What is left of a run, in one number, so that who takes a tile knows that the run cannot end
  // before it is done.
  struct state {
    // So that a number that was read long ago is not taken for a new one.
    std::uint32_t generation = 0;
    std::uint8_t workers = 0;  // who have taken part
    std::uint16_t next = 0, tiles = 0;

    static state of(std::uint64_t v) noexcept {
      return {static_cast<std::uint32_t>(v >> 40), static_cast<std::uint8_t>(v >> 32),
              static_cast<std::uint16_t>(v >> 16), static_cast<std::uint16_t>(v)};
    }
    std::uint64_t word() const noexcept {
      return std::uint64_t{generation} << 40 | std::uint64_t{workers} << 32 |
             std::uint64_t{next} << 16 | tiles;
    }
    bool has_tiles() const noexcept { return next < tiles; }
  };
  struct alignas(64) slot {
    std::atomic<bool> is_taken{false};
    std::atomic<std::uint64_t> word{0};
    body_ref body;  // written before the tiles are there, read by who has taken one
    alignas(64) std::atomic<std::uint32_t> done{0};
    std::atomic<bool> has_failed{false};
    std::optional<error> failure;
  };

  slot* take_slot() noexcept;
  result<void> run_with_others(slot& s, std::size_t tiles, body_ref body);
  void run_tile(slot& s, std::size_t tile, std::size_t worker, std::size_t tiles) noexcept;
  bool join(slot& s) noexcept;

  // Ops that run so at once; further ones find nobody idle anyway.
  static constexpr std::size_t slots = 8;
  std::size_t threads_ = 1;
  std::function<void(std::size_t)> wake_;
  std::array<slot, slots> slots_;
};

// `items` cut into tiles of `each` items, the last one smaller.
struct tile_cut {
  std::int64_t items = 0, each = 1;

  // Pieces of a whole number of `grain` items that cost at least `least` each, where an item costs
  // `cost`, and at most 16 of them.
  static tile_cut by_cost(std::int64_t items, double cost, double least,
                          std::int64_t grain = 1) noexcept;
  std::size_t tiles() const noexcept { return static_cast<std::size_t>((items + each - 1) / each); }
  std::int64_t begin(std::size_t tile) const noexcept {
    return static_cast<std::int64_t>(tile) * each;
  }
  std::int64_t size(std::size_t tile) const noexcept {
    return items - begin(tile) < each ? items - begin(tile) : each;
  }
};

}  // namespace troupe
