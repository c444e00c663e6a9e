#pragma once
// CUDA's kernels behind devices/device_backend.hpp.
//
// Threading and ownership: as there. What devices share of a chip lives as long as one of them.

#include "devices/cuda/cuda_device.hpp"
#include "devices/device_backend.hpp"

#include <memory>

namespace troupe::cuda {

std::shared_ptr<device_backend> make_cuda_backend(std::unique_ptr<cuda_device> d);

}  // namespace troupe::cuda
