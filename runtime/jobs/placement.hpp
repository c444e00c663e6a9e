#pragma once
// Which node runs which logical worker and shard: at first, and after nodes have gone or come.
//
// Pure functions of their arguments: the same history places alike.
//
// PM-1  Who has a living node keeps it, but for what rebalancing moves.
// PM-2  Shards are on `ps` nodes while there is one, workers never are while there is another node.
// PM-3  A replica is never on its shard's node. Where a shard's node is gone and its replica's is
//       not, the replica becomes the shard.
// PM-4  Who lacks a library of ops that the job uses is no node for it: with_libraries() before all
//       else.
// PM-5  A worker is on a node that has the devices which its ops wish for; a shard too, whose
//       variables wish: on a `ps` node that has them, else on any other that does. Among those PM-1
//       and PM-2 hold.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/schema/error.hpp"

#include <functional>
#include <span>
#include <vector>

namespace troupe {

// Who runs each logical worker and each shard.
struct role_map {
  std::vector<node_id> workers, shards;
  std::vector<node_id> replicas{};  // by shard; 0: there is no node for it; empty: none are wanted
  bool shards_follow_workers = false;  // shard k is where worker k is, modulo the workers
  friend bool operator==(const role_map&, const role_map&) = default;
};

struct training_placement : task_map {
  std::vector<node_id> nodes;  // by task; the last one is the client's
};

// Worker i on the i-th node that is no `ps`; shard k on the `ps` nodes in turn, or, where there are
// none, on the nodes counted from the last. Without nodes everything runs at the client. More
// workers than nodes: they share where `may_share` says so, else a usage error with both numbers.
// No node, or too few, for a wish for devices (PM-5): a usage error with the line of who wishes,
// and what each node has.
result<role_map> first_roles(std::span<const member_info> nodes, node_id client,
                             std::uint32_t workers, std::uint32_t shards, bool may_share,
                             bool has_replicas = false, bool shards_follow_workers = false,
                             const device_wishes& wishes = {});

enum class rebalancing : std::uint8_t { none, workers, all };

// The same workers and shards on `nodes` (not empty), which need not be those of `before`. Who has
// lost its node goes to the one that has least to do; then `what` may move from the node that has
// most, as long as that makes the busiest one less busy. A worker counts as two shards or replicas.
// Some of the nodes can take each role: check_devices().
role_map next_roles(const role_map& before, std::span<const member_info> nodes, rebalancing what,
                    const device_wishes& wishes = {});

// An error as that of first_roles(), where roles share nodes: of a wish that no node of `nodes`
// (not empty) meets.
result<void> check_devices(std::span<const member_info> nodes, const device_wishes& wishes);

// One task for each node that has a role, named by its first one, one for the client, and one for
// each of `others`, which only hand something over.
training_placement place_roles(const role_map& roles, node_id client,
                               std::span<const node_id> others = {});
// What wishes for devices may name of the nodes of its tasks, and their host streams. Who is not
// among `members` has none.
void add_nodes(training_placement& p, const std::function<const member_info*(node_id)>& member);

// The tasks of a graph that is run by feeds and fetches: /job:worker/task:i is the i-th of `nodes`
// that is no `ps`, /job:ps/task:k the k-th `ps` node, and the client, with `streams` host streams,
// is the last one: /job:client/task:0, and each of `roles`.
task_map tasks_of_nodes(std::span<const member_info> nodes, const member_info& client,
                        std::uint32_t streams, std::span<const std::string> roles = {});

// place_roles(first_roles()), without sharing.
result<training_placement> place_training(std::span<const member_info> nodes, node_id client,
                                          std::uint32_t workers, std::uint32_t shards);

// A node of job `data` runs stages of pipelines, and neither workers nor shards.
bool takes_trainings(const member_info& m) noexcept;

// Those of `nodes` that take trainings and have every library, and what the others that take
// trainings lack, a line each.
struct able_nodes {
  std::vector<member_info> nodes;
  std::vector<std::string> left_out;
};
able_nodes with_libraries(std::vector<member_info> nodes, std::span<const planned_library> needed);

// Living members of kind node in the order of their start times.
std::vector<member_info> nodes_in_order(std::span<const member_info> members);

}  // namespace troupe
