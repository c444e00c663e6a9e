#include "actors/job.hpp"
#include "actors/member.hpp"
#include "actors/node.hpp"
#include "actors/scheduler.hpp"
#include "actors/tell.hpp"
#include "runtime/byte_size.hpp"
#include "runtime/memory_budget.hpp"
#include "runtime/sparse_edges.hpp"

#include <caf/actor_system.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace troupe {

namespace {

constexpr std::uint64_t linger_ns = 60'000'000'000;  // ended actors and jobs stay listed for a minute
constexpr std::size_t events_max = 256;
constexpr std::uint64_t link_wait_ns = 1'000'000'000;  // for a link between two nodes that the coordinator reaches already
constexpr std::size_t waiting_places_max = 64;
constexpr std::uint64_t placing_max_ns = 30'000'000'000;

struct part_entry {
  std::shared_ptr<part_context> context;
  std::vector<std::uint32_t> actors;
  std::vector<node_id> nodes;  // by task
  node_id coordinator{};
  std::uint32_t epoch = 0;
  std::uint64_t memory_bytes = 0;
  caf::actor supervisor;
  std::uint64_t started_ns = 0;
  std::uint64_t ended_ns = 0;  // 0: runs
  std::string reason{};        // why it was stopped; job_done_reason: its job is done
  std::size_t unbound = 0;     // links that do not know its edges yet
};

// A part whose links are not all there yet.
struct waiting_place {
  node_id from{};
  place_part place;
  std::uint64_t since_ns = 0;
};

struct job_entry {
  caf::actor actor;
  std::shared_ptr<const job_request> request;
  std::shared_ptr<job_snapshot> board;  // written by the job actor, on this worker
  std::uint64_t started_ns = 0;
  std::uint64_t ended_ns = 0;
  bool is_overdue = false;  // it was told so
};

struct peer_entry {
  member_info member;
  caf::actor link;
  std::shared_ptr<actor_record> record;
};

struct node_actor_state {
  static inline const char* name = "node";

  caf::stateful_actor<node_actor_state>* self = nullptr;
  node_environment env;
  std::map<node_id, peer_entry> peers;
  std::vector<member_info> members;
  std::map<node_id, std::pair<member_state, std::uint64_t>> state_since;  // of members; first seen in it
  std::string denied;
  std::map<job_id, part_entry> parts;
  std::vector<waiting_place> waiting;
  std::map<job_id, job_entry> jobs;
  std::map<job_id, caf::actor> program_of;
  std::map<job_id, std::shared_ptr<actor_record>> job_records;
  std::vector<std::unique_ptr<stream_meter>> meters;
  std::vector<std::shared_ptr<actor_record>> stream_records;
  std::shared_ptr<actor_record> record;
  std::uint64_t samples = 0;  // ticks so far
  std::deque<std::pair<std::uint64_t, std::string>> events;
  std::uint32_t last_part = 0;
  std::uint64_t stray_messages = 0;  // NO-4
  caf::actor member;
  caf::actor ending;                 // who is told when all parts have ended
  bool is_ending = false;

  void open(caf::stateful_actor<node_actor_state>* s, node_environment e) {
    self = s;
    env = std::move(e);
    record = std::make_shared<actor_record>(actor_kind::node, "node", "", *env.clock);
    for (std::size_t i = 0; i < env.streams.size(); ++i) {
      meters.push_back(std::make_unique<stream_meter>());
      stream_records.push_back(std::make_shared<actor_record>(actor_kind::stream, fmt::format("cpu:{}", i), "", *env.clock));
    }
  }

  void note(std::string text) {
    events.emplace_back(env.wall_clock_ns(), std::move(text));
    if (events.size() > events_max) events.pop_front();
  }

  void send(node_id to, control_message body) {
    record->count_out(0);
    if (to == env.self.id) return tell(self->context(), caf::actor_cast<caf::actor>(self), peer_message{env.self.id, std::move(body)});
    auto at = peers.find(to);
    if (at != peers.end() && at->second.link) tell(self->context(), at->second.link, send_control{std::move(body)});
  }

  // --- peers ---------------------------------------------------------------------------------------------------------------

