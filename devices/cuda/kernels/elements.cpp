// Element-wise ops and groups of them: one generated kernel each (devices/cuda/fused_source.hpp).

#include "devices/cuda/kernels/families.hpp"

namespace troupe::cuda {
namespace {

class fused final : public kernel_of_chip {
 public:
  fused(std::vector<element_step> steps, bool takes_all, chip_services& chip) : kernel_of_chip(chip), steps_(std::move(steps)), takes_all_(takes_all) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (outputs.size() != 1) return error(error_code::usage, fmt::format("{} on CUDA: gives one result, the plan has {}", steps_.back().op, outputs.size()));
    if (takes_all_) {  // a single op: its operands and type are those of the plan
      steps_[0].operands.clear();
      for (std::size_t i = 0; i < inputs.size(); ++i) steps_[0].operands.push_back(static_cast<std::int32_t>(i));
      steps_[0].type = outputs[0].type;
    }
    auto made = make_fused_source(steps_, inputs, outputs[0]);
    if (!made) return std::move(made.error());
    if (plan_ == nullptr || made->text != source_.text) {
      auto plan = chip_.plan_elements(*made, takes_all_ ? steps_[0].op : "a fused group");
      if (!plan) return std::move(plan.error());
      plan_ = std::move(*plan);
    }
    source_ = std::move(*made);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return source_.elements == 0 ? result<void>() : chip_.run_elements(at, *plan_, source_, inputs, outputs[0]);
  }

 private:
  std::vector<element_step> steps_;
  bool takes_all_;
  fused_source source_;
  chip_services::plan_ref plan_;
};

}  // namespace

void add_element_kernels(cuda_kernel_table& table) {
  for (const auto op : element_ops())
    table.add(std::string(op), [op](const attributes&, chip_services& chip) -> result<std::unique_ptr<cuda_kernel>> {
      return std::unique_ptr<cuda_kernel>(std::make_unique<fused>(std::vector{element_step{std::string(op), {}, dtype::f32}}, true, chip));
    });
}

result<std::unique_ptr<cuda_kernel>> make_fused_cuda_kernel(std::vector<element_step> steps, chip_services& chip) {
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  for (const auto& s : steps)
    if (!is_element_op(s.op)) return error(error_code::not_found, fmt::format("no CUDA kernel for {} in a fused group; placed on the host", s.op));
  return std::unique_ptr<cuda_kernel>(std::make_unique<fused>(std::move(steps), false, chip));
}

}  // namespace troupe::cuda
