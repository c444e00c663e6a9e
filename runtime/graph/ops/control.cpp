// The ops that branches and loops are made of (runtime/plan/loop_rules.hpp). Their gradients are
// those of the whole branch or loop (runtime/compile/passes/flow/gradients.cpp).

#include "troupe/runtime/graph/ops/rules.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <limits>

namespace troupe {
namespace ops {
namespace {

const tensor_spec condition_spec = scalar(dtype::boolean);

// What it takes, so many times; operand `at` is a condition (-1: none is).
shape_rule handed_through(int at, std::size_t outputs) {
  return [=](const attributes&, std::span<const tensor_spec> in, const tag*) -> result<specs> {
    if (at >= 0 && in[static_cast<std::size_t>(at)] != condition_spec)
      return misfit(in, {}, fmt::format("operand {} is a condition, and must be bool[]", at));
    return specs(outputs, in[0]);
  };
}

result<specs> merged_branches(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (in[0] != condition_spec)
    return misfit(in, {"condition", "otherwise", "then"}, "the condition must be bool[]");
  if (in[1] != in[2])
    return misfit(in, {"condition", "otherwise", "then"},
                  "both branches must return the same type and shape");
  return specs{in[1]};
}

// What leaves it, then what comes back for the next iteration.
result<specs> ended_loop(const attributes&, std::span<const tensor_spec> in, const tag*) {
  const auto n = in.size() / 2;
  if (in.size() % 2 != 0)
    return misfit(in, {}, "a loop must have as many results as values that its body returns");
  for (std::size_t k = 0; k < n; ++k)
    if (in[k] != in[n + k])
      return misfit(std::array{in[k], in[n + k]}, {"at first", "after an iteration"},
                    "a variable of a loop must keep its type and shape");
  return specs(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(n));
}

}  // namespace

void add_control(op_table& t) {
  const auto row = [&](std::string_view name, std::uint32_t inputs, shape_rule rule) {
    t.add(std::string(name), {.inputs = inputs, .shapes = std::move(rule), .is_control = true});
  };
  row(branch_op, 2, handed_through(1, 2));
  row(merge_op, 3, merged_branches);
  row(loop_enter_op, 1, handed_through(-1, 1));
  row(loop_condition_op, 1, handed_through(0, 1));
  row(loop_next_op, 2, handed_through(1, 2));
  row(loop_stack_op, 1, handed_through(-1, 1));
  row(loop_back_op, 1, handed_through(-1, 1));
  t.add(std::string(loop_end_op), {.inputs = 2,
                                   .shapes = ended_loop,
                                   .is_control = true,
                                   .inputs_max = std::numeric_limits<std::uint32_t>::max()});
}

}  // namespace ops
}  // namespace troupe
