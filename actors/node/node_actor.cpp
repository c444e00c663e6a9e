#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/messages/archive_messages.hpp"
#include "troupe/actors/messages/member_messages.hpp"
#include "troupe/actors/messages/process_messages.hpp"
#include "troupe/actors/messages/work_messages.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/node/node_answer.hpp"
#include "troupe/actors/node/part_table.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/runtime/cluster/membership.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace troupe {

namespace {

// Ended actors and jobs stay listed for a minute.
constexpr std::uint64_t linger_ns = 60'000'000'000;
constexpr std::size_t ended_jobs_max = 100;
// NO-16: entries, and what they take in an answer, about: with 16 MiB of which a sixteenth is for
// all but actors (SN-4), and lines are asked for apart.
struct ring_limits {
  std::size_t entries, bytes;
};
constexpr ring_limits events_max{512, std::size_t{384} << 10},
    lines_max{2048, std::size_t{1} << 20};
constexpr std::size_t event_text_max = 4096, event_name_max = 256, event_keys_bytes = 256;
std::size_t bytes_of(const event& e) {
  return event_keys_bytes + e.text.size() + e.job.size() + e.about.size() + e.node.size();
}
// For work that came while we were about to leave.
constexpr std::int64_t move_max_ns = 5'000'000'000;
// From a coordinator's end to the next one's beginning.
constexpr std::int64_t gone_ns = 300'000'000;
// From a refusal to a program's error: somebody else may have the job.
constexpr std::int64_t refused_ns = 2'000'000'000;

struct node_actor_state : part_services {
  static inline const char* name = "node";

  caf::stateful_actor<node_actor_state>* self = nullptr;
  node_view view;  // what questions are answered from
  std::optional<part_table> parts;
  std::map<job_id, caf::actor> program_of;  // null: none is attached
  std::optional<kept_journals> journals;
  struct waiting_program {
    attach_job asked;
    std::string refused;  // by somebody; others may have another job of that name
    std::int64_t refused_ns = 0;
  };
  std::vector<waiting_program> attaching;
  // Of coordinators that are no peers yet: what they asked to be kept is answered then.
  std::map<node_id, std::map<job_id, journal_kept>> unanswered;
  std::deque<std::pair<std::int64_t, node_id>> lately_gone;
  std::string denied;
  std::vector<std::shared_ptr<stream_meter>> stream_meters;
  std::optional<trace_recorder> recorder;
  std::map<job_id, caf::actor> works;  // that are no jobs: who has joined
  std::uint64_t stray_messages = 0;    // NO-4
  struct noted_so_far {
    std::uint64_t last = 0;  // number
    std::size_t bytes = 0;   // of those that are kept
  };
  noted_so_far noted_events, noted_lines;
  std::string forgotten;           // SN-5: what a tool has asked all to forget, until that is noted
  std::set<node_id> without_link;  // members whose link was given up
  caf::actor member;
  bool is_draining = false;  // for good
  caf::actor draining;       // who is told when what can move has moved
  std::optional<end_node> end_when_drained;
  std::int64_t end_asked_ns = 0;
  caf::actor ending;  // who is told when all parts have ended
  bool is_ending = false;

  void open(caf::stateful_actor<node_actor_state>* s, node_environment e) {
    self = s;
    view.env = std::move(e);
    view.record = std::make_shared<actor_record>(actor_kind::node, "node", "", *view.env.clock);
    stream_meters = view.env.meters;
    std::vector<trace_source> sources;
    for (std::size_t i = 0; i < view.env.streams.size(); ++i) {
      if (stream_meters.size() == i)
        stream_meters.push_back(std::make_shared<stream_meter>(view.env.now_ns));
      view.stream_records.push_back(std::make_shared<actor_record>(
          actor_kind::stream,
          i < view.host_streams() ? fmt::format("cpu:{}", i)
                                  : fmt::format("gpu:{}", i - view.host_streams()),
          "", *view.env.clock));
      const auto& m = stream_meters[i];
      sources.push_back({view.stream_records.back()->name, true, {m, &m->lane}, {m, &m->current}});
      if (i < view.host_streams() || i - view.host_streams() >= view.env.devices.size()) continue;
      const auto& device = *view.env.devices[i - view.host_streams()];
      for (std::size_t k = 0; k < device.records().size(); ++k)
        sources.push_back({.name = device.records()[k]->name,
                           .lane = device.timelines()[k],
                           .is_told_later = true});
    }
    sources.insert(sources.end(), view.env.lanes.begin(), view.env.lanes.end());
    parts.emplace(*this, self->system());
    journals.emplace(view.env.self.id);
    recorder.emplace(std::move(sources),
                     [this](std::uint64_t subject) { return describe_subject(*parts, subject); });
    note_own_join();
  }

  // --- part_services -----------------------------------------------------------------------------

  const node_environment& environment() const override { return view.env; }
  const std::map<node_id, peer_entry>& peers() const override { return view.peers; }
  caf::actor handle() override { return caf::actor_cast<caf::actor>(self); }
  caf::execution_unit* context() override { return self->context(); }
  const std::vector<std::shared_ptr<stream_meter>>& meters() const override {
    return stream_meters;
  }

