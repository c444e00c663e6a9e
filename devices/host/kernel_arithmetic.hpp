#pragma once
// Arithmetic as kernels have it (set_up_kernel_thread() in host_device.hpp: numbers below 1.2e-38
// are zero), for a thread that is not one of ours and computes for a while what they would. At its
// end the thread has its own again.
//
// Threading: of the thread that makes it.

#include <cstdint>

namespace troupe {

class kernel_arithmetic {
 public:
  kernel_arithmetic() noexcept;
  ~kernel_arithmetic();
  kernel_arithmetic(const kernel_arithmetic&) = delete;
  kernel_arithmetic& operator=(const kernel_arithmetic&) = delete;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace troupe
