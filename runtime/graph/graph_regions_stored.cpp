// The regions of a graph that comes from a file, which may be anybody's.

#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/graph/graph_regions.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {
namespace {

constexpr std::uint32_t stored_levels_max = 1000;

error misplaced(std::string text) { return {error_code::usage, std::move(text)}; }

}  // namespace

std::vector<graph_regions::stored_region> graph_regions::stored() const {
  std::vector<stored_region> all;
  for (std::size_t r = 1; r < regions_.size(); ++r)
    all.push_back({regions_[r].type, regions_[r].parent, regions_[r].of});
  return all;
}

result<void> graph_regions::restore(std::span<const stored_region> all) {
  expects(is_trivial(), "regions are restored in a new graph");
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const auto at = static_cast<std::uint32_t>(i + 1);
    const auto refuse = [&](std::string_view what) {
      return misplaced(fmt::format("region {}: {}", at, what));
    };
    const auto& r = all[i];
    if (i + 1 == all.size() || (r.type != kind::branch && r.type != kind::condition))
      return refuse("a cond() or a loop must have two regions");
    const auto& second = all[i + 1];
    if (r.parent >= at) return refuse("its parent region must come before it");
    if (regions_[r.parent].level + 2U > stored_levels_max)
      return refuse(fmt::format("more than {} regions are nested", stored_levels_max));
    const auto level = static_cast<std::uint16_t>(regions_[r.parent].level + 1);
    if (second.of != r.of) return refuse("its second region belongs to another cond() or loop");
    if (r.type == kind::branch) {
      if (second.type != kind::branch || second.parent != r.parent || r.of != conditionals_.size())
        return refuse("it has no second branch");
      conditionals_.push_back({{}, {at, at + 1}});
      for (int k = 0; k < 2; ++k) regions_.push_back({kind::branch, r.parent, level, r.of});
      continue;
    }
    if (second.type != kind::body || second.parent != at || r.of != loops_.size())
      return refuse("it is a loop without a body");
    std::uint32_t depth = 1;
    for (auto p = r.parent; p != 0; p = regions_[p].parent)
      depth += regions_[p].type == kind::body ? 1 : 0;
    if (depth > loop_depth_max)
      return refuse(fmt::format("more than {} loops are nested", loop_depth_max));
    loop l;
    l.condition = at, l.body = at + 1;
    loops_.push_back(std::move(l));
    regions_.push_back({kind::condition, r.parent, level, r.of});
    regions_.push_back({kind::body, at, static_cast<std::uint16_t>(level + 1), r.of});
  }
  return {};
}

