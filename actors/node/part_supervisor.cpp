#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/actors/node/part_supervisor.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/devices/memory/landing_pool.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

struct supervisor_state {
  static inline const char* name = "supervisor";

  caf::stateful_actor<supervisor_state>* self = nullptr;
  part_request request;
  std::size_t ready = 0, done = 0, alive = 0;
  bool is_stopping = false;
  bool is_asking_streams = false;
  std::vector<caf::actor> under_way;  // PT-2: streams that have not answered
  bool has_failed = false, has_derived = false;

  void open(caf::stateful_actor<supervisor_state>* s, part_request r) {
    self = s;
    request = std::move(r);
    if (request.is_left_over) return end_left_over();
    request.context->supervisor = caf::actor_cast<caf::actor>(self);
    auto& handles = request.handles;
    handles->actors.resize(request.context->job_plan->actors.size());
    handles->links = request.links;
    const auto& job_plan = *request.context->job_plan;
    for (const auto i : request.actors) {
      if (runs_beside_links(job_plan.actors[i]))
        handles->desks.emplace(i, std::make_shared<piece_desk>());
      const auto& planned = job_plan.actors[i];
      for (std::uint32_t port = 0; port < planned.outputs.size(); ++port)
        if (const auto size = landing_buffers(job_plan, {i, port}); size > 0)
          handles->landings.emplace(
              std::pair(i, port),
              std::make_shared<landing_pool>(planned.output_specs[port].size_bytes(), size));
    }
    for (auto i :
         by_stream(*request.context->job_plan, request.actors, request.context->host_streams())) {
      const auto& planned = request.context->job_plan->actors[i];
      auto* worker =
          runs_beside_links(planned)
              ? request.io
              : request.streams[worker_of(planned.stream, request.context->host_streams())];
      auto a = spawn_on<port_shell>(self->system(), worker,
                                    std::shared_ptr<const part_context>(request.context), i);
      self->monitor(a);
      handles->actors[i] = std::move(a);
      ++alive;
    }
    for (auto i : request.actors) tell(self->context(), handles->actors[i], wire_ports{handles});
    if (request.actors.empty())
      report({request.context->job,
              request.context->part,
              part_event_kind::placed,
              {},
              {},
              0,
              request.handles});
    if (request.actors.empty())
      report({request.context->job, request.context->part, part_event_kind::done, {}, {}, 0, {}});
  }

  void end_left_over() {
    for (auto& a : request.handles->actors) {
      if (!a) continue;
      self->monitor(a);  // of one that has ended too: that is told at once
      ++alive;
    }
    stop();
  }

  void report(part_event e) { tell(self->context(), request.node, std::move(e)); }

  void on_ready() {
    if (++ready == request.actors.size())
      report({request.context->job,
              request.context->part,
              part_event_kind::placed,
              {},
              {},
              0,
              request.handles});
  }

  void on_done() {
    if (++done == request.actors.size())
      report({request.context->job, request.context->part, part_event_kind::done, {}, {}, 0, {}});
  }

  // One failure is told, but for a derived one before it.
  void on_failed(const actor_failed& m) {
    if (has_failed || (m.is_derived && std::exchange(has_derived, true))) return;
    has_failed = !m.is_derived;
    const auto& actor = request.context->job_plan->actors[m.actor];
    report({request.context->job,
            request.context->part,
            part_event_kind::failed,
            m.text,
            actor.name,
            m.step,
            {},
            m.is_derived});
  }

  void on_noted(const actor_noted& m) {
    if (!has_failed)
      report({request.context->job,
              request.context->part,
              part_event_kind::noted,
              m.text,
              request.context->job_plan->actors[m.actor].name,
              m.step,
              {}});
  }

  void on_down(const caf::down_msg& m) {
    if (is_asking_streams) return on_through(m.source);
    --alive;
    if (is_stopping) return end_if_empty();
    for (auto i : request.actors)
      if (request.handles->actors[i] && request.handles->actors[i].address() == m.source)
        on_failed({i, request.context->records[i]->steps.load(std::memory_order_relaxed),
                   "the actor ended: " + self->system().render(m.reason)});
  }

  void start() {
    for (auto i : request.actors) tell(self->context(), request.handles->actors[i], start_firing{});
  }

