// What stands behind layers, and the gradients of those that follow from the result.

#include "devices/host/elementwise_tiles.hpp"
#include "devices/host/vector_math.hpp"

#include <cmath>

namespace troupe::host {
namespace {

struct relu_op {  // a NaN stays
  static auto apply(auto x) { return x < decltype(x){} ? decltype(x){} : x; }
};
struct leaky_relu_op {
  static auto apply(auto x, auto slope) { return x < decltype(x){} ? slope * x : x; }
};
struct sigmoid_op {
  static float apply(float x) { return vector_math::sigmoid(x); }
  static double apply(double x) { return 1 / (1 + std::exp(-x)); }
};
struct tanh_op {
  static float apply(float x) { return vector_math::tanh(x); }
  static double apply(double x) { return std::tanh(x); }
};
struct softplus_op {
  static float apply(float x) { return vector_math::softplus(x); }
  static double apply(double x) { return (x > 0 || x != x ? x : 0) + std::log1p(std::exp(-std::abs(x))); }
};
struct gelu_op {  // x Phi(x)
  static float apply(float x) { return x * vector_math::normal_cdf(x); }
  static double apply(double x) { return 0.5 * x * std::erfc(-x * 0.70710678118654752440); }
};
struct gelu_grad_op {  // dy (Phi(x) + x phi(x))
  static float apply(float dy, float x) {
    const auto at = vector_math::normal(x);
    const float near = x < -13.0F ? -13.0F : x > 13.0F ? 13.0F : x;  // beyond, x phi(x) is nothing
    return dy * (at.cdf + near * (at.bell * 0.39894228F));
  }
  static double apply(double dy, double x) { return dy * (0.5 * std::erfc(-x * 0.70710678118654752440) + (std::abs(x) < 40 ? x * std::exp(-0.5 * x * x) * 0.39894228040143267794 : 0)); }
};
struct gelu_tanh_op {
  static float apply(float x) { return 0.5F * x * (1.0F + vector_math::tanh(0.79788456F * (x + 0.044715F * x * x * x))); }
  static double apply(double x) { return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
};
struct clip_op {  // max(low, min(x, high)), so that high wins over x and low over both; a NaN stays
  static auto apply(auto x, auto low, auto high) {
    const auto below = x > high ? high : x;
    return below < low ? low : below;
  }
};
struct relu_grad_op {
  static auto apply(auto dy, auto y) { return y > decltype(y){} ? dy : decltype(dy){}; }
};
struct sigmoid_grad_op {
  static auto apply(auto dy, auto y) { return dy * (y * (1 - y)); }
};
struct tanh_grad_op {
  static auto apply(auto dy, auto y) { return dy * (1 - y * y); }
};

}  // namespace

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
