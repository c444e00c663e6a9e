// Reductions over any axes, and the index of the largest along one.

#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/reduction_walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace troupe::host {
namespace {

// What is reduced to what. Partial results are joined as elements are.
struct sum_of {
  template <class T>
  static constexpr T none() {
    return T{};
  }
  template <class T>
  static T join(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  }
};
struct product_of {
  template <class T>
  static constexpr T none() {
    return T{1};
  }
  template <class T>
  static T join(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) *
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a * b;
  }
};
struct max_of {  // a NaN stays
  template <class T>
  static constexpr T none() {
    return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::lowest();
  }
  template <class T>
  static T join(T a, T b) {
    return ((b > a) | (b != b)) ? b : a;
  }  // without a branch
};
struct min_of {
  template <class T>
  static constexpr T none() {
    return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::max();
  }
  template <class T>
  static T join(T a, T b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
// The same of numbers, which processors do at once.
struct max_of_numbers : max_of {
  template <class T>
  static T join(T a, T b) {
    return b > a ? b : a;
  }
};
struct min_of_numbers : min_of {
  template <class T>
  static T join(T a, T b) {
    return b < a ? b : a;
  }
};
template <class Op>
struct of_numbers {
  using op = Op;
};
template <>
struct of_numbers<max_of> {
  using op = max_of_numbers;
};
template <>
struct of_numbers<min_of> {
  using op = min_of_numbers;
};

struct any_of {
  template <class T>
  static constexpr T none() {
    return T(false);
  }
  template <class T>
  static T join(T a, T b) {
    return T(a || b);
  }
};
struct all_of {
  template <class T>
  static constexpr T none() {
    return T(true);
  }
  template <class T>
  static T join(T a, T b) {
    return T(a && b);
  }
};

// Elements of a row, and rows of columns, that are joined before they join the others, sums of f32
// in f64: so rounding errors do not grow with the size of the tensor.
constexpr std::int64_t chunk = 4096, chunk_rows = 256;
template <class Op, class T>
using wide = std::conditional_t<std::is_same_v<Op, sum_of> && std::is_same_v<T, float>, double, T>;

// 16 partial results of every 16th element, so that it is as fast as memory; then k and k + 8, +
// 4, + 2, + 1.
template <class Op, class T>
T joined_chunk(const T* x, std::int64_t n) {
  std::array<T, 16> parts;
  parts.fill(Op::template none<T>());
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (std::size_t k = 0; k < 16; ++k)
      parts[k] = Op::join(parts[k], x[i + static_cast<std::int64_t>(k)]);
  for (std::size_t k = 0; i < n; ++i, ++k) parts[k] = Op::join(parts[k], x[i]);
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] = Op::join(parts[k], parts[k + half]);
  return parts[0];
}

template <class Op, class T>
T joined_row(const T* x, std::int64_t n) {
  auto all = Op::template none<wide<Op, T>>();
  for (std::int64_t from = 0; from < n; from += chunk) {
    const auto length = std::min(chunk, n - from);
    bool has_nan = true;  // where that makes a difference
    if constexpr (!std::is_same_v<Op, typename of_numbers<Op>::op> && std::is_floating_point_v<T>) {
      int nans = 0;
      for (std::int64_t i = 0; i < length; ++i) nans |= x[from + i] != x[from + i] ? 1 : 0;
      has_nan = nans != 0;
    }
    const T one = has_nan ? joined_chunk<Op>(x + from, length)
                          : joined_chunk<typename of_numbers<Op>::op>(x + from, length);
    all = Op::join(all, static_cast<wide<Op, T>>(one));
  }
  return static_cast<T>(all);
}

// Row after row. `Fixed` columns where that is not 0, so that GCC knows how many and keeps them in
// registers.
constexpr std::int64_t columns_block = 64;
template <class Op, class T, std::int64_t Fixed>
void columns_of(const T* x, T* out, std::int64_t rows, std::int64_t columns, std::int64_t width) {
  const std::int64_t w = Fixed != 0 ? Fixed : width;
  std::array<wide<Op, T>, columns_block> all;
  all.fill(Op::template none<wide<Op, T>>());
  for (std::int64_t from = 0; from < rows; from += chunk_rows) {
    const auto end = std::min(rows, from + chunk_rows);
    std::array<T, columns_block> parts;
    parts.fill(Op::template none<T>());
    for (std::int64_t r = from; r < end; ++r)
      for (std::int64_t j = 0; j < w; ++j)
        parts[static_cast<std::size_t>(j)] =
            Op::join(parts[static_cast<std::size_t>(j)], x[r * columns + j]);
    for (std::size_t j = 0; j < static_cast<std::size_t>(w); ++j)
      all[j] = Op::join(all[j], static_cast<wide<Op, T>>(parts[j]));
  }
  for (std::size_t j = 0; j < static_cast<std::size_t>(w); ++j)
    out[j] = Op::join(out[j], static_cast<T>(all[j]));
}

// Results `first` to `end` - 1: whole rows of columns, where there are columns.
template <class Op, class T>
void reduce(const reduction_walk& w, const std::byte* from, std::byte* to, std::int64_t first,
            std::int64_t end) {
  const auto* x = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  std::fill_n(out + first, end - first, Op::template none<T>());
  if (w.rows == 0 || w.columns == 0) return;
  for (std::int64_t b = 0; b < w.blocks; ++b, x += w.rows * w.columns) {
    const auto at = w.out_of(b);
    if (at < first || at >= end) continue;
    auto* results = out + at;
    if (w.columns == 1) {
      *results = Op::join(*results, joined_row<Op>(x, w.rows));
      continue;
    }
    std::int64_t j = 0;
    for (; j + columns_block <= w.columns; j += columns_block)
      columns_of<Op, T, columns_block>(x + j, results + j, w.rows, w.columns, columns_block);
    if (j < w.columns) columns_of<Op, T, 0>(x + j, results + j, w.rows, w.columns, w.columns - j);
  }
}

using reduce_function = void (*)(const reduction_walk& w, const std::byte* from, std::byte* to,
                                 std::int64_t first, std::int64_t end);
struct reduce_overload {
  dtype type;
  reduce_function run;
};
template <class Op, class... T>
constexpr std::array<reduce_overload, sizeof...(T)> reduce_overloads = {
    reduce_overload{dtype_of<T>, reduce<Op, T>}...};

class reduction final : public kernel {
 public:
  reduction(std::string_view op, std::span<const reduce_overload> overloads,
            const attributes& attrs, host_device& device)
      : op_(op), overloads_(overloads), attrs_(attrs), team_(device.team()) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 1, outputs, 1); !ok) return ok;
    const auto at = std::find_if(overloads_.begin(), overloads_.end(),
                                 [&](const auto& o) { return o.type == inputs[0].type; });
    if (at == overloads_.end() || outputs[0].type != inputs[0].type)
      return unfit(op_, "there is no kernel for these element types", inputs);
    run_ = at->run;
    walk_ = reduction_walk::over(inputs[0].shape,
                                 reduction_walk::marked(attrs_, inputs[0].shape.rank()));
    if (walk_.results != outputs[0].shape.elements())
      return unfit(op_, "the size of the result differs from that of the dimensions that stay",
                   inputs);
    constexpr double element_ns = 0.3;
    const auto groups = walk_.columns == 0 ? 0 : walk_.results / walk_.columns;
    cut_ = tile_cut::by_cost(groups,
                             groups == 0
                                 ? 0
                                 : element_ns * static_cast<double>(inputs[0].shape.elements()) /
                                       static_cast<double>(groups),
                             tile_least_ns);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto* from = inputs[0].bytes().data();
    auto* to = outputs[0].bytes().data();
    if (cut_.tiles() < 2) {
      run_(walk_, from, to, 0, walk_.results);
      return {};
    }
    return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
      const auto first = cut_.begin(tile) * walk_.columns;
      run_(walk_, from, to, first, first + cut_.size(tile) * walk_.columns);
      return {};
    });
  }

 private:
  std::string_view op_;
  std::span<const reduce_overload> overloads_;
  attributes attrs_;
  tile_team& team_;
  reduce_function run_ = nullptr;
  reduction_walk walk_;
  tile_cut cut_;  // of rows of columns of the result
};