  void on_up(member_up& m) {
    note(fmt::format("{} joined: {} at {}, pid {}", m.member.name, to_string(m.member.kind), m.member.address, m.member.pid));
    auto id = m.member.id;
    peers[id] = peer_entry{std::move(m.member), std::move(m.link), std::move(m.record)};
    place_waiting();
  }

  void on_down(const member_down& m) {
    note(fmt::format("{} {} {}: {}", m.member.name, m.member.state == member_state::left ? "has" : "is",
                     to_string(m.member.state), m.member.reason));
    if (m.member.state == member_state::unreachable) return;
    peers.erase(m.member.id);
    std::erase_if(waiting, [&](const auto& w) { return w.from == m.member.id; });
    for (auto& [id, job] : jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, member_down{m});
    for (auto& [id, part] : parts) {
      if (part.ended_ns != 0) continue;
      if (part.coordinator == m.member.id)  // NO-2
        stop(part, fmt::format("{}, which started the job, is {}", m.member.name, to_string(m.member.state)));
      for (std::uint32_t task = 0; task < part.nodes.size(); ++task)
        if (part.nodes[task] == m.member.id) {
          tell(self->context(), part.supervisor, task_lost{task, m.member.name + ": " + m.member.reason});
          send(part.coordinator, lost_peer{id, m.member.id, m.member.reason});
        }
    }
  }

  void on_rejoined(rejoined& m) {
    for (auto& [id, job] : jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, stop_job{"this process was held dead by the cluster and has joined it anew"});
    for (auto& [id, part] : parts)
      if (part.ended_ns == 0) stop(part, "the cluster held this node dead");
    peers.clear();
    waiting.clear();
    env.self = std::move(m.self);
  }

  // Membership weighs a cluster by its jobs.
  void tell_jobs() {
    const auto n = std::count_if(parts.begin(), parts.end(), [](const auto& p) { return p.second.ended_ns == 0; });
    if (member) tell(self->context(), member, jobs_changed{static_cast<std::uint32_t>(n)});
  }

  // --- messages of jobs ------------------------------------------------------------------------------------------------------

  void on_message(peer_message& m) {
    record->count_in(0);
    if (auto* p = std::get_if<place_part>(&m.body)) {
      waiting.push_back({m.from, std::move(*p), env.wall_clock_ns()});
      return place_waiting();
    }
    if (auto* s = std::get_if<start_part>(&m.body)) {
      if (auto* part = find_part(s->job)) tell(self->context(), part->supervisor, start_firing{});
      return;
    }
    if (auto* s = std::get_if<stop_part>(&m.body)) {
      if (std::erase_if(waiting, [&](const auto& w) { return w.place.job == s->job; }) > 0) return;
      if (auto* part = find_part(s->job)) stop(*part, s->reason);
      return;
    }
    if (auto* p = std::get_if<part_placed>(&m.body)) return to_job(p->job, m);
    if (auto* p = std::get_if<part_ended>(&m.body)) return to_job(p->job, m);
    if (auto* l = std::get_if<lost_peer>(&m.body)) return to_job(l->job, m);
    ++stray_messages;
  }

  // The first reason stands.
  void stop(part_entry& part, const std::string& reason) {
    if (part.reason.empty()) part.reason = reason;
    tell(self->context(), part.supervisor, stop_part_actors{reason});
  }

  part_entry* find_part(job_id job) {
    auto at = parts.find(job);
    if (at != parts.end() && at->second.ended_ns == 0) return &at->second;
    ++stray_messages;
    return nullptr;
  }

  void to_job(job_id job, peer_message& m) {
    auto at = jobs.find(job);
    if (at == jobs.end() || at->second.ended_ns != 0) {
      ++stray_messages;
      return;
    }
    tell(self->context(), at->second.actor, peer_message{m.from, std::move(m.body)});
  }

  // No job waits for ever to be placed, whatever keeps a participant from answering.
  void end_overdue_placing(std::uint64_t now) {
    for (auto& [id, job] : jobs)
      if (job.ended_ns == 0 && now - job.started_ns > placing_max_ns && !std::exchange(job.is_overdue, true))
        tell(self->context(), job.actor, placing_overdue{});
  }

  void place_waiting() {
    for (auto& w : std::exchange(waiting, {})) {
      const auto from = w.from;
      const auto job = w.place.job;
      try {
        place(std::move(w));
      } catch (const std::bad_alloc&) {
        refuse_for_memory(from, job);
      }
    }
  }

