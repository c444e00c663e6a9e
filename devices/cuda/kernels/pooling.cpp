// The largest and the mean of windows, and their gradients. Our own kernels and not cuDNN's, which
// gives no places of the largest and treats NaN and windows without elements otherwise than the
// host; they are bound by memory either way.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

namespace troupe::cuda {
namespace {

enum class pooling_op : std::uint8_t { max, max_grad, max_take, avg, avg_grad };

class pooling final : public kernel_of_chip {
 public:
  pooling(std::string_view op, pooling_op what, const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), op_(op), what_(what) {
    const auto read = [&](std::string_view name, std::int64_t(&to)[2]) {
      if (const auto all = attrs.integers(name); all.size() == 2) to[0] = all[0], to[1] = all[1];
    };
    read("window", p_.size);
    p_.stride[0] = p_.size[0], p_.stride[1] = p_.size[1];
    read("strides", p_.stride);
    read("before", p_.before);
    read("after", p_.after);
    read("dilations", p_.dilation);
    p_.counts_padding = attrs.integer("count_padding") != 0;
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    const bool has_places = what_ == pooling_op::max_grad || what_ == pooling_op::max_take;
    if (auto ok =
            check_ports(op_, inputs, has_places ? 2 : 1, outputs, what_ == pooling_op::max ? 2 : 1);
        !ok)
      return ok;
    const bool is_gradient = what_ == pooling_op::max_grad || what_ == pooling_op::avg_grad;
    const auto &image = is_gradient ? outputs[0] : inputs[0],
               &pooled = is_gradient ? inputs[0] : outputs[0];
    if (what_ == pooling_op::max && outputs[1] != tensor_spec{dtype::i32, pooled.shape})
      return unfit(op_, "places are i32 of the result's shape", outputs);
    if (has_places && inputs[1] != tensor_spec{dtype::i32, pooled.shape})
      return unfit(op_, "places are i32 of the shape of what is pooled", inputs);
    for (int i = 0; i < 2; ++i)
      if (p_.size[i] < 1 || p_.stride[i] < 1 || p_.dilation[i] < 1 || p_.before[i] < 0 ||
          p_.after[i] < 0)
        return unfit(op_, "takes windows of at least 1", inputs);
    if (image.shape.rank() != 4 || pooled.shape.rank() != 4 || image.type != pooled.type ||
        !is_float(image.type) || image.shape.size(0) != pooled.shape.size(0) ||
        image.shape.size(1) != pooled.shape.size(1))
      return unfit(op_, "takes f32 or f64 images of rank 4", inputs);
    type_ = image.type;
    p_.planes = image.shape.size(0) * image.shape.size(1);
    p_.h = image.shape.size(2), p_.w = image.shape.size(3), p_.oh = pooled.shape.size(2),
    p_.ow = pooled.shape.size(3);
    elements_ = outputs[0].shape.elements();
    return {};
  }

  result<void> enqueue(const launch_site& at, inputs_of in, outputs_of out) override {
    return for_float(type_, [&]<class T>(T) -> result<void> {
      const auto* x = as<T>(in[0]);
      auto* y = as<T>(out[0]);
      switch (what_) {
        case pooling_op::max:
          return elements(at, code::max_pool<T>{y, as<std::int32_t>(out[1]), x, p_}, elements_);
        case pooling_op::max_grad:
          return elements(at, code::max_pool_grad<T>{y, x, as<std::int32_t>(in[1]), p_}, elements_);
        case pooling_op::max_take:
          return elements(
              at,
              code::max_pool_take<T>{y, x, as<std::int32_t>(in[1]), p_, at.faults, at.op_number},
              elements_);
        case pooling_op::avg: return elements(at, code::avg_pool<T>{y, x, p_}, elements_);
        case pooling_op::avg_grad: return elements(at, code::avg_pool_grad<T>{y, x, p_}, elements_);
      }
      return {};
    });
  }

 private:
  std::string_view op_;
  pooling_op what_;
  code::pool p_;
  dtype type_ = dtype::f32;
  std::int64_t elements_ = 0;
};

}  // namespace

void add_pooling_kernels(cuda_kernel_table& table) {
  add_row<pooling>(table, "max_pool2d", "max_pool2d", pooling_op::max);
  add_row<pooling>(table, "max_pool2d_grad", "max_pool2d_grad", pooling_op::max_grad);
  add_row<pooling>(table, "max_pool2d_take", "max_pool2d_take", pooling_op::max_take);
  add_row<pooling>(table, "avg_pool2d", "avg_pool2d", pooling_op::avg);
  add_row<pooling>(table, "avg_pool2d_grad", "avg_pool2d_grad", pooling_op::avg_grad);
}

}  // namespace troupe::cuda