  void note(event what) override {
    what.node = view.env.self.name;
    what.node_id = fmt::format("{:016x}", raw(view.env.self.id));
    what.text = printable(what.text, '?', event_text_max);
    what.job = printable(what.job, '?', event_name_max);
    what.about = printable(what.about, '?', event_name_max);
    const auto keep = [&](auto& all, noted_so_far& so_far, const ring_limits& most) {
      what.number = ++so_far.last;
      all.emplace_back(view.env.now_ns(), what);
      so_far.bytes += bytes_of(what);
      while (all.size() > 1 && (all.size() > most.entries || so_far.bytes > most.bytes)) {
        so_far.bytes -= bytes_of(all.front().second);
        all.pop_front();
      }
    };
    if (what.level >= event_level::info) keep(view.events, noted_events, events_max);
    keep(view.lines, noted_lines, lines_max);
    if (view.env.on_line) view.env.on_line(what, view.env.wall_clock_ns());
  }

  // A tool asked for something that concerns this node.
  void note_request(std::string request, const std::string& said) {
    std::ranges::replace(request, '\t', ' ');
    note(make_event(event_kind::note, fmt::format("a tool asked for '{}': {}", request, said),
                    std::exchange(forgotten, {})));
  }

  // A line of the log that is no event.
  void log(event_level level, std::string text) {
    auto what = make_event(event_kind::note, std::move(text));
    what.level = level;
    note(std::move(what));
  }

  std::string id_of_self() const { return fmt::format("{:016x}", raw(view.env.self.id)); }

  // SN-5: of itself.
  void note_own_join() {
    const auto& me = view.env.self;
    note(make_event(
        event_kind::member_joined,
        fmt::format("{} joined: {} at {}, pid {}", me.name, to_string(me.kind), me.address, me.pid),
        id_of_self()));
  }
  // Whether we began earlier: of any two members one did.
  bool is_older_than(const member_info& m) const {
    const auto& me = view.env.self;
    return std::pair(me.start_time_ns, raw(me.id)) < std::pair(m.start_time_ns, raw(m.id));
  }

  // NO-7.
  void on_place(node_id from, place_part& p) {
    if (is_ending) return;
    const auto job = p.job;
    parts->place(from, std::move(p));
    if (is_draining) send(from, leaving_node{job});
  }

  void send(node_id to, control_message body) override {
    view.record->count_out(0);
    if (to == view.env.self.id)
      return tell(self->context(), handle(), peer_message{view.env.self.id, std::move(body)});
    auto at = view.peers.find(to);
    if (at != view.peers.end() && at->second.link)
      tell(self->context(), at->second.link, send_control{std::move(body)});
  }

  void parts_changed() override {
    if (member) tell(self->context(), member, jobs_changed{parts->running()});
    tell_if_drained();
    end_if_empty();
  }

  caf::actor job_actor(job_id job) const override {
    auto at = view.jobs.find(job);
    return at != view.jobs.end() && at->second.ended_ns == 0 ? at->second.actor : nullptr;
  }

  caf::actor fetches_to(job_id job) const override {
    auto at = view.jobs.find(job);
    if (at == view.jobs.end() || at->second.ended_ns != 0) return nullptr;
    return at->second.request->fetches_to_program ? program_of.at(job) : at->second.actor;
  }

  // --- peers -------------------------------------------------------------------------------------

  void on_up(member_up& m) {
    const auto about = fmt::format("{:016x}", raw(m.member.id));
    if (without_link.erase(m.member.id) > 0)
      note(make_event(event_kind::member_back,
                      fmt::format("there is a link to {} again", m.member.name), about));
    else if (is_older_than(m.member))
      note(make_event(event_kind::member_joined,
                      fmt::format("{} joined: {} at {}, pid {}", m.member.name,
                                  to_string(m.member.kind), m.member.address, m.member.pid),
                      about));
    else
      log(event_level::debug,
          fmt::format("meets {}: {} at {}, pid {}", m.member.name, to_string(m.member.kind),
                      m.member.address, m.member.pid));
    for (auto& [id, job] : view.jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, member_up{m});
    auto id = m.member.id;
    view.peers[id] = peer_entry{std::move(m.member), std::move(m.link), std::move(m.record)};
    parts->place_waiting();
    for (auto& [job, kept] : std::exchange(unanswered[id], {})) send(id, std::move(kept));
    unanswered.erase(id);
  }

  void on_down(const member_down& m) {
    const auto state = m.member.state;
    if (m.is_of_link)
      without_link.insert(m.member.id);
    else
      note(make_event(
          state == member_state::left          ? event_kind::member_left
          : state == member_state::unreachable ? event_kind::member_unreachable
                                               : event_kind::member_lost,
          fmt::format("{} {} {}: {}", m.member.name, state == member_state::left ? "has" : "is",
                      to_string(state), m.member.reason),
          fmt::format("{:016x}", raw(m.member.id))));
    if (state == member_state::unreachable) return;
    if (!m.is_of_link) without_link.erase(m.member.id);
    view.peers.erase(m.member.id);
    for (auto& [id, job] : view.jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, member_down{m});
    parts->on_lost(m.member);
    tell_works({m.member.id, m.member.name, m.member.reason});
    unanswered.erase(m.member.id);
    lately_gone.emplace_back(view.env.now_ns(), m.member.id);
  }