  void refuse_for_memory(node_id from, job_id job) {
    parts.erase(job);
    send(from, part_placed{job, fmt::format("{} has no memory left for it", env.self.name)});
  }

  void place(waiting_place w) {
    const auto& p = w.place;
    if (parts.contains(p.job)) return;  // NO-1
    auto refuse = [&](const std::string& why) { send(w.from, part_placed{p.job, why}); };
    // Who is no peer yet could die without our noticing, and the part would stay.
    if (w.from != env.self.id && !peers.contains(w.from)) {
      if (env.wall_clock_ns() - w.since_ns <= link_wait_ns && waiting.size() < waiting_places_max) waiting.push_back(std::move(w));
      return;
    }
    auto decoded = decode_plan(p.plan);
    if (!decoded) return refuse(decoded.error().text());
    if (decoded->tasks.size() != p.nodes.size()) return refuse("the plan's tasks and the nodes given for them differ in number");
    std::vector<caf::actor> links(p.nodes.size());
    std::int64_t own_task = -1;
    for (std::size_t i = 0; i < p.nodes.size(); ++i) {
      if (p.nodes[i] == env.self.id) {
        if (own_task >= 0) return refuse("two tasks of the plan are placed on this node");
        own_task = static_cast<std::int64_t>(i);
        continue;
      }
      auto at = peers.find(p.nodes[i]);
      if (at != peers.end()) links[i] = at->second.link;
    }
    if (own_task < 0) return refuse("no task of the plan is placed on this node");
    auto missing = missing_link(*decoded, p.nodes, static_cast<std::uint32_t>(own_task));
    if (!missing.empty()) {
      if (env.wall_clock_ns() - w.since_ns > link_wait_ns || waiting.size() >= waiting_places_max) return refuse(missing);
      waiting.push_back(std::move(w));
      return;
    }
    const auto need = memory_of_part(*decoded, static_cast<std::uint32_t>(own_task));
    if (auto too_big = exceeds_memory(need); !too_big.empty()) return refuse(too_big);
    spawn_part(w.from, p, std::make_shared<plan>(std::move(*decoded)), static_cast<std::uint32_t>(own_task), std::move(links));
  }

  // NO-3. Empty: it fits.
  std::string exceeds_memory(const memory_need& need) const {
    std::uint64_t used = 0;
    for (const auto& [id, part] : parts)
      if (part.ended_ns == 0) used += part.memory_bytes;
    if (env.memory_bytes == 0 || (used <= env.memory_bytes && need.bytes <= env.memory_bytes - used)) return {};
    return fmt::format("{} has {} for jobs, {} of it in use, and the part needs {}, most of it for {} ({})", env.self.name,
                       format_bytes(env.memory_bytes), format_bytes(used), format_bytes(need.bytes), need.largest, format_bytes(need.largest_bytes));
  }

  // A node that an edge of our part leads to and that no link reaches; empty: none.
  std::string missing_link(const plan& p, const std::vector<node_id>& nodes, std::uint32_t own) const {
    for (const auto& e : p.edges) {
      const auto from = p.actors[e.from.actor].task, to = p.actors[e.to.actor].task;
      const auto other = from == own ? to : to == own ? from : own;
      if (other != own && !peers.contains(nodes[other]))
        return fmt::format("{} has no link to the node of {} yet", env.self.name, p.tasks[other].name);
    }
    return {};
  }

