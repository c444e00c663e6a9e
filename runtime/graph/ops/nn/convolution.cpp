// conv2d and its gradients. All three are linear in both operands, so that each is the gradient of
// the others.

#include "troupe/runtime/graph/ops/nn/windows.hpp"

namespace troupe {
namespace ops {
namespace {

// Of attributes and the sizes of a kernel [.., kh, kw].
result<windows> windows_of(const attributes& attrs, std::int64_t kh, std::int64_t kw) {
  auto w = windows::read(attrs, false);
  if (w) w->size = {kh, kw};
  return w;
}
std::int64_t groups_of(const attributes& attrs) { return attrs.integer("groups", 1); }

// What is wrong with kernels w [outputs, channels / groups, kh, kw].
std::optional<std::string> why_no_kernels(const tensor_spec& w, std::int64_t groups) {
  if (!any_floating.has(w.type)) return fmt::format("w must be {}", to_string(any_floating));
  if (w.shape.rank() != 4) return "w must have rank 4: [outputs, channels / groups, height, width]";
  if (w.shape.is_symbolic()) return "w must have exact sizes";
  if (w.shape.size(2) < 1 || w.shape.size(3) < 1) return "a kernel has at least one element";
  if (groups < 1) return fmt::format("groups is {}, and must be at least 1", groups);
  if (w.shape.size(0) % groups != 0)
    return fmt::format("{} outputs are no multiple of {} groups", w.shape.size(0), groups);
  return std::nullopt;
}

result<specs> conv_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto &x = in[0], &w = in[1];
  const auto refuse = [&](std::string_view why) { return misfit(in, {"x", "w"}, why); };
  if (const auto why = why_no_image("x", x, any_floating)) return refuse(*why);
  const auto groups = groups_of(attrs);
  if (const auto why = why_no_kernels(w, groups)) return refuse(*why);
  if (x.type != w.type) return refuse("operands must have one element type");
  std::int64_t channels = 0;
  if (__builtin_mul_overflow(w.shape.size(1), groups, &channels) || channels != x.shape.size(1))
    return refuse(fmt::format("w takes {} channels of each of {} groups, and x has {} in all",
                              w.shape.size(1), groups, x.shape.size(1)));
  const auto moves = windows_of(attrs, w.shape.size(2), w.shape.size(3));
  if (!moves) return refuse(moves.error().message());
  const auto h = moves->positions(0, x.shape.size(2)), wide = moves->positions(1, x.shape.size(3));
  if (!h || !wide) return refuse("the kernel is larger than the image with its padding");
  const auto out = shape::from(
      std::array<dim, 4>{x.shape[0], dim{w.shape.size(0), 0}, dim{*h, 0}, dim{*wide, 0}});
  if (!out) return refuse("the result has too many elements");
  return specs{{x.type, *out}};
}

// (dy, w) -> dx, of "height" and "width"; as an op of its own: the transposed convolution of dy.
result<specs> input_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto &dy = in[0], &w = in[1];
  const auto refuse = [&](std::string_view why) { return misfit(in, {"dy", "w"}, why); };
  if (const auto why = why_no_image("dy", dy, any_floating)) return refuse(*why);
  const auto groups = groups_of(attrs);
  if (const auto why = why_no_kernels(w, groups)) return refuse(*why);
  if (dy.type != w.type) return refuse("operands must have one element type");
  if (dy.shape.size(1) != w.shape.size(0))
    return refuse(fmt::format("w gives {} outputs, and dy has {} channels", w.shape.size(0),
                              dy.shape.size(1)));
  const auto moves = windows_of(attrs, w.shape.size(2), w.shape.size(3));
  if (!moves) return refuse(moves.error().message());
  const auto height = attrs.integer("height", -1), width = attrs.integer("width", -1);
  if (height < 0 || width < 0)
    return refuse(fmt::format("height and width are {} and {}, and must be those of the result",
                              height, width));
  if (moves->positions(0, height) != dy.shape.size(2) ||
      moves->positions(1, width) != dy.shape.size(3))
    return refuse(fmt::format("a convolution of an image of {} x {} does not give one of {} x {}",
                              height, width, dy.shape.size(2), dy.shape.size(3)));
  std::int64_t channels = 0;
  if (__builtin_mul_overflow(w.shape.size(1), groups, &channels))
    return refuse("the result has too many elements");
  const auto out =
      shape::from(std::array<dim, 4>{dy.shape[0], dim{channels, 0}, dim{height, 0}, dim{width, 0}});
  if (!out) return refuse("the result has too many elements");
  return specs{{dy.type, *out}};
}

// (dy, x) -> dw, of "kernel_height" and "kernel_width".
result<specs> weights_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto &dy = in[0], &x = in[1];
  const auto refuse = [&](std::string_view why) { return misfit(in, {"dy", "x"}, why); };
  if (const auto why = why_no_image("dy", dy, any_floating)) return refuse(*why);
  if (const auto why = why_no_image("x", x, any_floating)) return refuse(*why);
  if (dy.type != x.type) return refuse("operands must have one element type");
  if (dy.shape[0] != x.shape[0]) return refuse("both must have equally many images");
  const auto groups = groups_of(attrs);
  if (groups < 1 || x.shape.size(1) % groups != 0 || dy.shape.size(1) % groups != 0)
    return refuse(fmt::format("channels are no multiple of {} groups", groups));
  const auto kh = attrs.integer("kernel_height", -1), kw = attrs.integer("kernel_width", -1);
  if (kh < 1 || kw < 1 || kh > 0x7fffffff || kw > 0x7fffffff)
    return refuse(fmt::format(
        "kernel_height and kernel_width are {} and {}, and must be at least 1", kh, kw));
  const auto moves = windows_of(attrs, kh, kw);
  if (!moves) return refuse(moves.error().message());
  if (moves->positions(0, x.shape.size(2)) != dy.shape.size(2) ||
      moves->positions(1, x.shape.size(3)) != dy.shape.size(3))
    return refuse(
        fmt::format("a convolution with kernels of {} x {} does not give an image of {} x {}", kh,
                    kw, dy.shape.size(2), dy.shape.size(3)));
  const auto out = shape::from(std::array<dim, 4>{
      dim{dy.shape.size(1), 0}, dim{x.shape.size(1) / groups, 0}, dim{kh, 0}, dim{kw, 0}});
  if (!out) return refuse("the result has too many elements");
  return specs{{dy.type, *out}};
}

