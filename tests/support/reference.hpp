#pragma once
// What ops and plans mean, written as plainly as possible: one naive interpreter in f64 over graphs
// and over plans. Shapes come from the op table's rules with concrete operands, so that those are
// tested as well.

#include "tests/support/reference_array.hpp"
#include "tests/support/reference_dense.hpp"
#include "tests/support/reference_tensor.hpp"
#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::reference {

namespace detail {

inline std::size_t size(const array& a, std::size_t d) {
  return static_cast<std::size_t>(a.spec.shape.size(d));
}

// Element of an operand that goes with element i of the result, by NumPy's rules.
inline std::size_t spread_index(const shape& operand, const shape& out, std::size_t i) {
  std::size_t at = 0, step = 1;
  for (std::size_t from_end = 1; from_end <= out.rank(); ++from_end) {
    const auto size = static_cast<std::size_t>(out.size(out.rank() - from_end));
    const auto position = i % size;
    i /= size;
    if (from_end > operand.rank()) continue;
    const auto own = static_cast<std::size_t>(operand.size(operand.rank() - from_end));
    at += own == 1 ? 0 : position * step;
    step *= own;
  }
  return at;
}

inline void cross_entropy(std::span<const array> in, std::vector<array>& out) {
  const auto &logits = in[0], &labels = in[1];
  const auto classes = size(logits, 1);
  out[0].at[0] = 0;
  for (std::size_t r = 0; r < size(logits, 0); ++r) {
    const auto* row = &logits.at[r * classes];
    const auto largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
    const auto label = static_cast<std::size_t>(labels.at[r]);
    out[0].at[0] += in[2].at[0] * (std::log(sum) + largest - row[label]);
    for (std::size_t c = 0; c < classes; ++c)
      out[1].at[r * classes + c] =
          in[2].at[0] * (std::exp(row[c] - largest) / sum - (c == label ? 1 : 0));
  }
}

inline std::size_t largest_of_row(const array& x, std::size_t r) {
  const auto* row = &x.at[r * size(x, 1)];
  return static_cast<std::size_t>(std::max_element(row, row + size(x, 1)) - row);
}

// Sample i of the made-up dataset that stands for every path: pixels from a hash, the label is i
// modulo the classes.
inline double pixel(std::uint64_t sample, std::size_t p) {
  auto z = (sample * 1000 + p + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return static_cast<double>(z >> 40U) / static_cast<double>(1U << 24U);
}

inline void idx_batch(const attributes& attrs, std::uint64_t step, std::vector<array>& out) {
  const auto number = [&](const char* name) {
    return static_cast<std::uint64_t>(attrs.integer(name));
  };
  const auto range =
      idx_schedule{number("samples"), number("batch"), number("parts"), number("part")}.range(step);
  const auto order =
      permutation(number("seed"), range.epoch, static_cast<std::uint32_t>(number("samples")));
  const auto pixels = size(out[0], 1);
  for (std::size_t r = 0; r < range.count; ++r) {
    const std::uint64_t sample = number("shuffle") != 0 ? order[range.first + r] : range.first + r;
    for (std::size_t p = 0; p < pixels; ++p) out[0].at[r * pixels + p] = pixel(sample, p);
    out[1].at[r] = static_cast<double>(sample % number("classes"));
  }
  const auto n = number("global_scale") != 0 ? range.global_count : range.count;
  out[2].at[0] = n == 0 ? 0 : 1 / static_cast<double>(n);
}

inline void constant_tensor(const attributes& attrs, array& y) {
  auto t = tensor::make(y.spec);
  std::ranges::copy(attrs.data("data").view(), t.bytes().begin());
  y = to_array(t);
}

using element_rule = std::function<double(std::span<const double>)>;

inline const std::map<std::string, element_rule>& element_rules() {
  using in = std::span<const double>;
  static const std::map<std::string, element_rule> rules{
      {"add", [](in x) { return x[0] + x[1]; }},
      {"sub", [](in x) { return x[0] - x[1]; }},
      {"mul", [](in x) { return x[0] * x[1]; }},
      {"div", [](in x) { return x[0] / x[1]; }},
      {"maximum", [](in x) { return std::max(x[0], x[1]); }},
      {"minimum", [](in x) { return std::min(x[0], x[1]); }},
      {"pow", [](in x) { return std::pow(x[0], x[1]); }},
      {"neg", [](in x) { return -x[0]; }},
      {"abs", [](in x) { return std::abs(x[0]); }},
      {"sign", [](in x) { return x[0] > 0   ? 1.0
                                 : x[0] < 0 ? -1.0
                                            : x[0]; }},
      {"square", [](in x) { return x[0] * x[0]; }},
      {"reciprocal", [](in x) { return 1 / x[0]; }},
      {"fused_multiply_add", [](in x) { return std::fma(x[0], x[1], x[2]); }},
      {"exp", [](in x) { return std::exp(x[0]); }},
      {"log", [](in x) { return std::log(x[0]); }},
      {"sqrt", [](in x) { return std::sqrt(x[0]); }},
      {"rsqrt", [](in x) { return 1 / std::sqrt(x[0]); }},
      {"erf", [](in x) { return std::erf(x[0]); }},
      {"sin", [](in x) { return std::sin(x[0]); }},
      {"cos", [](in x) { return std::cos(x[0]); }},
      {"fmod", [](in x) { return std::fmod(x[0], x[1]); }},
      {"tan", [](in x) { return std::tan(x[0]); }},
      {"expm1", [](in x) { return std::expm1(x[0]); }},
      {"log1p", [](in x) { return std::log1p(x[0]); }},
      {"asin", [](in x) { return std::asin(x[0]); }},
      {"acos", [](in x) { return std::acos(x[0]); }},
      {"atan", [](in x) { return std::atan(x[0]); }},
      {"sinh", [](in x) { return std::sinh(x[0]); }},
      {"cosh", [](in x) { return std::cosh(x[0]); }},
      {"asinh", [](in x) { return std::asinh(x[0]); }},
      {"acosh", [](in x) { return std::acosh(x[0]); }},
      {"atanh", [](in x) { return std::atanh(x[0]); }},
      {"softplus",
       [](in x) { return std::max(x[0], 0.0) + std::log1p(std::exp(-std::abs(x[0]))); }},
      {"floor", [](in x) { return std::floor(x[0]); }},
      {"ceil", [](in x) { return std::ceil(x[0]); }},
      {"round", [](in x) { return std::nearbyint(x[0]); }},
      {"read", [](in x) { return x[0]; }},
      {"relay", [](in x) { return x[0]; }},
      {"pass_if", [](in x) { return x[0]; }},
      {"stop_gradient", [](in x) { return x[0]; }},
      {"relu", [](in x) { return x[0] > 0 ? x[0] : 0.0; }},
      {"leaky_relu", [](in x) { return x[0] < 0 ? x[1] * x[0] : x[0]; }},
      {"sigmoid", [](in x) { return 1 / (1 + std::exp(-x[0])); }},
      {"tanh", [](in x) { return std::tanh(x[0]); }},
      {"gelu", [](in x) { return 0.5 * x[0] * std::erfc(-x[0] / std::sqrt(2.0)); }},
      {"gelu_grad",
       [](in x) {
         return x[0] * (0.5 * std::erfc(-x[1] / std::sqrt(2.0)) +
                        x[1] * std::exp(-x[1] * x[1] / 2) / std::sqrt(2 * 3.14159265358979323846));
       }},
      {"gelu_tanh",
       [](in x) {
         return 0.5 * x[0] *
                (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) *
                               (x[0] + 0.044715 * std::pow(x[0], 3))));
       }},
      {"clip", [](in x) { return std::max(x[1], std::min(x[0], x[2])); }},
      {"relu_grad", [](in x) { return x[1] > 0 ? x[0] : 0.0; }},
      {"sigmoid_grad", [](in x) { return x[0] * x[1] * (1 - x[1]); }},
      {"tanh_grad", [](in x) { return x[0] * (1 - x[1] * x[1]); }},
      {"equal", [](in x) { return x[0] == x[1] ? 1.0 : 0.0; }},
      {"not_equal", [](in x) { return x[0] != x[1] ? 1.0 : 0.0; }},
      {"less", [](in x) { return x[0] < x[1] ? 1.0 : 0.0; }},
      {"less_equal", [](in x) { return x[0] <= x[1] ? 1.0 : 0.0; }},
      {"greater", [](in x) { return x[0] > x[1] ? 1.0 : 0.0; }},
      {"greater_equal", [](in x) { return x[0] >= x[1] ? 1.0 : 0.0; }},
      {"is_nan", [](in x) { return std::isnan(x[0]) ? 1.0 : 0.0; }},
      {"logical_and", [](in x) { return x[0] != 0 && x[1] != 0 ? 1.0 : 0.0; }},
      {"logical_or", [](in x) { return x[0] != 0 || x[1] != 0 ? 1.0 : 0.0; }},
      {"logical_xor", [](in x) { return (x[0] != 0) != (x[1] != 0) ? 1.0 : 0.0; }},
      {"logical_not", [](in x) { return x[0] == 0 ? 1.0 : 0.0; }},
      {"where", [](in x) { return x[0] != 0 ? x[1] : x[2]; }},
      {"cast", [](in x) { return x[0]; }},  // between floating types
      {"broadcast_like", [](in x) { return x[0]; }},
  };
  return rules;
}

