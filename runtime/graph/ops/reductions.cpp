// Reductions over any axes, what turns them back (broadcast_like, expand_dims), and the index of
// the largest.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <algorithm>
#include <array>

namespace troupe {
namespace ops {
namespace {

shape_rule reduction(dtype_set types) {
  return [types](const attributes& attrs, std::span<const tensor_spec> in,
                 const tag*) -> result<specs> {
    if (!types.has(in[0].type))
      return misfit(in, {"x"}, fmt::format("the element type must be {}", to_string(types)));
    const auto axes = axes_of(attrs.integers("axes"), in[0].shape.rank(), true);
    if (!axes) return misfit(in, {"x"}, axes.error().message());
    return specs{reduced(in[0], *axes, attrs.integer("keep") != 0)};
  };
}

result<specs> count_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  if (!numbers.has(in[0].type))
    return misfit(in, {"x"}, fmt::format("the element type must be {}", to_string(numbers)));
  if (const auto axes = axes_of(attrs.integers("axes"), in[0].shape.rank(), true); !axes)
    return misfit(in, {"x"}, axes.error().message());
  return specs{scalar(in[0].type)};
}

result<specs> arg_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag* at) {
  const auto& x = in[0];
  if (!numbers.has(x.type))
    return misfit(in, {"x"}, fmt::format("the element type must be {}", to_string(numbers)));
  const auto axes = axes_of({attrs.integer("axis", -1)}, x.shape.rank(), false);
  if (!axes) return misfit(in, {"x"}, axes.error().message());
  const auto along = x.shape[static_cast<std::size_t>(axes->front())];
  if (along.size < 1 && (along.symbol == 0 || at == nullptr))
    return misfit(in, {"x"}, "an axis without elements has no largest or smallest");
  if (along.size > 0x7fffffff) return misfit(in, {"x"}, "the axis is longer than i32 can count");
  auto out = reduced(x, *axes, false);
  out.type = dtype::i32;
  return specs{out};
}

result<specs> broadcast_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (in[0].type != in[1].type)
    return misfit(in, {"x", "like"}, "operands must have one element type");
  const auto both = broadcast(in[0].shape, in[1].shape);
  if (!both || *both != in[1].shape)
    return misfit(in, {"x", "like"}, "x cannot be broadcast to the shape of the other");
  return specs{in[1]};
}

result<specs> expand_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto wanted = attrs.integers("axes");
  const auto rank = in[0].shape.rank() + wanted.size();
  if (rank > shape::rank_max)
    return misfit(in, {"x"},
                  fmt::format("a result of {} dimensions has more than {}", rank, shape::rank_max));
  const auto axes = axes_of(wanted, rank, false);
  if (!axes) return misfit(in, {"x"}, axes.error().message());
  std::array<dim, shape::rank_max> dims{};
  std::size_t from = 0;
  for (std::size_t i = 0; i < rank; ++i)
    dims[i] = std::binary_search(axes->begin(), axes->end(), static_cast<std::int64_t>(i))
                  ? dim{1, 0}
                  : in[0].shape[from++];
  return specs{{in[0].type, *shape::from(std::span(dims).first(rank))}};
}

attributes axes_and(std::vector<std::int64_t> axes, bool keep) {
  attributes attrs{{"keep", std::int64_t{keep}}};
  if (!axes.empty()) attrs.set("axes", std::move(axes));
  return attrs;
}

// What was reduced, with the reduced dimensions as ones again, so that it can be broadcast to x.
value with_ones(value reduced, const graph_node& n) {
  const auto& x = n.inputs[0].spec().shape;
  if (!reduced.is_valid() || n.attrs.integer("keep") != 0 ||
      reduced.spec().shape.rank() == x.rank() || reduced.spec().shape.rank() == 0)
    return reduced;
  return expand_dims(reduced, *axes_of(n.attrs.integers("axes"), x.rank(), true), n.source);
}

gradients sum_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {broadcast_like(with_ones(dy[0], n), n.inputs[0], n.source)};
}

// In equal parts to all that are the largest.
gradients extreme_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto& x = n.inputs[0];
  const auto y = with_ones(value{&g, n.index, 0}, n);
  const auto is_it = cast(equal(x, y, n.source), x.spec().type, n.source);
  const auto share = div(with_ones(dy[0], n),
                         reduce_sum(is_it, n.attrs.integers("axes"), true, n.source), n.source);
  return {mul(is_it, share, n.source)};
}

gradients broadcast_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {sum_to(dy[0], n.inputs[0], n.source), value{}};
}

// The product of all others: of those before and those behind, both by Hillis's and Steele's scan
// (Data Parallel Algorithms, 1986), so that zeros do no harm and gradients of it are made of the
// same.
value products_before(value x, bool is_reverse, const source_location& where) {
  const auto last = x.spec().shape.rank() - 1;
  const auto n = x.spec().shape.size(last);
  // The neighbours `by` places before, and ones where there are none.
  const auto moved = [&](value v, std::int64_t by) {
    std::vector<std::int64_t> before(last + 1), after(last + 1);
    std::vector<range> all(last + 1);
    const auto most = std::min(by, n);
    all[last] = is_reverse ? range{.begin = most, .end = n} : range{.begin = 0, .end = n - most};
    (is_reverse ? after : before)[last] = most;
    return pad(slice(v, all, where), before, after, 1, where);
  };
  auto y = moved(x, 1);
  for (std::int64_t by = 1; by < n; by *= 2) y = mul(y, moved(y, by), where);
  return y;
}

