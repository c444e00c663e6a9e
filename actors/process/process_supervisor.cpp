#include "troupe/actors/process/process_supervisor.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/disk/archive.hpp"
#include "troupe/actors/disk/disk_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <map>
#include <utility>

namespace troupe {

namespace {

struct process_supervisor_state {
  static inline const char* name = "process_supervisor";

  caf::stateful_actor<process_supervisor_state>* self = nullptr;
  process_supervision about;
  supervision_tree tree{"process", restart_strategy::one_for_one, no_restarts};
  supervised_id disk{};
  std::map<caf::actor_addr, supervised_id> children;
  std::map<supervised_id, caf::actor> starting;  // those that the process has spawned
  std::string disk_failure;                      // the last one

  void open(caf::stateful_actor<process_supervisor_state>* s, process_supervision a) {
    self = s;
    about = std::move(a);
    const auto group =
        tree.add_supervisor(top_supervisor, "disk", disk_policy.strategy, disk_policy.limits);
    disk = tree.add_child(group, "actor", disk_policy.restart);
    tree.start(about.now_ns());
    carry_out();
  }

  void on_watch(watch& m) {
    const auto id = tree.add_child(top_supervisor, m.name, m.policy.restart);
    starting.emplace(id, std::move(m.actor));
    tree.tick(about.now_ns());
    carry_out();
  }

  void on_down(const caf::down_msg& m) {
    const auto at = children.find(m.source);
    if (at == children.end()) return;
    const auto who = at->second;
    children.erase(at);
    auto failed = failure_text(m.reason);
    if (who == disk) {
      disk_failure = failed.value_or("it ended");
      tell(self->context(), about.archive, disk_failed{disk_failure});
    }
    tree.on_ended(who, std::move(failed), about.now_ns());
    carry_out();
  }

  void tick() {
    tree.tick(about.now_ns());
    carry_out();
  }

  void carry_out() {
    for (auto actions = tree.take_actions(); !actions.empty(); actions = tree.take_actions())
      for (const auto& a : actions)
        if (a.kind == supervision_action_kind::start) start(a.who);
    if (tree.verdict() == nullptr) return;
    about.on_give_up(tree.verdict()->where_and_why());  // PV-1
    self->quit();
  }

  void start(supervised_id who) {
    const auto given = starting.find(who);
    const auto actor = given != starting.end()
                           ? given->second
                           : spawn_disk(self->system(), about.disk_worker, *about.files);
    if (given != starting.end()) starting.erase(given);
    children.emplace(actor.address(), who);
    self->monitor(actor);
    if (who == disk) tell(self->context(), about.archive, use_disk{actor});
    if (who == disk && !disk_failure.empty())
      about.on_restart(
          fmt::format("the disk actor was started again, after its failure: {}", disk_failure));
    tree.on_started(who, about.now_ns());
  }
};

caf::behavior process_supervisor(caf::stateful_actor<process_supervisor_state>* self,
                                 process_supervision about) {
  auto& s = self->state;
  self->set_down_handler([&s](const caf::down_msg& m) { s.on_down(m); });
  s.open(self, std::move(about));
  return {
      [&s](watch& m) { s.on_watch(m); },
      [&s](supervision_tick) { s.tick(); },
      [self](end_actor) { self->quit(); },
  };
}

}  // namespace

caf::actor spawn_process_supervisor(caf::actor_system& sys, caf::execution_unit* worker,
                                    process_supervision about) {
  return spawn_on(sys, worker, &process_supervisor, std::move(about));
}

}  // namespace troupe
