#include "troupe/actors/disk/disk_actor.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/jobs/job_cuts.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace troupe {

namespace {

struct disk_state {
  static inline const char* name = "disk";

  disk* where = nullptr;

  // --- a part of a cut ---------------------------------------------------------------------------

  disk_answer act(const write_part& m) {
    const auto& [about, shards] = m;
    part_saved report{
        about.job, about.epoch, shards.front().step, {}, shards.front().applied, {}, {}, 0, {}};
    std::vector<named_tensor> tensors;
    for (const auto& s : shards) {
      if (s.applied != report.worker_steps)
        report.error = fmt::format("variables {} and {} hold different steps",
                                   shards.front().variable, s.variable);
      // CU-5
      if (const auto at = first_nan(s.values); at && report.error.empty())
        report.error = fmt::format("{} has {} (its element {}): {}", s.variable,
                                   not_finite_text(s.values, *at), *at, diverged_text);
      report.variables.push_back(s.variable);
      tensors.push_back({s.variable, s.values});
      for (const auto& [slot, value] : s.state)
        tensors.push_back({slot_tensor_name(s.variable, slot), value});
    }
    std::sort(report.variables.begin(), report.variables.end());
    if (!report.error.empty()) return report;
    auto written = checkpoint_store(*where, about.folder, about.name, about.bugs)
                       .write_part({about.epoch, report.step}, about.part, tensors);
    if (!written) {
      report.error = written.error().text();
      return report;
    }
    report.file = written->file;
    report.hash = written->hash;
    report.bytes = written->bytes;
    return report;
  }

  // --- reading -----------------------------------------------------------------------------------

  disk_answer act(const load_shards& m) {
    shards_loaded out{m.job, m.epoch, {}, {}};
    if (auto loaded = read(m, out.shards); !loaded) out.error = loaded.error().text();
    return out;
  }

  result<void> read(const load_shards& m, std::map<std::string, std::shared_ptr<kept_shard>>& out) {
    checkpoint_store store(*where, m.folder, m.name);
    const auto manifest = find(store, m);
    if (!manifest) return manifest.error();
    const checkpoint_id id{manifest->epoch, manifest->step};
    const auto& wanted = m.variables;
    // By variable and slot.
    std::map<std::string, std::map<std::string, tensor, std::less<>>> found;
    for (const auto& part : manifest->parts) {
      if (std::none_of(part.variables.begin(), part.variables.end(),
                       [&](const auto& v) { return wanted.contains(v); }))
        continue;
      auto tensors = store.load_part(id, part);
      if (!tensors) return tensors.error();
      for (auto& [name, value] : *tensors) {
        const auto [variable, slot] = split_tensor_name(name);
        if (wanted.contains(std::string(variable)))
          found[std::string(variable)].emplace(slot, std::move(value));
      }
    }
    for (const auto& [variable, slots] : wanted) {
      auto& tensors = found[variable];
      const auto values = tensors.extract("");
      if (values.empty())
        return error(error_code::failed,
                     fmt::format("{} lacks variable '{}'", store.folder_of(id), variable));
      kept_version saved{manifest->step, values.mapped(), {}};
      std::vector<std::string> there;
      for (const auto& [slot, value] : tensors) there.push_back(slot);
      if (auto ok = compare_slots(variable, there, slots); !ok)
        return std::move(ok.error().while_doing(store.folder_of(id)));
      for (const auto& slot : slots) saved.state.push_back(std::move(tensors.find(slot)->second));
      out[variable] = std::make_shared<kept_shard>(
          kept_shard{{std::move(saved)}, manifest->worker_steps, false});
    }
    return {};
  }

  result<checkpoint_manifest> find(checkpoint_store& store, const load_shards& m) {
    const auto id = parse_checkpoint_folder_name(m.checkpoint);
    if (!id)
      return error(error_code::usage, fmt::format("'{}' is no name of a checkpoint", m.checkpoint));
    auto all = store.list();
    if (!all) return all.error();
    for (auto& c : all->checkpoints)
      if (c.id == *id) {
        if (c.manifest) return std::move(*c.manifest);
        return error(error_code::failed, c.problem);
      }
    return error(error_code::not_found,
                 fmt::format("{} does not exist on this node: every node needs the same folder",
                             store.folder_of(*id)));
  }

