#include "troupe/runtime/graph/graph.hpp"

#include "troupe/runtime/graph/guarded.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace troupe {
namespace {

bool is_name_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '/';
}

bool is_name(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), is_name_character);
}

bool has_invalid(std::span<const value> values) {
  return std::any_of(values.begin(), values.end(), [](const value& v) { return !v.is_valid(); });
}

std::string joined(std::string_view scope, std::string_view name) {
  return scope.empty() ? std::string(name) : fmt::format("{}/{}", scope, name);
}

error bad_name(std::string_view name) {
  return error(
      error_code::usage,
      fmt::format("name '{}': use letters, digits, '_', '-', '.' and '/', and at least one of them",
                  name));
}

}  // namespace

const tensor_spec& value::spec() const {
  static const tensor_spec nothing;
  if (!is_valid()) return nothing;
  const auto nodes = owner->nodes();
  if (node < nodes.size() && output < nodes[node].outputs.size())
    return nodes[node].outputs[output];
  owner->record(error(
      error_code::usage,
      "a value is used that its graph does not contain: its tape has ended, or the graph never "
      "made it"));
  return nothing;
}

graph::graph(const op_table& ops) : ops_(ops) {}

void graph::record(error e) {
  if (!error_) error_ = std::move(e);
}

std::string graph::scoped(std::string_view type, std::string_view base) const {
  return joined(scopes_.is_shared && type == "variable" ? scopes_.variable_name : scopes_.name,
                base);
}

std::string graph::name_for(std::string_view base) const {
  auto full = scoped("", base);
  const auto taken = names_.find(full);
  if (taken == names_.end()) return full;
  for (auto suffix = taken->second;; ++suffix)
    if (auto candidate = fmt::format("{}_{}", full, suffix); !names_.contains(candidate))
      return candidate;
}

std::string graph::unique_name(std::string full) {
  const auto [at, is_new] = names_.try_emplace(full, 1);
  if (is_new) return full;
  // References into an unordered_map stay valid while it grows.
  auto& suffix = at->second;
  for (;;) {
    auto candidate = fmt::format("{}_{}", full, suffix++);
    if (names_.try_emplace(candidate, 1).second) return candidate;
  }
}

value graph::shared_variable(const graph_node& wanted) {
  const auto found = std::ranges::find(nodes_, wanted.name, &graph_node::name);
  expects(found != nodes_.end(), "a taken name is an op's");
  const auto refuse = [&](std::string why) {
    record(error(error_code::usage,
                 fmt::format("variable '{}' is to be shared, but {}", wanted.name, why))
               .at(wanted.source));
    return value{};
  };
  const auto there = fmt::format("{}:{}", found->source.file_name(), found->source.line());
  if (found->type != "variable")
    return refuse(fmt::format("the {} of {} has that name: choose another", found->type, there));
  if (found->outputs != wanted.outputs)
    return refuse(fmt::format("it is {} here and {} at {}: choose another name, or the same sizes",
                              to_string(wanted.outputs[0]), to_string(found->outputs[0]), there));
  if (found->initializer != wanted.initializer)
    return refuse(fmt::format(
        "its initial values differ from those at {}: choose another name, or the same initial "
        "values",
        there));
  return {this, found->index, 0};
}

