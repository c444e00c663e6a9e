#include "troupe/runtime/jobs/placement.hpp"

#include "troupe/runtime/graph/op_library.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t worker_load = 2, shard_load = 1;

struct candidates {
  std::vector<node_id> working, serving, all;  // all: from the last
  std::map<node_id, std::uint32_t> devices;

  explicit candidates(std::span<const member_info> nodes) {
    for (const auto& n : nodes) {
      (n.job == "ps" ? serving : working).push_back(n.id);
      all.insert(all.begin(), n.id);
      devices[n.id] = count_of(n.devices);
    }
    if (working.empty()) working = serving;
    if (serving.empty()) serving.assign(working.rbegin(), working.rend());
  }

  std::vector<node_id> with_devices(const std::vector<node_id>& of, std::uint32_t wanted) const {
    std::vector<node_id> out;
    std::copy_if(of.begin(), of.end(), std::back_inserter(out),
                 [&](auto n) { return devices.at(n) >= wanted; });
    return out;
  }
  std::vector<node_id> for_worker(std::uint32_t wanted) const {
    return with_devices(working, wanted);
  }
  std::vector<node_id> for_shard(std::uint32_t wanted) const {
    auto out = with_devices(serving, wanted);
    return out.empty() ? with_devices(all, wanted) : out;
  }
};

std::uint32_t wanted_by(const std::vector<device_wish>& wishes, std::size_t role) {
  return role < wishes.size() ? wishes[role].devices : 0;
}

// The one that reaches furthest; null: none.
const device_wish* largest(const std::vector<device_wish>& wishes) {
  const auto at = std::max_element(wishes.begin(), wishes.end(), [](const auto& a, const auto& b) {
    return a.devices < b.devices;
  });
  return at != wishes.end() && at->devices > 0 ? &*at : nullptr;
}

std::string present_on(std::span<const member_info> nodes) {
  constexpr std::size_t nodes_max = 8;
  std::vector<std::string> shown;
  for (const auto& n : nodes.first(std::min(nodes.size(), nodes_max)))
    shown.push_back(
        fmt::format("{}{} has {}", n.name, n.job == "ps" ? " (ps)" : "", devices_text(n.devices)));
  if (nodes.size() > nodes_max)
    shown.push_back(fmt::format("and {} more", nodes.size() - nodes_max));
  return fmt::format("{}", fmt::join(shown, "; "));
}

error lacks(const device_wish& w, const std::string& why, std::string_view or_what,
            std::span<const member_info> nodes) {
  auto e = error(
      error_code::usage,
      fmt::format(
          "'{}' is to run on gpu:{}, and {}: {}. Start troupe-node where such devices are (its --gpus says which it has), or {}",
          w.who, w.devices - 1, why, present_on(nodes), or_what));
  if (!w.source.file.empty()) e.at(w.source.file, w.source.line);
  return e;
}

class balancer {
 public:
  balancer(role_map roles, std::span<const member_info> nodes, const device_wishes& wishes)
      : roles_(std::move(roles)), nodes_(nodes), wishes_(wishes) {
    for (const auto& n : nodes) load_[n.id] = 0;
    for (std::size_t k = 0; k < roles_.replicas.size(); ++k)
      if (!load_.contains(roles_.shards[k]) && load_.contains(roles_.replicas[k]))
        roles_.shards[k] = std::exchange(roles_.replicas[k], {});
    settle(roles_.workers, worker_load);
    if (!roles_.shards_follow_workers) settle(roles_.shards, shard_load);
    settle(roles_.replicas, shard_load);
    house(roles_.workers,
          places_of(roles_.workers.size(), wishes_.workers, &candidates::for_worker), worker_load);
    if (!roles_.shards_follow_workers)
      house(roles_.shards, places_of(roles_.shards.size(), wishes_.shards, &candidates::for_shard),
            shard_load);
    house_replicas();
  }

  role_map run(rebalancing what) {
    const auto working = places_of(roles_.workers.size(), wishes_.workers, &candidates::for_worker);
    const auto serving = places_of(roles_.shards.size(), wishes_.shards, &candidates::for_shard);
    while (what != rebalancing::none &&
           (move_one(roles_.workers, working, worker_load) ||
            (what == rebalancing::all && !roles_.shards_follow_workers &&
             move_one(roles_.shards, serving, shard_load)))) {
    }
    if (roles_.shards_follow_workers)
      for (std::size_t k = 0; k < roles_.shards.size(); ++k)
        roles_.shards[k] = roles_.workers[k % roles_.workers.size()];
    house_replicas();
    return std::move(roles_);
  }

