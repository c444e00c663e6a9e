#pragma once
// A device as the engine sees it: memory, streams, events and work in order. The asynchronous host
// device (devices/async_host/) and CUDA (devices/cuda/) are behind it; whoever enqueues work does
// not know which.
//
// A stream runs what is enqueued in order, and later than the call. Nothing here waits for a
// device: who wants to know that work is done asks an event (is_done), lets another stream wait for
// it (device_stream::wait), or has a function called (call_host), which should do no more than send
// a message.
//
// Ownership: a device outlives its streams, events and memory. Memory given back by free() is used
// again by the same stream at once, by others after an event. An event is a handle, counted; the
// last one returns it to the pool of its stream.
// Threading: a stream is enqueued on by one thread at a time; events may be asked, waited for and
// dropped on any thread. Functions of call_host() run on a thread of the device's.
// Errors: every call is checked at the call. What fails later stands in the stream: failed() has
// it, with the name of the op that was being enqueued, and every later call on that stream returns
// it too. Out of memory is error_code::failed, names the largest holders, and leaves the device
// usable.
//
// DV-1  Work of one stream runs in the order in which it was enqueued; between streams only events
//       order.
// DV-2  An event is recorded once, and is done when all that its stream was given before has been
//       done. Done stays done.
// DV-3  Bytes of two different allocations that are in use never overlap; what is free may be given
//       out to the stream that freed it, or, once the event of that moment is done, to any other.
// DV-4  used_bytes never exceeds limit_bytes (0: none but the device's own).
// DV-5  After a failure in a stream nothing more that was enqueued on it runs; host functions are
//       still called, so that nobody waits for ever.
// DV-6  No call waits for the device; synchronize() alone does, and is for ends, tests and
//       benchmarks.
// DV-7  While a stream is captured nothing runs, and nothing but enqueue(), copies between device
//       and pinned memory and fill_zero() is allowed on it: whoever asks for more gets an error.
//       What a captured step uses is allocated before and given back after its last replay.
// DV-8  What ran when is told to whoever traces a stream (devices/device/device_trace.hpp); one
//       that nobody traces pays a look at a pointer.

#include "troupe/devices/device/device_trace.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

enum class stream_kind : std::uint8_t { compute, copy_in, copy_out, collective };
std::string_view to_string(stream_kind k) noexcept;

// Where bytes lie, as far as copies care.
enum class memory_kind : std::uint8_t { device, pinned, pageable };

class device_stream;

// A point in a stream. The states of backends derive from `state`.
class device_event {
 public:
  class state {
   public:
    virtual ~state() = default;
    virtual bool is_done() const noexcept = 0;  // never waits
    const device_stream* stream = nullptr;      // where it was recorded
    // Of those of its stream, counted from 1: the larger, the later; 0: the backend does not count.
    std::uint64_t number = 0;
  };

  device_event() noexcept = default;  // of the past: done, and nobody waits for it
  explicit device_event(std::shared_ptr<const state> s) noexcept : state_(std::move(s)) {}
  explicit operator bool() const noexcept { return state_ != nullptr; }
  bool is_done() const noexcept { return state_ == nullptr || state_->is_done(); }
  const device_stream* stream() const noexcept {
    return state_ != nullptr ? state_->stream : nullptr;
  }
  const state* get() const noexcept { return state_.get(); }
  const std::shared_ptr<const state>& shared() const noexcept { return state_; }

 private:
  std::shared_ptr<const state> state_;
};

// Memory of a device. Who allocated it may use it before any event (DV-3).
struct device_memory {
  std::byte* bytes = nullptr;
  std::size_t size_bytes = 0;
  explicit operator bool() const noexcept { return bytes != nullptr; }
};

struct memory_stats {
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0, peak_bytes = 0;  // given out
  std::uint64_t cached_bytes = 0;                // free, kept for the next who asks
  std::uint64_t allocations = 0, reuses = 0;     // calls, and those that the cache answered
  std::uint64_t pinned_bytes = 0;
  // From or to pageable memory, by way of pinned memory of the device's own: a copy more on the
  // host.
  std::uint64_t staged_copies = 0, staged_bytes = 0;
};

