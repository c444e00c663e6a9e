// Ops whose operands are all constants are computed here, by the kernels that a step would use, and
// become constants. What is large is left to the step, which computes it once: a plan that carried
// it would be larger than what makes it.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/kernel_arithmetic.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <fmt/format.h>

#include <cmath>
#include <new>
#include <optional>
#include <utility>

namespace troupe::passes {
namespace {

constexpr std::size_t bytes_max = 64 << 10;  // operands and results of one op

class folder {
 public:
  folder(flow f, const op_table& ops, pass_report* report)
      : f_(std::move(f)), ops_(ops), report_(report), values_(f_.ops.size()) {}

  flow run() {
    for (std::uint32_t i = 0; i < f_.ops.size(); ++i) {
      auto& op = f_.ops[i];
      if (op.type == "constant" || op.type == "constant_tensor") {
        if (op.outputs[0].size_bytes() <= bytes_max) is_known_.resize(i + 1), is_known_[i] = true;
        continue;
      }
      is_known_.resize(i + 1);
      if (auto out = compute(op)) become_constant(i, std::move(*out));
    }
    return drop_unused(std::move(f_));
  }

 private:
  bool can_fold(const flow_op& op) const {
    const auto* row = ops_.find(op.type);
    if (row == nullptr || row->is_source || row->is_forwarding || row->is_control ||
        row->depends_on_step || row->library != nullptr)
      return false;
    if (op.inputs.empty() || op.outputs.size() != 1 || op.outputs[0].shape.is_symbolic())
      return false;
    std::size_t bytes = op.outputs[0].size_bytes();
    for (const auto& in : op.inputs) {
      if (!is_known_[in.op] || bytes > bytes_max) return false;
      bytes += f_.ops[in.op].outputs[0].size_bytes();
    }
    return bytes <= bytes_max;
  }

  std::optional<tensor> compute(const flow_op& op) {
    if (!can_fold(op)) return std::nullopt;
    std::vector<tensor> in;
    for (const auto& r : op.inputs) {
      auto& v = values_[r.op];
      if (!v) {
        auto made = result_of(f_.ops[r.op], {});
        if (!made) return std::nullopt;
        v = std::move(*made);
      }
      in.push_back(v);
    }
    return result_of(op, in);
  }

  // nullopt: an index that is outside, for example. The step will say so, with the user's line.
  std::optional<tensor> result_of(const flow_op& op, const std::vector<tensor>& in) {
    const kernel_arithmetic as_in_a_step;
    if (!kernels_) kernels_ = make_host_kernels(), device_.emplace();
    const auto* kernel = kernels_->find(op.type);
    if (kernel == nullptr) return std::nullopt;
    try {
      std::vector<tensor_spec> specs;
      for (const auto& t : in) specs.push_back(t.spec());
      auto made = kernel->make(op.attrs, *device_);
      if (!made || *made == nullptr || !(*made)->prepare(specs, op.outputs)) return std::nullopt;
      std::vector<tensor> out{tensor::make(op.outputs[0])};
      if (!(*made)->run(tag{}, in, out)) return std::nullopt;
      return out[0];
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
  }

  void become_constant(std::uint32_t i, tensor t) {
    auto& op = f_.ops[i];
    if (report_ != nullptr)
      report_->add(op.name, op.source, [&] {
        return fmt::format("is a constant, {}: {} of constants, computed now", to_string(t.spec()),
                           op.type);
      });
    op.type = "constant_tensor";
    op.attrs = ops::attributes_of(t.spec());
    op.attrs.set("data", shared_bytes({t.bytes().begin(), t.bytes().end()}));
    if (t.type() == dtype::f32 && t.shape().rank() == 0 && !std::isnan(*t.data<float>())) {
      // As one that the program wrote, which other passes know.
      op.type = "constant";
      op.attrs = attributes{{"value", static_cast<double>(*t.data<float>())}};
    }
    op.inputs.clear();
    is_known_[i] = true;
    values_[i] = std::move(t);
  }

  flow f_;
  const op_table& ops_;
  pass_report* report_;
  std::vector<tensor> values_;  // of constants, once somebody has asked
  std::vector<bool> is_known_;
  std::optional<kernel_table> kernels_;
  std::optional<host_device> device_;
};

}  // namespace

flow fold(flow f, const op_table& ops, pass_report* report) {
  return folder(std::move(f), ops, report).run();
}

}  // namespace troupe::passes
