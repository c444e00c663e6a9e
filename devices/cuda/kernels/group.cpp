// A fused group: a first op of any kind and element-wise ones behind it, in place of its result; or
// element-wise ones only.

#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>

namespace troupe::cuda {
namespace {

// What cuBLASLt does with a product's result: bias, and an activation.
struct fused_end {
  epilogue end = epilogue::none;
  std::int32_t bias = -1;  // port of the group
  std::size_t steps = 0;   // of the group's behind the first that it stands for
};

// matmul, then add(it, bias of as many elements as it has columns), then perhaps relu or gelu_tanh
// of that; where nobody else takes what is between.
fused_end find_end(std::span<const group_step> steps, std::span<const tensor_spec> inputs,
                   const tensor_spec& out) {
  fused_end found;
  if (steps[0].op != "matmul" || steps[0].attrs.integer("sum_batches") != 0 || steps.size() < 2)
    return found;
  if (out.type != dtype::f32 && out.type != dtype::f16 && out.type != dtype::bf16) return found;
  const auto uses = [&](std::size_t step) {
    std::size_t n = 0;
    for (const auto& s : steps)
      for (const auto o : s.operands)
        n += o < 0 && -1 - std::int64_t{o} == static_cast<std::int64_t>(step) ? 1 : 0;
    return n;
  };
  const auto& add = steps[1];
  if (add.op != "add" || add.operands.size() != 2 || uses(0) != 1) return found;
  const auto product = add.operands[0] == -1 ? 0U : 1U;
  const auto bias = add.operands[1 - product];
  if (add.operands[product] != -1 || bias < 0 || static_cast<std::size_t>(bias) >= inputs.size() ||
      out.shape.rank() == 0)
    return found;
  const auto& b = inputs[static_cast<std::size_t>(bias)];
  if (b.type != out.type || b.shape.rank() != 1 ||
      b.shape.size(0) != out.shape.size(out.shape.rank() - 1))
    return found;
  found = {epilogue::bias, bias, 1};
  if (steps.size() > 2 && uses(1) == 1 && steps[2].operands == std::vector<std::int32_t>{-2}) {
    if (steps[2].op == "relu") found = {epilogue::bias_relu, bias, 2};
    if (steps[2].op == "gelu_tanh") found = {epilogue::bias_gelu_tanh, bias, 2};
  }
  return found;
}

class group final : public cuda_kernel {
 public:
  group(std::vector<group_step> steps, const cuda_kernel_table& table, chip_services& chip)
      : steps_(std::move(steps)), table_(table), chip_(chip) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (outputs.size() != 1)
      return error(error_code::usage,
                   fmt::format("a fused group gives one result, the plan has {}", outputs.size()));
    const auto& out = outputs[0];
    auto end = find_end(steps_, inputs, out);
    auto ok = prepare_head(end, inputs, out);
    // Not every type and size has a product with this end.
    if (!ok && end.end != epilogue::none) ok = prepare_head(end = {}, inputs, out);
    if (!ok) return ok;
    return prepare_rest(end.steps, inputs, out);
  }
  std::size_t workspace_bytes() const noexcept override {
    return std::max(head_->workspace_bytes(), rest_ != nullptr ? rest_->workspace_bytes() : 0);
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    head_inputs_.clear();
    for (const auto o : head_operands_) head_inputs_.push_back(inputs[static_cast<std::size_t>(o)]);
    if (auto ok = head_->enqueue(at, head_inputs_, outputs); !ok || rest_ == nullptr) return ok;
    rest_inputs_.assign(inputs.begin(), inputs.end());
    rest_inputs_.push_back(outputs[0]);
    return rest_->enqueue(at, rest_inputs_, outputs);
  }

 private:
  result<void> prepare_head(const fused_end& end, std::span<const tensor_spec> inputs,
                            const tensor_spec& out) {
    auto attrs = steps_[0].attrs;
    head_operands_ = steps_[0].operands;
    if (end.end != epilogue::none) {
      attrs.set("epilogue", static_cast<std::int64_t>(end.end));
      head_operands_.push_back(end.bias);
    }
    std::vector<tensor_spec> specs;
    for (const auto o : head_operands_) {
      if (o < 0 || static_cast<std::size_t>(o) >= inputs.size())
        return error(
            error_code::usage,
            fmt::format("{} of a fused group takes operand {}, which is no port", steps_[0].op, o));
      specs.push_back(inputs[static_cast<std::size_t>(o)]);
    }
    auto made = table_.make(steps_[0].op, attrs, chip_);
    if (!made) return std::move(made.error());
    head_ = std::move(*made);
    const tensor_spec result{steps_[0].type, out.shape};
    if (result.type != out.type)
      return error(error_code::usage,
                   fmt::format("the first op of a fused group writes {} into a result of {}",
                               to_string(result.type), to_string(out.type)));
    return head_->prepare(specs, {&result, 1});
  }

  // Steps behind those that the head stands for. What it writes is one more port, which lies where
  // the result does.
  result<void> prepare_rest(std::size_t skipped, std::span<const tensor_spec> inputs,
                            const tensor_spec& out) {
    rest_ = nullptr;
    const auto first = skipped + 1;
    if (first == steps_.size()) return {};
    std::vector<element_step> rest;
    for (auto i = first; i < steps_.size(); ++i) {
      element_step s{steps_[i].op, {}, steps_[i].type};
      for (const auto o : steps_[i].operands) {
        const auto step = -1 - std::int64_t{o};
        const auto from = static_cast<std::int64_t>(first);
        s.operands.push_back(o >= 0        ? o
                             : step < from ? static_cast<std::int32_t>(inputs.size())
                                           : static_cast<std::int32_t>(-1 - (step - from)));
      }
      rest.push_back(std::move(s));
    }
    auto made = make_fused_cuda_kernel(std::move(rest), chip_);
    if (!made) return std::move(made.error());
    rest_ = std::move(*made);
    std::vector<tensor_spec> specs(inputs.begin(), inputs.end());
    specs.push_back(out);
    return rest_->prepare(specs, {&out, 1});
  }

  std::vector<group_step> steps_;
  const cuda_kernel_table& table_;
  chip_services& chip_;
  std::unique_ptr<cuda_kernel> head_, rest_;
  std::vector<std::int32_t> head_operands_;
  std::vector<const std::byte*> head_inputs_, rest_inputs_;
};

}  // namespace

result<std::unique_ptr<cuda_kernel>> make_cuda_group(std::vector<group_step> steps,
                                                     const cuda_kernel_table& table,
                                                     chip_services& chip) {
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  for (std::size_t i = 1; i < steps.size(); ++i)
    if (!is_element_op(steps[i].op))
      return error(
          error_code::usage,
          fmt::format(
              "op {} of a fused group, {}, is not element-wise: only the first may be of another kind",
              i, steps[i].op));
  if (!is_element_op(steps[0].op)) {
    if (!table.has(steps[0].op))
      return error(
          error_code::not_found,
          fmt::format("no CUDA kernel for {} in a fused group; placed on the host", steps[0].op));
    return std::unique_ptr<cuda_kernel>(std::make_unique<group>(std::move(steps), table, chip));
  }
  std::vector<element_step> all;
  for (auto& s : steps) all.push_back({std::move(s.op), std::move(s.operands), s.type});
  return make_fused_cuda_kernel(std::move(all), chip);
}

}  // namespace troupe::cuda