result<void> graph_regions::check_stored(std::uint32_t region, std::string_view type,
                                         const attributes& attrs,
                                         std::span<const value> inputs) const {
  if (region >= regions_.size())
    return misplaced(
        fmt::format("it is in region {} of {}, which does not exist", region, regions_.size()));
  if (is_trivial() && !is_control(type) && type != loop_back_op && type != loop_end_op) return {};
  const auto refuse = [](std::string_view what) {
    return misplaced(fmt::format("the ops of a cond() or a loop do not fit together: {}", what));
  };
  const auto is_in = [&](std::size_t i, std::uint32_t r) {
    return i < inputs.size() && g_.has(inputs[i]) && of(inputs[i]) == r;
  };
  const auto reaches_in = [&](std::size_t i) {
    return i < inputs.size() && g_.has(inputs[i]) && reaches(of(inputs[i]), region);
  };
  const auto number = [&](std::string_view name) {
    return static_cast<std::uint64_t>(attrs.integer(name, -1));
  };
  if (type == branch_op || type == merge_op) {
    if (number("conditional") >= conditionals_.size()) return refuse("there is no such cond()");
    const auto& c = conditionals_[number("conditional")];
    const auto at = std::size_t{type == branch_op};
    if (regions_[c.regions[0]].parent != region || !is_in(at, region))
      return refuse("it is in another region than its cond()");
    if (c.condition.node != none && key(inputs[at]) != c.condition)
      return refuse("it has another condition");
    if (type == branch_op)
      return reaches_in(0) && attrs.integer("level") == regions_[c.regions[0]].level
                 ? result<void>{}
                 : refuse("it takes a value that does not reach its branches");
    return is_in(1, c.regions[0]) && is_in(2, c.regions[1])
               ? result<void>{}
               : refuse("it takes values that its branches do not make");
  }
  if (type == loop_stack_op) {
    if (region == 0 || inputs.size() != 1 || !g_.has(inputs[0]))
      return refuse("an op of a gradient does not read a value of a loop");
    const bool is_condition = attrs.integer("condition") == 1;
    const auto r = reverse(of(inputs[0]), region, is_condition);
    if (!r || attrs.integers("levels") != r->levels || attrs.integer("tokens", -1) != r->tokens)
      return refuse("an op of a gradient does not fit the nesting of its loop");
    if (is_condition && loops_[regions_[region].of].goes_on.node != none)
      return refuse("a loop has two conditions");
    return {};
  }
  if (!is_control(type) && type != loop_back_op && type != loop_end_op) {
    if (inputs.empty() && region != 0)
      return refuse("an op without operands cannot be in a cond() or a loop");
    bool is_of_it = inputs.empty();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!g_.has(inputs[i])) return {};  // the graph says so itself
      if (!reaches_in(i))
        return refuse(fmt::format("operand {} is a value of a region that is not around it", i));
      is_of_it = is_of_it || is_in(i, region);
    }
    return is_of_it ? result<void>{} : refuse("it takes no value of its own region");
  }
  if (number("loop") >= loops_.size()) return refuse("there is no such loop");
  const auto& l = loops_[number("loop")];
  // Gradients ask for the condition of a loop that has ended.
  if (l.end != none && type != loop_next_op) return refuse("its loop has ended");
  if (type == loop_enter_op) {
    const bool fits = region == l.condition && is_in(0, regions_[region].parent) &&
                      number("variable") == l.variables.size() &&
                      attrs.integer("level") == regions_[region].level;
    return fits ? result<void>{} : refuse("an op does not fit as the start of a loop variable");
  }
  if (type == loop_condition_op) {
    const bool fits = region == l.condition && is_in(0, region) && l.goes_on.node == none &&
                      attrs.integer("iterations_max", -1) >= 0;
    return fits ? result<void>{} : refuse("it has another condition");
  }
  if (type == loop_next_op) {
    const bool fits = region == l.condition && is_in(0, region) && inputs.size() == 2 &&
                      l.goes_on.node != none && key(inputs[1]) == l.goes_on &&
                      attrs.integer("level") == regions_[l.body].level;
    return fits ? result<void>{}
                : refuse("an op does not fit as the start of an iteration of its body");
  }
  if (type == loop_back_op) {
    const auto k = number("variable");
    const bool fits = region == l.body && is_in(0, region) && k < l.variables.size() &&
                      l.variables[k].back == none && l.variables[k].next != none;
    return fits && inputs[0].spec() == g_.node(l.variables[k].enter).outputs[0]
               ? result<void>{}
               : refuse("an op does not fit as the end of an iteration of its body");
  }
  const auto n = l.variables.size();
  bool fits = region == regions_[l.condition].parent && inputs.size() == 2 * n;
  for (std::size_t k = 0; fits && k < n; ++k)
    fits = key(inputs[k]) == node_output{l.variables[k].next, 1} &&
           key(inputs[n + k]) == node_output{l.variables[k].back, 0};
  return fits ? result<void>{} : refuse("the op at the end of the loop does not fit its variables");
}

void graph_regions::adopt(const graph_node& n) {
  if (is_trivial()) return;
  const auto index = static_cast<std::size_t>(std::max<std::int64_t>(
      0, n.attrs.integer(n.type == branch_op || n.type == merge_op ? "conditional" : "loop")));
  if (n.type == branch_op || n.type == merge_op) {
    auto& c = conditionals_[index];
    c.condition = key(n.inputs[n.type == branch_op ? 1 : 0]);
    if (n.type == merge_op) return;
    c.branches[key(n.inputs[0])] = n.index;
    for (std::uint32_t k = 0; k < 2; ++k)
      regions_[c.regions[k]].imported[key(n.inputs[0])] = {n.index, k};
  } else if (n.type == loop_enter_op) {
    if (loops_[index].variables.empty()) loops_[index].source = n.source;
    loops_[index].variables.push_back({n.index});
  } else if (n.type == loop_condition_op) {
    loops_[index].goes_on = {n.index, 0};
    loops_[index].iterations_max = static_cast<std::uint64_t>(n.attrs.integer("iterations_max"));
  } else if (n.type == loop_stack_op) {
    if (n.attrs.integer("condition") != 1) return;
    auto& l = loops_[regions_[n.region].of];
    l.goes_on = {n.index, 0};
    l.iterations_max = loops_[regions_[of(n.inputs[0])].of].iterations_max;
  } else if (n.type == loop_next_op) {
    for (auto& v : loops_[index].variables)
      if (v.enter == n.inputs[0].node) v.next = n.index;
    regions_[loops_[index].body].imported[key(n.inputs[0])] = {n.index, 0};
  } else if (n.type == loop_back_op) {
    loops_[index].variables[static_cast<std::size_t>(n.attrs.integer("variable"))].back = n.index;
  } else if (n.type == loop_end_op) {
    loops_[index].end = n.index;
  }
}

result<void> graph_regions::check_stored_end() const {
  for (std::size_t i = 0; i < loops_.size(); ++i)
    if (loops_[i].end == none) return misplaced(fmt::format("loop {} does not end", i));
  return {};
}

}  // namespace troupe
