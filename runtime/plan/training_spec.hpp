#pragma once
// How a graph is trained, and where: workers, shards and their places, the cut that an epoch begins
// with, and the devices that places must have.
//
// Training is between-graph replication: each of `workers` runs the graph on its own part of the
// data, and `shards` hold the variables.
//
// Threading: values.

#include "troupe/runtime/plan/optimizer.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/source_location.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// One task per place that actors can go to. The client is always the last task of a plan and runs
// the fetches.
struct training_spec {
  std::uint32_t workers = 1;
  std::uint32_t shards = 1;
  update_kind update = update_kind::sync;
  // sync: every node with workers has a copy of every variable, and collectives add up the
  // gradients, instead of shards. The bits are the same.
  bool all_reduce = false;
  optimizer_spec optimizer;
  learning_rate_schedule schedule{};
  double clip_global_norm = 0;  // of each worker's gradients, before they are pushed; 0: not
  std::uint64_t seed = 1;
  std::uint64_t steps = 1;  // of each worker
  // Versions between two observations of all variables (0: only at the end)
  std::uint64_t observe_every = 0;
  // A step is whole or did not happen: shards differ by at most one version, sync ones keep the
  // older one, and the program has the loss of every step but the last.
  bool is_recoverable = false;
  // Cuts for checkpoints: where the program asks for one, at the end, and (sync) at every version
  // that cut_every divides. Every variable has a replica, on the nodes that the placement gives
  // (task_map::replica_task): what is committed survives a node.
  bool has_replicas = false;
  bool has_cuts = false;
  std::uint64_t cut_every = 0;
  // It can end where it has got to, which takes steps that are whole. With checkpoints always: who
  // suspends it wants its last one to have all steps whose losses were told.
  bool may_end_early() const noexcept { return is_recoverable || (has_cuts && observe_every == 0); }
  // Which task runs worker i and shard k: indices below `tasks`. Embedded: one task for all, which
  // is the client's too.
  std::uint32_t tasks = 1;
  std::vector<std::string> task_names;  // "/job:worker/task:0", ...
  std::vector<std::uint32_t> worker_task;
  std::vector<std::uint32_t> shard_task;
  std::uint32_t client_task = 0;
};

// The node of a task, as far as wishes for devices name it.
struct task_node {
  node_id id{};
  std::string name{};
  std::vector<std::string> labels{};  // "rack=3"
  std::uint32_t devices = 0;          // gpu:0, gpu:1, ...
};

// Who runs what in one epoch: part of training_spec, for later epochs.
struct task_map {
  std::vector<std::string> task_names;  // by task: its first role
  // Every name that a device wish may use, and its task.
  std::vector<std::pair<std::string, std::uint32_t>> roles;
  std::vector<std::uint32_t> worker_task, shard_task;
  std::uint32_t client_task = 0;
  std::vector<std::uint32_t> replica_task{};  // by shard; none, or no_task: without a replica
  std::vector<std::uint32_t> streams{};       // by task: host streams of its node; none: not known
  std::vector<task_node> nodes_of{};          // by task; none: not known
};
inline constexpr std::uint32_t no_task = 0xFFFF'FFFF;

inline void set_places(training_spec& spec, const task_map& where) {
  spec.tasks = static_cast<std::uint32_t>(where.task_names.size());
  spec.task_names = where.task_names;
  spec.worker_task = where.worker_task;
  spec.shard_task = where.shard_task;
  spec.client_task = where.client_task;
}

// A variable that a node keeps and others need, because its shard or replica is placed there: the
// task of the node that keeps it.
struct handed_variable {
  std::string variable;
  std::uint32_t task = 0;
  std::vector<std::uint64_t> applied{};  // async: by worker, the gradients in it
  bool to_shard = true, to_replica = false;
  std::vector<std::uint32_t> to_tasks{};  // with all_reduce: where other copies begin with it
};

// Where an epoch begins. The first one: as it is.
struct epoch_start {
  restore_kind restore = restore_kind::initial;
  std::uint64_t version = 0;                  // sync: of all variables
  std::vector<std::uint64_t> worker_steps{};  // the first step that each worker makes; empty: 0
  bool is_saved = false;                      // it is that of a checkpoint
  std::vector<handed_variable> handed{};
};

// What the node of a worker or shard must have: devices gpu:0 to gpu:N-1.
struct device_wish {
  std::uint32_t devices = 0;  // 0: none
  std::string who{};          // op or variable whose wish reaches furthest, the first such one
  source_line source{};
  friend bool operator==(const device_wish&, const device_wish&) = default;
};
// By worker, and by shard. Empty: nobody wishes for any.
struct device_wishes {
  std::vector<device_wish> workers{}, shards{};
  bool empty() const noexcept { return workers.empty() && shards.empty(); }
  friend bool operator==(const device_wishes&, const device_wishes&) = default;
};

}  // namespace troupe
