#pragma once
// Products by cuBLASLt, which is loaded when the first one is planned.
//
// Threading: plan() on any thread; a plan belongs to one kernel, and so to one thread at a time.
// Algorithms are chosen once for a shape and shared.
//
// BL-1  exact: f32 is multiplied as f32; tf32 only where a product asks for it. Sums of f16 and
//       bf16 are f32.

#include "troupe/devices/cuda/cuda_kernel.hpp"

#include <memory>
#include <string>

namespace troupe::cuda {

class blas {
 public:
  // Of the current device; `device` is its name in errors. Error: there is no cuBLASLt, or it does
  // not start.
  static result<std::unique_ptr<blas>> make(std::string device);
  virtual ~blas() = default;
  virtual result<chip_services::plan_ref> plan(const product& p) = 0;
  virtual result<void> multiply(const launch_site& at, const chip_services::plan& p, const void* a,
                                const void* b, const void* bias, void* c, std::byte* workspace) = 0;
};

}  // namespace troupe::cuda
