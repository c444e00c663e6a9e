// Sums, products, differences, quotients, powers, extremes. Whole numbers wrap around, as in NumPy.

#include "troupe/devices/element_ops.hpp"
#include "troupe/devices/host/loops/elementwise_tiles.hpp"

namespace troupe::host {
namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;

}  // namespace

void add_arithmetic_kernels(kernel_table& table) {
  add_elementwise_row<add_op, 2, float, double, i32, i64>(table, "add");
  add_elementwise_row<sub_op, 2, float, double, i32, i64>(table, "sub");
  add_elementwise_row<mul_op, 2, float, double, i32, i64>(table, "mul");
  add_elementwise_row<div_op, 2, float, double, std::int32_t, std::int64_t>(table, "div");
  add_elementwise_row<maximum_op, 2, float, double, i32, i64>(table, "maximum");
  add_elementwise_row<minimum_op, 2, float, double, i32, i64>(table, "minimum");
  add_elementwise_row<pow_op, 2, float, double>(table, "pow");
  add_elementwise_row<fmod_op, 2, float, double>(table, "fmod");
  add_elementwise_row<neg_op, 1, float, double, i32, i64>(table, "neg");
  add_elementwise_row<abs_op, 1, float, double, i32, i64>(table, "abs");
  add_elementwise_row<sign_op, 1, float, double, i32, i64>(table, "sign");
  add_elementwise_row<square_op, 1, float, double, i32, i64>(table, "square");
  add_elementwise_row<reciprocal_op, 1, float, double>(table, "reciprocal");
  add_elementwise_row<fused_multiply_add_op, 3, float, double>(table, "fused_multiply_add");
}

}  // namespace troupe::host
