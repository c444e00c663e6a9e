#pragma once
// Operands and attributes for every op of the table, drawn from a seed: what tests of kernels, of
// gradients and of whole graphs share.

#include "tests/support/operand_range.hpp"
#include "tests/support/reference.hpp"
#include "tests/support/reference_tensor.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace troupe::op_cases {

using reference::element, reference::to_tensor;

struct drawn_case {
  std::vector<reference::array> operands;
  attributes attrs;
};

class drawer {
 public:
  explicit drawer(std::uint64_t seed) : bits_(seed) {}

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(n));
  }
  bool coin() { return bits_() % 2 == 0; }

  // Seldom empty, sometimes longer than any vector or tile.
  std::vector<std::int64_t> sizes(std::size_t least_rank = 0, std::size_t most_rank = 4) {
    std::vector<std::int64_t> s(
        least_rank +
        static_cast<std::size_t>(below(static_cast<std::int64_t>(most_rank - least_rank + 1))));
    for (auto& n : s) n = below(30) == 0 ? 0 : 1 + below(below(6) == 0 ? 40 : 6);
    return s;
  }
  static shape made(const std::vector<std::int64_t>& sizes) {
    std::vector<dim> dims;
    for (const auto n : sizes) dims.push_back({n, 0});
    return *shape::from(dims);
  }

  // Numbers that the element type holds exactly.
  reference::array values(dtype type, const std::vector<std::int64_t>& sizes, double low = -4,
                          double high = 4) {
    std::uniform_real_distribution<double> real(low, high);
    return reference::make({type, made(sizes)}, [&](std::size_t) -> double {
      switch (type) {
        case dtype::f32: return static_cast<double>(static_cast<float>(real(bits_)));
        case dtype::f64: return real(bits_);
        case dtype::f16:
          return static_cast<double>(to_f32(to_f16(static_cast<float>(real(bits_)))));
        case dtype::bf16:
          return static_cast<double>(to_f32(to_bf16(static_cast<float>(real(bits_)))));
        case dtype::boolean: return coin() ? 1 : 0;
        case dtype::u8: return static_cast<double>(below(200));
        default: return static_cast<double>(below(100) - 50);
      }
    });
  }
  reference::array indices(const std::vector<std::int64_t>& sizes, std::int64_t n) {
    return reference::make({coin() ? dtype::i32 : dtype::i64, made(sizes)},
                           [&](std::size_t) { return static_cast<double>(below(n)); });
  }
  // Some of the dimensions as ones, or left out in front.
  std::vector<std::int64_t> smaller(std::vector<std::int64_t> s) {
    for (auto& n : s)
      if (below(3) == 0) n = 1;
    while (!s.empty() && s.front() == 1 && coin()) s.erase(s.begin());
    return s;
  }
  std::vector<std::int64_t> some_axes(std::size_t rank) {
    std::vector<std::int64_t> axes;
    for (std::size_t i = 0; i < rank; ++i)
      if (coin())
        axes.push_back(static_cast<std::int64_t>(i) -
                       (coin() ? static_cast<std::int64_t>(rank) : 0));
    return axes;
  }

 private:
  std::mt19937_64 bits_;
};

inline std::vector<std::int64_t> sizes_of(const shape& s) {
  return {s.sizes().begin(), s.sizes().end()};
}

inline void draw_product(drawer& d, dtype t, drawn_case& c) {
  const bool ta = d.coin(), tb = d.coin();
  const auto m = d.below(20), k = d.below(40), n = d.below(20);
  const auto batches = d.sizes(0, 2);
  const auto whole_one = d.coin();
  auto a = whole_one ? batches : d.smaller(batches), b = whole_one ? d.smaller(batches) : batches;
  a.insert(a.end(), {ta ? k : m, ta ? m : k});
  b.insert(b.end(), {tb ? n : k, tb ? k : n});
  c.operands = {d.values(t, a), d.values(t, b)};
  c.attrs = {{"transpose_a", std::int64_t{ta}}, {"transpose_b", std::int64_t{tb}}};
  if (d.below(3) == 0) c.attrs.set("sum_batches", std::int64_t{1});
}

