// Convolutions and pooling of images of three dimensions [n, c, d, h, w], made of those of two: the
// slices of an image that one place of the result sees become channels of one image.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::onnx {
namespace {

using three_sizes = std::array<std::int64_t, 3>;

struct window3 {
  three_sizes kernel{}, strides{}, dilations{}, before{}, after{};
  std::string padding{};  // auto_pad
  std::int64_t reach(std::size_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }
  // Of the second and the third dimension.
  std::array<std::int64_t, 2> flat(const three_sizes& all) const { return {all[1], all[2]}; }
};

constexpr std::int64_t window_number_max = std::int64_t{1} << 31;

three_sizes three_numbers(const node& n, std::string_view name, std::int64_t otherwise,
                          std::int64_t least) {
  const auto all = n.list(name);
  if (all.empty()) return {otherwise, otherwise, otherwise};
  if (all.size() != 3)
    n.refuse(fmt::format("attribute '{}' has {} numbers for {} dimensions", name, all.size(), 3));
  for (const auto k : all)
    if (k < least || k > window_number_max)
      n.refuse(fmt::format("attribute '{}': {} is not from {} to 2^31", name, k, least));
  return {all[0], all[1], all[2]};
}

// `all` elements of padding, the odd one behind (upper) or in front.
void share_three(window3& m, std::size_t i, std::int64_t all, bool is_upper) {
  all = std::max<std::int64_t>(all, 0);
  m.before[i] = is_upper ? all / 2 : all - all / 2;
  m.after[i] = all - m.before[i];
}

window3 window_of(const node& n, const three_sizes& kernel) {
  window3 m{.kernel = kernel,
            .strides = three_numbers(n, "strides", 1, 1),
            .dilations = three_numbers(n, "dilations", 1, 1)};
  for (const auto k : kernel)
    if (k < 1 || k > window_number_max)
      n.refuse(fmt::format("a window of {} x {} x {}: each size must be from 1 to 2^31", kernel[0],
                           kernel[1], kernel[2]));
  m.padding = n.text("auto_pad", "NOTSET");
  if (m.padding != "NOTSET" && m.padding != "VALID" && m.padding != "SAME_UPPER" &&
      m.padding != "SAME_LOWER")
    n.refuse(fmt::format(
        "attribute 'auto_pad' is '{}', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER",
        m.padding));
  const auto pads = n.list("pads");
  if (pads.empty() || m.padding != "NOTSET") return m;
  if (pads.size() != 6)
    n.refuse(fmt::format("attribute 'pads' has {} numbers for {} dimensions", pads.size(), 3));
  for (const auto p : pads)
    if (p < 0 || p > window_number_max)
      n.refuse(fmt::format("attribute 'pads': {} is not supported", p));
  std::copy_n(pads.begin(), 3, m.before.begin());
  std::copy_n(pads.begin() + 3, 3, m.after.begin());
  return m;
}

void pad_volume_to_same(window3& m, const integers& s) {
  if (!m.padding.starts_with("SAME")) return;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto wanted = (s[2 + i] + m.strides[i] - 1) / m.strides[i];
    share_three(m, i, (wanted - 1) * m.strides[i] + m.reach(i) - s[2 + i],
                m.padding == "SAME_UPPER");
  }
}

integers volume_sizes(const node& n, std::size_t operand) {
  auto s = n.sizes(n.in(operand));
  if (s.size() != 5)
    n.refuse(fmt::format("operand {} is {}, and the other one has three image dimensions", operand,
                         to_string(spec(n.in(operand)))));
  return s;
}

window3 convolution_window(const node& n, const integers& kernel) {
  const three_sizes size{kernel[2], kernel[3], kernel[4]};
  auto m = window_of(n, size);
  if (const auto said = three_numbers(n, "kernel_shape", 0, 1);
      n.has("kernel_shape") && said != size)
    n.refuse("attribute 'kernel_shape' is not that of operand 1");
  return m;
}

