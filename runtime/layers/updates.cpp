#include "troupe/runtime/layers/updates.hpp"

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/layers/clipping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {
namespace {

using kind = graph_update::kind;

std::string_view name_of(kind k) {
  switch (k) {
    case kind::assign: return "assign";
    case kind::assign_add: return "assign_add";
    case kind::apply: return "apply";
    case kind::average: return "moving average";
  }
  return "update";
}

// What is wrong with an update; empty: nothing.
std::string what_is_wrong(const graph& g, const graph_update& u) {
  if (g.computes()) return "an eager has no runs, and so no updates";
  if (g.regions().current() != 0)
    return "it stands in a branch or a loop, and a run makes it in any case: use `when`, or assign "
           "what the branch returns";
  const auto& n = g.node(u.variable.node);
  if (n.type != "variable")
    return fmt::format("'{}' is no variable, but the result of {}", n.name, n.type);
  if (n.average_rate && u.type != kind::average)
    return fmt::format("'{}' is a moving average, which follows its sample", n.name);
  if (u.operand.spec() != u.variable.spec())
    return fmt::format("variable '{}' is {}, and {} is {}", n.name, to_string(u.variable.spec()),
                       u.type == kind::apply        ? "the gradient"
                       : u.type == kind::assign_add ? "what is added"
                                                    : "the new value",
                       to_string(u.operand.spec()));
  const auto is_scalar = [](const value& v, dtype type) {
    return !v.is_valid() || v.spec() == tensor_spec{type, {}};
  };
  if (!is_scalar(u.rate, dtype::f32))
    return fmt::format("a rate is f32[], and this one is {}", to_string(u.rate.spec()));
  if (!is_scalar(u.when, dtype::boolean))
    return fmt::format("`when` is bool[], and this one is {}", to_string(u.when.spec()));
  for (const auto& v : {u.operand, u.rate, u.when})
    if (v.is_valid())
      if (const auto place = g.regions().place_of(v); !place.empty())
        return fmt::format("'{}' is made in a {}: return it from there", g.node(v.node).name,
                           place);
  return {};
}

// Averages that a loss moves follow their samples.
void add_averages(graph& g, value loss, const minimize_options& o, const source_location& where) {
  const auto is_needed = g.needed_by(std::span(&loss, 1));
  const auto has = [&](const value& v) { return v.node < is_needed.size() && is_needed[v.node]; };
  for (const auto& a : g.averages())
    if (has(a.beside) || has(a.variable))
      add_update({.name = std::string(o.name),
                  .type = kind::average,
                  .variable = a.variable,
                  .operand = a.sample,
                  .when = o.when,
                  .average_rate = *g.node(a.variable.node).average_rate,
                  .source = where});
}

// The variables that a gradient flows to.
minimized minimize_in(value loss, std::span<const value> variables,
                      std::span<const value> derivatives, const optimizer_spec& o,
                      const minimize_options& options, const source_location& where) {
  auto& g = *loss.owner;
  if (g.first_error()) return {};
  minimized out;
  for (std::size_t i = 0; i < variables.size(); ++i)
    if (derivatives[i].is_valid()) {
      out.variables.push_back(variables[i]);
      out.gradients.push_back(derivatives[i]);
    }
  if (out.variables.empty()) {
    g.record(error(error_code::usage,
                   fmt::format("minimize, update '{}': no gradient flows from loss '{}' to any "
                               "variable, so there is nothing to train",
                               options.name, g.node(loss.node).name))
                 .at(where));
    return {};
  }
  if (options.clip_global_norm != 0) {
    const auto norm = global_norm(out.gradients, where);
    out.gradients = clip_by_global_norm(out.gradients, options.clip_global_norm, where);
    if (g.first_error()) return {};
    const auto scope = g.name_scope(options.name, where);
    out.norm = g.add("stop_gradient", std::array{norm}, {}, "norm", where);
  }
  for (std::size_t i = 0; i < out.variables.size(); ++i)
    apply(o, out.variables[i], out.gradients[i],
          {.name = options.name,
           .schedule = options.schedule,
           .rate = options.rate,
           .when = options.when,
           .state = options.state},
          where);
  add_averages(g, loss, options, where);
  return out;
}

}  // namespace

void add_update(graph_update u) {
  auto* g = u.variable.owner != nullptr ? u.variable.owner : u.operand.owner;
  if (g == nullptr) return;  // its graph knows why
  const auto refuse = [&](std::string why) {
    g->record(
        error(error_code::usage, fmt::format("{}, update '{}': {}", name_of(u.type), u.name, why))
            .at(u.source));
  };
  if (u.name.empty()) return refuse("it has no name");
  {
    const auto as_of_ops = g->name_scope(u.name, u.source);  // which refuses what is no name
    if (g->first_error()) return;
  }
  if (!u.variable.is_valid() || !u.operand.is_valid()) {
    if (!g->first_error())
      refuse(u.variable.is_valid() ? "there is no value" : "there is no variable");
    return;
  }
  for (const auto& v : {u.variable, u.operand, u.rate, u.when})
    if (v.is_valid() && !g->has(v)) return refuse("its values are of different graphs");
  if (u.type == kind::apply) {
    {
      const auto as_of_ops = g->name_scope(u.state, u.source);
      if (g->first_error()) return;
    }
    auto ok = check(u.optimizer);
    if (ok) ok = check(u.schedule);
    if (!ok) return refuse(ok.error().message());
  }
  if (auto why = what_is_wrong(*g, u); !why.empty()) return refuse(std::move(why));
  g->add_update(std::move(u));
}

value named(value v, std::string_view name, source_location where) {
  if (!v.is_valid()) return {};
  auto& g = *v.owner;
  const auto refuse = [&](std::string why) {
    g.record(error(error_code::usage, fmt::format("named '{}': {}", name, why)).at(where));
    return value{};
  };
  if (!g.has(v)) return refuse("it is no value of its graph");
  if (v.output != 0)
    return refuse(fmt::format("it is output {} of '{}': name output 0, and fetch \"NAME:{}\"",
                              v.output, g.node(v.node).name, v.output));
  {
    const auto as_of_ops = g.name_scope(name, where);  // which refuses what is no name
    if (g.first_error()) return {};
  }
  auto& n = g.node(v.node);
  const auto other = std::ranges::find(g.nodes(), name, &graph_node::name);
  if (n.type == "variable" || n.type == "input")
    return refuse(fmt::format("it is {} '{}', which has its name already", n.type, n.name));
  if (other != g.nodes().end() && other->index != n.index)
    return refuse(fmt::format("the {} of {}:{} has that name", other->type,
                              other->source.file_name(), other->source.line()));
  n.name = name;
  return v;
}

std::vector<value> variables_in(graph& g, std::string_view prefix) {
  auto all = g.variables();
  std::erase_if(all, [&](const value& v) { return !g.node(v.node).name.starts_with(prefix); });
  return all;
}

void assign(value variable, value to, std::string_view update, source_location where) {
  add_update({.name = std::string(update),
              .type = kind::assign,
              .variable = variable,
              .operand = to,
              .source = where});
}

void assign_add(value variable, value by, std::string_view update, source_location where) {
  add_update({.name = std::string(update),
              .type = kind::assign_add,
              .variable = variable,
              .operand = by,
              .source = where});
}

void apply(const optimizer_spec& o, value variable, value gradient, const apply_options& options,
           source_location where) {
  add_update(
      {.name = std::string(options.name),
       .type = kind::apply,
       .variable = variable,
       .operand = gradient,
       .rate = options.rate,
       .when = options.when,
       .optimizer = o,
       .schedule = options.schedule,
       .state = std::string(options.state.empty() ? std::string_view(o.type) : options.state),
       .source = where});
}

minimized minimize(value loss, const optimizer_spec& o, const minimize_options& options,
                   source_location where) {
  if (!loss.is_valid()) return {};
  auto all = loss.owner->variables();
  std::erase_if(all,
                [&](const value& v) { return loss.owner->node(v.node).average_rate.has_value(); });
  auto derivatives = gradients(*loss.owner, loss, all);
  return minimize_in(loss, all, derivatives, o, options, where);
}

minimized minimize(value loss, const std::vector<value>& variables, const optimizer_spec& o,
                   const minimize_options& options, source_location where) {
  if (!loss.is_valid()) return {};
  auto& g = *loss.owner;
  const auto refuse = [&](std::string why) {
    g.record(error(error_code::usage, fmt::format("minimize, update '{}': {}", options.name, why))
                 .at(where));
    return minimized{};
  };
  if (variables.empty()) return refuse("there is no variable");
  for (const auto& v : variables)
    if (!g.has(v)) return refuse("one of its variables is none of this graph");
  auto derivatives = gradients(g, loss, variables);
  if (g.first_error()) return {};
  for (std::size_t i = 0; i < variables.size(); ++i)
    if (!derivatives[i].is_valid())
      return refuse(fmt::format("no gradient flows from loss '{}' to variable '{}'",
                                g.node(loss.node).name, g.node(variables[i].node).name));
  return minimize_in(loss, variables, derivatives, o, options, where);
}

}  // namespace troupe
