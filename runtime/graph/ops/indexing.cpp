// Ops that choose by index: gather, scatter_add, embedding, one_hot, top_k, and sums along an axis.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <algorithm>
#include <array>

namespace troupe {
namespace ops {
namespace {

// nullopt: x has no such axis.
std::optional<std::size_t> axis_of(const attributes& attrs, const shape& x) {
  const auto rank = static_cast<std::int64_t>(x.rank());
  const auto axis = attrs.integer("axis");
  if (axis < -rank || axis >= rank) return std::nullopt;
  return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

// x without the axis, and the sizes of the indices in its place.
std::optional<shape> with_indices(const shape& x, std::size_t axis, const shape& indices) {
  if (x.rank() - 1 + indices.rank() > shape::rank_max) return std::nullopt;
  std::array<dim, shape::rank_max> dims{};
  std::size_t rank = 0;
  for (std::size_t i = 0; i < axis; ++i) dims[rank++] = x[i];
  for (std::size_t i = 0; i < indices.rank(); ++i) dims[rank++] = indices[i];
  for (std::size_t i = axis + 1; i < x.rank(); ++i) dims[rank++] = x[i];
  return shape::from(std::span(dims).first(rank));
}

// gather(x, indices)
result<specs> gather_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  static constexpr std::array names{std::string_view("x"), std::string_view("indices")};
  if (!whole.has(in[1].type)) return misfit(in, names, "indices must be i32 or i64");
  const auto axis = axis_of(attrs, in[0].shape);
  if (!axis) return misfit(in, names, fmt::format("x has no axis {}", attrs.integer("axis")));
  const auto out = with_indices(in[0].shape, *axis, in[1].shape);
  if (!out) return misfit(in, names, "the result has too many dimensions or elements");
  return specs{{in[0].type, *out}};
}

// scatter_add(x, indices, updates)
result<specs> scatter_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  static constexpr std::array names{std::string_view("x"), std::string_view("indices"),
                                    std::string_view("updates")};
  if (!numbers.has(in[0].type) || in[0].type != in[2].type)
    return misfit(in, names,
                  fmt::format("x and updates must have one element type, {}", to_string(numbers)));
  if (!whole.has(in[1].type)) return misfit(in, names, "indices must be i32 or i64");
  const auto axis = axis_of(attrs, in[0].shape);
  if (!axis) return misfit(in, names, fmt::format("x has no axis {}", attrs.integer("axis")));
  const auto updates = with_indices(in[0].shape, *axis, in[1].shape);
  if (!updates || *updates != in[2].shape)
    return misfit(in, names,
                  updates ? fmt::format("updates must be {}", to_string(*updates))
                          : "updates have too many dimensions or elements");
  return specs{in[0]};
}

gradients gather_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& x = n.inputs[0];
  const auto zeros = broadcast_like(number(x, 0, n.source), x, n.source);
  return {append("scatter_add", {zeros, n.inputs[1], dy[0]}, n.attrs, n.source), value{}};
}
gradients scatter_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {d[0], value{}, append("gather", {d[0], n.inputs[1]}, n.attrs, n.source)};
}

// pack_rows(indices, rows): "rows"
result<specs> pack_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  static constexpr std::array names{std::string_view("indices"), std::string_view("rows")};
  if (!whole.has(in[0].type)) return misfit(in, names, "indices must be i32 or i64");
  const auto rank = in[0].shape.rank();
  if (in[1].type != dtype::f32 || in[1].shape.rank() < rank)
    return misfit(in, names, "rows must be f32, one for each index");
  for (std::size_t i = 0; i < rank; ++i)
    if (in[1].shape[i] != in[0].shape[i])
      return misfit(in, names, "rows must be f32, one for each index");
  std::int64_t width = 1;
  for (auto i = rank; i < in[1].shape.rank(); ++i) {
    if (in[1].shape[i].symbol != 0) return misfit(in, names, "a row must have an exact size");
    width *= in[1].shape.size(i);
  }
  if (attrs.integer("rows") < 1) return misfit(in, names, "a matrix has at least one row");
  const auto packed = packed_spec(in[0].shape, static_cast<std::size_t>(width));
  if (!packed) return misfit(in, names, "the result has too many dimensions or elements");
  return specs{*packed};
}

// one_hot(indices): "depth", "type"
result<specs> one_hot_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  if (!whole.has(in[0].type)) return misfit(in, {"indices"}, "indices must be i32 or i64");
  const auto depth = attrs.integer("depth", -1), type = attrs.integer("type", -1);
  if (depth < 1)
    return misfit(in, {"indices"}, fmt::format("depth is {}, but must be at least 1", depth));
  if (type < 0 || type >= dtype_count)
    return misfit(in, {"indices"}, fmt::format("there is no element type {}", type));
  if (!numbers.has(dtype(type)))
    return misfit(in, {"indices"}, fmt::format("the result must be {}", to_string(numbers)));
  if (in[0].shape.rank() == shape::rank_max)
    return misfit(in, {"indices"}, "the result has too many dimensions");
  std::array<dim, shape::rank_max> dims{};
  const auto rank = in[0].shape.rank();
  for (std::size_t i = 0; i < rank; ++i) dims[i] = in[0].shape[i];
  dims[rank] = {depth, 0};
  const auto out = shape::from(std::span(dims).first(rank + 1));
  if (!out) return misfit(in, {"indices"}, "the result has too many elements");
  return specs{{static_cast<dtype>(type), *out}};
}