// --- index of the largest ---

// The first of equals. Comparisons with NaN are false, so that a NaN never wins, unless all are.
template <class T, bool Largest>
std::int32_t index_of(const T* x, std::int64_t n, std::int64_t step) noexcept {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i)
    if (Largest ? x[i * step] > x[best * step] || x[best * step] != x[best * step]
                : x[i * step] < x[best * step] || x[best * step] != x[best * step])
      best = i;
  return static_cast<std::int32_t>(best);
}

template <bool Largest>
class arg_of final : public kernel {
 public:
  explicit arg_of(const attributes& attrs) : axis_(attrs.integer("axis", -1)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = Largest ? "argmax" : "argmin";
    if (auto ok = check_ports(op, inputs, 1, outputs, 1); !ok) return ok;
    const auto& x = inputs[0].shape;
    const auto rank = static_cast<std::int64_t>(x.rank());
    const auto axis = axis_ < 0 ? axis_ + rank : axis_;
    if (axis < 0 || axis >= rank)
      return unfit(op, fmt::format("there is no axis {}", axis_), inputs);
    outer_ = inner_ = 1;
    for (std::int64_t i = 0; i < rank; ++i)
      (i < axis ? outer_ : inner_) *= i == axis ? 1 : x.size(static_cast<std::size_t>(i));
    along_ = x.size(static_cast<std::size_t>(axis));
    if (outputs[0].type != dtype::i32 || outputs[0].shape.elements() != outer_ * inner_ ||
        (along_ == 0 && outer_ * inner_ > 0))
      return unfit(op, "gives i32 indices of at least one element", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    switch (inputs[0].type()) {
      case dtype::f32: return run_as<float>(inputs[0], outputs[0]);
      case dtype::f64: return run_as<double>(inputs[0], outputs[0]);
      case dtype::i32: return run_as<std::int32_t>(inputs[0], outputs[0]);
      case dtype::i64: return run_as<std::int64_t>(inputs[0], outputs[0]);
      default:
        return error(error_code::usage,
                     fmt::format("{}: there is no kernel for {}", Largest ? "argmax" : "argmin",
                                 to_string(inputs[0].type())));
    }
  }

 private:
  template <class T>
  result<void> run_as(const tensor& x, tensor& out) const {
    for (std::int64_t o = 0; o < outer_; ++o)
      for (std::int64_t i = 0; i < inner_; ++i)
        out.data<std::int32_t>()[o * inner_ + i] =
            index_of<T, Largest>(x.data<T>() + o * along_ * inner_ + i, along_, inner_);
    return {};
  }

  std::int64_t axis_, outer_ = 1, along_ = 1, inner_ = 1;
};

class count_correct final : public kernel {
 public:
  explicit count_correct(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("count_correct", inputs, 2, outputs, 1); !ok) return ok;
    const auto& x = inputs[0];
    if ((x.type != dtype::f32 && x.type != dtype::f64) || x.shape.rank() != 2 ||
        x.shape.size(1) == 0 || inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} ||
        outputs[0] != tensor_spec{dtype::i64, {}})
      return unfit("count_correct", "takes f32 or f64 logits of rank 2 and one i32 label per row",
                   inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    outputs[0].data<std::int64_t>()[0] =
        inputs[0].type() == dtype::f32 ? count<float>(inputs) : count<double>(inputs);
    return {};
  }