  void on_rejoined(rejoined& m) {
    for (auto& [id, job] : view.jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, rejoined{m});
    if (view.env.bugs == nullptr || !view.env.bugs->keeps_parts_when_fenced)
      parts->stop_all("the cluster held this node dead");
    leave_works("the cluster held this node dead");
    view.peers.clear();
    view.env.self = std::move(m.self);
    journals->on_rejoined(view.env.self.id);
    unanswered.clear();
    lately_gone.clear();
    without_link.clear();
    note_own_join();
  }

  // --- work that is no job -----------------------------------------------------------------------

  void join(join_work& m) {
    if (is_ending)
      return tell(self->context(), m.who,
                  node_lost{view.env.self.id, view.env.self.name, "it leaves the cluster"});
    works.insert_or_assign(m.job, std::move(m.who));
  }

  void leave(job_id job) {
    if (works.erase(job) == 0) return;
    for (const auto& [id, peer] : view.peers)
      if (peer.link) tell(self->context(), peer.link, unbind_stream{job});
  }

  void tell_works(const node_lost& m) {
    for (const auto& [job, who] : works) tell(self->context(), who, node_lost{m});
  }

  // NO-11.
  void leave_works(const std::string& reason) {
    tell_works({view.env.self.id, view.env.self.name, reason});
    while (!works.empty()) leave(works.begin()->first);
  }

  bool can_send_to(node_id to) const {
    const auto at = view.peers.find(to);
    return to == view.env.self.id || (at != view.peers.end() && at->second.link);
  }

  void send_word_of(send_word& m) {
    const auto at = works.find(m.job);
    if (at == works.end()) {
      ++stray_messages;
      return;
    }
    const auto refuse = [&](std::string why) {
      tell(self->context(), at->second, word_refused{m.job, m.to, std::move(why)});
    };
    if (m.bytes.size() > work_word_bytes_max)
      return refuse(fmt::format("a word of {} bytes is beyond the limit of {}", m.bytes.size(),
                                work_word_bytes_max));
    if (!can_send_to(m.to)) return refuse(fmt::format("no link leads to {}", name_of(m.to)));
    send(m.to, work_word{m.job, std::move(m.bytes)});
  }

  void on_word(node_id from, work_word& m) {
    auto at = works.find(m.job);
    if (at == works.end() && view.env.host_work && !is_draining && !is_ending)
      if (auto who = view.env.host_work(m.job, from))
        at = works.emplace(m.job, std::move(who)).first;
    if (at == works.end()) {
      ++stray_messages;
      return;
    }
    tell(self->context(), at->second, work_word_came{m.job, from, std::move(m.bytes)});
  }

  void bind(bind_stream& m) {
    const auto refuse = [&](std::string why) {
      tell(self->context(), m.who, stream_bound{m.peer, nullptr, std::move(why)});
    };
    if (!works.contains(m.job)) return refuse("this node has not joined that work");
    if (m.peer == view.env.self.id) return refuse("a stream leads to another node");
    if (!can_send_to(m.peer)) return refuse(fmt::format("no link leads to {}", name_of(m.peer)));
    tell(self->context(), view.peers.at(m.peer).link, std::move(m));
  }

  // --- messages of jobs --------------------------------------------------------------------------

  void on_message(peer_message& m) {
    view.record->count_in(0);
    if (auto* p = std::get_if<place_part>(&m.body)) return on_place(m.from, *p);
    if (auto* s = std::get_if<start_part>(&m.body)) return parts->start(m.from, *s);
    if (auto* h = std::get_if<halt_part>(&m.body)) return on_halt(m.from, *h);
    if (auto* c = std::get_if<begin_cut>(&m.body)) return parts->cut(m.from, *c);
    if (auto* c = std::get_if<cancel_run>(&m.body)) return parts->cancel(m.from, *c);
    if (auto* b = std::get_if<epoch_begun>(&m.body)) return parts->begun(m.from, *b);
    if (auto* s = std::get_if<stop_part>(&m.body)) return parts->stop(m.from, *s);
    if (auto* p = std::get_if<part_placed>(&m.body)) return to_job(p->job, m);
    if (auto* w = std::get_if<want_blob>(&m.body)) return to_job(w->job, m);
    if (auto* p = std::get_if<blob_piece>(&m.body)) return parts->on_piece(m.from, *p);
    if (auto* p = std::get_if<part_ended>(&m.body)) return to_job(p->job, m);
    if (auto* p = std::get_if<part_halted>(&m.body)) return to_job(p->job, m);
    if (auto* p = std::get_if<part_saved>(&m.body)) return to_job(p->job, m);
    if (auto* p = std::get_if<part_noted>(&m.body)) return to_job(p->job, m);
    if (auto* k = std::get_if<keep_journal>(&m.body)) return on_journal(m.from, *k);
    if (auto* k = std::get_if<journal_kept>(&m.body)) return to_job(k->job, m);
    if (auto* t = std::get_if<give_job>(&m.body)) return on_given(m.from, *t);
    if (auto* a = std::get_if<ask_for_job>(&m.body)) return on_asked(m.from, *a);
    if (auto* r = std::get_if<job_refused>(&m.body)) return on_refused(*r);
    if (auto* j = std::get_if<job_moved>(&m.body)) return on_moved(j->job, m);
    if (auto* l = std::get_if<lost_peer>(&m.body)) return to_job(l->job, m);
    if (auto* l = std::get_if<leaving_node>(&m.body)) return to_job(l->job, m);
    if (auto* w = std::get_if<work_word>(&m.body)) return on_word(m.from, *w);
    ++stray_messages;
  }

