// Exponentials, logarithms, roots, trigonometric and hyperbolic functions, rounding. Those of f64
// that need a library call are not vectorised.

#include "troupe/devices/element_ops.hpp"
#include "troupe/devices/host/loops/elementwise_tiles.hpp"

namespace troupe::host {
void add_math_kernels(kernel_table& table) {
  add_elementwise_row<exp_op, 1, float, double>(table, "exp");
  add_elementwise_row<log_op, 1, float, double>(table, "log");
  add_elementwise_row<sqrt_op, 1, float, double>(table, "sqrt");
  add_elementwise_row<rsqrt_op, 1, float, double>(table, "rsqrt");
  add_elementwise_row<erf_op, 1, float, double>(table, "erf");
  add_elementwise_row<sin_op, 1, float, double>(table, "sin");
  add_elementwise_row<cos_op, 1, float, double>(table, "cos");
  add_elementwise_row<tan_op, 1, float, double>(table, "tan");
  add_elementwise_row<expm1_op, 1, float, double>(table, "expm1");
  add_elementwise_row<log1p_op, 1, float, double>(table, "log1p");
  add_elementwise_row<asin_op, 1, float, double>(table, "asin");
  add_elementwise_row<acos_op, 1, float, double>(table, "acos");
  add_elementwise_row<atan_op, 1, float, double>(table, "atan");
  add_elementwise_row<sinh_op, 1, float, double>(table, "sinh");
  add_elementwise_row<cosh_op, 1, float, double>(table, "cosh");
  add_elementwise_row<asinh_op, 1, float, double>(table, "asinh");
  add_elementwise_row<acosh_op, 1, float, double>(table, "acosh");
  add_elementwise_row<atanh_op, 1, float, double>(table, "atanh");
  add_elementwise_row<floor_op, 1, float, double>(table, "floor");
  add_elementwise_row<ceil_op, 1, float, double>(table, "ceil");
  add_elementwise_row<round_op, 1, float, double>(table, "round");
}

}  // namespace troupe::host
