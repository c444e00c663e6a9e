#pragma once
// One step of each optimizer over a variable of f32 on a device: the formulas, numbers and order of
// operations of devices/host/optimizers.hpp.
//
// Threading: as the stream. Every `out` may be its own `in`; nothing else may overlap.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/cuda_kernel.hpp"
#include "troupe/devices/host/optimizers.hpp"

#include <cstdint>

namespace troupe::cuda {

// Parts as on the host, on the device: at most code::gradient::parts_max; more are an error
// (usage).
result<code::gradient> gradient_of(const gradient_sum& g);

result<void> sgd_step(chip_services& chip, const launch_site& at, code::variable w,
                      code::variable velocity, const code::gradient& g, std::int64_t n,
                      const sgd_numbers& k);
result<void> adam_step(chip_services& chip, const launch_site& at, code::variable w,
                       code::variable first, code::variable second, const code::gradient& g,
                       std::int64_t n, const adam_numbers& k);
// Slots that are not used have no memory.
result<void> rmsprop_step(chip_services& chip, const launch_site& at, code::variable w,
                          code::variable square, code::variable velocity, code::variable average,
                          const code::gradient& g, std::int64_t n, const rmsprop_numbers& k);
result<void> adagrad_step(chip_services& chip, const launch_site& at, code::variable w,
                          code::variable square, const code::gradient& g, std::int64_t n,
                          const adagrad_numbers& k);
result<void> average_step(chip_services& chip, const launch_site& at, code::variable w,
                          const code::gradient& g, std::int64_t n, const average_numbers& k);

// Square root of the sum of squares, limited but not scaled, into *norm on the device.
// at.workspace: norm_workspace_bytes(n).
std::size_t norm_workspace_bytes(std::int64_t n) noexcept;
result<void> norm_of(chip_services& chip, const launch_site& at, const code::gradient& g,
                     std::int64_t n, double* norm);

}  // namespace troupe::cuda
