#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/messages/archive_messages.hpp"
#include "troupe/actors/messages/member_messages.hpp"
#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/runtime/jobs/job_coordinator.hpp"
#include "troupe/runtime/wire/frame.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <numeric>
#include <set>
#include <string_view>

namespace troupe {

namespace {

// Beside it the message names the nodes.
constexpr std::size_t message_bytes_max = control_header_max - 256 * 1024;

// The variable whose versions come in at input `edge`: transfers are passed through.
std::string variable_behind(const plan& p, std::uint32_t edge) {
  const auto* actor = &p.actors[p.edges[edge].from.actor];
  while (actor->kind == actor_kind::receive || actor->kind == actor_kind::send ||
         actor->kind == actor_kind::copy)
    actor = &p.actors[p.edges[actor->inputs.at(0)].from.actor];
  return actor->shard.variable;
}

// In worker order, as wide as losses are.
template <class T>
float sum_as(const std::vector<tensor>& losses) {
  T sum = 0;
  for (const auto& v : losses) sum += *v.data<T>();
  return static_cast<float>(sum);
}

// f32 or f64, as gradients() sees to.
float sum_of(const std::vector<tensor>& losses) {
  return losses.front().spec().type == dtype::f64 ? sum_as<double>(losses) : sum_as<float>(losses);
}

job_setup make_setup(const job_arguments& a) {
  const auto& r = *a.request;
  return {.id = a.id,
          .name = r.name(),
          .client = a.self.id,
          .program = r.program,
          .roles = r.roles,
          .on_failure = r.on_failure,
          .limits = r.limits,
          .checkpoints = r.checkpoints,
          .fixed = r.job_plan,
          .nodes = r.nodes,
          .bugs = a.bugs,
          .recipe = r.recipe,
          .started_unix_ns = r.after ? r.after->journal.started_unix_ns : a.wall_clock_ns(),
          .after = r.after,
          .why_after = r.why_after,
          .has_failed_before = r.has_failed_before,
          .has_program = bool(a.program)};
}

struct job_actor_state {
  static inline const char* name = "job";

  caf::stateful_actor<job_actor_state>* self = nullptr;
  job_arguments about;
  std::optional<job_coordinator> job;
  std::shared_ptr<const part_handles> handles;
  std::uint32_t described = 0;  // the epoch whose plan is on the board
  std::uint64_t items = 0;      // observations that the program has got
  std::optional<job_variables> at_end;
  bool has_moved = false, is_wished = false;  // it moves because somebody has asked for that
  // On the job's folder, of a job that came from elsewhere.
  std::shared_ptr<const void> lock;
  // Of losses whose credits are kept until successors have them, the oldest first.
  std::deque<std::pair<std::shared_ptr<const part_handles>, std::uint32_t>> owed;

  void open(job_arguments a) {
    about = std::move(a);
    about.record->enter(actor_state::running);
    job.emplace(make_setup(about), about.members, message_bytes_max);
    job->begin(about.now_ns());
    carry_out();
  }

  template <class Message>
  void to_program(Message m) {
    if (!about.program) return;
    about.record->count_out(0);
    tell(self->context(), about.program, std::move(m));
  }

  // --- what the coordinator wants ----------------------------------------------------------------

  void carry_out() {
    for (auto actions = job->take_actions(); !actions.empty(); actions = job->take_actions())
      for (auto& a : actions) std::visit([this](auto& x) { act(x); }, a);
    show();
  }

  void act(job_action::send& s) {
    tell(self->context(), about.node, to_node{s.to, std::move(s.body)});
  }

