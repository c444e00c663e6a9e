#pragma once
// Products of matrices on one thread: what matmul and convolutions are made of.
//
// C[m, n] = op(A) op(B), or += where `adds`; row-major, op(X) is X or its transpose. f32 by oneDNN;
// f64 by loops of our own, since oneDNN has none: every element is summed over k in ascending
// order.
//
// Threading: none of its own; set_up_kernel_thread() before the first call on a thread.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::host {

// Elements from a row of a matrix to the next, as it lies in memory; 0: matrices lie dense.
struct gemm_strides {
  std::int64_t a = 0, b = 0, c = 0;
};

struct gemm_shape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  gemm_strides strides{};

  std::int64_t stride_a() const noexcept {
    return strides.a != 0 ? strides.a : transpose_a ? m : k;
  }
  std::int64_t stride_b() const noexcept {
    return strides.b != 0 ? strides.b : transpose_b ? k : n;
  }
  std::int64_t stride_c() const noexcept { return strides.c != 0 ? strides.c : n; }
};

// Part of a product: so many rows of C, or columns, and where its operands begin.
struct gemm_part {
  gemm_shape shape;
  std::int64_t a = 0, b = 0, c = 0;
};
gemm_part rows_of(const gemm_shape& s, std::int64_t first, std::int64_t count) noexcept;
gemm_part columns_of(const gemm_shape& s, std::int64_t first, std::int64_t count) noexcept;

// About what a product takes on one thread.
double gemm_ns(const gemm_shape& s, std::size_t element_bytes) noexcept;

// What f64 needs besides: columns of B, side by side. Made once for the largest k, so that a
// product allocates nothing.
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

// Any of the sizes may be 0.
result<void> gemm(const gemm_shape& s, const float* a, const float* b, float* c, bool adds,
                  gemm_scratch& scratch);
result<void> gemm(const gemm_shape& s, const double* a, const double* b, double* c, bool adds,
                  gemm_scratch& scratch);

}  // namespace troupe::host
