#include "troupe/devices/host/tile_team.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

namespace troupe {

void tile_team::set_up(std::size_t threads, std::function<void(std::size_t)> wake) {
  threads_ = std::clamp<std::size_t>(threads, 1, threads_max);
  wake_ = std::move(wake);
}

tile_team::slot* tile_team::take_slot() noexcept {
  for (auto& s : slots_)
    if (!s.is_taken.load(std::memory_order_relaxed) &&
        !s.is_taken.exchange(true, std::memory_order_acquire))
      return &s;
  return nullptr;
}

result<void> tile_team::run_with_others(slot& s, std::size_t tiles, body_ref body) {
  expects(tiles <= tiles_max, "a run of tiles counts them in 16 bits");
  s.body = body;
  s.done.store(0, std::memory_order_relaxed);
  s.has_failed.store(false, std::memory_order_relaxed);
  auto first = state::of(s.word.load(std::memory_order_relaxed));
  s.word.store(state{first.generation + 1, 1, 0, static_cast<std::uint16_t>(tiles)}.word(),
               std::memory_order_seq_cst);
  if (wake_) wake_(std::min(threads_, tiles) - 1);
  for (;;) {
    auto seen = s.word.load(std::memory_order_relaxed);
    auto left = state::of(seen);
    if (!left.has_tiles()) break;
    const std::size_t tile = left.next++;
    if (s.word.compare_exchange_weak(seen, left.word(), std::memory_order_acquire))
      run_tile(s, tile, 0, tiles);
  }
  for (auto done = s.done.load(std::memory_order_acquire); done < tiles;
       done = s.done.load(std::memory_order_acquire))
    s.done.wait(done, std::memory_order_acquire);
  result<void> ended;
  if (s.has_failed.load(std::memory_order_relaxed)) ended = std::move(*s.failure);
  s.is_taken.store(false, std::memory_order_release);
  return ended;
}

void tile_team::run_tile(slot& s, std::size_t tile, std::size_t worker,
                         std::size_t tiles) noexcept {
  if (!s.has_failed.load(std::memory_order_relaxed)) {
    auto ok = [&]() -> result<void> {
      try {
        return s.body.call(s.body.body, tile, worker);
      } catch (const std::exception& e) {
        return error(error_code::failed, e.what());
      } catch (...) {
        return error(error_code::failed, "an exception of unknown type");
      }
    }();
    if (!ok && !s.has_failed.exchange(true, std::memory_order_relaxed))
      s.failure = std::move(ok.error());
  }
  if (s.done.fetch_add(1, std::memory_order_acq_rel) + 1 == tiles) s.done.notify_one();
}

bool tile_team::join(slot& s) noexcept {
  auto seen = s.word.load(std::memory_order_acquire);
  auto left = state::of(seen);
  if (!left.has_tiles() || left.workers >= threads_) return false;
  const std::size_t worker = left.workers++;
  std::size_t tile = left.next++;
  // Somebody was faster: look again.
  if (!s.word.compare_exchange_strong(seen, left.word(), std::memory_order_acq_rel)) return true;
  for (;;) {
    const auto generation = left.generation;
    const std::size_t tiles = left.tiles;
    run_tile(s, tile, worker, tiles);
    do {
      seen = s.word.load(std::memory_order_acquire);
      left = state::of(seen);
      if (left.generation != generation || !left.has_tiles()) return true;
      tile = left.next++;
    } while (!s.word.compare_exchange_weak(seen, left.word(), std::memory_order_acq_rel));
  }
}

bool tile_team::help() noexcept {
  return std::any_of(slots_.begin(), slots_.end(), [this](slot& s) { return join(s); });
}

bool tile_team::has_work() const noexcept {
  return std::any_of(slots_.begin(), slots_.end(), [this](const slot& s) {
    const auto left = state::of(s.word.load(std::memory_order_seq_cst));
    return left.has_tiles() && left.workers < threads_;
  });
}

tile_cut tile_cut::by_cost(std::int64_t items, double cost, double least,
                           std::int64_t grain) noexcept {
  constexpr std::int64_t pieces_max = 16;
  const auto grains = std::max<std::int64_t>(1, (items + grain - 1) / grain);
  const auto pieces = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::min(static_cast<double>(items) * cost / least, 1e9)), 1,
      std::min(pieces_max, grains));
  return {items, (grains + pieces - 1) / pieces * grain};
}

}  // namespace troupe