// Two numbers each, for height and width.
inline std::vector<std::int64_t> two(drawer& d, std::int64_t least, std::int64_t most) {
  return {least + d.below(most - least + 1), least + d.below(most - least + 1)};
}

inline void draw_convolution(drawer& d, const std::string& type, dtype t, drawn_case& c) {
  const auto groups = 1 + d.below(3), channels = 1 + d.below(3), outputs = 1 + d.below(3);
  const std::vector<std::int64_t> x{d.below(4), groups * channels, 3 + d.below(8), 3 + d.below(8)},
      w{groups * outputs, channels, 1 + d.below(3), 1 + d.below(3)};
  c.attrs = {{"groups", groups},
             {"strides", two(d, 1, 3)},
             {"before", two(d, 0, 2)},
             {"after", two(d, 0, 2)},
             {"dilations", two(d, 1, 2)}};
  const auto image = d.values(t, x), kernels = d.values(t, w);
  const tag at;
  const std::array both{image.spec, kernels.spec};
  const auto y = make_op_table().find("conv2d")->shapes(c.attrs, both, &at);
  if (!y) return draw_convolution(d, type, t, c);  // the kernel, dilated, is larger than the image
  const auto dy = d.values(t, sizes_of(y->front().shape));
  if (type == "conv2d") c.operands = {image, kernels};
  if (type == "conv2d_input_grad")
    c.operands = {dy, kernels}, c.attrs.set("height", x[2]), c.attrs.set("width", x[3]);
  if (type == "conv2d_weights_grad")
    c.operands = {dy, image}, c.attrs.set("kernel_height", w[2]), c.attrs.set("kernel_width", w[3]);
}

inline void draw_pooling(drawer& d, const std::string& type, dtype t, drawn_case& c) {
  const std::vector<std::int64_t> x{d.below(4), d.below(4), 3 + d.below(8), 3 + d.below(8)};
  c.attrs = {{"window", two(d, 1, 3)},
             {"strides", two(d, 1, 3)},
             {"dilations", two(d, 1, 2)},
             {"round_up", std::int64_t{d.coin()}},
             {"count_padding", std::int64_t{d.coin()}}};
  if (d.below(3) == 0)
    c.attrs.set("window", std::vector<std::int64_t>{2, 2}),
        c.attrs.set("strides", std::vector<std::int64_t>{2, 2}),
        c.attrs.set("dilations", std::vector<std::int64_t>{1, 1});
  if (d.coin()) c.attrs.set("before", two(d, 0, 1)), c.attrs.set("after", two(d, 0, 1));
  const auto image = d.values(t, x);
  const tag at;
  const std::array one{image.spec};
  const auto ops = make_op_table();
  const auto y = ops.find("max_pool2d")->shapes(c.attrs, one, &at);
  if (!y) return draw_pooling(d, type, t, c);  // no room, or padding as large as the window
  const auto small = sizes_of(y->front().shape);
  if (type == "max_pool2d" || type == "avg_pool2d") {
    c.operands = {image};
    return;
  }
  const auto places = reference::run_op(ops, "max_pool2d", c.attrs, std::array{image}, 0)[1];
  if (type == "max_pool2d_take") c.operands = {d.values(t, x), places};
  if (type == "max_pool2d_grad") c.operands = {d.values(t, small), places};
  if (type == "avg_pool2d_grad") c.operands = {d.values(t, small)};
  if (type.ends_with("_grad")) c.attrs.set("height", x[2]), c.attrs.set("width", x[3]);
}

inline void draw_attention(drawer& d, const std::string& type, dtype t, drawn_case& c) {
  const auto heads = 1 + d.below(3), each = 1 + d.below(4), of_value = 1 + d.below(4),
             n = d.below(4);
  const bool is_packed = d.coin(), is_causal = d.coin();
  const auto queries = d.below(d.below(6) == 0 ? 150 : 20),
             keys = is_packed || is_causal ? queries : d.below(20);
  c.attrs = {{"heads", heads}, {"causal", std::int64_t{is_causal}}};
  if (d.coin()) c.attrs.set("scale", 0.5);
  if (type == "attention_grad")
    c.operands.push_back(d.values(t, {n, queries, heads * (is_packed ? each : of_value)}, -1, 1));
  if (is_packed) {
    c.operands.push_back(d.values(t, {n, queries, 3 * heads * each}, -1, 1));
    return;
  }
  for (const auto& s : {std::vector<std::int64_t>{n, queries, heads * each},
                        {n, keys, heads * each},
                        {n, keys, heads * of_value}})
    c.operands.push_back(d.values(t, s, -1, 1));
}

