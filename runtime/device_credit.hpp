#pragma once
// Credits whose buffers are written and read in the queues of device streams: what a firing has to wait for on the device, so that nobody waits on the host.
//
// An output may be passed on while its kernel is still in the queue: the item carries its producer's event. A credit that comes back carries its consumer's event, which the next writer
// of the buffer waits for; a buffer is free after both. A consumer on the same stream needs nothing, one on another stream has its stream wait, and only the host's wait for a
// completion message (hand_over_to).
//
//   take()      the writer gets a buffer, and in `waits` what its stream has to wait for before it writes
//   sent()      its work is enqueued: `done` is the event that consumers wait for
//   give_back() a consumer has enqueued its last use; once per consumer of the buffer, in any order
//
// DC-1  A buffer is taken only after every consumer of its last item has given it back.
// DC-2  The waits of a firing cover the last writer of the buffer and all who read it, except what is known to be done and what the writer's own stream orders.
// DC-3  There is at most one wait per stream and firing, for the newest event of that stream (two, where a backend does not number its events).
// DC-4  What a stream has waited for is not waited for again, nor anything older of the same stream (waited_for).
// DC-5  Credits are conserved: free + in use = the number of buffers.
//
// Threading: none; its actor owns it. No events are recorded here, and none are asked unless they are waited for.

#include "devices/device.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace troupe {

// How an item gets from its producer's stream to a consumer. `consumer` null: the host.
enum class hand_over : std::uint8_t { nothing, event, completion };
constexpr hand_over hand_over_to(const device_stream* producer, const device_stream* consumer) noexcept {
  if (consumer == nullptr) return hand_over::completion;
  return consumer == producer ? hand_over::nothing : hand_over::event;
}

// The newest event of each stream (DC-3).
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

// What one stream has waited for (DC-4). A stream that ends is forgotten before its address is used again.
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

// The buffers of one output port.
class device_credit {
 public:
  // `consumers`: of each item; 0: an item is free again once it is sent.
  device_credit(std::uint32_t buffers, std::uint32_t consumers);

  struct taken {
    std::uint32_t buffer = 0;
    newest_events waits;
  };
  // Nothing: every buffer is in use. The buffer that was given back first comes first, since its readers are done soonest.
  std::optional<taken> take();
  void sent(std::uint32_t buffer, device_event done);
  void give_back(std::uint32_t buffer, device_event done);

  std::uint32_t free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }

 private:
  enum class state : std::uint8_t { free, being_written, sent };
  struct slot {
    state now = state::free;
    std::uint32_t out = 0;  // consumers that have it
    newest_events before;   // what the next writer waits for
  };
  std::uint32_t consumers_;
  std::vector<slot> slots_;
  std::vector<std::uint32_t> free_;  // oldest first; as many as there are credits, so a shift is cheap
};

}  // namespace troupe