  void spawn_part(node_id from, const place_part& p, std::shared_ptr<plan> job_plan, std::uint32_t own, std::vector<caf::actor> links) {
    auto context = std::make_shared<part_context>();
    context->job = p.job;
    context->part = ++last_part;
    context->ops = env.ops;
    context->kernels = env.kernels;
    context->device = env.device;
    context->bugs = env.bugs;
    for (const auto& m : meters) {
      context->meters.push_back(m.get());
      context->pools.push_back(std::make_shared<message_pool<tensor_ready>>());
    }
    for (const auto& e : job_plan->edges) context->credits.emplace_back(static_cast<std::int32_t>(e.credits));
    for (const auto& t : p.nodes) job_plan->tasks[static_cast<std::size_t>(&t - p.nodes.data())].node = t;
    context->records.resize(job_plan->actors.size());
    context->ledgers.resize(job_plan->actors.size());
    part_entry entry{context, {}, p.nodes, from, p.epoch, memory_of_part(*job_plan, own).bytes, {}, env.wall_clock_ns()};
    const auto sparse = sparse_edges(*job_plan);
    for (std::uint32_t i = 0; i < job_plan->actors.size(); ++i) {
      if (job_plan->actors[i].task != own) continue;
      entry.actors.push_back(i);
      context->records[i] = make_record(*context, *job_plan, i, sparse);
      if (job_plan->actors[i].kind == actor_kind::shard)
        context->ledgers[i] = std::make_shared<shard_counters>(job_plan->actors[i].inputs.size());
    }
    context->job_plan = std::move(job_plan);
    if (auto at = jobs.find(p.job); at != jobs.end())
      context->program = at->second.request->fetches_to_program ? program_of.at(p.job) : at->second.actor;
    entry.supervisor = spawn_supervisor(self->system(), env.service,
                                        part_request{context, entry.actors, std::move(links), env.streams, caf::actor_cast<caf::actor>(self)});
    parts.emplace(p.job, std::move(entry));
    tell_jobs();
  }

  std::shared_ptr<actor_record> make_record(const part_context& context, const plan& p, std::uint32_t i, const std::vector<bool>& sparse) {
    const auto& a = p.actors[i];
    auto r = std::make_shared<actor_record>(a.kind, a.name, p.name, *env.clock);
    auto add = [&](bool is_input, std::uint32_t index, const port_ref* peer, const planned_edge* e, const edge_credit* credit) {
      auto port = std::make_unique<port_record>();
      port->is_input = is_input;
      port->index = index;
      port->peer = peer != nullptr ? p.actors[peer->actor].name : "program";
      port->peer_task = peer != nullptr ? p.tasks[p.actors[peer->actor].task].name : "";
      port->credit = credit;
      port->credits_max = e != nullptr ? e->credits : 0;
      port->is_sparse = e != nullptr && sparse[static_cast<std::size_t>(e - p.edges.data())];
      r->ports.push_back(std::move(port));
    };
    if (a.kind == actor_kind::feed) add(true, 0, nullptr, nullptr, nullptr);
    for (std::uint32_t port = 0; port < a.inputs.size(); ++port) {
      const auto& e = p.edges[a.inputs[port]];
      add(true, port, &e.from, &e, nullptr);
    }
    for (std::uint32_t port = 0; port < a.outputs.size(); ++port)
      for (auto e : a.outputs[port])
        add(false, port, &p.edges[e].to, &p.edges[e], a.kind == actor_kind::send ? nullptr : &context.credits[e]);
    if (a.kind == actor_kind::fetch) add(false, 0, nullptr, nullptr, nullptr);
    return r;
  }

  // --- events of parts ---------------------------------------------------------------------------------------------------------

  void on_part(part_event& e) {
    auto at = parts.find(e.job);
    if (at == parts.end()) return;
    auto& part = at->second;
    switch (e.kind) {
      case part_event_kind::placed: return give_handles(e.job, part, e.handles);
      case part_event_kind::failed:
        note(fmt::format("actor {} failed in step {}: {}", e.actor, e.step, e.text));
        return send(part.coordinator, part_ended{e.job, e.text, e.actor, e.step, reports(part), data_messages(part)});
      case part_event_kind::done: return send(part.coordinator, part_ended{e.job, "", "", 0, reports(part), data_messages(part)});
      case part_event_kind::stopped:
        part.ended_ns = env.wall_clock_ns();
        part.supervisor = nullptr;
        tell_jobs();
        for (auto& [id, peer] : peers)
          if (peer.link) tell(self->context(), peer.link, unbind_job{e.job});
        return end_if_empty();
    }
  }

  void give_handles(job_id job, part_entry& part, const std::shared_ptr<const part_handles>& handles) {
    for (std::size_t task = 0; task < part.nodes.size(); ++task) {
      auto at = peers.find(part.nodes[task]);
      if (at == peers.end() || !at->second.link) continue;
      ++part.unbound;
      tell(self->context(), at->second.link,
           bind_job{job, part.epoch, part.context->job_plan, handles, caf::actor_cast<caf::actor>(self)});
    }
    auto j = jobs.find(job);
    if (j != jobs.end() && j->second.ended_ns == 0) tell(self->context(), j->second.actor, job_started{job, handles});
    if (part.unbound == 0) send(part.coordinator, part_placed{job, ""});
  }

