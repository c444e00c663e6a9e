#include "troupe/runtime/compile/passes/passes.hpp"

#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace troupe::passes {
namespace {

// Device strings were parsed when the graph was built.
device_name parsed(std::string_view wish) {
  if (wish.empty()) return {};
  auto d = parse_device(wish);
  expects(bool(d), "a device in a graph was checked by its scope");
  return *d;
}

class placer {
 public:
  explicit placer(const places& where)
      : where_(where), next_shard_stream_(where.task_names.size()) {
    for (const auto task : where.worker_task) worker_stream_.push_back(next_shard_stream_[task]++);
  }

  result<void> place(draft_actor& a) {
    const auto own = own_task(a);
    const auto task = find(a);
    if (!task) return std::move(task.error());
    a.planned.task = *task;
    const auto wish = parsed(a.device);
    if (wish.gpu && (a.planned.kind == actor_kind::op || a.planned.kind == actor_kind::shard))
      a.planned.stream = device_stream_of(*wish.gpu);
    else if (wish.cpu)
      a.planned.stream = *wish.cpu;
    else if (a.owner == owner_kind::shard)
      a.planned.stream = next_shard_stream_[*task]++;
    else if (a.owner == owner_kind::worker && *task == own)
      a.planned.stream = worker_stream_[a.index];
    return {};
  }

  result<std::uint32_t> find(const draft_actor& a) {
    const auto own = own_task(a);
    if (a.device.empty()) return own;
    const auto key = std::pair(a.device, own);
    if (const auto at = found_.find(key); at != found_.end()) return at->second;
    auto task = find_task(a.device, own, where_, a.planned.source);
    if (task) found_.emplace(key, *task);
    return task;
  }

  // Of an actor that is placed.
  placement_reason reason(const draft_actor& a) const {
    using kind = placement_reason::kind;
    const auto owner = a.owner == owner_kind::worker  ? kind::worker
                       : a.owner == owner_kind::shard ? kind::shard
                                                      : kind::client;
    return {owner, a.index, a.device, a.planned.task != own_task(a)};
  }

 private:
  std::uint32_t own_task(const draft_actor& a) const {
    switch (a.owner) {
      case owner_kind::worker: return where_.worker_task[a.index];
      case owner_kind::shard: return where_.shard_task[a.index];
      case owner_kind::client: return where_.client_task;
    }
    return where_.client_task;
  }

  const places& where_;
  // By wish and own task: many have the same.
  std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> found_;
  std::vector<std::uint32_t> worker_stream_;
  // Per task: shards take the streams behind those of its workers.
  std::vector<std::uint32_t> next_shard_stream_;
};

}  // namespace

namespace {

bool is_of_node(const device_name& d, const task_node& n) {
  return (!d.node || *d.node == n.name) &&
         (!d.label || std::ranges::find(n.labels, *d.label) != n.labels.end());
}

// "/job:worker/task:0 (n3, rack=3, 2 gpus)"
std::string text_of(const std::string& role, std::uint32_t task, const places& where) {
  if (task >= where.nodes_of.size()) return role;
  const auto& n = where.nodes_of[task];
  std::string more = n.name;
  for (const auto& l : n.labels) more += (more.empty() ? "" : ", ") + l;
  if (n.devices > 0)
    more += fmt::format("{}{} {}", more.empty() ? "" : ", ", n.devices,
                        n.devices == 1 ? "gpu" : "gpus");
  return more.empty() ? role : fmt::format("{} ({})", role, more);
}

error no_such_device(std::string_view wish, const places& where, const source_line& source) {
  constexpr std::size_t shown_max = 8;
  std::vector<std::string> names;
  for (const auto& [role, task] : where.roles)
    if (names.size() < shown_max) names.push_back(text_of(role, task, where));
  auto e = error(
      error_code::usage,
      fmt::format("there is no task for device '{}'; tasks are {}{}", wish, fmt::join(names, ", "),
                  where.roles.size() > shown_max
                      ? fmt::format(" and {} more", where.roles.size() - shown_max)
                      : ""));
  return source.file.empty() ? e : e.at(source.file, source.line);
}

}  // namespace

result<std::uint32_t> find_task(std::string_view wish, std::uint32_t own, const places& where,
                                const source_line& source) {
  const auto d = parsed(wish);
  if (!d.names_a_place() || where.roles.empty()) return own;
  std::optional<std::uint32_t> first;
  for (const auto& [role, task] : where.roles) {
    if (!d.admits(parsed(role))) continue;
    if ((d.node || d.label) &&
        (task >= where.nodes_of.size() || !is_of_node(d, where.nodes_of[task])))
      continue;
    // Which devices this process has, its own part says when it begins.
    if (task == own) return own;
    if (d.gpu && task < where.nodes_of.size() && where.nodes_of[task].devices <= *d.gpu) continue;
    if (!first) first = task;
  }
  if (first) return *first;
  return no_such_device(wish, where, source);
}

result<draft> place(draft d, const places& where, pass_report* report,
                    std::vector<placement_reason>* reasons) {
  placer p(where);
  for (auto& a : d.actors) {
    if (auto ok = p.place(a); !ok) return std::move(ok.error());
    if (reasons != nullptr) reasons->push_back(p.reason(a));
    if (report != nullptr && !a.device.empty())
      report->add(a.planned.name, a.planned.source, [&] {
        return fmt::format("is on {}, {}, as its device '{}' asks",
                           where.task_names[a.planned.task], stream_text(a.planned.stream),
                           a.device);
      });
  }
  return d;
}

result<void> check_wishes(const draft& d, const places& where) {
  placer p(where);
  for (const auto& a : d.actors)
    if (auto task = p.find(a); !task) return std::move(task.error());
  return {};
}

void leave_out_idle_tasks(draft& d, places& where) {
  std::vector<bool> is_used(where.task_names.size());
  is_used[where.client_task] = true;
  for (const auto& a : d.actors) is_used[a.planned.task] = true;
  std::vector<std::uint32_t> now(is_used.size(), no_task);
  places out;
  for (std::uint32_t t = 0; t < is_used.size(); ++t) {
    if (!is_used[t]) continue;
    now[t] = static_cast<std::uint32_t>(out.task_names.size());
    out.task_names.push_back(where.task_names[t]);
    if (!where.streams.empty()) out.streams.push_back(where.streams[t]);
    if (!where.nodes_of.empty()) out.nodes_of.push_back(where.nodes_of[t]);
  }
  for (const auto& [role, task] : where.roles)
    if (now[task] != no_task) out.roles.emplace_back(role, now[task]);
  const auto moved = [&](std::uint32_t t) {
    return now[t] == no_task ? now[where.client_task] : now[t];
  };
  for (const auto t : where.worker_task) out.worker_task.push_back(moved(t));
  for (const auto t : where.shard_task) out.shard_task.push_back(moved(t));
  out.client_task = now[where.client_task];
  for (auto& a : d.actors) a.planned.task = now[a.planned.task];
  where = std::move(out);
}

}  // namespace troupe::passes
