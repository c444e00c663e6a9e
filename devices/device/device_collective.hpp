#pragma once
// A rank of a collective among devices, which never blocks its caller: what is not there yet is a
// state that is asked for, and what must end is aborted. NCCL is behind it (devices/nccl/), and on
// the asynchronous host device a stand-in (devices/async_host/host_communicator.hpp);
// device_backend makes them.
//
// Threading: all calls of one communicator from one thread, but abort(), which may come from any
// and at any time.
// Ownership: a communicator outlives the work that was enqueued with it, unless that is aborted,
// and is outlived by its backend.
//
// DC-1  No call waits for other ranks: beginning and collectives return at once, and is_ready()
//       says whether the last one is settled. Until it is, nothing else may be called but abort(),
//       nor may anything be enqueued on the stream of that collective.
// DC-2  Collectives of one communicator are enqueued in the same order by all ranks, of different
//       communicators of one device ordered by events. They are not captured.
// DC-3  After abort() every call is an error, and work that waited for others on the device ends,
//       with or without a failure of its stream: what it should have written is not to be used. The
//       first error of is_ready() stays, and is that of every further call. Work may go on waiting
//       then, until abort() is called: so whoever might use what it should have written can be kept
//       from it before. abort() takes as long as the driver needs to let go.
// DC-4  `changed` is called when what was not settled is, and once when the communicator has
//       failed; not any more when its destructor has returned.
// DC-5  mean is the sum divided by the number of ranks, in the type of the elements. The order of a
//       sum is the backend's.
// DC-6  What a rank has sent may still be under way when its own part of a collective is done: a
//       rank that just left would take it from the others. So one ends by finish(), by all ranks,
//       behind their last collective, which need not have run yet. is_ready() says when the end has
//       come: all that this rank has sent has arrived. No collective may be called any more; a rank
//       that goes afterwards is missed by nobody. What has not finished is aborted by its
//       destructor.
// DC-7  An error that may follow from another rank's end has the code `unreachable`, every other
//       one has its cause here: so a failure of one rank, which all of them notice, is told by its
//       cause.

#include "troupe/devices/device/device.hpp"
#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace troupe {

enum class device_reduction : std::uint8_t { sum, mean, min, max };

// Made by the backend of the first rank, and brought to the others by whoever uses this.
struct communicator_id {
  std::array<std::byte, 128> bytes{};
};

// On a thread of the communicator's, or inside of a call of it; it should do no more than send a
// message.
using communicator_changed = std::function<void()>;

class device_communicator {
 public:
  // After finish(), once that is settled: ends it; else aborts what is under way.
  virtual ~device_communicator() = default;

  virtual int rank() const noexcept = 0;
  virtual int ranks() const noexcept = 0;
  // false: not yet. An error names rank and device, and what went wrong.
  virtual result<bool> is_ready() = 0;
  virtual void abort() noexcept = 0;
  // DC-6. Begins the end. Error (usage): it has begun before, or not all ranks are there.
  virtual result<void> finish() = 0;

  // Error (usage): after finish(), too. Enqueued on `on`, a stream of the communicator's device;
  // memory of that device. `op` names it in errors, and stays valid until the device is gone. `to`
  // is as large as `from` (all_reduce, broadcast), `ranks` times (all_gather) or a part of that
  // (reduce_scatter); in place where it is the same memory, or (all_gather) `from` is the rank's
  // own part of `to`.
  virtual result<void> all_reduce(device_stream& on, std::string_view op,
                                  std::span<const std::byte> from, std::span<std::byte> to,
                                  dtype type, device_reduction how) = 0;
  virtual result<void> reduce_scatter(device_stream& on, std::string_view op,
                                      std::span<const std::byte> from, std::span<std::byte> to,
                                      dtype type, device_reduction how) = 0;
  virtual result<void> all_gather(device_stream& on, std::string_view op,
                                  std::span<const std::byte> from, std::span<std::byte> to,
                                  dtype type) = 0;
  virtual result<void> broadcast(device_stream& on, std::string_view op,
                                 std::span<const std::byte> from, std::span<std::byte> to,
                                 dtype type, int root) = 0;
};

}  // namespace troupe
