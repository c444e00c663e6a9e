// softmax and log_softmax along an axis, and their gradients.
//
// A tensor is [outer, n, inner]; n lies along the axis. With inner = 1 rows lie side by side, and
// several short ones are taken together, so that exponentials go over one flat array; else `width`
// columns at a time. Sums over n are f64, in order. Every element is computed alike wherever it
// stands.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/largest.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

namespace troupe::host {
namespace {

constexpr std::int64_t width = 32;  // columns, or short rows, at a time
using numbers_of_block = std::array<double, width>;

float exp_of(float x) noexcept { return vector_math::exp(x); }
double exp_of(double x) noexcept { return std::exp(x); }

class along_axis : public kernel {
 public:
  along_axis(std::string_view op, std::size_t operands, const attributes& attrs,
             host_device& device)
      : op_(op), operands_(operands), team_(device.team()), axis_(attrs.integer("axis", -1)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) final {
    if (auto ok = check_ports(op_, inputs, operands_, outputs, 1); !ok) return ok;
    const auto& x = inputs[0].shape;
    const auto rank = static_cast<std::int64_t>(x.rank());
    const auto axis = axis_ < 0 ? axis_ + rank : axis_;
    if (axis < 0 || axis >= rank)
      return unfit(op_, fmt::format("there is no axis {}", axis_), inputs);
    for (const auto& s : inputs)
      if (s != outputs[0] || (s.type != dtype::f32 && s.type != dtype::f64))
        return unfit(op_, "takes and gives f32 or f64 of one shape", inputs);
    outer_ = inner_ = 1;
    for (std::int64_t i = 0; i < rank; ++i)
      (i < axis ? outer_ : inner_) *= i == axis ? 1 : x.size(static_cast<std::size_t>(i));
    n_ = x.size(static_cast<std::size_t>(axis));
    constexpr double element_ns = 2;
    // Rows that are taken together stay so.
    cut_ = tile_cut::by_cost(outer_, element_ns * static_cast<double>(n_ * inner_), tile_least_ns,
                             is_taken_together() ? width : 1);
    return {};
  }

 protected:
  // Where the elements of a block lie: lane l, position i at i * next + l * lane.
  struct block {
    std::int64_t at, lanes, next, lane;
  };
  // On several threads: a visitor keeps nothing between blocks.
  template <class Visit>
  void for_blocks(Visit visit) const {
    if (n_ == 0) return;
    (void)team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
      visit_blocks(cut_.begin(tile), cut_.begin(tile) + cut_.size(tile), visit);
      return {};
    });
  }
  template <class Visit>
  void visit_blocks(std::int64_t first, std::int64_t end, Visit& visit) const {
    if (inner_ == 1) {
      const auto together = is_taken_together() ? width : 1;
      for (auto o = first; o < end; o += together)
        visit(block{o * n_, std::min(together, end - o), 1, n_});
      return;
    }
    for (auto o = first; o < end; ++o)
      for (std::int64_t i = 0; i < inner_; i += width)
        visit(block{o * n_ * inner_ + i, std::min(width, inner_ - i), inner_, 1});
  }
  bool is_taken_together() const noexcept { return inner_ == 1 && n_ < 64; }
  // visit(element, lane) for all elements of a block, in the order of memory.
  template <class Visit>
  void for_elements(const block& b, Visit visit) const {
    if (b.next == 1) {
      for (std::int64_t l = 0; l < b.lanes; ++l) {
        const auto row = b.at + l * b.lane;
        for (std::int64_t i = 0; i < n_; ++i) visit(row + i, static_cast<std::size_t>(l));
      }
      return;
    }
    for (std::int64_t i = 0; i < n_; ++i) {
      const auto row = b.at + i * b.next;
      for (std::int64_t l = 0; l < b.lanes; ++l) visit(row + l, static_cast<std::size_t>(l));
    }
  }
  // Eight partial sums along rows, as rounding allows; down columns one after the other.
  template <class Term>
  void add_up(const block& b, numbers_of_block& sums, Term term) const {
    sums.fill(0);
    if (b.next != 1)
      return for_elements(b, [&](std::int64_t i, std::size_t l) { sums[l] += term(i); });
    for (std::int64_t l = 0; l < b.lanes; ++l) {
      const auto row = b.at + l * b.lane;
      std::array<double, 8> parts{};
      std::int64_t i = 0;
      for (; i + 8 <= n_; i += 8)
        for (std::size_t k = 0; k < 8; ++k)
          parts[k] += term(row + i + static_cast<std::int64_t>(k));
      for (std::size_t k = 0; i < n_; ++i, ++k) parts[k] += term(row + i);
      for (std::size_t half = 4; half > 0; half /= 2)
        for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
      sums[static_cast<std::size_t>(l)] = parts[0];
    }
  }

  // out = x - the largest of its row; where a NaN is passed over, the sum is one.
  template <class T>
  void subtract_largest(const block& b, const T* x, T* out, std::array<T, width>& largest) const {
    largest.fill(-std::numeric_limits<T>::infinity());
    if (b.next == 1) {
      for (std::int64_t l = 0; l < b.lanes; ++l) {
        largest[static_cast<std::size_t>(l)] = largest_of(x + b.at + l * b.lane, n_);
      }
    } else {
      for_elements(b, [&](std::int64_t i, std::size_t l) {
        largest[l] = x[i] > largest[l] ? x[i] : largest[l];
      });
    }
    for_elements(b, [&](std::int64_t i, std::size_t l) { out[i] = x[i] - largest[l]; });
  }

