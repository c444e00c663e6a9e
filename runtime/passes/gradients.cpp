// Reverse-mode differentiation on the graph: every op's rule appends the ops that compute the gradients of its operands
// (Griewank, Walther: Evaluating Derivatives, 2008, chapter 3). Ops that nobody needs in the end are pruned later.

#include "runtime/compile.hpp"
#include "runtime/op_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

// Which nodes up to `last` depend on one of the values.
std::vector<bool> dependants(const graph& g, std::uint32_t last, std::span<const value> of) {
  std::vector<bool> depends(last + 1);
  for (const auto& v : of)
    if (v.is_valid() && v.node <= last) depends[v.node] = true;
  for (std::uint32_t i = 0; i <= last; ++i)
    for (const auto& in : g.node(i).inputs)
      if (depends[in.node]) depends[i] = true;
  return depends;
}

result<void> check_request(const graph& g, value loss, std::span<const value> with_respect_to) {
  if (!g.has(loss)) return error(error_code::usage, "the loss is not a value of this graph");
  if (!floating.has(loss.spec().type) || loss.spec().shape.rank() != 0) {
    const auto& n = g.node(loss.node);
    return error(error_code::usage, fmt::format("loss '{}' is {}, but must be a scalar f32[] or f64[]", n.name, to_string(loss.spec())))
        .at(n.source);
  }
  for (const auto& v : with_respect_to)
    if (!g.has(v))
      return error(error_code::usage, "gradients are asked for something that is not a value of this graph");
  return {};
}

}  // namespace

std::vector<value> gradients(graph& g, value loss, std::span<const value> with_respect_to) {
  std::vector<value> answers(with_respect_to.size());
  if (g.first_error()) return answers;
  if (auto ok = check_request(g, loss, with_respect_to); !ok) {
    g.record(std::move(ok.error()));
    return answers;
  }
  const auto last = loss.node;
  const auto depends = dependants(g, last, with_respect_to);
  std::vector<std::vector<value>> sums(last + 1);  // d loss / d output, per node and output
  const auto accumulate = [&](const value& of, const value& gradient, const source_location& where) {
    auto& outputs = sums[of.node];
    outputs.resize(g.node(of.node).outputs.size());
    auto& sum = outputs[of.output];
    sum = sum.is_valid() ? add(sum, gradient, where) : gradient;
  };
  {
    const auto scope = g.name_scope("gradients");
    const auto where = g.node(last).source;
    accumulate(loss, constant(g, 1.0, loss.spec().type, "one", where), where);
  }
  for (auto i = last + 1; i-- > 0;) {
    if (!depends[i] || sums[i].empty() || g.node(i).inputs.empty()) continue;
    const auto n = g.node(i);  // a copy: rules append to the graph
    bool is_on_path = false;
    for (const auto& in : n.inputs) is_on_path = is_on_path || depends[in.node];
    if (!is_on_path) continue;
    const auto* row = g.ops().find(n.type);
    if (!row->gradient) {
      g.record(error(error_code::usage,
                     fmt::format("{} '{}' is not differentiable, but the loss depends on variables through it", n.type,
                                 n.name))
                   .at(n.source));
      return std::vector<value>(with_respect_to.size());
    }
    const auto names = g.name_scope(fmt::format("gradients/{}", n.name));
    const auto operand_gradients = [&] {
      if (n.device.empty()) return row->gradient(g, n, sums[i]);
      const auto device = g.device_scope(n.device, n.source);
      return row->gradient(g, n, sums[i]);
    }();
    const auto refuse = [&](std::string what) { g.record(error(error_code::usage, fmt::format("{} '{}': {}", n.type, n.name, what)).at(n.source)); };
    if (operand_gradients.size() > n.inputs.size()) refuse(fmt::format("its gradient rule makes {} gradients for {} operands", operand_gradients.size(), n.inputs.size()));
    for (std::size_t k = 0; k < std::min(operand_gradients.size(), n.inputs.size()); ++k) {
      const auto& made = operand_gradients[k];
      if (!made.is_valid() || !depends[n.inputs[k].node]) continue;
      if (made.spec() != n.inputs[k].spec()) refuse(fmt::format("its gradient rule makes {} for operand {}, which is {}", to_string(made.spec()), k, to_string(n.inputs[k].spec())));
      accumulate(n.inputs[k], made, n.source);
    }
  }
  for (std::size_t k = 0; k < answers.size(); ++k) {
    const auto& v = with_respect_to[k];
    if (v.node <= last && v.output < sums[v.node].size()) answers[k] = sums[v.node][v.output];
  }
  return answers;
}

}  // namespace troupe
