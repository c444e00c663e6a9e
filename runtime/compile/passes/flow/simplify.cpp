#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace troupe::passes {
namespace {

bool is_constant(const flow& f, op_ref r, double number) {
  const auto& op = f.ops[r.op];
  return op.type == "constant" && op.attrs.real("value", number + 1) == number;
}

// What the only output of `op` equals, if it is that of another op. Constants are scalars, so that
// they never make a result larger.
std::optional<op_ref> equivalent(const flow& f, const flow_op& op) {
  if (op.type == "neg") {
    const auto& inner = f.ops[op.inputs[0].op];
    return inner.type == "neg" ? std::optional(inner.inputs[0]) : std::nullopt;
  }
  const bool is_mul = op.type == "mul", is_add = op.type == "add", is_sub = op.type == "sub";
  if (!is_mul && !is_add && !is_sub) return std::nullopt;
  const double neutral = is_mul ? 1 : 0;
  if (is_constant(f, op.inputs[1], neutral)) return op.inputs[0];
  if (!is_sub && is_constant(f, op.inputs[0], neutral)) return op.inputs[1];
  return std::nullopt;
}

std::string why(const flow_op& op, const flow_op& instead) {
  const auto what = op.type == "neg"   ? "is the negative of a negative"
                    : op.type == "mul" ? "is multiplied by 1"
                    : op.type == "add" ? "has 0 added to it"
                                       : "has 0 subtracted from it";
  return fmt::format("{}: '{}' is used instead", what, instead.name);
}

}  // namespace

flow simplify(flow f, pass_report* report) {
  // replaced[i]: what stands for output 0 of op i. Operands come first (PS-1), so one walk
  // suffices.
  std::vector<op_ref> replaced(f.ops.size());
  const auto forward = [&](op_ref& r) {
    if (r.output == 0) r = replaced[r.op];
  };
  for (std::uint32_t i = 0; i < f.ops.size(); ++i) {
    for (auto& in : f.ops[i].inputs) forward(in);
    replaced[i] = equivalent(f, f.ops[i]).value_or(op_ref{i, 0});
    if (report != nullptr && replaced[i].op != i)
      report->add(f.ops[i].name, f.ops[i].source,
                  [&] { return why(f.ops[i], f.ops[replaced[i].op]); });
  }
  for (auto& r : f.roots) forward(r);
  return drop_unused(std::move(f));
}

}  // namespace troupe::passes
