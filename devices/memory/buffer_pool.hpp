#pragma once
// Buffers of one port, reused as soon as nobody else holds them.
//
// The credits of the port's edges bound how many are in use at once, so a pool of that many (and
// one that is being written) never allocates after its first steps. A consumer that keeps tensors
// for longer costs fresh ones, which the pool forgets.
//
// Threading: one owner; the tensors it gives out may go anywhere.

#include "troupe/devices/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe {

class buffer_pool {
 public:
  // Keeps at most `size` buffers of `bound_bytes` each.
  buffer_pool(std::size_t bound_bytes, std::size_t size) : bound_bytes_(bound_bytes), size_(size) {}

  // A tensor that only the caller and the pool hold; uninitialised.
  tensor take(const tensor_spec& spec) {
    for (auto& t : tensors_)
      if (t.is_unique() && spec.size_bytes() <= t.capacity_bytes()) {
        if (t.spec() != spec) t.reshape(spec);
        return t;
      }
    auto fresh = tensor::make(spec, std::max(bound_bytes_, spec.size_bytes()));
    if (tensors_.size() < size_) tensors_.push_back(fresh);
    return fresh;
  }

 private:
  std::size_t bound_bytes_;
  std::size_t size_;
  std::vector<tensor> tensors_;
};

}  // namespace troupe
