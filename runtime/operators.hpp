#pragma once
// a + b, a - b, a * b, a / b and -a of values, with numbers too: 2 * x + 1. Included by runtime/graph.hpp.
//
// An op made so is that of the function of the same meaning (add, sub, mul, div, neg), with the line of the expression. A number takes
// the element type of the other operand.

#include "runtime/graph.hpp"

#include <concepts>

namespace troupe {

// What stands beside an operator: the conversion to it happens on the user's line, which operators themselves cannot take as an
// argument.
struct operand {
  value v{};
  double number = 0;
  bool is_number = false;
  source_location where;

  operand(value x, source_location line = source_location::current()) : v(x), where(line) {}  // NOLINT: implicit
  template <class Number>
    requires std::integral<Number> || std::floating_point<Number>
  operand(Number n, source_location line = source_location::current()) : number(static_cast<double>(n)), is_number(true), where(line) {}  // NOLINT

  value like(const operand& other) const {
    return !is_number ? v : other.v.is_valid() ? constant(*other.v.owner, number, other.v.spec().type, "constant", where) : value{};
  }
};

inline value operator+(operand a, operand b) { return add(a.like(b), b.like(a), a.where); }
inline value operator-(operand a, operand b) { return sub(a.like(b), b.like(a), a.where); }
inline value operator*(operand a, operand b) { return mul(a.like(b), b.like(a), a.where); }
inline value operator/(operand a, operand b) { return div(a.like(b), b.like(a), a.where); }
inline value operator-(operand x) { return neg(x.v, x.where); }

}  // namespace troupe
