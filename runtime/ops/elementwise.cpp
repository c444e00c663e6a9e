// Element-wise ops and their gradients. The first operand has the shape of the result, so that a result may be written
// in its place and chains of these ops can be fused.

#include "runtime/ops/op_rows.hpp"

namespace troupe {
namespace ops {
namespace {

enum class fit : std::uint8_t { same, last_dimension, scalar, none };

fit fit_of(const shape& a, const shape& b) noexcept {
  if (a == b) return fit::same;
  if (b.rank() == 0) return fit::scalar;
  if (b.rank() == 1 && a.rank() >= 1 && a[a.rank() - 1] == b[0]) return fit::last_dimension;
  return fit::none;
}

constexpr std::string_view fit_rule = "b must have a's shape, the shape of a's last dimension, or be a scalar";

result<specs> binary_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (!is_floating(in[0]) || in[0].type != in[1].type) return misfit(in, {"a", "b"}, "both must be f32, or both f64");
  if (fit_of(in[0].shape, in[1].shape) == fit::none) return misfit(in, {"a", "b"}, fit_rule);
  return specs{in[0]};
}

result<specs> unary_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (!is_floating(in[0])) return misfit(in, {"x"}, "must be f32 or f64");
  return specs{in[0]};
}

// relu_grad(dy, y), ...
result<specs> unary_gradient_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (!is_floating(in[0]) || in[0] != in[1])
    return misfit(in, {"dy", "y"}, "both must be f32 or f64 and have one shape");
  return specs{in[0]};
}

// maximum_grad(dy, a, b)
result<specs> maximum_gradient_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  if (!is_floating(in[0]) || in[0] != in[1] || in[1].type != in[2].type)
    return misfit(in, {"dy", "a", "b"}, "dy must be like a, and all f32 or all f64");
  if (fit_of(in[1].shape, in[2].shape) == fit::none) return misfit(in, {"dy", "a", "b"}, fit_rule);
  if (const auto side = attrs.integer("side", -1); side != 0 && side != 1)
    return misfit(in, {"dy", "a", "b"}, fmt::format("attribute side is {}, but must be 0 or 1", side));
  return specs{in[0]};
}

value binary(std::string_view type, value a, value b, const source_location& where) {
  return append(type, {a, b}, {}, where);
}

// The gradient of an operand that was spread over `full`'s shape: summed back to its own.
value sum_to(value full, const value& operand, const source_location& where) {
  if (!full.is_valid()) return {};
  switch (fit_of(full.spec().shape, operand.spec().shape)) {
    case fit::last_dimension:
      return reduce_sum_rows(full, where);
    case fit::scalar:
      return reduce_sum(full, where);
    default:
      return full;
  }
}

using gradients = std::vector<value>;

gradients add_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {dy[0], sum_to(dy[0], n.inputs[1], n.source)};
}

gradients sub_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {dy[0], append("neg", {sum_to(dy[0], n.inputs[1], n.source)}, {}, n.source)};
}

gradients mul_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], n.inputs[1], n.source),
          sum_to(binary("mul", dy[0], n.inputs[0], n.source), n.inputs[1], n.source)};
}

gradients maximum_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto side = [&](std::int64_t s) {
    return append("maximum_grad", {dy[0], n.inputs[0], n.inputs[1]}, attributes{{"side", s}}, n.source);
  };
  const auto da = side(0);
  return {da, sum_to(side(1), n.inputs[1], n.source)};
}

gradients neg_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {append("neg", {dy[0]}, {}, n.source)};
}

// The gradients of these need the result only, so that the operand is not kept.
gradient_rule gradient_from_result(std::string type) {
  return [type = std::move(type)](graph& g, const graph_node& n, std::span<const value> dy) -> gradients {
    return {append(type, {dy[0], value{&g, n.index, 0}}, {}, n.source)};
  };
}

// d relu_grad(dy, y) / d dy is relu_grad again; in y it is 0 almost everywhere.
gradients relu_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("relu_grad", {d[0], n.inputs[1]}, {}, n.source), value{}};
}

}  // namespace

void add_elementwise(op_table& t) {
  const auto row = [&](const char* name, std::uint32_t inputs, shape_rule shapes, gradient_rule gradient) {
    t.add(name,
          {.inputs = inputs, .shapes = std::move(shapes), .gradient = std::move(gradient), .is_elementwise = true});
  };
  row("add", 2, binary_shapes, add_gradient);
  row("sub", 2, binary_shapes, sub_gradient);
  row("mul", 2, binary_shapes, mul_gradient);
  row("maximum", 2, binary_shapes, maximum_gradient);
  row("neg", 1, unary_shapes, neg_gradient);
  row("relu", 1, unary_shapes, gradient_from_result("relu_grad"));
  row("sigmoid", 1, unary_shapes, gradient_from_result("sigmoid_grad"));
  row("tanh", 1, unary_shapes, gradient_from_result("tanh_grad"));
  row("relu_grad", 2, unary_gradient_shapes, relu_grad_gradient);
  row("sigmoid_grad", 2, unary_gradient_shapes, {});
  row("tanh_grad", 2, unary_gradient_shapes, {});
  row("maximum_grad", 3, maximum_gradient_shapes, {});
  // What a worker sees of a variable: the version that its shard sent, for everybody who uses it in that step.
  t.add("read", {.inputs = 1, .shapes = unary_shapes, .gradient = {}, .is_forwarding = true});
  // Operand 0, once all others are there: the compiler adds those that must have come before (runtime/passes/replicate.cpp).
  t.add("after", {.inputs = 1, .shapes = unary_shapes, .gradient = {}, .is_forwarding = true});
}

}  // namespace ops

value add(value a, value b, source_location where) {
  return ops::append("add", {a, b}, {}, where);
}
value sub(value a, value b, source_location where) {
  return ops::append("sub", {a, b}, {}, where);
}
value mul(value a, value b, source_location where) {
  return ops::append("mul", {a, b}, {}, where);
}
value maximum(value a, value b, source_location where) {
  return ops::append("maximum", {a, b}, {}, where);
}
value relu(value x, source_location where) {
  return ops::append("relu", {x}, {}, where);
}
value sigmoid(value x, source_location where) {
  return ops::append("sigmoid", {x}, {}, where);
}
value tanh(value x, source_location where) {
  return ops::append("tanh", {x}, {}, where);
}

}  // namespace troupe