// top_k(x): "k" -> values, indices i32, along the last axis.
result<specs> top_k_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto& x = in[0];
  if (!numbers.has(x.type))
    return misfit(in, {"x"}, fmt::format("the element type must be {}", to_string(numbers)));
  if (x.shape.rank() == 0 || x.shape[x.shape.rank() - 1].symbol != 0)
    return misfit(in, {"x"}, "needs a last dimension of an exact size");
  const auto last = x.shape.rank() - 1;
  const auto k = attrs.integer("k", -1);
  if (k < 0 || k > x.shape.size(last))
    return misfit(in, {"x"}, fmt::format("k is {}, but must be in 0..{}", k, x.shape.size(last)));
  const auto out = x.shape.with_dim(last, {k, 0});
  return specs{{x.type, out}, {dtype::i32, out}};
}

// take_last(x, indices): per row of the last axis.
result<specs> take_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  static constexpr std::array names{std::string_view("x"), std::string_view("indices")};
  if (!whole.has(in[1].type)) return misfit(in, names, "indices must be i32 or i64");
  const auto &x = in[0].shape, &at = in[1].shape;
  if (x.rank() == 0 || x.rank() != at.rank())
    return misfit(in, names, "x and indices must have equally many dimensions, at least one");
  for (std::size_t i = 0; i + 1 < x.rank(); ++i)
    if (x[i] != at[i]) return misfit(in, names, fmt::format("sizes of dimension {} differ", i));
  return specs{{in[0].type, at}};
}

// put_last(dy, indices, like): added to zeros.
result<specs> put_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag* at) {
  static constexpr std::array names{std::string_view("dy"), std::string_view("indices"),
                                    std::string_view("like")};
  if (!numbers.has(in[0].type) || in[0].type != in[2].type || in[0].shape != in[1].shape)
    return misfit(in, names, "dy must have the shape of the indices and the element type of like");
  const std::array as_taken{in[2], in[1]};
  if (const auto taken = take_shapes(attrs, as_taken, at); !taken)
    return misfit(in, names, taken.error().message());
  return specs{in[2]};
}

gradients top_k_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  if (!dy[0].is_valid()) return {value{}};
  return {append("put_last", {dy[0], value{&g, n.index, 1}, n.inputs[0]}, {}, n.source)};
}
gradients take_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {append("put_last", {dy[0], n.inputs[1], n.inputs[0]}, {}, n.source), value{}};
}
gradients put_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("take_last", {d[0], n.inputs[1]}, {}, n.source), value{}, value{}};
}

// cumulative_sum(x): "axis", "exclusive", "reverse"
result<specs> cumulative_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                                const tag*) {
  if (!numbers.has(in[0].type))
    return misfit(in, {"x"}, fmt::format("the element type must be {}", to_string(numbers)));
  if (!axis_of(attrs, in[0].shape))
    return misfit(in, {"x"}, fmt::format("x has no axis {}", attrs.integer("axis")));
  return specs{in[0]};
}
gradients cumulative_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  auto attrs = n.attrs;
  attrs.set("reverse", std::int64_t{n.attrs.integer("reverse") == 0});
  return {append("cumulative_sum", {dy[0]}, std::move(attrs), n.source)};
}

}  // namespace

void add_indexing(op_table& t) {
  const auto row = [&](const char* name, std::uint32_t inputs, shape_rule shapes,
                       gradient_rule gradient, dtype_set types) {
    t.add(name, {.inputs = inputs,
                 .shapes = std::move(shapes),
                 .gradient = std::move(gradient),
                 .types = types});
  };
  row("gather", 2, gather_shapes, gather_gradient, all_types);
  row("scatter_add", 3, scatter_shapes, scatter_gradient, numbers);
  t.add(std::string(pack_rows_op),
        {.inputs = 2, .shapes = pack_shapes, .gradient = no_gradient, .types = whole});
  row("one_hot", 1, one_hot_shapes, no_gradient, whole);
  row("top_k", 1, top_k_shapes, top_k_gradient, numbers);
  row("take_last", 2, take_shapes, take_gradient, all_types);
  row("put_last", 3, put_shapes, put_gradient, numbers);
  row("cumulative_sum", 1, cumulative_shapes, cumulative_gradient, numbers);
}

}  // namespace ops

value gather(value x, value indices, std::int64_t axis, source_location where) {
  return ops::append("gather", {x, indices}, attributes{{"axis", axis}}, where);
}
value scatter_add(value x, value indices, value updates, std::int64_t axis, source_location where) {
  return ops::append("scatter_add", {x, indices, updates}, attributes{{"axis", axis}}, where);
}
value embedding(value table, value ids, source_location where) {
  return gather(table, ids, 0, where);
}
value one_hot(value indices, std::int64_t depth, dtype type, source_location where) {
  return ops::append(
      "one_hot", {indices},
      attributes{{"depth", depth}, {"type", std::int64_t{static_cast<std::uint8_t>(type)}}}, where);
}
top_k_values top_k(value x, std::int64_t k, source_location where) {
  const auto values = ops::append("top_k", {x}, attributes{{"k", k}}, where);
  return values.is_valid() ? top_k_values{values, value{values.owner, values.node, 1}}
                           : top_k_values{};
}
value take_last(value x, value indices, source_location where) {
  return ops::append("take_last", {x, indices}, {}, where);
}
value cumulative_sum(value x, std::int64_t axis, bool exclusive, bool reverse,
                     source_location where) {
  return ops::append("cumulative_sum", {x},
                     attributes{{"axis", axis},
                                {"exclusive", std::int64_t{exclusive}},
                                {"reverse", std::int64_t{reverse}}},
                     where);
}

}  // namespace troupe
