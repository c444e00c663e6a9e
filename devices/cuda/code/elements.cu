// The kernels of elements.hpp, for the device.

#include "troupe/devices/cuda/code/elements.hpp"

#include "troupe/devices/cuda/code/launch.cuh"

namespace troupe::cuda::code {

#define TROUPE_ELEMENTS(...) \
  template int launch_elements(const stream_of_chip&, const __VA_ARGS__&, std::int64_t)
#include "troupe/devices/cuda/code/elements.inc"

}  // namespace troupe::cuda::code
