#include "troupe/runtime/flow/lender.hpp"

#include <utility>

namespace troupe {

lender::lender(std::string name, std::uint32_t units)
    : name_(std::move(name)), holders_(units), served_(units) {}

std::optional<std::uint32_t> lender::try_take(std::uint64_t who) noexcept {
  auto turn = next_.load();
  while (turn < served_.load())
    if (next_.compare_exchange_weak(turn, turn + 1)) return pick(who, turn);
  return std::nullopt;
}

std::uint32_t lender::take(std::uint64_t who) noexcept {
  const auto turn = next_.fetch_add(1);
  for (auto served = served_.load(); served <= turn; served = served_.load()) served_.wait(served);
  return pick(who, turn);
}

// One of them is here: there are as many turns at once as units.
std::uint32_t lender::pick(std::uint64_t who, std::uint64_t turn) noexcept {
  for (std::uint32_t i = 0;; i = (i + 1) % units()) {
    auto& h = holders_[i];
    std::uint64_t nobody = 0;
    if (h.who.load() != 0 || !h.who.compare_exchange_strong(nobody, who)) continue;
    h.turn.store(turn);
    return i;
  }
}

void lender::give_back(std::uint32_t unit) noexcept {
  holders_[unit].who.store(0);
  served_.fetch_add(1);
  served_.notify_all();
}

std::uint32_t lender::lent() const noexcept {
  std::uint32_t n = 0;
  for (const auto& h : holders_) n += h.who.load() != 0 ? 1 : 0;
  return n;
}

std::uint32_t lender::waiting() const noexcept {
  const auto served = served_.load(), next = next_.load();
  return next > served ? static_cast<std::uint32_t>(next - served) : 0;
}

std::uint64_t lender::holder() const noexcept {
  std::uint64_t who = 0, first = 0;
  for (const auto& h : holders_) {
    const auto w = h.who.load(), turn = h.turn.load();
    if (w != 0 && (who == 0 || turn < first)) who = w, first = turn;
  }
  return who;
}

}  // namespace troupe
