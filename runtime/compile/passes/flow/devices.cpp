// Which ops of those that wish for a device stand there. What has to do with files, branches and
// loops, with handing on, and users' own ops stand on the host.

#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace troupe::passes {

std::string why_not_on_device(const std::string& type, const attributes& attrs,
                              const op_table& ops) {
  static constexpr std::array<std::string_view, 4> of_host{"idx_batch", "index_batch", "text_batch",
                                                           pack_rows_op};
  const auto* row = ops.find(type);
  if (row == nullptr) return "this program does not have the op";
  if (is_collective(type)) return "it is a collective, whose ranks run on the host";
  if (row->is_control) return "it is an op of control flow, which runs on the host";
  if (row->is_forwarding) return "it only forwards its input";
  if (row->library != nullptr) return fmt::format("it comes from library '{}'", row->library->name);
  if (is_reader(attrs) || std::find(of_host.begin(), of_host.end(), type) != of_host.end())
    return fmt::format("there is no device kernel for {}", type);
  return {};
}

result<flow> devices(flow f, const op_table& ops, bool is_soft, pass_report* report) {
  for (std::size_t i = 0; i < f.ops.size(); ++i) {
    auto& op = f.ops[i];
    if (op.device.empty()) continue;
    auto wish = parse_device(op.device);
    expects(bool(wish), "a device in a graph was checked by its scope");
    if (!wish->gpu) continue;
    if (op.type == "variable") continue;  // replicate() knows whether its shard may stand there
    const auto* row = ops.find(op.type);
    // What reads or is fed, hands on or exchanges stands on the host in any case: its values are
    // copied.
    const bool is_programs =
        op.type == "input" || is_reader(op.attrs) || (row != nullptr && row->is_forwarding);
    std::string why;
    if (!is_programs)
      why = op.loop_level != 0 || op.region != 0
                ? "it is in a branch or loop, which runs on the host: compute it outside of the "
                  "branch or loop"
                : why_not_on_device(op.type, op.attrs, ops);
    if (!is_programs && why.empty()) continue;
    if (!is_programs && !is_soft)
      return error(error_code::usage,
                   fmt::format("op '{}' of type '{}' cannot run on '{}': {}. Put it into "
                               "device_scope(\"/cpu:0\"), or allow soft placement "
                               "(compile_options::soft_placement; no --hard-placement)",
                               op.name, op.type, op.device, why))
          .at(op.source.file, op.source.line);
    if (!is_programs && report != nullptr)
      report->add(op.name, op.source, [&] {
        return fmt::format("is placed on the host, not on '{}': {}", op.device, why);
      });
    wish->gpu.reset();
    op.device = to_string(*wish);
  }
  return f;
}

}  // namespace troupe::passes
