#include "troupe/runtime/compile/passes/passes.hpp"

#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
    const auto task = find_task(a.device, own, where_, a.planned.source);
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
  std::vector<std::uint32_t> worker_stream_;
  // Per task: shards take the streams behind those of its workers.
  std::vector<std::uint32_t> next_shard_stream_;
};

}  // namespace

result<std::uint32_t> find_task(std::string_view wish, std::uint32_t own, const places& where,
                                const source_line& source) {
  const auto d = parsed(wish);
  // In a plan of one task, the program itself, every job is here: so a graph with placement also
  // runs embedded.
  if (where.task_names.size() == 1 || (!d.job && !d.task)) return own;
  std::optional<std::uint32_t> first;
  for (const auto& [role, task] : where.roles) {
    if (!d.admits(parsed(role))) continue;
    if (task == own) return own;
    if (!first) first = task;
  }
  if (first) return *first;
  std::vector<std::string_view> names;
  for (const auto& [role, task] : where.roles) names.push_back(role);
  return error(error_code::usage, fmt::format("there is no task for device '{}'; tasks are {}",
                                              wish, fmt::join(names, ", ")))
      .at(source.file, source.line);
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

}  // namespace troupe::passes
