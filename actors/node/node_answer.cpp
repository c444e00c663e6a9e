#include "troupe/actors/node/node_answer.hpp"

#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/runtime/cluster/membership.hpp"
#include "troupe/runtime/insight/listed_work.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>

namespace troupe {

namespace {

double age(std::uint64_t now, std::uint64_t then) {
  return then == 0 || now < then ? 0 : double(now - then) * 1e-9;
}

bool is_in(const auto& list, const auto& one) { return std::ranges::find(list, one) != list.end(); }

// "... newer=2.5": events and lines of the last 2.5 seconds; without it, or with nonsense, all.
double newest_of(const std::string& request) {
  constexpr std::string_view word = " newer=";
  constexpr double all = std::numeric_limits<double>::infinity();
  const auto at = request.find(word);
  if (at == std::string::npos) return all;
  double seconds = 0;
  const auto* end = request.data() + request.size();
  const auto read = std::from_chars(request.data() + at + word.size(), end, seconds);
  return read.ec == std::errc() && seconds >= 0 ? seconds : all;
}

struct answerer {
  const node_view& view;
  const part_table& parts;

  node_snapshot describe(const member_info& m) const {
    node_snapshot n;
    n.id = fmt::format("{:016x}", raw(m.id));
    n.name = m.name;
    n.pid = m.pid;
    n.kind = std::string(to_string(m.kind));
    n.job = m.job;
    n.labels = m.labels;
    n.address = m.address;
    for (const auto& d : m.devices)
      for (std::uint32_t i = 0; i < d.count; ++i)
        n.devices.push_back({fmt::format("gpu:{}", n.devices.size()), d.hardware, d.memory_bytes});
    n.incarnation = m.incarnation;
    n.state = static_cast<node_state>(m.state);
    n.reason = m.reason;
    if (auto at = view.state_since.find(m.id);
        at != view.state_since.end() && m.state != member_state::alive)
      n.unreachable_seconds = age(view.env.wall_clock_ns(), at->second.second);
    return n;
  }

  // `part` is null for actors of the node itself.
  actor_snapshot describe(const actor_record& r, const std::string& index,
                          const part_entry* part) const {
    actor_snapshot a;
    a.id = view.env.self.name + "." + index;
    a.kind = std::string(to_string(r.kind));
    a.name = r.name;
    a.node = view.env.self.name;
    a.job = r.job;
    a.state = r.state();
    a.since_seconds = r.seconds_in_state();
    a.messages_in = r.messages_in.load(std::memory_order_relaxed);
    a.messages_out = r.messages_out.load(std::memory_order_relaxed);
    a.bytes_in = r.bytes_in.load(std::memory_order_relaxed);
    a.bytes_out = r.bytes_out.load(std::memory_order_relaxed);
    a.queue = r.queue.load(std::memory_order_relaxed);
    a.steps = r.steps.load(std::memory_order_relaxed);
    a.iteration = r.iteration.load(std::memory_order_relaxed);
    if (part != nullptr) a.job_id = fmt::format("{:016x}", raw(part->context->job));
    a.busy_ratio = r.busy.ratio(view.samples);
    const bool waits =
        a.state == actor_state::waiting_for_input || a.state == actor_state::waiting_for_credit;
    for (std::size_t i = 0; i < r.ports.size(); ++i) {
      const auto& p = *r.ports[i];
      port_snapshot s;
      s.name = fmt::format("{}{}", p.is_input ? "in" : "out", p.index);
      s.peer = p.peer;
      s.peer_node = part != nullptr ? node_of_task(*part, p.peer_task) : "";
      if (!p.is_input)
        s.credits = static_cast<std::uint64_t>(
            std::max(0, p.credit != nullptr ? p.credit->free()
                                            : p.credits_left.load(std::memory_order_relaxed)));
      s.credits_max = p.credits_max;
      s.queued = p.queued.load(std::memory_order_relaxed);
      s.items = p.items.load(std::memory_order_relaxed);
      s.returned = p.returned.load(std::memory_order_relaxed);
      s.is_waiting = waits && r.waiting_port() == i;
      s.since_seconds = s.is_waiting ? a.since_seconds : 0;
      s.is_sparse = p.is_sparse;
      a.ports.push_back(std::move(s));
    }
    if (const auto reader = r.waiting_reader(); reader && part != nullptr) {
      const auto& plan = *part->context->job_plan;
      port_snapshot s;
      s.name = "buffer";
      s.peer = *reader < plan.actors.size() ? plan.actors[*reader].name : "";
      s.peer_node = view.env.self.name;  // buffers belong to a stream
      s.is_waiting = true;
      s.since_seconds = a.since_seconds;
      a.ports.push_back(std::move(s));
    }
    return a;
  }

