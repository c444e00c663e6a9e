#pragma once
// Events of several streams: what has to be waited for, and what has been.
//
// DE-1  There is at most one wait for each stream, for its newest event (two, where a backend does
//       not number its events).
// DE-2  What a stream has waited for is not waited for again, nor anything older of the same stream
//       (waited_for).
//
// Threading: none; one owner.

#include "troupe/devices/device/device.hpp"

#include <cstdint>
#include <map>
#include <vector>

namespace troupe {

// The newest event of each stream (DE-1).
class newest_events {
 public:
  void add(device_event e);
  void add(const newest_events& o) {
    for (const auto& e : o.events_) add(e);
  }
  const std::vector<device_event>& events() const noexcept { return events_; }
  void clear() noexcept { events_.clear(); }

 private:
  std::vector<device_event> events_;
};

// What one stream has waited for (DE-2). A stream that ends is forgotten before its address is used
// again.
class waited_for {
 public:
  explicit waited_for(const device_stream* own) noexcept : own_(own) {}
  // What of `needed` is still to be waited for; counts as waited for from now on.
  std::vector<device_event> add(const newest_events& needed);
  void forget(const device_stream* s) { newest_.erase(s); }

 private:
  const device_stream* own_;
  std::map<const device_stream*, std::uint64_t> newest_;
};

}  // namespace troupe
