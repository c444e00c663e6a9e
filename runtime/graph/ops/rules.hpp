#pragma once
// What shape rules and gradient rules of several families share. Only runtime/graph/ops/ includes
// this.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <optional>

namespace troupe::ops {

// --- shapes ---

// NumPy's rule: aligned at the last dimension, sizes are equal or one of them is exactly 1.
// nullopt: they are not.
std::optional<shape> broadcast(const shape& a, const shape& b) noexcept;

// Element-wise: all operands have one element type, which is in `types`, and are broadcast to the
// result, which is of that type or of `out`. `names` are literals.
shape_rule elementwise(std::initializer_list<std::string_view> names, dtype_set types,
                       std::optional<dtype> out = std::nullopt);

// A row of the table for such an op.
void add_elementwise(op_table& t, const char* name,
                     std::initializer_list<std::string_view> operands, dtype_set types,
                     gradient_rule gradient, std::optional<dtype> out = std::nullopt);

// Axes from 0 in ascending order, none given: all. An error: an axis that x does not have, or one
// named twice.
result<std::vector<std::int64_t>> axes_of(std::vector<std::int64_t> axes, std::size_t rank,
                                          bool none_is_all);
// What is left of x when these are reduced, `keep`: with size 1 where they were.
tensor_spec reduced(const tensor_spec& x, const std::vector<std::int64_t>& axes, bool keep);

// --- gradients ---

using gradients = std::vector<value>;

// A scalar of the type of `like`.
value number(const value& like, double n, const source_location& where);
// What `rule` makes of x. Nothing but products computes in f16 and bf16: it then gets x as f32, and
// its result is rounded once.
template <class Rule>
value in_f32(const value& x, const source_location& where, Rule rule) {
  if (!x.is_valid() || !halves.has(x.spec().type)) return rule(x);
  const auto y = rule(cast(x, dtype::f32, where));
  return y.is_valid() ? cast(y, x.spec().type, where) : y;
}
// A rule for f16 and bf16 out of one for f32, which looks at operands and gradients alone, not at
// results.
gradient_rule through_f32(gradient_rule rule);
// The gradient of an operand that was broadcast to `full`: summed back to the operand's shape.
value sum_to(value full, const value& operand, const source_location& where);

// Element-wise ops, with nothing but the line.
inline value unary(std::string_view type, value x, const source_location& where) {
  return append(type, {x}, {}, where);
}
inline value binary(std::string_view type, value a, value b, const source_location& where) {
  return append(type, {a, b}, {}, where);
}

}  // namespace troupe::ops
