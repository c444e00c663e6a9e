// softmax, log_softmax and their gradients.

#include "troupe/runtime/graph/ops/rules.hpp"

namespace troupe {
namespace ops {
namespace {

shape_rule along_axis(std::vector<std::string_view> names) {
  return [names = std::move(names)](const attributes& attrs, std::span<const tensor_spec> in,
                                    const tag*) -> result<specs> {
    if (!floating.has(in[0].type)) return misfit(in, names, "the element type must be f32 or f64");
    for (const auto& s : in)
      if (s != in[0]) return misfit(in, names, "operands must have the same type and shape");
    if (const auto axis = axes_of({attrs.integer("axis", -1)}, in[0].shape.rank(), false); !axis)
      return misfit(in, names, axis.error().message());
    return specs{in[0]};
  };
}

value total(value x, const graph_node& n) {
  return reduce_sum(x, {n.attrs.integer("axis", -1)}, true, n.source);
}

gradient_rule gradient_with_attributes(std::string type) {
  return [type = std::move(type)](graph& g, const graph_node& n,
                                  std::span<const value> dy) -> gradients {
    return {append(type, {dy[0], value{&g, n.index, 0}}, n.attrs, n.source)};
  };
}

// y (dy - sum(dy y)): in dy the same again; in y: d dy - d sum(dy y) - dy sum(d y).
gradients softmax_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &y = n.inputs[1];
  const auto of_y = sub(mul(d[0], sub(dy, total(mul(dy, y, where), n), where), where),
                        mul(dy, total(mul(d[0], y, where), n), where), where);
  return {append("softmax_grad", {d[0], y}, n.attrs, where), of_y};
}

// dy - exp(y) sum(dy): in dy: d - sum(d exp(y)); in y: -d exp(y) sum(dy).
gradients log_softmax_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &y = n.inputs[1];
  const auto weighed = mul(d[0], exp(y, where), where);
  return {sub(d[0], total(weighed, n), where), neg(mul(weighed, total(dy, n), where), where)};
}

}  // namespace

void add_softmax(op_table& t) {
  t.add("softmax", {.inputs = 1,
                    .shapes = along_axis({"x"}),
                    .gradient = gradient_with_attributes("softmax_grad"),
                    .types = floating});
  t.add("log_softmax", {.inputs = 1,
                        .shapes = along_axis({"x"}),
                        .gradient = gradient_with_attributes("log_softmax_grad"),
                        .types = floating});
  t.add("softmax_grad", {.inputs = 2,
                         .shapes = along_axis({"dy", "y"}),
                         .gradient = softmax_grad_gradient,
                         .types = floating});
  t.add("log_softmax_grad", {.inputs = 2,
                             .shapes = along_axis({"dy", "y"}),
                             .gradient = log_softmax_grad_gradient,
                             .types = floating});
}

}  // namespace ops

value softmax(value x, std::int64_t axis, source_location where) {
  return ops::append("softmax", {x}, attributes{{"axis", axis}}, where);
}
value log_softmax(value x, std::int64_t axis, source_location where) {
  return ops::append("log_softmax", {x}, attributes{{"axis", axis}}, where);
}

}  // namespace troupe
