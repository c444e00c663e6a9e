#pragma once
// A row-major product as libraries that know only columns take it. Pure.
//
// A row-major matrix is its transpose in columns, so c = op(a) op(b) is c^T = op(b)^T op(a)^T:
// operands change places, rows and columns of the result, too, and a bias that is added to each row
// of c is one that is added to each column of c^T.

#include "troupe/devices/cuda/cuda_kernel.hpp"

#include <cstdint>

namespace troupe::cuda {

// A matrix in columns, as it lies: element (i, j) at i + j * stride.
struct column_matrix {
  std::int64_t rows = 0, columns = 0, stride = 0, step = 0;  // step: to the next batch
};
// d [m, n] = op(first) op(second); first is b and second is a.
struct column_product {
  column_matrix first, second, d;
  bool transpose_first = false, transpose_second = false;
};

inline column_product in_columns(const product& p) {
  column_product c;
  c.transpose_first = p.transpose_b;
  c.transpose_second = p.transpose_a;
  c.first = p.transpose_b ? column_matrix{p.k, p.n, p.stride_b, p.step_b}
                          : column_matrix{p.n, p.k, p.stride_b, p.step_b};
  c.second = p.transpose_a ? column_matrix{p.m, p.k, p.stride_a, p.step_a}
                           : column_matrix{p.k, p.m, p.stride_a, p.step_a};
  c.d = {p.n, p.m, p.stride_c, p.step_c};
  return c;
}

}  // namespace troupe::cuda
