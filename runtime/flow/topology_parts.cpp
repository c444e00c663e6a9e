#include "troupe/runtime/flow/topology_parts.hpp"

#include "troupe/runtime/flow/recovered_replicas.hpp"
#include "troupe/runtime/flow/replica_ledger.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troupe {
namespace {

// An edge between processes holds at least so many items: what is under way counts.
constexpr std::uint64_t far_items_min = 256;
constexpr std::size_t parts_max = 1U << 20;  // stages, edges, ports

std::string list_of(std::span<const place_node> nodes) {
  if (nodes.empty()) return "there is no node";
  std::string text;
  std::map<std::string, int> tasks;
  for (const auto& n : nodes) {
    text += text.empty() ? "there are " : ", ";
    text += n.name;
    if (!n.job.empty()) text += fmt::format(" (/job:{}/task:{})", n.job, tasks[n.job]++);
    for (const auto& l : n.labels) text += " /label:" + l;
  }
  return nodes.size() == 1 ? text.replace(0, 9, "there is") : text;
}

std::vector<std::uint32_t> matches(const device_name& wish, std::span<const place_node> nodes) {
  std::vector<std::uint32_t> all;
  std::uint32_t task = 0;
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    const auto& n = nodes[i];
    if (wish.job && n.job != *wish.job) continue;
    if (const auto number = task++; wish.task && number != *wish.task) continue;
    if (wish.node && n.name != *wish.node) continue;
    if (wish.label && std::ranges::find(n.labels, *wish.label) == n.labels.end()) continue;
    all.push_back(i);
  }
  return all;
}

}  // namespace

void mark_elsewhere(flow_graph& g, const std::vector<std::uint32_t>& process_of) {
  const bool is_alone = std::ranges::all_of(process_of, [](auto p) { return p == 0; });
  for (std::uint32_t i = 0; i < process_of.size(); ++i) {
    auto& s = g.stage_at(i);
    s.is_elsewhere = process_of[i] != 0;
    if (s.ledger != nullptr) s.ledger->can_lose = !is_alone;
  }
}

bool has_places(const flow_graph& g) {
  return std::ranges::any_of(g.stages(), [](const auto& s) { return !s.on.empty(); });
}

result<std::vector<std::uint32_t>> place_on_nodes(const flow_graph& g,
                                                  std::span<const place_node> nodes) {
  const auto& stages = g.stages();
  std::vector<std::uint32_t> process_of(stages.size(), 0);
  std::vector<std::uint32_t> has(nodes.size(), 0);
  for (std::uint32_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    if (s.is_removed) process_of[i] = no_process;
    if (s.on.empty()) continue;
    const auto wish = parse_device(s.on);
    if (!wish) return wish.error();
    auto there = matches(*wish, nodes);
    if (there.empty())
      return error(error_code::unreachable,
                   fmt::format("{}: no node is {}: {}", s.name, s.on, list_of(nodes)))
          .at(s.where);
    std::ranges::stable_sort(there, {}, [&](auto n) { return has[n]; });
    auto to = there.front();
    if (s.stands_by > 0) {
      // On the node behind that of its replica; in the program, where there is no other.
      const auto home = process_of[i - s.stands_by] - 1;
      if (there.size() == 1) continue;
      std::ranges::sort(there);
      const auto at = std::ranges::find(there, home);
      process_of[i] = (at + 1 == there.end() ? there.front() : at[1]) + 1;
      continue;
    }
    if (s.replicas > 1) {
      // All replicas of one stage stand in a row; the first one found the order.
      std::ranges::sort(there);
      to = there[s.replica % there.size()];
    } else {
      for (const auto e : s.in) {
        const auto before = process_of[g.edges()[e].from];
        if (before > 0 && before != no_process &&
            std::ranges::find(there, before - 1) != there.end())
          to = before - 1;
      }
    }
    process_of[i] = to + 1;
    ++has[to];
  }
  return process_of;
}

// --- descriptions --------------------------------------------------------------------------------

