#pragma once
// a + b, a - b, a * b, a / b, their assignments (x += b), and -a of values, with numbers too: 2 *
// x + 1.
//
// An op made so is that of the function of the same meaning (add, sub, mul, div, neg), with the
// line of the expression. A number takes the element type of the other operand.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <concepts>
#include <cstdint>
#include <span>
#include <utility>

namespace troupe {

// What stands beside an operator: the conversion to it happens on the user's line, which operators
// themselves cannot take as an argument.
struct operand {
  value v{};
  double number = 0;
  std::int64_t whole = 0;  // the number, if it is one
  bool is_number = false;
  source_location where;

  // NOLINTNEXTLINE: implicit
  operand(value x, source_location line = source_location::current()) : v(x), where(line) {}
  template <class Number>
    requires std::integral<Number> || std::floating_point<Number>
  // NOLINTNEXTLINE
  operand(Number n, source_location line = source_location::current())
      : number(static_cast<double>(n)), is_number(true), where(line) {
    if constexpr (std::integral<Number>)
      if (std::in_range<std::int64_t>(n)) whole = static_cast<std::int64_t>(n);
  }

  value like(const operand& other) const {
    if (!is_number) return v;
    if (!other.v.is_valid()) return {};
    auto& g = *other.v.owner;
    const auto type = g.has(other.v) ? other.v.spec().type : dtype::f32;
    // A double has no whole numbers beyond 2^53 but even ones.
    constexpr std::int64_t exact = std::int64_t{1} << 53;
    if (type == dtype::i64 && (whole < -exact || whole > exact))
      return constant(g, tensor::of<std::int64_t>(type, {}, std::span(&whole, 1)), "constant",
                      where);
    return constant(g, number, type, "constant", where);
  }
};

inline value operator+(operand a, operand b) { return add(a.like(b), b.like(a), a.where); }
inline value operator-(operand a, operand b) { return sub(a.like(b), b.like(a), a.where); }
inline value operator*(operand a, operand b) { return mul(a.like(b), b.like(a), a.where); }
inline value operator/(operand a, operand b) { return div(a.like(b), b.like(a), a.where); }
inline value operator-(operand x) { return neg(x.v, x.where); }
// Another value takes the place of x.
inline value& operator+=(value& x, operand b) {
  return x = add(x, b.like(operand(x, b.where)), b.where);
}
inline value& operator-=(value& x, operand b) {
  return x = sub(x, b.like(operand(x, b.where)), b.where);
}
inline value& operator*=(value& x, operand b) {
  return x = mul(x, b.like(operand(x, b.where)), b.where);
}
inline value& operator/=(value& x, operand b) {
  return x = div(x, b.like(operand(x, b.where)), b.where);
}

}  // namespace troupe