  // Of a job that is coordinated here somebody else has a newer epoch, if it is newer.
  void on_halt(node_id from, const halt_part& h) {
    if (const auto actor = job_actor(h.job);
        actor && from != view.env.self.id && view.jobs.at(h.job).request->recipe != nullptr)
      tell(self->context(), actor, peer_message{from, job_moved{h.job, h.epoch, from}});
    parts->halt(from, h);
  }

  // A job without a recipe ends with its coordinator, and nobody else can have it: NO-13.
  void on_moved(job_id job, peer_message& m) {
    const auto at = view.jobs.find(job);
    if (at != view.jobs.end() && at->second.ended_ns == 0 && at->second.request->recipe == nullptr)
      return note(make_job_event(event_kind::message_ignored, at->second.board->name,
                                 at->second.board->id,
                                 fmt::format("ignored job_moved of job {} from {}: it cannot move",
                                             at->second.board->name, name_of(m.from))));
    to_job(job, m);
  }

  void to_job(job_id job, peer_message& m) {
    const auto actor = job_actor(job);
    if (!actor) {
      ++stray_messages;
      return;
    }
    tell(self->context(), actor, peer_message{m.from, std::move(m.body)});
  }

  void on_disk(part_on_disk& m) {
    const auto at = parts->all().find(m.report.job);
    if (at != parts->all().end()) send(at->second.coordinator, std::move(m.report));
  }

  // --- jobs that outlive their coordinator -------------------------------------------------------

  void on_journal(node_id from, const keep_journal& m) {
    if (m.recipe.empty() && m.journal.empty()) return journals->forget(from, m.job, m.number);
    journal_kept out{m.job, m.number, {}};
    if (is_draining || is_ending)
      out.error = "it leaves the cluster";
    else if (const auto kept = journals->keep(from, m.job, m.number, m.recipe, m.journal); !kept)
      out.error = kept.error().text();
    if (view.peers.contains(from) || from == view.env.self.id) return send(from, std::move(out));
    auto& of = unanswered[from];
    of.insert_or_assign(m.job, std::move(out));
  }

  void on_given(node_id from, const give_job& m) {
    auto kept = journals->take(from, m.job);
    if (!kept) {
      ++stray_messages;
      return;
    }
    go_on(m.job, std::move(*kept), m.reason, false);
  }

  // Who has just gone may have been held dead by a node that stood still itself, and that the
  // others hold dead: it hears so meanwhile.
  void take_orphans() {
    const auto now = view.env.now_ns();
    while (!lately_gone.empty() && now - lately_gone.front().first > gone_ns)
      lately_gone.pop_front();
    if (is_ending) return;
    for (auto& [job, kept] : journals->take_orphans([this](node_id n) {
           return n == view.env.self.id || view.peers.contains(n) ||
                  std::any_of(lately_gone.begin(), lately_gone.end(),
                              [n](const auto& g) { return g.second == n; });
         })) {
      const auto who = name_of(kept.from);
      go_on(job, std::move(kept), fmt::format("{}, which coordinated it, has died or left", who),
            true);
    }
  }

  std::string name_of(node_id n) const {
    for (const auto& m : view.members)
      if (m.id == n) return m.name;
    return fmt::format("{:x}", raw(n));
  }

  // With the program that has asked for it, if one has.
  void go_on(job_id id, kept_journal kept, const std::string& why, bool has_failed) {
    const auto recipe = kept.recipe;
    const auto from = kept.from;
    const auto refuse = [&](const std::string& text) {
      send(from, journal_kept{id, kept.number, text});
    };
    if (is_ending) return refuse("it leaves the cluster");
    auto program = make_program(*recipe, kept.journal.roles, view.env.self.id, *view.env.ops);
    const auto known = view.jobs.find(id);
    const auto name = program ? program->name() : fmt::format("{:016x}", raw(id));
    const auto wanted = std::find_if(attaching.begin(), attaching.end(), [&](const auto& a) {
      return a.asked.job == name || a.asked.job == fmt::format("{:016x}", raw(id));
    });
    const auto to = wanted == attaching.end() ? caf::actor() : wanted->asked.program;
    if (wanted != attaching.end()) attaching.erase(wanted);
    if (!program) {
      auto what =
          make_job_event(event_kind::job_note, name, fmt::format("{:016x}", raw(id)),
                         fmt::format("job {} cannot go on here: {}", name, program.error().text()));
      what.level = event_level::error;
      note(std::move(what));
      if (to) tell(self->context(), to, attach_failed{program.error().text()});
      return refuse(program.error().text());
    }
    // A program's process has jobs for that program.
    if (!to && view.env.self.kind != member_kind::node) return refuse("nobody waits for it there");
    if (known != view.jobs.end() && known->second.ended_ns == 0) return;  // it is here already
    auto request = std::make_shared<job_request>();
    request->schedule = program->schedule();
    request->program = std::move(*program);
    request->roles = kept.journal.roles;
    request->on_failure = recipe->on_failure;
    request->limits = recipe->limits;
    request->checkpoints = recipe->checkpoints;
    request->keep = recipe->keep;
    request->recipe = std::make_shared<const std::vector<std::byte>>(encode(*recipe));
    request->why_after = why;
    request->has_failed_before = has_failed;
    request->after = std::make_shared<const kept_journal>(std::move(kept));
    // It recovers later, and tells of that then.
    note(make_job_event(event_kind::job_moved, name, fmt::format("{:016x}", raw(id)),
                        fmt::format("goes on with job {}: {}", name, why)));
    coordinate(id, std::move(request), to);
  }

