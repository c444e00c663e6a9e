#pragma once
// Which node runs which logical worker and shard.

#include "runtime/compile.hpp"
#include "runtime/control_message.hpp"
#include "schema/error.hpp"

#include <span>
#include <vector>

namespace troupe {

struct training_placement {
  std::vector<node_id> nodes;  // by task; the last one is the client's
  // As in training_spec.
  std::vector<std::string> task_names;
  std::vector<std::uint32_t> worker_task;
  std::vector<std::uint32_t> shard_task;
  std::uint32_t client_task = 0;
};

// Worker i on the i-th node that is no `ps`; shard k on the `ps` nodes in turn, or, where there are none, on the nodes counted
// from the last. Without nodes everything runs at the client. More workers than nodes: a usage error with both numbers.
result<training_placement> place_training(std::span<const member_info> nodes, node_id client, std::uint32_t workers, std::uint32_t shards);

// Living members of kind node in the order of their start times.
std::vector<member_info> nodes_in_order(std::span<const member_info> members);

}  // namespace troupe
