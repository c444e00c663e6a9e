#include "actors/job.hpp"
#include "actors/scheduler.hpp"
#include "actors/tell.hpp"

#include <caf/actor_system.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace troupe {

namespace {

// The variable whose versions come in at input `edge`: transfers are passed through.
std::string variable_behind(const plan& p, std::uint32_t edge) {
  const auto* actor = &p.actors[p.edges[edge].from.actor];
  while (actor->kind == actor_kind::receive || actor->kind == actor_kind::send)
    actor = &p.actors[p.edges[actor->inputs.at(0)].from.actor];
  return actor->shard.variable;
}

struct job_actor_state {
  static inline const char* name = "job";

  enum class phase : std::uint8_t { placing, running, over };

  caf::stateful_actor<job_actor_state>* self = nullptr;
  job_id id{};
  std::shared_ptr<const job_request> request;
  caf::actor node, program;
  std::map<node_id, member_info> members;
  std::shared_ptr<actor_record> record;
  std::shared_ptr<job_snapshot> board;

  phase now = phase::placing;
  std::set<node_id> unplaced, running;  // participants that did not answer yet; that have not ended
  std::shared_ptr<const part_handles> handles;
  bool has_local_part = false;
  job_totals totals;
  std::vector<std::uint64_t> losses_seen;  // by worker
  std::map<std::uint32_t, shard_report> shards;
  std::uint64_t step = 0;

  const plan& job_plan() const { return request->job_plan; }

  void open() {
    const auto& p = job_plan();
    losses_seen.resize(p.workers);
    totals.workers.resize(p.workers);
    totals.actors = p.actors.size();
    totals.op_actors = static_cast<std::uint64_t>(
        std::count_if(p.actors.begin(), p.actors.end(), [](const auto& a) { return a.kind == actor_kind::op; }));
    describe_board();
    record->enter(actor_state::running);
    const auto bytes = encode(p);
    std::set<node_id> participants(request->nodes.begin(), request->nodes.end());
    unplaced = running = participants;
    for (auto n : participants) {
      if (!members.contains(n)) return fail(fmt::format("no node {:x} is known here", raw(n)));
      if (members.at(n).name == board->client) has_local_part = true;
    }
    for (auto n : participants) send(n, place_part{id, 1, bytes, request->nodes});
  }

  void describe_board() {
    const auto& p = job_plan();
    board->name = p.name;
    board->workers = p.workers;
    board->shards = p.shards;
    board->update = p.workers == 0 ? "" : p.update == update_kind::sync ? "sync" : "async";
    for (const auto& a : p.actors)
      if (a.kind == actor_kind::fetch && (a.name == "loss" || p.workers == 0)) board->steps = a.steps;
    for (auto n : std::set<node_id>(request->nodes.begin(), request->nodes.end()))
      if (auto at = members.find(n); at != members.end()) board->participants.push_back(at->second.name);
  }

  void send(node_id to, control_message body) { tell(self->context(), node, to_node{to, std::move(body)}); }
  template <class Message>
  void to_program(Message m) {
    record->count_out(0);
    tell(self->context(), program, std::move(m));
  }

  std::string who(node_id n) const {
    auto at = members.find(n);
    return at == members.end() ? fmt::format("node {:x}", raw(n)) : fmt::format("node {} (pid {})", at->second.name, at->second.pid);
  }

  // --- placing -----------------------------------------------------------------------------------------------------------------

  void on_message(const peer_message& m) {
    record->count_in(0);
    if (auto* p = std::get_if<part_placed>(&m.body)) return on_placed(m.from, *p);
    if (auto* p = std::get_if<part_ended>(&m.body)) return on_ended(m.from, *p);
  }

  void on_placed(node_id from, const part_placed& p) {
    if (now != phase::placing) return;
    if (!p.error.empty()) return fail(fmt::format("{} refused its part: {}", who(from), p.error));
    unplaced.erase(from);
    start_if_placed();
  }

  void on_handles(job_started& m) {
    handles = std::move(m.handles);
    start_if_placed();
  }

  void start_if_placed() {
    if (now != phase::placing || !unplaced.empty() || (has_local_part && handles == nullptr)) return;
    now = phase::running;
    for (auto n : running) send(n, start_part{id});
    to_program(job_started{id, handles});
  }

  // --- running -----------------------------------------------------------------------------------------------------------------

  void on_fetched(fetched& m) {
    record->count_in(0);
    if (now == phase::over) return;
    const auto& fetch = job_plan().actors[m.fetch];
    if (fetch.name == "loss")
      on_loss(fetch, m);
    else
      on_variables(fetch, m);
    tell(self->context(), handles->actors[m.fetch], credit{0, 1});
  }

  void on_loss(const planned_actor& fetch, const fetched& m) {
    float loss = 0;
    for (const auto& v : m.values) loss += *v.data<float>();  // in worker order
    if (fetch.fires_on_any) {
      ++losses_seen[m.port];
      to_program(job_progress{step, m.port, loss});
    } else {
      for (auto& n : losses_seen) ++n;
      to_program(job_progress{m.t.step, 0, loss});
    }
    record->count_step();
    board->step = ++step;
  }

  void on_variables(const planned_actor& fetch, fetched& m) {
    job_variables out{m.t.step, {}};
    for (std::size_t i = 0; i < m.values.size(); ++i)
      out.values.emplace_back(variable_behind(job_plan(), fetch.inputs[i]), std::move(m.values[i]));
    to_program(std::move(out));
  }

