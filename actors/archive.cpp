#include "actors/archive.hpp"

#include "actors/scheduler.hpp"
#include "actors/tell.hpp"
#include "runtime/checkpoint_store.hpp"

#include <caf/actor_system.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view velocity_slot = "velocity";

struct archive_state {
  static inline const char* name = "archive";

  // A part that saves cuts, and what has come of each cut.
  struct open_part {
    open_cuts about;
    std::map<std::uint64_t, std::vector<save_shard>> cuts;  // by step
  };

  caf::stateful_actor<archive_state>* self = nullptr;
  disk* where = nullptr;
  std::map<job_id, open_part> parts;

  // --- cuts of a part ----------------------------------------------------------------------------------------------------------

  void open(open_cuts& m) {
    const auto job = m.job;
    close(job);
    parts.emplace(job, open_part{std::move(m), {}});
  }

  void close(job_id job) {
    const auto at = parts.find(job);
    if (at == parts.end()) return;
    for (auto& [step, shards] : at->second.cuts) release(shards);
    parts.erase(at);
  }

  // AC-2.
  void release(const std::vector<save_shard>& shards) {
    for (const auto& s : shards) tell(self->context(), s.from, cut_saved{s.step});
  }

  void collect(save_shard& m) {
    const auto at = parts.find(m.job);
    if (at == parts.end() || at->second.about.epoch != m.epoch) return tell(self->context(), m.from, cut_saved{m.step});
    const auto step = m.step;
    if (!give_up_others(at->second, step)) return tell(self->context(), m.from, cut_saved{step});
    auto& cut = at->second.cuts[step];
    cut.push_back(std::move(m));
    if (cut.size() < at->second.about.shards) return;
    const auto shards = std::move(cut);
    at->second.cuts.erase(step);
    tell(self->context(), at->second.about.node, part_on_disk{save(at->second.about, shards)});  // before the shards: SS-9
    release(shards);
  }

  // The cuts of a shard ascend: what another one has passed can't become whole. False: that goes for cut `step` itself.
  bool give_up_others(open_part& part, std::uint64_t step) {
    for (auto at = part.cuts.begin(); at != part.cuts.end() && at->first < step; at = part.cuts.erase(at)) {
      part_saved report{part.about.job, part.about.epoch, at->first, "not all variables stopped at it", {}, {}, {}, 0, {}};
      tell(self->context(), part.about.node, part_on_disk{std::move(report)});
      release(at->second);
    }
    return part.cuts.empty() || part.cuts.begin()->first == step;
  }

  part_saved save(const open_cuts& about, const std::vector<save_shard>& shards) {
    part_saved report{about.job, about.epoch, shards.front().step, {}, shards.front().applied, {}, {}, 0, {}};
    std::vector<named_tensor> tensors;
    for (const auto& s : shards) {
      if (s.applied != report.worker_steps) report.error = fmt::format("variables {} and {} hold different steps", shards.front().variable, s.variable);
      report.variables.push_back(s.variable);
      tensors.push_back({s.variable, s.values});
      tensors.push_back({slot_tensor_name(s.variable, velocity_slot), s.velocity});
    }
    std::sort(report.variables.begin(), report.variables.end());
    if (!report.error.empty()) return report;
    auto written = checkpoint_store(*where, about.folder, about.name, about.bugs).write_part({about.epoch, report.step}, about.part, tensors);
    if (!written) {
      report.error = written.error().text();
      return report;
    }
    report.file = written->file;
    report.hash = written->hash;
    report.bytes = written->bytes;
    return report;
  }

  // --- reading -----------------------------------------------------------------------------------------------------------------

  void load(const load_shards& m) {
    shards_loaded out{m.job, m.epoch, {}, {}};
    if (auto loaded = read(m, out.shards); !loaded) out.error = loaded.error().text();
    tell(self->context(), m.to, std::move(out));
  }

