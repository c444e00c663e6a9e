#include "troupe/runtime/insight/why.hpp"

#include "troupe/runtime/insight/listed_work.hpp"
#include "troupe/runtime/insight/wait_walk.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>

namespace troupe {

namespace {

constexpr std::size_t links_shown_max = 12;  // of a chain in the text; JSON has all
constexpr std::size_t also_max = 3;

std::string place(std::string_view node) {
  return node.empty() ? std::string() : fmt::format(" on node {}", node);
}

std::string subject(const actor_snapshot& a) {
  return fmt::format("{} {} ({}){}", a.kind, a.name, a.id, place(a.node));
}

struct shown_link : wait_link {
  explicit shown_link(const wait_link& l) : wait_link(l) {}
  std::string over;  // the node at the other end of the link that lies between
};

std::string describe(const shown_link& l) {
  if (l.port == thread_port)
    return fmt::format("{}{} waits for its thread{}, for {}", l.actor,
                       l.node.empty() ? "" : fmt::format(" ({})", l.node),
                       l.peer.empty() ? "" : fmt::format(", which runs {}", l.peer),
                       format_seconds(l.since_seconds));
  if (l.port.starts_with(resource_port))
    return fmt::format("{}{} waits for {}{}, for {}", l.actor,
                       l.node.empty() ? "" : fmt::format(" ({})", l.node), l.port,
                       l.peer.empty() ? ", which is lent" : fmt::format(", which {} has", l.peer),
                       format_seconds(l.since_seconds));
  const auto peer = l.peer == "program" ? "the program" : l.peer.empty() ? "nobody known" : l.peer;
  return fmt::format("{}{} waits for {} {} from {}{}, for {}", l.actor,
                     l.node.empty() ? "" : fmt::format(" ({})", l.node),
                     l.is_credit ? "a credit of" : "input", l.port, peer,
                     l.over.empty() ? "" : fmt::format(", over the link to {}", l.over),
                     format_seconds(l.since_seconds));
}

// X waits for its receive, that for its send, that for Y: X waits for Y, over a link. Credits go
// the other way.
std::vector<shown_link> folded(const std::vector<wait_link>& chain) {
  std::vector<shown_link> out;
  const auto is_half = [](const wait_link& l) { return l.kind == "receive" || l.kind == "send"; };
  for (const auto& l : chain) {
    const bool is_edge = l.port != thread_port && !l.port.starts_with(resource_port);
    if (!out.empty() && is_half(l) && is_edge && out.back().peer == l.actor) {
      auto& before = out.back();
      if (l.peer_node != l.node && !l.peer_node.empty()) before.over = l.peer_node;
      before.peer = l.peer;
      before.peer_node = l.peer_node;
      continue;
    }
    out.emplace_back(l);
  }
  return out;
}

std::string lost_sentence(const lost_node& n, double since_seconds) {
  auto text = fmt::format("node {}", n.name);
  if (n.pid != 0) text += fmt::format(" (pid {})", n.pid);
  text += fmt::format(" {}", n.state);
  if (since_seconds > 0) text += fmt::format(", for {}", format_seconds(since_seconds));
  if (!n.reason.empty()) text += fmt::format(" ({})", n.reason);
  return text;
}

// Who has it is not in this job's lists.
const port_snapshot* waits_for_a_resource(const actor_snapshot& a) {
  for (const auto& p : a.ports)
    if (p.is_waiting && p.peer.empty() && p.name.starts_with(resource_port)) return &p;
  return nullptr;
}

std::string circle_sentence(const wait_walk& walk, const wait_walk::root& r) {
  const auto links = walk.chain(r);
  const auto length = walk.circle_length(r);
  const auto who = length == 1 ? "an actor waits for itself"
                               : fmt::format("{} actors wait for each other in a circle", length);
  auto text = fmt::format("{}, for {}: ", who, format_seconds(r.since_seconds));
  const auto shown = std::min(length, links_shown_max);
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& l = links[links.size() - length + i];
    text += fmt::format("{}{} for {} from {}", i > 0 ? ", " : "", l.actor,
                        l.is_credit ? "a credit" : "input", l.peer);
  }
  if (shown < length) text += fmt::format(", and {} more", length - shown);
  return text;
}

std::string sentence(const wait_walk& walk, const wait_walk::root& r, const node_index& nodes) {
  const auto age = format_seconds(r.since_seconds);
  const auto* a = walk.actor(r);
  switch (r.kind) {
    case root_kind::node_lost:
      return lost_sentence(nodes.lost(r.node).value_or(lost_node{r.node, 0, "is lost", "", 0}),
                           r.since_seconds) +
             fmt::format("; {} is expected there", r.actor);
    case root_kind::actor_ended:
      return fmt::format(
          "{} ended {} ago, and {}", subject(*a), age,
          r.last_link == wait_walk::none ? "nothing else is left" : "actors still wait for it");
    case root_kind::actor_missing:
      return fmt::format(
          "node {} answers but has no actor {} of this job, for which others have waited for {}",
          r.node, r.actor, age);
    case root_kind::cycle: return circle_sentence(walk, r);
    case root_kind::program_feed:
      return fmt::format("{} waits for the program to feed it, for {}", subject(*a), age);
    case root_kind::program_fetch:
      return fmt::format("the program does not take the values of {}, which is full, for {}",
                         subject(*a), age);
    case root_kind::actor_running:
      return a != nullptr ? fmt::format("{} runs, for {}", subject(*a), age)
                          : fmt::format("{} runs{}, for {}", r.actor, place(r.node), age);
    case root_kind::on_the_way:
      return fmt::format("{} has waited for {}, and what it waits for is on its way from {}",
                         subject(*a), age, walk.chain(r).back().peer_node);
    case root_kind::actor_idle:
      return fmt::format("{} has not begun, for {}: nothing has reached it", subject(*a), age);
    default:
      if (a == nullptr)
        return fmt::format(
            "{}{}, for which others have waited for {}, is not among the actors that were listed",
            r.actor, place(r.node), age);
      if (const auto* lent = waits_for_a_resource(*a))
        return fmt::format("{} waits for {}, which is lent to somebody else than this job, for {}",
                           subject(*a), lent->name, format_seconds(lent->since_seconds));
      if (a->state == actor_state::waiting_for_thread)
        return fmt::format("{} has what it waits for, and its thread has not come to it",
                           subject(*a));
      return fmt::format("{} is {}, for {}, but does not say for which actor", subject(*a),
                         to_string(a->state), age);
  }
}

std::string heading(const job_snapshot& j) {
  auto text = fmt::format("Job {}", j.name);
  if (j.steps > 0)
    text += fmt::format(", step {} of {}", j.step, j.steps);
  else if (j.step > 0)
    text += fmt::format(", step {}", j.step);
  return text;
}

struct judged {
  why_answer answer;
  int severity = 5;
};

// Nothing of the job is listed: perhaps because the nodes that know it are lost.
judged explain_without_actors(const cluster_snapshot& c, const job_snapshot& j,
                              const node_index& nodes, why_answer answer) {
  for (const auto& name : j.participants)
    if (const auto loss = nodes.lost(name)) {
      answer.kind = root_kind::node_lost;
      answer.node = name;
      answer.since_seconds = loss->since_seconds;
      answer.root = fmt::format("{}: {}, and no other node lists an actor of the job", heading(j),
                                lost_sentence(*loss, loss->since_seconds));
      return {std::move(answer), 0};
    }
  answer.kind = root_kind::unexplained;
  answer.root =
      fmt::format("{}: no node lists an actor of it{}", heading(j),
                  c.actors_left_out > 0
                      ? fmt::format(" ({} actors were left out of the answers)", c.actors_left_out)
                      : "");
  return {std::move(answer), 4};
}

// The age of the oldest thing that an actor of the job waits for (but by design) or does: in a job
// that goes on a step renews it.
double oldest_doing(const cluster_snapshot& c, const job_snapshot& j) {
  double oldest = 0;
  for (const auto& a : c.actors) {
    if (!belongs(a, j) || a.kind == "job") continue;  // that one runs as long as its job
    if (a.state == actor_state::running) oldest = std::max(oldest, a.since_seconds);
    for (const auto& p : a.ports)
      if (a.waits_at(p)) oldest = std::max(oldest, p.since_seconds);
  }
  return oldest;
}

// What has changed in a job between two looks.
struct progress {
  double seconds = 0;  // between the looks, on the clock of the job's client
  std::uint64_t steps = 0, messages = 0;
  const actor_snapshot* loop = nullptr;  // the one that has gone round, and most often in all
  std::uint64_t rounds = 0;              // of it
};

// nullopt: there is no earlier look, or it was placed anew in between.
std::optional<progress> progress_of(const cluster_snapshot& c, const job_snapshot& j,
                                    const cluster_snapshot* before) {
  if (before == nullptr) return std::nullopt;
  const auto then = std::ranges::find(before->jobs, j.id, &job_snapshot::id);
  if (then == before->jobs.end() || then->epoch != j.epoch) return std::nullopt;
  std::unordered_map<std::string_view, const actor_snapshot*> by_id;
  for (const auto& a : before->actors)
    if (belongs(a, j)) by_id.emplace(a.id, &a);
  progress p;
  p.seconds = std::max(0.0, j.started_seconds - then->started_seconds);
  p.steps = j.step - std::min(j.step, then->step);
  for (const auto& a : c.actors) {
    const auto at = belongs(a, j) ? by_id.find(a.id) : by_id.end();
    if (at == by_id.end()) continue;
    p.messages += a.messages_in - std::min(a.messages_in, at->second->messages_in);
    // Of the same step: each begins anew.
    if (a.iteration <= at->second->iteration || a.steps != at->second->steps) continue;
    if (p.loop != nullptr && p.loop->iteration >= a.iteration) continue;
    p.loop = &a;
    p.rounds = a.iteration - at->second->iteration;
  }
  return p;
}

std::string moves(const progress& p) {
  const auto in = p.seconds > 0 ? fmt::format(" in {}", format_seconds(p.seconds)) : "";
  if (p.steps > 0) return fmt::format("{} step{}{}", p.steps, p.steps == 1 ? "" : "s", in);
  return fmt::format("{} message{}{}", p.messages, p.messages == 1 ? "" : "s", in);
}

// Of a job in which nothing stands that was looked at.
std::string moving_sentence(const std::optional<progress>& p, double oldest) {
  const auto old = format_seconds(oldest >= skew_seconds ? oldest : skew_seconds);
  const auto waits = oldest >= skew_seconds ? fmt::format("its oldest wait is {} old", old)
                                            : fmt::format("no wait is older than {}", old);
  if (p && p->steps + p->messages == 0)
    return fmt::format("not known yet: nothing has moved between two looks, and {}", waits);
  if (!p && oldest >= skew_seconds) return fmt::format("not known yet: {}", waits);
  return p ? fmt::format("it goes on, with {}, and {}", moves(*p), waits)
           : fmt::format("it goes on, and {}", waits);
}

// In a job that goes on: an asynchronous worker that does not, for one.
void tell_what_runs_long(const cluster_snapshot& c, const job_snapshot& j, why_answer& answer) {
  std::vector<const actor_snapshot*> long_ones;
  for (const auto& a : c.actors)
    if (a.state == actor_state::running && a.since_seconds >= skew_seconds && a.kind != "job" &&
        belongs(a, j))
      long_ones.push_back(&a);
  std::ranges::sort(long_ones, [](const auto* x, const auto* y) {
    return std::tie(y->since_seconds, x->name) < std::tie(x->since_seconds, y->name);
  });
  for (const auto* a : long_ones) {
    auto text = fmt::format("{} runs, for {}", subject(*a), format_seconds(a->since_seconds));
    if (answer.also.size() < also_max && std::ranges::count(answer.also, text) == 0)
      answer.also.push_back(std::move(text));
  }
}

judged explain_running(const cluster_snapshot& c, const job_snapshot& j,
                       const cluster_snapshot* before) {
  const node_index nodes(c);
  const wait_walk walk(c, j, nodes, before);
  why_answer answer;
  answer.job = j.name;
  if (walk.roots().empty()) return explain_without_actors(c, j, nodes, std::move(answer));
  const auto& r = walk.roots().front();
  // All of the chain has stood for as long as its youngest wait.
  auto stood = r.since_seconds;
  for (const auto& l : walk.chain(r)) stood = std::min(stood, l.since_seconds);
  const bool is_young = r.kind != root_kind::node_lost && stood < skew_seconds;
  const auto oldest = oldest_doing(c, j);
  const auto progress = progress_of(c, j, before);
  if ((!r.is_settled || is_young) && oldest >= skew_seconds && progress &&
      progress->loop != nullptr) {
    const auto& loop = *progress->loop;
    answer.kind = root_kind::loop_running;
    answer.actor = loop.name;
    answer.node = loop.node;
    answer.since_seconds = oldest;
    answer.root = fmt::format(
        "{}: the loop of {} goes round: {} times by now, {} of them between two looks; others have "
        "waited for {}",
        heading(j), subject(loop), loop.iteration, progress->rounds, format_seconds(oldest));
    if (!walk.chain(r).empty()) answer.chain = walk.chain(r);
    return {std::move(answer), severity(r)};
  }
  if (!r.is_settled || (is_young && oldest < skew_seconds)) {
    answer.kind = root_kind::moving;
    answer.since_seconds = r.since_seconds;
    answer.root = fmt::format("{}: {}", heading(j), moving_sentence(progress, oldest));
    for (const auto& name : j.participants)
      if (const auto loss = nodes.lost(name); loss && answer.also.size() < also_max)
        answer.also.push_back(lost_sentence(*loss, loss->since_seconds));
    tell_what_runs_long(c, j, answer);
    return {std::move(answer), 4};
  }
  const bool moves_on = is_young && progress && progress->steps + progress->messages > 0;
  answer.kind = moves_on ? root_kind::moving : r.kind;
  answer.actor = r.actor;
  answer.node = r.node;
  answer.since_seconds = r.since_seconds;
  answer.root = fmt::format("{}: {}{}", heading(j),
                            moves_on ? fmt::format("it goes on, with {}, and its oldest wait is {} "
                                                   "old: just now ",
                                                   moves(*progress), format_seconds(oldest))
                                     : "",
                            sentence(walk, r, nodes));
  answer.chain = walk.chain(r);
  std::vector<std::string_view> told;
  if (r.kind == root_kind::node_lost) told.push_back(r.node);
  for (const auto& name : j.participants)
    if (const auto loss = nodes.lost(name);
        loss && std::find(told.begin(), told.end(), name) == told.end()) {
      told.push_back(name);
      answer.also.push_back(lost_sentence(*loss, loss->since_seconds));
    }
  for (const auto& other : walk.roots()) {
    if (answer.also.size() >= also_max) break;
    const bool is_told = other.kind == root_kind::node_lost &&
                         std::find(told.begin(), told.end(), other.node) != told.end();
    if (&other == &r || is_told || !other.is_settled || other.since_seconds < skew_seconds)
      continue;
    if (other.kind == root_kind::node_lost) told.push_back(other.node);
    answer.also.push_back(sentence(walk, other, nodes));
  }
  if (moves_on) tell_what_runs_long(c, j, answer);
  return {std::move(answer), severity(r)};
}

judged explain_job(const cluster_snapshot& c, const job_snapshot& j,
                   const cluster_snapshot* before) {
  if (j.state == job_state::running) return explain_running(c, j, before);
  why_answer answer;
  answer.job = j.name;
  answer.since_seconds = j.ended_seconds;
  if (j.state == job_state::recovering) {
    answer.kind = root_kind::recovering;
    answer.since_seconds = 0;
    answer.root = fmt::format("{}: recovers (epoch {}){}", heading(j), j.epoch,
                              j.cause.empty() ? "" : fmt::format(" after: {}", j.bare_cause()));
    return {std::move(answer), 2};
  }
  if (j.state == job_state::paused) {
    answer.kind = root_kind::paused;
    answer.since_seconds = 0;
    answer.root =
        fmt::format("{}: is paused: its sources stand still until troupe topology resume {}",
                    heading(j), j.name);
    return {std::move(answer), 2};
  }
  if (j.state == job_state::suspended) {
    answer.kind = root_kind::job_suspended;
    answer.root = fmt::format("{}: suspended {} ago {}, with a checkpoint there to be resumed from",
                              heading(j), format_seconds(j.ended_seconds), j.bare_cause());
    return {std::move(answer), 5};
  }
  answer.kind = j.state == job_state::done      ? root_kind::job_done
                : j.state == job_state::stopped ? root_kind::job_stopped
                                                : root_kind::job_failed;
  answer.root =
      j.state == job_state::stopped
          ? fmt::format("{}: stopped {} ago: {}", heading(j), format_seconds(j.ended_seconds),
                        j.cause.empty() ? "the reason is not known" : j.bare_cause())
      : j.state == job_state::done
          ? fmt::format("{}: done, {} ago", heading(j), format_seconds(j.ended_seconds))
          : fmt::format("{}: failed {} ago: {}", heading(j), format_seconds(j.ended_seconds),
                        j.cause.empty() ? "the cause is not known" : j.bare_cause());
  return {std::move(answer), 5};
}

// Running ones first, worst and oldest wait first; then the latest that ended.
bool is_more_urgent(const judged& a, const judged& b, const job_snapshot& ja,
                    const job_snapshot& jb) {
  const auto order = [](const judged& x, const job_snapshot& j) {
    const bool is_running = !is_over(j.state);
    return std::tuple(!is_running, x.severity,
                      is_running ? -x.answer.since_seconds : j.ended_seconds, j.name, j.id);
  };
  return order(a, ja) < order(b, jb);
}

}  // namespace

