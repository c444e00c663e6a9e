#include "runtime/placement.hpp"

#include "runtime/op_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t worker_load = 2, shard_load = 1;

struct candidates {
  std::vector<node_id> working, serving;

  explicit candidates(std::span<const member_info> nodes) {
    for (const auto& n : nodes) (n.job == "ps" ? serving : working).push_back(n.id);
    if (working.empty()) working = serving;
    if (serving.empty()) serving.assign(working.rbegin(), working.rend());
  }
};

class balancer {
 public:
  balancer(role_map roles, std::span<const member_info> nodes) : roles_(std::move(roles)), nodes_(nodes) {
    for (const auto& n : nodes) load_[n.id] = 0;
    for (std::size_t k = 0; k < roles_.replicas.size(); ++k)
      if (!load_.contains(roles_.shards[k]) && load_.contains(roles_.replicas[k])) roles_.shards[k] = std::exchange(roles_.replicas[k], {});
    settle(roles_.workers, worker_load);
    if (!roles_.shards_follow_workers) settle(roles_.shards, shard_load);
    settle(roles_.replicas, shard_load);
    house(roles_.workers, nodes_.working, worker_load);
    if (!roles_.shards_follow_workers) house(roles_.shards, nodes_.serving, shard_load);
    house_replicas();
  }

  role_map run(rebalancing what) {
    while (what != rebalancing::none && (move_one(roles_.workers, nodes_.working, worker_load) ||
                                         (what == rebalancing::all && !roles_.shards_follow_workers && move_one(roles_.shards, nodes_.serving, shard_load)))) {
    }
    if (roles_.shards_follow_workers)
      for (std::size_t k = 0; k < roles_.shards.size(); ++k) roles_.shards[k] = roles_.workers[k % roles_.workers.size()];
    house_replicas();
    return std::move(roles_);
  }

 private:
  // Those that have no place, or that their shard has come to.
  void house_replicas() {
    for (std::size_t k = 0; k < roles_.replicas.size(); ++k) {
      auto& n = roles_.replicas[k];
      if (n == roles_.shards[k]) load_.at(n) -= shard_load, n = {};
      if (raw(n) != 0) continue;
      auto where = nodes_.serving;
      std::erase(where, roles_.shards[k]);
      if (where.empty()) where = nodes_.working;
      std::erase(where, roles_.shards[k]);
      if (where.empty()) continue;
      n = least(where);
      load_.at(n) += shard_load;
    }
  }
  void settle(std::vector<node_id>& roles, std::uint32_t load) {
    for (auto& n : roles) {
      if (auto at = load_.find(n); at != load_.end())
        at->second += load;
      else
        n = {};
    }
  }
  void house(std::vector<node_id>& roles, const std::vector<node_id>& where, std::uint32_t load) {
    for (auto& n : roles)
      if (raw(n) == 0) n = least(where), load_[n] += load;
  }
  node_id least(const std::vector<node_id>& where) const {
    return *std::min_element(where.begin(), where.end(), [&](auto a, auto b) { return load_.at(a) < load_.at(b); });
  }
  bool move_one(std::vector<node_id>& roles, const std::vector<node_id>& where, std::uint32_t load) {
    const auto to = least(where);
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < roles.size(); ++i)
      if (load_.at(to) + load < load_.at(roles[i]) && (!best || load_.at(roles[i]) > load_.at(roles[*best]))) best = i;
    if (!best) return false;
    load_.at(roles[*best]) -= load;
    load_.at(to) += load;
    roles[*best] = to;
    return true;
  }

  role_map roles_;
  candidates nodes_;
  std::map<node_id, std::uint32_t> load_;
};

}  // namespace

able_nodes with_libraries(std::vector<member_info> nodes, std::span<const planned_library> needed) {
  able_nodes out;
  for (auto& n : nodes) {
    auto lack = lack_of(needed, n.libraries, n.name);
    if (lack.empty())
      out.nodes.push_back(std::move(n));
    else
      out.left_out.push_back(std::move(lack));
  }
  return out;
}

std::vector<member_info> nodes_in_order(std::span<const member_info> members) {
  std::vector<member_info> out;
  for (const auto& m : members)
    if (m.kind == member_kind::node && m.state == member_state::alive) out.push_back(m);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::pair(a.start_time_ns, raw(a.id)) < std::pair(b.start_time_ns, raw(b.id));
  });
  return out;
}

result<role_map> first_roles(std::span<const member_info> nodes, node_id client, std::uint32_t workers, std::uint32_t shards,
                             bool may_share, bool has_replicas, bool shards_follow_workers) {
  if (workers == 0 || shards == 0) return error(error_code::usage, "a training job has at least one worker and one shard");
  if (nodes.empty()) return role_map{std::vector<node_id>(workers, client), std::vector<node_id>(shards, client), {}, shards_follow_workers};
  const candidates c(nodes);
  const auto working = static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.job != "ps"; }));
  if (workers > working && !may_share)
    return error(error_code::usage, fmt::format("{} workers need as many nodes, and the cluster has {} that take workers: start more "
                                                "troupe-node processes, or use fewer workers", workers, working));
  role_map out;
  for (std::uint32_t w = 0; w < workers; ++w) out.workers.push_back(c.working[w % c.working.size()]);
  out.shards_follow_workers = shards_follow_workers;
  for (std::uint32_t k = 0; k < shards; ++k) out.shards.push_back(shards_follow_workers ? out.workers[k % workers] : c.serving[k % c.serving.size()]);
  if (!has_replicas) return out;
  out.replicas.resize(shards);
  return balancer(std::move(out), nodes).run(rebalancing::none);
}

role_map next_roles(const role_map& before, std::span<const member_info> nodes, rebalancing what) {
  expects(!nodes.empty(), "roles need a node");
  return balancer(before, nodes).run(what);
}

training_placement place_roles(const role_map& roles, node_id client, std::span<const node_id> others) {
  training_placement out;
  std::map<node_id, std::uint32_t> task_of;
  const auto task = [&](node_id n, const std::string& name) {
    const auto [at, is_new] = task_of.emplace(n, static_cast<std::uint32_t>(out.nodes.size()));
    if (is_new) {
      out.nodes.push_back(n);
      out.task_names.push_back(name);
    }
    out.roles.emplace_back(name, at->second);
    return at->second;
  };
  for (std::uint32_t w = 0; w < roles.workers.size(); ++w)
    out.worker_task.push_back(task(roles.workers[w], fmt::format("/job:worker/task:{}", w)));
  for (std::uint32_t k = 0; k < roles.shards.size(); ++k)
    out.shard_task.push_back(task(roles.shards[k], fmt::format("/job:ps/task:{}", k)));
  for (std::uint32_t k = 0; k < roles.replicas.size(); ++k)
    out.replica_task.push_back(raw(roles.replicas[k]) == 0 ? no_task : task(roles.replicas[k], fmt::format("/job:replica/task:{}", k)));
  out.client_task = task(client, "/job:client/task:0");
  for (std::size_t i = 0; i < others.size(); ++i)
    if (!task_of.contains(others[i])) task(others[i], fmt::format("/job:leaving/task:{}", i));
  return out;
}

result<training_placement> place_training(std::span<const member_info> nodes, node_id client, std::uint32_t workers, std::uint32_t shards) {
  auto roles = first_roles(nodes, client, workers, shards, false);
  if (!roles) return std::move(roles.error());
  return place_roles(*roles, client);
}

}  // namespace troupe