result<topology_description> describe(const flow_graph& g,
                                      const std::vector<std::uint32_t>& process_of,
                                      const library_list& libraries) {
  topology_description d;
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    described_stage t;
    t.name = s.name;
    t.kind = s.kind;
    t.file = s.where.file_name();
    t.line = s.where.line();
    t.process = process_of[i];
    t.inputs = s.inputs;
    t.outputs = s.outputs;
    t.dead_output = s.dead_output;
    t.replica = s.replica;
    t.replicas = s.replicas;
    t.policy = static_cast<std::uint8_t>(s.on_error.what);
    t.failures_max = s.on_error.at_most;
    t.is_source = s.is_source;
    t.may_block = s.may_block;
    t.is_replica = s.is_replica;
    t.is_hidden = s.is_hidden;
    t.takes_any = s.takes_any;
    t.is_chained = s.is_chained;
    t.is_recovered = s.is_recovered;
    t.stands_by = s.stands_by;
    if (t.process != 0 && t.process != no_process) {
      const library_stage* found = nullptr;
      auto all = libraries;
      if (s.travels->library != nullptr) all.push_back(s.travels->library);
      for (const auto* l : all) {
        const auto* one = l->find(s.travels->who);
        const bool is_better = one != nullptr && (found == nullptr || one->who == s.travels->who);
        if (!is_better || (found != nullptr && found->who == s.travels->who)) continue;
        found = one;
        t.library = l->name();
        t.version = l->version();
      }
      if (found == nullptr)
        return error(error_code::usage,
                     fmt::format("{}: it is to run on {}, and its function stands in no stage "
                                 "library: name it in one, and call use(library)",
                                 s.name, s.on))
            .at(s.where);
      t.function = found->name;
      for (const auto b : *s.travels->prototype)
        t.prototype.push_back(std::to_integer<std::uint8_t>(b));
      t.members = s.travels->members;
      t.in_layout = s.travels->in->layout();
      if (s.travels->out != nullptr) t.out_layout = s.travels->out->layout();
    }
    d.stages.push_back(std::move(t));
  }
  for (const auto& e : g.edges()) {
    described_edge t{e.from, e.from_port, e.to, e.to_port, e.items_max, e.bytes_max, e.items_min};
    // What is lossy holds one item, on purpose.
    if (process_of[e.from] != process_of[e.to] && t.items_max > 1)
      t.items_max = std::max(t.items_max, far_items_min);
    d.edges.push_back(t);
  }
  return d;
}

std::vector<std::string> nodes_of_stages(const topology_description& d) {
  std::vector<std::string> names;
  for (const auto& s : d.stages)
    names.push_back(s.process != no_process ? d.processes[s.process].name : "");
  return names;
}

namespace {

// Between stages that nobody runs.
bool is_removed(const topology_description& d, const described_edge& e) {
  return d.stages[e.from].process == no_process && d.stages[e.to].process == no_process;
}

// Empty: every number in it leads somewhere.
std::string what_is_wrong(const topology_description& d, std::uint32_t own) {
  const auto stages = d.stages.size();
  if (stages == 0 || stages > parts_max || d.edges.size() > parts_max) return "no stages";
  if (own == 0 || own >= d.processes.size()) return "no such process";
  std::vector<std::vector<bool>> fed(stages);
  std::size_t inputs = 0, outputs = 0;
  for (std::size_t i = 0; i < stages; ++i) {
    const auto& s = d.stages[i];
    if (s.process >= d.processes.size() && s.process != no_process) return "a stage of no process";
    inputs += s.inputs, outputs += s.outputs;
    if (inputs > d.edges.size() || outputs > d.edges.size() + 4 * stages) return "too many ports";
    if (s.dead_output != no_port && s.dead_output >= s.outputs) return "dead letters of no port";
    if (s.policy > static_cast<std::uint8_t>(error_policy::kind::restart)) return "no such policy";
    if (s.is_recovered && (!s.is_replica || s.is_chained || s.stands_by >= lane_instances))
      return "a lane of no replica";
    if (s.process != 0 && s.process != no_process &&
        (s.inputs != 1 || s.outputs > 2 || s.is_source))
      return "no function";
    fed[i].resize(s.inputs);
  }
  for (const auto& e : d.edges) {
    if (e.from >= stages || e.to >= stages) return "an edge of no stage";
    if (is_removed(d, e)) continue;
    if (e.from_port >= d.stages[e.from].outputs || e.to_port >= d.stages[e.to].inputs)
      return "an edge of no port";
    if (fed[e.to][e.to_port]) return "two edges into one port";
    fed[e.to][e.to_port] = true;
  }
  if (std::ranges::find(d.stages, own, &described_stage::process) == d.stages.end())
    return "no stage of this process";
  for (std::size_t i = 0; i < stages; ++i)
    if (d.stages[i].process == own && std::ranges::find(fed[i], false) != fed[i].end())
      return "a port without an edge";
  return {};
}

std::string lack_of_stage(const described_stage& s, const library_list& libraries,
                          const library_stage*& found) {
  const auto at = std::ranges::find_if(libraries, [&](auto* l) { return l->name() == s.library; });
  if (at == libraries.end()) return fmt::format("has no stage library {}", s.library);
  if ((*at)->version() != s.version)
    return fmt::format("has {} {}, not {}", s.library, (*at)->version(), s.version);
  found = (*at)->find(s.function);
  if (found == nullptr) return fmt::format("has a {} without {}", s.library, s.function);
  const auto differs = [&](const char* what, const value_codec* codec, const std::string& there) {
    const auto here = codec != nullptr ? codec->layout() : std::string();
    return here == there
               ? std::string()
               : fmt::format("has a {} whose {} are {}, not {}", s.function, what,
                             here.empty() ? "none" : here, there.empty() ? "none" : there);
  };
  auto lack = differs("items", found->in, s.in_layout);
  if (lack.empty()) lack = differs("results", found->out, s.out_layout);
  if (lack.empty() && found->members != s.members)
    lack = fmt::format("has a {} whose members are {}, not {}", s.function,
                       found->members.empty() ? "none" : found->members,
                       s.members.empty() ? "none" : s.members);
  // Ports as its function has them.
  const bool has_dead = s.dead_output != no_port;
  const auto outputs = (found->out != nullptr || s.is_replica ? 1U : 0U) + (has_dead ? 1U : 0U);
  if (lack.empty() && (s.outputs != outputs || (has_dead && s.dead_output + 1 != outputs)))
    lack = fmt::format("was told of a {} with other outputs", s.function);
  return lack;
}

}  // namespace

