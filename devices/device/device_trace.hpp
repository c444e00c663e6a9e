#pragma once
// What ran on a stream of a device, and when, for whoever records it.
//
//   who enqueues   device_stream::trace(), label() before a piece of work, collect() now and then
//   the stream     notes when each piece ran, and gives what is done to the sink when it is asked
//
// DT-1  Each kernel, copy, fill_zero() and replay that was enqueued while its stream was traced
//       gives one slice, once it has run; a replay is one, with the number of its kernels. What
//       fails or never comes to run (DV-5) gives none.
// DT-2  Slices of a stream come in the order in which they ran and do not overlap: what lies
//       between is waiting.
// DT-3  Times are of the sink's clock. Those of one device's streams stand to each other as the
//       work ran, so far as its events resolve time (CUDA: half a microsecond).
// DT-4  Nothing waits for the device. A stream that nobody traces looks at one pointer for each
//       piece of work.
// DT-5  A stream keeps no more slices than pieces of work were enqueued since the last collect(),
//       and those that were under way then.
//
// Threading: trace(), label() and collect() by the thread that enqueues, and so slice_sink::add();
// now_ns() on any.
// Ownership: shared; a stream keeps a sink until what was enqueued for it is collected.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

namespace troupe {

// Whose work it is: of the recorder's numbers.
struct slice_label {
  static constexpr std::uint32_t whole = 0xffffff;

  std::uint64_t subject = 0;
  std::uint64_t step = 0;
  std::uint32_t kernel = whole;  // which of the subject's
};

enum class slice_kind : std::uint8_t { kernel, replay, copy };

struct device_slice {
  slice_kind kind = slice_kind::kernel;
  slice_label label;
  std::string_view op;       // as it was enqueued
  std::uint64_t amount = 0;  // copy: bytes; replay: kernels
  std::int64_t begin_ns = 0, end_ns = 0;
};

class slice_sink {
 public:
  virtual ~slice_sink() = default;
  virtual std::int64_t now_ns() const = 0;
  virtual void add(const device_slice& s) = 0;
};

// How a device's clock stands to the host's, from work whose times are known on the device and that
// cannot have begun before it was enqueued. Pure.
//
// CLK-1  No piece of work begins before it was enqueued; and one that met an idle device began
//        right then, so the largest difference that was heard of is the nearest.
// CLK-2  The difference only grows, so what came in order stays in order.
class device_clock {
 public:
  void hear(std::int64_t device_ns, std::int64_t enqueued_ns) noexcept {
    ahead_ns_ = std::max(ahead_ns_, enqueued_ns - device_ns);
  }
  // After the first hear()
  std::int64_t host_ns(std::int64_t device_ns) const noexcept { return device_ns + ahead_ns_; }

 private:
  std::int64_t ahead_ns_ = std::numeric_limits<std::int64_t>::min() / 2;
};

}  // namespace troupe