  void cancel(const cancel_step& m) {
    for (auto i : request.actors)
      if (const auto& a = request.context->job_plan->actors[i];
          a.kind == actor_kind::op && a.ops.front().type == loop_condition_op)
        tell(self->context(), request.handles->actors[i], cancel_step{m});
  }

  void mark(const mark_cut& m) {
    for (auto i : request.actors)
      if (request.context->job_plan->actors[i].marks_cuts)
        tell(self->context(), request.handles->actors[i], mark_cut{m});
  }

  void on_task_lost(const task_lost& m) {
    const auto& p = *request.context->job_plan;
    for (auto i : request.actors) {
      const auto& a = p.actors[i];
      const bool receives =
          a.kind == actor_kind::receive && p.actors[p.edges[a.inputs[0]].from.actor].task == m.task;
      const bool sends =
          a.kind == actor_kind::send && p.actors[p.edges[a.outputs[0][0]].to.actor].task == m.task;
      // A communicator of devices is lost with any of its ranks, whoever sends whom its id.
      const bool loses_rank =
          a.kind == actor_kind::collective && a.collective->is_on_device() &&
          std::any_of(p.actors.begin(), p.actors.end(), [&](const auto& o) {
            return o.kind == actor_kind::collective && o.task == m.task && o.stream == a.stream;
          });
      const auto joins = [&](const planned_edge& e) {
        return a.kind == actor_kind::collective &&
               (p.actors[e.from.actor].task == m.task || p.actors[e.to.actor].task == m.task);
      };
      const bool exchanges =
          std::any_of(a.inputs.begin(), a.inputs.end(),
                      [&](auto e) { return joins(p.edges[e]); }) ||
          std::any_of(a.outputs.begin(), a.outputs.end(), [&](const auto& es) {
            return std::any_of(es.begin(), es.end(), [&](auto e) { return joins(p.edges[e]); });
          });
      if (receives || sends || exchanges || loses_rank)
        tell(self->context(), request.handles->actors[i], peer_lost{0, m.reason});
    }
  }

  void stop() {
    if (std::exchange(is_stopping, true)) return;
    for (const auto& a : request.handles->actors)
      if (a) tell(self->context(), a, end_actor{});
    end_if_empty();
  }

  void end_if_empty() {
    if (alive > 0) return;
    is_asking_streams = true;
    for (const auto& lane : request.context->lanes->all())
      if (auto stream = lane->actor()) {
        self->monitor(stream);
        tell(self->context(), stream, ask_through{caf::actor_cast<caf::actor>(self)});
        under_way.push_back(std::move(stream));
      }
    end_if_through();
  }

  void on_through(const caf::actor_addr& who) {
    std::erase_if(under_way, [&](const auto& s) {
      if (s.address() != who) return false;
      self->demonitor(s);
      return true;
    });
    end_if_through();
  }

  void end_if_through() {
    if (!under_way.empty()) return;
    report({request.context->job, request.context->part, part_event_kind::stopped, {}, {}, 0, {}});
    for (auto i : request.actors) request.context->records[i]->enter(actor_state::ended);
    self->quit();
  }
};

caf::behavior supervisor(caf::stateful_actor<supervisor_state>* self, part_request request) {
  auto& s = self->state;
  self->set_exception_handler(&reason_of);
  self->set_down_handler([&s](const caf::down_msg& m) { s.on_down(m); });
  s.open(self, std::move(request));
  return {
      [&s](const actor_ready&) { s.on_ready(); },
      [&s](const actor_done&) { s.on_done(); },
      [&s](const actor_noted& m) { s.on_noted(m); },
      [&s](const actor_failed& m) { s.on_failed(m); },
      [&s](start_firing) { s.start(); },
      [&s](const mark_cut& m) { s.mark(m); },
      [&s](const cancel_step& m) { s.cancel(m); },
      [&s](const stop_part_actors&) { s.stop(); },
      [&s](const task_lost& m) { s.on_task_lost(m); },
      [&s](const stream_through& m) { s.on_through(m.stream); },
  };
}

}  // namespace

caf::actor spawn_supervisor(caf::actor_system& sys, caf::execution_unit* worker,
                            part_request request) {
  return spawn_on(sys, worker, &supervisor, std::move(request));
}

}  // namespace troupe
