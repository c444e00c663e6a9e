// Ops that choose by index, and sums along an axis. Who is added to one place is added in the order
// of the indices.

#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/packed_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

namespace troupe::host {
namespace {

// What is around an axis: [outer, along, inner].
struct around_axis {
  std::int64_t outer = 1, along = 1, inner = 1;

  static std::optional<around_axis> of(const shape& s, std::int64_t axis) {
    const auto rank = static_cast<std::int64_t>(s.rank());
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return std::nullopt;
    around_axis a;
    for (std::int64_t i = 0; i < rank; ++i)
      (i < axis ? a.outer : i == axis ? a.along : a.inner) *= s.size(static_cast<std::size_t>(i));
    return a;
  }
};

// All indices as numbers below n. An error: one that is outside; a negative one of data is a
// mistake or a "none", and no place that counts from the end.
result<void> read_indices(std::string_view op, const tensor& indices, std::int64_t n,
                          std::vector<std::int64_t>& out) {
  const auto read = [&]<class T>(const T* from) -> result<void> {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<std::int64_t>(from[i]);
      if (at < 0 || at >= n)
        return error(error_code::failed,
                     fmt::format("{}: index {} is {}, expected 0 to {}", op, i, at, n - 1));
      out[i] = at;
    }
    return {};
  };
  out.resize(static_cast<std::size_t>(indices.elements()));
  return indices.type() == dtype::i32 ? read(indices.data<std::int32_t>())
                                      : read(indices.data<std::int64_t>());
}

// Calls f with a null pointer of the C++ type behind a number's dtype.
template <class F>
result<void> for_number(std::string_view op, dtype type, F&& f) {
  switch (type) {
    case dtype::f32: return f(static_cast<float*>(nullptr)), result<void>();
    case dtype::f64: return f(static_cast<double*>(nullptr)), result<void>();
    case dtype::i32: return f(static_cast<std::int32_t*>(nullptr)), result<void>();
    case dtype::i64: return f(static_cast<std::int64_t*>(nullptr)), result<void>();
    default:
      return error(error_code::usage,
                   fmt::format("{}: there is no kernel for {}", op, to_string(type)));
  }
}

template <class T>
T sum_of_two(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                          static_cast<std::make_unsigned_t<T>>(b));
  else
    return a + b;
}

bool is_index(const tensor_spec& s) noexcept {
  return s.type == dtype::i32 || s.type == dtype::i64;
}

class gather final : public kernel {
 public:
  explicit gather(const attributes& attrs) : axis_(attrs.integer("axis")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("gather", inputs, 2, outputs, 1); !ok) return ok;
    const auto a = around_axis::of(inputs[0].shape, axis_);
    if (!a || !is_index(inputs[1]) || outputs[0].type != inputs[0].type ||
        outputs[0].shape.elements() != a->outer * inputs[1].shape.elements() * a->inner)
      return unfit("gather", "operands and axis do not fit", inputs);
    x_ = *a;
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    if (auto ok = read_indices("gather", inputs[1], x_.along, at_); !ok) return ok;
    const auto bytes = x_.inner * static_cast<std::int64_t>(size_of(inputs[0].type()));
    const auto* from = inputs[0].bytes().data();
    auto* to = outputs[0].bytes().data();
    if (bytes == 0) return {};
    for (std::int64_t o = 0; o < x_.outer; ++o, from += x_.along * bytes)
      for (const auto i : at_) {
        std::memcpy(to, from + i * bytes, static_cast<std::size_t>(bytes));
        to += bytes;
      }
    return {};
  }

 private:
  std::int64_t axis_;
  around_axis x_;
  std::vector<std::int64_t> at_;
};

class scatter_add final : public kernel {
 public:
  explicit scatter_add(const attributes& attrs) : axis_(attrs.integer("axis")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("scatter_add", inputs, 3, outputs, 1); !ok) return ok;
    const auto a = around_axis::of(inputs[0].shape, axis_);
    if (!a || !is_index(inputs[1]) || outputs[0] != inputs[0] || inputs[2].type != inputs[0].type ||
        inputs[2].shape.elements() != a->outer * inputs[1].shape.elements() * a->inner)
      return unfit("scatter_add", "operands and axis do not fit", inputs);
    x_ = *a;
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    if (auto ok = read_indices("scatter_add", inputs[1], x_.along, at_); !ok) return ok;
    std::copy(inputs[0].bytes().begin(), inputs[0].bytes().end(), outputs[0].bytes().begin());
    return for_number("scatter_add", inputs[0].type(), [&]<class T>(T*) {
      const auto* from = inputs[2].data<T>();
      auto* to = outputs[0].template data<T>();
      for (std::int64_t o = 0; o < x_.outer; ++o, to += x_.along * x_.inner)
        for (const auto i : at_) {
          auto* row = to + i * x_.inner;
          for (std::int64_t k = 0; k < x_.inner; ++k) row[k] = sum_of_two(row[k], from[k]);
          from += x_.inner;
        }
    });
  }

 private:
  std::int64_t axis_;
  around_axis x_;
  std::vector<std::int64_t> at_;
};

