// Exponentials, logarithms, roots, sines, rounding. Those of f64 that need a library call are not
// vectorised.

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
  add_elementwise_row<floor_op, 1, float, double>(table, "floor");
  add_elementwise_row<ceil_op, 1, float, double>(table, "ceil");
  add_elementwise_row<round_op, 1, float, double>(table, "round");
}

}  // namespace troupe::host
