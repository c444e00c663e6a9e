#pragma once
// Page-locked buffers of one port, on the host, which a device copies to: like buffer_pool.hpp, and
// reused likewise.
//
// PI-1  It never has more page-locked buffers than its size. Where that many are in use, or a
//       device gives no more, a buffer is of ordinary memory, and the device copies by way of some
//       of its own.
//
// Threading: one owner; the tensors that it gives out may go anywhere. Ownership: a buffer keeps
// the backend alive.

#include "troupe/devices/device/device_backend.hpp"
#include "troupe/devices/tensor.hpp"

#include <memory>
#include <vector>

namespace troupe {

// Page-locked memory of a device for `spec`, and up to `bound_bytes`; nothing, where it gives no
// more.
tensor make_pinned(const std::shared_ptr<device_backend>& from, const tensor_spec& spec,
                   std::size_t bound_bytes);

class pinned_pool {
 public:
  // Keeps at most `size` buffers of `bound_bytes` each.
  pinned_pool(std::size_t bound_bytes, std::size_t size, std::shared_ptr<device_backend> backend)
      : bound_bytes_(bound_bytes), size_(size), backend_(std::move(backend)) {}

  tensor take(const tensor_spec& spec);

 private:
  std::size_t bound_bytes_, size_;
  std::shared_ptr<device_backend> backend_;
  std::vector<tensor> tensors_;
};

}  // namespace troupe
