// standardize, its gradient, and the normalisations that are made of it.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>
#include <numeric>

namespace troupe {
namespace ops {
namespace {

using integers = std::vector<std::int64_t>;

result<specs> standardize_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                                 const tag*) {
  if (!floating.has(in[0].type)) return misfit(in, {"x"}, "the element type must be f32 or f64");
  if (!(attrs.real("epsilon", 1e-5) >= 0))
    return misfit(
        in, {"x"},
        fmt::format("epsilon is {}, but cannot be negative", attrs.real("epsilon", 1e-5)));
  auto axes = axes_of(attrs.integers("axes"), in[0].shape.rank(), true);
  if (!axes) return misfit(in, {"x"}, axes.error().message());
  const auto groups = reduced(in[0], *axes, true);
  return specs{in[0], groups, groups};
}

result<specs> grad_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto refuse = [&](std::string_view why) { return misfit(in, {"dy", "y", "scale"}, why); };
  if (!floating.has(in[0].type)) return refuse("the element type must be f32 or f64");
  if (in[0] != in[1]) return refuse("dy and y must have the same type and shape");
  auto axes = axes_of(attrs.integers("axes"), in[0].shape.rank(), true);
  if (!axes) return refuse(axes.error().message());
  if (in[2] != reduced(in[0], *axes, true))
    return refuse(fmt::format("scale must be {}", to_string(reduced(in[0], *axes, true))));
  return specs{in[0]};
}

value mean_of(value x, const graph_node& n) {
  return reduce_mean(x, n.attrs.integers("axes"), true, n.source);
}

// y = (x - m) r. m follows from x by 1 / count, r by -r^2 y / count.
gradients standardize_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto& where = n.source;
  const value y{&g, n.index, 0}, scale{&g, n.index, 2};
  const auto& x = n.inputs[0];
  value dx;
  const auto plus = [&](value more) { dx = dx.is_valid() ? add(dx, more, where) : more; };
  if (dy[0].is_valid()) plus(append("standardize_grad", {dy[0], y, scale}, n.attrs, where));
  const auto each = [&](value of_group) {
    return div(of_group, element_count(x, n.attrs.integers("axes"), where), where);
  };
  if (dy[1].is_valid()) plus(broadcast_like(each(dy[1]), x, where));
  if (dy[2].is_valid())
    plus(mul(y, neg(each(mul(dy[2], square(scale, where), where)), where), where));
  return {dx};
}

// f(dy, y, r) = r (dy - mean(dy) - y mean(dy y)), which is linear and symmetric in dy.
gradients grad_gradient(graph& g, const graph_node& n, std::span<const value> d) {
  const auto& where = n.source;
  const auto &dy = n.inputs[0], &y = n.inputs[1], &scale = n.inputs[2];
  const auto of_dy = append("standardize_grad", {d[0], y, scale}, n.attrs, where);
  const auto cross = add(mul(d[0], mean_of(mul(dy, y, where), n), where),
                         mul(dy, mean_of(mul(d[0], y, where), n), where), where);
  const auto of_y = neg(mul(scale, cross, where), where);
  const auto of_scale = div(
      reduce_sum(mul(d[0], value{&g, n.index, 0}, where), n.attrs.integers("axes"), true, where),
      scale, where);
  return {of_dy, of_y, of_scale};
}

// Scale and shift of a channel, as [1, c, 1, ..]: behind axis 1 of x.
value by_channel(value v, value x, const source_location& where) {
  if (!v.is_valid() || !x.is_valid() || v.spec().shape.rank() != 1) return v;
  integers behind(x.spec().shape.rank() < 2 ? 0 : x.spec().shape.rank() - 2);
  std::iota(behind.begin(), behind.end(), 1);
  return behind.empty() ? v : expand_dims(v, behind, where);
}

}  // namespace

void add_normalisation(op_table& t) {
  t.add("standardize", {.inputs = 1,
                        .shapes = standardize_shapes,
                        .gradient = standardize_gradient,
                        .types = floating});
  t.add("standardize_grad",
        {.inputs = 3, .shapes = grad_shapes, .gradient = grad_gradient, .types = floating});
}

}  // namespace ops

standardized standardize(value x, std::vector<std::int64_t> axes, double epsilon,
                         source_location where) {
  attributes attrs{{"epsilon", epsilon}};
  if (!axes.empty()) attrs.set("axes", std::move(axes));
  const auto y = ops::append("standardize", {x}, std::move(attrs), where);
  if (!y.is_valid()) return {};
  return {y, value{y.owner, y.node, 1}, value{y.owner, y.node, 2}};
}

value layer_norm(value x, value scale, value shift, double epsilon, source_location where) {
  if (!x.is_valid() || !scale.is_valid()) return {};
  std::vector<std::int64_t> axes;
  for (std::size_t i = scale.spec().shape.rank(); i > 0; --i)
    axes.push_back(-static_cast<std::int64_t>(i));
  if (axes.empty()) {
    x.owner->record(ops::misfit(std::array{x.spec(), scale.spec()}, {"x", "scale"},
                                "scale must have the dimensions that are normalised, at least one")
                        .while_doing("layer_norm")
                        .at(where));
    return {};
  }
  return add(mul(standardize(x, std::move(axes), epsilon, where).y, scale, where), shift, where);
}

batch_normalized batch_norm(value x, value scale, value shift, double epsilon,
                            source_location where) {
  if (!x.is_valid()) return {};
  std::vector<std::int64_t> axes{0};
  for (std::size_t i = 2; i < x.spec().shape.rank(); ++i)
    axes.push_back(static_cast<std::int64_t>(i));
  if (x.spec().shape.rank() < 2) {
    x.owner->record(
        ops::misfit(std::array{x.spec()}, {"x"}, "must have channels as its second dimension")
            .while_doing("batch_norm")
            .at(where));
    return {};
  }
  const auto s = standardize(x, axes, epsilon, where);
  const auto y = add(mul(s.y, ops::by_channel(scale, x, where), where),
                     ops::by_channel(shift, x, where), where);
  const auto channels = [&](value v) { return reduce_sum(v, axes, false, where); };  // over ones
  // The variance again: 1 / r^2 - epsilon.
  const auto variance =
      sub(reciprocal(square(s.scale, where), where), ops::number(x, epsilon, where), where);
  return {y, channels(s.mean), channels(variance)};
}

value batch_norm(value x, value scale, value shift, value mean, value variance, double epsilon,
                 source_location where) {
  if (!x.is_valid()) return {};
  const auto of = [&](value v) { return ops::by_channel(v, x, where); };
  const auto factor =
      mul(scale, rsqrt(add(variance, ops::number(x, epsilon, where), where), where), where);
  return add(mul(sub(x, of(mean), where), of(factor), where), of(shift), where);
}

}  // namespace troupe