  // Whether what an actor waits for at that port of its record has been sent to it, and it only has
  // not seen it; nullopt: who sends it is not here.
  static std::optional<bool> has_been_sent(const part_context& context, std::uint32_t actor,
                                           std::size_t port) {
    const auto& planned = context.job_plan->actors[actor];
    const auto& p = *context.records[actor]->ports[port];
    if (!p.is_input)
      return p.credit == nullptr ? std::nullopt : std::optional(!p.credit->is_waiting());
    if (port >= planned.inputs.size()) return std::nullopt;
    const auto edge = planned.inputs[port];
    const auto* from = context.records[context.job_plan->edges[edge].from.actor].get();
    if (from == nullptr) return std::nullopt;
    // What is sent is counted first: it counts as seen rather than not.
    const auto& out = *from->ports[from->inputs() + context.outlets[edge]];
    const auto sent = out.items.load(std::memory_order_acquire);
    return sent > p.items.load(std::memory_order_acquire);
  }

  // The actor that a thread runs just now; null: none that is listed.
  const actor_record* run_by(const stream_meter& thread, const part_entry*& its_part) const {
    const auto current = thread.current.load(std::memory_order_relaxed);
    const auto at = std::ranges::find_if(
        parts.all(), [&](const auto& p) { return p.second.context->part == current >> 32; });
    const auto index = (current & 0xffffffff) - 1;
    if (current == 0 || at == parts.all().end() || index >= at->second.context->records.size())
      return nullptr;
    its_part = &at->second;
    return its_part->context->records[index].get();
  }

  std::string thread_of(const part_entry& part, std::uint32_t actor) const {
    const auto& a = part.context->job_plan->actors[actor];
    if (runs_beside_links(a)) return "links";
    const auto stream = worker_of(a.stream, static_cast<std::uint32_t>(view.host_streams()));
    return stream < view.stream_records.size() ? view.stream_records[stream]->name : std::string();
  }

  // One that has not looked at its ports yet waits for what each actor needs first: an input. What
  // has been sent to it is named before what has not, since then it only has to look.
  static void show_first_wait(actor_snapshot& a, const part_context& context, std::uint32_t actor) {
    port_snapshot* missing = nullptr;
    for (std::size_t i = 0; i < context.records[actor]->inputs(); ++i) {
      const auto is_sent = has_been_sent(context, actor, i);
      if (missing == nullptr || is_sent == true) missing = &a.ports[i];
      if (is_sent == true) break;
    }
    if (missing == nullptr) return;
    a.state = actor_state::waiting_for_input;
    missing->is_waiting = true;
    missing->since_seconds = a.since_seconds;
  }

  // Of one that waits: what it waits for may be there, and its thread run somebody else. What comes
  // from the program or another process is not seen before the thread is free again: whoever has it
  // for long is waited for then.
  void show_thread(actor_snapshot& a, const part_entry& part, std::uint32_t actor) const {
    const auto& context = *part.context;
    if (part.ended_ns != 0) return;  // what its ports and threads were is gone
    if (a.state == actor_state::idle && part.is_started) show_first_wait(a, context, actor);
    const auto at = std::ranges::find_if(a.ports, [](const auto& p) { return p.is_waiting; });
    if (at == a.ports.end()) return;
    const auto port = static_cast<std::size_t>(at - a.ports.begin());
    // All readers of a buffer are on this thread, and which of them is to read next is known there.
    const bool is_buffer = port >= context.records[actor]->ports.size();
    const auto is_sent = is_buffer ? std::nullopt : has_been_sent(context, actor, port);
    if (is_sent == false) return;
    const part_entry* other_part = nullptr;
    const auto* other = run_by(*context.meter_of(context.job_plan->actors[actor]), other_part);
    if (other == context.records[actor].get()) return;
    const auto runs_seconds = other != nullptr ? other->seconds_in_state() : 0;
    if (is_buffer ? other == nullptr : !is_sent && runs_seconds < skew_seconds) return;
    port_snapshot thread;
    thread.name = std::string(thread_port);
    if (other != nullptr)
      thread.peer =
          other_part == &part ? other->name : fmt::format("{} of job {}", other->name, other->job);
    thread.peer_node = view.env.self.name;
    thread.is_waiting = true;
    thread.since_seconds = std::min(a.since_seconds, runs_seconds);
    at->is_waiting = false;
    at->since_seconds = 0;
    a.state = actor_state::waiting_for_thread;
    a.since_seconds = thread.since_seconds;
    a.ports.push_back(std::move(thread));
  }