 private:
  // Where each role may be: roles of equal wishes share a list.
  struct role_places {
    std::vector<std::vector<node_id>> lists;
    std::vector<std::size_t> of;  // by role

    const std::vector<node_id>& at(std::size_t role) const { return lists[of[role]]; }
  };
  role_places places_of(std::size_t roles, const std::vector<device_wish>& wishes,
                        std::vector<node_id> (candidates::*find)(std::uint32_t) const) const {
    role_places out;
    std::map<std::uint32_t, std::size_t> known;
    for (std::size_t i = 0; i < roles; ++i) {
      const auto [at, is_new] = known.emplace(wanted_by(wishes, i), out.lists.size());
      if (is_new) out.lists.push_back((nodes_.*find)(at->first));
      expects(!out.lists[at->second].empty(), "some node has the devices that a role wishes for");
      out.of.push_back(at->second);
    }
    return out;
  }
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
  void house(std::vector<node_id>& roles, const role_places& where, std::uint32_t load) {
    for (std::size_t i = 0; i < roles.size(); ++i)
      if (auto& n = roles[i]; raw(n) == 0) n = least(where.at(i)), load_[n] += load;
  }
  node_id least(const std::vector<node_id>& where) const {
    return *std::min_element(where.begin(), where.end(),
                             [&](auto a, auto b) { return load_.at(a) < load_.at(b); });
  }
  bool move_one(std::vector<node_id>& roles, const role_places& where, std::uint32_t load) {
    std::vector<node_id> least_of;
    for (const auto& list : where.lists) least_of.push_back(least(list));
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < roles.size(); ++i)
      if (load_.at(least_of[where.of[i]]) + load < load_.at(roles[i]) &&
          (!best || load_.at(roles[i]) > load_.at(roles[*best])))
        best = i;
    if (!best) return false;
    const auto to = least_of[where.of[*best]];
    load_.at(roles[*best]) -= load;
    load_.at(to) += load;
    roles[*best] = to;
    return true;
  }

  role_map roles_;
  candidates nodes_;
  const device_wishes& wishes_;
  std::map<node_id, std::uint32_t> load_;
};

// Worker by worker, who wishes for most devices first: whoever comes later may use what an earlier
// one may. Each on the node with the fewest workers, of those on the first.
// Nothing: one of them finds no node of its own, and they may not share.
std::optional<std::vector<node_id>> spread_workers(const candidates& c, std::uint32_t workers,
                                                   bool may_share,
                                                   const std::vector<device_wish>& wishes) {
  std::vector<node_id> out(workers);
  std::map<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> by_wish;
  for (std::uint32_t w = 0; w < workers; ++w) by_wish[wanted_by(wishes, w)].push_back(w);
  std::map<node_id, std::uint32_t> load;
  for (const auto& [wanted, who] : by_wish) {
    const auto where = c.for_worker(wanted);
    std::set<std::pair<std::uint32_t, std::size_t>> next;  // by load
    for (std::size_t i = 0; i < where.size(); ++i) next.emplace(load[where[i]], i);
    for (const auto w : who) {
      auto [has, i] = next.extract(next.begin()).value();
      if (has > 0 && !may_share) return std::nullopt;
      out[w] = where[i];
      load[where[i]] = has + 1;
      next.emplace(has + 1, i);
    }
  }
  return out;
}

}  // namespace

bool takes_trainings(const member_info& m) noexcept { return m.job != "data"; }