// A cast: fractions are cut off and what does not fit becomes the nearest, from floating types;
// whole numbers keep their low bits.
inline double whole_number(double x, dtype from, dtype to) {
  const double low = to == dtype::u8    ? 0
                     : to == dtype::i32 ? -0x1p31
                                        : -0x1p63,
               count = to == dtype::u8    ? 0x1p8
                       : to == dtype::i32 ? 0x1p32
                                          : 0x1p64;
  if (std::isnan(x)) return 0;
  if (any_floating.has(from)) return std::clamp(std::trunc(x), low, low + count - 1);
  return x - count * std::floor((x - low) / count);
}

using reduction_rule = std::function<double(double, double)>;
inline const std::map<std::string, std::pair<double, reduction_rule>>& reduction_rules() {
  static const std::map<std::string, std::pair<double, reduction_rule>> rules{
      {"reduce_sum", {0, [](double a, double b) { return a + b; }}},
      {"reduce_prod", {1, [](double a, double b) { return a * b; }}},
      {"reduce_max", {-INFINITY, [](double a, double b) { return std::max(a, b); }}},
      {"reduce_min", {INFINITY, [](double a, double b) { return std::min(a, b); }}},
      {"reduce_any", {0, [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }}},
      {"reduce_all", {1, [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }}},
  };
  return rules;
}