// nullopt: nothing to draw for this op.
inline std::optional<drawn_case> draw(drawer& d, const std::string& type, const op_row& row,
                                      dtype t) {
  drawn_case c;
  const auto add = [&](reference::array a) { c.operands.push_back(std::move(a)); };
  if (type == "cast") {
    // Between types that hold the numbers drawn.
    const bool is_real = any_floating.has(t);
    const auto to = is_real
                        ? std::array{dtype::f32, dtype::f64}[static_cast<std::size_t>(d.below(2))]
                        : std::array{dtype::f32,  dtype::f64, dtype::f16,
                                     dtype::bf16, dtype::i32, dtype::i64}[static_cast<std::size_t>(
                              d.below(6))];
    c.attrs.set("to", std::int64_t{static_cast<std::uint8_t>(to)});
    add(d.values(t, d.sizes()));
    if (t == dtype::f64 && to == dtype::f32)
      c.operands[0] = d.values(dtype::f32, d.sizes()), c.operands[0].spec.type = t;
  } else if (type == "where") {
    const auto s = d.sizes();
    add(d.values(dtype::boolean, d.smaller(s)));
    add(d.values(dtype::f32, s));
    add(d.values(dtype::f32, d.smaller(s)));
  } else if (type == "broadcast_like") {
    const auto s = d.sizes();
    add(d.values(t, d.smaller(s)));
    add(d.values(t, s));
  } else if (row.is_elementwise) {
    const auto s = d.sizes();
    const auto whole_one = d.below(row.inputs);
    const auto range = operands::range_of(type);
    for (std::uint32_t k = 0; k < row.inputs; ++k)
      add(d.values(t, k == whole_one ? s : d.smaller(s), range.low, range.high));
  } else if (type.starts_with("reduce_") || type == "element_count") {
    const auto s = d.sizes();
    add(d.values(t, s, type == "reduce_prod" ? 0.8 : -4, type == "reduce_prod" ? 1.2 : 4));
    if (type == "reduce_prod" && whole.has(t)) {  // of which the product fits
      std::int64_t twos = 30;
      for (auto& x : c.operands[0].at) x = d.below(4) == 0 && twos-- > 0 ? 2 : d.coin() ? 1 : -1;
    }
    c.attrs = {{"axes", d.some_axes(s.size())}, {"keep", std::int64_t{d.coin()}}};
  } else if (type == "argmax" || type == "argmin") {
    auto s = d.sizes(1);
    for (auto& n : s) n = std::max<std::int64_t>(n, 1);
    add(d.values(t, s));
    c.attrs = {{"axis", d.below(static_cast<std::int64_t>(s.size()))}};
  } else if (type == "expand_dims") {
    const auto s = d.sizes(0, 3);
    add(d.values(t, s));
    c.attrs = {
        {"axes", std::vector<std::int64_t>{d.below(static_cast<std::int64_t>(s.size()) + 1)}}};
  } else if (type == "reshape") {
    const auto s = d.sizes();
    add(d.values(t, s));
    std::int64_t all = 1;
    for (const auto n : s) all *= n;
    c.attrs = {{"dims", std::vector<std::int64_t>{1, all}}};
    if (all == 0) return std::nullopt;  // a 0 stands for a size of x
  } else if (type == "transpose") {
    const auto s = d.sizes();
    add(d.values(t, s));
    std::vector<std::int64_t> order(s.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(d.below(static_cast<std::int64_t>(i)))]);
    if (!d.coin()) c.attrs = {{"order", order}};
  } else if (type == "slice" || type == "put_slice") {
    const auto s = d.sizes();
    std::vector<std::int64_t> begin, size, step;
    for (const auto n : s) {
      step.push_back(d.coin() ? 1 : d.below(5) - 2);
      if (step.back() == 0) step.back() = 1;
      begin.push_back(n == 0 ? 0 : d.below(n));
      const auto room = n == 0            ? 0
                        : step.back() > 0 ? (n - 1 - begin.back()) / step.back() + 1
                                          : begin.back() / -step.back() + 1;
      size.push_back(room == 0 ? 0 : d.below(room + 1));
    }
    c.attrs = {{"begin", begin}, {"size", size}, {"step", step}};
    if (type == "put_slice") add(d.values(t, size));
    add(d.values(t, s));
  } else if (type == "pad") {
    const auto s = d.sizes();
    std::vector<std::int64_t> before, after;
    for (std::size_t i = 0; i < s.size(); ++i)
      before.push_back(d.below(3)), after.push_back(d.below(3));
    add(d.values(t, s));
    c.attrs = {{"before", before}, {"after", after}, {"value", 1.0}};
  } else if (type == "tile") {
    const auto s = d.sizes();
    std::vector<std::int64_t> times;
    for (std::size_t i = 0; i < s.size(); ++i) times.push_back(d.below(4));
    add(d.values(t, s));
    c.attrs = {{"times", times}};
  } else if (type == "concat") {
    auto s = d.sizes(1);
    const auto axis = d.below(static_cast<std::int64_t>(s.size()));
    for (auto k = 1 + d.below(4); k-- > 0;) {
      s[static_cast<std::size_t>(axis)] = d.below(5);
      add(d.values(t, s));
    }
    c.attrs = {{"axis", axis - (d.coin() ? static_cast<std::int64_t>(s.size()) : 0)}};
  } else if (type == "gather" || type == "scatter_add") {
    auto s = d.sizes(1, 3);
    const auto axis = static_cast<std::size_t>(d.below(static_cast<std::int64_t>(s.size())));
    s[axis] = std::max<std::int64_t>(1, s[axis]);
    const auto at = d.sizes(0, 2);
    add(d.values(t, s));
    add(d.indices(at, s[axis]));
    if (type == "scatter_add") {
      auto updates = s;
      updates.erase(updates.begin() + static_cast<std::ptrdiff_t>(axis));
      updates.insert(updates.begin() + static_cast<std::ptrdiff_t>(axis), at.begin(), at.end());
      add(d.values(t, updates));
    }
    c.attrs = {{"axis", static_cast<std::int64_t>(axis)}};
  } else if (type == "one_hot") {
    add(reference::make({t, drawer::made(d.sizes(0, 3))},
                        [&](std::size_t) { return static_cast<double>(d.below(7) - 1); }));
    c.attrs = {{"depth", std::int64_t{5}}, {"type", std::int64_t{d.coin() ? 0 : 3}}};
  } else if (type == "top_k") {
    const auto s = d.sizes(1, 3);
    add(d.values(t, s));
    c.attrs = {{"k", d.below(s.back() + 1)}};
  } else if (type == "take_last" || type == "put_last") {
    auto s = d.sizes(1, 3);
    s.back() = std::max<std::int64_t>(1, s.back());
    auto at = s;
    at.back() = d.below(5);
    if (type == "put_last") add(d.values(t, at));
    if (type == "take_last") add(d.values(t, s));
    add(d.indices(at, s.back()));
    if (type == "put_last") add(d.values(t, s));
  } else if (type == "cumulative_sum") {
    const auto s = d.sizes(1);
    add(d.values(t, s));
    c.attrs = {{"axis", d.below(static_cast<std::int64_t>(s.size()))},
               {"exclusive", std::int64_t{d.coin()}},
               {"reverse", std::int64_t{d.coin()}}};
  } else if (type == "softmax_cross_entropy" || type == "count_correct") {
    const auto rows = d.below(20), classes = 1 + d.below(12);
    add(d.values(t, {rows, classes}));
    add(reference::make({dtype::i32, drawer::made({rows})},
                        [&](std::size_t) { return static_cast<double>(d.below(classes)); }));
    if (type == "softmax_cross_entropy") add(d.values(t, {}, 0.1, 1));
  } else if (type == "stop_gradient") {
    add(d.values(t, d.sizes()));
  } else if (type == "dropout_mask" || type == "random_uniform_like" ||
             type == "random_normal_like") {
    add(d.values(t, d.sizes()));
    c.attrs = {{"rate", 0.25}};
  } else if (type == "matmul") {
    draw_product(d, t, c);
  } else if (type.starts_with("conv2d")) {
    draw_convolution(d, type, t, c);
  } else if (type.find("_pool2d") != std::string::npos) {
    draw_pooling(d, type, t, c);
  } else if (type.starts_with("attention")) {
    draw_attention(d, type, t, c);
  } else if (type.starts_with("standardize")) {
    const auto s = d.sizes();
    c.attrs = {{"axes", d.some_axes(s.size())}, {"epsilon", 1e-3}};
    add(d.values(t, s));
    if (type == "standardize_grad") {
      add(d.values(t, s));
      const tag at;
      const std::array like{c.operands[0].spec};
      add(d.values(
          t, sizes_of((*make_op_table().find("standardize")->shapes(c.attrs, like, &at))[2].shape),
          0.5, 2));
    }
  } else if (type.find("softmax") != std::string::npos) {
    const auto s = d.sizes(1);
    c.attrs = {{"axis", d.below(static_cast<std::int64_t>(s.size()))}};
    add(d.values(t, s));
    if (type == "softmax_grad") add(d.values(t, s, 0, 1));
    if (type == "log_softmax_grad") add(d.values(t, s, -4, 0));
  } else {
    return std::nullopt;
  }
  return c;
}

