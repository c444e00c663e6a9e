#include "troupe/actors/session/function.hpp"

#include <fmt/format.h>

namespace troupe {

result<std::vector<tensor>> function::operator()(std::span<const tensor> operands,
                                                 source_location where) {
  if (operands.size() != operands_)
    return error(error_code::usage, fmt::format("function '{}' takes {} operands, not {}",
                                                options_.name, operands_, operands.size()))
        .at(where);
  std::string key;
  for (const auto& t : operands) {
    if (!t)
      return error(error_code::usage,
                   fmt::format("function '{}': an operand is not a tensor", options_.name))
          .at(where);
    key += to_string(t.spec()) + ";";
  }
  auto at = graphs_.find(key);
  if (at == graphs_.end()) {
    auto made = trace(operands, where);
    if (!made) return std::move(made.error());
    at = graphs_.emplace(std::move(key), std::move(*made)).first;
  }
  auto& [steps, inputs] = at->second;
  std::vector<std::pair<std::string_view, tensor>> feeds;
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (!inputs[i].empty()) feeds.emplace_back(inputs[i], operands[i]);
  auto values = steps->step(feeds);
  if (!values) graphs_.erase(at);  // a step that failed ends its job
  return values;
}

std::vector<value> function::operator()(std::span<const value> operands,
                                        source_location where) const {
  if (operands.size() == operands_) return body_(operands);
  for (const auto& v : operands)
    if (v.is_valid())
      v.owner->record(
          error(error_code::usage, fmt::format("function '{}' takes {} operands, not {}",
                                               options_.name, operands_, operands.size()))
              .at(where));
  return std::vector<value>(1);  // of as many as it would return one is taken for sure
}

result<function::compiled> function::trace(std::span<const tensor> operands,
                                           const source_location& where) const {
  graph g(session_.ops());
  std::vector<value> inputs;
  for (const auto& t : operands)
    inputs.push_back(input(g, t.spec(), fmt::format("operand_{}", inputs.size()), where));
  const auto outputs = body_(inputs);
  if (g.first_error()) return *g.first_error();
  if (outputs.empty())
    return error(error_code::usage, fmt::format("function '{}' returns nothing", options_.name))
        .at(where);
  for (const auto& v : outputs)
    if (!v.is_valid() || v.owner != &g)
      return error(
                 error_code::usage,
                 fmt::format("function '{}' returns a value that it did not make from its operands",
                             options_.name))
          .at(where);
  for (const auto& n : g.nodes())
    if (n.type == "variable" || (n.type == "input" && n.index >= inputs.size()))
      return error(error_code::usage,
                   fmt::format("function '{}' makes {} '{}' of its own: pass it as an operand",
                               options_.name, n.type, n.name))
          .at(n.source);
  // Operands that nothing depends on are not fed.
  const auto is_needed = g.needed_by(outputs);
  compiled c;
  for (const auto& v : inputs)
    c.inputs.push_back(is_needed[v.node] ? g.node(v.node).name : std::string());
  auto steps = session_.compile(g, outputs, options_);
  if (!steps) return std::move(steps.error());
  c.steps = std::move(*steps);
  return c;
}

}  // namespace troupe