// packed_rows.hpp
class pack_rows final : public kernel {
 public:
  explicit pack_rows(const attributes& attrs) : rows_(attrs.integer("rows")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("pack_rows", inputs, 2, outputs, 1); !ok) return ok;
    const auto n = inputs[0].shape.elements();
    width_ = n > 0 ? static_cast<std::size_t>(inputs[1].shape.elements() / n) : 0;
    if (!is_index(inputs[0]) || inputs[1].type != dtype::f32 ||
        inputs[1].shape.elements() != n * static_cast<std::int64_t>(width_) ||
        outputs[0].type != dtype::u8 ||
        (n > 0 &&
         outputs[0].shape.elements() != n * static_cast<std::int64_t>(packed_row_bytes(width_))))
      return unfit("pack_rows", "indices and rows do not fit", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    if (auto ok = read_indices("pack_rows", inputs[0], rows_, at_); !ok) return ok;
    const auto* from = inputs[1].data<float>();
    auto* to = outputs[0].bytes().data();
    for (const auto row : at_) {
      std::memcpy(to, &row, sizeof(row));
      std::memcpy(to + sizeof(row), from, width_ * sizeof(float));
      from += width_;
      to += packed_row_bytes(width_);
    }
    return {};
  }

 private:
  std::int64_t rows_;
  std::size_t width_ = 0;
  std::vector<std::int64_t> at_;
};

// Indices outside give a row without a one.
class one_hot final : public kernel {
 public:
  explicit one_hot(const attributes& attrs) : depth_(attrs.integer("depth")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("one_hot", inputs, 1, outputs, 1); !ok) return ok;
    if (!is_index(inputs[0]) || depth_ < 1 ||
        outputs[0].shape.elements() != inputs[0].shape.elements() * depth_)
      return unfit("one_hot", "takes i32 or i64 indices", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    std::fill(outputs[0].bytes().begin(), outputs[0].bytes().end(), std::byte{0});
    return for_number("one_hot", outputs[0].type(), [&]<class T>(T*) {
      auto* out = outputs[0].template data<T>();
      for (std::int64_t i = 0; i < inputs[0].elements(); ++i, out += depth_) {
        const auto at = inputs[0].type() == dtype::i32 ? inputs[0].data<std::int32_t>()[i]
                                                       : inputs[0].data<std::int64_t>()[i];
        if (at >= 0 && at < depth_) out[at] = T{1};
      }
    });
  }

 private:
  std::int64_t depth_;
};

// Rows of the last axis.
struct rows_of {
  std::int64_t rows = 0, columns = 0;
  explicit rows_of(const shape& s)
      : rows(s.rank() == 0               ? 0
             : s.size(s.rank() - 1) == 0 ? 0
                                         : s.elements() / s.size(s.rank() - 1)),
        columns(s.rank() == 0 ? 0 : s.size(s.rank() - 1)) {}
};

// The largest first, of equals the first; a NaN is larger than all.
class top_k final : public kernel {
 public:
  explicit top_k(const attributes& attrs) : k_(attrs.integer("k")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("top_k", inputs, 1, outputs, 2); !ok) return ok;
    const rows_of x(inputs[0].shape);
    if (inputs[0].shape.rank() == 0 || k_ < 0 || k_ > x.columns ||
        outputs[0].type != inputs[0].type || outputs[1].type != dtype::i32 ||
        outputs[0].shape.elements() != x.rows * k_ || outputs[1].shape != outputs[0].shape)
      return unfit("top_k", fmt::format("k is {}", k_), inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const rows_of s(inputs[0].shape());
    order_.resize(static_cast<std::size_t>(s.columns));
    return for_number("top_k", inputs[0].type(), [&]<class T>(T*) {
      const auto* x = inputs[0].data<T>();
      auto* values = outputs[0].template data<T>();
      auto* indices = outputs[1].template data<std::int32_t>();
      for (std::int64_t r = 0; r < s.rows; ++r, x += s.columns) {
        std::iota(order_.begin(), order_.end(), 0);
        const auto is_before = [x](std::int32_t a, std::int32_t b) {
          const bool nan_a = x[a] != x[a], nan_b = x[b] != x[b];
          if (nan_a != nan_b) return nan_a;
          return x[a] != x[b] && !nan_a ? x[a] > x[b] : a < b;
        };
        std::partial_sort(order_.begin(), order_.begin() + k_, order_.end(), is_before);
        for (std::int64_t i = 0; i < k_; ++i) {
          *indices++ = order_[static_cast<std::size_t>(i)];
          *values++ = x[order_[static_cast<std::size_t>(i)]];
        }
      }
    });
  }

 private:
  std::int64_t k_;
  std::vector<std::int32_t> order_;
};