inline std::vector<bool> reduced_axes(const attributes& attrs, std::size_t rank) {
  const auto axes = attrs.integers("axes");
  std::vector<bool> is_reduced(rank, axes.empty());
  for (const auto a : axes)
    is_reduced[static_cast<std::size_t>(a < 0 ? a + static_cast<std::int64_t>(rank) : a)] = true;
  return is_reduced;
}

// The element of the result that element i of x goes to.
inline std::size_t reduced_index(const shape& x, const std::vector<bool>& is_reduced,
                                 std::size_t i) {
  std::size_t at = 0, step = 1;
  for (auto d = x.rank(); d-- > 0;) {
    const auto size = static_cast<std::size_t>(x.size(d));
    if (!is_reduced[d]) {
      at += i % size * step;
      step *= size;
    }
    i /= size;
  }
  return at;
}

inline std::size_t count_of(const attributes& attrs, const shape& x) {
  std::size_t n = 1;
  const auto is_counted = reduced_axes(attrs, x.rank());
  for (std::size_t d = 0; d < x.rank(); ++d)
    if (is_counted[d]) n *= static_cast<std::size_t>(x.size(d));
  return n;
}

// First of the largest (smallest) along the axis.
inline void arg_of(const attributes& attrs, bool largest, const array& x, array& out) {
  const auto rank = x.spec.shape.rank();
  const auto axis = attrs.integer("axis", -1);
  std::vector<bool> is_reduced(rank);
  is_reduced[static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis)] =
      true;
  std::vector<std::optional<double>> best(out.at.size());
  std::vector<std::size_t> seen(out.at.size());
  for (std::size_t i = 0; i < x.at.size(); ++i) {
    const auto o = reduced_index(x.spec.shape, is_reduced, i);
    if (!best[o] || (largest ? x.at[i] > *best[o] : x.at[i] < *best[o])) {
      best[o] = x.at[i];
      out.at[o] = static_cast<double>(seen[o]);
    }
    ++seen[o];
  }
}

