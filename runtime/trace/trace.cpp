#include "troupe/runtime/trace/trace.hpp"

#include <algorithm>

namespace troupe {

void node_recording::add(trace_page page, std::size_t room) {
  if (page.began_ns != 0) began_ns = page.began_ns;
  if (page.ended_ns != 0) ended_ns = page.ended_ns;
  is_whole = is_whole || page.is_last;
  for (auto& p : page.parts) parts.emplace(p.part, std::move(p));
  for (auto& a : page.actors) {
    a.ports.resize(a.outputs.size());
    if (a.number != trace_nobody) actors.emplace(a.number, std::move(a));
  }
  if (lanes.size() < page.lanes.size()) lanes.resize(page.lanes.size());
  auto left = room - std::min(room, events());
  for (std::size_t i = 0; i < page.lanes.size(); ++i) {
    auto &from = page.lanes[i], &to = lanes[i];
    to.name = std::move(from.name);
    to.is_stream = from.is_stream;
    to.is_asleep = from.is_asleep;
    to.running = from.running;
    to.lost += from.lost;
    const auto taken = std::min(left, from.events.size());
    left_out += from.events.size() - taken;
    left -= taken;
    to.events.insert(to.events.end(), from.events.begin(),
                     from.events.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

std::size_t node_recording::events() const noexcept {
  std::size_t n = 0;
  for (const auto& l : lanes) n += l.events.size();
  return n;
}

std::uint64_t node_recording::lost() const noexcept {
  auto n = left_out;
  for (const auto& l : lanes) n += l.lost;
  return n;
}

}  // namespace troupe
