// Exponentials, logarithms, roots, sines, rounding. Those of f64 that need a library call are not vectorised.

#include "devices/host/elementwise_tiles.hpp"
#include "devices/host/vector_math.hpp"

#include <cmath>

namespace troupe::host {
namespace {

struct exp_op {
  static float apply(float x) { return vector_math::exp(x); }
  static double apply(double x) { return std::exp(x); }
};
struct log_op {
  static float apply(float x) { return vector_math::log_of_any(x); }
  static double apply(double x) { return std::log(x); }
};
struct sqrt_op {
  static auto apply(auto x) { return std::sqrt(x); }
};
struct rsqrt_op {
  template <class T>
  static T apply(T x) { return T{1} / std::sqrt(x); }
};
struct erf_op {
  static float apply(float x) { return vector_math::erf(x); }
  static double apply(double x) { return std::erf(x); }
};
struct sin_op {
  static float apply(float x) { return vector_math::sin(x); }
  static double apply(double x) { return std::sin(x); }
};
struct cos_op {
  static float apply(float x) { return vector_math::cos(x); }
  static double apply(double x) { return std::cos(x); }
};
struct floor_op {
  static auto apply(auto x) { return std::floor(x); }
};
struct ceil_op {
  static auto apply(auto x) { return std::ceil(x); }
};
struct round_op {  // halves to even, as in NumPy
  static auto apply(auto x) { return std::nearbyint(x); }
};

}  // namespace

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
