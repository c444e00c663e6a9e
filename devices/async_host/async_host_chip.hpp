#pragma once
// The asynchronous host device: memory of this process, and streams that run later than they are
// told to, by a seed, so that a mistake of order shows without a GPU.
//
// A chip has memory and any number of devices (gpu:0, gpu:1), each with its own streams, cache and
// limit. It runs in one of two ways:
//
//   stepped   one thread, no clock: step() runs the next ready piece of work of one stream, which
//             the seed chooses; some streams lag far behind the others for a while
//   threaded  a thread per stream, with delays by seed before work, before completions and before
//             host functions
//
// AH-1  Stepped, two runs with equal seeds and calls run all work in the same order.
// AH-2  The k-th piece of work after fail_work(k) fails instead of running, and DV-5 follows for
//       its stream.
// AH-3  An event's state is used again only after it was dropped by everybody and has been done.
// AH-4  Where a checker is given, it sees every call in the order of the calls.
// AH-5  A stream that ends has run all that it was given.
// AH-6  A captured step runs as one piece of work; the checker sees what each of its parts touches
//       when it is replayed.
// AH-7  Times of slices (devices/device/device_trace.hpp): threaded, when the stream's thread began
//       the work and had done it; stepped, a step is a microsecond.
// AH-8  Memory that nobody has written is no sound number and no label, so that what is computed of
//       it is seen to be wrong, and not by chance alone.
//
// Threading: as device.hpp says; stepped, everything on one thread. Host functions run inside of
// step(), or on the stream's thread.
// Ownership: the chip outlives its devices, a device its streams, the checker all of them.

#include "troupe/devices/device/device.hpp"
#include "troupe/devices/device/order_checker.hpp"
#include "troupe/devices/memory/caching_allocator.hpp"

#include <functional>
#include <memory>

namespace troupe {

struct async_host_options {
  std::uint64_t seed = 1;
  bool threaded = false;
  std::uint32_t delay_max_us = 200;  // threaded
  std::uint64_t memory_bytes = 0;    // of the chip; 0: what the process can get
  order_checker* checker = nullptr;
  std::function<void()> on_thread{};  // threaded: first thing on the thread of each stream
};

class async_host_stream : public device_stream {
 public:
  // Where work that is captured now finds the number of set_draw(); null: nothing is captured.
  virtual const std::uint64_t* draw_at() const noexcept = 0;
};

class async_host_chip {
 public:
  explicit async_host_chip(const async_host_options& options);
  ~async_host_chip();
  async_host_chip(const async_host_chip&) = delete;
  async_host_chip& operator=(const async_host_chip&) = delete;

  // `limit_bytes` of this device alone; 0: what the chip has.
  std::unique_ptr<device> make_device(std::string name, std::uint64_t limit_bytes = 0);

  bool is_threaded() const noexcept;

  // Stepped only. False: no stream has work that may run.
  bool step();
  // As many steps as the seed says: often none, sometimes many.
  void step_some();
  void step_all() {
    while (step()) {
    }
  }

  // The k-th piece of work from now, counted from 1, in the order in which it comes to run.
  void fail_work(std::uint64_t k);

  struct shared;  // what the devices and streams of a chip have in common

 private:
  std::shared_ptr<shared> shared_;
};

}  // namespace troupe
