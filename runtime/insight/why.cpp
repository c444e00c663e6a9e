#include "troupe/runtime/insight/why.hpp"

#include "troupe/runtime/insight/listed_work.hpp"
#include "troupe/runtime/insight/wait_walk.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <tuple>

namespace troupe {

namespace {

constexpr std::size_t links_shown_max = 12;  // of a chain in the paragraph; JSON has all
constexpr std::size_t also_max = 3;

std::string place(std::string_view node) {
  return node.empty() ? std::string() : fmt::format(" on node {}", node);
}

std::string subject(const actor_snapshot& a) {
  return fmt::format("{} {} ({}){}", a.kind, a.name, a.id, place(a.node));
}

std::string describe(const wait_link& l) {
  if (l.port == thread_port)
    return fmt::format("{}{} waits for its thread, which runs {}, for {}", l.actor,
                       l.node.empty() ? "" : fmt::format(" ({})", l.node), l.peer,
                       format_seconds(l.since_seconds));
  if (l.port.starts_with(resource_port))
    return fmt::format("{}{} waits for {}{}, for {}", l.actor,
                       l.node.empty() ? "" : fmt::format(" ({})", l.node), l.port,
                       l.peer.empty() ? ", which is lent" : fmt::format(", which {} has", l.peer),
                       format_seconds(l.since_seconds));
  const auto peer = l.peer == "program" ? "the program" : l.peer.empty() ? "nobody known" : l.peer;
  return fmt::format("{}{} waits for {} {} from {}, for {}", l.actor,
                     l.node.empty() ? "" : fmt::format(" ({})", l.node),
                     l.is_credit ? "a credit of" : "input", l.port, peer,
                     format_seconds(l.since_seconds));
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
    case root_kind::actor_running: return fmt::format("{} runs, for {}", subject(*a), age);
    case root_kind::actor_idle:
      return fmt::format("{} is idle, for {}: nothing has reached it since", subject(*a), age);
    default:
      if (a == nullptr)
        return fmt::format(
            "{}{}, for which others have waited for {}, is not among the actors that were listed",
            r.actor, place(r.node), age);
      if (const auto* lent = waits_for_a_resource(*a))
        return fmt::format("{} waits for {}, which is lent to somebody else than this job, for {}",
                           subject(*a), lent->name, format_seconds(lent->since_seconds));
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

judged explain_running(const cluster_snapshot& c, const job_snapshot& j) {
  const node_index nodes(c);
  const wait_walk walk(c, j, nodes);
  why_answer answer;
  answer.job = j.name;
  if (walk.roots().empty()) return explain_without_actors(c, j, nodes, std::move(answer));
  const auto& r = walk.roots().front();
  const bool is_young = r.kind != root_kind::node_lost && r.since_seconds < skew_seconds;
  if (!r.is_settled || (is_young && oldest_doing(c, j) < skew_seconds)) {
    answer.kind = root_kind::moving;
    answer.since_seconds = r.since_seconds;
    answer.root = fmt::format("{}: it goes on, and no wait is older than {}", heading(j),
                              format_seconds(skew_seconds));
    for (const auto& name : j.participants)
      if (const auto loss = nodes.lost(name); loss && answer.also.size() < also_max)
        answer.also.push_back(lost_sentence(*loss, loss->since_seconds));
    return {std::move(answer), 4};
  }
  answer.kind = r.kind;
  answer.actor = r.actor;
  answer.node = r.node;
  answer.since_seconds = r.since_seconds;
  answer.root = fmt::format("{}: {}", heading(j), sentence(walk, r, nodes));
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
  return {std::move(answer), severity(r)};
}

judged explain_job(const cluster_snapshot& c, const job_snapshot& j) {
  if (j.state == job_state::running) return explain_running(c, j);
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
    case root_kind::program_feed: return "program feed";
    case root_kind::program_fetch: return "program fetch";
    case root_kind::actor_running: return "actor running";
    case root_kind::actor_idle: return "actor idle";
    case root_kind::unexplained: return "unexplained";
  }
  return {};
}

result<why_answer> explain(const cluster_snapshot& c, std::string_view job) {
  const job_snapshot* best = nullptr;
  judged best_answer;
  std::string names;
  for (const auto& j : c.jobs) {
    names += (names.empty() ? "" : ", ") + j.name;
    if (!job.empty() && job != j.name && job != j.id) continue;
    auto answer = explain_job(c, j);
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
  if (!chain.empty()) {
    out += " The chain: ";
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const auto last_of_head = links_shown_max / 2;
      const bool is_long = chain.size() > links_shown_max;
      if (is_long && i == last_of_head) {
        const auto skipped = chain.size() - links_shown_max;
        out +=
            fmt::format("; {} more link{}, which --json lists", skipped, skipped == 1 ? "" : "s");
        i += skipped;
      }
      out += (i > 0 ? "; " : "") + describe(chain[i]);
    }
    out += ".";
  }
  for (const auto& s : also) out += fmt::format(" Also, {}.", s);
  return out;
}

std::string why_answer::json() const {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const auto& l : chain)
    links.push_back({{"actor", l.actor},
                     {"id", l.actor_id},
                     {"node", l.node},
                     {"port", l.port},
                     {"waits_for", l.is_credit ? "credit" : "input"},
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

std::string why(const cluster_snapshot& c, std::string_view job) {
  const auto answer = explain(c, job);
  return answer ? answer->text() : answer.error().text();
}

}  // namespace troupe