  void on_bound(job_id job) {
    auto at = parts.find(job);
    if (at != parts.end() && --at->second.unbound == 0) send(at->second.coordinator, part_placed{job, ""});
  }

  static std::uint64_t data_messages(const part_entry& part) {
    std::uint64_t n = 0;
    for (auto i : part.actors) n += part.context->records[i]->messages_in.load(std::memory_order_relaxed);
    return n;
  }

  std::vector<shard_report> reports(const part_entry& part) const {
    std::vector<shard_report> out;
    for (auto i : part.actors) {
      const auto& l = part.context->ledgers[i];
      if (l == nullptr) continue;
      shard_report r{i, {}, {}, {}};
      for (std::size_t w = 0; w < l->received.size(); ++w) {
        r.received.push_back(l->received[w].load(std::memory_order_relaxed));
        r.applied.push_back(l->applied[w].load(std::memory_order_relaxed));
        r.dropped.push_back(l->dropped[w].load(std::memory_order_relaxed));
      }
      out.push_back(std::move(r));
    }
    return out;
  }

  // --- jobs started here -----------------------------------------------------------------------------------------------------

  void run(run_job& m) {
    const job_id id{env.wall_clock_ns() ^ raw(env.self.id)};
    std::map<node_id, member_info> known{{env.self.id, env.self}};
    for (const auto& [peer, entry] : peers) known.emplace(peer, entry.member);
    auto job_record = std::make_shared<actor_record>(actor_kind::job, "job/" + m.request->job_plan.name, m.request->job_plan.name, *env.clock);
    auto board = std::make_shared<job_snapshot>();
    board->id = fmt::format("{:016x}", raw(id));
    board->client = env.self.name;
    program_of[id] = m.program;
    auto& entry = jobs[id];
    entry = job_entry{{}, m.request, board, env.wall_clock_ns(), 0};
    entry.actor = spawn_job(self->system(), env.service, id, m.request, caf::actor_cast<caf::actor>(self), m.program,
                            std::move(known), job_record, board);
    job_records[id] = std::move(job_record);
    note(fmt::format("job {} starts", m.request->job_plan.name));
  }

  void on_job_over(const job_over& m) {
    auto at = jobs.find(m.job);
    if (at == jobs.end()) return;
    at->second.ended_ns = env.wall_clock_ns();
    at->second.actor = nullptr;
    program_of.erase(m.job);
    note(fmt::format("job {} is over: {}", at->second.board->name, at->second.board->cause.empty() ? "done" : at->second.board->bare_cause()));
    end_if_empty();
  }

  view_changed view() const {
    view_changed v{env.self, members, denied, {}};
    for (const auto& [id, peer] : peers) v.linked.insert(id);
    return v;
  }

  // --- looking at it -----------------------------------------------------------------------------------------------------------

  void tick() {
    ++samples;
    for (std::size_t i = 0; i < meters.size(); ++i) {
      const auto current = meters[i]->current.load(std::memory_order_relaxed);
      stream_records[i]->enter(current != 0 ? actor_state::running : actor_state::idle);
      if (current == 0) continue;
      stream_records[i]->busy.add_busy(samples);
      for (auto& [id, part] : parts)
        if (part.context->part == current >> 32 && (current & 0xffffffff) <= part.context->records.size())
          if (auto& r = part.context->records[(current & 0xffffffff) - 1]) r->busy.add_busy(samples);
    }
    place_waiting();
    const auto now = env.wall_clock_ns();
    end_overdue_placing(now);
    std::erase_if(parts, [&](const auto& p) { return p.second.ended_ns != 0 && now - p.second.ended_ns > linger_ns; });
    std::erase_if(jobs, [&](const auto& j) { return j.second.ended_ns != 0 && now - j.second.ended_ns > linger_ns; });
    std::erase_if(job_records, [&](const auto& r) { return !jobs.contains(r.first); });
  }

  void on_view(view_changed& m) {
    env.self = std::move(m.self), members = std::move(m.members), denied = std::move(m.denied);
    const auto now = env.wall_clock_ns();
    const auto before = std::exchange(state_since, {});
    for (const auto& member : members) {
      const auto at = before.find(member.id);
      const bool is_known = at != before.end() && at->second.first == member.state;
      state_since.emplace(member.id, std::pair(member.state, is_known ? at->second.second : now));
    }
  }