value conv(value x, value w, attributes attrs, const source_location& where) {
  return append("conv2d", {x, w}, std::move(attrs), where);
}
value input_grad(value dy, value w, attributes attrs, const shape& x,
                 const source_location& where) {
  attrs.set("height", x.size(2)), attrs.set("width", x.size(3));
  return append("conv2d_input_grad", {dy, w}, std::move(attrs), where);
}
value weights_grad(value dy, value x, attributes attrs, const shape& w,
                   const source_location& where) {
  attrs.set("kernel_height", w.size(2)), attrs.set("kernel_width", w.size(3));
  return append("conv2d_weights_grad", {dy, x}, std::move(attrs), where);
}

gradients conv_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto &x = n.inputs[0], &w = n.inputs[1];
  return {input_grad(dy[0], w, n.attrs, x.spec().shape, n.source),
          weights_grad(dy[0], x, n.attrs, w.spec().shape, n.source)};
}
gradients input_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto &dy = n.inputs[0], &w = n.inputs[1];
  return {conv(d[0], w, n.attrs, n.source),
          weights_grad(dy, d[0], n.attrs, w.spec().shape, n.source)};
}
gradients weights_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const auto &dy = n.inputs[0], &x = n.inputs[1];
  return {conv(x, d[0], n.attrs, n.source),
          input_grad(dy, d[0], n.attrs, x.spec().shape, n.source)};
}

attributes attributes_for(const windows& w, std::int64_t groups) {
  attributes attrs{{"groups", groups}};
  w.write(attrs);
  return attrs;
}

windows moves_of(const conv2d_options& o) {
  return {.strides = o.strides, .before = o.before, .after = o.after, .dilations = o.dilations};
}

}  // namespace

void add_convolution(op_table& t) {
  t.add("conv2d",
        {.inputs = 2, .shapes = conv_shapes, .gradient = conv_gradient, .types = any_floating});
  t.add("conv2d_input_grad",
        {.inputs = 2, .shapes = input_shapes, .gradient = input_gradient, .types = any_floating});
  t.add(
      "conv2d_weights_grad",
      {.inputs = 2, .shapes = weights_shapes, .gradient = weights_gradient, .types = any_floating});
}

}  // namespace ops

value conv2d(value x, value w, const conv2d_options& options, source_location where) {
  auto moves = ops::moves_of(options);
  if (options.same && x.is_valid() && w.is_valid() && x.spec().shape.rank() == 4 &&
      w.spec().shape.rank() == 4)
    for (std::size_t i = 0; i < 2; ++i) {
      moves.size[i] = w.spec().shape.size(i + 2);
      if (moves.strides[i] > 0) moves.pad_to_same(i, x.spec().shape.size(i + 2));
    }
  return ops::append("conv2d", {x, w}, ops::attributes_for(moves, options.groups), where);
}

value conv2d_transposed(value x, value w, std::int64_t height, std::int64_t width,
                        const conv2d_options& options, source_location where) {
  auto attrs = ops::attributes_for(ops::moves_of(options), options.groups);
  attrs.set("height", height), attrs.set("width", width);
  return ops::append("conv2d_input_grad", {x, w}, std::move(attrs), where);
}

}  // namespace troupe
