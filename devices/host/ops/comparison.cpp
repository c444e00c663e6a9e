// Comparisons, logic, choice, and conversion between element types.

#include "devices/host/elementwise_tiles.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace troupe::host {
namespace {

struct equal_op {
  static bool apply(auto a, auto b) { return a == b; }
};
struct not_equal_op {
  static bool apply(auto a, auto b) { return a != b; }
};
struct less_op {
  static bool apply(auto a, auto b) { return a < b; }
};
struct less_equal_op {
  static bool apply(auto a, auto b) { return a <= b; }
};
struct greater_op {
  static bool apply(auto a, auto b) { return a > b; }
};
struct greater_equal_op {
  static bool apply(auto a, auto b) { return a >= b; }
};
struct and_op {
  static bool apply(bool a, bool b) { return a & b; }
};
struct or_op {
  static bool apply(bool a, bool b) { return a | b; }
};
struct xor_op {
  static bool apply(bool a, bool b) { return a != b; }
};
struct not_op {
  static bool apply(bool x) { return !x; }
};
struct is_nan_op {
  static bool apply(auto x) { return x != x; }
};
struct where_op {
  template <class T>
  static T apply(boolean c, T a, T b) { return c ? a : b; }
};

struct first_op {  // the other one says how large
  template <class T>
  static T apply(T x, T) { return x; }
};

template <class Op, class... T>
constexpr std::array<elementwise_overload, sizeof...(T)> predicates_of = {overload_of<Op, boolean, T, T>()...};

template <class Op>
void add_comparison(kernel_table& table, std::string_view op) {
  add_elementwise_row(table, op, predicates_of<Op, float, double, std::int32_t, std::int64_t, std::uint8_t>);
}
template <class Op>
void add_equality(kernel_table& table, std::string_view op) {
  add_elementwise_row(table, op, predicates_of<Op, float, double, std::int32_t, std::int64_t, std::uint8_t, boolean>);
}

// --- cast ---

// What is widened first, and what is narrowed last.
inline float widened(f16 x) { return to_f32(x); }
inline float widened(bf16 x) { return to_f32(x); }
inline std::uint8_t widened(boolean x) { return x ? 1 : 0; }
auto widened(auto x) { return x; }

// Fractions are cut off. What does not fit becomes the nearest number that does, and NaN 0: C++ leaves both open, and processors differ.
template <class To, class From>
To saturated(From x) {
  if constexpr (std::is_floating_point_v<From>) {
    // The first numbers beyond the range are powers of two, and so exact in every floating type.
    constexpr From above = static_cast<From>(std::uint64_t{1} << (std::numeric_limits<To>::digits - 1)) * 2;
    constexpr From below = std::is_signed_v<To> ? -above : From{0};
    if (!(x == x)) return To{0};
    if (x >= above) return std::numeric_limits<To>::max();
    if (x < below) return std::numeric_limits<To>::min();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);  // wraps around, as whole numbers do
  }
}

template <class To>
struct cast_op {
  static To apply(auto from) {
    const auto x = widened(from);
    if constexpr (std::is_same_v<To, boolean>) return boolean(x != decltype(x){});
    else if constexpr (std::is_same_v<To, f16>) return to_f16(static_cast<float>(x));
    else if constexpr (std::is_same_v<To, bf16>) return to_bf16(static_cast<float>(x));
    else if constexpr (std::is_integral_v<To>) return saturated<To>(x);
    else return static_cast<To>(x);
  }
};

template <class To, class... From>
constexpr std::array<elementwise_overload, sizeof...(From)> casts_to() {
  return {overload_of<cast_op<To>, To, From>()...};
}

template <class... T>
struct all_types {
  static constexpr std::size_t count = sizeof...(T);
  static constexpr std::array<elementwise_overload, count * count> casts() {
    std::array<elementwise_overload, count * count> all{};
    std::size_t i = 0;
    const auto append = [&](const auto& some) {
      for (const auto& o : some) all[i++] = o;
    };
    (append(casts_to<T, T...>()), ...);
    return all;
  }
  static constexpr std::array<elementwise_overload, count> firsts() { return {overload_of<first_op, T, T, T>()...}; }
  static constexpr std::array<elementwise_overload, count> choices() { return {overload_of<where_op, T, boolean, T, T>()...}; }
};

using every_type = all_types<float, double, std::int32_t, std::int64_t, std::uint8_t, f16, bf16, boolean>;
constexpr auto cast_overloads = every_type::casts();
constexpr auto broadcast_overloads = every_type::firsts();
constexpr auto where_overloads = every_type::choices();
constexpr std::array<elementwise_overload, 2> is_nan_overloads = {overload_of<is_nan_op, boolean, float>(), overload_of<is_nan_op, boolean, double>()};

}  // namespace

void add_comparison_kernels(kernel_table& table) {
  add_equality<equal_op>(table, "equal");
  add_equality<not_equal_op>(table, "not_equal");
  add_comparison<less_op>(table, "less");
  add_comparison<less_equal_op>(table, "less_equal");
  add_comparison<greater_op>(table, "greater");
  add_comparison<greater_equal_op>(table, "greater_equal");
  add_elementwise_row<and_op, 2, boolean>(table, "logical_and");
  add_elementwise_row<or_op, 2, boolean>(table, "logical_or");
  add_elementwise_row<xor_op, 2, boolean>(table, "logical_xor");
  add_elementwise_row<not_op, 1, boolean>(table, "logical_not");
  add_elementwise_row(table, "is_nan", is_nan_overloads);
  add_elementwise_row(table, "where", where_overloads);
  add_elementwise_row(table, "cast", cast_overloads);
  add_elementwise_row(table, "broadcast_like", broadcast_overloads);
}

}  // namespace troupe::host
