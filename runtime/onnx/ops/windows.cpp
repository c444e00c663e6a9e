// Convolutions and pooling. Images of one dimension are images of height 1.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <array>

namespace troupe::onnx {
namespace {

using two_sizes = std::array<std::int64_t, 2>;

// An image [n, c, h, w]; what had one dimension gets it back by narrowed().
struct image {
  value x;
  bool is_1d = false;
  two_sizes size{};  // height, width
};

image image_of(node& n, value x, std::string_view what) {
  const auto rank = spec(x).shape.rank();
  if (rank != 3 && rank != 4)
    n.refuse(fmt::format("{} {}: only images of one or two dimensions are supported", what,
                         to_string(spec(x))));
  image i{x, rank == 3, {}};
  if (i.is_1d) i.x = expand_dims(x, {2});
  const auto& s = spec(i.x).shape;
  if (s[2].symbol != 0 || s[3].symbol != 0)
    n.refuse(fmt::format("{} {}: height and width must be exact", what, to_string(spec(x))));
  i.size = {s.size(2), s.size(3)};
  return i;
}

value narrowed(value y, bool is_1d) { return is_1d ? reduce_sum(y, {2}, false) : y; }
// Of a type that has no sums, too.
value narrowed(const node& n, value y, bool is_1d) {
  if (!is_1d) return y;
  auto s = n.sizes(y);
  s.erase(s.begin() + 2);
  return n.reshaped(y, s);
}

// The numbers of an attribute, one for each dimension of an image.
two_sizes numbers(const node& n, std::string_view name, bool is_1d, std::int64_t otherwise,
                  std::int64_t first, std::int64_t least) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  const auto all = n.list(name);
  two_sizes out{first, otherwise};
  if (all.empty()) return is_1d ? out : two_sizes{otherwise, otherwise};
  if (all.size() != (is_1d ? 1U : 2U))
    n.refuse(fmt::format("attribute '{}' has {} numbers for {} dimensions", name, all.size(),
                         is_1d ? 1 : 2));
  for (const auto k : all)
    if (k < least || k > most)
      n.refuse(fmt::format("attribute '{}': {} is not from {} to 2^31", name, k, least));
  if (is_1d) return {first, all[0]};
  return {all[0], all[1]};
}

struct moves {
  two_sizes kernel, strides, dilations, before{}, after{};
  std::string padding{};  // auto_pad
  std::int64_t reach(std::size_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }
};

moves moves_of(const node& n, bool is_1d, two_sizes kernel) {
  moves m{.kernel = kernel,
          .strides = numbers(n, "strides", is_1d, 1, 1, 1),
          .dilations = numbers(n, "dilations", is_1d, 1, 1, 1)};
  for (const auto k : kernel)
    if (k < 1 || k > (std::int64_t{1} << 31))
      n.refuse(fmt::format("a window of {} x {}: each size must be from 1 to 2^31", kernel[0],
                           kernel[1]));
  m.padding = n.text("auto_pad", "NOTSET");
  if (m.padding != "NOTSET" && m.padding != "VALID" && m.padding != "SAME_UPPER" &&
      m.padding != "SAME_LOWER")
    n.refuse(fmt::format(
        "attribute 'auto_pad' is '{}', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER",
        m.padding));
  const auto pads = n.list("pads");
  if (pads.empty() || m.padding != "NOTSET") return m;
  if (pads.size() != (is_1d ? 2U : 4U))
    n.refuse(fmt::format("attribute 'pads' has {} numbers for {} dimensions", pads.size(),
                         is_1d ? 1 : 2));
  for (const auto p : pads)
    if (p < 0 || p > (std::int64_t{1} << 31))
      n.refuse(fmt::format("attribute 'pads': {} is not supported", p));
  if (is_1d) {
    m.before[1] = pads[0], m.after[1] = pads[1];
  } else {
    m.before = {pads[0], pads[1]}, m.after = {pads[2], pads[3]};
  }
  return m;
}

// `all` elements of padding, the odd one behind (upper) or in front.
void share(moves& m, std::size_t i, std::int64_t all, bool is_upper) {
  all = std::max<std::int64_t>(all, 0);
  m.before[i] = is_upper ? all / 2 : all - all / 2;
  m.after[i] = all - m.before[i];
}

void pad_to_same(moves& m, two_sizes size) {
  if (!m.padding.starts_with("SAME")) return;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto wanted = (size[i] + m.strides[i] - 1) / m.strides[i];
    share(m, i, (wanted - 1) * m.strides[i] + m.reach(i) - size[i], m.padding == "SAME_UPPER");
  }
}