  void attach(attach_job& m) {
    if (is_ending) return tell(self->context(), m.program, attach_failed{"the session has ended"});
    for (const auto& [id, job] : view.jobs)
      if (job.ended_ns == 0 && is_called(job, m.job))
        return tell(self->context(), m.program,
                    attach_failed{fmt::format("this program has job '{}' already", m.job)});
    attaching.push_back({m, {}, 0});
    ask_for_jobs();
  }

  // The program gives it up: what has come of it goes back to the cluster.
  void forget(const forget_attach& m) {
    std::erase_if(attaching, [&](const auto& a) { return a.asked.program == m.program; });
    for (auto& [job, program] : program_of) {
      if (program != m.program) continue;
      program = nullptr;
      tell(self->context(), view.jobs.at(job).actor, detach_job{});
    }
  }

  // Again and again: whoever will have the job may not have it yet.
  void ask_for_jobs() {
    const auto now = view.env.now_ns();
    std::erase_if(attaching, [&](const auto& a) {
      if (a.refused_ns == 0 || now - a.refused_ns <= refused_ns) return false;
      tell(self->context(), a.asked.program, attach_failed{a.refused});
      return true;
    });
    for (const auto& a : attaching)
      for (const auto& [id, peer] : view.peers)
        if (peer.link) send(id, ask_for_job{a.asked.job});
  }

  static bool is_called(const job_entry& job, const std::string& name) {
    return job.board->name == name || job.board->id == name;
  }

  void on_asked(node_id from, const ask_for_job& m) {
    const job_entry* over = nullptr;
    for (const auto& [id, job] : view.jobs) {
      if (!is_called(job, m.job)) continue;
      if (job.ended_ns == 0) return tell(self->context(), job.actor, hand_over_job{from, m.job});
      over = &job;
    }
    if (over != nullptr)
      send(from,
           job_refused{m.job, fmt::format("the job is over: {}{}{}", to_string(over->board->state),
                                          over->board->cause.empty() ? "" : ": ",
                                          over->board->bare_cause())});
  }

  void on_refused(const job_refused& m) {
    for (auto& a : attaching) {
      if (a.asked.job != m.job || a.refused_ns != 0) continue;
      a.refused = m.reason;
      a.refused_ns = std::max<std::int64_t>(1, view.env.now_ns());
    }
  }

  void on_wish(const wish_of_own_job& m) {
    for (const auto& [job, program] : program_of) {
      if (program != m.program) continue;
      const auto& actor = view.jobs.at(job).actor;
      if (m.wish == job_wish::finish)
        tell(self->context(), actor, finish_job{m.at_least});
      else if (m.wish == job_wish::suspend)
        tell(self->context(), actor, suspend_job{m.reason});
      else
        tell(self->context(), actor, detach_job{});
    }
  }

  // --- jobs started here -------------------------------------------------------------------------

  void run(run_job& m) {
    if (is_ending) return tell(self->context(), m.program, job_failed{"the session has ended", {}});
    coordinate(job_id{view.env.wall_clock_ns() ^ raw(view.env.self.id)}, m.request, m.program);
  }

  void coordinate(job_id id, std::shared_ptr<const job_request> request, caf::actor program) {
    const auto& env = view.env;
    std::vector<member_info> known{env.self};
    for (const auto& [peer, entry] : view.peers) known.push_back(entry.member);
    const auto job_name = request->name();
    const bool is_after = request->after != nullptr;
    auto job_record =
        std::make_shared<actor_record>(actor_kind::job, "job/" + job_name, job_name, *env.clock);
    auto board = std::make_shared<job_snapshot>();
    board->id = fmt::format("{:016x}", raw(id));
    board->name = job_name;
    board->client = env.self.name;
    program_of[id] = program;
    auto& entry = view.jobs[id];
    const auto began = request->after ? request->after->journal.started_unix_ns : 0;
    entry = job_entry{{}, request, board, began != 0 ? began : env.wall_clock_ns(), 0};
    entry.actor =
        spawn_job(self->system(), env.service,
                  job_arguments{id, std::move(request), handle(), env.archive, std::move(program),
                                std::move(known), env.self, env.now_ns, env.wall_clock_ns,
                                job_record, board, env.bugs});
    on_failure(entry.actor, [node = self->address(), id](const std::string& text) {
      if (const auto to = caf::actor_cast<caf::actor>(node))
        tell(nullptr, to, job_orphaned{id, text});
    });
    view.job_records[id] = std::move(job_record);
    // SN-5: who goes on with a job has not begun it.
    const auto of_job = [&](event_kind kind, std::string text, std::string about) {
      note(make_job_event(kind, job_name, board->id, std::move(text), std::move(about)));
    };
    if (!is_after) of_job(event_kind::job_began, fmt::format("job {} starts", job_name), board->id);
  }