std::string_view to_string(root_kind k) noexcept {
  switch (k) {
    case root_kind::no_job: return "no job";
    case root_kind::job_done: return "job done";
    case root_kind::job_stopped: return "job stopped";
    case root_kind::job_suspended: return "job suspended";
    case root_kind::job_failed: return "job failed";
    case root_kind::recovering: return "recovering";
    case root_kind::moving: return "moving";
    case root_kind::paused: return "paused";
    case root_kind::node_lost: return "node lost";
    case root_kind::actor_ended: return "actor ended";
    case root_kind::actor_missing: return "actor missing";
    case root_kind::cycle: return "cycle";
    case root_kind::loop_running: return "loop running";
    case root_kind::on_the_way: return "on the way";
    case root_kind::program_feed: return "program feed";
    case root_kind::program_fetch: return "program fetch";
    case root_kind::actor_running: return "actor running";
    case root_kind::actor_idle: return "actor idle";
    case root_kind::unexplained: return "unexplained";
  }
  return {};
}

result<why_answer> explain(const cluster_snapshot& c, std::string_view job,
                           const cluster_snapshot* before) {
  const job_snapshot* best = nullptr;
  judged best_answer;
  std::string names;
  for (const auto& j : c.jobs) {
    names += (names.empty() ? "" : ", ") + j.name;
    if (!job.empty() && job != j.name && job != j.id) continue;
    auto answer = explain_job(c, j, before);
    if (best == nullptr || is_more_urgent(answer, best_answer, j, *best))
      best = &j, best_answer = std::move(answer);
  }
  if (best != nullptr) return std::move(best_answer.answer);
  if (!job.empty())
    return error(error_code::not_found,
                 fmt::format("no job '{}' in cluster {}; {}", job, c.cluster,
                             names.empty() ? "it has no jobs" : "there are: " + names));
  why_answer nothing;
  nothing.root = fmt::format("No job runs in cluster {}", c.cluster);
  return nothing;
}

