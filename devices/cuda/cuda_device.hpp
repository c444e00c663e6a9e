#pragma once
// CUDA chips as devices (devices/device/device.hpp): streams, pooled events, memory through
// devices/memory/caching_allocator.hpp, pinned memory, virtual devices on one chip, captured steps.
//
// Threading: as devices/device/device.hpp says. Functions of call_host() run on the driver's thread
// for it; where the chip has failed, which stops that, on the watch's.
// Ownership: a device outlives its streams, events and memory.
//
// CD-1  Events are pooled per stream and made without timing. One that is done is remembered as
//       done, and is not asked again. While a stream is traced, each piece of work stands between
//       two of another pool that have it; they are asked, never waited for, and their times are
//       those since one that the device recorded on a stream of its own when tracing began.
// CD-2  A failure that the driver reports at some call stands in the stream, with the ops in
//       question (progress.hpp); after a lasting one no call on that chip succeeds, and each of its
//       streams names those of its own that were under way. Functions that wait for a stream that
//       has failed are called within a second (DV-5), by a thread that looks at those that are
//       overdue.
// CD-3  A fault that a kernel reports (an index outside) becomes the stream's failure when somebody
//       asks: failed(), a completed call_host(), synchronize().
// CD-4  Copies from and to pageable memory go through pinned memory, so that no call waits (DV-6).

#include "troupe/devices/cuda/cuda_chip.hpp"
#include "troupe/devices/cuda/cuda_kernel.hpp"
#include "troupe/devices/device/device.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::cuda {

class cuda_stream : public device_stream {
 public:
  // Where a kernel of `op` is enqueued on this stream.
  virtual launch_site site(std::string_view op, std::byte* workspace, const tag& t) = 0;
};

struct device_options {
  std::uint64_t limit_bytes = 0;  // 0: what the chip has
  // Leaves a mark behind each op, so that a failure names the one (some microseconds of the chip's
  // time for each).
  bool marks_each_op = false;
};

class cuda_device : public device {
 public:
  // `name`: "gpu:1"; devices that share a chip share `c`.
  static result<std::unique_ptr<cuda_device>> make(std::string name, std::shared_ptr<cuda_chip> c,
                                                   const device_options& options);
  virtual cuda_chip& chip() noexcept = 0;
  virtual result<std::unique_ptr<cuda_stream>> make_cuda_stream(stream_kind kind) = 0;
};

// "gpu:0", "gpu:1", ...: `each` of them on every chip of the machine, with a limit of their part of
// its memory (less a tenth) unless the options have one.
result<std::vector<std::unique_ptr<cuda_device>>> make_cuda_devices(int each,
                                                                    const device_options& options,
                                                                    const chip_options& of_chips);

}  // namespace troupe::cuda