  result<void> read(const load_shards& m, std::map<std::string, std::shared_ptr<kept_shard>>& out) {
    checkpoint_store store(*where, m.folder, m.name);
    const auto manifest = find(store, m);
    if (!manifest) return manifest.error();
    const checkpoint_id id{manifest->epoch, manifest->step};
    const std::set<std::string> wanted(m.variables.begin(), m.variables.end());
    for (const auto& part : manifest->parts) {
      if (std::none_of(part.variables.begin(), part.variables.end(), [&](const auto& v) { return wanted.contains(v); })) continue;
      auto tensors = store.load_part(id, part);
      if (!tensors) return tensors.error();
      for (auto& [name, value] : *tensors) {
        const auto [variable, slot] = split_tensor_name(name);
        if (!wanted.contains(std::string(variable))) continue;
        auto& kept = out[std::string(variable)];
        if (kept == nullptr) kept = std::make_shared<kept_shard>(kept_shard{{{manifest->step, {}, {}}}, manifest->worker_steps, false});
        (slot.empty() ? kept->slots[0].values : kept->slots[0].velocity) = std::move(value);
      }
    }
    for (const auto& v : wanted)
      if (const auto at = out.find(v); at == out.end() || !at->second->slots[0].values || !at->second->slots[0].velocity)
        return error(error_code::failed, fmt::format("{} lacks variable '{}'", store.folder_of(id), v));
    return {};
  }

  result<checkpoint_manifest> find(checkpoint_store& store, const load_shards& m) {
    const auto id = parse_checkpoint_folder_name(m.checkpoint);
    if (!id) return error(error_code::usage, fmt::format("'{}' is no name of a checkpoint", m.checkpoint));
    auto all = store.list();
    if (!all) return all.error();
    for (auto& c : all->checkpoints)
      if (c.id == *id) {
        if (c.manifest) return std::move(*c.manifest);
        return error(error_code::failed, c.problem);
      }
    return error(error_code::not_found, fmt::format("{} is not there: every node needs the same folder", store.folder_of(*id)));
  }

  // --- the whole job -----------------------------------------------------------------------------------------------------------

  void claim(const claim_next& m) {
    checkpoint_store store(*where, m.folder, m.name);
    auto epoch = store.claim_epoch(m.who);
    epoch_claimed out;
    if (epoch && m.wants_checkpoint) {
      auto latest = store.latest_whole();
      if (latest) {
        out.newest = std::move(latest->manifest);
        out.notes = std::move(latest->passed_over);
      } else {
        epoch = std::move(latest.error());
      }
    }
    out.epoch = std::make_shared<const result<std::uint32_t>>(std::move(epoch));
    tell(self->context(), m.to, std::move(out));
  }

  void write(const write_cut& m) {
    checkpoint_store store(*where, m.folder, m.manifest.job);
    tell(self->context(), m.to, cut_written{m.manifest.step, m.manifest.epoch, std::make_shared<const result<void>>(publish(store, m))});
  }

  result<void> publish(checkpoint_store& store, const write_cut& m) {
    const auto newest = store.newest_epoch();
    if (!newest) return newest.error();
    if (*newest > m.manifest.epoch)  // AC-3
      return error(error_code::denied, fmt::format("epoch {} of this job was claimed in {}: another program has resumed it", *newest, store.folder()));
    if (auto written = store.write_manifest(m.manifest); !written) return written;
    // What cannot be removed now is removed the next time.
    (void)store.prune(m.keep, checkpoint_check::sizes);
    return {};
  }
};

caf::behavior archive(caf::stateful_actor<archive_state>* self, disk* where) {
  auto& s = self->state;
  s.self = self;
  s.where = where;
  return {
      [&s](open_cuts& m) { s.open(m); },
      [&s](const close_cuts& m) { s.close(m.job); },
      [&s](save_shard& m) { s.collect(m); },
      [&s](const load_shards& m) { s.load(m); },
      [&s](const claim_next& m) { s.claim(m); },
      [&s](const write_cut& m) { s.write(m); },
  };
}

}  // namespace

caf::actor spawn_archive(caf::actor_system& sys, caf::execution_unit* worker, disk& where) {
  return spawn_on(sys, worker, &archive, &where);
}

}  // namespace troupe
