#pragma once
// Which nodes take part in an epoch of a job, and who of them may be lost.
//
// SV-3  Asynchronous training goes on without a node that held nothing but workers, while another
//       worker is left. Any other loss is fatal, but of a node whose part has ended and from which
//       no node that still runs takes anything.
//
// Threading: pure; one owner.

#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class loss_verdict : std::uint8_t {
  irrelevant,  // takes no part, or its part has ended
  tolerated,   // the others go on
  fatal,
};

class participants {
 public:
  // `nodes[i]` runs tasks[i] of a checked plan.
  participants(const plan& p, std::span<const node_id> nodes);

  // The node's part has done all its steps.
  void ended(node_id n);
  // Whatever becomes of the node from now on, nothing hangs on it.
  void release(node_id n);
  // The node is dead or has left: decides, and counts it as gone.
  loss_verdict lose(node_id n);
  bool is_lost(node_id n) const noexcept { return lost_.contains(n); }
  // Nothing runs any more, by ended() or lose().
  bool all_over() const noexcept { return running_.empty(); }
  const std::set<node_id>& running() const noexcept { return running_; }
  // Logical workers on that node.
  std::vector<std::uint32_t> workers_on(node_id n) const;
  // What it runs, for people: "/job:worker/task:1 (worker 1), /job:ps/task:0 (shard 0)".
  std::string describe(node_id n) const;

 private:
  struct role {
    std::vector<std::string> tasks;
    std::set<std::uint32_t> workers, shards, replicas;
    bool is_client = false;
    bool has_program_side = false;  // a feed or a fetch: the program is here
    bool hands_over = false;        // a variable, to another node
    std::set<node_id> takers;       // who takes something from it
  };
  std::map<node_id, role> roles_;
  std::set<node_id> running_, lost_;
  bool is_async_ = false;
};

// The task of each logical worker: where its gradients come from. Workers that no shard knows are
// -1.
std::vector<std::int32_t> worker_tasks(const plan& p);

}  // namespace troupe
