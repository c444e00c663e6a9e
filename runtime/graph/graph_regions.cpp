#include "troupe/runtime/graph/graph_regions.hpp"

#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace troupe {

value graph_regions::to_value(const node_output& n) const {
  return n.node == none ? value{} : value{&g_, n.node, n.output};
}
graph_regions::node_output graph_regions::key(const value& v) { return {v.node, v.output}; }

std::uint32_t graph_regions::of(const value& v) const {
  const auto& n = g_.node(v.node);
  if (n.outputs.size() == 2) {
    if (n.type == branch_op)
      return conditionals_[static_cast<std::size_t>(n.attrs.integer("conditional"))]
          .regions[v.output];
    if (n.type == loop_next_op) {
      const auto& l = loops_[static_cast<std::size_t>(n.attrs.integer("loop"))];
      return v.output == 0 ? l.body : regions_[l.condition].parent;
    }
  }
  return n.region;
}

std::uint32_t graph_regions::loop_around(std::uint32_t r) const {
  for (; r != 0; r = regions_[r].parent)
    if (regions_[r].type == kind::condition || regions_[r].type == kind::body)
      return regions_[r].of;
  return none;
}

std::uint16_t graph_regions::loop_level(std::uint32_t r) const {
  std::uint16_t level = 0;
  for (; r != 0; r = regions_[r].parent)
    if (regions_[r].type == kind::condition)
      level = static_cast<std::uint16_t>(regions_[r].level + 1);
  return level;
}

bool graph_regions::is_around(std::uint32_t outer, std::uint32_t inner) const {
  while (inner != outer && inner != 0) inner = regions_[inner].parent;
  return inner == outer;
}

std::uint32_t graph_regions::mirror_of(std::uint32_t region) const {
  for (auto r = current_; r != 0; r = regions_[r].parent)
    if (regions_[r].reverses == region) return r;
  return none;
}

std::string_view graph_regions::place_of(const value& v) const {
  switch (regions_[of(v)].type) {
    case kind::whole: return "";
    case kind::branch: return "branch of cond()";
    case kind::body: return "loop's body";
    case kind::condition: return "loop's condition";
  }
  return "";
}

value graph_regions::refuse(const value& v, const source_location& where) {
  g_.record(error(error_code::usage,
                  fmt::format("'{}' is made in a {} and used outside of it: return it from there",
                              g_.node(v.node).name, place_of(v)))
                .at(where));
  return {};
}

value graph_regions::add(std::uint32_t region, std::string_view type, std::span<const value> inputs,
                         std::vector<std::pair<std::string, std::int64_t>> attributes,
                         std::string_view name, const source_location& where) {
  troupe::attributes attrs;
  for (auto& [key, number] : attributes) attrs.set(std::move(key), number);
  const auto v = g_.add_in(region, std::string(type), inputs, std::move(attrs), name, where);
  // What hands a value on stands where that is made, so that a dead one is not sent first.
  if (v.is_valid() && !inputs.empty()) {
    const auto& from = g_.node(inputs[type == merge_op ? 1 : 0].node);
    g_.node(v.node).device = from.type == "variable" ? std::string() : from.device;
  }
  return v;
}

bool graph_regions::reaches(std::uint32_t outer, std::uint32_t inner) const {
  for (; inner != outer; inner = regions_[inner].parent) {
    if (inner == 0 || regions_[inner].type == kind::branch) return false;
    if (regions_[inner].type == kind::body && regions_[inner].parent == outer) return false;
  }
  return true;
}

std::uint16_t graph_regions::sticky_level(std::uint32_t outer, std::uint32_t inner) const {
  std::uint16_t level = 0;
  for (; inner != outer; inner = regions_[inner].parent) {
    // Of the outermost loop in between, its body if that is where it leads to.
    if (regions_[inner].type == kind::body ||
        (regions_[inner].type == kind::condition && regions_[inner].level + 1 != level))
      level = regions_[inner].level;
  }
  return level;
}