  // --- the whole job -----------------------------------------------------------------------------

  disk_answer act(const claim_next& m) {
    checkpoint_store store(*where, m.folder, m.name);
    epoch_claimed out;
    if (auto ok = store.expect_unclaimed(m.known_epoch, m.rivals,
                                         m.is_anybody_a_rival ? &m.who : nullptr);
        !ok) {
      out.epoch = std::make_shared<const result<std::uint32_t>>(std::move(ok.error()));
      return out;
    }
    auto epoch = store.claim_epoch(m.who);
    if (epoch && m.wants_lock)
      if (auto lock = store.lock_job()) out.lock = std::move(*lock);
    if (epoch && m.wants_checkpoint) {
      auto latest = store.latest_whole(m.run);
      if (latest) {
        out.newest = std::move(latest->manifest);
        out.notes = std::move(latest->passed_over);
      } else {
        epoch = std::move(latest.error());
      }
    }
    out.epoch = std::make_shared<const result<std::uint32_t>>(std::move(epoch));
    return out;
  }

  disk_answer act(const write_cut& m) {
    checkpoint_store store(*where, m.folder, m.manifest.job);
    auto published = publish(store, m);
    if (!published) (void)store.remove_unfinished({m.manifest.epoch, m.manifest.step});
    return cut_written{m.manifest.step, m.manifest.epoch,
                       std::make_shared<const result<void>>(std::move(published))};
  }

  // What cannot be removed now is removed with the next one.
  disk_answer act(const drop_cut& m) {
    (void)checkpoint_store(*where, m.folder, m.name).remove_unfinished(m.id);
    return cut_dropped{};
  }

  result<void> publish(checkpoint_store& store, const write_cut& m) {
    const auto newest = store.newest_epoch();
    if (!newest) return newest.error();
    if (*newest > m.manifest.epoch)  // AC-3
      return error(
          error_code::denied,
          fmt::format("epoch {} of this job was claimed in {}: another program has resumed it",
                      *newest, store.folder()));
    if (auto written = store.write_manifest(m.manifest); !written) return written;
    // What cannot be removed now is removed the next time.
    (void)store.prune(m.keep, checkpoint_check::sizes, m.run);
    return {};
  }
};

caf::behavior disk_behavior(caf::stateful_actor<disk_state>* self, disk* where) {
  auto& s = self->state;
  s.where = where;
  self->set_exception_handler(&reason_of);
  return {
      [self, &s](const disk_work& m) {
        auto answer = std::visit([&s](const auto& request) { return s.act(request); }, *m.request);
        tell(self->context(), m.to, disk_done{std::make_shared<disk_answer>(std::move(answer))});
      },
  };
}

struct refuse {
  const std::string& why;

  disk_answer operator()(const write_part& m) const {
    const auto& [about, shards] = m;
    return part_saved{
        about.job, about.epoch, shards.front().step, why, shards.front().applied, {}, {}, 0, {}};
  }
  disk_answer operator()(const load_shards& m) const {
    return shards_loaded{m.job, m.epoch, why, {}};
  }
  disk_answer operator()(const claim_next&) const {
    return epoch_claimed{
        std::make_shared<const result<std::uint32_t>>(error(error_code::failed, why)), {}, {}};
  }
  disk_answer operator()(const write_cut& m) const {
    return cut_written{m.manifest.step, m.manifest.epoch,
                       std::make_shared<const result<void>>(error(error_code::failed, why))};
  }
  disk_answer operator()(const drop_cut&) const { return cut_dropped{}; }
};

}  // namespace

disk_answer refusal_of(const disk_request& request, const std::string& why) {
  return std::visit(refuse{why}, request);
}

caf::actor spawn_disk(caf::actor_system& sys, caf::execution_unit* worker, disk& where) {
  return spawn_on(sys, worker, &disk_behavior, &where);
}

}  // namespace troupe
