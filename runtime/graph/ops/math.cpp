// Exponentials, logarithms, roots, trigonometric and hyperbolic functions, rounding.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <numbers>

namespace troupe {
namespace ops {
namespace {

value result_of(graph& g, const graph_node& n) { return {&g, n.index, 0}; }

gradients exp_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], result_of(g, n), n.source)};
}

gradients log_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("div", dy[0], n.inputs[0], n.source)};
}

// y = sqrt(x): dy / (2 y).
gradients sqrt_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto half = binary("mul", dy[0], number(dy[0], 0.5, n.source), n.source);
  return {binary("div", half, result_of(g, n), n.source)};
}

// y = x^(-1/2): -dy y^3 / 2.
gradients rsqrt_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto y = result_of(g, n);
  const auto cube = binary("mul", y, unary("square", y, n.source), n.source);
  return {
      binary("mul", binary("mul", dy[0], number(dy[0], -0.5, n.source), n.source), cube, n.source)};
}

gradients sin_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("cos", n.inputs[0], n.source), n.source)};
}
gradients cos_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {
      unary("neg", binary("mul", dy[0], unary("sin", n.inputs[0], n.source), n.source), n.source)};
}

// --- of what follows, s is 1 + x^2, 1 - x^2 or x^2 - 1, the last two as products: exact near 1 ---

value one_like(const graph_node& n) { return number(n.inputs[0], 1, n.source); }
value one_and_square(const graph_node& n) {
  return binary("add", unary("square", n.inputs[0], n.source), one_like(n), n.source);
}
value one_less_square(const graph_node& n) {
  const auto &x = n.inputs[0], one = one_like(n);
  return binary("mul", binary("sub", one, x, n.source), binary("add", one, x, n.source), n.source);
}
value square_less_one(const graph_node& n) {
  const auto &x = n.inputs[0], one = one_like(n);
  return binary("mul", binary("sub", x, one, n.source), binary("add", x, one, n.source), n.source);
}

// dy (1 + y^2).
gradients tan_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto slope =
      binary("add", unary("square", result_of(g, n), n.source), one_like(n), n.source);
  return {binary("mul", dy[0], slope, n.source)};
}
// dy e^x, which keeps its digits where y + 1 loses them.
gradients expm1_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("exp", n.inputs[0], n.source), n.source)};
}
gradients log1p_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("div", dy[0], binary("add", n.inputs[0], one_like(n), n.source), n.source)};
}
gradients asin_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("rsqrt", one_less_square(n), n.source), n.source)};
}
gradients acos_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  return {unary("neg", asin_gradient(g, n, dy)[0], n.source)};
}
gradients atan_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("div", dy[0], one_and_square(n), n.source)};
}
gradients sinh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("cosh", n.inputs[0], n.source), n.source)};
}
gradients cosh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("sinh", n.inputs[0], n.source), n.source)};
}
gradients asinh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("rsqrt", one_and_square(n), n.source), n.source)};
}
gradients acosh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("rsqrt", square_less_one(n), n.source), n.source)};
}
gradients atanh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("div", dy[0], one_less_square(n), n.source)};
}

// 2 / sqrt(pi) e^(-x^2) dy.
gradients erf_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto bell =
      unary("exp", unary("neg", unary("square", n.inputs[0], n.source), n.source), n.source);
  const auto scaled =
      binary("mul", dy[0], number(dy[0], 2 * std::numbers::inv_sqrtpi, n.source), n.source);
  return {binary("mul", scaled, bell, n.source)};
}

}  // namespace

void add_math(op_table& t) {
  add_elementwise(t, "exp", {"x"}, floating, exp_gradient);
  add_elementwise(t, "log", {"x"}, floating, log_gradient);
  add_elementwise(t, "sqrt", {"x"}, floating, sqrt_gradient);
  add_elementwise(t, "rsqrt", {"x"}, floating, rsqrt_gradient);
  add_elementwise(t, "erf", {"x"}, floating, erf_gradient);
  add_elementwise(t, "sin", {"x"}, floating, sin_gradient);
  add_elementwise(t, "cos", {"x"}, floating, cos_gradient);
  add_elementwise(t, "tan", {"x"}, floating, tan_gradient);
  add_elementwise(t, "expm1", {"x"}, floating, expm1_gradient);
  add_elementwise(t, "log1p", {"x"}, floating, log1p_gradient);
  add_elementwise(t, "asin", {"x"}, floating, asin_gradient);
  add_elementwise(t, "acos", {"x"}, floating, acos_gradient);
  add_elementwise(t, "atan", {"x"}, floating, atan_gradient);
  add_elementwise(t, "sinh", {"x"}, floating, sinh_gradient);
  add_elementwise(t, "cosh", {"x"}, floating, cosh_gradient);
  add_elementwise(t, "asinh", {"x"}, floating, asinh_gradient);
  add_elementwise(t, "acosh", {"x"}, floating, acosh_gradient);
  add_elementwise(t, "atanh", {"x"}, floating, atanh_gradient);
  for (const auto* name : {"floor", "ceil", "round"})
    add_elementwise(t, name, {"x"}, floating, no_gradient);
}

}  // namespace ops

value exp(value x, source_location where) { return ops::unary("exp", x, where); }
value log(value x, source_location where) { return ops::unary("log", x, where); }
value sqrt(value x, source_location where) { return ops::unary("sqrt", x, where); }
value rsqrt(value x, source_location where) { return ops::unary("rsqrt", x, where); }
value erf(value x, source_location where) { return ops::unary("erf", x, where); }
value sin(value x, source_location where) { return ops::unary("sin", x, where); }
value cos(value x, source_location where) { return ops::unary("cos", x, where); }
value tan(value x, source_location where) { return ops::unary("tan", x, where); }
value expm1(value x, source_location where) { return ops::unary("expm1", x, where); }
value log1p(value x, source_location where) { return ops::unary("log1p", x, where); }
value asin(value x, source_location where) { return ops::unary("asin", x, where); }
value acos(value x, source_location where) { return ops::unary("acos", x, where); }
value atan(value x, source_location where) { return ops::unary("atan", x, where); }
value sinh(value x, source_location where) { return ops::unary("sinh", x, where); }
value cosh(value x, source_location where) { return ops::unary("cosh", x, where); }
value asinh(value x, source_location where) { return ops::unary("asinh", x, where); }
value acosh(value x, source_location where) { return ops::unary("acosh", x, where); }
value atanh(value x, source_location where) { return ops::unary("atanh", x, where); }
value floor(value x, source_location where) { return ops::unary("floor", x, where); }
value ceil(value x, source_location where) { return ops::unary("ceil", x, where); }
value round(value x, source_location where) { return ops::unary("round", x, where); }

}  // namespace troupe
