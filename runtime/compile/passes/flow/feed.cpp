#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace troupe::passes {

flow feed(flow f, std::span<const std::string> names, pass_report* report) {
  const auto first = f.roots.size() - names.size();
  // Op and output -> the input that stands for it.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> fed;
  std::vector<flow_op> inputs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto r = f.roots[first + i];
    const auto& op = f.ops[r.op];
    if (op.type == "input" || op.type == "variable") continue;
    if (report != nullptr)
      report->add(op.name, op.source,
                  [] { return "is fed: it is not computed, nor is what only it needs"; });
    fed.emplace(std::pair(r.op, r.output), static_cast<std::uint32_t>(inputs.size()));
    inputs.push_back({"input", names[i], {}, {}, {op.outputs[r.output]}, {}, op.source, {}});
  }
  f.roots.resize(first);
  if (!inputs.empty()) {
    const auto shift = static_cast<std::uint32_t>(inputs.size());
    const auto move = [&](op_ref& r) {
      const auto at = fed.find({r.op, r.output});
      r = at != fed.end() ? op_ref{at->second, 0} : op_ref{r.op + shift, r.output};
    };
    for (auto& op : f.ops)
      for (auto& in : op.inputs) move(in);
    for (auto& r : f.roots) move(r);
    f.ops.insert(f.ops.begin(), std::make_move_iterator(inputs.begin()),
                 std::make_move_iterator(inputs.end()));
  }
  return drop_unused(std::move(f));
}

}  // namespace troupe::passes