// What a piece of work touches; the order checker of debug builds looks at it.
struct touched {
  std::span<const std::span<const std::byte>> reads;
  std::span<const std::span<std::byte>> writes;
};

// Work that was captured, and is replayed with the addresses that it was captured with.
class captured_step {
 public:
  virtual ~captured_step() = default;
  virtual std::size_t nodes() const noexcept = 0;
};

class device_stream {
 public:
  virtual ~device_stream() = default;
  virtual stream_kind kind() const noexcept = 0;
  virtual const std::string& name() const noexcept = 0;  // "gpu:0/compute"

  // --- work, in order; `op` names it in errors and timelines and stays valid until the device is
  // gone ---
  // On the asynchronous host device `run` is called on the stream's thread; on CUDA at once, to
  // launch kernels on native().
  virtual result<void> enqueue(std::string_view op, const touched& what,
                               std::function<result<void>()> run) = 0;
  // Work that a library launches only some time after `run`, as NCCL does: what comes next, be it
  // an event, is asked for when it has.
  virtual result<void> enqueue_launched_later(std::string_view op, const touched& what,
                                              std::function<result<void>()> run) {
    return enqueue(op, what, std::move(run));
  }
  virtual result<void> copy(std::string_view op, std::span<std::byte> to, memory_kind to_kind,
                            std::span<const std::byte> from, memory_kind from_kind) = 0;
  virtual result<void> fill_zero(std::string_view op, std::span<std::byte> to) = 0;
  // What is enqueued from now on runs after the event. Of this stream, or done: nothing happens.
  virtual result<void> wait(const device_event& e) = 0;
  virtual result<device_event> record() = 0;
  // Calls `fn` on a thread of the device once all before it is done; also after a failure (DV-5).
  // It must not call the device.
  virtual result<void> call_host(std::function<void()> fn) = 0;

  // --- memory, in the order of the stream ---
  virtual result<device_memory> allocate(std::size_t bytes, std::string_view for_whom) = 0;
  virtual void free(device_memory m) noexcept = 0;  // after what has been enqueued so far

  // --- captured steps (DV-7) ---
  virtual result<void> begin_capture() = 0;
  // Nothing of it has run. Error: something was captured that cannot be; the stream is usable
  // again.
  virtual result<std::unique_ptr<captured_step>> end_capture() = 0;
  virtual result<void> replay(std::string_view op, const captured_step& step) = 0;
  // The number that random ops of captured steps take for the step of their tag: set before each
  // replay, in the order of the stream.
  virtual result<void> set_draw(std::uint64_t step) = 0;

  // --- what ran, and when (DV-8) ---
  // From now on, what is enqueued; null: nobody wants to know any more.
  virtual void trace(std::shared_ptr<slice_sink> to) = 0;
  // Whose work is enqueued from now on. Matters only while it is traced.
  virtual void label(const slice_label& whose) = 0;
  // Gives what is done to its sink.
  virtual void collect() = 0;

  // What failed in it, if something did.
  virtual result<void> failed() const = 0;
  // It has, and so has every stream of the chip, which cannot be used any more: its own work need
  // not be to blame.
  virtual bool has_failed_with_chip() const noexcept { return false; }
  // Waits for all of it (DV-6).
  virtual result<void> synchronize() = 0;
  // The backend's own handle (a cudaStream_t), or null.
  virtual void* native() const noexcept = 0;
};

class device {
 public:
  virtual ~device() = default;
  // "gpu:0", also of one that shares its chip with others.
  virtual const std::string& name() const noexcept = 0;
  virtual const std::string& hardware() const noexcept = 0;  // "NVIDIA H100 80GB HBM3"
  virtual result<std::unique_ptr<device_stream>> make_stream(stream_kind kind) = 0;
  // Page-locked memory of the host, from which copies run by themselves.
  virtual result<device_memory> allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(device_memory m) noexcept = 0;
  virtual memory_stats memory() const = 0;
  // Gives what is cached back to the system.
  virtual void trim() noexcept = 0;
  // Whether copies between the two go directly.
  virtual bool can_reach(const device& other) const noexcept = 0;
};

}  // namespace troupe