conv2d_options options_of(const moves& m, std::int64_t groups) {
  return {.strides = m.strides,
          .before = m.before,
          .after = m.after,
          .dilations = m.dilations,
          .groups = groups};
}

value with_bias(node& n, value y) {
  if (!n.has(2)) return y;
  if (spec(n.in(2)).shape.rank() != 1)
    n.refuse(fmt::format("operand 2 must have one dimension, and is {}", to_string(spec(n.in(2)))));
  return add(y, expand_dims(n.in(2), {1, 2}));
}

values conv(node& n) {
  const auto x = image_of(n, n.in(0), "operand 0"), w = image_of(n, n.in(1), "operand 1");
  if (x.is_1d != w.is_1d) n.refuse("image and kernel must have equally many dimensions");
  auto m = moves_of(n, x.is_1d, w.size);
  if (const auto said = numbers(n, "kernel_shape", x.is_1d, 0, 1, 1);
      n.has("kernel_shape") && said != w.size)
    n.refuse("attribute 'kernel_shape' is not that of operand 1");
  pad_to_same(m, x.size);
  return {narrowed(with_bias(n, conv2d(x.x, w.x, options_of(m, n.integer("group", 1)))), x.is_1d)};
}

values conv_transposed(node& n) {
  const auto x = image_of(n, n.in(0), "operand 0"), w = image_of(n, n.in(1), "operand 1");
  if (x.is_1d != w.is_1d) n.refuse("image and kernel must have equally many dimensions");
  auto m = moves_of(n, x.is_1d, w.size);
  if (const auto said = numbers(n, "kernel_shape", x.is_1d, 0, 1, 1);
      n.has("kernel_shape") && said != w.size)
    n.refuse("attribute 'kernel_shape' is not that of operand 1");
  const auto more = numbers(n, "output_padding", x.is_1d, 0, 0, 0);
  const auto wanted = numbers(n, "output_shape", x.is_1d, 0, 1, 0);
  two_sizes made{}, behind{};  // the size of the result, and zeros that no window reaches
  for (std::size_t i = 0; i < 2; ++i) {
    std::int64_t whole_one = 0;
    if (__builtin_mul_overflow(m.strides[i], std::max<std::int64_t>(x.size[i] - 1, 0),
                               &whole_one) ||
        __builtin_add_overflow(whole_one, m.reach(i), &whole_one))
      n.refuse("the result has too many elements");
    if (n.has("output_shape")) {
      // The odd one is at the end for SAME_UPPER alone.
      made[i] = wanted[i];
      share(m, i, whole_one + more[i] - made[i], m.padding == "SAME_UPPER");
    } else if (m.padding.starts_with("SAME")) {
      made[i] = x.size[i] * m.strides[i];
      share(m, i, whole_one + more[i] - made[i], m.padding == "SAME_UPPER");
    } else {
      made[i] = whole_one - m.before[i] - m.after[i] + more[i];
    }
    if (made[i] < 0 || whole_one < m.before[i]) n.refuse("the padding is larger than the result");
    // From `before` on: as much as there is, then zeros. `output_padding` keeps of the end what the
    // padding would take away.
    const auto reached = std::min(made[i], whole_one - m.before[i]);
    m.after[i] = whole_one - m.before[i] - reached;
    // A convolution forgets what is less than a stride behind its last window.
    if (made[i] - reached >= m.strides[i]) behind[i] = made[i] - reached, made[i] = reached;
  }
  auto y = conv2d_transposed(x.x, w.x, made[0], made[1], options_of(m, n.integer("group", 1)));
  if (behind != two_sizes{}) y = pad(y, {0, 0, 0, 0}, {0, 0, behind[0], behind[1]});
  return {narrowed(with_bias(n, y), x.is_1d)};
}