able_nodes with_libraries(std::vector<member_info> nodes, std::span<const planned_library> needed) {
  able_nodes out;
  for (auto& n : nodes) {
    if (!takes_trainings(n)) continue;
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

result<role_map> first_roles(std::span<const member_info> nodes, node_id client,
                             std::uint32_t workers, std::uint32_t shards, bool may_share,
                             bool has_replicas, bool shards_follow_workers,
                             const device_wishes& wishes) {
  if (workers == 0 || shards == 0)
    return error(error_code::usage, "a training job has at least one worker and one shard");
  if (nodes.empty())
    return role_map{std::vector<node_id>(workers, client),
                    std::vector<node_id>(shards, client),
                    {},
                    shards_follow_workers};
  const candidates c(nodes);
  const auto working = static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.job != "ps"; }));
  if (workers > working && !may_share)
    return error(
        error_code::usage,
        fmt::format(
            "{} workers need as many nodes that take workers, but the cluster has {}: start "
            "more troupe-node processes, or use fewer workers",
            workers, working));
  if (auto ok = check_devices(nodes, wishes); !ok) return std::move(ok.error());
  auto spread = spread_workers(c, workers, may_share, wishes.workers);
  if (!spread) {
    const auto& w = *largest(wishes.workers);
    const auto wishing = std::count_if(wishes.workers.begin(), wishes.workers.end(),
                                       [](const auto& x) { return x.devices > 0; });
    return lacks(
        w,
        fmt::format(
            "each of {} workers that wish for devices needs a node of its own that has them",
            wishing),
        "use fewer workers", nodes);
  }
  role_map out;
  out.workers = std::move(*spread);
  out.shards_follow_workers = shards_follow_workers;
  std::map<std::uint32_t, std::vector<node_id>> serving;  // by wish
  for (std::uint32_t k = 0; k < shards; ++k) {
    auto& where = serving[wanted_by(wishes.shards, k)];
    if (where.empty()) where = c.for_shard(wanted_by(wishes.shards, k));
    out.shards.push_back(shards_follow_workers ? out.workers[k % workers]
                                               : where[k % where.size()]);
  }
  if (!has_replicas) return out;
  out.replicas.resize(shards);
  return balancer(std::move(out), nodes, wishes).run(rebalancing::none);
}

role_map next_roles(const role_map& before, std::span<const member_info> nodes, rebalancing what,
                    const device_wishes& wishes) {
  expects(!nodes.empty(), "roles need a node");
  return balancer(before, nodes, wishes).run(what);
}

result<void> check_devices(std::span<const member_info> nodes, const device_wishes& wishes) {
  const candidates c(nodes);
  if (const auto* w = largest(wishes.workers); w != nullptr && c.for_worker(w->devices).empty())
    return lacks(*w, "no node that takes workers has it", "choose another device", nodes);
  if (const auto* w = largest(wishes.shards); w != nullptr && c.for_shard(w->devices).empty())
    return lacks(*w, "no node has it", "choose another device", nodes);
  return {};
}

training_placement place_roles(const role_map& roles, node_id client,
                               std::span<const node_id> others) {
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
    out.replica_task.push_back(
        raw(roles.replicas[k]) == 0
            ? no_task
            : task(roles.replicas[k], fmt::format("/job:replica/task:{}", k)));
  out.client_task = task(client, "/job:client/task:0");
  for (std::size_t i = 0; i < others.size(); ++i)
    if (!task_of.contains(others[i])) task(others[i], fmt::format("/job:leaving/task:{}", i));
  return out;
}

void add_nodes(training_placement& p, const std::function<const member_info*(node_id)>& member) {
  for (const auto n : p.nodes) {
    const auto* m = member(n);
    p.streams.push_back(m == nullptr ? 1 : std::max(1U, m->streams));
    p.nodes_of.push_back(m == nullptr ? task_node{n}
                                      : task_node{n, m->name, m->labels, count_of(m->devices)});
  }
}

task_map tasks_of_nodes(std::span<const member_info> nodes, const member_info& client,
                        std::uint32_t streams, std::span<const std::string> roles) {
  task_map out;
  const auto add = [&](const member_info& n, std::string name, std::uint32_t threads) {
    out.roles.emplace_back(name, static_cast<std::uint32_t>(out.task_names.size()));
    out.task_names.push_back(std::move(name));
    out.streams.push_back(std::max(1U, threads));
    out.nodes_of.push_back({n.id, n.name, n.labels, count_of(n.devices)});
  };
  std::map<std::string, std::uint32_t> known;  // tasks of each job
  for (const auto& n : nodes) {
    const auto job = n.job.empty() ? std::string("worker") : n.job;
    add(n, fmt::format("/job:{}/task:{}", job, known[job]++), n.streams);
  }
  out.client_task = static_cast<std::uint32_t>(out.task_names.size());
  add(client, "/job:client/task:0", streams);
  for (const auto& r : roles) out.roles.emplace_back(r, out.client_task);
  return out;
}

result<training_placement> place_training(std::span<const member_info> nodes, node_id client,
                                          std::uint32_t workers, std::uint32_t shards) {
  auto roles = first_roles(nodes, client, workers, shards, false);
  if (!roles) return std::move(roles.error());
  return place_roles(*roles, client);
}

}  // namespace troupe
