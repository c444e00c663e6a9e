// Gradients that are rows added to zeros, those of a table that is read by index, are pushed as
// these rows: a step that looks up a thousand words of a million moves a thousand rows.

#include "troupe/devices/host/packed_rows.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <array>

namespace troupe::passes {
namespace {

bool is_zeros(const flow& f, op_ref r) {
  const auto& op = f.ops[r.op];
  if (op.type != "broadcast_like") return false;
  const auto& number = f.ops[op.inputs[0].op];
  return number.type == "constant" && number.attrs.real("value", 1) == 0;
}

// The op that packs instead of `scatter`, for variable `v`; nullopt: the gradient is no such thing,
// or rows would be no fewer bytes.
std::optional<flow_op> packer(const flow& f, const flow_op& scatter, const flow_op& v) {
  const auto& table = v.outputs[0];
  if (scatter.type != "scatter_add" || table.type != dtype::f32 || table.shape.rank() == 0 ||
      table.shape.size(0) == 0)
    return std::nullopt;
  const auto axis = scatter.attrs.integer("axis");
  if ((axis != 0 && axis != -static_cast<std::int64_t>(table.shape.rank())) ||
      !is_zeros(f, scatter.inputs[0]) || scatter.outputs[0] != table)
    return std::nullopt;
  const auto& ids = f.ops[scatter.inputs[1].op].outputs[scatter.inputs[1].output];
  if (ids.shape.rank() == shape::rank_max) return std::nullopt;
  const auto width = static_cast<std::size_t>(table.shape.elements() / table.shape.size(0));
  flow_op op;
  op.type = pack_rows_op;
  op.name = scatter.name + "/rows";
  op.attrs.set("rows", table.shape.size(0));
  op.inputs = {scatter.inputs[1], scatter.inputs[2]};
  const auto packed = packed_spec(ids.shape, width);
  if (!packed || packed->size_bytes() >= table.size_bytes()) return std::nullopt;
  op.outputs = {*packed};
  op.device = scatter.device;
  op.source = scatter.source;
  return op;
}

}  // namespace

flow pack_pushes(flow f, pass_report* report) {
  const auto n = (f.roots.size() - 1) / 2;
  for (std::size_t i = 0; i < n; ++i) {
    auto& gradient = f.roots[1 + i];
    if (gradient.output != 0) continue;
    auto op = packer(f, f.ops[gradient.op], f.ops[f.roots[1 + n + i].op]);
    if (!op) continue;
    const auto& table = f.ops[f.roots[1 + n + i].op];
    if (report != nullptr)
      report->add(table.name, table.source, [&] {
        return fmt::format(
            "is pushed by the rows that a step has read: at most {} bytes instead of {}",
            op->outputs[0].size_bytes(), table.outputs[0].size_bytes());
      });
    gradient = {static_cast<std::uint32_t>(f.ops.size()), 0};
    f.ops.push_back(std::move(*op));
  }
  return drop_unused(std::move(f));
}

}  // namespace troupe::passes