 private:
  template <class T>
  static std::int64_t count(std::span<const tensor> inputs) {
    const auto& s = inputs[0].shape();
    std::int64_t correct = 0;
    for (std::int64_t r = 0; r < s.size(0); ++r)
      correct += index_of<T, true>(inputs[0].data<T>() + r * s.size(1), s.size(1), 1) ==
                         inputs[1].data<std::int32_t>()[r]
                     ? 1
                     : 0;
    return correct;
  }
};

class element_count final : public kernel {
 public:
  explicit element_count(const attributes& attrs) : attrs_(attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("element_count", inputs, 1, outputs, 1); !ok) return ok;
    if (outputs[0] != tensor_spec{inputs[0].type, {}})
      return unfit("element_count", "gives a scalar of its operand's type", inputs);
    const auto is_counted = reduction_walk::marked(attrs_, inputs[0].shape.rank());
    count_ = 1;
    for (std::size_t i = 0; i < is_counted.size(); ++i)
      if (is_counted[i]) count_ *= inputs[0].shape.size(i);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> outputs) override {
    auto& out = outputs[0];
    switch (out.type()) {
      case dtype::f32: *out.data<float>() = static_cast<float>(count_); return {};
      case dtype::f64: *out.data<double>() = static_cast<double>(count_); return {};
      case dtype::i32: *out.data<std::int32_t>() = static_cast<std::int32_t>(count_); return {};
      case dtype::i64: *out.data<std::int64_t>() = count_; return {};
      default:
        return error(error_code::usage, fmt::format("element_count: there is no kernel for {}",
                                                    to_string(out.type())));
    }
  }

 private:
  attributes attrs_;
  std::int64_t count_ = 1;
};

template <class Op, class... T>
void add_reduction(kernel_table& table, std::string_view op) {
  table.add(std::string(op),
            {[op](const attributes& attrs, host_device& device) -> result<std::unique_ptr<kernel>> {
              return std::unique_ptr<kernel>(
                  std::make_unique<reduction>(op, reduce_overloads<Op, T...>, attrs, device));
            }});
}

}  // namespace

void add_reduction_kernels(kernel_table& table) {
  add_reduction<sum_of, float, double, std::int32_t, std::int64_t>(table, "reduce_sum");
  add_reduction<product_of, float, double, std::int32_t, std::int64_t>(table, "reduce_prod");
  add_reduction<max_of, float, double, std::int32_t, std::int64_t>(table, "reduce_max");
  add_reduction<min_of, float, double, std::int32_t, std::int64_t>(table, "reduce_min");
  add_reduction<any_of, boolean>(table, "reduce_any");
  add_reduction<all_of, boolean>(table, "reduce_all");
  table.add("argmax", row_of<arg_of<true>>());
  table.add("argmin", row_of<arg_of<false>>());
  table.add("count_correct", row_of<count_correct>());
  table.add("element_count", row_of<element_count>());
}

}  // namespace troupe::host