value with_volume_bias(const node& n, value y) {
  if (!n.has(2)) return y;
  if (spec(n.in(2)).shape.rank() != 1)
    n.refuse(fmt::format("operand 2 must have one dimension, and is {}", to_string(spec(n.in(2)))));
  return add(y, expand_dims(n.in(2), {1, 2, 3}));
}

conv2d_options flat_options(const node& n, const window3& m) {
  return {.strides = m.flat(m.strides),
          .before = m.flat(m.before),
          .after = m.flat(m.after),
          .dilations = m.flat(m.dilations),
          .groups = n.integer("group", 1)};
}

// Along an axis, what the window's place k sees: `count` elements.
value seen_slices(value x, std::size_t axis, const window3& m, std::int64_t k, std::int64_t count) {
  std::vector<range> part(axis + 1);
  const auto first = k * m.dilations[0];
  part[axis] = {
      .begin = first, .end = first + (count - 1) * m.strides[0] + 1, .step = m.strides[0]};
  return slice(x, part);
}

}  // namespace

values conv3d_of(node& n) {
  const auto s = volume_sizes(n, 0), w = volume_sizes(n, 1);
  auto m = convolution_window(n, w);
  pad_volume_to_same(m, s);
  const auto room = s[2] + m.before[0] + m.after[0] - m.reach(0);
  if (room < 0)
    n.refuse(fmt::format("a window of {} is longer than the {} padded elements of axis 2",
                         m.reach(0), s[2] + m.before[0] + m.after[0]));
  const auto depth = room / m.strides[0] + 1;
  if (w[2] > 1024) n.refuse(fmt::format("a window of {} along axis 2 is too long", w[2]));
  const auto x = pad(n.in(0), {0, 0, m.before[0], 0, 0}, {0, 0, m.after[0], 0, 0});
  std::vector<value> seen;
  for (std::int64_t k = 0; k < w[2]; ++k) seen.push_back(seen_slices(x, 2, m, k, depth));
  const auto flat = n.reshaped(transpose(stack(seen, 2), {0, 3, 1, 2, 4, 5}),
                               {s[0] * depth, s[1] * w[2], s[3], s[4]});
  const auto y =
      conv2d(flat, n.reshaped(n.in(1), {w[0], w[1] * w[2], w[3], w[4]}), flat_options(n, m));
  const auto made = n.sizes(y);
  return {with_volume_bias(
      n, transpose(n.reshaped(y, {s[0], depth, made[1], made[2], made[3]}), {0, 2, 1, 3, 4}))};
}

