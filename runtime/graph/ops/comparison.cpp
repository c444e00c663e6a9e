// Comparisons, logic, choice, and conversion between element types.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>

namespace troupe {
namespace ops {
namespace {

// where(condition, a, b)
result<specs> where_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  static constexpr std::array names{std::string_view("condition"), std::string_view("a"),
                                    std::string_view("b")};
  if (in[0].type != dtype::boolean) return misfit(in, names, "the condition must be bool");
  if (in[1].type != in[2].type) return misfit(in, names, "a and b must have one element type");
  const auto both = broadcast(in[1].shape, in[2].shape);
  const auto all = both ? broadcast(in[0].shape, *both) : std::nullopt;
  if (!all)
    return misfit(
        in, names,
        "shapes cannot be broadcast: sizes, from the last dimension on, must be equal or one of them 1");
  return specs{{in[1].type, *all}};
}

gradients where_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& condition = n.inputs[0];
  const auto zero = number(dy[0], 0, n.source);
  return {value{},
          sum_to(append("where", {condition, dy[0], zero}, {}, n.source), n.inputs[1], n.source),
          sum_to(append("where", {condition, zero, dy[0]}, {}, n.source), n.inputs[2], n.source)};
}

result<specs> cast_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto to = attrs.integer("to", -1);
  if (to < 0 || to >= dtype_count)
    return misfit(in, {"x"}, fmt::format("attribute to is {}, which is no element type", to));
  return specs{{static_cast<dtype>(to), in[0].shape}};
}

// Between floating types the gradient is converted back; elsewhere there is none.
gradients cast_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto from = n.inputs[0].spec().type;
  return {any_floating.has(from) && any_floating.has(n.outputs[0].type)
              ? cast(dy[0], from, n.source)
              : value{}};
}

}  // namespace

void add_comparisons(op_table& t) {
  const auto truth = dtype::boolean;
  const auto ordered = numbers | dtype_set{dtype::u8};
  for (const auto* name : {"equal", "not_equal"})
    add_elementwise(t, name, {"a", "b"}, ordered | dtype_set{truth}, no_gradient, truth);
  for (const auto* name : {"less", "less_equal", "greater", "greater_equal"})
    add_elementwise(t, name, {"a", "b"}, ordered, no_gradient, truth);
  for (const auto* name : {"logical_and", "logical_or", "logical_xor"})
    add_elementwise(t, name, {"a", "b"}, {truth}, no_gradient, truth);
  add_elementwise(t, "logical_not", {"x"}, {truth}, no_gradient, truth);
  add_elementwise(t, "is_nan", {"x"}, floating, no_gradient, truth);
  t.add("where", {.inputs = 3,
                  .shapes = where_shapes,
                  .gradient = where_gradient,
                  .is_elementwise = true,
                  .types = {dtype::boolean}});
  t.add("cast", {.inputs = 1,
                 .shapes = cast_shapes,
                 .gradient = cast_gradient,
                 .is_elementwise = true,
                 .types = all_types});
}

}  // namespace ops

value equal(value a, value b, source_location where) { return ops::binary("equal", a, b, where); }
value not_equal(value a, value b, source_location where) {
  return ops::binary("not_equal", a, b, where);
}
value less(value a, value b, source_location where) { return ops::binary("less", a, b, where); }
value less_equal(value a, value b, source_location where) {
  return ops::binary("less_equal", a, b, where);
}
value greater(value a, value b, source_location where) {
  return ops::binary("greater", a, b, where);
}
value greater_equal(value a, value b, source_location where) {
  return ops::binary("greater_equal", a, b, where);
}
value logical_and(value a, value b, source_location where) {
  return ops::binary("logical_and", a, b, where);
}
value logical_or(value a, value b, source_location where) {
  return ops::binary("logical_or", a, b, where);
}
value logical_xor(value a, value b, source_location where) {
  return ops::binary("logical_xor", a, b, where);
}
value logical_not(value x, source_location where) { return ops::unary("logical_not", x, where); }
value is_nan(value x, source_location where) { return ops::unary("is_nan", x, where); }
value where(value condition, value a, value b, source_location line) {
  return ops::append("where", {condition, a, b}, {}, line);
}
value cast(value x, dtype to, source_location where) {
  return ops::append("cast", {x}, attributes{{"to", std::int64_t{static_cast<std::uint8_t>(to)}}},
                     where);
}

}  // namespace troupe