// Errors of f32 in ulp that are allowed; 0.5: correctly rounded. Where a result is small as the
// difference of large numbers, near these.
inline double allowed(const std::string& type) {
  static const std::map<std::string, double> limits{{"exp", 2},
                                                    {"log", 2},
                                                    {"rsqrt", 1.5},
                                                    {"reciprocal", 0.5},
                                                    {"pow", 1},
                                                    {"erf", 2},
                                                    {"sigmoid", 4},
                                                    {"tanh", 3},
                                                    {"gelu", 7},
                                                    {"gelu_grad", 7},
                                                    {"gelu_tanh", 6},
                                                    {"sigmoid_grad", 2.5},
                                                    {"tanh_grad", 2.5},
                                                    {"reduce_sum", 2},
                                                    {"cumulative_sum", 8},
                                                    {"scatter_add", 4},
                                                    {"put_last", 4},
                                                    {"sin", 1.5},
                                                    {"tan", 0.51},
                                                    {"cos", 1.5},
                                                    {"softplus", 3},
                                                    {"matmul", 64},
                                                    {"conv2d", 8},
                                                    {"conv2d_input_grad", 8},
                                                    {"conv2d_weights_grad", 16},
                                                    {"avg_pool2d", 4},
                                                    {"avg_pool2d_grad", 4},
                                                    {"max_pool2d_grad", 4},
                                                    {"standardize", 2},
                                                    {"standardize_grad", 4},
                                                    {"softmax", 8},
                                                    {"log_softmax", 6},
                                                    {"softmax_cross_entropy", 4},
                                                    {"softmax_grad", 4},
                                                    {"log_softmax_grad", 8},
                                                    {"reduce_prod", 40},
                                                    {"attention", 16},
                                                    {"attention_grad", 32}};
  const auto at = limits.find(type);
  return at != limits.end() ? at->second : 0.5;
}
// The same of f64, of element-wise ops, whose functions are mostly those of the C library.
inline double allowed_in_f64(const std::string& type) {
  static const std::map<std::string, double> limits{
      {"exp", 1},        {"log", 1},       {"rsqrt", 1.5},   {"pow", 1},      {"erf", 1},
      {"sin", 1},        {"cos", 1},       {"tan", 1},       {"expm1", 1},    {"log1p", 1},
      {"asin", 1},       {"acos", 1},      {"atan", 1},      {"sinh", 2},     {"cosh", 2},
      {"asinh", 2},      {"acosh", 2},     {"atanh", 2},     {"tanh", 2.5},   {"sigmoid", 2.5},
      {"gelu", 6},       {"gelu_grad", 7}, {"gelu_tanh", 5}, {"softplus", 2}, {"sigmoid_grad", 2.5},
      {"tanh_grad", 2.5}};
  const auto at = limits.find(type);
  return at != limits.end() ? at->second : 0.5;
}

}  // namespace troupe::op_cases