// --- layout and indices: for each element of the result, the element of x, or none ---

inline std::size_t axis_of(const attributes& attrs, const shape& s) {
  const auto axis = attrs.integer("axis");
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(s.rank()) : axis);
}
// The place in the whole of an element of a slice.
inline std::size_t sliced_from(const attributes& attrs, const shape& whole, const shape& part,
                               std::size_t i) {
  const auto begin = attrs.integers("begin"),
             step = attrs.integers("step", std::vector<std::int64_t>(whole.rank(), 1));
  auto at = positions(part, i);
  for (std::size_t d = 0; d < at.size(); ++d)
    at[d] = static_cast<std::size_t>(begin[d] + static_cast<std::int64_t>(at[d]) * step[d]);
  return index_at(whole, at);
}
inline std::size_t counted(double index, std::size_t n) {
  return static_cast<std::size_t>(index < 0 ? index + static_cast<double>(n) : index);
}
// The place in x of an element of gather's result.
inline std::size_t gathered_from(const attributes& attrs, const shape& x, const array& indices,
                                 const shape& out, std::size_t i) {
  const auto axis = axis_of(attrs, x), wide = indices.spec.shape.rank();
  const auto at = positions(out, i);
  const std::vector<std::size_t> chosen(at.begin() + static_cast<std::ptrdiff_t>(axis),
                                        at.begin() + static_cast<std::ptrdiff_t>(axis + wide));
  std::vector<std::size_t> from(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(axis));
  from.push_back(counted(indices.at[index_at(indices.spec.shape, chosen)],
                         static_cast<std::size_t>(x.size(axis))));
  from.insert(from.end(), at.begin() + static_cast<std::ptrdiff_t>(axis + wide), at.end());
  return index_at(x, from);
}
inline std::size_t last_of(const shape& s) {
  return static_cast<std::size_t>(s.size(s.rank() - 1));
}

