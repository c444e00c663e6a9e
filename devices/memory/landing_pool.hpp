#pragma once
// Page-locked buffers that frames from other processes are read into, or ops of the host write to,
// for copies to a device: from there the device copies by itself, and nothing on the host is copied
// again.
//
//   links, ops            take(): a buffer that nobody else has; none: they have memory of their
//                         own
//   thread of the copies  grow(): one buffer more, since to get page-locked memory takes a device's
//                         driver milliseconds, for which no link may stand still
//
// LP-1  It never has more buffers than its size, however many tensors are on their way; those
//       beyond lie in ordinary memory, which the device copies by way of some of its own.
// LP-2  A buffer is given out only while nobody else has a handle of it. It goes back to its device
//       when the pool and all who hold it have dropped it.
//
// Threading: any; a lock, held for as long as it takes to look through a few handles. Ownership:
// shared by the link or op, the copies and whoever placed the job; a buffer keeps its backend
// alive.

#include "troupe/devices/device/device_backend.hpp"
#include "troupe/devices/tensor.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace troupe {

class landing_pool {
 public:
  // Of at most `size` buffers of `bound_bytes` each.
  landing_pool(std::size_t bound_bytes, std::size_t size)
      : bound_bytes_(bound_bytes), size_(size) {}

  // Nothing: all are in use, or `spec` is larger than they are.
  tensor take(const tensor_spec& spec);
  // False: it has its size, or the device gives no more.
  bool grow(const std::shared_ptr<device_backend>& from);
  std::size_t size() const noexcept { return size_; }
  std::size_t buffers() const;

 private:
  const std::size_t bound_bytes_, size_;
  mutable std::mutex lock_;
  std::vector<tensor> tensors_;
};

}  // namespace troupe