value graph_regions::import(const value& v, const source_location& where) {
  const auto r = of(v);
  if (r == current_) return v;
  if (const auto known = regions_[current_].imported.find(key(v));
      known != regions_[current_].imported.end())
    return to_value(known->second);
  if (is_around(r, current_)) return bring_down(v, where);
  const auto mirror = mirror_of(r);
  if (mirror == none) return refuse(v, where);
  if (mirror != current_) {
    value there;
    {
      const inside in(*this, mirror);
      there = import(v, where);
    }
    return there.is_valid() ? import(there, where) : there;
  }
  const auto& n = g_.node(v.node);
  if (n.type == branch_op) {
    // What comes into a branch from around it need not be kept twice.
    const auto outer = n.inputs[0];
    value there;
    {
      const inside in(*this, regions_[mirror].parent);
      there = import(outer, where);
    }
    return there.is_valid() ? import(there, where) : there;
  }
  const auto kept = stack(v, false, where);
  if (kept.is_valid()) regions_[current_].imported[key(v)] = key(kept);
  return kept;
}

// From a region around: through the innermost branch in between, and into that through the next
// one.
value graph_regions::bring_down(const value& v, const source_location& where) {
  const auto r = of(v);
  auto q = current_;
  for (; q != r; q = regions_[q].parent)
    if (regions_[q].type == kind::branch ||
        (regions_[q].type == kind::body && regions_[q].parent == r))
      break;
  if (q == r) return v;
  if (const auto known = regions_[q].imported.find(key(v)); known != regions_[q].imported.end())
    return to_value(known->second);
  const auto id = regions_[q].of;
  value here;
  {
    const inside in(*this, regions_[q].parent);
    const auto outer = bring_down(v, where);
    if (!outer.is_valid()) return outer;
    if (regions_[q].type == kind::branch) {
      here = branch(id, outer, where);
      if (here.is_valid()) here.output = conditionals_[id].regions[1] == q ? 1 : 0;
    } else {
      const auto& variables = loops_[id].variables;
      if (std::none_of(variables.begin(), variables.end(),
                       [&](const auto& x) { return x.enter == v.node; })) {
        g_.record(
            error(
                error_code::usage,
                fmt::format(
                    "'{}' is made in a loop's condition and used in its body: compute it there, too",
                    g_.node(v.node).name))
                .at(where));
        return {};
      }
      here = next(id, v, where);
    }
  }
  if (here.is_valid()) regions_[q].imported[key(v)] = key(here);
  return here;
}

value graph_regions::pace(const value& v, const source_location& where) {
  if (of(v) == current_) return v;
  const auto t = import(token(where), where);
  if (!t.is_valid()) return t;
  const value operands[] = {v, t};
  return add(current_, "after", operands, {}, "paced", where);
}

// --- conditionals

std::uint32_t graph_regions::begin_conditional(const value& condition,
                                               const std::uint32_t* reverses) {
  const auto id = static_cast<std::uint32_t>(conditionals_.size());
  const auto first = static_cast<std::uint32_t>(g_.nodes().size());
  conditional c;
  c.condition = key(condition);
  c.first_node = first;
  for (int k = 0; k < 2; ++k) {
    c.regions[k] = static_cast<std::uint32_t>(regions_.size());
    regions_.push_back({kind::branch, current_,
                        static_cast<std::uint16_t>(regions_[current_].level + 1), id,
                        reverses != nullptr ? reverses[k] : none, first});
  }
  conditionals_.push_back(std::move(c));
  return id;
}

value graph_regions::branch(std::uint32_t id, const value& x, const source_location& where) {
  if (const auto known = conditionals_[id].branches.find(key(x));
      known != conditionals_[id].branches.end())
    return value{&g_, known->second, 0};
  const value operands[] = {x, to_value(conditionals_[id].condition)};
  const auto b = add(current_, branch_op, operands,
                     {{"conditional", id}, {"level", regions_[conditionals_[id].regions[0]].level}},
                     branch_op, where);
  if (b.is_valid()) conditionals_[id].branches[key(x)] = b.node;
  return b;
}

value graph_regions::merge(std::uint32_t id, const value& otherwise, const value& then,
                           const source_location& where) {
  const value operands[] = {to_value(conditionals_[id].condition), otherwise, then};
  return add(current_, merge_op, operands, {{"conditional", id}}, merge_op, where);
}

