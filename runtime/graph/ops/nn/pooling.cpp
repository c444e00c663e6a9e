// max_pool2d, avg_pool2d and their gradients.

#include "troupe/runtime/graph/ops/nn/windows.hpp"

namespace troupe {
namespace ops {
namespace {

// The image that a pooled one comes from: its size is in the attributes of a gradient.
attributes with_size(attributes attrs, const shape& image) {
  attrs.set("height", image.size(2)), attrs.set("width", image.size(3));
  return attrs;
}

result<shape> pooled(const attributes& attrs, const shape& image) {
  const auto moves = windows::read(attrs, true);
  if (!moves) return moves.error();
  for (std::size_t i = 0; i < 2; ++i)  // a window of nothing but padding has no largest element
    if (moves->before[i] >= (moves->size[i] - 1) * moves->dilations[i] + 1 ||
        moves->after[i] >= (moves->size[i] - 1) * moves->dilations[i] + 1)
      return error(error_code::usage, "the padding must be smaller than the window");
  const auto h = moves->positions(0, image.size(2)), w = moves->positions(1, image.size(3));
  if (!h || !w)
    return error(error_code::usage, "the window is larger than the image with its padding");
  const auto out = shape::from(std::array<dim, 4>{image[0], image[1], dim{*h, 0}, dim{*w, 0}});
  if (!out) return error(error_code::usage, "the result has too many elements");
  return *out;
}

// Of an op that goes back from pooled to image.
result<shape> unpooled(const attributes& attrs, const shape& from) {
  const auto height = attrs.integer("height", -1), width = attrs.integer("width", -1);
  if (height < 0 || width < 0)
    return error(error_code::usage,
                 fmt::format("height and width are {} and {}, and must be those of the result",
                             height, width));
  const auto image =
      shape::from(std::array<dim, 4>{from[0], from[1], dim{height, 0}, dim{width, 0}});
  if (!image) return error(error_code::usage, "the result has too many elements");
  const auto again = pooled(attrs, *image);
  if (!again) return again.error();
  if (*again != from)
    return error(error_code::usage,
                 fmt::format("an image of {} x {} does not become one of {} x {}", height, width,
                             from.size(2), from.size(3)));
  return *image;
}

result<specs> pool_shapes(bool has_places, const attributes& attrs,
                          std::span<const tensor_spec> in) {
  if (const auto why = why_no_image("x", in[0])) return misfit(in, {"x"}, *why);
  const auto out = pooled(attrs, in[0].shape);
  if (!out) return misfit(in, {"x"}, out.error().message());
  if (has_places &&
      (in[0].shape.size(3) > 0 && in[0].shape.size(2) > 0x7fffffff / in[0].shape.size(3)))
    return misfit(in, {"x"}, "an image has more positions than i32 can count");
  specs all{{in[0].type, *out}};
  if (has_places) all.push_back({dtype::i32, *out});
  return all;
}

result<specs> avg_grad_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                              const tag*) {
  if (const auto why = why_no_image("dy", in[0])) return misfit(in, {"dy"}, *why);
  const auto out = unpooled(attrs, in[0].shape);
  if (!out) return misfit(in, {"dy"}, out.error().message());
  return specs{{in[0].type, *out}};
}

result<specs> max_grad_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                              const tag*) {
  if (const auto why = why_no_image("dy", in[0])) return misfit(in, {"dy", "places"}, *why);
  if (in[1] != tensor_spec{dtype::i32, in[0].shape})
    return misfit(in, {"dy", "places"}, "places must be i32 of dy's shape");
  const auto out = unpooled(attrs, in[0].shape);
  if (!out) return misfit(in, {"dy", "places"}, out.error().message());
  return specs{{in[0].type, *out}};
}

result<specs> take_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  if (const auto why = why_no_image("x", in[0])) return misfit(in, {"x", "places"}, *why);
  const auto out = pooled(attrs, in[0].shape);
  if (!out) return misfit(in, {"x", "places"}, out.error().message());
  if (in[1] != tensor_spec{dtype::i32, *out})
    return misfit(in, {"x", "places"}, fmt::format("places must be i32{}", to_string(*out)));
  return specs{{in[0].type, *out}};
}

gradients max_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  return {append("max_pool2d_grad", {dy[0], value{&g, n.index, 1}},
                 with_size(n.attrs, n.inputs[0].spec().shape), n.source)};
}
gradients max_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("max_pool2d_take", {d[0], n.inputs[1]}, n.attrs, n.source), value{}};
}
gradients take_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("max_pool2d_grad", {d[0], n.inputs[1]},
                 with_size(n.attrs, n.inputs[0].spec().shape), n.source),
          value{}};
}
gradients avg_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {
      append("avg_pool2d_grad", {dy[0]}, with_size(n.attrs, n.inputs[0].spec().shape), n.source)};
}
gradients avg_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("avg_pool2d", {d[0]}, n.attrs, n.source)};
}

attributes attributes_for(const pool2d_options& o, value x) {
  windows w{.size = o.window,
            .strides = o.strides.value_or(o.window),
            .before = o.before,
            .after = o.after,
            .dilations = o.dilations,
            .rounds_up = o.round_up};
  if (o.same && x.is_valid() && x.spec().shape.rank() == 4)
    for (std::size_t i = 0; i < 2; ++i)
      if (w.strides[i] > 0) w.pad_to_same(i, x.spec().shape.size(i + 2));
  attributes attrs{{"window", std::vector<std::int64_t>{o.window[0], o.window[1]}}};
  w.write(attrs);
  if (o.count_padding) attrs.set("count_padding", std::int64_t{1});
  return attrs;
}

}  // namespace

void add_pooling(op_table& t) {
  t.add("max_pool2d", {.inputs = 1,
                       .shapes = [](const attributes& attrs, std::span<const tensor_spec> in,
                                    const tag*) { return pool_shapes(true, attrs, in); },
                       .gradient = max_gradient,
                       .types = floating});
  t.add("max_pool2d_grad",
        {.inputs = 2, .shapes = max_grad_shapes, .gradient = max_grad_gradient, .types = floating});
  t.add("max_pool2d_take",
        {.inputs = 2, .shapes = take_shapes, .gradient = take_gradient, .types = floating});
  t.add("avg_pool2d", {.inputs = 1,
                       .shapes = [](const attributes& attrs, std::span<const tensor_spec> in,
                                    const tag*) { return pool_shapes(false, attrs, in); },
                       .gradient = avg_gradient,
                       .types = floating});
  t.add("avg_pool2d_grad",
        {.inputs = 1, .shapes = avg_grad_shapes, .gradient = avg_grad_gradient, .types = floating});
}

}  // namespace ops

value max_pool2d(value x, const pool2d_options& options, source_location where) {
  return ops::append("max_pool2d", {x}, ops::attributes_for(options, x), where);
}
value avg_pool2d(value x, const pool2d_options& options, source_location where) {
  return ops::append("avg_pool2d", {x}, ops::attributes_for(options, x), where);
}

}  // namespace troupe