  static double age(std::uint64_t now, std::uint64_t then) { return then == 0 || now < then ? 0 : double(now - then) * 1e-9; }

  node_snapshot describe(const member_info& m) const {
    node_snapshot n;
    n.id = fmt::format("{:016x}", raw(m.id));
    n.name = m.name;
    n.pid = m.pid;
    n.kind = std::string(to_string(m.kind));
    n.job = m.job;
    n.address = m.address;
    n.incarnation = m.incarnation;
    n.state = static_cast<node_state>(m.state);
    n.reason = m.reason;
    if (auto at = state_since.find(m.id); at != state_since.end() && m.state != member_state::alive)
      n.unreachable_seconds = age(env.wall_clock_ns(), at->second.second);
    return n;
  }

  // `part` is null for actors of the node itself.
  actor_snapshot describe(const actor_record& r, const std::string& index, const part_entry* part) const {
    actor_snapshot a;
    a.id = env.self.name + "." + index;
    a.kind = std::string(to_string(r.kind));
    a.name = r.name;
    a.node = env.self.name;
    a.job = r.job;
    a.state = r.state();
    a.since_seconds = r.seconds_in_state();
    a.messages_in = r.messages_in.load(std::memory_order_relaxed);
    a.messages_out = r.messages_out.load(std::memory_order_relaxed);
    a.bytes_in = r.bytes_in.load(std::memory_order_relaxed);
    a.bytes_out = r.bytes_out.load(std::memory_order_relaxed);
    a.queue = r.queue.load(std::memory_order_relaxed);
    a.steps = r.steps.load(std::memory_order_relaxed);
    if (part != nullptr) a.job_id = fmt::format("{:016x}", raw(part->context->job));
    a.busy_ratio = r.busy.ratio(samples);
    const bool waits = a.state == actor_state::waiting_for_input || a.state == actor_state::waiting_for_credit;
    for (std::size_t i = 0; i < r.ports.size(); ++i) {
      const auto& p = *r.ports[i];
      port_snapshot s;
      s.name = fmt::format("{}{}", p.is_input ? "in" : "out", p.index);
      s.peer = p.peer;
      s.peer_node = part != nullptr ? node_of_task(*part, p.peer_task) : "";
      if (!p.is_input) s.credits = static_cast<std::uint64_t>(std::max(0, p.credit != nullptr ? p.credit->free() : p.credits_left.load(std::memory_order_relaxed)));
      s.credits_max = p.credits_max;
      s.queued = p.queued.load(std::memory_order_relaxed);
      s.is_waiting = waits && r.waiting_port() == i;
      s.since_seconds = s.is_waiting ? a.since_seconds : 0;
      s.is_sparse = p.is_sparse;
      a.ports.push_back(std::move(s));
    }
    return a;
  }

  std::string node_of_task(const part_entry& part, const std::string& task) const {
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      if (part.context->job_plan->tasks[i].name != task) continue;
      return name_of(part.nodes[i]);
    }
    return task.empty() ? env.self.name : "";
  }

  node_answer answer(const std::string& request) const {
    const auto now = env.wall_clock_ns();
    const bool wants_actors = request.find("actors") != std::string::npos, wants_jobs = request.find("jobs") != std::string::npos,
               wants_events = request.find("events") != std::string::npos;
    node_answer out;
    out.cluster = env.cluster;
    out.self = describe(env.self);
    for (const auto& m : members) out.peers.push_back(describe(m));
    if (wants_actors) list_actors(out);
    if (wants_jobs)
      for (const auto& [id, j] : jobs) {
        auto job = *j.board;
        job.started_seconds = age(now, j.started_ns);
        job.ended_seconds = age(now, j.ended_ns);
        out.jobs.push_back(std::move(job));
      }
    if (wants_jobs)
      for (const auto& [id, part] : parts)
        if (!jobs.contains(id)) out.jobs.push_back(describe(id, part, now));
    if (wants_events)
      for (const auto& [time, text] : events) out.events.push_back({age(now, time), env.self.name, text});
    return out;
  }

