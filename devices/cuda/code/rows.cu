// The kernels of rows.hpp, for the device.

#include "troupe/devices/cuda/code/rows.hpp"

#include "troupe/devices/cuda/code/launch.cuh"

namespace troupe::cuda::code {

#define TROUPE_TEAMS(...) \
  template int launch_teams(const stream_of_chip&, const __VA_ARGS__&, std::int64_t, std::int64_t)
#define TROUPE_ELEMENTS(...) \
  template int launch_elements(const stream_of_chip&, const __VA_ARGS__&, std::int64_t)
#include "troupe/devices/cuda/code/rows.inc"

}  // namespace troupe::cuda::code
