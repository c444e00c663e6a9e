#pragma once
// Products of matrices on one thread: what matmul and convolutions are made of.
//
// C[m, n] = op(A) op(B), or += where `adds`; row-major, op(X) is X or its transpose. f32 by oneDNN; f64 by loops of our own, since
// oneDNN has none: every element is summed over k in ascending order.
//
// Threading: none of its own; set_up_kernel_thread() before the first call on a thread.

#include "schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::host {

struct gemm_shape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
};

// What f64 needs besides: columns of B, side by side. Made once for the largest k, so that a product allocates nothing.
class gemm_scratch {
 public:
  static constexpr std::int64_t columns = 8;
  void reserve(std::int64_t k) {
    if (const auto n = static_cast<std::size_t>(k * columns); panel_.size() < n) panel_.resize(n);
  }
  double* panel() noexcept { return panel_.data(); }

 private:
  std::vector<double> panel_;
};

// Any of the sizes may be 0. Matrices lie dense in memory.
result<void> gemm(const gemm_shape& s, const float* a, const float* b, float* c, bool adds, gemm_scratch& scratch);
result<void> gemm(const gemm_shape& s, const double* a, const double* b, double* c, bool adds, gemm_scratch& scratch);

}  // namespace troupe::host
