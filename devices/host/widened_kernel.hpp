#pragma once
// Products, convolutions and attention of f16 and bf16, by their f32 kernels: operands are widened,
// which is exact, sums are f32, and each element of the result is rounded once, to nearest, ties to
// even. Used in devices/host/ only.
//
// The bits are those of the f32 kernel, rounded; so they are the same for any number of threads
// (TT-3), on every host that has the same for f32.
//
// Memory: f32 copies of the operands and results of f16 and bf16 that it was prepared for, which
// stay.
//
// Threading: a kernel's (devices/kernel.hpp).

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"

#include <memory>

namespace troupe::host {

// `inner` takes f32 (or f64); all operands of f16 or bf16, and all results, or none. Those of whole
// numbers go through as they are.
std::unique_ptr<kernel> widened(std::unique_ptr<kernel> inner, tile_team& team);

// As row_of(), for f16 and bf16, too.
template <class Kernel>
kernel_row widened_row_of() {
  return {[](const attributes& attrs, host_device& device) -> result<std::unique_ptr<kernel>> {
            return widened(std::make_unique<Kernel>(attrs, device), device.team());
          },
          false};
}

}  // namespace troupe::host
