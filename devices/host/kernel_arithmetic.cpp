#include "troupe/devices/host/kernel_arithmetic.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace troupe {

#if defined(__SSE2__)

kernel_arithmetic::kernel_arithmetic() noexcept : before_(_mm_getcsr()) {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(static_cast<unsigned>(before_) | flush_to_zero | denormals_are_zero);
}
kernel_arithmetic::~kernel_arithmetic() { _mm_setcsr(static_cast<unsigned>(before_)); }

#elif defined(__aarch64__)

kernel_arithmetic::kernel_arithmetic() noexcept {
  constexpr std::uint64_t flush_to_zero = std::uint64_t{1} << 24;
  asm volatile("mrs %0, fpcr" : "=r"(before_));
  asm volatile("msr fpcr, %0" : : "r"(before_ | flush_to_zero));
}
kernel_arithmetic::~kernel_arithmetic() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

#else

kernel_arithmetic::kernel_arithmetic() noexcept = default;
kernel_arithmetic::~kernel_arithmetic() = default;

#endif

}  // namespace troupe