// --- loops

std::optional<std::uint32_t> graph_regions::begin_loop(std::uint64_t iterations_max,
                                                       const source_location& where,
                                                       std::uint32_t reverses) {
  std::uint32_t depth = 1;
  for (auto r = current_; r != 0; r = regions_[r].parent)
    depth += regions_[r].type == kind::body ? 1 : 0;
  if (depth > loop_depth_max) {
    g_.record(error(error_code::usage,
                    fmt::format("a loop is nested in {} others: at most {} loops may be nested",
                                depth - 1, loop_depth_max))
                  .at(where));
    return std::nullopt;
  }
  const auto id = static_cast<std::uint32_t>(loops_.size());
  const auto first = static_cast<std::uint32_t>(g_.nodes().size());
  loop l;
  l.iterations_max = iterations_max;
  l.first_node = first;
  l.source = where;
  const auto level = static_cast<std::uint16_t>(regions_[current_].level + 1);
  l.condition = static_cast<std::uint32_t>(regions_.size());
  regions_.push_back({kind::condition, current_, level, id, none, first});
  l.body = static_cast<std::uint32_t>(regions_.size());
  regions_.push_back(
      {kind::body, l.condition, static_cast<std::uint16_t>(level + 1), id, reverses, first});
  loops_.push_back(std::move(l));
  return id;
}

value graph_regions::add_variable(std::uint32_t id, const value& initial,
                                  const source_location& where) {
  const auto k = static_cast<std::int64_t>(loops_[id].variables.size());
  const auto first = pace(initial, where);
  if (!first.is_valid()) return first;
  const auto v =
      add(loops_[id].condition, loop_enter_op, std::span(&first, 1),
          {{"loop", id}, {"variable", k}, {"level", regions_[loops_[id].condition].level}},
          loop_enter_op, where);
  if (v.is_valid()) loops_[id].variables.push_back({v.node});
  return v;
}

void graph_regions::set_condition(std::uint32_t id, const value& goes_on) {
  loops_[id].goes_on = key(goes_on);
}

value graph_regions::next(std::uint32_t id, const value& v, const source_location& where) {
  auto& in_body = regions_[loops_[id].body].imported;
  if (const auto known = in_body.find(key(v)); known != in_body.end())
    return to_value(known->second);
  const value operands[] = {v, to_value(loops_[id].goes_on)};
  const auto n =
      add(loops_[id].condition, loop_next_op, operands,
          {{"loop", id}, {"level", regions_[loops_[id].body].level}}, loop_next_op, where);
  if (!n.is_valid()) return n;
  in_body[key(v)] = key(n);
  for (auto& x : loops_[id].variables)
    if (x.enter == v.node) x.next = n.node;
  return n;
}

value graph_regions::in_body(std::uint32_t id, std::uint32_t k, const source_location& where) {
  return next(id, value{&g_, loops_[id].variables[k].enter, 0}, where);
}

value graph_regions::goes_on_in_body(std::uint32_t id, const source_location& where) {
  return next(id, to_value(loops_[id].goes_on), where);
}

value graph_regions::token(const source_location& where) {
  const auto id = loop_around(current_);
  if (is_around(loops_[id].body, current_)) return goes_on_in_body(id, where);
  return value{&g_, loops_[id].variables.front().enter, 0};
}

std::vector<value> graph_regions::end_loop(std::uint32_t id, std::span<const value> given,
                                           std::string_view name, const source_location& where) {
  std::vector<value> operands;
  for (std::uint32_t k = 0; k < loops_[id].variables.size(); ++k) {
    const auto n = in_body(id, k, where);
    if (!n.is_valid()) return std::vector<value>(given.size());
    operands.push_back(value{&g_, n.node, 1});
  }
  for (std::uint32_t k = 0; k < given.size(); ++k) {
    const auto v = [&] {
      const inside in(*this, loops_[id].body);
      return pace(import(given[k], where), where);
    }();
    const auto back = v.is_valid() ? add(loops_[id].body, loop_back_op, std::span(&v, 1),
                                         {{"loop", id}, {"variable", k}}, loop_back_op, where)
                                   : v;
    if (!back.is_valid()) return std::vector<value>(given.size());
    loops_[id].variables[k].back = back.node;
    operands.push_back(back);
  }
  const auto end = add(current_, loop_end_op, operands, {{"loop", id}}, name, where);
  if (!end.is_valid()) return std::vector<value>(given.size());
  loops_[id].end = end.node;
  std::vector<value> out;
  for (std::uint32_t k = 0; k < given.size(); ++k) out.push_back(value{&g_, end.node, k});
  return out;
}