  std::string node_of_task(const part_entry& part, const std::string& task) const {
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      if (part.context->job_plan->tasks[i].name != task) continue;
      return name_of(part.nodes[i]);
    }
    return task.empty() ? view.env.self.name : "";
  }

  node_answer answer(const std::string& request) const {
    const auto now = view.env.wall_clock_ns();
    const bool wants_actors = request.find("actors") != std::string::npos,
               wants_jobs = request.find("jobs") != std::string::npos,
               wants_events = request.find("events") != std::string::npos,
               wants_lines = request.find("lines") != std::string::npos;
    node_answer out;
    out.cluster = view.env.cluster;
    out.self = describe(view.env.self);
    if (view.env.use) {
      auto use = view.env.use();
      out.self.host = std::move(use.host);
      out.self.version = std::move(use.version);
      out.self.cores = use.cores;
      out.self.cpu_seconds = use.cpu_seconds;
      out.self.uptime_seconds = use.uptime_seconds;
      out.self.memory_bytes = use.memory_bytes;
      out.self.libraries = std::move(use.libraries);
    }
    out.self.threads = view.host_streams();
    out.self.memory_max_bytes = view.env.memory_bytes;
    for (const auto& [id, peer] : view.peers)
      if (peer.link) out.self.reaches.push_back(peer.member.name);
    std::sort(out.self.reaches.begin(), out.self.reaches.end(), natural_less);
    for (const auto& m : view.members)
      if (is_told_of(m, now)) out.peers.push_back(describe(m));
    if (wants_actors) list_actors(out);
    if (wants_jobs)
      for (const auto& [id, j] : view.jobs) {
        auto job = *j.board;
        job.started_seconds = age(now, j.started_ns);
        job.ended_seconds = age(now, j.ended_ns);
        out.jobs.push_back(std::move(job));
      }
    if (wants_jobs)
      for (const auto& [id, part] : parts.all())
        if (!view.jobs.contains(id)) out.jobs.push_back(describe(id, part, now));
    for (const auto& w : view.works) {
      if (wants_jobs) out.jobs.push_back(w->job(view.env.self.name));
      if (!wants_actors) continue;
      for (auto& a : w->actors(view.env.self.name)) out.actors.push_back(std::move(a));
    }
    const auto list = [steady = view.env.now_ns(), newest = newest_of(request)](
                          const auto& from, std::vector<event>& to) {
      for (const auto& [time, e] : from)
        if (const auto since = double(steady - time) * 1e-9; since <= newest)
          to.emplace_back(e).since_seconds = since;
    };
    if (wants_events) list(view.events, out.events);
    if (wants_lines) list(view.lines, out.lines);
    return out;
  }

  bool is_told_of(const member_info& m, std::uint64_t now) const {
    const auto since = view.state_since.find(m.id);
    if (since == view.state_since.end() || is_living(m)) return true;
    if (since->second.second == node_view::long_ago) return false;
    return now - std::min(now, since->second.second) <= node_view::told_ns || has_place_on(m);
  }

  // Of a job that runs: what it waits for may be there.
  bool has_place_on(const member_info& m) const {
    // One that has its name now has taken its place, too.
    for (const auto& other : view.members)
      if (other.name == m.name && is_living(other)) return false;
    const auto is_board_of = [&](const auto& j) {
      return j.second.ended_ns == 0 && is_in(j.second.board->participants, m.name);
    };
    const auto is_part_of = [&](const auto& p) {
      return p.second.ended_ns == 0 && is_in(p.second.nodes, m.id);
    };
    return std::ranges::any_of(view.jobs, is_board_of) ||
           std::ranges::any_of(parts.all(), is_part_of);
  }

