// standardize: x with mean 0 and variance 1 over some axes, what layer, batch and group
// normalisation are made of; and its gradient. Sums are f64, of f32 too.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/reduction_walk.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace troupe::host {
namespace {

// Eight partial sums, then those pairwise.
template <class Term>
double sum_along(std::int64_t n, Term term) noexcept {
  std::array<double, 8> parts{};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::size_t k = 0; k < 8; ++k) parts[k] += term(i + static_cast<std::int64_t>(k));
  for (std::size_t k = 0; i < n; ++i, ++k) parts[k] += term(i);
  for (std::size_t half = 4; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
  return parts[0];
}

// Both kernels go over x once for each sum and once for the result; where every block has a group
// of its own, block by block, while it is in the cache.
class by_group : public kernel {
 public:
  by_group(const attributes& attrs, host_device& device)
      : attrs_(attrs), team_(device.team()), epsilon_(attrs.real("epsilon", 1e-5)) {}

 protected:
  void find(const shape& x) {
    walk_ = reduction_walk::over(x, reduction_walk::marked(attrs_, x.rank()));
    const auto groups = static_cast<std::size_t>(walk_.results);
    first_.assign(groups, 0);
    second_.assign(groups, 0);
    count_ = walk_.results == 0
                 ? 1
                 : static_cast<double>(std::max<std::int64_t>(x.elements() / walk_.results, 1));
    is_grouped_ = walk_.columns == 1 && walk_.blocks == walk_.results;
    is_empty_ = x.elements() == 0;
    constexpr double element_ns = 2;
    cut_ = is_grouped_
               ? tile_cut::by_cost(walk_.blocks, element_ns * static_cast<double>(walk_.rows),
                                   tile_least_ns)
               : tile_cut{walk_.blocks, walk_.blocks};
  }

  // Calls pass(block, group of its first column) for all blocks.
  template <class Pass>
  void for_blocks(std::int64_t begin, std::int64_t end, Pass pass) const {
    for (auto b = begin; b < end; ++b)
      pass(b * walk_.rows * walk_.columns, static_cast<std::size_t>(walk_.out_of(b)));
  }
  // sums[group] += term(element, group) over the elements of some blocks.
  template <class Term>
  void add_up(std::int64_t begin, std::int64_t end, std::vector<double>& sums, Term term) const {
    for_blocks(begin, end, [&](std::int64_t at, std::size_t group) {
      if (walk_.columns == 1) {
        sums[group] += sum_along(walk_.rows, [&](std::int64_t i) { return term(at + i, group); });
        return;
      }
      for (std::int64_t r = 0; r < walk_.rows; ++r, at += walk_.columns)
        for (std::int64_t c = 0; c < walk_.columns; ++c)
          sums[group + static_cast<std::size_t>(c)] +=
              term(at + c, group + static_cast<std::size_t>(c));
    });
  }
  template <class Visit>
  void for_elements(std::int64_t begin, std::int64_t end, Visit visit) const {
    for_blocks(begin, end, [&](std::int64_t at, std::size_t group) {
      if (walk_.columns == 1) {
        for (std::int64_t i = 0; i < walk_.rows; ++i) visit(at + i, group);
        return;
      }
      for (std::int64_t r = 0; r < walk_.rows; ++r, at += walk_.columns)
        for (std::int64_t c = 0; c < walk_.columns; ++c)
          visit(at + c, group + static_cast<std::size_t>(c));
    });
  }
  // compute(first block, end, first group, end), for blocks that have their groups to themselves:
  // these on several threads.
  template <class Compute>
  void by_blocks(Compute compute) const {
    if (!is_grouped_) return compute(0, walk_.blocks, std::size_t{0}, first_.size());
    (void)team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
      for (auto b = cut_.begin(tile); b < cut_.begin(tile) + cut_.size(tile); ++b) {
        const auto group = static_cast<std::size_t>(walk_.out_of(b));
        compute(b, b + 1, group, group + 1);
      }
      return {};
    });
  }

  attributes attrs_;
  tile_team& team_;
  tile_cut cut_;  // of blocks
  double epsilon_, count_ = 1;
  reduction_walk walk_;
  std::vector<double> first_, second_;  // sums by group
  bool is_grouped_ = false, is_empty_ = false;
};