  // What a participant knows of a job: after the death of its client nobody knows more.
  job_snapshot describe(job_id id, const part_entry& part, std::uint64_t now) const {
    job_snapshot j;
    j.id = fmt::format("{:016x}", raw(id));
    troupe::describe(*part.context->job_plan, j);
    for (auto i : part.actors) j.step = std::max(j.step, part.context->records[i]->steps.load(std::memory_order_relaxed));
    if (j.steps > 0) j.step = std::min(j.step, j.steps);
    j.started_seconds = age(now, part.started_ns);
    j.ended_seconds = age(now, part.ended_ns);
    if (part.ended_ns != 0) j.state = part.reason == job_done_reason ? job_state::done : job_state::failed;
    if (j.state == job_state::failed) j.cause = part.reason;
    for (auto n : std::set<node_id>(part.nodes.begin(), part.nodes.end())) j.participants.push_back(name_of(n));
    j.client = name_of(part.coordinator);
    return j;
  }

  std::string name_of(node_id id) const {
    if (id == env.self.id) return env.self.name;
    for (const auto& m : members)
      if (m.id == id) return m.name;
    return member_name(id);
  }

  void list_actors(node_answer& out) const {
    out.actors.push_back(describe(*record, "node", nullptr));
    for (std::size_t i = 0; i < stream_records.size(); ++i) out.actors.push_back(describe(*stream_records[i], fmt::format("cpu{}", i), nullptr));
    for (const auto& [id, p] : peers)
      if (p.record) out.actors.push_back(describe(*p.record, "link-" + p.member.name, nullptr));
    for (const auto& [id, r] : job_records) {
      auto a = describe(*r, fmt::format("job{}", out.actors.size()), nullptr);
      a.job_id = fmt::format("{:016x}", raw(id));
      out.actors.push_back(std::move(a));
    }
    for (const auto& [id, part] : parts)
      for (auto i : part.actors) out.actors.push_back(describe(*part.context->records[i], fmt::format("{}.{}", part.context->part, i), &part));
  }

  // --- the end -------------------------------------------------------------------------------------------------------------------

  void end(const end_node& m) {
    ending = m.to;
    waiting.clear();
    for (auto& [id, job] : jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, stop_job{m.reason});
    for (auto& [id, part] : parts)
      if (part.ended_ns == 0) stop(part, m.reason);
    is_ending = true;
    end_if_empty();
  }

  void end_if_empty() {
    if (!is_ending) return;
    for (const auto& [id, part] : parts)
      if (part.ended_ns == 0) return;
    for (const auto& [id, job] : jobs)
      if (job.ended_ns == 0) return;
    if (ending) tell(self->context(), ending, node_ended{});
    peers.clear();
    member = nullptr;
    self->quit();
  }
};

caf::behavior node_actor(caf::stateful_actor<node_actor_state>* self, node_environment env) {
  auto& s = self->state;
  s.open(self, std::move(env));
  return {
      [&s](member_up& m) { s.on_up(m); },
      [&s](const member_down& m) { s.on_down(m); },
      [&s](view_changed& m) { s.on_view(m); },
      [&s](peer_message& m) { s.on_message(m); },
      [&s](to_node& m) { s.send(m.to, std::move(m.body)); },
      [&s](part_event& m) { s.on_part(m); },
      [&s](const job_bound& m) { s.on_bound(m.job); },
      [&s](run_job& m) { s.run(m); },
      [&s](const job_over& m) { s.on_job_over(m); },
      [&s](const ask& m) { tell(s.self->context(), m.to, answered{m.id, to_json(s.answer(m.request))}); },
      [&s](const get_view& m) { tell(s.self->context(), m.to, s.view()); },
      [&s](const stop_own_job& m) {
        for (const auto& [job, program] : s.program_of)
          if (program == m.program) tell(s.self->context(), s.jobs.at(job).actor, stop_job{m.reason});
      },
      [&s](member_event& m) { s.note(std::move(m.text)); },
      [&s](rejoined& m) { s.on_rejoined(m); },
      [&s](set_member& m) { s.member = std::move(m.member); },
      [&s](node_tick) { s.tick(); },
      [&s](const end_node& m) { s.end(m); },
  };
}

}  // namespace

caf::actor spawn_node(caf::actor_system& sys, node_environment environment) {
  auto* service = environment.service;
  return spawn_on(sys, service, &node_actor, std::move(environment));
}

}  // namespace troupe
