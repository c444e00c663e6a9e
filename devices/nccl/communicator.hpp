#pragma once
// A rank of an NCCL communicator, which never blocks its caller: what is not there yet is a state
// that is asked for, and what must end is aborted.
//
// NCCL is loaded when the first communicator is made. Its id goes from the first rank to the others
// over the control lane.
//
// Threading: all calls of one communicator from one thread, but abort(), which may come from any
// and at any time.
// Ownership: outlives the work that was enqueued with it, unless that is aborted.
//
// NC-1  No call waits for other ranks: begin() and collectives return at once, and is_ready() says
//       whether the last one is settled. Until it is, nothing else may be called but abort().
//       abort() takes as long as NCCL's threads and the driver need to let go: it frees memory of
//       the device.
// NC-2  Collectives of one communicator are enqueued in the same order by all ranks, of different
//       communicators of one device ordered by events.
// NC-3  After abort() every call is an error, and the kernels that waited for others on the device
//       have ended, whatever they have written. The first error of is_ready() stays, and is that of
//       every further call; abort() is still to be called then, by who has seen to it that nobody
//       takes what those kernels leave behind.
// NC-4  mean is the sum divided by the number of ranks, by NCCL, in the type of the elements.
// NC-5  What a rank has sent may still be under way when its own part of a collective is done: a
//       rank that just left would take it from the others. So one ends by finish(), and aborts only
//       what has gone wrong.
// NC-6  An error that may follow from another rank's end has the code `unreachable`
//       (devices/device/device_collective.hpp, DC-7).

#include "troupe/devices/device/device_collective.hpp"
#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::nccl {

using reduce = device_reduction;
using unique_id = communicator_id;

// By the first rank. Error (not_found): there is no NCCL.
result<unique_id> make_unique_id();
// "2.28.3". Error: there is no NCCL.
result<std::string> version();

class communicator {
 public:
  // `device`, "gpu:0", and its chip is the calling thread's (cuda_chip::make_current). Begins to
  // look for the others.
  static result<std::unique_ptr<communicator>> begin(const unique_id& id, int rank, int ranks,
                                                     std::string device);
  // After finish(), once that is settled: ends it; else aborts what is under way.
  virtual ~communicator() = default;

  // false: not yet. An error names rank and device, and what NCCL said.
  virtual result<bool> is_ready() = 0;
  virtual void abort() noexcept = 0;
  // NC-5. Begins the end, by all ranks: is_ready() says when it has come, and no collective may be
  // called any more.
  virtual result<void> finish() = 0;
  virtual int rank() const noexcept = 0;
  virtual int ranks() const noexcept = 0;

  // Enqueued on `stream`, a cudaStream_t; addresses of the device. `op` names it in errors.
  // `count`: elements that a rank sends (all_reduce, broadcast, all_gather) or receives
  // (reduce_scatter). In place where both addresses are those that NCCL asks for.
  virtual result<void> all_reduce(void* stream, std::string_view op, const void* from, void* to,
                                  std::size_t count, dtype type, reduce how) = 0;
  virtual result<void> reduce_scatter(void* stream, std::string_view op, const void* from, void* to,
                                      std::size_t count, dtype type, reduce how) = 0;
  virtual result<void> all_gather(void* stream, std::string_view op, const void* from, void* to,
                                  std::size_t count, dtype type) = 0;
  virtual result<void> broadcast(void* stream, std::string_view op, const void* from, void* to,
                                 std::size_t count, dtype type, int root) = 0;
};

}  // namespace troupe::nccl