result<void> graph::check_operands(std::string_view type, std::span<const value> inputs,
                                   const op_row& row) const {
  if (row.inputs_max == 0 && inputs.size() != row.inputs)
    return error(error_code::usage,
                 fmt::format("{} takes {} operands, not {}", type, row.inputs, inputs.size()));
  if (row.inputs_max != 0 && (inputs.size() < row.inputs || inputs.size() > row.inputs_max))
    return error(error_code::usage, fmt::format("{} takes {} to {} operands, not {}", type,
                                                row.inputs, row.inputs_max, inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& v = inputs[i];
    if (v.owner == nullptr)
      return error(error_code::usage,
                   fmt::format("operand {} of {} is not a value of any graph", i, type));
    if (v.owner != this)
      return error(error_code::usage,
                   fmt::format("operand {} of {} belongs to another graph", i, type));
    if (v.node >= nodes_.size() || v.output >= nodes_[v.node].outputs.size())
      return error(error_code::usage,
                   fmt::format("operand {} of {} names an output that no op has", i, type));
  }
  return {};
}

value graph::add(std::string type, std::span<const value> inputs, attributes attrs,
                 std::string_view name, const source_location& where,
                 std::optional<initializer_spec> initializer) {
  const auto refuse = [&](error e) {
    record(std::move(e.at(where)));
    return value{};
  };
  const auto* row = ops_.find(type);
  if (row == nullptr)
    return refuse(error(error_code::usage, fmt::format("there is no op '{}'", type)));
  const bool lacks_operand =
      std::any_of(inputs.begin(), inputs.end(), [](const value& v) { return !v.is_valid(); });
  if (lacks_operand && error_) return {};  // a consequence of the error that is known already
  if (!is_name(name)) return refuse(bad_name(name));
  if (auto ok = check_operands(type, inputs, *row); !ok) {
    // Whoever compiles one of the graphs is to hear of it.
    for (const auto& v : inputs)
      if (v.is_valid() && v.owner != this) v.owner->record(error(ok.error()).at(where));
    return refuse(std::move(ok.error()));
  }

  // Sources belong to the whole graph.
  const auto forced = std::exchange(region_to_be_, std::nullopt);
  auto region = forced.value_or(0);
  std::vector<value> here;
  if (!forced && !inputs.empty() && !regions_.is_trivial()) {
    for (const auto& v : inputs) here.push_back(regions_.import(v, where));
    if (has_invalid(here)) return {};
    region = innermost(here);
    // What draws numbers, or may fail, does so in each iteration and in none but these.
    const bool may_fail =
        row->library != nullptr ||
        (!row->is_elementwise && std::any_of(here.begin(), here.end(), [](const value& v) {
          return whole.has(v.spec().type);
        }));
    if (region != regions_.current() && (row->depends_on_step || may_fail)) {
      here[0] = regions_.pace(here[0], where);
      if (has_invalid(here)) return {};
      region = regions_.current();
    }
    inputs = here;
  }

  std::vector<tensor_spec> specs;
  specs.reserve(inputs.size());
  for (const auto& v : inputs) specs.push_back(v.spec());
  auto outputs = guarded([&] { return row->shapes(attrs, specs, now()); });
  if (outputs && outputs->empty())
    outputs = error(error_code::usage, "its shape rule returned no outputs");
  if (outputs && !specs.empty() && !row->types.is_empty() && !row->types.has(specs[0].type))
    outputs = error(error_code::usage, fmt::format("operand 0 is {}, but must be {}",
                                                   to_string(specs[0]), to_string(row->types)));
  if (!outputs) {
    const auto full = scoped(type, name);
    return refuse(std::move(
        outputs.error().while_doing(full == type ? type : fmt::format("{} '{}'", type, full))));
  }
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  const bool is_shared = scopes_.is_shared && type == "variable";
  auto full = scoped(type, name);
  graph_node made{.index = index,
                  .type = std::move(type),
                  .name = std::move(full),
                  .attrs = std::move(attrs),
                  .inputs = {inputs.begin(), inputs.end()},
                  .outputs = std::move(*outputs),
                  .device = is_shared ? scopes_.variable_device : scopes_.device,
                  .source = where,
                  .region = region,
                  .initializer = std::move(initializer)};
  if (is_shared && names_.contains(made.name)) return shared_variable(made);
  made.name = unique_name(std::move(made.name));
  nodes_.push_back(std::move(made));
  if (auto ok = guarded([&] { return on_added(nodes_.back()); }); !ok) {
    // What is wrong with numbers begins with the op's type already.
    const auto& n = nodes_.back();
    auto e = std::move(ok.error());
    if (!e.message().starts_with(n.type + ":"))
      e.while_doing(fmt::format("{} '{}'", n.type, n.name));
    cut_back(index);
    return refuse(std::move(e));
  }
  return value{this, index, 0};
}

std::uint32_t graph::innermost(std::span<const value> values) const {
  std::uint32_t region = 0;
  for (const auto& v : values)
    if (const auto r = regions_.of(v); regions_.at(r).level > regions_.at(region).level) region = r;
  return region;
}

std::vector<bool> graph::needed_by(std::span<const value> roots) const {
  // Operands have smaller numbers, so one walk from the last node to the first finds everything,
  // without recursion; loops may want another one.
  std::vector<bool> is_needed(nodes_.size());
  for (const auto& r : roots) is_needed[r.node] = true;
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (auto i = nodes_.size(); i-- > 0;) {
      if (!is_needed[i]) continue;
      const auto& n = nodes_[i];
      for (const auto& in : n.inputs) is_needed[in.node] = true;
      if (n.type != loop_enter_op) continue;
      const auto end = regions_.loop_at(static_cast<std::uint32_t>(n.attrs.integer("loop"))).end;
      if (end != graph_regions::none && !is_needed[end]) is_needed[end] = true, is_done = false;
    }
  }
  return is_needed;
}

