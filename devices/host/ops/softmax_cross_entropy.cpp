#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace troupe::host {
namespace {

// loss = scale * sum over rows of (log(sum over c of exp(x[c] - max)) + max - x[label]), summed
// over rows in f64, in their order. dlogits = scale * softmax - scale * onehot.
//
// Rows are short (ten classes), so exponentials are taken over a block of rows as one flat array,
// in the memory of dlogits; sums over classes go in the order of classes. Every element is computed
// alike wherever it stands.
class softmax_cross_entropy final : public kernel {
 public:
  explicit softmax_cross_entropy(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = "softmax_cross_entropy";
    if (auto ok = check_ports(op, inputs, 3, outputs, 2); !ok) return ok;
    const auto& x = inputs[0];
    if ((x.type != dtype::f32 && x.type != dtype::f64) || x.shape.rank() != 2 ||
        x.shape.size(1) == 0 || inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} ||
        inputs[2] != tensor_spec{x.type, {}} || outputs[0] != tensor_spec{x.type, {}} ||
        outputs[1] != x)
      return unfit(op,
                   "takes f32 or f64 logits of rank 2, one i32 label per row and a scalar scale",
                   inputs);
    rows_ = x.shape.size(0);
    classes_ = x.shape.size(1);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return inputs[0].type() == dtype::f32 ? run_as<float>(inputs, outputs)
                                          : run_as<double>(inputs, outputs);
  }

 private:
  static constexpr std::int64_t block = 64;  // rows: 2.5 kB of ten classes

  static float exp_of(float x) noexcept { return vector_math::exp(x); }
  static double exp_of(double x) noexcept { return std::exp(x); }
  static float log_of(float x) noexcept { return vector_math::log(x); }
  static double log_of(double x) noexcept { return std::log(x); }

  template <class T>
  result<void> run_as(std::span<const tensor> inputs, std::span<tensor> outputs) const {
    const auto* x = inputs[0].data<T>();
    const auto* labels = inputs[1].data<std::int32_t>();
    const T scale = inputs[2].data<T>()[0];
    for (std::int64_t r = 0; r < rows_; ++r)
      if (labels[r] < 0 || labels[r] >= classes_)
        return error(
            error_code::failed,
            fmt::format("softmax_cross_entropy: the label of row {} is {}, expected 0 to {}", r,
                        labels[r], classes_ - 1));
    double loss = 0;
    for (std::int64_t r = 0; r < rows_; r += block)
      loss = block_of_rows(x + r * classes_, labels + r, scale, outputs[1].data<T>() + r * classes_,
                           std::min(block, rows_ - r), loss);
    outputs[0].data<T>()[0] = static_cast<T>(loss) * scale;
    return {};
  }

  template <class T>
  double block_of_rows(const T* x, const std::int32_t* labels, T scale, T* d, std::int64_t rows,
                       double loss) const noexcept {
    std::array<T, block> largest, sums, logs;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * classes_;
      T m = row[0];
      for (std::int64_t c = 1; c < classes_; ++c) m = row[c] > m ? row[c] : m;
      largest[static_cast<std::size_t>(r)] = m;
      for (std::int64_t c = 0; c < classes_; ++c) d[r * classes_ + c] = row[c] - m;
    }
    for (std::int64_t i = 0; i < rows * classes_; ++i) d[i] = exp_of(d[i]);
    for (std::int64_t r = 0; r < rows; ++r) {
      T sum = 0;
      for (std::int64_t c = 0; c < classes_; ++c) sum += d[r * classes_ + c];
      sums[static_cast<std::size_t>(r)] = sum;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      logs[i] = log_of(sums[i]);
      sums[i] = scale / sums[i];
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      T* row = d + r * classes_;
      for (std::int64_t c = 0; c < classes_; ++c) row[c] *= sums[i];
      row[labels[r]] -= scale;
      loss += static_cast<double>(logs[i] + (largest[i] - x[r * classes_ + labels[r]]));
    }
    return loss;
  }

  std::int64_t rows_ = 0, classes_ = 0;
};

}  // namespace

void add_loss_kernels(kernel_table& table) {
  table.add("softmax_cross_entropy", row_of<softmax_cross_entropy>());
}

}  // namespace troupe::host
