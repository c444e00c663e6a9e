#include "runtime/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace troupe {

std::vector<member_info> nodes_in_order(std::span<const member_info> members) {
  std::vector<member_info> out;
  for (const auto& m : members)
    if (m.kind == member_kind::node && m.state == member_state::alive) out.push_back(m);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::pair(a.start_time_ns, raw(a.id)) < std::pair(b.start_time_ns, raw(b.id));
  });
  return out;
}

result<training_placement> place_training(std::span<const member_info> nodes, node_id client, std::uint32_t workers, std::uint32_t shards) {
  if (workers == 0 || shards == 0) return error(error_code::usage, "a training job has at least one worker and one shard");
  training_placement out;
  if (nodes.empty()) {
    out.nodes = {client};
    out.task_names = {"/job:worker/task:0"};
    out.worker_task.assign(workers, 0);
    out.shard_task.assign(shards, 0);
    return out;
  }
  std::vector<node_id> working, serving;
  for (const auto& n : nodes) (n.job == "ps" ? serving : working).push_back(n.id);
  if (workers > working.size())
    return error(error_code::usage, fmt::format("{} workers need as many nodes, and the cluster has {} that take workers: start more "
                                                "troupe-node processes, or use fewer workers", workers, working.size()));
  if (serving.empty()) serving.assign(working.rbegin(), working.rend());

  std::map<node_id, std::uint32_t> task_of;
  auto task = [&](node_id n, const std::string& name) {
    auto [at, is_new] = task_of.emplace(n, static_cast<std::uint32_t>(out.nodes.size()));
    if (is_new) {
      out.nodes.push_back(n);
      out.task_names.push_back(name);
    }
    return at->second;
  };
  for (std::uint32_t w = 0; w < workers; ++w) out.worker_task.push_back(task(working[w], fmt::format("/job:worker/task:{}", w)));
  for (std::uint32_t k = 0; k < shards; ++k)
    out.shard_task.push_back(task(serving[k % serving.size()], fmt::format("/job:ps/task:{}", k)));
  out.client_task = task(client, "/job:client/task:0");
  return out;
}

}  // namespace troupe