  void on_ended(node_id from, const part_ended& p) {
    if (now == phase::over) return;
    for (const auto& s : p.shards) shards[s.actor] = s;
    totals.data_messages += p.data_messages;
    if (!p.error.empty()) return fail(fmt::format("{}, actor {}, step {}: {}", who(from), p.actor, p.step, p.error));
    running.erase(from);
    finish_if_ended();
  }

  void finish_if_ended() {
    if (now != phase::running || !running.empty()) return;
    end("done");
    board->state = job_state::done;
    to_program(job_finished{totals});
    leave();
  }

  // --- failures ----------------------------------------------------------------------------------------------------------------

  void on_down(const member_down& m) {
    if (now == phase::over || !(unplaced.contains(m.member.id) || running.contains(m.member.id))) return;
    const auto what = describe_loss(m.member);
    if (now == phase::placing || !can_lose(m.member.id)) return fail(what);
    running.erase(m.member.id);
    to_program(worker_lost{what});
    finish_if_ended();
  }

  // "node n2 (pid 7) died in step 12: connection refused; it ran worker 1 (actor worker/1/dense_1)"
  std::string describe_loss(const member_info& m) const {
    const auto& p = job_plan();
    std::string what;
    for (const auto& a : p.actors)
      if (request->nodes[a.task] == m.id && (a.kind == actor_kind::op || a.kind == actor_kind::shard)) {
        what = fmt::format("; it ran {}, among others actor {}", p.tasks[a.task].name, a.name);
        break;
      }
    return fmt::format("{} {} in step {}: {}{}", who(m.id), m.state == member_state::left ? "left" : "died", step, m.reason, what);
  }

  // Asynchronous training goes on without a node that held workers only, while others remain.
  bool can_lose(node_id n) const {
    const auto& p = job_plan();
    if (p.update != update_kind::async || p.workers == 0) return false;
    bool others_work = false;
    for (const auto& a : p.actors) {
      const bool is_here = request->nodes[a.task] == n;
      if (is_here && (a.kind == actor_kind::shard || a.kind == actor_kind::fetch)) return false;
      if (!is_here && a.kind == actor_kind::op && running.contains(request->nodes[a.task])) others_work = true;
    }
    return others_work;
  }

  void fail(std::string what) {
    if (now == phase::over) return;
    const auto line = fmt::format("job {} failed: {}", job_plan().name, what);
    end(line);
    board->state = job_state::failed;
    board->cause = line;
    to_program(job_failed{line, totals});
    leave();
  }

  void on_stop(const stop_job& m) {
    if (now == phase::over) return;
    fail(m.reason);
  }

  void end(const std::string& reason) {
    now = phase::over;
    settle();
    for (auto n : std::set<node_id>(request->nodes.begin(), request->nodes.end())) send(n, stop_part{id, reason});
  }

  void leave() {
    record->enter(actor_state::ended);
    tell(self->context(), node, job_over{id});
    handles.reset();
    self->quit();
  }

  // fed = applied + dropped + in flight. A step counts as applied once every shard has applied its gradient.
  void settle() {
    for (std::size_t w = 0; w < totals.workers.size(); ++w) {
      auto& t = totals.workers[w];
      std::uint64_t applied = ~std::uint64_t{0}, most = 0;
      for (const auto& [actor, s] : shards) {
        if (w >= s.applied.size()) continue;
        applied = std::min(applied, s.applied[w]);
        most = std::max({most, s.applied[w] + s.dropped[w]});
        t.dropped = std::max(t.dropped, s.dropped[w]);
      }
      t.applied = shards.empty() ? 0 : applied;
      t.fed = std::max({losses_seen[w], most, t.applied + t.dropped});
      t.in_flight = t.fed - t.applied - t.dropped;
    }
  }
};

struct job_arguments {
  job_id id{};
  std::shared_ptr<const job_request> request;
  caf::actor node, program;
  std::map<node_id, member_info> members;
  std::shared_ptr<actor_record> record;
  std::shared_ptr<job_snapshot> board;
};

caf::behavior job_actor(caf::stateful_actor<job_actor_state>* self, job_arguments a) {
  auto& s = self->state;
  s.self = self;
  s.id = a.id;
  s.request = std::move(a.request);
  s.node = std::move(a.node);
  s.program = std::move(a.program);
  s.members = std::move(a.members);
  s.record = std::move(a.record);
  s.board = std::move(a.board);
  s.open();
  return {
      [&s](const peer_message& m) { s.on_message(m); },
      [&s](const member_down& m) { s.on_down(m); },
      [&s](job_started& m) { s.on_handles(m); },
      [&s](fetched& m) { s.on_fetched(m); },
      [](const feed_ready&) {},
      [&s](const stop_job& m) { s.on_stop(m); },
  };
}

}  // namespace

caf::actor spawn_job(caf::actor_system& sys, caf::execution_unit* worker, job_id id, std::shared_ptr<const job_request> request,
                     caf::actor node, caf::actor program, std::map<node_id, member_info> members, std::shared_ptr<actor_record> record,
                     std::shared_ptr<job_snapshot> board) {
  return spawn_on(sys, worker, &job_actor,
                  job_arguments{id, std::move(request), std::move(node), std::move(program), std::move(members), std::move(record), std::move(board)});
}

}  // namespace troupe