class take_last final : public kernel {
 public:
  explicit take_last(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("take_last", inputs, 2, outputs, 1); !ok) return ok;
    if (!is_index(inputs[1]) || outputs[0] != tensor_spec{inputs[0].type, inputs[1].shape} ||
        inputs[0].shape.rank() != inputs[1].shape.rank())
      return unfit("take_last", "takes rows and indices", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const rows_of x(inputs[0].shape()), out(outputs[0].shape());
    if (auto ok = read_indices("take_last", inputs[1], x.columns, at_); !ok) return ok;
    const auto bytes = size_of(inputs[0].type());
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t i = 0; i < out.columns; ++i) {
        const auto o = static_cast<std::size_t>(r * out.columns + i);
        std::memcpy(
            outputs[0].bytes().data() + o * bytes,
            inputs[0].bytes().data() + static_cast<std::size_t>(r * x.columns + at_[o]) * bytes,
            bytes);
      }
    return {};
  }

 private:
  std::vector<std::int64_t> at_;
};

class put_last final : public kernel {
 public:
  explicit put_last(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("put_last", inputs, 3, outputs, 1); !ok) return ok;
    if (!is_index(inputs[1]) || outputs[0] != inputs[2] || inputs[0].type != inputs[2].type ||
        inputs[0].shape != inputs[1].shape || inputs[0].shape.rank() != inputs[2].shape.rank())
      return unfit("put_last", "takes rows, indices and the shape of the result", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const rows_of dy(inputs[0].shape()), out(outputs[0].shape());
    if (auto ok = read_indices("put_last", inputs[1], out.columns, at_); !ok) return ok;
    std::fill(outputs[0].bytes().begin(), outputs[0].bytes().end(), std::byte{0});
    return for_number("put_last", inputs[0].type(), [&]<class T>(T*) {
      for (std::int64_t r = 0; r < dy.rows; ++r)
        for (std::int64_t i = 0; i < dy.columns; ++i) {
          const auto from = r * dy.columns + i;
          auto& to =
              outputs[0].template data<T>()[r * out.columns + at_[static_cast<std::size_t>(from)]];
          to = sum_of_two(to, inputs[0].data<T>()[from]);
        }
    });
  }

 private:
  std::vector<std::int64_t> at_;
};

class cumulative_sum final : public kernel {
 public:
  explicit cumulative_sum(const attributes& attrs)
      : axis_(attrs.integer("axis")),
        is_exclusive_(attrs.integer("exclusive") != 0),
        is_reverse_(attrs.integer("reverse") != 0) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("cumulative_sum", inputs, 1, outputs, 1); !ok) return ok;
    const auto a = around_axis::of(inputs[0].shape, axis_);
    if (!a || outputs[0] != inputs[0])
      return unfit("cumulative_sum", "the result has the type and shape of its operand", inputs);
    x_ = *a;
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return for_number("cumulative_sum", inputs[0].type(), [&]<class T>(T*) {
      if (x_.inner == 1) return add_up_rows(inputs[0].data<T>(), outputs[0].template data<T>());
      sums_.resize(static_cast<std::size_t>(x_.inner) * sizeof(T));
      auto* sums = reinterpret_cast<T*>(sums_.data());
      for (std::int64_t o = 0; o < x_.outer; ++o) {
        std::fill_n(sums, x_.inner, T{});
        for (std::int64_t i = 0; i < x_.along; ++i) {
          const auto row = (o * x_.along + (is_reverse_ ? x_.along - 1 - i : i)) * x_.inner;
          const auto* x = inputs[0].data<T>() + row;
          auto* out = outputs[0].template data<T>() + row;
          for (std::int64_t k = 0; k < x_.inner; ++k) {
            const auto with = sum_of_two(sums[k], x[k]);
            out[k] = is_exclusive_ ? sums[k] : with;
            sums[k] = with;
          }
        }
      }
    });
  }

 private:
  // Rows that lie side by side: several at a time, since each addition of a row waits for the one
  // before.
  template <class T>
  void add_up_rows(const T* x, T* out) const {
    const auto n = x_.along;
    std::int64_t row = 0;
    for (; row + 8 <= x_.outer; row += 8) add_up_some<8>(x + row * n, out + row * n);
    for (; row < x_.outer; ++row) add_up_some<1>(x + row * n, out + row * n);
  }
  template <std::int64_t Rows, class T>
  void add_up_some(const T* x, T* out) const {
    const auto n = x_.along;
    std::array<T, static_cast<std::size_t>(Rows)> sums{};
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = is_reverse_ ? n - 1 - i : i;
      for (std::int64_t r = 0; r < Rows; ++r) {
        auto& sum = sums[static_cast<std::size_t>(r)];
        const auto with = sum_of_two(sum, x[r * n + at]);
        out[r * n + at] = is_exclusive_ ? sum : with;
        sum = with;
      }
    }
  }

  std::int64_t axis_;
  bool is_exclusive_, is_reverse_;
  around_axis x_;
  std::vector<std::byte> sums_;  // memory of operator new: aligned for all numbers
};

}  // namespace

void add_indexing_kernels(kernel_table& table) {
  table.add("gather", row_of<gather>());
  table.add("scatter_add", row_of<scatter_add>());
  table.add("pack_rows", row_of<pack_rows>());
  table.add("one_hot", row_of<one_hot>());
  table.add("top_k", row_of<top_k>());
  table.add("take_last", row_of<take_last>());
  table.add("put_last", row_of<put_last>());
  table.add("cumulative_sum", row_of<cumulative_sum>());
}

}  // namespace troupe::host
