// What stands behind layers, and the gradients of those that follow from the result.

#include "troupe/devices/element_ops.hpp"
#include "troupe/devices/host/loops/elementwise_tiles.hpp"

namespace troupe::host {
void add_activation_kernels(kernel_table& table) {
  add_elementwise_row<relu_op, 1, float, double>(table, "relu");
  add_elementwise_row<leaky_relu_op, 2, float, double>(table, "leaky_relu");
  add_elementwise_row<sigmoid_op, 1, float, double>(table, "sigmoid");
  add_elementwise_row<tanh_op, 1, float, double>(table, "tanh");
  add_elementwise_row<softplus_op, 1, float, double>(table, "softplus");
  add_elementwise_row<gelu_op, 1, float, double>(table, "gelu");
  add_elementwise_row<gelu_grad_op, 2, float, double>(table, "gelu_grad");
  add_elementwise_row<gelu_tanh_op, 1, float, double>(table, "gelu_tanh");
  add_elementwise_row<clip_op, 3, float, double, std::int32_t, std::int64_t>(table, "clip");
  add_elementwise_row<relu_grad_op, 2, float, double>(table, "relu_grad");
  add_elementwise_row<sigmoid_grad_op, 2, float, double>(table, "sigmoid_grad");
  add_elementwise_row<tanh_grad_op, 2, float, double>(table, "tanh_grad");
}

}  // namespace troupe::host
