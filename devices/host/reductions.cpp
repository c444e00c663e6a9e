#include "devices/host/host_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace troupe::host {
namespace {

// [n, m] -> [m], row after row: element j is ((0 + x[0][j]) + x[1][j]) + ...
class reduce_sum_rows final : public kernel {
 public:
  explicit reduce_sum_rows(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("reduce_sum_rows", inputs, 1, outputs, 1); !ok) return ok;
    const auto& x = inputs[0];
    if (x.type != dtype::f32 || x.shape.rank() != 2 || outputs[0] != tensor_spec{dtype::f32, {x.shape.size(1)}})
      return unfit("reduce_sum_rows", "takes f32 of rank 2", inputs);
    rows_ = x.shape.size(0);
    columns_ = x.shape.size(1);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto* x = inputs[0].data<float>();
    auto* out = outputs[0].data<float>();
    std::int64_t j = 0;
    for (; j + block <= columns_; j += block) sum_columns<block>(x + j, out + j, block);
    sum_columns<0>(x + j, out + j, columns_ - j);
    return {};
  }

 private:
  static constexpr std::int64_t block = 64;  // columns whose sums stay in eight registers over all rows

  // Columns [0, width): `Fixed` of them where that is not 0, so that GCC knows how many.
  template <std::int64_t Fixed>
  void sum_columns(const float* x, float* out, std::int64_t width) const noexcept {
    const std::int64_t w = Fixed != 0 ? Fixed : width;
    std::array<float, block> sums{};
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t j = 0; j < w; ++j) sums[static_cast<std::size_t>(j)] += x[r * columns_ + j];
    std::copy_n(sums.begin(), w, out);
  }

  std::int64_t rows_ = 0, columns_ = 0;
};

// -> []: 16 partial sums of every 16th element, so that it is as fast as memory; then k and k + 8, + 4, + 2, + 1.
class reduce_sum final : public kernel {
 public:
  explicit reduce_sum(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("reduce_sum", inputs, 1, outputs, 1); !ok) return ok;
    if (inputs[0].type != dtype::f32 || outputs[0] != tensor_spec{dtype::f32, {}})
      return unfit("reduce_sum", "takes f32", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto* x = inputs[0].data<float>();
    const auto n = inputs[0].elements();
    std::array<float, 16> sums{};
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16)
      for (std::size_t k = 0; k < 16; ++k) sums[k] += x[i + static_cast<std::int64_t>(k)];
    for (std::size_t k = 0; i < n; ++i, ++k) sums[k] += x[i];
    for (std::size_t half = 8; half > 0; half /= 2)
      for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
    outputs[0].data<float>()[0] = sums[0];
    return {};
  }
};

class broadcast_like final : public kernel {
 public:
  explicit broadcast_like(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("broadcast_like", inputs, 2, outputs, 1); !ok) return ok;
    const auto& x = inputs[0].shape;
    const auto& like = inputs[1].shape;
    const bool is_row = x.rank() == 1 && like.rank() > 0 && x.size(0) == like.size(like.rank() - 1);
    if (inputs[0].type != dtype::f32 || outputs[0] != tensor_spec{dtype::f32, like} ||
        (x != like && x.rank() != 0 && !is_row))
      return unfit("broadcast_like", "f32 of the second operand's shape, of its last dimension or a scalar", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto* x = inputs[0].data<float>();
    auto* out = outputs[0].data<float>();
    const auto n = outputs[0].elements();
    const auto period = inputs[0].elements();
    if (period == 1)
      std::fill(out, out + n, x[0]);
    else
      for (std::int64_t i = 0; i < n; i += period) std::copy_n(x, period, out + i);
    return {};
  }
};

// Index of the largest element; the first of equals. Comparisons with NaN are false, so a NaN never wins.
std::int32_t argmax_of(const float* x, std::int64_t n) noexcept {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i)
    if (x[i] > x[best]) best = i;
  return static_cast<std::int32_t>(best);
}

class argmax final : public kernel {
 public:
  explicit argmax(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("argmax", inputs, 1, outputs, 1); !ok) return ok;
    const auto& x = inputs[0];
    if (x.type != dtype::f32 || x.shape.rank() != 2 || x.shape.size(1) == 0 ||
        outputs[0] != tensor_spec{dtype::i32, {x.shape.size(0)}})
      return unfit("argmax", "takes f32 of rank 2 with at least one column", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto& s = inputs[0].shape();
    for (std::int64_t r = 0; r < s.size(0); ++r)
      outputs[0].data<std::int32_t>()[r] = argmax_of(inputs[0].data<float>() + r * s.size(1), s.size(1));
    return {};
  }
};

class count_correct final : public kernel {
 public:
  explicit count_correct(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("count_correct", inputs, 2, outputs, 1); !ok) return ok;
    const auto& x = inputs[0];
    if (x.type != dtype::f32 || x.shape.rank() != 2 || x.shape.size(1) == 0 ||
        inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} || outputs[0] != tensor_spec{dtype::i64, {}})
      return unfit("count_correct", "takes f32 logits of rank 2 and one i32 label per row", inputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto& s = inputs[0].shape();
    std::int64_t correct = 0;
    for (std::int64_t r = 0; r < s.size(0); ++r)
      correct +=
          argmax_of(inputs[0].data<float>() + r * s.size(1), s.size(1)) == inputs[1].data<std::int32_t>()[r] ? 1 : 0;
    outputs[0].data<std::int64_t>()[0] = correct;
    return {};
  }
};

}  // namespace

void add_reduction_kernels(kernel_table& table) {
  table.add("reduce_sum_rows", row_of<reduce_sum_rows>());
  table.add("reduce_sum", row_of<reduce_sum>());
  table.add("broadcast_like", row_of<broadcast_like>());
  table.add("argmax", row_of<argmax>());
  table.add("count_correct", row_of<count_correct>());
}

}  // namespace troupe::host