  // What a participant knows of a job: after the death of its client nobody knows more.
  job_snapshot describe(job_id id, const part_entry& part, std::uint64_t now) const {
    job_snapshot j;
    j.id = fmt::format("{:016x}", raw(id));
    troupe::describe(*part.context->job_plan, j);
    // Async: what shards have applied, which is of all workers.
    const bool has_shard = std::ranges::any_of(
        part.actors, [&](auto i) { return part.context->records[i]->kind == actor_kind::shard; });
    for (auto i : part.actors)
      if (const auto& r = *part.context->records[i];
          j.update != "async" || !has_shard || r.kind == actor_kind::shard)
        j.step = std::max(j.step, r.steps.load(std::memory_order_relaxed));
    if (j.steps > 0) j.step = std::min(j.step, j.steps);
    j.started_seconds = age(now, part.started_ns);
    j.ended_seconds = part.is_halted ? 0 : age(now, part.ended_ns);
    if (part.ended_ns != 0)
      j.state = part.reason == job_done_reason                  ? job_state::done
                : part.reason.starts_with(job_stopped_prefix)   ? job_state::stopped
                : part.reason.starts_with(job_suspended_prefix) ? job_state::suspended
                                                                : job_state::failed;
    if (part.is_halted || part.orphaned_ns != 0) j.state = job_state::recovering;
    if (j.state == job_state::done && j.steps > 0) j.step = j.steps;
    j.epoch = part.epoch;
    if (j.state == job_state::failed) j.cause = part.reason;
    if (j.state == job_state::stopped) j.cause = part.reason.substr(job_stopped_prefix.size());
    if (j.state == job_state::suspended) j.cause = part.reason.substr(job_suspended_prefix.size());
    for (auto n : std::set<node_id>(part.nodes.begin(), part.nodes.end()))
      j.participants.push_back(name_of(n));
    j.client = name_of(part.coordinator);
    return j;
  }

  std::string name_of(node_id id) const {
    if (id == view.env.self.id) return view.env.self.name;
    for (const auto& m : view.members)
      if (m.id == id) return m.name;
    return member_name(id);
  }

  void list_actors(node_answer& out) const {
    out.actors.push_back(describe(*view.record, "node", nullptr));
    for (std::size_t i = 0; i < view.stream_records.size(); ++i)
      out.actors.push_back(describe(*view.stream_records[i],
                                    i < view.host_streams()
                                        ? fmt::format("cpu{}", i)
                                        : fmt::format("gpu{}", i - view.host_streams()),
                                    nullptr));
    for (const auto& d : view.env.devices)
      for (const auto& r : d->records()) out.actors.push_back(describe(*r, r->name, nullptr));
    for (const auto& [id, p] : view.peers)
      if (p.record) out.actors.push_back(describe(*p.record, "link-" + p.member.name, nullptr));
    for (const auto& [id, r] : view.job_records) {
      auto a = describe(*r, fmt::format("job{}", out.actors.size()), nullptr);
      a.job_id = fmt::format("{:016x}", raw(id));
      out.actors.push_back(std::move(a));
    }
    for (const auto& [id, part] : parts.all())
      for (auto i : part.actors) {
        out.actors.push_back(describe(*part.context->records[i],
                                      fmt::format("{}.{}", part.context->part, i), &part));
        out.actors.back().thread = thread_of(part, i);
        show_thread(out.actors.back(), part, i);
      }
  }
};

std::string type_of(const planned_actor& a) {
  if (a.kind != actor_kind::op) return std::string(to_string(a.kind));
  std::string types;
  for (const auto& op : a.ops) types += (types.empty() ? "" : "+") + op.type;
  return types;
}

}  // namespace

std::optional<trace_subject> describe_subject(const part_table& parts, std::uint64_t subject) {
  const auto at = std::ranges::find_if(
      parts.all(), [&](const auto& p) { return p.second.context->part == subject >> 32; });
  const auto index = (subject & 0xffffffff) - 1;
  if (at == parts.all().end() || index >= at->second.context->job_plan->actors.size())
    return std::nullopt;
  const auto& context = *at->second.context;
  const auto& plan = *context.job_plan;
  const auto& from = plan.actors[index];
  trace_subject s;
  s.part = {context.part, context.job, context.epoch, plan.name, plan.tasks[from.task].name};
  auto& a = s.actor;
  a.part = context.part;
  a.kind = from.kind;
  a.name = from.name;
  a.type = type_of(from);
  a.inputs = from.inputs;
  for (std::uint32_t port = 0; port < from.outputs.size(); ++port)
    for (const auto e : from.outputs[port]) {
      a.outputs.push_back(e);
      a.ports.push_back(port);
    }
  for (std::size_t k = 0; k < from.kernels.size(); ++k)
    a.kernels.push_back(name_of_kernel(from, k));
  if (from.kind == actor_kind::send && !a.outputs.empty())
    a.peer = plan.tasks[plan.actors[plan.edges[a.outputs[0]].to.actor].task].node;
  if (from.kind == actor_kind::receive && !a.inputs.empty())
    a.peer = plan.tasks[plan.actors[plan.edges[a.inputs[0]].from.actor].task].node;
  // Where a rank sends to several others, its events do not say to which.
  if (from.collective && from.collective->peers_to.size() == 1)
    a.peer = plan.tasks[plan.actors[plan.edges[from.outputs.back().front()].to.actor].task].node;
  return s;
}

node_answer answer(const node_view& view, const part_table& parts, const std::string& request) {
  return answerer{view, parts}.answer(request);
}

}  // namespace troupe