  // A job with runs that can be given up has one epoch, and its nodes stand in the request.
  void cancel(const cancel_own_run& m) {
    for (const auto& [id, program] : program_of) {
      if (program != m.program) continue;
      const auto& nodes = view.jobs.at(id).request->nodes;
      for (const auto n : std::set<node_id>(nodes.begin(), nodes.end()))
        send(n, cancel_run{id, 1, m.step});
    }
  }

  void on_job_over(const job_over& m) {
    auto at = view.jobs.find(m.job);
    if (at == view.jobs.end()) return;
    program_of.erase(m.job);
    if (m.has_moved) {
      view.jobs.erase(at);
      view.job_records.erase(m.job);
      tell_if_drained();
      return end_if_empty();
    }
    at->second.ended_ns = view.env.wall_clock_ns();
    at->second.actor = nullptr;
    at->second.request = nullptr;
    const auto& board = *at->second.board;
    const auto kind = board.state == job_state::failed      ? event_kind::job_failed
                      : board.state == job_state::stopped   ? event_kind::job_stopped
                      : board.state == job_state::suspended ? event_kind::job_suspended
                                                            : event_kind::job_done;
    note(make_job_event(kind, board.name, board.id,
                        fmt::format("job {} is over: {}", board.name,
                                    board.cause.empty() ? job_done_reason : board.bare_cause()),
                        board.id));
    end_if_empty();
  }

  // Nobody else speaks for the job: JB-1 and JB-2 are kept from here.
  void on_job_orphaned(const job_orphaned& m) {
    const auto at = view.jobs.find(m.job);
    if (at == view.jobs.end() || at->second.ended_ns != 0) return;
    auto& board = *at->second.board;
    failure_log log(board.name);
    log.add({view.env.self.name, view.env.self.pid, "job", {}, m.text, false, 0});
    board.state = job_state::failed;
    board.cause = log.line();
    if (const auto& program = program_of.at(m.job))
      tell(self->context(), program, job_failed{log.line(), {}});
    const stop_part end{m.job, "the job's actor failed"};
    for (const auto& [peer, entry] : view.peers) {
      send(peer, end);
      send(peer, keep_journal{m.job, std::numeric_limits<std::uint32_t>::max(), {}, {}});
    }
    send(view.env.self.id, end);
    on_job_over({m.job});
  }

  view_changed tell_view() const {
    view_changed v{view.env.self, view.members, denied, {}};
    for (const auto& [id, peer] : view.peers) v.linked.insert(id);
    v.times = std::make_shared<const op_times>(parts->times());
    return v;
  }

  // --- time --------------------------------------------------------------------------------------

  void tick() {
    if (end_when_drained && view.env.now_ns() - end_asked_ns > move_max_ns)
      end(*std::exchange(end_when_drained, std::nullopt));
    if (view.env.supervisor) tell(self->context(), view.env.supervisor, supervision_tick{});
    recorder->tick(view.env.now_ns());
    sample();
    parts->place_waiting();
    ask_for_jobs();
    take_orphans();
    if (is_draining) detach_jobs();
    for (auto& [id, job] : view.jobs)
      if (job.ended_ns == 0) tell(self->context(), job.actor, job_tick{});
    const auto now = view.env.wall_clock_ns();
    forget_works();
    parts->forget_old(now - std::min(now, linger_ns));
    forget_jobs(now);
    std::erase_if(view.job_records, [&](const auto& r) { return !view.jobs.contains(r.first); });
  }

  // Those that were over for a while, and the oldest of many that are.
  void forget_works() {
    const auto over_seconds = [&](const auto& w) {
      return w->job(view.env.self.name).ended_seconds;
    };
    auto over = std::count_if(view.works.begin(), view.works.end(),
                              [&](const auto& w) { return over_seconds(w) > 0; });
    std::erase_if(view.works, [&](const auto& w) {
      const auto seconds = over_seconds(w);
      if (seconds <= 0) return false;
      if (over <= std::ptrdiff_t(ended_jobs_max) && seconds <= double(linger_ns) * 1e-9)
        return false;
      --over;
      return true;
    });
  }
  void forget_jobs(std::uint64_t now) {
    std::vector<std::pair<std::uint64_t, job_id>> ended;  // the newest first
    for (const auto& [id, job] : view.jobs)
      if (job.ended_ns != 0) ended.emplace_back(job.ended_ns, id);
    std::sort(ended.rbegin(), ended.rend());
    for (std::size_t i = 0; i < ended.size(); ++i)
      if (i >= ended_jobs_max || now - ended[i].first > linger_ns) view.jobs.erase(ended[i].second);
  }

  // Which actor each stream runs just now.
  void sample() {
    ++view.samples;
    for (std::size_t i = 0; i < stream_meters.size(); ++i) {
      const auto current = stream_meters[i]->current.load(std::memory_order_relaxed);
      view.stream_records[i]->enter(current != 0 ? actor_state::running : actor_state::idle);
      if (current == 0) continue;
      view.stream_records[i]->busy.add_busy(view.samples);
      for (const auto& [id, part] : parts->all())
        if (part.context->part == current >> 32 &&
            (current & 0xffffffff) <= part.context->records.size())
          if (auto& r = part.context->records[(current & 0xffffffff) - 1])
            r->busy.add_busy(view.samples);
    }
  }

