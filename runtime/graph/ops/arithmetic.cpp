// Sums, products, differences, quotients, powers, extremes.

#include "troupe/runtime/graph/ops/rules.hpp"

namespace troupe {
namespace ops {
namespace {

gradients add_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {sum_to(dy[0], n.inputs[0], n.source), sum_to(dy[0], n.inputs[1], n.source)};
}

gradients sub_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {sum_to(dy[0], n.inputs[0], n.source),
          unary("neg", sum_to(dy[0], n.inputs[1], n.source), n.source)};
}

gradients mul_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {sum_to(binary("mul", dy[0], n.inputs[1], n.source), n.inputs[0], n.source),
          sum_to(binary("mul", dy[0], n.inputs[0], n.source), n.inputs[1], n.source)};
}

// y = a / b: da = dy / b, db = -dy y / b.
gradients div_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto da = binary("div", dy[0], n.inputs[1], n.source);
  return {sum_to(da, n.inputs[0], n.source),
          unary("neg",
                sum_to(binary("mul", da, value{&g, n.index, 0}, n.source), n.inputs[1], n.source),
                n.source)};
}

// All to the one that is chosen, to a where they are equal.
gradient_rule extreme_gradient(std::string_view b_wins) {
  return [b_wins](graph&, const graph_node& n, std::span<const value> dy) -> gradients {
    const auto is_b = binary(b_wins, n.inputs[0], n.inputs[1], n.source);
    const auto zero = number(dy[0], 0, n.source);
    return {sum_to(append("where", {is_b, zero, dy[0]}, {}, n.source), n.inputs[0], n.source),
            sum_to(append("where", {is_b, dy[0], zero}, {}, n.source), n.inputs[1], n.source)};
  };
}

// y = a^b: da = dy b a^(b - 1), and 0 where b is 0, db = dy y ln a, and 0 where y is 0.
gradients pow_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto &a = n.inputs[0], &b = n.inputs[1];
  const auto y = value{&g, n.index, 0};
  const auto zero = number(dy[0], 0, where);
  const auto slope = binary(
      "mul", b, binary("pow", a, binary("sub", b, number(b, 1, where), where), where), where);
  const auto da =
      binary("mul", dy[0],
             append("where", {binary("equal", b, zero, where), zero, slope}, {}, where), where);
  const auto growth = binary("mul", y, unary("log", a, where), where);
  const auto db =
      binary("mul", dy[0],
             append("where", {binary("equal", y, zero, where), zero, growth}, {}, where), where);
  return {sum_to(da, a, where), sum_to(db, b, where)};
}

// y = a - q b with a whole q: da = dy, db = -q dy. Where it jumps, neither side is meant.
gradients fmod_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto &a = n.inputs[0], &b = n.inputs[1];
  const auto taken = binary("sub", a, value{&g, n.index, 0}, where);
  const auto times = unary("round", binary("div", taken, b, where), where);
  return {sum_to(dy[0], a, where),
          unary("neg", sum_to(binary("mul", dy[0], times, where), b, where), where)};
}

gradients neg_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {unary("neg", dy[0], n.source)};
}

gradients abs_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], unary("sign", n.inputs[0], n.source), n.source)};
}

gradients square_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {binary("mul", dy[0], binary("mul", n.inputs[0], number(dy[0], 2, n.source), n.source),
                 n.source)};
}

gradients reciprocal_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto y = value{&g, n.index, 0};
  return {unary("neg", binary("mul", dy[0], unary("square", y, n.source), n.source), n.source)};
}

gradients fused_multiply_add_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {sum_to(binary("mul", dy[0], n.inputs[1], n.source), n.inputs[0], n.source),
          sum_to(binary("mul", dy[0], n.inputs[0], n.source), n.inputs[1], n.source),
          sum_to(dy[0], n.inputs[2], n.source)};
}

}  // namespace

void add_arithmetic(op_table& t) {
  const auto two = {std::string_view("a"), std::string_view("b")};
  const auto one = {std::string_view("x")};
  add_elementwise(t, "add", two, numbers, add_gradient);
  add_elementwise(t, "sub", two, numbers, sub_gradient);
  add_elementwise(t, "mul", two, numbers, mul_gradient);
  add_elementwise(t, "div", two, numbers, div_gradient);
  add_elementwise(t, "maximum", two, numbers, extreme_gradient("less"));
  add_elementwise(t, "minimum", two, numbers, extreme_gradient("greater"));
  add_elementwise(t, "pow", two, floating, pow_gradient);
  add_elementwise(t, "fmod", two, floating, fmod_gradient);
  add_elementwise(t, "neg", one, numbers, neg_gradient);
  add_elementwise(t, "abs", one, numbers, abs_gradient);
  add_elementwise(t, "sign", one, numbers, no_gradient);
  add_elementwise(t, "square", one, numbers, square_gradient);
  add_elementwise(t, "reciprocal", one, floating, reciprocal_gradient);
  add_elementwise(t, "fused_multiply_add", {"a", "b", "c"}, floating, fused_multiply_add_gradient);
}

}  // namespace ops

value add(value a, value b, source_location where) { return ops::binary("add", a, b, where); }
value sub(value a, value b, source_location where) { return ops::binary("sub", a, b, where); }
value mul(value a, value b, source_location where) { return ops::binary("mul", a, b, where); }
value div(value a, value b, source_location where) { return ops::binary("div", a, b, where); }
value maximum(value a, value b, source_location where) {
  return ops::binary("maximum", a, b, where);
}
value minimum(value a, value b, source_location where) {
  return ops::binary("minimum", a, b, where);
}
value pow(value a, value b, source_location where) { return ops::binary("pow", a, b, where); }
value fmod(value a, value b, source_location where) { return ops::binary("fmod", a, b, where); }
value neg(value x, source_location where) { return ops::unary("neg", x, where); }
value abs(value x, source_location where) { return ops::unary("abs", x, where); }
value sign(value x, source_location where) { return ops::unary("sign", x, where); }
value square(value x, source_location where) { return ops::unary("square", x, where); }
value reciprocal(value x, source_location where) { return ops::unary("reciprocal", x, where); }
value fused_multiply_add(value a, value b, value c, source_location where) {
  return ops::append("fused_multiply_add", {a, b, c}, {}, where);
}

}  // namespace troupe
