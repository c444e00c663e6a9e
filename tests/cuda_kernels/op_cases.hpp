#pragma once
// Cases of every op that has a CUDA kernel, with odd shapes: tests/cuda_kernels/ runs them on the
// host, tests/gpu/ on a device; both compare with the host's kernels.

#include "tests/support/operand_range.hpp"
#include "troupe/devices/cuda/fused_source.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/tensor.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

struct op_case {
  std::string op;
  attributes attrs;
  std::vector<tensor> inputs;
  std::vector<tensor_spec> outputs;
  double tolerance = 0;  // relative to the largest of the result; 0: equal bits
  std::uint64_t step = 0;

  std::string name() const {
    std::string text = op + "(";
    for (const auto& t : inputs) text += (text.back() == '(' ? "" : ", ") + to_string(t.spec());
    text += ")";
    for (const auto& [key, value] : attrs.entries()) text += " " + key;
    return text;
  }
};

// Numbers that an element type can hold, some of them equal.
inline tensor numbers(dtype type, const shape& s, unsigned seed, double low = -2, double high = 2) {
  auto t = tensor::make({type, s});
  std::mt19937 bits(seed);
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    const double u = low + (high - low) * (static_cast<double>(bits()) / 4294967296.0);
    switch (type) {
      case dtype::f32: t.data<float>()[i] = static_cast<float>(u); break;
      case dtype::f64: t.data<double>()[i] = u; break;
      case dtype::i32:
        t.data<std::int32_t>()[i] = static_cast<std::int32_t>(std::lround(u * 3));
        break;
      case dtype::i64: t.data<std::int64_t>()[i] = std::lround(u * 3); break;
      case dtype::u8:
        t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(std::lround(std::abs(u) * 9));
        break;
      case dtype::f16: t.data<f16>()[i] = to_f16(static_cast<float>(u)); break;
      case dtype::bf16: t.data<bf16>()[i] = to_bf16(static_cast<float>(u)); break;
      case dtype::boolean: t.data<boolean>()[i] = boolean(u > 0); break;
    }
  }
  return t;
}
inline tensor indices(dtype type, const shape& s, unsigned seed, std::int64_t low,
                      std::int64_t end) {
  auto t = tensor::make({type, s});
  std::mt19937 bits(seed);
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    const auto x = low + static_cast<std::int64_t>(bits()) % (end - low);
    if (type == dtype::i32)
      t.data<std::int32_t>()[i] = static_cast<std::int32_t>(x);
    else
      t.data<std::int64_t>()[i] = x;
  }
  return t;
}

// What sums and products of `type` may differ by.
inline double rounding_of(dtype type) {
  return type == dtype::f64 ? 1e-12 : type == dtype::f32 ? 2e-6 : 0;
}