// False: another op.
inline bool move_elements(const std::string& type, const attributes& attrs,
                          std::span<const array> in, std::vector<array>& all) {
  if (in.empty()) return false;
  auto& out = all[0];
  const auto &x = in[0], &y = out;
  const auto &from = x.spec.shape, &to = y.spec.shape;
  const auto each = [&](const auto& source) {
    for (std::size_t i = 0; i < out.at.size(); ++i) out.at[i] = source(i);
  };
  if (type == "reshape" || type == "expand_dims") {
    out.at = x.at;
  } else if (type == "transpose") {
    auto order = attrs.integers("order");
    if (order.empty())
      for (auto d = from.rank(); d-- > 0;) order.push_back(static_cast<std::int64_t>(d));
    each([&](std::size_t i) {
      const auto at = positions(to, i);
      std::vector<std::size_t> there(at.size());
      for (std::size_t d = 0; d < at.size(); ++d)
        there[static_cast<std::size_t>(
            order[d] < 0 ? order[d] + static_cast<std::int64_t>(at.size()) : order[d])] = at[d];
      return x.at[index_at(from, there)];
    });
  } else if (type == "slice") {
    each([&](std::size_t i) { return x.at[sliced_from(attrs, from, to, i)]; });
  } else if (type == "put_slice") {
    for (std::size_t i = 0; i < x.at.size(); ++i) out.at[sliced_from(attrs, to, from, i)] = x.at[i];
  } else if (type == "pad") {
    const auto before = attrs.integers("before");
    each([&](std::size_t i) {
      auto at = positions(to, i);
      for (std::size_t d = 0; d < at.size(); ++d) {
        const auto inner = static_cast<std::int64_t>(at[d]) - before[d];
        if (inner < 0 || inner >= from.size(d)) return attrs.real("value");
        at[d] = static_cast<std::size_t>(inner);
      }
      return x.at[index_at(from, at)];
    });
  } else if (type == "tile") {
    each([&](std::size_t i) {
      auto at = positions(to, i);
      for (std::size_t d = 0; d < at.size(); ++d) at[d] %= static_cast<std::size_t>(from.size(d));
      return x.at[index_at(from, at)];
    });
  } else if (type == "concat") {
    const auto axis = axis_of(attrs, to);
    each([&](std::size_t i) {
      auto at = positions(to, i);
      std::size_t k = 0;
      while (at[axis] >= static_cast<std::size_t>(in[k].spec.shape.size(axis)))
        at[axis] -= static_cast<std::size_t>(in[k++].spec.shape.size(axis));
      return in[k].at[index_at(in[k].spec.shape, at)];
    });
  } else if (type == "gather") {
    each([&](std::size_t i) { return x.at[gathered_from(attrs, from, in[1], to, i)]; });
  } else if (type == "scatter_add") {
    out.at = x.at;
    for (std::size_t i = 0; i < in[2].at.size(); ++i)
      out.at[gathered_from(attrs, from, in[1], in[2].spec.shape, i)] += in[2].at[i];
  } else if (type == "one_hot") {
    const auto depth = static_cast<std::size_t>(attrs.integer("depth"));
    each([&](std::size_t i) {
      return x.at[i / depth] == static_cast<double>(i % depth) ? 1.0 : 0.0;
    });
  } else if (type == "take_last") {
    each([&](std::size_t i) {
      return x.at[i / last_of(to) * last_of(from) + counted(in[1].at[i], last_of(from))];
    });
  } else if (type == "put_last") {
    for (std::size_t i = 0; i < x.at.size(); ++i)
      out.at[i / last_of(from) * last_of(to) + counted(in[1].at[i], last_of(to))] += x.at[i];
  } else if (type == "top_k") {
    const auto n = last_of(from), k = last_of(to);
    for (std::size_t r = 0; k > 0 && r < out.at.size() / k; ++r) {
      std::vector<std::size_t> order(n);
      for (std::size_t i = 0; i < n; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return x.at[r * n + a] > x.at[r * n + b];
      });
      for (std::size_t i = 0; i < k; ++i) {
        out.at[r * k + i] = x.at[r * n + order[i]];
        all[1].at[r * k + i] = static_cast<double>(order[i]);
      }
    }
  } else if (type == "cumulative_sum") {
    const auto axis = axis_of(attrs, from);
    const bool is_reverse = attrs.integer("reverse") != 0,
               is_exclusive = attrs.integer("exclusive") != 0;
    each([&](std::size_t i) {
      auto at = positions(from, i);
      const auto own = at[axis];
      double sum = 0;
      for (at[axis] = 0; at[axis] < static_cast<std::size_t>(from.size(axis)); ++at[axis])
        if (is_reverse ? at[axis] > own : at[axis] < own) sum += x.at[index_at(from, at)];
      return is_exclusive ? sum : sum + x.at[i];
    });
  } else {
    return false;
  }
  return true;
}

}  // namespace detail