  void on_view(view_changed& m) {
    view.env.self = std::move(m.self), view.members = std::move(m.members),
    denied = std::move(m.denied);
    const auto now = view.env.wall_clock_ns();
    const auto before = std::exchange(view.state_since, {});
    for (const auto& one : view.members) {
      const auto at = before.find(one.id);
      const bool is_known = at != before.end() && at->second.first == one.state;
      const auto since =
          one.state == member_state::left && at == before.end() ? node_view::long_ago : now;
      view.state_since.emplace(one.id, std::pair(one.state, is_known ? at->second.second : since));
    }
  }

  // --- requests of tools -------------------------------------------------------------------------

  // "leave NODE", "forget NODE", "checkpoint JOB", "stop JOB", "finish JOB", "detach JOB", by name
  // or id; what is said to it. Anything else: nothing.
  std::string obey(const std::string& request) {
    const auto space = request.find(' ');
    const auto what = request.substr(0, space),
               whom = space == std::string::npos ? std::string() : request.substr(space + 1);
    if (what == "leave") return leave_if_named(whom);
    if (what == "forget") return forget_if_gone(whom);
    if (what == "checkpoint") return save_if_ours(whom);
    std::string said;
    if (what == "stop") said = wish_if_ours(whom, "stops", stop_job{"a tool has asked for that"});
    if (what == "finish") said = wish_if_ours(whom, "finishes", finish_job{});
    if (what == "detach") said = detach_if_ours(whom);
    return !said.empty() ? said : ask_works(what, whom);
  }

  // Of works of the program; `whom`: the name or id, and after a tab what else is said. Where one
  // of that name runs, it counts, and no older one that is over.
  std::string ask_works(std::string_view what, std::string_view whom) {
    const auto tab = whom.find('\t');
    const auto name = whom.substr(0, tab);
    const auto rest = tab == std::string_view::npos ? std::string_view() : whom.substr(tab + 1);
    std::string said;
    for (const auto& w : view.works) {
      const auto j = w->job(view.env.self.name);
      if (name != j.name && name != j.id) continue;
      auto one = w->obey(what, rest);
      if (!one.empty() && (said.empty() || !is_over(j.state))) said = std::move(one);
    }
    return said;
  }

  std::string leave_if_named(const std::string& name) {
    const auto& env = view.env;
    if (name != env.self.name && name != fmt::format("{:016x}", raw(env.self.id))) return {};
    if (!env.on_leave_asked)
      return "refused: it is a program that runs a job, and leaves when that ends";
    note(make_event(event_kind::node_leaving, "was asked to leave by a tool"));
    env.on_leave_asked();
    return "leaves";
  }

  // Of lists alone: a member that is dead stays so (MB-1).
  std::string forget_if_gone(const std::string& name) {
    constexpr std::string_view lives = "refused: it lives (troupe cluster leave makes it leave)";
    const auto& own = view.env.self;
    std::string said;
    if (name == own.name || name == fmt::format("{:016x}", raw(own.id))) said = lives;
    for (const auto& m : view.members) {
      if (name != m.name && name != fmt::format("{:016x}", raw(m.id))) continue;
      const auto since = view.state_since.find(m.id);
      // One that has the name of a dead one may live.
      if (is_living(m) && said.empty()) said = lives;
      if (is_living(m) || since == view.state_since.end() ||
          since->second.second == node_view::long_ago)
        continue;
      since->second.second = node_view::long_ago;
      said = "forgets";
      forgotten = fmt::format("forget {:016x}", raw(m.id));
    }
    return said;
  }

  std::string save_if_ours(const std::string& name) {
    std::string said;
    for (auto& [id, job] : view.jobs) {
      if (name != job.board->name && name != job.board->id) continue;
      if (job.ended_ns != 0) {
        if (said.empty()) said = "refused: the job is over";
      } else if (job.request->checkpoints.folder.empty()) {
        said = "refused: the job writes no checkpoints (--checkpoint DIR)";
      } else {
        tell(self->context(), job.actor, want_cut{});
        said = fmt::format("saves {}", job.board->checkpoints);
      }
    }
    return said;
  }

  // Whatever else is to be done to a job by its name.
  template <class Message>
  std::string wish_if_ours(const std::string& name, const std::string& does, const Message& m) {
    std::string said;
    for (auto& [id, job] : view.jobs) {
      if (!is_called(job, name)) continue;
      if (job.ended_ns != 0) {
        if (said.empty()) said = "refused: the job is over";
      } else if (!job.request->program) {
        said = "refused: it is no training, and ends with its program";
      } else {
        tell(self->context(), job.actor, Message(m));
        said = does;
      }
    }
    return said;
  }

  std::string detach_if_ours(const std::string& name) {
    for (auto& [id, job] : view.jobs)
      if (is_called(job, name) && job.ended_ns == 0 && job.request->recipe == nullptr)
        return "refused: the job ends with its program (--outlive)";
      else if (is_called(job, name) && job.ended_ns == 0 && !program_of.at(id))
        return "detaches";  // as it is
    return wish_if_ours(name, "detaches", detach_job{});
  }

  // --- the end -----------------------------------------------------------------------------------

