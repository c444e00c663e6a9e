// Sums, products, differences, quotients, powers, extremes. Whole numbers wrap around, as in NumPy.

#include "devices/host/elementwise_tiles.hpp"
#include "devices/host/vector_math.hpp"

#include <cmath>
#include <type_traits>

namespace troupe::host {
namespace {

// Signed overflow is undefined in C++, unsigned is not.
template <class T>
auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<std::make_unsigned_t<T>>(x);
  else
    return x;
}

struct add_op {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(wrapping(a) + wrapping(b)); }
};
struct sub_op {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(wrapping(a) - wrapping(b)); }
};
struct mul_op {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(wrapping(a) * wrapping(b)); }
};
struct div_op {  // of whole numbers: by 0 it is 0, and the least one by -1 wraps around
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      return b == -1 ? static_cast<T>(0U - wrapping(a)) : static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};
struct maximum_op {  // equal elements: a; a NaN on either side: NaN
  static auto apply(auto a, auto b) { return a >= b || a != a ? a : b; }
};
struct minimum_op {
  static auto apply(auto a, auto b) { return a <= b || a != a ? a : b; }
};
struct pow_op {
  static float apply(float a, float b) { return vector_math::pow(a, b); }
  static double apply(double a, double b) { return std::pow(a, b); }
};
struct neg_op {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(0U - wrapping(x));
    else return -x;
  }
};
struct abs_op {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_integral_v<T>) return x < 0 ? static_cast<T>(0U - wrapping(x)) : x;
    else return std::abs(x);
  }
};
struct sign_op {  // of 0 and NaN: they themselves
  template <class T>
  static T apply(T x) { return x > T{} ? T{1} : x < T{} ? T{-1} : x; }
};
struct square_op {
  template <class T>
  static T apply(T x) { return static_cast<T>(wrapping(x) * wrapping(x)); }
};
struct reciprocal_op {
  template <class T>
  static T apply(T x) { return T{1} / x; }
};
struct fused_multiply_add_op {  // a b + c, rounded once
  static auto apply(auto a, auto b, auto c) { return std::fma(a, b, c); }
};

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
  add_elementwise_row<neg_op, 1, float, double, i32, i64>(table, "neg");
  add_elementwise_row<abs_op, 1, float, double, i32, i64>(table, "abs");
  add_elementwise_row<sign_op, 1, float, double, i32, i64>(table, "sign");
  add_elementwise_row<square_op, 1, float, double, i32, i64>(table, "square");
  add_elementwise_row<reciprocal_op, 1, float, double>(table, "reciprocal");
  add_elementwise_row<fused_multiply_add_op, 3, float, double>(table, "fused_multiply_add");
}

}  // namespace troupe::host
