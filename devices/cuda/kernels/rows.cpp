// Softmax, normalisation and the loss: a team of threads for each row or group.

#include "troupe/devices/cuda/code/rows.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

namespace troupe::cuda {
namespace {

class softmax final : public kernel_of_chip {
 public:
  softmax(std::string_view op, bool is_log, bool is_gradient, const attributes& attrs,
          chip_services& chip)
      : kernel_of_chip(chip),
        op_(op),
        is_log_(is_log),
        is_gradient_(is_gradient),
        axis_(attrs.integer("axis", -1)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, is_gradient_ ? 2 : 1, outputs, 1); !ok) return ok;
    const auto a = along_axis(inputs[0].shape, axis_);
    if (!a) return unfit(op_, fmt::format("there is no axis {}", axis_), inputs);
    for (const auto& s : inputs)
      if (s != outputs[0] || !is_float(s.type))
        return unfit(op_, "takes and gives f32 or f64 of one shape", inputs);
    a_ = *a;
    type_ = outputs[0].type;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    const auto rows = a_.n == 0 ? 0 : a_.rows();
    return for_float(type_, [&]<class T>(T) {
      return is_gradient_
                 ? teams(at,
                         code::softmax_grad<T>{as<T>(inputs[0]), as<T>(inputs[1]),
                                               as<T>(outputs[0]), a_, is_log_},
                         rows, a_.n)
                 : teams(at, code::softmax<T>{as<T>(inputs[0]), as<T>(outputs[0]), a_, is_log_},
                         rows, a_.n);
    });
  }

 private:
  std::string_view op_;
  bool is_log_, is_gradient_;
  std::int64_t axis_;
  code::along a_;
  dtype type_ = dtype::f32;
};

class standardize final : public kernel_of_chip {
 public:
  standardize(std::string_view op, bool is_gradient, const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip),
        op_(op),
        is_gradient_(is_gradient),
        attrs_(attrs),
        epsilon_(attrs.real("epsilon", 1e-5)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = is_gradient_ ? check_ports(op_, inputs, 3, outputs, 1)
                               : check_ports(op_, inputs, 1, outputs, 3);
        !ok)
      return ok;
    r_ = reduction_over(inputs[0].shape, attrs_);
    type_ = inputs[0].type;
    if (!is_float(type_)) return unfit(op_, "takes f32 or f64", inputs);
    const auto is_of_groups = [&](const tensor_spec& s) {
      return s.type == type_ && s.shape.elements() == r_.results;
    };
    if (is_gradient_
            ? inputs[0] != outputs[0] || inputs[0] != inputs[1] || !is_of_groups(inputs[2])
            : inputs[0] != outputs[0] || !is_of_groups(outputs[1]) || !is_of_groups(outputs[2]))
      return unfit(op_, "operands, axes and results do not fit", inputs);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_float(type_, [&]<class T>(T) {
      return is_gradient_
                 ? teams(at,
                         code::standardize_grad<T>{as<T>(inputs[0]), as<T>(inputs[1]),
                                                   as<T>(inputs[2]), as<T>(outputs[0]), r_},
                         r_.results, r_.count)
                 : teams(at,
                         code::standardize<T>{as<T>(inputs[0]), as<T>(outputs[0]),
                                              as<T>(outputs[1]), as<T>(outputs[2]), r_, epsilon_},
                         r_.results, r_.count);
    });
  }

 private:
  std::string_view op_;
  bool is_gradient_;
  attributes attrs_;
  double epsilon_;
  code::reduction r_;
  dtype type_ = dtype::f32;
};

class softmax_cross_entropy final : public kernel_of_chip {
 public:
  softmax_cross_entropy(const attributes&, chip_services& chip) : kernel_of_chip(chip) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = "softmax_cross_entropy";
    if (auto ok = check_ports(op, inputs, 3, outputs, 2); !ok) return ok;
    const auto& x = inputs[0];
    if (!is_float(x.type) || x.shape.rank() != 2 || x.shape.size(1) == 0 ||
        inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} ||
        inputs[2] != tensor_spec{x.type, {}} || outputs[0] != tensor_spec{x.type, {}} ||
        outputs[1] != x)
      return unfit(op,
                   "takes f32 or f64 logits of rank 2, one i32 label per row and a scalar scale",
                   inputs);
    type_ = x.type;
    rows_ = x.shape.size(0);
    classes_ = x.shape.size(1);
    return {};
  }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(rows_) * sizeof(double);
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    auto* losses = as<double>(at.workspace);
    return for_float(type_, [&]<class T>(T) -> result<void> {
      const code::cross_entropy_rows<T> f{as<T>(inputs[0]), as<std::int32_t>(inputs[1]),
                                          as<T>(inputs[2]), as<T>(outputs[1]),
                                          losses,           classes_,
                                          at.faults,        at.op_number};
      if (auto ok = teams(at, f, rows_, classes_); !ok) return ok;
      return teams(at,
                   code::scaled_sum<double, T>{losses, as<T>(inputs[2]), as<T>(outputs[0]), rows_},
                   1, rows_);
    });
  }

 private:
  dtype type_ = dtype::f32;
  std::int64_t rows_ = 0, classes_ = 0;
};

}  // namespace

void add_row_kernels(cuda_kernel_table& table) {
  add_row<softmax>(table, "softmax", "softmax", false, false);
  add_row<softmax>(table, "log_softmax", "log_softmax", true, false);
  add_row<softmax>(table, "softmax_grad", "softmax_grad", false, true);
  add_row<softmax>(table, "log_softmax_grad", "log_softmax_grad", true, true);
  add_row<standardize>(table, "standardize", "standardize", false);
  add_row<standardize>(table, "standardize_grad", "standardize_grad", true);
  add_row<softmax_cross_entropy>(table, "softmax_cross_entropy");
}

}  // namespace troupe::cuda