result<std::shared_ptr<topology_part>> part_of(topology_description d, std::uint32_t own,
                                               const library_list& libraries) {
  if (const auto wrong = what_is_wrong(d, own); !wrong.empty())
    return error(error_code::failed, "what came is no topology: " + wrong);
  auto part = std::make_shared<topology_part>();
  part->own_ = own;
  part->d_ = std::move(d);
  std::string lacks;
  for (const auto& s : part->d_.stages) {
    stage_info info;
    info.name = s.name;
    info.is_named = true;
    info.kind = s.kind;
    info.where = source_location(s.file.c_str(), s.line);
    info.inputs = s.inputs;
    info.outputs = s.outputs;
    info.dead_output = s.dead_output;
    info.replica = s.replica;
    info.replicas = s.replicas;
    info.on_error = {static_cast<error_policy::kind>(s.policy), s.failures_max};
    info.is_source = s.is_source;
    info.is_hidden = s.is_hidden;
    info.takes_any = s.takes_any;
    info.is_replica = s.is_replica;
    info.is_chained = s.is_chained;
    info.is_recovered = s.is_recovered;
    info.stands_by = s.stands_by;
    info.is_removed = s.process == no_process;
    info.is_elsewhere = s.process != own;
    if (!info.is_elsewhere) {
      info.may_block = s.may_block;
      info.may_be_over = false;
      const library_stage* found = nullptr;
      auto lack = lack_of_stage(s, libraries, found);
      if (lack.empty()) {
        info.make = found->make(std::as_bytes(std::span(s.prototype)));
        if (info.make == nullptr) lack = fmt::format("has a {} with other members", s.function);
      }
      if (!lack.empty()) {
        // Once for all stages that lack the same.
        if (lacks.find(lack) == std::string::npos) lacks += (lacks.empty() ? "" : "; ") + lack;
        continue;
      }
      auto travels = std::make_shared<travelling_function>();
      travels->in = found->in;
      travels->out = found->out;
      info.travels = std::move(travels);
    }
    part->add_stage(std::move(info));
  }
  if (!lacks.empty()) return error(error_code::not_found, lacks);
  for (const auto& e : part->d_.edges) {
    const auto id = is_removed(part->d_, e)
                        ? part->add_removed_edge(e.from, e.to)
                        : part->connect(e.from, e.from_port, e.to, e.to_port, e.items_max);
    auto& edge = part->edge_at(id);
    edge.bytes_max = e.bytes_max;
    edge.items_min = e.items_min;
  }
  return part;
}

bool is_far(const flow_graph& g, std::uint32_t edge) {
  const auto& e = g.edges()[edge];
  return g.stages()[e.from].is_elsewhere != g.stages()[e.to].is_elsewhere;
}

far_end far_end_of(const flow_graph& g, std::uint32_t edge, bool same_clock) {
  const auto& e = g.edges()[edge];
  const auto& from = g.stages()[e.from];
  const auto& to = g.stages()[e.to];
  if (e.from_port == from.dead_output) return {codec_of<dead_letter>(), same_clock};
  const bool has_marks = from.is_recovered || to.is_recovered;
  if (to.travels != nullptr) return {to.travels->in, same_clock, has_marks};
  return {from.travels != nullptr ? from.travels->out : nullptr, same_clock, has_marks};
}

}  // namespace troupe