std::string why_answer::text() const {
  auto out = root + ".";
  for (const auto& s : also) out += fmt::format("\nAlso, {}.", s);
  const auto links = folded(chain);
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links.size() > links_shown_max && i == links_shown_max / 2) {
      const auto skipped = links.size() - links_shown_max;
      out += fmt::format("\n  ({} more, which --json lists)", skipped);
      i += skipped;
    }
    out += "\n  " + describe(links[i]);
  }
  return out;
}

std::string why_answer::json() const {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const auto& l : chain)
    links.push_back({{"actor", l.actor},
                     {"id", l.actor_id},
                     {"node", l.node},
                     {"port", l.port},
                     {"waits_for", l.port == thread_port               ? "thread"
                                   : l.port.starts_with(resource_port) ? "resource"
                                   : l.is_credit                       ? "credit"
                                                                       : "input"},
                     {"peer", l.peer},
                     {"peer_node", l.peer_node},
                     {"since_seconds", three_decimals(l.since_seconds)}});
  const nlohmann::ordered_json out{{"kind", to_string(kind)},
                                   {"job", job},
                                   {"actor", actor},
                                   {"node", node},
                                   {"since_seconds", three_decimals(since_seconds)},
                                   {"root", root},
                                   {"chain", links},
                                   {"also", also}};
  return json_line(out);
}

std::string why(const cluster_snapshot& c, std::string_view job, const cluster_snapshot* before) {
  const auto answer = explain(c, job, before);
  return answer ? answer->text() : answer.error().text();
}

}  // namespace troupe