gradients product_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const auto& x = n.inputs[0];
  const auto& s = x.spec().shape;
  const auto axes = *axes_of(n.attrs.integers("axes"), s.rank(), true);
  if (axes.empty()) return {dy[0]};
  // The reduced axes go to the end, as one.
  std::vector<std::int64_t> order, back(s.rank()), merged, split;
  std::int64_t together = 1;
  for (std::size_t i = 0; i < s.rank(); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i))) {
      merged.push_back(s[i].symbol != 0 && order.size() == i ? 0 : s.size(i));
      order.push_back(static_cast<std::int64_t>(i));
    }
  split = merged;
  for (const auto a : axes) {
    const auto d = s[static_cast<std::size_t>(a)];
    if (d.symbol != 0) {
      g.record(error(error_code::usage,
                     fmt::format("reduce_prod '{}' over a bound has no gradient", n.name))
                   .at(where));
      return {value{}};
    }
    order.push_back(a), split.push_back(d.size), together *= d.size;
  }
  if (together == 0) return {broadcast_like(with_ones(dy[0], n), x, where)};  // of nothing
  merged.push_back(together);
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  const auto rows = reshape(transpose(x, order, where), merged, where);
  if (!rows.is_valid()) return {value{}};
  const auto others =
      mul(products_before(rows, false, where), products_before(rows, true, where), where);
  return {mul(with_ones(dy[0], n), transpose(reshape(others, split, where), back, where), where)};
}

// The ones sum away.
gradients expand_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  if (n.attrs.integers("axes").empty()) return {dy[0]};  // no axes are none here, and all for a sum
  return {reduce_sum(dy[0], n.attrs.integers("axes"), false, n.source)};
}

value reduce(std::string_view type, value x, std::vector<std::int64_t> axes, bool keep,
             const source_location& where) {
  return append(type, {x}, axes_and(std::move(axes), keep), where);
}

}  // namespace

void add_reductions(op_table& t) {
  const auto row = [&](const char* name, dtype_set types, gradient_rule gradient) {
    t.add(
        name,
        {.inputs = 1, .shapes = reduction(types), .gradient = std::move(gradient), .types = types});
  };
  row("reduce_sum", numbers, sum_gradient);
  row("reduce_prod", numbers, product_gradient);
  row("reduce_max", numbers, extreme_gradient);
  row("reduce_min", numbers, extreme_gradient);
  row("reduce_any", {dtype::boolean}, no_gradient);
  row("reduce_all", {dtype::boolean}, no_gradient);
  t.add("element_count",
        {.inputs = 1, .shapes = count_shapes, .gradient = no_gradient, .types = numbers});
  t.add("argmax", {.inputs = 1, .shapes = arg_shapes, .gradient = no_gradient, .types = numbers});
  t.add("argmin", {.inputs = 1, .shapes = arg_shapes, .gradient = no_gradient, .types = numbers});
  t.add("broadcast_like", {.inputs = 2,
                           .shapes = broadcast_shapes,
                           .gradient = broadcast_gradient,
                           .is_elementwise = true,
                           .types = all_types});
  t.add("expand_dims",
        {.inputs = 1, .shapes = expand_shapes, .gradient = expand_gradient, .types = all_types});
}

}  // namespace ops

value reduce_sum(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_sum", x, std::move(axes), keep, where);
}
value reduce_prod(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_prod", x, std::move(axes), keep, where);
}
value reduce_max(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_max", x, std::move(axes), keep, where);
}
value reduce_min(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_min", x, std::move(axes), keep, where);
}
value reduce_any(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_any", x, std::move(axes), keep, where);
}
value reduce_all(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return ops::reduce("reduce_all", x, std::move(axes), keep, where);
}
value reduce_mean(value x, std::vector<std::int64_t> axes, bool keep, source_location where) {
  return div(reduce_sum(x, axes, keep, where), element_count(x, axes, where), where);
}
value reduce_log_sum_exp(value x, std::vector<std::int64_t> axes, bool keep,
                         source_location where) {
  // The largest is taken away before, so that nothing overflows; it cancels out of the gradient.
  // Infinite ones are not taken away.
  const auto largest = stop_gradient(reduce_max(x, axes, true, where), where);
  const auto zero = ops::number(x, 0, where);
  const auto shift =
      troupe::where(equal(sub(largest, largest, where), zero, where), largest, zero, where);
  const auto y = add(log(reduce_sum(exp(sub(x, shift, where), where), axes, true, where), where),
                     shift, where);
  if (keep || !y.is_valid()) return y;
  return reduce_sum(y, axes, false, where);  // over ones
}
value argmax(value x, std::int64_t axis, source_location where) {
  return ops::append("argmax", {x}, attributes{{"axis", axis}}, where);
}
value argmin(value x, std::int64_t axis, source_location where) {
  return ops::append("argmin", {x}, attributes{{"axis", axis}}, where);
}
value element_count(value x, std::vector<std::int64_t> axes, source_location where) {
  attributes attrs;
  if (!axes.empty()) attrs.set("axes", std::move(axes));
  return ops::append("element_count", {x}, std::move(attrs), where);
}
value broadcast_like(value x, value like, source_location where) {
  return ops::append("broadcast_like", {x, like}, {}, where);
}
value expand_dims(value x, std::vector<std::int64_t> axes, source_location where) {
  return ops::append("expand_dims", {x}, attributes{{"axes", std::move(axes)}}, where);
}

}  // namespace troupe
