#include "troupe/devices/device/device_events.hpp"

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

}  // namespace troupe
