// Convolutions and pooling. Images of one dimension are images of height 1; those of three are in
// volumes.cpp.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <array>
#include <limits>

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
    n.refuse(fmt::format("{} {}: only images of one, two or three dimensions are supported", what,
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

bool is_volume(const node& n) { return n.has(0) && spec(n.in(0)).shape.rank() == 5; }

}  // namespace

values conv_of(node& n) {
  if (is_volume(n)) return conv3d_of(n);
  const auto x = image_of(n, n.in(0), "operand 0"), w = image_of(n, n.in(1), "operand 1");
  if (x.is_1d != w.is_1d) n.refuse("image and kernel must have equally many dimensions");
  auto m = moves_of(n, x.is_1d, w.size);
  if (const auto said = numbers(n, "kernel_shape", x.is_1d, 0, 1, 1);
      n.has("kernel_shape") && said != w.size)
    n.refuse("attribute 'kernel_shape' is not that of operand 1");
  pad_to_same(m, x.size);
  return {narrowed(with_bias(n, conv2d(x.x, w.x, options_of(m, n.integer("group", 1)))), x.is_1d)};
}

namespace {

values conv_transposed(node& n) {
  if (is_volume(n)) return conv3d_transposed_of(n);
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
  if (is_volume(n))
    return pool3d_of(
        n, [](value x, const pool2d_options& o) { return avg_pool2d(x, o); },
        n.integer("count_include_pad", 0) != 0);
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
  if (is_volume(n)) {
    n.integer("storage_order", 0);
    if (n.wants(1))
      n.refuse(
          fmt::format("output 1, the places of maxima, is not supported for operand 0 {}: only for "
                      "images of one or two dimensions",
                      to_string(spec(n.in(0)))));
    return pool3d_of(n, [](value x, const pool2d_options& o) { return max_pool2d(x, o); }, false);
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

// (sum |x|^p)^(1/p) of each window. Zeros around x make windows that reach beyond it whole, so that
// a mean is the sum over their size.
values lp_pool(node& n) {
  auto x = image_of(n, n.in(0), "operand 0");
  const auto p = n.integer("p", 2);
  if (p < 1 || p > 64) n.refuse(fmt::format("attribute 'p' is {}, expected 1 to 64", p));
  auto o = pool_options(n, x);
  integers before(4), after(4);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto reach = (o.window[i] - 1) * o.dilations[i] + 1, by = (*o.strides)[i];
    const auto room = x.size[i] + o.before[i] + o.after[i] - reach;
    if (room < 0) n.refuse(fmt::format("windows do not fit operand 0 {}", to_string(spec(x.x))));
    auto last = (room + (o.round_up ? by - 1 : 0)) / by * by;
    if (last >= x.size[i] + o.before[i]) last -= by;  // none begins behind the image
    before[2 + i] = o.before[i];
    after[2 + i] = std::max(o.after[i], last + reach - x.size[i] - o.before[i]);
  }
  o.before = o.after = {0, 0};
  o.round_up = false;
  const auto power = n.number_like(x.x, static_cast<double>(p));
  const auto mean = avg_pool2d(pad(pow(abs(x.x), power), before, after), o);
  const auto sum = mul(mean, n.number_like(mean, static_cast<double>(o.window[0] * o.window[1])));
  return {narrowed(pow(sum, reciprocal(power)), x.is_1d)};
}

values global_lp_pool(node& n) {
  const auto x = n.in(0);
  const auto p = n.integer("p", 2);
  if (spec(x).shape.rank() < 3 || p < 1 || p > 64)
    n.refuse(fmt::format("attribute 'p' is {} for operand 0 {}", p, to_string(spec(x))));
  std::vector<std::int64_t> axes;
  for (std::size_t i = 2; i < spec(x).shape.rank(); ++i)
    axes.push_back(static_cast<std::int64_t>(i));
  const auto power = n.number_like(x, static_cast<double>(p));
  return {pow(reduce_sum(pow(abs(x), power), axes, true), reciprocal(power))};
}

// Sums of windows' columns [n, c kh kw, l], put back into images [n, c, h, w] where they were taken
// from: a transposed convolution with ones.
values columns_to_image(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x), size = n.known_integers(1), block = n.known_integers(2);
  if (s.size() != 3 || size.size() != 2 || block.size() != 2)
    n.refuse(
        fmt::format("operand 0 is {}, with an image of [{}] and windows of [{}]: only images "
                    "of two dimensions are supported",
                    to_string(spec(x)), fmt::join(size, ", "), fmt::join(block, ", ")));
  for (const auto side : {size[0], size[1], block[0], block[1]})
    if (side < 1 || side > std::numeric_limits<std::int32_t>::max())
      n.refuse(fmt::format("an image of [{}] or windows of [{}] cannot be", fmt::join(size, ", "),
                           fmt::join(block, ", ")));
  const auto m = moves_of(n, false, {block[0], block[1]});
  two_sizes count{};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto room = size[i] + m.before[i] + m.after[i] - m.reach(i);
    if (size[i] < 1 || room < 0 || room / m.strides[i] > s[2])
      n.refuse(fmt::format("windows of [{}] do not fit an image of [{}]", fmt::join(block, ", "),
                           fmt::join(size, ", ")));
    count[i] = room / m.strides[i] + 1;
  }
  const auto window = block[0] * block[1];
  if (s[1] % window != 0 || count[0] * count[1] != s[2])
    n.refuse(fmt::format("operand 0 is {}, expected {} windows of {} elements for each channel",
                         to_string(spec(x)), count[0] * count[1], window));
  const auto channels = s[1] / window;
  const auto ones = n.made<float>(dtype::f32, {s[1], 1, block[0], block[1]}, [&](std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return at / window % window == at % window ? 1.0F : 0.0F;
  });
  return {conv2d_transposed(n.reshaped(x, {s[0], s[1], count[0], count[1]}),
                            n.converted(constant(n.g, ones), spec(x).type), size[0], size[1],
                            options_of(m, channels))};
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
  r["Conv"] = widening(conv_of);
  r["ConvTranspose"] = widening(conv_transposed);
  r["AveragePool"] = widening(average_pool);
  r["MaxPool"] = widening(max_pool);
  r["LpPool"] = widening(lp_pool);
  r["GlobalLpPool"] = widening(global_lp_pool);
  r["Col2Im"] = widening(columns_to_image);
  r["GlobalAveragePool"] = global_pool(
      [](value x, std::vector<std::int64_t> a, bool k) { return reduce_mean(x, a, k); });
  r["GlobalMaxPool"] =
      global_pool([](value x, std::vector<std::int64_t> a, bool k) { return reduce_max(x, a, k); });
}

}  // namespace troupe::onnx
