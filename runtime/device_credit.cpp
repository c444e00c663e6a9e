#include "runtime/device_credit.hpp"

#include <algorithm>

namespace troupe {

void newest_events::add(device_event e) {
  if (!e) return;
  const auto number = e.get()->number;
  for (auto& known : events_) {
    if (known.stream() != e.stream()) continue;
    if (known.get() == e.get()) return;
    if (number == 0 || known.get()->number == 0) continue;  // nobody knows which is newer
    if (number > known.get()->number) known = std::move(e);
    return;
  }
  events_.push_back(std::move(e));
}

std::vector<device_event> waited_for::add(const newest_events& needed) {
  std::vector<device_event> left;
  for (const auto& e : needed.events()) {
    if (e.stream() == own_) continue;
    const auto number = e.get()->number;
    if (number != 0) {
      auto& newest = newest_[e.stream()];
      if (number <= newest) continue;
      newest = number;
    }
    left.push_back(e);
  }
  return left;
}

device_credit::device_credit(std::uint32_t buffers, std::uint32_t consumers) : consumers_(consumers), slots_(buffers) {
  expects(buffers >= 1, "a port has at least one buffer");
  for (std::uint32_t i = 0; i < buffers; ++i) free_.push_back(i);
}

auto device_credit::take() -> std::optional<taken> {
  if (free_.empty()) return std::nullopt;
  taken t{free_.front(), {}};
  free_.erase(free_.begin());
  auto& s = slots_[t.buffer];
  s.now = state::being_written;
  std::swap(t.waits, s.before);
  return t;
}

void device_credit::sent(std::uint32_t buffer, device_event done) {
  expects(buffer < slots_.size() && slots_[buffer].now == state::being_written, "only a buffer that was taken is sent, and once");
  auto& s = slots_[buffer];
  s.now = consumers_ == 0 ? state::free : state::sent;
  s.out = consumers_;
  s.before.add(std::move(done));
  if (consumers_ == 0) free_.push_back(buffer);
}

void device_credit::give_back(std::uint32_t buffer, device_event done) {
  expects(buffer < slots_.size() && slots_[buffer].now == state::sent, "a buffer is given back once by each consumer of its item");
  auto& s = slots_[buffer];
  s.before.add(std::move(done));
  if (--s.out != 0) return;
  s.now = state::free;
  free_.push_back(buffer);
}

}  // namespace troupe
