#include "troupe/actors/disk/archive.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/disk/disk_actor.hpp"

#include <caf/actor_system.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <deque>
#include <utility>

namespace troupe {

namespace {

struct archive_state {
  static inline const char* name = "archive";

  // A part that saves cuts, and what has come of each cut.
  struct open_part {
    open_cuts about;
    std::map<std::uint64_t, std::vector<save_shard>> cuts;  // by step
  };

  caf::stateful_actor<archive_state>* self = nullptr;
  std::map<job_id, open_part> parts;
  caf::actor disk;  // null: it is being started again
  // As many as clients wait for answers: each of them has its own limit.
  std::deque<std::shared_ptr<const disk_request>> waiting;
  std::shared_ptr<const disk_request> at_hand;  // AC-5

  // --- cuts of a part ----------------------------------------------------------------------------

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
    if (at == parts.end() || at->second.about.epoch != m.epoch)
      return tell(self->context(), m.from, cut_saved{m.step});
    const auto step = m.step;
    if (!give_up_others(at->second, step)) return tell(self->context(), m.from, cut_saved{step});
    auto& cut = at->second.cuts[step];
    cut.push_back(std::move(m));
    if (cut.size() < at->second.about.shards) return;
    auto shards = std::move(cut);
    at->second.cuts.erase(step);
    ask(write_part{at->second.about, std::move(shards)});
  }

  // The cuts of a shard ascend: what another one has passed can't become whole. False: that goes
  // for cut `step` itself.
  bool give_up_others(open_part& part, std::uint64_t step) {
    for (auto at = part.cuts.begin(); at != part.cuts.end() && at->first < step;
         at = part.cuts.erase(at)) {
      part_saved report{part.about.job,
                        part.about.epoch,
                        at->first,
                        "not all variables were saved at this step",
                        {},
                        {},
                        {},
                        0,
                        {}};
      tell(self->context(), part.about.node, part_on_disk{std::move(report)});
      release(at->second);
    }
    return part.cuts.empty() || part.cuts.begin()->first == step;
  }

  // --- the disk ----------------------------------------------------------------------------------

  template <class Request>
  void ask(Request&& request) {
    waiting.push_back(std::make_shared<const disk_request>(std::forward<Request>(request)));
    feed();
  }

  void feed() {
    if (!disk || at_hand != nullptr || waiting.empty()) return;
    at_hand = std::move(waiting.front());
    waiting.pop_front();
    tell(self->context(), disk, disk_work{at_hand, caf::actor_cast<caf::actor>(self)});
  }

  void use(use_disk& m) {
    disk = std::move(m.disk);
    feed();
  }

  void on_failed(const disk_failed& m) {
    disk = nullptr;
    if (at_hand == nullptr) return;
    auto refused = refusal_of(*at_hand, fmt::format("the disk actor failed: {}", m.text));
    on_done(refused);
  }

  void on_done(disk_answer& answer) {
    const auto request = std::exchange(at_hand, nullptr);
    if (request == nullptr) return;
    std::visit([this, &answer](const auto& r) { pass_on(r, answer); }, *request);
    feed();
  }

  void pass_on(const write_part& r, disk_answer& answer) {
    // Before the shards: SS-9.
    tell(self->context(), r.about.node, part_on_disk{std::move(std::get<part_saved>(answer))});
    release(r.shards);
  }
  void pass_on(const load_shards& r, disk_answer& answer) {
    tell(self->context(), r.to, std::move(std::get<shards_loaded>(answer)));
  }
  void pass_on(const claim_next& r, disk_answer& answer) {
    tell(self->context(), r.to, std::move(std::get<epoch_claimed>(answer)));
  }
  void pass_on(const drop_cut&, disk_answer&) {}
  void pass_on(const write_cut& r, disk_answer& answer) {
    tell(self->context(), r.to, std::move(std::get<cut_written>(answer)));
  }
};

caf::behavior archive(caf::stateful_actor<archive_state>* self) {
  auto& s = self->state;
  s.self = self;
  self->set_exception_handler(&reason_of);
  return {
      [&s](open_cuts& m) { s.open(m); },
      [&s](const close_cuts& m) { s.close(m.job); },
      [&s](save_shard& m) { s.collect(m); },
      [&s](load_shards& m) { s.ask(std::move(m)); },
      [&s](claim_next& m) { s.ask(std::move(m)); },
      [&s](write_cut& m) { s.ask(std::move(m)); },
      [&s](drop_cut& m) { s.ask(std::move(m)); },
      [&s](disk_done& m) { s.on_done(*m.answer); },
      [&s](use_disk& m) { s.use(m); },
      [&s](const disk_failed& m) { s.on_failed(m); },
  };
}

}  // namespace

caf::actor spawn_archive(caf::actor_system& sys, caf::execution_unit* worker) {
  return spawn_on(sys, worker, &archive);
}

}  // namespace troupe