values conv3d_transposed_of(node& n) {
  const auto s = volume_sizes(n, 0), w = volume_sizes(n, 1);
  auto m = convolution_window(n, w);
  const auto groups = n.integer("group", 1);
  const auto more = three_numbers(n, "output_padding", 0, 0),
             wanted = three_numbers(n, "output_shape", 0, 0);
  if (w[2] > 1024) n.refuse(fmt::format("a window of {} along axis 2 is too long", w[2]));
  if (std::ranges::count(s, 0) + std::ranges::count(w, 0) > 0)
    n.refuse(fmt::format("operands {} and {} have no elements", to_string(spec(n.in(0))),
                         to_string(spec(n.in(1)))));
  three_sizes whole_one{}, made{};
  for (std::size_t i = 0; i < 3; ++i) {
    if (__builtin_mul_overflow(m.strides[i], s[2 + i] - 1, &whole_one[i]) ||
        __builtin_add_overflow(whole_one[i], m.reach(i), &whole_one[i]) ||
        whole_one[i] > window_number_max)
      n.refuse("the result has too many elements");
    if (n.has("output_shape") || m.padding.starts_with("SAME")) {
      made[i] = n.has("output_shape") ? wanted[i] : s[2 + i] * m.strides[i];
      share_three(m, i, whole_one[i] + more[i] - made[i], m.padding == "SAME_UPPER");
    } else {
      made[i] = whole_one[i] - m.before[i] - m.after[i] + more[i];
    }
    if (made[i] < 0 || whole_one[i] < m.before[i])
      n.refuse("the padding is larger than the result");
  }
  // Each slice of x on its own, with no padding; what each place of the window gives along axis 2
  // is then put where it belongs.
  const auto flat =
      n.reshaped(transpose(n.in(0), {0, 2, 1, 3, 4}), {s[0] * s[2], s[1], s[3], s[4]});
  if (groups > s[1]) n.refuse(fmt::format("{} groups of {} channels", groups, s[1]));
  const auto channels = w[1] * groups;
  const auto each = conv2d_transposed(
      flat, n.reshaped(n.in(1), {w[0], w[1] * w[2], w[3], w[4]}), whole_one[1], whole_one[2],
      {.strides = m.flat(m.strides), .dilations = m.flat(m.dilations), .groups = groups});
  const auto parts =
      transpose(n.reshaped(each, {s[0], s[2], channels, w[2], whole_one[1], whole_one[2]}),
                {0, 2, 3, 1, 4, 5});
  value sum;
  for (std::int64_t k = 0; k < w[2]; ++k) {
    auto part = n.reshaped(slice(parts, {range{}, range{}, range{.begin = k, .end = k + 1}}),
                           {s[0], channels, s[2], whole_one[1], whole_one[2]});
    if (m.strides[0] > 1)  // zeros between slices
      part = n.reshaped(pad(expand_dims(part, {3}), integers(6), {0, 0, 0, m.strides[0] - 1, 0, 0}),
                        {s[0], channels, s[2] * m.strides[0], whole_one[1], whole_one[2]});
    // The zeros behind the last one are no part of the result.
    part = slice(part, {range{}, range{}, range{.end = (s[2] - 1) * m.strides[0] + 1}});
    const auto front = k * m.dilations[0];
    part = pad(part, {0, 0, front, 0, 0}, {0, 0, m.reach(0) - 1 - front, 0, 0});
    sum = sum.is_valid() ? add(sum, part) : part;
  }
  std::vector<range> kept(5);
  integers behind(5);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto reached = std::min(made[i], whole_one[i] - m.before[i]);
    kept[2 + i] = {.begin = m.before[i], .end = m.before[i] + reached};
    behind[2 + i] = made[i] - reached;
  }
  return {with_volume_bias(n, pad(slice(sum, kept), integers(5), behind))};
}

// Along the last two axes, then along the one in front of them: extrema and means of windows are
// those of the windows' rows.
values pool3d_of(node& n, value (*pool)(value, const pool2d_options&), bool counts_padding) {
  const auto s = volume_sizes(n, 0);
  if (!n.has("kernel_shape")) n.refuse("attribute 'kernel_shape' is missing");
  auto m = window_of(n, three_numbers(n, "kernel_shape", 0, 1));
  pad_volume_to_same(m, s);
  const bool rounds_up = n.integer("ceil_mode", 0) != 0;
  const auto rows =
      pool(n.reshaped(n.in(0), {s[0], s[1] * s[2], s[3], s[4]}), {.window = m.flat(m.kernel),
                                                                  .strides = m.flat(m.strides),
                                                                  .before = m.flat(m.before),
                                                                  .after = m.flat(m.after),
                                                                  .dilations = m.flat(m.dilations),
                                                                  .round_up = rounds_up,
                                                                  .count_padding = counts_padding});
  const auto size = n.sizes(rows);
  const auto all = pool(n.reshaped(rows, {s[0], s[1], s[2], size[2] * size[3]}),
                        {.window = {m.kernel[0], 1},
                         .strides = std::array<std::int64_t, 2>{m.strides[0], 1},
                         .before = {m.before[0], 0},
                         .after = {m.after[0], 0},
                         .dilations = {m.dilations[0], 1},
                         .round_up = rounds_up,
                         .count_padding = counts_padding});
  return {n.reshaped(all, {s[0], s[1], n.sizes(all)[2], size[2], size[3]})};
}

}  // namespace troupe::onnx