  // NO-10.
  bool coordinates_movable() const {
    return std::any_of(view.jobs.begin(), view.jobs.end(), [&](const auto& j) {
      return j.second.ended_ns == 0 && j.second.request->recipe != nullptr &&
             !program_of.at(j.first);
    });
  }

  void detach_jobs() {
    for (const auto& [id, job] : view.jobs)
      if (job.ended_ns == 0 && job.request->recipe != nullptr && !program_of.at(id))
        tell(self->context(), job.actor, detach_job{});
  }

  void drain(const drain_node& m) {
    is_draining = true;
    draining = m.to;
    detach_jobs();
    for (const auto& [job, coordinator] : parts->movable()) send(coordinator, leaving_node{job});
    tell_if_drained();
  }

  void tell_if_drained() {
    if (!is_draining || !parts->movable().empty() || coordinates_movable()) return;
    if (draining) tell(self->context(), std::exchange(draining, nullptr), node_drained{});
    if (end_when_drained) end(*std::exchange(end_when_drained, std::nullopt));
  }

  void end(const end_node& m) {
    // It was drained, and something was placed here before the coordinator knew that.
    if (is_draining && !draining && end_asked_ns == 0 && !parts->movable().empty()) {
      end_asked_ns = view.env.now_ns();
      end_when_drained = m;
      return;
    }
    ending = m.to;
    is_ending = true;
    for (auto& [id, job] : view.jobs) {
      if (job.ended_ns != 0) continue;
      if (job.request->recipe != nullptr && !program_of.at(id))
        tell(self->context(), job.actor, let_go_job{});  // NO-10
      else
        tell(self->context(), job.actor, stop_job{m.reason});
    }
    leave_works(m.reason);
    parts->stop_all(m.reason);
    end_if_empty();
  }

  void end_if_empty() {
    if (!is_ending || !parts->is_idle()) return;
    for (const auto& [id, job] : view.jobs)
      if (job.ended_ns == 0) return;
    if (ending) tell(self->context(), std::exchange(ending, nullptr), node_ended{});
    view.peers.clear();
    member = nullptr;
    self->quit();
  }
};

caf::behavior node_actor(caf::stateful_actor<node_actor_state>* self, node_environment env) {
  auto& s = self->state;
  self->set_exception_handler(&reason_of);
  s.open(self, std::move(env));
  return {
      [&s](member_up& m) { s.on_up(m); },
      [&s](const member_down& m) { s.on_down(m); },
      [&s](view_changed& m) { s.on_view(m); },
      [&s](peer_message& m) { s.on_message(m); },
      [&s](to_node& m) { s.send(m.to, std::move(m.body)); },
      [&s](part_event& m) { s.parts->on_event(m); },
      [&s](const part_orphaned& m) { s.parts->on_orphaned(m); },
      [&s](const job_orphaned& m) { s.on_job_orphaned(m); },
      [&s](const job_bound& m) { s.parts->on_bound(m.job); },
      [&s](part_on_disk& m) { s.on_disk(m); },
      [&s](shards_loaded& m) { s.parts->on_loaded(m); },
      [&s](run_job& m) { s.run(m); },
      [&s](attach_job& m) { s.attach(m); },
      [&s](const forget_attach& m) { s.forget(m); },
      [&s](const wish_of_own_job& m) { s.on_wish(m); },
      [&s](const job_over& m) { s.on_job_over(m); },
      [&s](const ask& m) {
        auto said = s.obey(m.request);  // before the answer shows what came of it
        if (!said.empty()) s.note_request(m.request, said);
        auto all = answer(s.view, *s.parts, m.request);
        all.said = std::move(said);
        tell(s.self->context(), m.to, answered{m.id, to_json(all)});
      },
      [&s](const ask_trace& m) {
        if (m.query.recording != 0)
          for (const auto& d : s.view.env.devices) d->ask_to_collect();
        tell(s.self->context(), m.to,
             send_control{s.recorder->answer(m.query, s.view.env.now_ns())});
      },
      [&s](const get_view& m) { tell(s.self->context(), m.to, s.tell_view()); },
      [&s](const cancel_own_run& m) { s.cancel(m); },
      [&s](const stop_own_job& m) {
        for (const auto& [job, program] : s.program_of)
          if (program == m.program)
            tell(s.self->context(), s.view.jobs.at(job).actor, stop_job{m.reason});
      },
      [&s](member_event& m) { s.note(std::move(m.what)); },
      [&s](rejoined& m) { s.on_rejoined(m); },
      [&s](set_member& m) { s.member = std::move(m.member); },
      [&s](const set_times& m) { s.parts->set_times(*m.times); },
      [&s](list_work& m) { s.view.works.push_back(std::move(m.work)); },
      [&s](join_work& m) { s.join(m); },
      [&s](const leave_work& m) { s.leave(m.job); },
      [&s](send_word& m) { s.send_word_of(m); },
      [&s](bind_stream& m) { s.bind(m); },
      [&s](node_tick) { s.tick(); },
      [&s](const drain_node& m) { s.drain(m); },
      [&s](const end_node& m) { s.end(m); },
  };
}

}  // namespace

caf::actor spawn_node(caf::actor_system& sys, node_environment environment) {
  auto* service = environment.service;
  return spawn_on(sys, service, &node_actor, std::move(environment));
}

}  // namespace troupe
