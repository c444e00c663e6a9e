#include "actors/job.hpp"
#include "actors/scheduler.hpp"
#include "actors/tell.hpp"
#include "runtime/byte_size.hpp"
#include "runtime/frame.hpp"
#include "runtime/supervision.hpp"

#include <caf/actor_system.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace troupe {

namespace {

constexpr std::size_t plan_bytes_max = control_header_max - 256 * 1024;  // beside it the message names the nodes

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
  std::set<node_id> unplaced;  // participants that did not answer yet
  std::optional<participants> parties;
  std::optional<ledger> accounts;
  std::optional<failure_log> failures;
  std::shared_ptr<const part_handles> handles;
  bool has_local_part = false;
  job_totals totals;
  std::uint64_t step = 0;

  const plan& job_plan() const { return request->job_plan; }

  void open() {
    const auto& p = job_plan();
    parties.emplace(p, request->nodes);
    accounts.emplace(p.workers);
    failures.emplace(p.name);
    totals.actors = p.actors.size();
    totals.op_actors = static_cast<std::uint64_t>(
        std::count_if(p.actors.begin(), p.actors.end(), [](const auto& a) { return a.kind == actor_kind::op; }));
    describe_board();
    record->enter(actor_state::running);
    const auto bytes = encode(p);
    unplaced = parties->running();
    const bool is_local = unplaced.size() == 1 && members.contains(*unplaced.begin()) && members.at(*unplaced.begin()).name == board->client;
    if (bytes.size() > plan_bytes_max && !is_local) {
      failure f;
      f.text = fmt::format("its plan of {} actors takes {}, and at most {} can be sent to other nodes; train fewer ops in one job",
                           p.actors.size(), format_bytes(bytes.size()), format_bytes(plan_bytes_max));
      return fail(std::move(f));
    }
    for (auto n : unplaced) {
      if (!members.contains(n)) return fail(at_node(n, "is not known here"));
      if (members.at(n).name == board->client) has_local_part = true;
    }
    for (auto n : unplaced) send(n, place_part{id, 1, bytes, request->nodes});
  }

  void describe_board() {
    describe(job_plan(), *board);
    for (auto n : std::set<node_id>(request->nodes.begin(), request->nodes.end()))
      if (auto at = members.find(n); at != members.end()) board->participants.push_back(at->second.name);
  }

  void send(node_id to, control_message body) { tell(self->context(), node, to_node{to, std::move(body)}); }
  template <class Message>
  void to_program(Message m) {
    record->count_out(0);
    tell(self->context(), program, std::move(m));
  }

  // A failure on node `n`.
  failure at_node(node_id n, std::string text) const {
    failure f;
    auto at = members.find(n);
    f.node = at == members.end() ? fmt::format("{:x}", raw(n)) : at->second.name;
    if (at != members.end()) f.pid = at->second.pid;
    f.text = std::move(text);
    return f;
  }

  // --- placing -----------------------------------------------------------------------------------------------------------------

  void on_message(const peer_message& m) {
    record->count_in(0);
    if (auto* p = std::get_if<part_placed>(&m.body)) return on_placed(m.from, *p);
    if (auto* p = std::get_if<part_ended>(&m.body)) return on_ended(m.from, *p);
    if (auto* l = std::get_if<lost_peer>(&m.body)) return on_lost(l->node, l->reason);
  }

  void on_placed(node_id from, const part_placed& p) {
    if (now != phase::placing) return;
    if (!p.error.empty()) return fail(at_node(from, "refused its part: " + p.error));
    unplaced.erase(from);
    start_if_placed();
  }

  void on_handles(job_started& m) {
    handles = std::move(m.handles);
    start_if_placed();
  }

  void on_overdue() {
    if (now != phase::placing || unplaced.empty()) return;
    fail(at_node(*unplaced.begin(), "has not answered to its part of the plan for 30 s"));
  }

  void start_if_placed() {
    if (now != phase::placing || !unplaced.empty() || (has_local_part && handles == nullptr)) return;
    now = phase::running;
    for (auto n : parties->running()) send(n, start_part{id});
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
      accounts->on_loss(m.port);
      to_program(job_progress{step, m.port, loss});
    } else {
      for (std::uint32_t w = 0; w < accounts->workers(); ++w) accounts->on_loss(w);
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
    for (const auto& r : p.shards) accounts->on_shard(r);
    totals.data_messages += p.data_messages;
    if (!p.error.empty()) {
      auto f = at_node(from, p.error);
      f.actor = p.actor;
      f.step = p.step;
      return fail(std::move(f));
    }
    parties->ended(from);
    finish_if_ended();
  }

  void finish_if_ended() {
    if (now != phase::running || !parties->all_over()) return;
    end(std::string(job_done_reason));
    board->state = job_state::done;
    to_program(job_finished{totals});
    leave();
  }

  // --- failures ----------------------------------------------------------------------------------------------------------------

  void on_lost(node_id n, const std::string& reason, bool has_left = false) {
    if (now == phase::over || parties->is_lost(n)) return;
    const auto verdict = parties->lose(n);
    if (verdict == loss_verdict::irrelevant) return finish_if_ended();
    auto f = at_node(n, fmt::format("{}: {}; it ran {}", has_left ? "left the cluster" : "died", reason, parties->describe(n)));
    f.step = step;
    f.actor = first_actor_on(n);
    if (now == phase::placing || verdict == loss_verdict::fatal) return fail(std::move(f));
    to_program(worker_lost{f.where_and_why()});
    finish_if_ended();
  }

  std::string first_actor_on(node_id n) const {
    for (const auto& a : job_plan().actors)
      if (request->nodes[a.task] == n && (a.kind == actor_kind::op || a.kind == actor_kind::shard)) return a.name;
    return {};
  }

  void fail(failure f) {
    if (now == phase::over) return;
    failures->add(std::move(f));
    const auto line = failures->line();
    end(line);
    board->state = job_state::failed;
    board->cause = line;
    to_program(job_failed{line, totals});
    leave();
  }

  void on_stop(const stop_job& m) {
    if (now == phase::over) return;
    failure f;
    f.step = step;
    f.text = m.reason;
    fail(std::move(f));
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

  void settle() {
    for (std::uint32_t w = 0; w < accounts->workers(); ++w) {
      const auto l = accounts->of(w);
      totals.workers.push_back({l.fed, l.applied, l.dropped, l.in_flight});
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
      [&s](const member_down& m) { s.on_lost(m.member.id, m.member.reason, m.member.state == member_state::left); },
      [&s](job_started& m) { s.on_handles(m); },
      [&s](fetched& m) { s.on_fetched(m); },
      [](const feed_ready&) {},
      [&s](const stop_job& m) { s.on_stop(m); },
      [&s](placing_overdue) { s.on_overdue(); },
  };
}

}  // namespace

void describe(const plan& p, job_snapshot& out) {
  out.name = p.name;
  out.workers = p.workers;
  out.shards = p.shards;
  out.update = p.workers == 0 ? "" : p.update == update_kind::sync ? "sync" : "async";
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::fetch && (a.name == "loss" || p.workers == 0)) out.steps = a.steps;
}

caf::actor spawn_job(caf::actor_system& sys, caf::execution_unit* worker, job_id id, std::shared_ptr<const job_request> request,
                     caf::actor node, caf::actor program, std::map<node_id, member_info> members, std::shared_ptr<actor_record> record,
                     std::shared_ptr<job_snapshot> board) {
  return spawn_on(sys, worker, &job_actor,
                  job_arguments{id, std::move(request), std::move(node), std::move(program), std::move(members), std::move(record), std::move(board)});
}

}  // namespace troupe
