#include "troupe/runtime/graph/control_flow.hpp"

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/graph_regions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {
namespace {

using regions = graph_regions;

error bad_call(std::string text) { return {error_code::usage, std::move(text)}; }

constexpr std::uint32_t nesting_max = 900;

bool is_condition_spec(const value& v) {
  return v.spec().type == dtype::boolean && v.spec().shape.rank() == 0;
}

// What a call returns where the graph has an error: invalid values, as many as it would return
// else, since programs take them by number.
std::vector<value> invalid(std::size_t n) { return std::vector<value>(n); }

// As many as a branch returns, which is known once it was called. A function that calls cond() with
// itself, once or several times, is ended by a number of calls for the outermost one, and by the
// `level` of branches and loops that it is called at: each on the way out would count anew.
constexpr std::uint32_t counted_max = 100, counted_level_max = 8;
thread_local std::uint32_t counted_depth = 0, counted_calls = 0;
std::vector<value> invalid_as(const branch_function& branch, std::uint32_t level,
                              const source_location& where) {
  if (counted_depth == 0) counted_calls = 0;
  if (level > counted_level_max || ++counted_calls > counted_max) return invalid(1);
  struct deeper {
    deeper() { ++counted_depth; }
    ~deeper() { --counted_depth; }
  };
  const deeper inside;
  const auto made = branch();
  // Where nothing else is wrong, the condition is; what the branch has added must not run.
  for (const auto& v : made)
    if (v.is_valid() && !v.owner->first_error())
      v.owner->record(bad_call("cond(): the condition is not a value").at(where));
  return invalid(made.size());
}

// What a function of the program has returned, in the region that it was called in; empty, and the
// graph has an error.
std::optional<std::vector<value>> bring_home(graph& g, std::vector<value> returned,
                                             std::string_view what, const source_location& where) {
  for (auto& v : returned) {
    if (!v.is_valid() || v.owner != &g) {
      g.record(
          bad_call(fmt::format("{} returns a value that is not of this graph", what)).at(where));
      return std::nullopt;
    }
    v = g.regions().import(v, where);
    if (!v.is_valid()) return std::nullopt;
  }
  return returned;
}

std::vector<value> in_graph(graph& g, value condition, const branch_function& then,
                            const branch_function& otherwise, const source_location& where) {
  auto& r = g.regions();
  const auto names = g.name_scope("cond", where);
  condition = r.import(condition, where);
  if (condition.is_valid()) condition = r.pace(condition, where);
  if (!condition.is_valid()) return invalid_as(then, r.at(r.current()).level, where);
  if (r.at(r.current()).level >= nesting_max) {
    g.record(bad_call(fmt::format("cond(): it is nested in {} branches and loops, which is the "
                                  "limit",
                                  nesting_max))
                 .at(where));
    return invalid(1);  // a function that calls itself would not end
  }
  const auto id = r.begin_conditional(condition);
  std::vector<value> made[2];
  for (const int k : {1, 0}) {
    const regions::inside in(r, r.conditional_at(id).regions[k]);
    made[k] = (k == 1 ? then : otherwise)();
    auto returned = bring_home(
        g, made[k], k == 1 ? "the branch of cond() for true" : "the branch of cond() for false",
        where);
    if (!returned) return invalid(std::max(made[0].size(), made[1].size()));
    made[k] = std::move(*returned);
  }
  if (made[0].size() != made[1].size()) {
    g.record(bad_call(fmt::format("cond(): one branch returns {} values, the other one {}",
                                  made[1].size(), made[0].size()))
                 .at(where));
    return invalid(std::max(made[0].size(), made[1].size()));
  }
  std::vector<value> out;
  for (std::size_t i = 0; i < made[0].size(); ++i) {
    if (made[0][i].spec() != made[1][i].spec()) {
      g.record(bad_call(fmt::format("cond(): value {} is {} of one branch, and {} of the other one",
                                    i, to_string(made[1][i].spec()), to_string(made[0][i].spec())))
                   .at(where));
      return invalid(made[0].size());
    }
    out.push_back(r.merge(id, made[0][i], made[1][i], where));
  }
  return out;
}

// False: not as many as there are variables, and the graph has an error.
bool returns_all(graph& g, std::size_t variables, std::size_t returned,
                 const while_options& options, const source_location& where) {
  if (returned == variables) return true;
  g.record(bad_call(fmt::format("loop '{}' has {} variables, and its body returns {} values",
                                options.name, variables, returned))
               .at(where));
  return false;
}

// A loop of the program, in a graph that computes at once.
std::vector<value> run_loop(graph& g, std::vector<value> now,
                            const loop_condition_function& condition,
                            const loop_body_function& body, const while_options& options,
                            const source_location& where) {
  for (std::uint64_t n = 0;; ++n) {
    const auto goes_on = condition(now);
    if (!goes_on.is_valid() || g.first_error()) return {};
    const auto known = is_condition_spec(goes_on) ? g.known(goes_on) : std::nullopt;
    if (!known) {
      g.record(bad_call(fmt::format("loop '{}': its condition is {}, and must be bool[]",
                                    options.name, to_string(goes_on.spec())))
                   .at(where));
      return {};
    }
    if (!*known) return now;
    if (options.iterations_max != 0 && n == options.iterations_max) {
      g.record(error(error_code::failed,
                     fmt::format("loop '{}' has made {} iterations, and may make no more",
                                 options.name, n))
                   .at(where));
      return {};
    }
    auto next = body(now);
    if (g.first_error() || !returns_all(g, now.size(), next.size(), options, where)) return {};
    now = std::move(next);
  }
}

// False, and the graph has an error.
bool fit_together(graph& g, std::span<const value> initial, const std::vector<value>& next,
                  const while_options& options, const source_location& where) {
  if (!returns_all(g, initial.size(), next.size(), options, where)) return false;
  for (std::size_t k = 0; k < next.size(); ++k)
    if (next[k].spec() != initial[k].spec()) {
      g.record(bad_call(fmt::format("loop '{}': variable {} is {}, but {} after an iteration",
                                    options.name, k, to_string(initial[k].spec()),
                                    to_string(next[k].spec())))
                   .at(where));
      return false;
    }
  return true;
}

// A loop has its graph from its variables; without any, from what its condition is made of. A
// condition that takes variables all the same finds invalid ones, which its graph then tells.
std::vector<value> without_variables(const loop_condition_function& condition,
                                     const while_options& options, const source_location& where) {
  const std::array<value, 64> none{};
  const auto asked = condition(none);
  if (asked.is_valid())
    asked.owner->record(
        bad_call(
            fmt::format("loop '{}' has no variables, so nothing in it can change: give it those "
                        "that its condition and its body work on",
                        options.name))
            .at(where));
  return invalid(1);
}

}  // namespace

std::vector<value> cond(value condition, const branch_function& then,
                        const branch_function& otherwise, source_location where) {
  if (!condition.is_valid()) return invalid_as(then, 0, where);
  auto& g = *condition.owner;
  const auto level = [&] { return g.regions().at(g.regions().current()).level; };
  if (g.first_error()) return invalid_as(then, level(), where);
  if (!is_condition_spec(condition)) {
    g.record(bad_call(fmt::format("cond(): the condition is {}, and must be bool[]",
                                  to_string(condition.spec())))
                 .at(where));
    return invalid_as(then, level(), where);
  }
  if (const auto known = g.known(condition)) return *known ? then() : otherwise();
  return in_graph(g, condition, then, otherwise, where);
}

value cond(value condition, const std::function<value()>& then,
           const std::function<value()>& otherwise, source_location where) {
  // One value, whatever the branches are.
  if (condition.is_valid() && condition.owner->first_error()) return {};
  const auto out = cond(condition, branch_function([&] { return std::vector<value>{then()}; }),
                        branch_function([&] { return std::vector<value>{otherwise()}; }), where);
  return out.empty() ? value{} : out[0];
}

std::vector<value> while_loop(std::span<const value> given,
                              const loop_condition_function& condition,
                              const loop_body_function& body, const while_options& options,
                              source_location where) {
  graph* owner = nullptr;
  for (const auto& v : given)
    if (v.is_valid()) owner = v.owner;
  if (given.empty()) return without_variables(condition, options, where);
  if (owner == nullptr) return invalid(given.size());
  auto& g = *owner;
  const auto fail = [&](std::string what) {
    g.record(bad_call(fmt::format("loop '{}': {}", options.name, what)).at(where));
    return invalid(given.size());
  };
  if (g.first_error()) return invalid(given.size());
  for (std::size_t k = 0; k < given.size(); ++k)
    if (!g.has(given[k])) return fail(fmt::format("variable {} is not a value of this graph", k));
  if (g.computes()) {
    auto out = run_loop(g, {given.begin(), given.end()}, condition, body, options, where);
    out.resize(given.size());
    return out;
  }
  auto& r = g.regions();
  const auto names = g.name_scope(options.name, where);
  std::vector<value> initial;
  for (const auto& v : given) initial.push_back(r.import(v, where));
  if (g.first_error()) return invalid(given.size());
  const auto id = r.begin_loop(options.iterations_max, where);
  if (!id) return invalid(given.size());
  const auto none = invalid(given.size());
  std::vector<value> variables;
  for (const auto& v : initial) variables.push_back(r.add_variable(*id, v, where));
  {
    const regions::inside in(r, r.loop_at(*id).condition);
    auto asked = bring_home(g, {condition(variables)},
                            fmt::format("the condition of loop '{}'", options.name), where);
    if (!asked) return none;
    if (!is_condition_spec(asked->front()))
      return fail(
          fmt::format("its condition is {}, and must be bool[]", to_string(asked->front().spec())));
    asked->front() = r.pace(asked->front(), where);
    if (!asked->front().is_valid()) return none;
    const auto checked =
        g.add_in(r.current(), std::string(loop_condition_op), *asked,
                 attributes{{"loop", std::int64_t{*id}},
                            {"iterations_max", static_cast<std::int64_t>(options.iterations_max)}},
                 loop_condition_op, where);
    if (!checked.is_valid()) return none;
    r.set_condition(*id, checked);
  }
  std::vector<value> next;
  {
    std::vector<value> operands;
    for (std::uint32_t k = 0; k < given.size(); ++k) operands.push_back(r.in_body(*id, k, where));
    const regions::inside in(r, r.loop_at(*id).body);
    auto returned =
        bring_home(g, body(operands), fmt::format("the body of loop '{}'", options.name), where);
    if (!returned || !fit_together(g, initial, *returned, options, where)) return none;
    next = std::move(*returned);
  }
  return r.end_loop(*id, next, "end", where);
}

std::vector<value> while_loop(std::initializer_list<value> initial,
                              const loop_condition_function& condition,
                              const loop_body_function& body, const while_options& options,
                              source_location where) {
  return while_loop(std::span(initial.begin(), initial.size()), condition, body, options, where);
}

}  // namespace troupe
