#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <unordered_map>
#include <utility>

namespace troupe::passes {
namespace {

constexpr std::uint32_t dropped = 0xffffffff;

source_line line_of(const graph_node& n) { return {n.source.file_name(), n.source.line()}; }

// Of what makes up loops, branch alone takes values from further around.
std::vector<std::uint16_t> sticky_inputs(const graph& g, const graph_node& n) {
  const auto& r = g.regions();
  if (n.region == 0 || n.type == merge_op || n.type.starts_with("loop_")) return {};
  std::vector<std::uint16_t> levels;
  for (const auto& in : n.inputs) levels.push_back(r.sticky_level(r.of(in), n.region));
  return levels;
}

}  // namespace

flow prune(const graph& g, std::span<const value> roots, pass_report* report) {
  const auto nodes = g.nodes();
  const auto is_needed = g.needed_by(roots);

  flow f;
  std::vector<std::uint32_t> number(nodes.size(), dropped);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& n = nodes[i];
    if (!is_needed[i] && report != nullptr)
      report->add(n.name, line_of(n),
                  [] { return "is left out: nothing that is asked for depends on it"; });
    if (!is_needed[i]) continue;
    number[i] = static_cast<std::uint32_t>(f.ops.size());
    flow_op op{n.type,         n.name,
               n.attrs,        {},
               n.outputs,      n.device,
               line_of(n),     n.initializer,
               n.average_rate, g.regions().loop_level(n.region),
               n.region};
    op.inputs.reserve(n.inputs.size());
    for (const auto& in : n.inputs) op.inputs.push_back({number[in.node], in.output});
    op.sticky = sticky_inputs(g, n);
    if (n.type == branch_op || n.type == loop_next_op)
      for (std::uint32_t k = 0; k < n.outputs.size(); ++k) {
        const auto region = g.regions().of({nullptr, n.index, k});
        op.output_places.push_back({region, g.regions().loop_level(region)});
      }
    f.ops.push_back(std::move(op));
  }
  for (const auto& r : roots) f.roots.push_back({number[r.node], r.output});
  return f;
}

flow drop_unused(flow f) {
  std::unordered_map<std::int64_t, std::size_t> ends;  // of loops
  for (std::size_t i = 0; i < f.ops.size(); ++i)
    if (f.ops[i].type == loop_end_op) ends.emplace(f.ops[i].attrs.integer("loop"), i);
  std::vector<bool> is_needed(f.ops.size());
  for (const auto& r : f.roots) is_needed[r.op] = true;
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (auto i = f.ops.size(); i-- > 0;) {
      if (!is_needed[i]) continue;
      for (const auto& in : f.ops[i].inputs) is_needed[in.op] = true;
      if (ends.empty() || f.ops[i].type != loop_enter_op) continue;
      const auto end = ends.find(f.ops[i].attrs.integer("loop"));
      if (end != ends.end() && !is_needed[end->second])
        is_needed[end->second] = true, is_done = false;
    }
  }

  std::vector<std::uint32_t> number(f.ops.size(), dropped);
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < f.ops.size(); ++i) {
    if (!is_needed[i]) continue;
    number[i] = kept;
    for (auto& in : f.ops[i].inputs) in.op = number[in.op];
    if (kept != i) f.ops[kept] = std::move(f.ops[i]);
    ++kept;
  }
  f.ops.resize(kept);
  for (auto& r : f.roots) r.op = number[r.op];
  return f;
}

}  // namespace troupe::passes