// x -> y = (x - mean) r, mean, r = 1 / sqrt(variance + epsilon); the variance is that of the
// elements, not an estimate of their source's.
class standardize final : public by_group {
 public:
  using by_group::by_group;

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = "standardize";
    if (auto ok = check_ports(op, inputs, 1, outputs, 3); !ok) return ok;
    find(inputs[0].shape);
    if (inputs[0] != outputs[0] || outputs[1] != outputs[2] ||
        outputs[1].shape.elements() != walk_.results || outputs[1].type != inputs[0].type)
      return unfit(op, "gives a result like its operand, and a mean and a scale for each group",
                   outputs);
    return {};
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return inputs[0].type() == dtype::f32 ? run_as<float>(inputs[0], outputs)
                                          : run_as<double>(inputs[0], outputs);
  }

 private:
  template <class T>
  result<void> run_as(const tensor& in, std::span<tensor> outputs) {
    const auto* x = in.data<T>();
    auto *y = outputs[0].data<T>(), *mean = outputs[1].data<T>(), *scale = outputs[2].data<T>();
    std::fill(first_.begin(), first_.end(), 0.0);
    std::fill(second_.begin(), second_.end(), 0.0);
    by_blocks([&](std::int64_t begin, std::int64_t end, std::size_t group, std::size_t last) {
      if (!is_empty_)
        add_up(begin, end, first_,
               [&](std::int64_t i, std::size_t) { return static_cast<double>(x[i]); });
      for (auto g = group; g < last; ++g) mean[g] = static_cast<T>(first_[g] /= count_);
      if (!is_empty_)
        add_up(begin, end, second_, [&](std::int64_t i, std::size_t g) {
          const double d = static_cast<double>(x[i]) - first_[g];
          return d * d;
        });
      for (auto g = group; g < last; ++g)
        scale[g] = static_cast<T>(second_[g] = 1 / std::sqrt(second_[g] / count_ + epsilon_));
      if (!is_empty_)
        for_elements(begin, end, [&](std::int64_t i, std::size_t g) {
          y[i] = static_cast<T>((static_cast<double>(x[i]) - first_[g]) * second_[g]);
        });
    });
    return {};
  }
};

// (dy, y, r) -> dx = r (dy - mean(dy) - y mean(dy y)).
class standardize_grad final : public by_group {
 public:
  using by_group::by_group;

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = "standardize_grad";
    if (auto ok = check_ports(op, inputs, 3, outputs, 1); !ok) return ok;
    find(inputs[0].shape);
    if (inputs[0] != outputs[0] || inputs[0] != inputs[1] ||
        inputs[2].shape.elements() != walk_.results || inputs[2].type != inputs[0].type)
      return unfit(op, "takes dy and y of one shape, and a scale for each group", inputs);
    return {};
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    if (is_empty_) return {};
    return inputs[0].type() == dtype::f32 ? run_as<float>(inputs, outputs[0])
                                          : run_as<double>(inputs, outputs[0]);
  }

 private:
  template <class T>
  result<void> run_as(std::span<const tensor> inputs, tensor& out) {
    const auto *dy = inputs[0].data<T>(), *y = inputs[1].data<T>(), *scale = inputs[2].data<T>();
    auto* dx = out.data<T>();
    std::fill(first_.begin(), first_.end(), 0.0);
    std::fill(second_.begin(), second_.end(), 0.0);
    by_blocks([&](std::int64_t begin, std::int64_t end, std::size_t group, std::size_t last) {
      add_up(begin, end, first_,
             [&](std::int64_t i, std::size_t) { return static_cast<double>(dy[i]); });
      add_up(begin, end, second_, [&](std::int64_t i, std::size_t) {
        return static_cast<double>(dy[i]) * static_cast<double>(y[i]);
      });
      for (auto g = group; g < last; ++g) first_[g] /= count_, second_[g] /= count_;
      for_elements(begin, end, [&](std::int64_t i, std::size_t g) {
        dx[i] = static_cast<T>(
            static_cast<double>(scale[g]) *
            (static_cast<double>(dy[i]) - first_[g] - static_cast<double>(y[i]) * second_[g]));
      });
    });
    return {};
  }
};

}  // namespace

void add_normalisation_kernels(kernel_table& table) {
  table.add("standardize", row_of<standardize>());
  table.add("standardize_grad", row_of<standardize_grad>());
}

}  // namespace troupe::host