// All outputs of an op in step `step`. Throws what the shape rule answers.
inline std::vector<array> run_op(const op_table& table, const std::string& type,
                                 const attributes& attrs, std::span<const array> in,
                                 std::uint64_t step) {
  if (type == "after") return {in[0]};  // what else it takes has any shape
  std::vector<tensor_spec> specs;
  for (const auto& a : in) specs.push_back(a.spec);
  const tag t{.step = step};
  auto shapes = table.find(type)->shapes(attrs, specs, &t);
  if (!shapes) throw std::runtime_error(type + ": " + shapes.error().text());
  std::vector<array> out;
  for (const auto& s : *shapes) out.push_back(make(s, [](std::size_t) { return 0.0; }));
  auto& y = out[0];
  if (const auto rule = detail::element_rules().find(type); rule != detail::element_rules().end()) {
    std::vector<double> operands(in.size());
    for (std::size_t i = 0; i < y.at.size(); ++i) {
      for (std::size_t k = 0; k < in.size(); ++k)
        operands[k] = in[k].at[detail::spread_index(in[k].spec.shape, y.spec.shape, i)];
      y.at[i] = rule->second(operands);
      if (type == "cast" && (whole.has(y.spec.type) || y.spec.type == dtype::u8))
        y.at[i] = detail::whole_number(y.at[i], in[0].spec.type, y.spec.type);
      if (type == "cast" && y.spec.type == dtype::boolean) y.at[i] = y.at[i] != 0 ? 1 : 0;
      if (type == "div" && whole.has(y.spec.type))
        y.at[i] = operands[1] == 0 ? 0 : std::trunc(y.at[i]);
    }
  } else if (const auto reduction = detail::reduction_rules().find(type);
             reduction != detail::reduction_rules().end()) {
    y.at.assign(y.at.size(), reduction->second.first);
    const auto is_reduced = detail::reduced_axes(attrs, in[0].spec.shape.rank());
    for (std::size_t i = 0; i < in[0].at.size(); ++i) {
      auto& sum = y.at[detail::reduced_index(in[0].spec.shape, is_reduced, i)];
      sum = reduction->second.second(sum, in[0].at[i]);
    }
  } else if (detail::move_elements(type, attrs, in, out)) {
    return out;
  } else if (type == "element_count") {
    y.at[0] = static_cast<double>(detail::count_of(attrs, in[0].spec.shape));
  } else if (type == "constant") {
    y.at[0] = attrs.real("value");
  } else if (type == "constant_tensor") {
    detail::constant_tensor(attrs, y);
  } else if (dense(type, attrs, in, out)) {
    return out;
  } else if (type == "argmax" || type == "argmin") {
    detail::arg_of(attrs, type == "argmax", in[0], y);
  } else if (type == "count_correct") {
    for (std::size_t r = 0; r < in[1].at.size(); ++r)
      y.at[0] += static_cast<double>(detail::largest_of_row(in[0], r)) == in[1].at[r] ? 1 : 0;
  } else if (type == "softmax_cross_entropy") {
    detail::cross_entropy(in, out);
  } else if (type == "idx_batch") {
    detail::idx_batch(attrs, step, out);
  } else {
    throw std::runtime_error("the reference does not know " + type);
  }
  return out;
}

using feeds = std::map<std::string, array>;  // inputs and variables by name

// The value of `v`. Everything up to it is computed, in order.
inline array evaluate(const graph& g, value v, const feeds& fed, std::uint64_t step = 0) {
  std::vector<bool> is_needed(v.node + 1);
  is_needed[v.node] = true;
  for (auto i = v.node + 1; i-- > 0;)
    if (is_needed[i])
      for (const auto& in : g.node(i).inputs) is_needed[in.node] = true;
  std::vector<std::vector<array>> values(v.node + 1);
  for (std::uint32_t i = 0; i <= v.node; ++i) {
    if (!is_needed[i]) continue;
    const auto& n = g.node(i);
    if (n.type == "input" || n.type == "variable") {
      values[i] = {fed.at(n.name)};
      continue;
    }
    std::vector<array> in;
    for (const auto& x : n.inputs) in.push_back(values[x.node][x.output]);
    values[i] = run_op(g.ops(), n.type, n.attrs, in, step);
  }
  return values[v.node][v.output];
}