  void act(const job_action::claim_epoch& c) {
    const auto& r = *about.request;
    if (!about.archive)
      return job->on_epoch(error(error_code::denied, "this process writes no checkpoints"), {});
    tell(self->context(), about.archive,
         claim_next{r.checkpoints.folder,
                    r.name(),
                    {about.self.name, about.self.host, about.self.pid,
                     about.wall_clock_ns() / 1'000'000'000},
                    c.wants_checkpoint,
                    lineage(),
                    caf::actor_cast<caf::actor>(self),
                    job->epoch(),
                    claimants(c.rivals),
                    c.is_anybody_a_rival,
                    r.after != nullptr && lock == nullptr});
  }

  std::vector<checkpoint_claimant> claimants(const std::vector<node_id>& nodes) const {
    std::vector<checkpoint_claimant> out;
    for (const auto& m : about.members)
      if (std::find(nodes.begin(), nodes.end(), m.id) != nodes.end() &&
          (m.host != about.self.host || m.pid != about.self.pid))
        out.push_back({m.name, m.host, m.pid, 0});
    return out;
  }

  void act(const job_action::give_loss_credits& g) {
    for (std::size_t i = 0; i < g.count && !owed.empty(); ++i) {
      const auto& [handles_of, fetch] = owed.front();
      if (handles_of) tell(self->context(), handles_of->actors[fetch], credit{0, 1});
      owed.pop_front();
    }
  }

  checkpoint_lineage lineage() const {
    const auto& c = about.request->checkpoints;
    return {c.epoch, c.resume_from ? c.resume_from->step : 0};
  }

  // What this run can go on with: its own checkpoints, and the one that it began with, by its own
  // count of steps.
  std::optional<known_checkpoint> known(const std::optional<checkpoint_manifest>& m) const {
    const auto& r = *about.request;
    if (!m) return std::nullopt;
    if (const auto& from = r.checkpoints.resume_from;
        from && from->epoch == m->epoch && from->step == m->step)
      return from;
    if (m->schedule != r.schedule) return std::nullopt;
    return known_checkpoint{m->epoch, m->step, m->worker_steps};
  }

  void on_claimed(const epoch_claimed& m) {
    if (m.lock) lock = m.lock;
    for (const auto& n : m.notes) say(job_note{"passed over: " + n}, "passed over: " + n);
    report([&](job_coordinator& j) { j.on_epoch(*m.epoch, known(m.newest)); });
  }

  void act(job_action::drop_cut& d) {
    tell(self->context(), about.archive,
         troupe::drop_cut{
             about.request->checkpoints.folder, about.request->name(), {d.epoch, d.step}});
  }

  void act(job_action::write_manifest& w) {
    const auto& r = *about.request;
    checkpoint_manifest m;
    m.job = r.name();
    m.epoch = w.epoch;
    m.step = w.step;
    m.worker_steps = std::move(w.worker_steps);
    m.schedule = r.schedule;
    m.made_unix_ns = about.wall_clock_ns();
    for (auto& p : w.parts)
      m.parts.push_back({std::move(p.file), p.bytes, std::move(p.hash), std::move(p.variables)});
    std::sort(m.parts.begin(), m.parts.end(),
              [](const auto& a, const auto& b) { return a.file < b.file; });
    const auto slots = slot_names(r.program->spec().optimizer);
    for (auto& [name, spec] : r.program->variables()) m.variables.push_back({name, spec, slots});
    tell(self->context(), about.archive,
         write_cut{r.checkpoints.folder, std::move(m), r.keep, lineage(),
                   caf::actor_cast<caf::actor>(self)});
  }

  void act(job_event& e) {
    switch (e.kind) {
      case job_event_kind::started:
        note(event_kind::job_placed, "is placed on " + names_of_nodes(), about_epoch());
        tell_started(feeds_of(job->current_plan()));
        return tell_history();
      case job_event_kind::loss:
        about.record->count_step();
        return to_program(job_progress{e.step, e.worker, e.loss});
      case job_event_kind::worker_lost: return to_program(worker_lost{e.worker, std::move(e.text)});
      case job_event_kind::recovering:
        about.board->cause = e.text;
        return say(job_recovering{false, e.step, e.text}, e.text, event_kind::job_recovering,
                   about_epoch());
      case job_event_kind::resumed:
        about.board->cause.clear();
        is_wished = false;  // it has stayed
        if (auto feeds = feeds_of(job->current_plan()); !feeds.empty())
          tell_started(std::move(feeds));
        return say(job_recovering{true, e.step, e.text}, e.text, event_kind::job_recovered,
                   about_epoch());
      case job_event_kind::note: return say(job_note{e.text}, e.text);
      case job_event_kind::finished:
        about.board->state = job_state::done;
        if (at_end) to_program(std::move(*at_end));
        to_program(job_finished{job->totals()});
        return leave();
      case job_event_kind::stopped:
        about.board->state = job_state::stopped;
        about.board->cause = e.text;
        to_program(job_stopped{std::move(e.text), job->totals()});
        return leave();
      case job_event_kind::suspended:
        about.board->state = job_state::suspended;
        about.board->cause = e.text;
        to_program(job_suspended{e.step, std::move(e.text), job->totals()});
        return leave();
      case job_event_kind::moved:
        has_moved = true;
        note(event_kind::job_moved, e.text);
        leave();  // the node first: the program may ask for the job at once
        return to_program(job_has_moved{!is_wished, std::move(e.text)});
      case job_event_kind::failed:
        about.board->state = job_state::failed;
        about.board->cause = e.text;
        to_program(job_failed{std::move(e.text), job->totals()});
        return leave();
    }
  }

  void tell_started(std::vector<job_feed> feeds) {
    to_program(job_started{about.id, handles, std::move(feeds), job->step()});
  }

  // What a program that comes to a running job has missed.
  void tell_history() {
    const auto& after = about.request->after;
    if (!after || !about.program) return;
    const auto& j = after->journal;
    const auto& kept = after->losses.newest();
    const bool is_sync = about.request->program->spec().update == update_kind::sync;
    const auto count = [&](const std::vector<std::uint64_t>& steps) {
      return is_sync ? steps.front()
                     : std::accumulate(steps.begin(), steps.end(), std::uint64_t{0});
    };
    // Async: the n-th loss of all workers together, as it was told then.
    const auto begun = count(j.first_steps), known = count(j.next_losses) - begun;
    const auto left_out = known - std::min<std::uint64_t>(known, kept.size());
    if (left_out > 0) to_program(job_note{fmt::format("{} earlier losses are not kept", left_out)});
    auto nth = begun + left_out;
    for (const auto& l : kept) {
      to_program(job_progress{is_sync ? l.step : nth, l.worker, l.loss});
      ++nth;
    }
  }

  // Those of several workers are named "worker/0/x".
  static std::vector<job_feed> feeds_of(const plan& p) {
    std::vector<job_feed> out;
    for (std::uint32_t i = 0; i < p.actors.size() && p.workers > 0; ++i) {
      const auto& a = p.actors[i];
      if (a.kind != actor_kind::feed) continue;
      job_feed f{0, a.name, i, a.output_specs.at(0), a.start};
      constexpr std::string_view prefix = "worker/";
      if (p.workers > 1 && a.name.starts_with(prefix)) {
        const auto end = a.name.find('/', prefix.size());
        std::from_chars(a.name.data() + prefix.size(), a.name.data() + end, f.worker);
        f.input = a.name.substr(end + 1);
      }
      out.push_back(std::move(f));
    }
    return out;
  }

  void note(event_kind kind, const std::string& text, std::string of = {}) {
    const auto& name = about.request->name();
    tell(self->context(), about.node,
         member_event{make_job_event(kind, name, about.board->id,
                                     fmt::format("job {}: {}", name, text), std::move(of))});
  }
  // SN-5: nodes with parts note the same of that epoch.
  std::string about_epoch() const { return fmt::format("{}/{}", about.board->id, job->epoch()); }
  std::string names_of_nodes() const {
    std::string names;
    for (auto n : std::set<node_id>(job->nodes().begin(), job->nodes().end()))
      names += (names.empty() ? "" : ", ") + name_of(n);
    return names;
  }

  template <class Message>
  void say(Message m, const std::string& text, event_kind kind = event_kind::job_note,
           std::string of = {}) {
    note(kind, text, std::move(of));
    to_program(std::move(m));
  }

  // Checkpoints of fast steps would drive other events out.
  void note_checkpoint(const cut_written& m) {
    constexpr std::int64_t apart_ns = 10'000'000'000;
    const auto now = about.now_ns();
    if (noted_cut_ns && now - *noted_cut_ns < apart_ns) {
      ++cuts_unnoted;
      unnoted_step = m.step;
      return;
    }
    noted_cut_ns = now;
    tell_checkpoint(m.step, std::exchange(cuts_unnoted, 0));
  }
  void tell_checkpoint(std::uint64_t step, std::uint64_t before) {
    note(event_kind::checkpoint_written,
         before == 0 ? fmt::format("the checkpoint of step {} is written", step)
                     : fmt::format("the checkpoint of step {} is written, and {} before it since "
                                   "that was last told",
                                   step, before));
  }
  // Nobody tells of them later.
  void tell_last_checkpoint() {
    if (cuts_unnoted > 0) tell_checkpoint(unnoted_step, std::exchange(cuts_unnoted, 0) - 1);
  }

  void leave() {
    tell_last_checkpoint();
    about.record->enter(actor_state::ended);
    tell(self->context(), about.node, job_over{about.id, has_moved});
    handles.reset();
    owed.clear();
    self->quit();
  }

  void show() {
    auto& b = *about.board;
    if (described != job->epoch() && job->phase() == job_phase::running) {
      described = job->epoch();
      describe(job->current_plan(), b);
      b.participants.clear();
      for (auto n : std::set<node_id>(job->nodes().begin(), job->nodes().end()))
        b.participants.push_back(name_of(n));
    }
    b.epoch = job->epoch();
    b.step = job->step();
    b.recoveries = job->totals().recoveries;
    b.checkpoints = job->totals().checkpoints;
    if (b.state == job_state::running || b.state == job_state::recovering)
      b.state = job->phase() == job_phase::running ||
                        (job->phase() == job_phase::placing && b.recoveries == 0)
                    ? job_state::running
                    : job_state::recovering;
  }

  std::optional<std::int64_t> noted_cut_ns;
  std::uint64_t cuts_unnoted = 0, unnoted_step = 0;  // how many, and of the last one
  static constexpr std::size_t ignored_max = 64;
  std::set<node_id> ignored;  // who has no part, and said something of one

  std::string name_of(node_id n) const {
    for (const auto& m : about.members)
      if (m.id == n) return m.name;
    return fmt::format("{:x}", raw(n));
  }

  // --- what happens ------------------------------------------------------------------------------

  template <class Report>
  void report(Report&& r) {
    if (job->phase() == job_phase::over) return;
    r(*job);
    carry_out();
  }

  // What is said of a part of the job is heard from who has one, or has had one in an epoch before,
  // which the coordinator drops (JC-3).
  bool is_of_no_part(const peer_message& m) const {
    std::uint32_t epoch = 0;
    if (const auto* p = std::get_if<part_placed>(&m.body)) epoch = p->epoch;
    if (const auto* p = std::get_if<part_ended>(&m.body)) epoch = p->epoch;
    if (const auto* p = std::get_if<part_saved>(&m.body)) epoch = p->epoch;
    if (const auto* p = std::get_if<part_noted>(&m.body)) epoch = p->epoch;
    return epoch != 0 && epoch == job->epoch() && job->phase() != job_phase::over &&
           std::ranges::find(job->nodes(), m.from) == job->nodes().end();
  }

  void on_message(const peer_message& m) {
    about.record->count_in(0);
    if (is_of_no_part(m)) {
      if (ignored.size() < ignored_max && ignored.insert(m.from).second)
        note(event_kind::message_ignored,
             fmt::format("ignored what {} says of a part, since it has none; more of it is "
                         "ignored without a word",
                         name_of(m.from)));
      return;
    }
    report([&](job_coordinator& j) {
      if (auto* p = std::get_if<part_placed>(&m.body)) return j.on_placed(m.from, *p);
      if (auto* w = std::get_if<want_blob>(&m.body)) return j.on_want_blob(m.from, *w);
      if (auto* p = std::get_if<part_ended>(&m.body)) return j.on_ended(m.from, *p);
      if (auto* p = std::get_if<part_halted>(&m.body)) return j.on_halted(m.from, *p);
      if (auto* p = std::get_if<part_saved>(&m.body)) return j.on_saved(m.from, *p);
      if (auto* p = std::get_if<part_noted>(&m.body)) return j.on_noted(m.from, *p);
      if (auto* k = std::get_if<journal_kept>(&m.body)) return j.on_kept(m.from, *k);
      if (auto* v = std::get_if<job_moved>(&m.body)) return j.on_moved(*v);
      if (std::holds_alternative<leaving_node>(m.body)) return j.on_leaving(m.from);
      if (auto* l = std::get_if<lost_peer>(&m.body))
        return j.on_lost_by(m.from, l->node, l->reason, l->has_left);
    });
  }

  void on_local(local_part& m) {
    if (m.epoch == job->epoch()) handles = std::move(m.handles);
    report([&](job_coordinator& j) { j.on_local_part(m.epoch); });
  }

  void on_up(const member_up& m) {
    about.members.push_back(m.member);
    report([&](job_coordinator& j) { j.on_member(m.member); });
  }

  // A wish that cannot be met is told, and the job goes on as it does.
  void wish(const std::function<result<void>(job_coordinator&)>& of) {
    report([&](job_coordinator& j) {
      if (const auto ok = of(j); !ok) say(job_note{ok.error().text()}, ok.error().text());
    });
  }

  // Who asks for it wants the job's end in any case.
  void on_suspend(const suspend_job& m) {
    report([&](job_coordinator& j) {
      const auto ok = j.on_suspend(m.reason);
      if (ok || j.phase() == job_phase::over) return;
      say(job_note{ok.error().text()}, ok.error().text());
      j.on_stop(m.reason);
    });
  }

  void on_hand_over(const hand_over_job& m) {
    if (job->phase() == job_phase::over) return;
    const auto ok = job->on_hand_over(m.to);
    is_wished = is_wished || bool(ok);
    if (!ok && ok.error().code() != error_code::denied)  // else it is on its way: it asks again
      tell(self->context(), about.node, to_node{m.to, job_refused{m.job, ok.error().text()}});
    carry_out();
  }

  void on_rejoined(const rejoined& m) {
    about.self = m.self;
    about.members = {m.self};
    report([&](job_coordinator& j) { j.on_rejoined(m.self); });
  }

  void on_fetched(fetched& m) {
    about.record->count_in(0);
    if (job->phase() == job_phase::over) return;
    const auto& fetch = job->current_plan().actors[m.fetch];
    if (fetch.name == loss_fetch)
      on_loss(m);
    else
      on_variables(fetch, m);
    if (fetch.name == loss_fetch && job->may_move() && job->phase() != job_phase::over) return;
    if (handles) tell(self->context(), handles->actors[m.fetch], credit{0, 1});
  }

  void on_loss(const fetched& m) {
    if (job->may_move()) owed.emplace_back(handles, m.fetch);
    report([&, loss = sum_of(m.values)](job_coordinator& j) { j.on_loss(m.port, m.t.step, loss); });
  }

  // Of the plan, which may end before the training that was asked for.
  std::uint64_t last_step() const {
    job_snapshot b;
    describe(job->current_plan(), b);
    return about.request->program->spec().update == update_kind::async
               ? b.steps / about.request->program->spec().workers
               : b.steps;
  }

  void on_variables(const planned_actor& fetch, fetched& m) {
    if (m.t.step < items) return;  // it has that
    items = m.t.step + 1;
    const auto& spec = about.request->program->spec();
    const auto steps = last_step();
    const auto version = spec.update == update_kind::async ? steps * spec.workers
                         : spec.observe_every > 0          ? (m.t.step + 1) * spec.observe_every
                                                           : steps;
    job_variables out{m.t.step, version, {}};
    for (std::size_t i = 0; i < m.values.size(); ++i)
      out.values.emplace_back(variable_behind(job->current_plan(), fetch.inputs[i]),
                              std::move(m.values[i]));
    // What is observed at the end counts when the job has ended: another epoch may come to other
    // values.
    if (about.request->on_failure == failure_policy::stop) return to_program(std::move(out));
    items = 0;
    at_end = std::move(out);
  }
};

caf::behavior job_actor(caf::stateful_actor<job_actor_state>* self, job_arguments a) {
  auto& s = self->state;
  s.self = self;
  self->set_exception_handler(&reason_of);
  s.open(std::move(a));
  return {
      [&s](const peer_message& m) { s.on_message(m); },
      [&s](local_part& m) { s.on_local(m); },
      [&s](const member_up& m) { s.on_up(m); },
      [&s](const member_down& m) {
        s.report([&](job_coordinator& j) {
          j.on_lost(m.member.id, m.member.reason, m.member.state == member_state::left);
        });
      },
      [&s](const rejoined& m) { s.on_rejoined(m); },
      [&s](fetched& m) { s.on_fetched(m); },
      [](const feed_ready&) {},
      [&s](const epoch_claimed& m) { s.on_claimed(m); },
      [&s](const cut_written& m) {
        if (*m.written) s.note_checkpoint(m);
        s.report([&](job_coordinator& j) { j.on_manifest(m.step, m.epoch, *m.written); });
      },
      [&s](want_cut) { s.report([](job_coordinator& j) { j.want_checkpoint(); }); },
      [&s](const stop_job& m) { s.report([&](job_coordinator& j) { j.on_stop(m.reason); }); },
      [&s](const finish_job& m) {
        s.wish([&](job_coordinator& j) { return j.on_finish(m.at_least); });
      },
      [&s](const suspend_job& m) { s.on_suspend(m); },
      [&s](detach_job) {
        s.wish([&s](job_coordinator& j) {
          auto ok = j.on_detach();
          s.is_wished = s.is_wished || bool(ok);
          return ok;
        });
      },
      [&s](let_go_job) { s.report([](job_coordinator& j) { j.on_let_go(); }); },
      [&s](const hand_over_job& m) { s.on_hand_over(m); },
      [&s](job_tick) { s.report([&](job_coordinator& j) { j.tick(s.about.now_ns()); }); },
  };
}

}  // namespace

void take_over(opened_folder folder, const checkpoint_options& o, job_request& request,
               std::vector<std::string>& notes) {
  request.keeps_lock = std::shared_ptr<const void>(std::move(folder.lock));
  request.checkpoints = {o.folder, o.every_steps, o.every_ns, std::move(folder.resume_from),
                         folder.epoch};
  request.schedule = request.program->schedule();
  request.keep = std::max<std::uint32_t>(1, o.keep);
  notes.insert(notes.end(), folder.notes.begin(), folder.notes.end());
}

void describe(const plan& p, job_snapshot& out) {
  out.name = p.name;
  out.workers = p.workers;
  out.shards = p.shards;
  out.update = p.workers == 0 ? "" : p.update == update_kind::sync ? "sync" : "async";
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::fetch && (a.name == "loss" || p.workers == 0)) out.steps = a.steps;
}

caf::actor spawn_job(caf::actor_system& sys, caf::execution_unit* worker, job_arguments arguments) {
  return spawn_on(sys, worker, &job_actor, std::move(arguments));
}

}  // namespace troupe
