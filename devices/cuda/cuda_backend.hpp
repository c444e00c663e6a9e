#pragma once
// CUDA's kernels behind devices/device/device_backend.hpp.
//
// Threading and ownership: as there. What devices share of a chip lives as long as one of them.

#include "troupe/devices/cuda/cuda_device.hpp"
#include "troupe/devices/device/device_backend.hpp"

#include <memory>

namespace troupe::cuda {

std::shared_ptr<device_backend> make_cuda_backend(std::unique_ptr<cuda_device> d);

}  // namespace troupe::cuda
