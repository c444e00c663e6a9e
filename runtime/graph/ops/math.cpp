// Exponentials, logarithms, roots, sines, rounding.

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
value floor(value x, source_location where) { return ops::unary("floor", x, where); }
value ceil(value x, source_location where) { return ops::unary("ceil", x, where); }
value round(value x, source_location where) { return ops::unary("round", x, where); }

}  // namespace troupe
