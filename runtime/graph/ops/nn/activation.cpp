// What stands behind layers, and those of their gradients that are ops of their own since they
// follow from the result.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <cmath>
#include <numbers>

namespace troupe {
namespace ops {
namespace {

// The gradients of these need the result only, so that the operand is not kept.
gradient_rule gradient_from_result(std::string type) {
  return [type = std::move(type)](graph& g, const graph_node& n,
                                  std::span<const value> dy) -> gradients {
    return {binary(type, dy[0], value{&g, n.index, 0}, n.source)};
  };
}

// d relu_grad(dy, y) / d dy is relu_grad again; in y it is 0 almost everywhere.
gradients relu_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {sum_to(binary("relu_grad", d[0], n.inputs[1], n.source), n.inputs[0], n.source), value{}};
}

// dy y (1 - y): in dy the same again, in y it is dy (1 - 2 y).
gradients sigmoid_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &y = n.inputs[1];
  const auto slope =
      binary("sub", number(y, 1, where), binary("mul", y, number(y, 2, where), where), where);
  return {sum_to(binary("sigmoid_grad", d[0], y, where), dy, where),
          sum_to(binary("mul", d[0], binary("mul", dy, slope, where), where), y, where)};
}

// dy (1 - y^2): in dy the same again, in y it is -2 dy y.
gradients tanh_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &y = n.inputs[1];
  const auto slope = binary("mul", binary("mul", dy, y, where), number(y, -2, where), where);
  return {sum_to(binary("tanh_grad", d[0], y, where), dy, where),
          sum_to(binary("mul", d[0], slope, where), y, where)};
}

gradients leaky_relu_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto &x = n.inputs[0], &slope = n.inputs[1];
  const auto zero = number(x, 0, where);
  const auto is_low = binary("less", x, zero, where);
  return {sum_to(append("where", {is_low, binary("mul", dy[0], slope, where), dy[0]}, {}, where), x,
                 where),
          sum_to(append("where", {is_low, binary("mul", dy[0], x, where), zero}, {}, where), slope,
                 where)};
}

gradients softplus_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("sigmoid", n.inputs[0], n.source), n.source)};
}

// x Phi(x): Phi(x) + x phi(x). An op of its own, since composed of others it takes two exponentials
// and 12 passes: 6 ns an element, and 1.5 so.
gradients gelu_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("gelu_grad", dy[0], n.inputs[0], n.source)};
}

// dy (Phi(x) + x phi(x)): in dy the same again, in x it is dy phi(x) (2 - x^2).
gradients gelu_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &x = n.inputs[1];
  const auto squared = unary("square", x, where);
  const auto bell = unary("exp", binary("mul", squared, number(x, -0.5, where), where), where);
  const auto phi =
      binary("mul", bell, number(x, std::numbers::inv_sqrtpi / std::numbers::sqrt2, where), where);
  const auto slope = binary("mul", phi, binary("sub", number(x, 2, where), squared, where), where);
  return {sum_to(binary("gelu_grad", d[0], x, where), dy, where),
          sum_to(binary("mul", d[0], binary("mul", dy, slope, where), where), x, where)};
}

// x (1 + t) / 2 with t = tanh(k (x + c x^3)): (1 + t) / 2 + x (1 - t^2) k (1 + 3 c x^2) / 2.
gradients gelu_tanh_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto& x = n.inputs[0];
  constexpr double c = 0.044715;
  const double k = std::sqrt(2 / std::numbers::pi);
  const auto times = [&](value a, double b) {
    return binary("mul", a, number(a, b, where), where);
  };
  const auto plus = [&](value a, double b) { return binary("add", a, number(a, b, where), where); };
  const auto squared = unary("square", x, where);
  const auto t =
      unary("tanh", binary("mul", times(x, k), plus(times(squared, c), 1), where), where);
  const auto inner = times(plus(times(squared, 3 * c), 1), k / 2);
  const auto rest = binary("mul", binary("mul", x, inner, where),
                           plus(unary("neg", unary("square", t, where), where), 1), where);
  return {binary("mul", dy[0], binary("add", times(plus(t, 1), 0.5), rest, where), where)};
}

// max(low, min(x, high)): to the one that is chosen.
gradients clip_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto &x = n.inputs[0], &low = n.inputs[1], &high = n.inputs[2];
  const auto zero = number(dy[0], 0, where);
  const auto choose = [&](value c, value a, value b) {
    return append("where", {c, a, b}, {}, where);
  };
  const auto is_high = binary("greater", x, high, where);
  const auto is_low = binary("less", binary("minimum", x, high, where), low, where);
  const auto above_low = choose(is_low, zero, dy[0]);
  return {sum_to(choose(is_high, zero, above_low), x, where),
          sum_to(choose(is_low, dy[0], zero), low, where),
          sum_to(choose(is_high, above_low, zero), high, where)};
}

}  // namespace

void add_activations(op_table& t) {
  add_elementwise(t, "relu", {"x"}, floating, gradient_from_result("relu_grad"));
  add_elementwise(t, "leaky_relu", {"x", "slope"}, floating, leaky_relu_gradient);
  add_elementwise(t, "sigmoid", {"x"}, floating, gradient_from_result("sigmoid_grad"));
  add_elementwise(t, "tanh", {"x"}, floating, gradient_from_result("tanh_grad"));
  add_elementwise(t, "softplus", {"x"}, floating, softplus_gradient);
  add_elementwise(t, "gelu", {"x"}, floating, gelu_gradient);
  add_elementwise(t, "gelu_grad", {"dy", "x"}, floating, gelu_grad_gradient);
  add_elementwise(t, "gelu_tanh", {"x"}, floating, gelu_tanh_gradient);
  add_elementwise(t, "clip", {"x", "low", "high"}, numbers, clip_gradient);
  add_elementwise(t, "relu_grad", {"dy", "y"}, floating, relu_grad_gradient);
  add_elementwise(t, "sigmoid_grad", {"dy", "y"}, floating, sigmoid_grad_gradient);
  add_elementwise(t, "tanh_grad", {"dy", "y"}, floating, tanh_grad_gradient);
}

}  // namespace ops

value relu(value x, source_location where) { return ops::unary("relu", x, where); }
value leaky_relu(value x, double slope, source_location where) {
  return ops::binary("leaky_relu", x, ops::number(x, slope, where), where);
}
value sigmoid(value x, source_location where) { return ops::unary("sigmoid", x, where); }
value tanh(value x, source_location where) { return ops::unary("tanh", x, where); }
value gelu(value x, source_location where) { return ops::unary("gelu", x, where); }
value gelu_tanh(value x, source_location where) { return ops::unary("gelu_tanh", x, where); }
value softplus(value x, source_location where) { return ops::unary("softplus", x, where); }
value silu(value x, source_location where) { return mul(x, sigmoid(x, where), where); }
value elu(value x, double alpha, source_location where) {
  const auto zero = ops::number(x, 0, where);
  const auto below =
      mul(expm1(minimum(x, zero, where), where), ops::number(x, alpha, where), where);
  return troupe::where(greater(x, zero, where), x, below, where);
}
value clip(value x, double low, double high, source_location where) {
  return ops::append("clip", {x, ops::number(x, low, where), ops::number(x, high, where)}, {},
                     where);
}
value clip(value x, value low, value high, source_location where) {
  return ops::append("clip", {x, low, high}, {}, where);
}

}  // namespace troupe