value graph::add_in(std::uint32_t region, std::string type, std::span<const value> inputs,
                    attributes attrs, std::string_view name, const source_location& where,
                    std::optional<initializer_spec> initializer) {
  region_to_be_ = region;
  const auto v =
      add(std::move(type), inputs, std::move(attrs), name, where, std::move(initializer));
  region_to_be_.reset();
  return v;
}

void graph::cut_back(std::size_t nodes) {
  regions_.cut_back(nodes);
  for (auto i = nodes; i < nodes_.size(); ++i) {
    const auto& name = nodes_[i].name;
    names_.erase(name);
    // "relu_2" is free again, so the next one is to have it.
    const auto end = name.rfind('_');
    std::uint32_t suffix = 0;
    if (end == std::string::npos ||
        std::from_chars(name.data() + end + 1, name.data() + name.size(), suffix).ptr !=
            name.data() + name.size())
      continue;
    if (const auto base = names_.find(name.substr(0, end)); base != names_.end())
      base->second = std::max<std::uint32_t>(1, std::min(base->second, suffix));
  }
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(nodes), nodes_.end());
  std::erase_if(averages_, [&](const average& a) {
    return std::max({a.variable.node, a.sample.node, a.beside.node}) >= nodes;
  });
  std::erase_if(updates_, [&](const graph_update& u) {
    return std::max({u.variable.node, u.operand.node, u.rate.node, u.when.node}) >= nodes;
  });
}

graph::scope::~scope() { graph_.scopes_ = std::move(before_); }

graph::scope graph::name_scope(std::string_view name, const source_location& where) {
  auto before = scopes_;
  if (!is_name(name)) {
    record(bad_name(name).at(where));
  } else {
    scopes_.name = joined(before.name, name);
    scopes_.variable_name = joined(before.variable_name, name);
  }
  return scope(*this, std::move(before));
}

graph::scope graph::device_scope(std::string_view device, const source_location& where) {
  auto before = scopes_;
  const auto wish = parse_device(device);
  if (!wish) record(error(wish.error()).at(where));
  // What is in force was parsed when it was set; nothing is in force at first.
  for (auto* in_force : {&scopes_.device, &scopes_.variable_device})
    if (wish)
      *in_force = to_string(
          (in_force->empty() ? device_name{} : *parse_device(*in_force)).refined_by(*wish));
  return scope(*this, std::move(before));
}

graph::scope graph::share_variables() {
  auto before = scopes_;
  scopes_.is_shared = true;
  scopes_.variable_name.clear();
  scopes_.variable_device.clear();
  return scope(*this, std::move(before));
}

std::vector<value> graph::variables() {
  std::vector<value> all;
  for (const auto& n : nodes_)
    if (n.type == "variable") all.push_back(value{this, n.index, 0});
  return all;
}

void graph::add_average(const average& a, double rate) {
  nodes_[a.variable.node].average_rate = rate;
  averages_.push_back(a);
}

void graph::add_update(graph_update u) {
  u.name = scoped("", u.name);
  updates_.push_back(std::move(u));
}

}  // namespace troupe
