// Element-wise ops and groups of them: one generated kernel each (devices/cuda/fused_source.hpp);
// without NVRTC a compiled one for each op.

#include "troupe/devices/cuda/kernels/families.hpp"

namespace troupe::cuda {
namespace {

class fused final : public kernel_of_chip {
 public:
  fused(std::vector<element_step> steps, bool takes_all, chip_services& chip)
      : kernel_of_chip(chip), steps_(std::move(steps)), takes_all_(takes_all) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (outputs.size() != 1)
      return error(error_code::usage, fmt::format("{} on CUDA: gives one result, the plan has {}",
                                                  steps_.back().op, outputs.size()));
    if (takes_all_) {  // a single op: its operands and type are those of the plan
      steps_[0].operands.clear();
      for (std::size_t i = 0; i < inputs.size(); ++i)
        steps_[0].operands.push_back(static_cast<std::int32_t>(i));
      steps_[0].type = outputs[0].type;
    }
    auto made = make_fused_source(steps_, inputs, outputs[0]);
    if (!made) return std::move(made.error());
    const bool is_same = plan_ != nullptr && made->text == source_.text;
    source_ = std::move(*made);
    plain_.clear();
    if (is_same) return {};
    auto plan = chip_.plan_elements(source_, takes_all_ ? steps_[0].op : "a fused group");
    if (plan) {
      plan_ = std::move(*plan);
      return {};
    }
    // Without NVRTC: the compiled kernels, one after the other.
    if (plan.error().code() != error_code::not_found) return std::move(plan.error());
    return prepare_plain(inputs, outputs[0]);
  }
  std::size_t workspace_bytes() const noexcept override { return plain_bytes_; }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    if (source_.elements == 0) return {};
    if (plain_.empty()) return chip_.run_elements(at, *plan_, source_, inputs, outputs[0]);
    for (const auto& p : plain_) {
      const void* in[code::plain_walk::operands_max]{};
      for (std::size_t k = 0; k < p.operands.size(); ++k) {
        const auto o = p.operands[k];
        in[k] = o >= 0 ? inputs[static_cast<std::size_t>(o)]
                       : at.workspace + plain_[static_cast<std::size_t>(-1 - std::int64_t{o})].at;
      }
      auto* out = &p == &plain_.back() ? outputs[0] : at.workspace + p.at;
      if (auto ok = chip_.check_launch(at, p.row->launch(at.on, out, in, p.walk)); !ok) return ok;
    }
    return {};
  }

 private:
  // A step as a launch of its own; its result, but the last one's, lies in the workspace.
  struct plain_step {
    const code::plain_row* row;
    code::plain_walk walk;
    std::vector<std::int32_t> operands;
    std::size_t at;
  };
  result<void> prepare_plain(std::span<const tensor_spec> inputs, const tensor_spec& out) {
    plan_ = nullptr;
    plain_bytes_ = 0;
    for (const auto& s : steps_) {
      std::vector<shape> shapes;
      std::vector<dtype> types;
      for (const auto o : s.operands) {
        const auto spec =
            o >= 0 ? inputs[static_cast<std::size_t>(o)]
                   : tensor_spec{steps_[static_cast<std::size_t>(-1 - std::int64_t{o})].type,
                                 out.shape};
        shapes.push_back(spec.shape);
        types.push_back(spec.type);
      }
      const auto* row = code::find_plain(s.op, types, s.type);
      const auto walk = plain_walk_over(out.shape, shapes);
      if (row == nullptr || !walk)
        return unfit(s.op, "there is no kernel for these operands", inputs);
      plain_.push_back({row, *walk, s.operands, plain_bytes_});
      if (plain_.size() < steps_.size())
        plain_bytes_ += workspace_aligned(tensor_spec{s.type, out.shape}.size_bytes());
    }
    return {};
  }

  std::vector<element_step> steps_;
  bool takes_all_;
  fused_source source_;
  chip_services::plan_ref plan_;
  std::vector<plain_step> plain_;
  std::size_t plain_bytes_ = 0;
};

}  // namespace

void add_element_kernels(cuda_kernel_table& table) {
  for (const auto op : element_ops())
    table.add(std::string(op),
              [op](const attributes&, chip_services& chip) -> result<std::unique_ptr<cuda_kernel>> {
                return std::unique_ptr<cuda_kernel>(std::make_unique<fused>(
                    std::vector{element_step{std::string(op), {}, dtype::f32}}, true, chip));
              });
}

result<std::unique_ptr<cuda_kernel>> make_fused_cuda_kernel(std::vector<element_step> steps,
                                                            chip_services& chip) {
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  for (const auto& s : steps)
    if (!is_element_op(s.op))
      return error(error_code::not_found,
                   fmt::format("no CUDA kernel for {} in a fused group; placed on the host", s.op));
  return std::unique_ptr<cuda_kernel>(std::make_unique<fused>(std::move(steps), false, chip));
}

}  // namespace troupe::cuda
