#pragma once
// What runs ops on a device: kernels that are enqueued on its streams. The asynchronous host device
// and CUDA are behind it, as behind devices/device/device.hpp.
//
// Nothing is computed when enqueue() returns. The engine decides when, in which order, and which
// memory; a kernel is told addresses on the device, which stay until an event behind the work is
// done.
//
// Threading: a kernel and its stream belong to one thread.
// Ownership: a backend outlives its device's streams and its kernels.
//
// DK-1  prepare() before the first enqueue(), and whenever a shape differs; it may compile and ask
//       libraries, enqueue() allocates nothing.
// DK-2  Equal shapes and addresses give equal work, so that it may be captured
//       (device_stream::begin_capture), and stays right while the kernel lives, also after a
//       prepare() for other shapes; what depends on the step of a tag asks the stream then
//       (set_draw).
// DK-3  A type of op without a kernel is an error (not_found) that names it and the device.

#include "troupe/devices/device/device.hpp"
#include "troupe/devices/device/device_collective.hpp"
#include "troupe/devices/optimizer_step.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// One op of a kernel: the only one, or of a fused group (devices/host/fused_kernel.hpp), whose
// operands are its step's.
struct kernel_step {
  std::string op;
  attributes attrs;
  // >= 0: operand of the kernel; < 0: output 0 of step -1 - operand.
  std::vector<std::int32_t> operands;
  dtype type = dtype::f32;  // of its result
};

using device_inputs = std::span<const std::span<const std::byte>>;
using device_outputs = std::span<const std::span<std::byte>>;

class device_kernel {
 public:
  virtual ~device_kernel() = default;
  virtual result<void> prepare(std::span<const tensor_spec> inputs,
                               std::span<const tensor_spec> outputs) = 0;
  virtual std::size_t workspace_bytes() const noexcept = 0;  // after prepare()
  // `op` is valid until the device is gone; `workspace`: aligned to 256 bytes, used by one kernel
  // of the stream after the other.
  virtual result<void> enqueue(device_stream& on, std::string_view op, const tag& t,
                               device_inputs inputs, device_outputs outputs,
                               std::span<std::byte> workspace) = 0;
};

class device_backend {
 public:
  virtual ~device_backend() = default;
  virtual troupe::device& device() noexcept = 0;
  virtual result<std::unique_ptr<device_kernel>> make_kernel(
      std::span<const kernel_step> steps) = 0;
  // A step of an optimizer, with the host's bits where the device's arithmetic has them. What `u`
  // names stays until it is done; workspace: update_workspace_bytes(), aligned to 256.
  virtual std::size_t update_workspace_bytes(const optimizer_step& step,
                                             std::size_t elements) const noexcept = 0;
  virtual result<void> enqueue_update(device_stream& on, std::string_view op,
                                      const optimizer_step& step, const device_update& u,
                                      std::span<std::byte> workspace) = 0;
  // --- collectives; errors: this device has none (no NCCL here) ---
  // By the first rank of a group, in the process in which that rank then begins.
  virtual result<communicator_id> make_communicator_id() = 0;
  // Begins to look for the other ranks. On a thread that set_up_thread() was called on.
  virtual result<std::unique_ptr<device_communicator>> begin_communicator(
      const communicator_id& id, int rank, int ranks, communicator_changed changed) = 0;
  // First thing on a thread that enqueues.
  virtual void set_up_thread() noexcept {}
};

}  // namespace troupe