// Runs a plan step by step, every actor once a step, synchronous shards only.
class plan_runner {
 public:
  plan_runner(const plan& p, const op_table& table, feeds fed)
      : p_(p), table_(table), fed_(std::move(fed)) {
    for (const auto& a : p.actors)
      if (a.kind == actor_kind::shard) {
        variables_[a.name] = fed_.at(a.shard.variable);
        velocity_[a.name] = make(a.shard.spec, [](std::size_t) { return 0.0; });
      }
  }

  // What arrives at each port of the fetch `name` in the next step.
  std::vector<array> step(const std::string& name) {
    values_.assign(p_.actors.size(), std::nullopt);
    std::vector<array> fetched;
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::fetch && p_.actors[i].name == name)
        fetched = inputs_of(i);
    std::map<std::string, std::vector<array>> gradients;
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::shard) gradients[p_.actors[i].name] = inputs_of(i);
    for (const auto& a : p_.actors)
      if (a.kind == actor_kind::shard) apply(a, gradients[a.name]);
    ++step_;
    return fetched;
  }

  // Variables as the fetch "variables" would show them.
  std::vector<array> variables() {
    values_.assign(p_.actors.size(), std::nullopt);
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::fetch && p_.actors[i].name == "variables")
        return inputs_of(i);
    return {};
  }

 private:
  void apply(const planned_actor& a, const std::vector<array>& gradients) {
    auto &w = variables_.at(a.name), &v = velocity_.at(a.name);
    for (std::size_t i = 0; i < w.at.size(); ++i) {
      double g = 0;
      for (const auto& x : gradients) g += x.at.at(i);
      v.at[i] = a.shard.optimizer.momentum * v.at[i] + g;
      w.at[i] -= a.shard.optimizer.learning_rate * v.at[i];
    }
  }

  std::vector<array> inputs_of(std::uint32_t actor) {
    std::vector<array> in;
    for (const auto e : p_.actors[actor].inputs) {
      const auto from = p_.edges[e].from;
      in.push_back(outputs_of(from.actor).at(from.port));
    }
    return in;
  }

  // By recursion: for small plans.
  std::vector<array> outputs_of(std::uint32_t i) {
    if (values_[i]) return *values_[i];
    const auto& a = p_.actors[i];
    std::vector<array> out;
    if (a.kind == actor_kind::shard) {
      out.assign(a.outputs.size(), variables_.at(a.name));
    } else if (a.kind == actor_kind::feed) {
      out = {fed_.at(a.name)};
    } else if (a.kind == actor_kind::send || a.kind == actor_kind::receive) {
      out = inputs_of(i);
    } else {
      const auto in = inputs_of(i);
      std::vector<std::vector<array>> results;
      for (const auto& op : a.ops) {
        std::vector<array> operands;
        for (const auto o : op.operands)
          operands.push_back(o >= 0 ? in.at(static_cast<std::size_t>(o))
                                    : results.at(static_cast<std::size_t>(-1 - o)).at(0));
        results.push_back(run_op(table_, op.type, op.attrs, operands, step_));
      }
      out = results.back();
    }
    for (std::size_t port = 0; port < out.size(); ++port)
      if (!a.output_specs.at(port).shape.admits(out[port].spec.shape))
        throw std::runtime_error(a.name + ": larger than its bound");
    values_[i] = out;
    return out;
  }

  const plan& p_;
  const op_table& table_;
  feeds fed_;
  std::map<std::string, array> variables_, velocity_;
  std::vector<std::optional<std::vector<array>>> values_;
  std::uint64_t step_ = 0;
};

}  // namespace troupe::reference
