#pragma once
// The grammar of `troupe`: verb first, then kind, then id; global flags before or after the verb.
//
//   troupe status | list nodes|actors|jobs [--filter KEY=VALUE] [--sort KEY[:desc]] [--limit N]
//          [--watch] | top [JOB] | show node|actor|job ID | graph [--dot|--svg] |
//          why [JOB] [--slow [--seconds N]] | events [--follow] [--job
//          JOB] [--node NODE] [--since DURATION|TIME] [--level LEVEL] | logs NODE|JOB [--follow]
//          [--since DURATION|TIME] [--level LEVEL] | timeline [--seconds N] [--job JOB] | plan FILE
//          [--workers N] [--shards N]
//          [--nodes N] [--update sync|allreduce|async] [--fuse on|off] [--load FILE] [--dot|--svg]
//          | wait nodes=N | wait job=STATE [JOB] | checkpoint list|verify DIR |
//          checkpoint make JOB | cluster leave|forget NODE | context list|show|set|use|remove |
//          completion bash|zsh|fish |
//          job stop|finish|detach JOB | topology show|pause|resume|drain NAME |
//          topology replicas NAME STAGE N | topology move NAME STAGE NODE | serve [--http
//          HOST:PORT] | version
//
// Kinds are taken in singular and plural.

#include "tools/troupe-tool/contexts.hpp"
#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/runtime/insight/filter_sort.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class verb : std::uint8_t {
  none,
  status,
  list,
  top,
  show,
  graph,
  why,
  events,
  logs,
  wait,
  plan,
  list_checkpoints,
  verify_checkpoints,
  make_checkpoint,
  leave_cluster,
  forget_node,
  stop_job,
  finish_job,
  detach_job,
  show_topology,
  pause_topology,
  resume_topology,
  drain_topology,
  set_replicas,
  move_stage,
  timeline,
  list_contexts,
  show_context,
  set_context,
  use_context,
  remove_context,
  completion,
  names,  // for completion: of one kind, a line each
  serve,
  version
};
// The cluster is asked to do something, and the tool waits until it has.
constexpr bool is_change(verb v) noexcept {
  return v == verb::make_checkpoint || v == verb::leave_cluster || v == verb::forget_node ||
         v == verb::stop_job || v == verb::finish_job || v == verb::detach_job ||
         v == verb::pause_topology || v == verb::resume_topology || v == verb::drain_topology ||
         v == verb::set_replicas || v == verb::move_stage;
}
constexpr bool is_of_contexts(verb v) noexcept {
  return v == verb::list_contexts || v == verb::show_context || v == verb::set_context ||
         v == verb::use_context || v == verb::remove_context;
}
enum class object_kind : std::uint8_t { none, node, actor, job };
enum class graph_format : std::uint8_t { text, dot, svg };

// Of plan: what is not said is as the graph's file has it.
struct plan_wishes {
  std::optional<std::uint32_t> workers{}, shards{};
  std::uint32_t nodes = 0;  // 0: everything in the program
  std::optional<update_kind> update{};
  bool all_reduce = false;  // sync, so
  std::optional<bool> fuse{};
  std::vector<std::string> load{};  // libraries of ops

  bool is_training() const noexcept { return workers || shards || nodes > 0 || update; }
};

// Of events and logs; whose log is `id`.
struct log_wishes {
  bool is_followed = false;
  std::string job{}, node{}, since{};  // as it was written, and can be read (parse_since)
  event_level level = event_level::info;
};

struct command {
  verb action = verb::none;  // none: status, redrawn on a terminal
  object_kind kind = object_kind::none;
  std::string id;
  std::string stage;           // of set_replicas and move_stage
  std::uint32_t replicas = 0;  // of set_replicas
  std::string node;            // of move_stage
  graph_format format = graph_format::text;
  std::uint64_t nodes_wanted = 0;  // of wait, where no state of a job is waited for
  std::optional<job_state> job_wanted{};
  selection pick{};              // of list
  bool is_watch = false;         // of list: again and again
  std::int64_t interval_ns = 0;  // of list --watch and top
  cluster_place place{};         // of set_context
  bool is_system = false;        // as the user troupe, where its service keeps its sockets
  std::string context;           // that the place of the cluster is taken from; "": none
  std::string script;            // of completion: what is printed
  std::int64_t duration_ns = 0;  // of timeline, whose job is `id`, and of why --slow
  bool is_slow = false;          // why: what bounds its rate
  bool json = false;
  std::string listen = "127.0.0.1:0";  // of serve
  std::string page_token_file;         // of serve; "": that of the cluster, if any
  log_wishes log{};
  plan_wishes plan{};  // of verb plan; the graph's file is `id`
  // Its timeout is the whole one, for wait, make and leave too; its parts are what the verb needs.
  ask_options ask;
};

// What a program does next: run a command, or print and exit.
struct parsed_command {
  std::optional<command> to_run;
  int exit_code = 0;
  std::string out, err;
};

// `arguments` without the program's name. A mistake ends with exit code 2 and one line that says
// what was expected.
parsed_command parse_command(std::span<const std::string> arguments, const surroundings& = {});

}  // namespace troupe
