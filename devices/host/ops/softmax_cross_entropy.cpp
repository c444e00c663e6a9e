#include "devices/host/host_kernels.hpp"
#include "devices/host/vector_math.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace troupe::host {
namespace {

// loss = scale * sum over rows of (log(sum over c of exp(x[c] - max)) + max - x[label]), summed over rows in f64, in
// their order.
// dlogits = scale * softmax - scale * onehot.
//
// Rows are short (ten classes), so exponentials are taken over a block of rows as one flat array, in the memory of
// dlogits; sums over classes go in the order of classes. Every element is computed alike wherever it stands.
class softmax_cross_entropy final : public kernel {
 public:
  explicit softmax_cross_entropy(const attributes&) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = "softmax_cross_entropy";
    if (auto ok = check_ports(op, inputs, 3, outputs, 2); !ok) return ok;
    const auto& x = inputs[0];
    if (x.type != dtype::f32 || x.shape.rank() != 2 || x.shape.size(1) == 0 ||
        inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} || inputs[2] != tensor_spec{dtype::f32, {}} ||
        outputs[0] != tensor_spec{dtype::f32, {}} || outputs[1] != x)
      return unfit(op, "takes f32 logits of rank 2, one i32 label per row and a scalar scale", inputs);
    rows_ = x.shape.size(0);
    classes_ = x.shape.size(1);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    const auto* x = inputs[0].data<float>();
    const auto* labels = inputs[1].data<std::int32_t>();
    const float scale = inputs[2].data<float>()[0];
    for (std::int64_t r = 0; r < rows_; ++r)
      if (labels[r] < 0 || labels[r] >= classes_)
        return error(error_code::failed,
                     fmt::format("softmax_cross_entropy: the label of row {} is {}, expected 0 to {}", r, labels[r],
                                 classes_ - 1));
    double loss = 0;
    for (std::int64_t r = 0; r < rows_; r += block)
      loss = block_of_rows(x + r * classes_, labels + r, scale, outputs[1].data<float>() + r * classes_,
                           std::min(block, rows_ - r), loss);
    outputs[0].data<float>()[0] = static_cast<float>(loss) * scale;
    return {};
  }

 private:
  static constexpr std::int64_t block = 64;  // rows: 2.5 kB of ten classes

  double block_of_rows(const float* x, const std::int32_t* labels, float scale, float* d, std::int64_t rows,
                       double loss) const noexcept {
    std::array<float, block> largest, sums, logs;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * classes_;
      float m = row[0];
      for (std::int64_t c = 1; c < classes_; ++c) m = row[c] > m ? row[c] : m;
      largest[static_cast<std::size_t>(r)] = m;
      for (std::int64_t c = 0; c < classes_; ++c) d[r * classes_ + c] = row[c] - m;
    }
    for (std::int64_t i = 0; i < rows * classes_; ++i) d[i] = vector_math::exp(d[i]);
    for (std::int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (std::int64_t c = 0; c < classes_; ++c) sum += d[r * classes_ + c];
      sums[static_cast<std::size_t>(r)] = sum;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      logs[i] = vector_math::log(sums[i]);
      sums[i] = scale / sums[i];
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      float* row = d + r * classes_;
      for (std::int64_t c = 0; c < classes_; ++c) row[c] *= sums[i];
      row[labels[r]] -= scale;
      loss += static_cast<double>(logs[i] + (largest[i] - x[r * classes_ + labels[r]]));
    }
    return loss;
  }

  std::int64_t rows_ = 0, classes_ = 0;
};

}  // namespace

void add_loss_kernels(kernel_table& table) { table.add("softmax_cross_entropy", row_of<softmax_cross_entropy>()); }

}  // namespace troupe::host