pool2d_options pool_options(node& n, const image& x) {
  if (!n.has("kernel_shape")) n.refuse("attribute 'kernel_shape' is missing");
  auto m = moves_of(n, x.is_1d, numbers(n, "kernel_shape", x.is_1d, 0, 1, 1));
  pad_to_same(m, x.size);
  return {.window = m.kernel,
          .strides = m.strides,
          .before = m.before,
          .after = m.after,
          .dilations = m.dilations,
          .round_up = n.integer("ceil_mode", 0) != 0};
}

values average_pool(node& n) {
  const auto x = image_of(n, n.in(0), "operand 0");
  auto options = pool_options(n, x);
  options.count_padding = n.integer("count_include_pad", 0) != 0;
  return {narrowed(avg_pool2d(x.x, options), x.is_1d)};
}

// Places count over the whole tensor, along rows or (storage_order 1) along columns of each image.
values max_pool(node& n) {
  // Bytes, widened: exact in f32.
  if (n.has(0) && spec(n.in(0)).type == dtype::i32 && !n.wants(1)) {
    n.replace(0, cast(n.in(0), dtype::f32));
    auto y = max_pool(n);
    return {cast(y[0], dtype::i32)};
  }
  const auto x = image_of(n, n.in(0), "operand 0");
  const bool is_by_column = n.integer("storage_order", 0) != 0;
  const auto y = max_pool2d(x.x, pool_options(n, x));
  if (!n.wants(1)) return {narrowed(y, x.is_1d)};
  auto at = cast(value{y.owner, y.node, 1}, dtype::i64);
  const auto whole_number = [&](std::int64_t k) {
    return n.number(static_cast<double>(k), dtype::i64);
  };
  if (is_by_column && x.size[1] > 0) {
    const auto row = div(at, whole_number(x.size[1]));
    at = add(mul(sub(at, mul(row, whole_number(x.size[1]))), whole_number(x.size[0])), row);
  }
  const auto s = n.sizes(x.x);
  const auto image_size = s[2] * s[3];
  const auto first = n.made<std::int64_t>(dtype::i64, {s[0], s[1], 1, 1}, [&](std::size_t i) {
    return static_cast<std::int64_t>(i) * image_size;
  });
  return {narrowed(y, x.is_1d), narrowed(n, add(at, constant(n.g, first)), x.is_1d)};
}

rule global_pool(value (*f)(value, std::vector<std::int64_t>, bool)) {
  return widening([f](node& n) -> values {
    const auto x = n.in(0);
    if (spec(x).shape.rank() < 3)
      n.refuse(fmt::format("operand 0 {} is no image", to_string(spec(x))));
    std::vector<std::int64_t> axes;
    for (std::size_t i = 2; i < spec(x).shape.rank(); ++i)
      axes.push_back(static_cast<std::int64_t>(i));
    return {f(x, axes, true)};
  });
}

}  // namespace

void add_windows(rules& r) {
  r["Conv"] = widening(conv);
  r["ConvTranspose"] = widening(conv_transposed);
  r["AveragePool"] = widening(average_pool);
  r["MaxPool"] = widening(max_pool);
  r["GlobalAveragePool"] = global_pool(
      [](value x, std::vector<std::int64_t> a, bool k) { return reduce_mean(x, a, k); });
  r["GlobalMaxPool"] =
      global_pool([](value x, std::vector<std::int64_t> a, bool k) { return reduce_max(x, a, k); });
}

}  // namespace troupe::onnx
