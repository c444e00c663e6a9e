#pragma once
// Page-locked buffers of one port, on the host, which a device copies to: like buffer_pool.hpp, and reused likewise.
//
// Where a device gives no more of it, a buffer is of ordinary memory, and the device copies by way of some of its own.
//
// Threading: one owner; the tensors that it gives out may go anywhere. Ownership: a buffer keeps the backend alive.

#include "devices/device_backend.hpp"
#include "devices/tensor.hpp"

#include <memory>
#include <vector>

namespace troupe {

class pinned_pool {
 public:
  // Keeps at most `size` buffers of `bound_bytes` each. `is_pinned` not: of ordinary memory, for whoever keeps them long.
  pinned_pool(std::size_t bound_bytes, std::size_t size, std::shared_ptr<device_backend> backend, bool is_pinned)
      : bound_bytes_(bound_bytes), size_(size), backend_(std::move(backend)), is_pinned_(is_pinned) {}

  tensor take(const tensor_spec& spec);

 private:
  tensor make(const tensor_spec& spec) const;

  std::size_t bound_bytes_, size_;
  std::shared_ptr<device_backend> backend_;
  bool is_pinned_;
  std::vector<tensor> tensors_;
};

}  // namespace troupe
