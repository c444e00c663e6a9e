#pragma once
// A topology over several processes: which stages run where, and what a node is told so that it can
// run its own.
//
// Every process has the whole graph, with the same numbers of stages and edges; stages of others
// are `is_elsewhere` in it. Process 0 is the program; it has all sources and shapes, nodes have
// functions out of stage libraries.
//
// TPA-1 What one process describes another one runs with the same names, bounds, policies and
//       functions, or it says what it lacks.
// TPA-2 Whatever bytes a description comes as, part_of() ends with a graph or with an error.
// Threading: values.

#include "troupe/runtime/flow/flow_graph.hpp"
#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/schema/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// --- where stages run ----------------------------------------------------------------------------

// What `.on` may ask of a node.
struct place_node {
  std::string name, job;
  std::vector<std::string> labels;
};

// Of a stage that nobody runs (stage_info::is_removed).
inline constexpr std::uint32_t no_process = no_port;

// By stage: 0: the program; i + 1: nodes[i]. A stage goes where those are that it takes from, where
// that is one of its nodes, else to the one with the fewest stages; replicas are dealt among all
// that match; who stands by is on another node,
// or in the program. Errors (unreachable): nobody matches, with the user's line.
result<std::vector<std::uint32_t>> place_on_nodes(const flow_graph& g,
                                                  std::span<const place_node> nodes);
bool has_places(const flow_graph& g);
// In the program, before it runs.
void mark_elsewhere(flow_graph& g, const std::vector<std::uint32_t>& process_of);

// --- what a node is told -------------------------------------------------------------------------

struct described_process {
  std::uint64_t id = 0;  // its node
  std::string name;
  std::string host;  // processes of one host read one clock
  static constexpr auto fields =
      troupe::fields<&described_process::id, &described_process::name, &described_process::host>(
          "id", "name", "host");
};
struct described_stage {
  std::string name, kind, file;
  std::uint32_t line = 0;
  std::uint32_t process = 0;
  std::uint32_t inputs = 0, outputs = 0, dead_output = 0, replica = 0, replicas = 1;
  std::uint8_t policy = 0;
  std::uint64_t failures_max = 0;
  bool is_source = false, may_block = false, is_replica = false, is_hidden = false,
       takes_any = false, is_chained = false, is_recovered = false;
  std::uint32_t stands_by = 0;
  // Of a node's: where its function stands.
  std::string library, version, function;
  std::vector<std::uint8_t> prototype;
  std::string members, in_layout, out_layout;  // layout_of()
  static constexpr auto fields = troupe::fields<
      &described_stage::name, &described_stage::kind, &described_stage::file,
      &described_stage::line, &described_stage::process, &described_stage::inputs,
      &described_stage::outputs, &described_stage::dead_output, &described_stage::replica,
      &described_stage::replicas, &described_stage::policy, &described_stage::failures_max,
      &described_stage::is_source, &described_stage::may_block, &described_stage::is_replica,
      &described_stage::is_hidden, &described_stage::takes_any, &described_stage::is_chained,
      &described_stage::is_recovered, &described_stage::stands_by, &described_stage::library,
      &described_stage::version, &described_stage::function, &described_stage::prototype,
      &described_stage::members, &described_stage::in_layout, &described_stage::out_layout>(
      "name", "kind", "file", "line", "process", "inputs", "outputs", "dead_output", "replica",
      "replicas", "policy", "failures_max", "is_source", "may_block", "is_replica", "is_hidden",
      "takes_any", "is_chained", "is_recovered", "stands_by", "library", "version", "function",
      "prototype", "members", "in_layout", "out_layout");
};
struct described_edge {
  std::uint32_t from = 0, from_port = 0, to = 0, to_port = 0;
  std::uint64_t items_max = 0, bytes_max = 0, items_min = 0;
  static constexpr auto fields =
      troupe::fields<&described_edge::from, &described_edge::from_port, &described_edge::to,
                     &described_edge::to_port, &described_edge::items_max,
                     &described_edge::bytes_max, &described_edge::items_min>(
          "from", "from_port", "to", "to_port", "items_max", "bytes_max", "items_min");
};
struct topology_description {
  std::string name;
  bool fuses = true;
  std::vector<described_process> processes;
  std::vector<described_stage> stages;
  std::vector<described_edge> edges;
  static constexpr auto fields =
      troupe::fields<&topology_description::name, &topology_description::fuses,
                     &topology_description::processes, &topology_description::stages,
                     &topology_description::edges>("name", "fuses", "processes", "stages", "edges");
};

// By stage, the name of its node.
std::vector<std::string> nodes_of_stages(const topology_description& d);

using library_list = std::vector<const stage_library*>;

// Of a graph that was checked, without its processes. Errors (usage, with the user's line): a stage
// whose function stands in none of `libraries`.
result<topology_description> describe(const flow_graph& g,
                                      const std::vector<std::uint32_t>& process_of,
                                      const library_list& libraries);

// The graph as process `own` runs it.
class topology_part final : public flow_graph {
 public:
  topology_part() = default;
  const topology_description& description() const noexcept { return d_; }
  std::uint32_t own() const noexcept { return own_; }

 private:
  friend result<std::shared_ptr<topology_part>> part_of(topology_description d, std::uint32_t own,
                                                        const library_list& libraries);
  topology_description d_;
  std::uint32_t own_ = 0;
};
// Errors: failed: the description is no topology; not_found: what this process lacks, or has
// otherwise: each stage and why, without a name for this process.
result<std::shared_ptr<topology_part>> part_of(topology_description d, std::uint32_t own,
                                               const library_list& libraries);

// Of an edge that has one of its ends in this process.
far_end far_end_of(const flow_graph& g, std::uint32_t edge, bool same_clock);
bool is_far(const flow_graph& g, std::uint32_t edge);

}  // namespace troupe