// All but element-wise ones, of f32 or f64; and those for whole numbers that there are.
inline std::vector<op_case> op_cases(dtype type) {
  std::vector<op_case> all;
  const auto add = [&](std::string op, std::vector<tensor> in, std::vector<tensor_spec> out,
                       attributes attrs = {}, double tolerance = 0) {
    all.push_back({std::move(op), std::move(attrs), std::move(in), std::move(out), tolerance, 7});
  };
  using list = std::vector<std::int64_t>;
  const auto x = [&](const shape& s, unsigned seed = 1) { return numbers(type, s, seed); };
  const auto spec = [&](const shape& s) { return tensor_spec{type, s}; };
  const auto few = rounding_of(type);
  const bool is_real = type == dtype::f32 || type == dtype::f64;

  // --- moving ---
  add("reshape", {x({3, 5, 2})}, {spec({6, 5})});
  add("expand_dims", {x({3, 5})}, {spec({3, 1, 5})});
  add("transpose", {x({3, 5, 7})}, {spec({7, 5, 3})});
  add("transpose", {x({3, 5, 7, 2})}, {spec({5, 3, 2, 7})}, {{"order", list{1, 0, 3, 2}}});
  add("transpose", {x({1, 1})}, {spec({1, 1})});
  add("transpose", {x({0, 4})}, {spec({4, 0})});
  add("slice", {x({5, 7})}, {spec({2, 3})}, {{"begin", list{1, 6}}, {"step", list{2, -2}}});
  add("put_slice", {x({2, 3}), x({5, 7}, 2)}, {spec({5, 7})},
      {{"begin", list{1, 6}}, {"step", list{2, -2}}});
  add("pad", {x({3, 4})}, {spec({6, 5})}, {{"before", list{2, 1}}, {"value", 1.0}});
  add("pad", {x({3, 4})}, {spec({4, 4})}, {{"before", list{0, 0}}});
  add("concat", {x({3, 2}), x({3, 1}, 2), x({3, 4}, 3)}, {spec({3, 7})},
      {{"axis", std::int64_t{-1}}});
  add("concat", {x({1, 5}), x({3, 5}, 2)}, {spec({4, 5})}, {{"axis", std::int64_t{0}}});
  add("tile", {x({2, 3})}, {spec({4, 9})}, {{"times", list{2, 3}}});
  add("constant", {}, {spec({3, 5})}, {{"value", 3.0}});
  add("constant", {}, {spec({4})}, {{"value", 0.0}});
  {
    const auto t = x({3, 5});
    add("constant_tensor", {}, {spec({3, 5})},
        {{"data", shared_bytes({t.bytes().begin(), t.bytes().end()})}});
  }
  add("element_count", {x({3, 5, 2})}, {spec({})}, {{"axes", list{0, 2}}});

  // --- reductions ---
  for (const auto* op : {"reduce_sum", "reduce_prod", "reduce_max", "reduce_min"}) {
    const double tolerance =
        std::string(op) == "reduce_sum" || std::string(op) == "reduce_prod" ? few : 0;
    add(op, {x({7, 13})}, {spec({})}, {}, tolerance);
    add(op, {x({7, 13})}, {spec({13})}, {{"axes", list{0}}}, tolerance);
    add(op, {x({7, 13})}, {spec({7})}, {{"axes", list{1}}}, tolerance);
    add(op, {x({3, 5, 4, 2})}, {spec({5, 2})}, {{"axes", list{0, 2}}}, tolerance);
    add(op, {x({3, 1, 300})}, {spec({3, 1})}, {{"axes", list{-1}}}, tolerance);
    add(op, {x({200, 70})}, {spec({70})}, {{"axes", list{0}}}, tolerance);
    add(op, {x({0, 3})}, {spec({3})}, {{"axes", list{0}}});
  }
  add("reduce_sum", {x({40'000})}, {spec({})}, {}, few);
  for (const auto* op : {"argmax", "argmin"}) {
    add(op, {x({7, 13})}, {{dtype::i32, {7}}});
    add(op, {x({7, 300})}, {{dtype::i32, {7}}});
    add(op, {x({7, 13})}, {{dtype::i32, {13}}}, {{"axis", std::int64_t{0}}});
  }
  for (const std::int64_t exclusive : {0, 1})
    for (const std::int64_t reverse : {0, 1}) {
      const attributes attrs{
          {"axis", std::int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}};
      add("cumulative_sum", {x({3, 301})}, {spec({3, 301})}, attrs, 4 * few);
      add("cumulative_sum", {x({3, 17, 4})}, {spec({3, 17, 4})}, attrs, 4 * few);
    }
  add("top_k", {x({5, 40})}, {spec({5, 6}), {dtype::i32, {5, 6}}}, {{"k", std::int64_t{6}}});
  add("top_k", {x({3, 300})}, {spec({3, 300}), {dtype::i32, {3, 300}}}, {{"k", std::int64_t{300}}});

  // --- by index ---
  for (const auto index : {dtype::i32, dtype::i64}) {
    add("gather", {x({6, 5, 3}), indices(index, {4}, 2, 0, 5)}, {spec({6, 4, 3})},
        {{"axis", std::int64_t{1}}});
    add("gather", {x({9, 4}), indices(index, {2, 3}, 2, 0, 9)}, {spec({2, 3, 4})},
        {{"axis", std::int64_t{0}}});
    add("scatter_add", {x({6, 5, 3}), indices(index, {40}, 3, 0, 5), x({6, 40, 3}, 4)},
        {spec({6, 5, 3})}, {{"axis", std::int64_t{1}}});
    add("scatter_add", {x({30, 4}), indices(index, {50}, 3, 0, 30), x({50, 4}, 4)}, {spec({30, 4})},
        {{"axis", std::int64_t{0}}});
    // Many rows for one place.
    add("scatter_add", {x({3, 4}), indices(index, {200}, 9, 0, 3), x({200, 4}, 4)}, {spec({3, 4})},
        {{"axis", std::int64_t{0}}});
    add("one_hot", {indices(index, {3, 4}, 5, -1, 7)}, {spec({3, 4, 6})},
        {{"depth", std::int64_t{6}}});
    add("take_last", {x({5, 9}), indices(index, {5, 4}, 6, 0, 9)}, {{type, {5, 4}}});
    add("put_last", {x({5, 4}), indices(index, {5, 4}, 6, 0, 9), x({5, 9}, 7)}, {spec({5, 9})});
  }
  if (!is_real) return all;

  // --- rows ---
  for (const auto* op : {"softmax", "log_softmax"}) {
    add(op, {x({7, 13})}, {spec({7, 13})}, {}, 4 * few);
    add(op, {x({3, 300})}, {spec({3, 300})}, {}, 4 * few);
    add(op, {x({3, 5, 4})}, {spec({3, 5, 4})}, {{"axis", std::int64_t{1}}}, 4 * few);
    const auto grad = std::string(op) + "_grad";
    add(grad, {x({7, 13}), numbers(type, {7, 13}, 9, -3, -0.1)}, {spec({7, 13})}, {}, 4 * few);
    add(grad, {x({3, 5, 4}), numbers(type, {3, 5, 4}, 9, -3, -0.1)}, {spec({3, 5, 4})},
        {{"axis", std::int64_t{1}}}, 4 * few);
  }
  const auto scale = numbers(type, {}, 11, 0.1, 0.2);
  add("softmax_cross_entropy", {x({9, 10}), indices(dtype::i32, {9}, 8, 0, 10), scale},
      {spec({}), spec({9, 10})}, {}, 4 * few);
  add("softmax_cross_entropy", {x({5, 400}), indices(dtype::i32, {5}, 8, 0, 400), scale},
      {spec({}), spec({5, 400})}, {}, 4 * few);
  add("count_correct", {x({29, 4}), indices(dtype::i32, {29}, 8, 0, 4)}, {{dtype::i64, {}}});
  struct groups {
    shape x, of;
    list axes;
  };
  for (const auto& g : std::vector<groups>{
           {{5, 12}, {5}, {1}}, {{3, 300}, {3}, {-1}}, {{4, 3, 5, 2}, {3}, {0, 2, 3}}}) {
    add("standardize", {x(g.x)}, {spec(g.x), spec(g.of), spec(g.of)},
        {{"axes", g.axes}, {"epsilon", 1e-3}}, 4 * few);
    add("standardize_grad", {x(g.x), x(g.x, 2), numbers(type, g.of, 3, 0.5, 2)}, {spec(g.x)},
        {{"axes", g.axes}}, 4 * few);
  }

  // --- windows ---
  struct window {
    shape image, pooled;
    attributes attrs;
  };
  const window windows[] = {
      {{2, 3, 8, 6}, {2, 3, 4, 3}, {{"window", list{2, 2}}}},
      {{1, 2, 7, 9},
       {1, 2, 4, 5},
       {{"window", list{3, 3}},
        {"strides", list{2, 2}},
        {"before", list{1, 1}},
        {"after", list{1, 1}}}},
      {{2, 1, 7, 9},
       {2, 1, 4, 8},
       {{"window", list{3, 2}},
        {"strides", list{1, 1}},
        {"before", list{1, 0}},
        {"after", list{0, 1}},
        {"dilations", list{2, 2}},
        {"count_padding", std::int64_t{1}}}},
  };
  for (const auto& w : windows) {
    host_device device;
    const auto table = make_host_kernels();
    const auto image = x(w.image);
    auto best = tensor::make(spec(w.pooled)), places = tensor::make({dtype::i32, w.pooled});
    const tensor_spec in[] = {image.spec()}, out[] = {best.spec(), places.spec()};
    auto k = table.find("max_pool2d")->make(w.attrs, device);
    tensor results[] = {best, places};
    if (k && (*k)->prepare(in, out)) (void)(*k)->run({}, std::span(&image, 1), results);
    add("max_pool2d", {image}, {spec(w.pooled), {dtype::i32, w.pooled}}, w.attrs);
    add("max_pool2d_grad", {x(w.pooled, 2), places}, {spec(w.image)}, w.attrs);
    add("max_pool2d_take", {x(w.image, 3), places}, {spec(w.pooled)}, w.attrs);
    add("avg_pool2d", {image}, {spec(w.pooled)}, w.attrs, few);
    add("avg_pool2d_grad", {x(w.pooled, 2)}, {spec(w.image)}, w.attrs, few);
  }

  // --- random numbers ---
  const attributes drawn{{"seed", std::int64_t{5}},
                         {"stream", std::int64_t{3}},
                         {"part", std::int64_t{2}},
                         {"rows", std::int64_t{5}},
                         {"low", -1.0},
                         {"high", 2.0},
                         {"mean", 1.0},
                         {"deviation", 0.5},
                         {"rate", 0.3}};
  for (const auto* op : {"random_uniform", "random_normal"}) {
    const double tolerance = std::string(op) == "random_normal" && type == dtype::f64 ? 1e-14 : 0;
    add(op, {}, {spec({5, 13})}, drawn, tolerance);
    add(std::string(op) + "_like", {x({5, 3})}, {spec({5, 3})}, drawn, tolerance);
  }
  add("dropout_mask", {x({5, 13})}, {spec({5, 13})}, drawn);

  // --- products ---
  struct factors {
    shape a, b, c;
    std::int64_t ta = 0, tb = 0, sum = 0;
  };
  for (const auto& f : std::vector<factors>{{{5, 7}, {7, 3}, {5, 3}},
                                            {{7, 5}, {7, 3}, {5, 3}, 1, 0},
                                            {{5, 7}, {3, 7}, {5, 3}, 0, 1},
                                            {{7, 5}, {3, 7}, {5, 3}, 1, 1},
                                            {{1, 7}, {7, 1}, {1, 1}},
                                            {{4, 5, 7}, {7, 3}, {4, 5, 3}},
                                            {{4, 5, 7}, {4, 7, 3}, {4, 5, 3}},
                                            {{4, 7, 5}, {3, 7}, {4, 5, 3}, 1, 1},
                                            {{2, 1, 5, 7}, {3, 7, 2}, {2, 3, 5, 2}},
                                            {{2, 3, 5, 7}, {2, 1, 7, 2}, {2, 3, 5, 2}},
                                            {{2, 3, 1, 5, 7}, {2, 1, 4, 7, 2}, {2, 3, 4, 5, 2}},
                                            {{4, 7, 5}, {4, 7, 3}, {5, 3}, 1, 0, 1},
                                            {{4, 5, 7}, {4, 7, 3}, {5, 3}, 0, 0, 1},
                                            {{4, 5, 7}, {1, 3, 7}, {5, 3}, 0, 1, 1},
                                            {{5, 0}, {0, 3}, {5, 3}}})
    add("matmul", {x(f.a), x(f.b, 2)}, {spec(f.c)},
        {{"transpose_a", f.ta}, {"transpose_b", f.tb}, {"sum_batches", f.sum}}, few);
  for (const std::int64_t causal : {0, 1}) {
    const attributes attrs{{"heads", std::int64_t{2}}, {"causal", causal}};
    add("attention", {x({3, 5, 24})}, {spec({3, 5, 8})}, attrs, 8 * few);
    add("attention_grad", {x({3, 5, 8}, 2), x({3, 5, 24})}, {spec({3, 5, 24})}, attrs, 8 * few);
    add("attention", {x({2, 5, 8}), x({2, 5, 8}, 2), x({2, 5, 6}, 3)}, {spec({2, 5, 6})}, attrs,
        8 * few);
  }
  // One head of several samples, several heads of one.
  for (const auto& [samples, heads] : {std::pair<std::int64_t, std::int64_t>{3, 1}, {1, 2}}) {
    const attributes attrs{{"heads", heads}, {"causal", std::int64_t{1}}};
    add("attention", {x({samples, 5, 24})}, {spec({samples, 5, 8})}, attrs, 8 * few);
    add("attention_grad", {x({samples, 5, 8}, 2), x({samples, 5, 24})}, {spec({samples, 5, 24})},
        attrs, 8 * few);
    add("attention_grad",
        {x({samples, 5, 6}, 4), x({samples, 5, 8}), x({samples, 5, 8}, 2), x({samples, 5, 6}, 3)},
        {spec({samples, 5, 8}), spec({samples, 5, 8}), spec({samples, 5, 6})}, attrs, 8 * few);
  }
  add("attention", {x({2, 5, 8}), x({2, 7, 8}, 2), x({2, 7, 6}, 3)}, {spec({2, 5, 6})},
      {{"heads", std::int64_t{2}}, {"scale", 0.3}}, 8 * few);
  add("attention_grad", {x({2, 5, 6}, 4), x({2, 5, 8}), x({2, 7, 8}, 2), x({2, 7, 6}, 3)},
      {spec({2, 5, 8}), spec({2, 7, 8}), spec({2, 7, 6})}, {{"heads", std::int64_t{2}}}, 8 * few);

  struct images {
    shape x, w, y;
    attributes attrs;
  };
  for (const auto& c :
       std::vector<images>{{{2, 3, 7, 6}, {4, 3, 3, 3}, {2, 4, 5, 4}, {}},
                           {{2, 4, 7, 6},
                            {6, 2, 3, 3},
                            {2, 6, 4, 3},
                            {{"strides", list{2, 2}},
                             {"before", list{1, 1}},
                             {"after", list{1, 1}},
                             {"groups", std::int64_t{2}}}},
                           {{1, 2, 8, 7},
                            {3, 2, 2, 3},
                            {1, 3, 8, 7},
                            {{"before", list{0, 1}}, {"after", list{1, 1}}}},
                           {{1, 2, 9, 9},
                            {3, 2, 3, 3},
                            {1, 3, 3, 3},
                            {{"strides", list{2, 2}}, {"dilations", list{2, 2}}}}}) {
    add("conv2d", {x(c.x), x(c.w, 2)}, {spec(c.y)}, c.attrs, 4 * few);
    add("conv2d_input_grad", {x(c.y, 3), x(c.w, 2)}, {spec(c.x)}, c.attrs, 4 * few);
    add("conv2d_weights_grad", {x(c.y, 3), x(c.x)}, {spec(c.w)}, c.attrs, 4 * few);
  }
  return all;
}

// Element-wise ones: every op and combination of types, dense, with a row that is broadcast, and
// with a scalar.
inline std::vector<op_case> element_cases() {
  std::vector<op_case> all;
  for (const auto op : cuda::element_ops())
    for (const auto& types : cuda::element_overloads(op))
      for (const auto& last : {shape{7, 13}, shape{13}, shape{}}) {
        op_case c;
        c.op = op;
        const auto range = operands::range_of(op, 3);
        for (std::size_t i = 0; i + 1 < types.size(); ++i)
          c.inputs.push_back(numbers(types[i], i == 0 ? shape{7, 13} : last,
                                     static_cast<unsigned>(i + 1), range.low, range.high));
        c.outputs = {{types.back(), {7, 13}}};
        // f64 functions are a library's, which differs by a few units of the last place; f32 ones
        // are the host's.
        c.tolerance = types.back() == dtype::f64 ? 1e-14 : 0;
        const bool is_first = last == shape{7, 13};
        if (is_first || types.size() > 2) all.push_back(std::move(c));
      }
  return all;
}

// Of the host's kernels.
inline result<std::vector<tensor>> run_on_host(const op_case& c) {
  host_device device;
  const auto table = make_host_kernels();
  const auto* row = table.find(c.op);
  if (row == nullptr) return error(error_code::not_found, "the host has no " + c.op);
  auto k = row->make(c.attrs, device);
  if (!k) return std::move(k.error());
  std::vector<tensor_spec> specs;
  for (const auto& t : c.inputs) specs.push_back(t.spec());
  if (auto ok = (*k)->prepare(specs, c.outputs); !ok) return std::move(ok.error());
  std::vector<tensor> results;
  for (const auto& s : c.outputs) results.push_back(tensor::make(s));
  tag t;
  t.step = c.step;
  if (auto ok = (*k)->run(t, c.inputs, results); !ok) return std::move(ok.error());
  return results;
}

inline double number_at(const tensor& t, std::int64_t i) {
  switch (t.type()) {
    case dtype::f32: return static_cast<double>(t.data<float>()[i]);
    case dtype::f64: return t.data<double>()[i];
    case dtype::i32: return t.data<std::int32_t>()[i];
    case dtype::i64: return static_cast<double>(t.data<std::int64_t>()[i]);
    case dtype::u8: return t.data<std::uint8_t>()[i];
    case dtype::f16: return static_cast<double>(to_f32(t.data<f16>()[i]));
    case dtype::bf16: return static_cast<double>(to_f32(t.data<bf16>()[i]));
    case dtype::boolean: return t.data<boolean>()[i] ? 1 : 0;
  }
  return 0;
}

// The largest difference, relative to the largest expected number; infinity where a NaN or an
// infinity is on one side alone.
inline double largest_error(const tensor& got, const tensor& expected) {
  if (got.size_bytes() == expected.size_bytes() && got.type() == expected.type() &&
      (got.size_bytes() == 0 ||
       std::memcmp(got.bytes().data(), expected.bytes().data(), got.size_bytes()) == 0))
    return 0;
  double most = 0, size = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    const double e = number_at(expected, i), g = number_at(got, i);
    if (std::isnan(e) && std::isnan(g)) continue;
    if (!std::isfinite(e) || !std::isfinite(g)) {
      if (e != g) return std::numeric_limits<double>::infinity();
      continue;
    }
    most = std::max(most, std::abs(e - g));
    size = std::max(size, std::abs(e));
  }
  return most == 0 ? 0 : size == 0 ? std::numeric_limits<double>::infinity() : most / size;
}

}  // namespace troupe::test
