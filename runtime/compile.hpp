#pragma once
// From a graph to a plan: one pass per file in runtime/passes/, in this order:
//
//   prune -> gradients -> shapes -> simplify -> replicate -> fuse -> place -> partition (send, receive) -> credits -> check
//
// Everything here is a pure function of its arguments.

#include "runtime/graph.hpp"
#include "runtime/plan.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

struct compile_options {
  std::string name = "job";
  bool fuse = true;
  std::uint32_t credits = 2;  // per edge
};

// --- training: between-graph replication with parameter shards ---------------------------------------------------------

// One task per place that actors can go to. The client is always the last task of a plan and runs the fetches.
struct training_spec {
  std::uint32_t workers = 1;
  std::uint32_t shards = 1;
  update_kind update = update_kind::sync;
  optimizer_spec optimizer;
  std::uint64_t seed = 1;
  std::uint64_t steps = 1;           // of each worker
  std::uint64_t observe_every = 0;   // versions between two observations of all variables (0: only at the end)
  // Which task runs worker i and shard k: indices below `tasks`. Embedded: one task for all, which is the client's too.
  std::uint32_t tasks = 1;
  std::vector<std::string> task_names;      // "/job:worker/task:0", ...
  std::vector<std::uint32_t> worker_task;
  std::vector<std::uint32_t> shard_task;
  std::uint32_t client_task = 0;
};

// The plan that trains `loss` of `g` (which holds one worker's graph; idx_batch ops get part i of `workers`).
// The client's part: fetch "loss" (port i: losses of worker i) and fetch "variables" (port i: variable i in order of names).
result<plan> compile_training(graph& g, value loss, const training_spec& spec, const compile_options& options);

// --- stepping: feeds in, fetches out -----------------------------------------------------------------------------------

// A plan of one task whose feeds and fetches are held by the program: feed "x" per input op, one fetch with a
// port per fetched value. Variables become feeds of the same name. An unfed input or an empty fetch list is an error.
result<plan> compile_steps(graph& g, std::span<const value> fetches, const compile_options& options);

// The gradients of scalar `loss` in `with_respect_to`, as graph (invalid value: does not depend on it).
std::vector<value> gradients(graph& g, value loss, std::span<const value> with_respect_to);

}  // namespace troupe
