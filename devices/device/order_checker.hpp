#pragma once
// Finds uses of memory that no order protects, from what is enqueued alone: also those that
// happened to go well this time.
//
// Each stream has a vector clock, and so has the host, which counts as one. Work of a stream moves
// its own clock on; an event is the clock of its moment; waiting for an event, or learning on the
// host that it is done, takes over what it knows; enqueueing takes over what the host knows. Two
// uses of a byte are ordered if the clock of the later one's stream has reached the earlier one
// (Fidge 1988; the last writer and the newest reader of each stream, as in DJIT+).
//
//   found                 when
//   read_of_unfinished    a stream reads what another one writes, and has not waited for it
//   write_over_unfinished a stream writes what another one writes, and has not waited for it
//   write_under_reader    a stream writes what another one reads, and has not waited for it
//   use_after_free        a use of what has been freed, also in order
//   free_in_use           memory is freed on a stream that has not waited for its last writer and
//                         all its readers
//
// OC-1  A use that every order of the enqueued work would make safe is never reported.
// OC-2  A use that some order would make unsafe is reported at the call that makes it so, with both
//       ops, both streams and the range.
// OC-3  Per pair of ops and kind there is one report; at most `reports_max` are kept, the rest are
//       counted.
//
// The host counts as one even where several of its threads enqueue, so an order that only one of
// them knows is not missed by the others. Handing memory over between streams is the allocator's
// promise (DV-3): allocated() forgets what was before.
// Threading: any thread; it holds a lock. Passed to a device when that is made, and outlives it.

#include "troupe/devices/device/device.hpp"

#include <map>
#include <mutex>

namespace troupe {

class order_checker {
 public:
  enum class kind : std::uint8_t {
    read_of_unfinished,
    write_over_unfinished,
    write_under_reader,
    use_after_free,
    free_in_use
  };
  struct report {
    kind what;
    // The later use, and the one it had to wait for.
    std::string op, stream, other_op, other_stream;
    const std::byte* begin = nullptr;
    std::size_t size_bytes = 0;
    std::string text() const;
  };
  static constexpr std::size_t reports_max = 64;

  // A stream's number, for the calls below. The host is number 0.
  std::uint32_t add_stream(std::string name);
  static constexpr std::uint32_t host = 0;

  // --- in the order in which it is enqueued ---
  void work(std::uint32_t stream, std::string_view op, const touched& what);
  void recorded(std::uint32_t stream, const device_event::state* e);
  void waits(std::uint32_t stream, const device_event::state* e);
  void allocated(std::uint32_t stream, std::span<const std::byte> bytes);
  void freed(std::uint32_t stream, std::span<const std::byte> bytes);
  // What the host will know once a host function that is enqueued now is called; pass it to
  // host_called() then.
  using clock = std::vector<std::uint64_t>;
  clock moment(std::uint32_t stream) const;

  // --- the host ---
  void host_called(const clock& moment);
  void host_learned(const device_event::state* e);
  void host_uses(std::string_view op, const touched& what) { work(host, op, what); }

  std::vector<report> reports() const;
  std::uint64_t found() const;  // also those beyond reports_max

 private:
  struct use {
    std::uint32_t stream = 0;
    std::uint64_t time = 0;  // 0: nobody
    std::string op;
  };
  struct range {
    const std::byte* end = nullptr;
    use writer;
    std::vector<use> readers;  // since the last write: the newest of each stream
    bool is_freed = false;
  };
  using ranges = std::map<const std::byte*, range>;

  bool has_seen(std::uint32_t stream, const use& u) const;
  void split(const std::byte* at);
  void read(const use& now, std::span<const std::byte> bytes);
  void write(const use& now, std::span<const std::byte> bytes, bool is_free);
  void add(kind k, const use& now, const use& other, const std::byte* begin, const std::byte* end);
  use begin_use(std::uint32_t stream, std::string_view op);
  template <class F>
  void each(std::span<const std::byte> bytes, F f);

  mutable std::mutex lock_;
  std::vector<std::string> names_{"host"};
  std::vector<clock> clocks_{clock(1, 0)};
  // By state, which pools use again: as many as there are states.
  std::map<const device_event::state*, clock> events_;
  ranges ranges_;  // disjoint
  std::vector<report> reports_;
  std::map<std::string, std::uint64_t> seen_;  // by kind, ops and streams
};

std::string_view to_string(order_checker::kind k) noexcept;

}  // namespace troupe