// Both sides have the same shape, up to the region that they have in common.
std::optional<graph_regions::reversed> graph_regions::reverse(std::uint32_t there,
                                                              std::uint32_t here,
                                                              bool is_condition) const {
  reversed out;
  std::uint64_t tokens = 1;
  const auto count = [&](std::uint64_t more) {
    if (__builtin_mul_overflow(tokens, more, &tokens))
      tokens = std::numeric_limits<std::uint64_t>::max();
  };
  if (is_condition) {
    if (regions_[there].type != kind::body || regions_[here].type != kind::condition)
      return std::nullopt;
    out.levels.push_back(regions_[there].level);
    const auto& l = loops_[regions_[there].of];
    count(l.iterations_max);
    there = regions_[l.condition].parent;
    here = regions_[here].parent;
  }
  for (; there != here; there = regions_[there].parent, here = regions_[here].parent) {
    if (there == 0 || here == 0 || regions_[there].type != regions_[here].type ||
        regions_[there].level != regions_[here].level)
      return std::nullopt;
    if (regions_[there].type != kind::body) continue;
    out.levels.push_back(regions_[there].level);
    const auto most = loops_[regions_[there].of].iterations_max;
    count(most == std::numeric_limits<std::uint64_t>::max() ? most : most + 1);
  }
  if (out.levels.empty()) return std::nullopt;
  std::reverse(out.levels.begin(), out.levels.end());
  out.tokens = static_cast<std::int64_t>(
      std::min<std::uint64_t>(tokens, std::numeric_limits<std::int64_t>::max()));
  return out;
}

value graph_regions::stack(const value& v, bool is_condition, const source_location& where) {
  const auto r = reverse(of(v), current_, is_condition);
  expects(r.has_value(), "a region goes back through one that has its shape");
  attributes attrs{{"condition", std::int64_t{is_condition}}, {"tokens", r->tokens}};
  attrs.set("levels", r->levels);
  const auto kept = g_.add_in(current_, std::string(loop_stack_op), std::span(&v, 1),
                              std::move(attrs), loop_stack_op, where);
  if (kept.is_valid()) g_.node(kept.node).device = g_.node(v.node).device;
  return kept;
}

// --- a graph that is cut back

void graph_regions::cut_back(std::size_t nodes) {
  if (is_trivial()) return;
  const auto is_gone = [&](std::uint32_t first) { return first >= nodes; };
  while (regions_.size() > 1 && is_gone(regions_.back().first_node)) regions_.pop_back();
  while (!conditionals_.empty() && is_gone(conditionals_.back().first_node))
    conditionals_.pop_back();
  while (!loops_.empty() && is_gone(loops_.back().first_node)) loops_.pop_back();
  for (auto& r : regions_)
    std::erase_if(r.imported,
                  [&](const auto& i) { return i.first.node >= nodes || i.second.node >= nodes; });
  for (auto& c : conditionals_)
    std::erase_if(c.branches,
                  [&](const auto& b) { return b.first.node >= nodes || b.second >= nodes; });
  for (auto& l : loops_) {
    std::erase_if(l.variables, [&](const auto& v) { return v.enter >= nodes; });
    for (auto& v : l.variables) {
      if (v.next >= nodes) v.next = none;
      if (v.back >= nodes) v.back = none;
    }
    if (l.end != none && l.end >= nodes) l.end = none;
  }
  if (current_ >= regions_.size()) current_ = 0;
}

}  // namespace troupe
