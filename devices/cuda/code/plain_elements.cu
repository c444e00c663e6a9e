// Element-wise kernels for the device, for machines without NVRTC.

#include "troupe/devices/cuda/code/launch.cuh"
#include "troupe/devices/cuda/code/plain_elements.hpp"

namespace troupe::cuda::code {

const plain_row* find_plain(std::string_view op, std::span<const dtype> in, dtype out) {
  return find_in_plain_table(op, in, out);
}

}  // namespace troupe::cuda::code