  std::string_view op_;
  std::size_t operands_;
  tile_team& team_;
  tile_cut cut_;  // of outer_
  std::int64_t axis_, outer_ = 1, n_ = 0, inner_ = 1;
};

// Log: x - largest - ln(sum of exp(x - largest)), else exp(x - largest) / that sum.
template <bool Log>
class softmax final : public along_axis {
 public:
  softmax(const attributes& attrs, host_device& device)
      : along_axis(Log ? "log_softmax" : "softmax", 1, attrs, device) {}

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    inputs[0].type() == dtype::f32 ? run_as<float>(inputs[0], outputs[0])
                                   : run_as<double>(inputs[0], outputs[0]);
    return {};
  }

 private:
  template <class T>
  void run_as(const tensor& in, tensor& out) const {
    const auto* x = in.data<T>();
    auto* y = out.data<T>();
    for_blocks([&](const block& b) {
      std::array<T, width> largest;
      subtract_largest(b, x, y, largest);
      numbers_of_block sums;
      std::array<T, width> each;
      if constexpr (Log) {
        add_up_exponentials(b, y, sums);
        for (std::size_t l = 0; l < static_cast<std::size_t>(b.lanes); ++l)
          each[l] = static_cast<T>(std::log(sums[l]));
        for_elements(b, [&](std::int64_t i, std::size_t l) { y[i] -= each[l]; });
      } else {
        exponentiate(b, y);
        add_up(b, sums, [&](std::int64_t i) { return static_cast<double>(y[i]); });
        for (std::size_t l = 0; l < static_cast<std::size_t>(b.lanes); ++l)
          each[l] = static_cast<T>(1 / sums[l]);
        for_elements(b, [&](std::int64_t i, std::size_t l) { y[i] *= each[l]; });
      }
    });
  }
  // In pieces, so that exponentials go over flat arrays; the sums are those of add_up().
  template <class T>
  void add_up_exponentials(const block& b, const T* y, numbers_of_block& sums) const {
    if (b.next != 1)
      return add_up(b, sums, [&](std::int64_t i) { return static_cast<double>(exp_of(y[i])); });
    constexpr std::int64_t piece = 256;
    std::array<T, piece> some;
    for (std::int64_t l = 0; l < b.lanes; ++l) {
      const auto* row = y + b.at + l * b.lane;
      std::array<double, 8> parts{};
      for (std::int64_t from = 0; from < n_; from += piece) {
        const auto length = std::min(piece, n_ - from);
        for (std::int64_t i = 0; i < length; ++i)
          some[static_cast<std::size_t>(i)] = exp_of(row[from + i]);
        std::size_t i = 0;
        for (; i + 8 <= static_cast<std::size_t>(length); i += 8)
          for (std::size_t k = 0; k < 8; ++k) parts[k] += static_cast<double>(some[i + k]);
        for (std::size_t k = 0; i < static_cast<std::size_t>(length); ++i, ++k)
          parts[k] += static_cast<double>(some[i]);
      }
      for (std::size_t half = 4; half > 0; half /= 2)
        for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
      sums[static_cast<std::size_t>(l)] = parts[0];
    }
  }
  // Rows that lie side by side are one array.
  template <class T>
  void exponentiate(const block& b, T* y) const {
    if (b.next != 1)
      return for_elements(b, [&](std::int64_t i, std::size_t) { y[i] = exp_of(y[i]); });
    auto* all = y + b.at;
    for (std::int64_t i = 0; i < b.lanes * n_; ++i) all[i] = exp_of(all[i]);
  }
};

// (dy, y) -> dx = y (dy - sum(dy y)); Log: dy - exp(y) sum(dy).
template <bool Log>
class softmax_grad final : public along_axis {
 public:
  softmax_grad(const attributes& attrs, host_device& device)
      : along_axis(Log ? "log_softmax_grad" : "softmax_grad", 2, attrs, device) {}

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    inputs[0].type() == dtype::f32 ? run_as<float>(inputs, outputs[0])
                                   : run_as<double>(inputs, outputs[0]);
    return {};
  }

 private:
  template <class T>
  void run_as(std::span<const tensor> inputs, tensor& out) const {
    const auto *dy = inputs[0].data<T>(), *y = inputs[1].data<T>();
    auto* dx = out.data<T>();
    for_blocks([&](const block& b) {
      numbers_of_block sums;
      std::array<T, width> each;
      add_up(b, sums, [&](std::int64_t i) {
        return Log ? static_cast<double>(dy[i])
                   : static_cast<double>(dy[i]) * static_cast<double>(y[i]);
      });
      for (std::size_t l = 0; l < static_cast<std::size_t>(b.lanes); ++l)
        each[l] = static_cast<T>(sums[l]);
      for_elements(b, [&](std::int64_t i, std::size_t l) {
        dx[i] = Log ? dy[i] - exp_of(y[i]) * each[l] : y[i] * (dy[i] - each[l]);
      });
    });
  }
};

}  // namespace

void add_softmax_kernels(kernel_table& table) {
  table.add("softmax", row_of<softmax<false>>());
  table.add("log_softmax", row_of<softmax<true>>());
  table.add("softmax_grad", row_of<softmax_grad<false>>());
  table.add("log_softmax_grad", row_of<softmax_grad<true>>());
}

}  // namespace troupe::host
