// Convolutions over two dimensions and their gradients, by cuDNN. It pads alike on both sides;
// where a plan does not, the image is copied into one that is padded.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>

namespace troupe::cuda {
namespace {

class convolution_kernel final : public kernel_of_chip {
 public:
  convolution_kernel(std::string_view op, convolution_part part, const attributes& attrs,
                     chip_services& chip)
      : kernel_of_chip(chip), op_(op) {
    const auto read = [&](std::string_view name, std::int64_t(&to)[2]) {
      if (const auto all = attrs.integers(name); all.size() == 2) to[0] = all[0], to[1] = all[1];
    };
    c_.part = part;
    c_.mode = attrs.integer("tf32") != 0 ? product_mode::tf32 : product_mode::exact;
    read("strides", c_.stride);
    read("dilations", c_.dilation);
    read("before", before_);
    read("after", after_);
    c_.groups = attrs.integer("groups", 1);
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 2, outputs, 1); !ok) return ok;
    out_ = outputs[0];
    c_.type = out_.type;
    for (const auto& s : {inputs[0], inputs[1], outputs[0]})
      if (s.shape.rank() != 4 || s.type != c_.type || !is_float(c_.type))
        return unfit(op_, "takes f32 or f64 of rank 4", inputs);
    const bool is_output = c_.part == convolution_part::output,
               is_input = c_.part == convolution_part::input_gradient;
    const auto& x = is_output ? inputs[0] : is_input ? outputs[0] : inputs[1];
    const auto& w = is_output || is_input ? inputs[1] : outputs[0];
    const auto& y = is_output ? outputs[0] : inputs[0];
    for (std::size_t i = 0; i < 4; ++i)
      c_.x[i] = x.shape.size(i), c_.w[i] = w.shape.size(i), c_.y[i] = y.shape.size(i);
    if (c_.groups < 1 || c_.x[0] != c_.y[0] || c_.w[0] != c_.y[1] || c_.w[0] % c_.groups != 0 ||
        c_.w[1] * c_.groups != c_.x[1])
      return unfit(op_, "channels, groups or batches differ", inputs);
    for (std::size_t i = 0; i < 2; ++i) {
      if (c_.stride[i] < 1 || c_.dilation[i] < 1 || before_[i] < 0 || after_[i] < 0)
        return unfit(op_, "a stride or dilation below 1, or a padding below 0", inputs);
      const auto room =
          c_.x[i + 2] + before_[i] + after_[i] - ((c_.w[i + 2] - 1) * c_.dilation[i] + 1);
      if (c_.w[i + 2] > 0 && (room < 0 ? 0 : room / c_.stride[i] + 1) != c_.y[i + 2])
        return unfit(op_, "sizes of the result differ", inputs);
    }
    is_empty_ = x.shape.elements() == 0 || w.shape.elements() == 0 || y.shape.elements() == 0;
    is_padded_ = !is_empty_ && (before_[0] != after_[0] || before_[1] != after_[1]);
    plan_ = nullptr;
    padded_bytes_ = 0;
    if (is_empty_) return {};
    image_ = x;
    for (std::size_t i = 0; i < 2; ++i) c_.padding[i] = is_padded_ ? 0 : before_[i];
    if (is_padded_) {
      find_padding();
      padded_bytes_ =
          workspace_aligned(static_cast<std::size_t>(padded_elements_) * size_of(c_.type));
    }
    auto made = chip_.plan_convolution(c_);
    if (!made) return std::move(made.error()).while_doing(op_);
    plan_ = std::move(*made);
    return {};
  }
  std::size_t workspace_bytes() const noexcept override {
    return padded_bytes_ + (plan_ != nullptr ? plan_->workspace_bytes : 0);
  }

  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    if (is_empty_) return chip_.fill_zero(at, outputs[0], out_.size_bytes());  // a sum of nothing
    // Read only.
    const auto first = const_cast<std::byte*>(inputs[0]),
               second = const_cast<std::byte*>(inputs[1]);
    std::byte *x = nullptr, *w = second, *y = first;
    switch (c_.part) {
      case convolution_part::output: x = first, y = outputs[0]; break;
      case convolution_part::input_gradient: x = outputs[0]; break;
      case convolution_part::weights_gradient: x = second, w = outputs[0]; break;
    }
    auto* rest = at.workspace + padded_bytes_;
    if (!is_padded_) return chip_.convolve(at, *plan_, x, w, y, rest);
    auto* padded = at.workspace;
    if (c_.part == convolution_part::input_gradient) {
      if (auto ok = chip_.convolve(at, *plan_, padded, w, y, rest); !ok) return ok;
      return move(at, x, padded, true);
    }
    if (auto ok = chip_.fill_zero(at, padded, padded_bytes_); !ok) return ok;
    if (auto ok = move(at, padded, x, false); !ok) return ok;
    return chip_.convolve(at, *plan_, padded, w, y, rest);
  }

 private:
  // The image inside of the padded one, as loops over the image; the plan is for the padded one.
  void find_padding() {
    const auto h = c_.x[2], w = c_.x[3];
    c_.x[2] += before_[0] + after_[0];
    c_.x[3] += before_[1] + after_[1];
    const auto planes = c_.x[0] * c_.x[1];
    padded_elements_ = planes * c_.x[2] * c_.x[3];
    box_ = {};
    box_.loops = 3;
    box_.elements = planes * h * w;
    const std::int64_t sizes[] = {w, h, planes}, inside[] = {1, c_.x[3], c_.x[2] * c_.x[3]},
                       outside[] = {1, w, h * w};
    for (int i = 0; i < 3; ++i)
      box_.size[i] = sizes[i], box_.a_step[i] = inside[i], box_.b_step[i] = outside[i];
    first_ = before_[0] * c_.x[3] + before_[1];
  }
  // The image into the padded one, or out of it.
  result<void> move(const launch_site& at, std::byte* to, const std::byte* from, bool is_out) {
    return for_size(size_of(c_.type), [&]<class W>(W) {
      auto b = box_;
      if (is_out)
        for (int i = 0; i < 3; ++i) std::swap(b.a_step[i], b.b_step[i]);
      return elements(at,
                      code::copy_box<W>{as<W>(to) + (is_out ? 0 : first_),
                                        as<W>(from) + (is_out ? first_ : 0), b},
                      b.elements);
    });
  }

  std::string_view op_;
  convolution c_;
  std::int64_t before_[2]{0, 0}, after_[2]{0, 0};
  tensor_spec out_, image_;
  bool is_empty_ = false, is_padded_ = false;
  code::box box_;
  std::int64_t first_ = 0, padded_elements_ = 0;
  std::size_t padded_bytes_ = 0;
  chip_services::plan_ref plan_;
};

}  // namespace

void add_convolution_kernels(cuda_kernel_table& table) {
  add_row<convolution_kernel>(table, "conv2d", "conv2d", convolution_part::output);
  add_row<convolution_kernel>(table, "conv2d_input_grad", "conv2d_input_grad",
                              convolution_part::input_gradient);
  add_row<convolution_kernel>(table, "conv2d_weights_grad", "conv2d_weights_grad",
                              convolution_part::weights_gradient);
}

}  // namespace troupe::cuda
