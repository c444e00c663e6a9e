#include "tools/troupe-tool/answer.hpp"

#include "tools/troupe-tool/event_log.hpp"
#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/lists.hpp"
#include "tools/troupe-tool/near_names.hpp"
#include "tools/troupe-tool/status.hpp"
#include "troupe/runtime/insight/slow.hpp"
#include "troupe/runtime/insight/why.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr int exit_failed = static_cast<int>(error_code::failed);
constexpr int exit_partial = static_cast<int>(error_code::timed_out);

std::string with_newline(std::string text) { return std::move(text) + "\n"; }

outcome from_table(const drawn_table& t) {
  outcome o;
  o.out = t.text;
  if (!t.dropped.empty())
    o.err = fmt::format(
        "troupe: columns that do not fit: {} (a wider terminal, a pipe or --json has them)\n",
        fmt::join(t.dropped, ", "));
  return o;
}

outcome answer_list(const command& c, const cluster_snapshot& all, std::size_t width) {
  outcome json;
  auto s = all;
  std::erase_if(s.nodes, [&](const auto& n) { return !c.json && !is_recent(n); });
  const auto number = c.kind == object_kind::actor ? select(s.actors, c.pick)
                      : c.kind == object_kind::job ? select(s.jobs, c.pick)
                                                   : select(s.nodes, c.pick);
  if (!number) return answer_error(number.error());
  switch (c.kind) {
    case object_kind::actor:
      if (!c.json) return from_table(list_actors(s, width, !c.pick.sort.empty()));
      json.out = with_newline(to_json(std::span<const actor_snapshot>(s.actors)));
      return json;
    case object_kind::job:
      if (!c.json) return from_table(list_jobs(s, width));
      json.out = with_newline(to_json(std::span<const job_snapshot>(s.jobs)));
      return json;
    default:
      if (!c.json) return from_table(list_nodes(s, all, width));
      json.out = with_newline(to_json(std::span<const node_snapshot>(s.nodes)));
      return json;
  }
}

// The job of that name or id; of several, which ended jobs may be, the one that began last.
// nullptr: none.
const job_snapshot* newest_job(const std::string& name_or_id, const cluster_snapshot& s) {
  // A topology that still runs counts before one that is over; of trainings the newest does.
  const auto rank = [](const job_snapshot& j) {
    return std::pair(j.workers == 0 && is_over(j.state), j.started_seconds);
  };
  const job_snapshot* newest = nullptr;
  for (const auto& j : s.jobs)
    if ((j.name == name_or_id || j.id == name_or_id) &&
        (newest == nullptr || rank(j) < rank(*newest)))
      newest = &j;
  return newest;
}

outcome answer_show_job(const command& c, const cluster_snapshot& s) {
  const auto* job = newest_job(c.id, s);
  if (job != nullptr) return {0, c.json ? with_newline(to_json(*job)) : show_job(s, *job), {}};
  std::vector<std::string> names;
  for (const auto& j : s.jobs) names.push_back(j.name);
  return answer_error(error(error_code::not_found,
                            fmt::format("no job '{}' in cluster {}{}; troupe list jobs shows all",
                                        c.id, s.cluster, did_you_mean(c.id, names))));
}

// Of one job where it says which.
outcome answer_top(const command& c, const cluster_snapshot& all, screen size) {
  auto s = all;
  if (!c.id.empty()) {
    const auto* job = newest_job(c.id, s);
    if (job == nullptr) return answer_show_job(c, s);
    std::erase_if(s.actors, [&](const auto& a) { return a.kind != "stream" && !belongs(a, *job); });
  }
  const selection busiest{{}, "busy_ratio:desc", c.pick.limit};
  if (c.json || c.pick.limit > 0) {
    auto streams = s.actors;
    std::erase_if(streams, [](const auto& a) { return a.kind != "stream"; });
    std::erase_if(s.actors, [](const auto& a) {
      return a.kind == "stream" || a.state == actor_state::ended;
    });
    if (const auto number = select(s.actors, busiest); !number) return answer_error(number.error());
    if (c.json) return {0, with_newline(to_json(std::span<const actor_snapshot>(s.actors))), {}};
    s.actors.insert(s.actors.end(), streams.begin(), streams.end());
  }
  return {0, draw_top(s, size.width, size.height), {}};
}

outcome answer_names(const command& c, const cluster_snapshot& s) {
  std::vector<std::string> names;
  if (c.kind == object_kind::node)
    for (const auto& n : s.nodes) names.push_back(n.name);
  if (c.kind == object_kind::job)
    for (const auto& j : s.jobs) names.push_back(j.name);
  if (c.kind == object_kind::actor)
    for (const auto& a : s.actors) names.push_back(a.id);
  std::ranges::sort(names, natural_less);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (c.json) return {0, with_newline(json_line(nlohmann::json(names))), {}};
  return {0, fmt::format("{}{}", fmt::join(names, "\n"), names.empty() ? "" : "\n"), {}};
}

outcome answer_show(const command& c, const cluster_snapshot& s, std::size_t width) {
  if (c.kind == object_kind::job) return answer_show_job(c, s);
  outcome o;
  if (c.kind == object_kind::actor) {
    const auto found = find_actor(s, c.id);
    if (!found) return answer_error(found.error());
    o.out = c.json ? with_newline(to_json(**found)) : show_actor(**found, width);
    return o;
  }
  const auto found = find_node(s, c.id);
  if (!found) return answer_error(found.error());
  o.out = c.json ? with_newline(to_json(**found)) : show_node(s, **found);
  return o;
}

outcome answer_graph(const command& c, const cluster_snapshot& s) {
  const auto views = make_graph_views(s);
  outcome o;
  if (c.json)
    o.out = with_newline(graph_json(views));
  else if (c.format == graph_format::dot)
    o.out = draw_graph_dot(views);
  else if (c.format == graph_format::svg)
    o.out = draw_graph_svg(views);
  else
    o.out = draw_graph_text(views);
  return o;
}

outcome explain_why(const command& c, const cluster_snapshot& s, const cluster_snapshot* before) {
  const auto answer = explain(s, c.id, before);
  if (!answer) {
    std::vector<std::string> names;
    for (const auto& j : s.jobs) names.push_back(j.name);
    auto e = answer.error();
    return answer_error(error(e.code(), e.message() + did_you_mean(c.id, names)));
  }
  outcome o;
  o.out = with_newline(c.json ? answer->json() : answer->text());
  if (answer->kind == root_kind::job_failed) o.exit_code = exit_failed;
  return o;
}

outcome answer_topology(const command& c, const cluster_snapshot& s, std::size_t width) {
  const auto* job = newest_job(c.id, s);
  cluster_snapshot stages;
  if (job != nullptr)
    for (const auto& a : s.actors)
      if (a.kind == "stage" && belongs(a, *job)) stages.actors.push_back(a);
  if (stages.actors.empty()) {
    std::vector<std::string> names;
    for (const auto& j : s.jobs) names.push_back(j.name);
    return answer_error(
        job != nullptr
            ? error(error_code::not_found,
                    fmt::format("'{}' is no topology: it has no stages", c.id))
            : error(error_code::not_found, fmt::format("there is no topology '{}' here{}", c.id,
                                                       did_you_mean(c.id, names))));
  }
  if (c.json) return {0, with_newline(to_json(std::span<const actor_snapshot>(stages.actors))), {}};
  auto o = from_table(list_stages(stages, width));
  o.out = fmt::format("{}: {}, {} items have arrived\n{}", job->name, to_string(job->state),
                      job->step, o.out);
  return o;
}

outcome answer_whole(const command& c, const cluster_snapshot& s, screen size,
                     const cluster_snapshot* before) {
  switch (c.action) {
    case verb::list: return answer_list(c, s, size.width);
    case verb::show: return answer_show(c, s, size.width);
    case verb::top: return answer_top(c, s, size);
    case verb::names: return answer_names(c, s);
    case verb::graph: return answer_graph(c, s);
    case verb::why: return explain_why(c, s, before);
    case verb::show_topology: return answer_topology(c, s, size.width);
    case verb::events:
    case verb::logs: return answer_log(c, s, unix_now_ns());
    default:
      return {0, c.json ? with_newline(to_json(s)) : draw_status(s, size.width, size.height), {}};
  }
}

}  // namespace

namespace {

void tell_what_is_missing(const command& c, const cluster_snapshot& snapshot, outcome& o) {
  for (const auto& n : snapshot.silent)
    o.err += fmt::format("troupe: node {} did not answer{}{}: what it knows is missing here\n",
                         n.name, n.reason.empty() ? "" : ": ", n.reason);
  if (snapshot.actors_left_out > 0 && has(c.ask.parts, ask_part::actors))
    o.err += fmt::format("troupe: {} actors did not fit into the nodes' answers\n",
                         snapshot.actors_left_out);
  const bool is_partial = !snapshot.silent.empty() ||
                          (snapshot.actors_left_out > 0 && has(c.ask.parts, ask_part::actors));
  if (is_partial && o.exit_code == 0) o.exit_code = exit_partial;
}

}  // namespace

outcome answer_to(const command& c, const cluster_snapshot& snapshot, screen s,
                  const cluster_snapshot* before) {
  auto o = answer_whole(c, snapshot, s, before);
  tell_what_is_missing(c, snapshot, o);
  return o;
}

outcome answer_slow(const command& c, std::span<const cluster_snapshot> looks) {
  const auto answer = explain_slow(looks, c.id);
  if (!answer) return answer_error(answer.error());
  outcome o{0, with_newline(c.json ? answer->json() : answer->text()), {}};
  if (answer->kind == bound_kind::not_known) o.exit_code = exit_partial;
  tell_what_is_missing(c, looks.back(), o);
  return o;
}

outcome answer_error(const error& e) {
  return {static_cast<int>(e.code()), {}, fmt::format("troupe: {}\n", e.text())};
}

outcome answer_version(const command& c) {
  outcome o;
  o.out = c.json ? fmt::format("{{\"version\":\"{}\"}}\n", version())
                 : fmt::format("troupe {}\n", version());
  return o;
}

static bool is_of_topology(const command& c) {
  return c.action == verb::pause_topology || c.action == verb::resume_topology ||
         c.action == verb::drain_topology || c.action == verb::set_replicas ||
         c.action == verb::move_stage;
}

std::optional<outcome> answer_refused(const command& c, const cluster_snapshot& s) {
  constexpr std::string_view refused = "refused: ";
  std::string why;
  for (const auto& [node, text] : s.said) {
    if (!text.starts_with(refused)) return std::nullopt;
    why = fmt::format("{}: {}", c.id, text.substr(refused.size()));
  }
  const bool is_of_nothing = why.find("there is no stage") != std::string::npos ||
                             why.find("has no replica on") != std::string::npos;
  if (!why.empty())
    return answer_error(error(is_of_nothing ? error_code::not_found : error_code::failed, why));
  std::vector<std::string> names;
  const bool is_forgotten = c.action == verb::forget_node;
  const bool is_node = c.action == verb::leave_cluster || is_forgotten;
  for (const auto& n : s.nodes)
    if (is_node && (n.state == node_state::alive) != is_forgotten) names.push_back(n.name);
  for (const auto& j : s.jobs)
    if (!is_node) names.push_back(j.name);
  return answer_error(error(error_code::not_found, fmt::format("there is no {} '{}' here{}",
                                                               is_forgotten        ? "dead node"
                                                               : is_node           ? "living node"
                                                               : is_of_topology(c) ? "topology"
                                                                                   : "job",
                                                               c.id, did_you_mean(c.id, names))));
}

namespace {

// The word with the count of checkpoints before the one that was asked for.
std::uint64_t checkpoints_before(const cluster_snapshot& s) {
  for (const auto& [node, text] : s.said)
    if (text.starts_with("saves ")) return std::stoull(text.substr(6));
  return 0;
}

// A node has it, and no program.
std::optional<outcome> answer_detached(const command& c, const job_snapshot& job,
                                       const cluster_snapshot& now) {
  for (const auto& n : now.nodes)
    if (n.name == job.client && n.kind == "node" && job.state == job_state::running)
      return outcome{
          0,
          c.json ? fmt::format("{{\"job\":{},\"client\":{}}}\n", json_line(nlohmann::json(c.id)),
                               json_line(nlohmann::json(n.name)))
                 : fmt::format("{} is coordinated by {}\n", c.id, n.name),
          {}};
  return std::nullopt;
}

}  // namespace

static std::optional<outcome> answer_forgotten(const command& c, const cluster_snapshot& now) {
  for (const auto& n : now.nodes)
    if ((n.name == c.id || n.id == c.id) && n.state == node_state::dead) return std::nullopt;
  return outcome{0,
                 c.json ? fmt::format("{{\"forgotten\":{}}}\n", json_line(nlohmann::json(c.id)))
                        : fmt::format("{} is forgotten\n", c.id),
                 {}};
}

std::optional<outcome> answer_changed(const command& c, const cluster_snapshot& before,
                                      const cluster_snapshot& now) {
  if (c.action == verb::leave_cluster) {
    for (const auto& n : now.nodes)
      if ((n.name == c.id || n.id == c.id) &&
          (n.state == node_state::alive || n.state == node_state::unreachable))
        return std::nullopt;
    return outcome{0,
                   c.json ? fmt::format("{{\"left\":{}}}\n", json_line(nlohmann::json(c.id)))
                          : fmt::format("{} has left\n", c.id),
                   {}};
  }
  if (c.action == verb::forget_node) return answer_forgotten(c, now);
  const auto* job = newest_job(c.id, now);
  // A program that does not answer in time has not ended by that.
  if (job == nullptr && !now.silent.empty()) return std::nullopt;
  if (c.action == verb::detach_job) {
    if (job == nullptr) return std::nullopt;  // on its way
    if (!is_over(job->state)) return answer_detached(c, *job, now);
  }
  // Of a topology its program alone knows, and that has ended with it.
  const bool was_drained =
      std::ranges::any_of(before.said, [](const auto& s) { return s.text == "drains"; });
  if (job == nullptr && was_drained)
    return outcome{
        0,
        c.json ? fmt::format("{{\"job\":{},\"state\":\"done\"}}\n", json_line(nlohmann::json(c.id)))
               : fmt::format("{} has ended, and its program\n", c.id),
        {}};
  if (job == nullptr)
    return answer_error(error(error_code::not_found, fmt::format("job '{}' is gone", c.id)));
  if (job->state == job_state::failed) return answer_error(error(error_code::failed, job->cause));
  if (c.action == verb::pause_topology || c.action == verb::resume_topology) {
    const bool is_paused = job->state == job_state::paused;
    if (is_over(job->state))
      return answer_error(error(error_code::failed, fmt::format("topology '{}' has ended", c.id)));
    if (is_paused != (c.action == verb::pause_topology)) return std::nullopt;
    return outcome{0,
                   c.json ? fmt::format("{{\"job\":{},\"state\":\"{}\"}}\n",
                                        json_line(nlohmann::json(c.id)), to_string(job->state))
                          : fmt::format("{} {}\n", c.id, is_paused ? "is paused" : "goes on"),
                   {}};
  }
  if (c.action == verb::move_stage)
    return outcome{
        0,
        c.json ? fmt::format("{{\"job\":{},\"stage\":{},\"node\":{}}}\n",
                             json_line(nlohmann::json(c.id)), json_line(nlohmann::json(c.stage)),
                             json_line(nlohmann::json(c.node)))
               : fmt::format("{}: {} works on {}\n", c.id, c.stage, c.node),
        {}};
  if (c.action == verb::set_replicas) {
    std::string said;
    for (const auto& [node, text] : before.said)
      if (!text.starts_with("refused: ")) said = text;
    return outcome{0,
                   c.json ? fmt::format("{{\"job\":{},\"stage\":{},\"replicas\":{}}}\n",
                                        json_line(nlohmann::json(c.id)),
                                        json_line(nlohmann::json(c.stage)), c.replicas)
                          : fmt::format("{}: {} works with {}\n", c.id, c.stage, said),
                   {}};
  }
  if (c.action == verb::stop_job || c.action == verb::finish_job ||
      c.action == verb::drain_topology) {
    if (!is_over(job->state)) return std::nullopt;
    return outcome{
        0,
        c.json ? fmt::format("{{\"job\":{},\"state\":\"{}\",\"step\":{}}}\n",
                             json_line(nlohmann::json(c.id)), to_string(job->state), job->step)
               : fmt::format("{} is {}, at step {}\n", c.id, to_string(job->state), job->step),
        {}};
  }
  if (c.action == verb::make_checkpoint && job->checkpoints > checkpoints_before(before))
    return outcome{
        0,
        c.json ? fmt::format("{{\"job\":{},\"checkpoints\":{}}}\n", json_line(nlohmann::json(c.id)),
                             job->checkpoints)
               : fmt::format("{} has a new checkpoint, at step {} or before; it has written {}\n",
                             c.id, job->step, job->checkpoints),
        {}};
  if (is_over(job->state))
    return answer_error(error(error_code::failed, fmt::format("job '{}' has ended", c.id)));
  return std::nullopt;
}

outcome answer_not_changed(const command& c) {
  const auto seconds = format_seconds(static_cast<double>(c.ask.timeout_ns) * 1e-9);
  return answer_error(error(
      error_code::timed_out,
      c.action == verb::leave_cluster ? fmt::format("after {} {} has not left yet", seconds, c.id)
      : c.action == verb::forget_node
          ? fmt::format("after {} some nodes still tell of {}", seconds, c.id)
      : is_of_topology(c)
          ? fmt::format("after {} {} is not yet so: troupe topology show {} tells what it does",
                        seconds, c.id, c.id)
      : c.action != verb::make_checkpoint
          ? fmt::format("after {} job {} still runs as before: troupe events tells why", seconds,
                        c.id)
          : fmt::format("after {} {} has no new checkpoint: troupe events tells why", seconds,
                        c.id)));
}

// Nodes that have just begun are asked each by itself, before they know of each other.
static bool is_alive_node(const node_snapshot& n) {
  return n.state == node_state::alive && n.kind != "client";
}
static bool counts_for_wait(const node_snapshot& n) {
  return is_alive_node(n) && n.unknown_to == 0 && n.unreached_by == 0;
}

std::size_t nodes_alive(const cluster_snapshot& snapshot) {
  return static_cast<std::size_t>(std::ranges::count_if(snapshot.nodes, counts_for_wait));
}

outcome answer_wait_done(const command& c, const cluster_snapshot& snapshot) {
  std::vector<std::string> names;
  for (const auto& n : snapshot.nodes)
    if (counts_for_wait(n)) names.push_back(n.name);
  outcome o;
  o.out = c.json ? fmt::format("{{\"nodes\":{}}}\n", names.size())
                 : fmt::format("{} node{} alive: {}\n", names.size(), names.size() == 1 ? "" : "s",
                               fmt::join(names, " "));
  return o;
}

// Who is over stays as it is, but one that is suspended may go on, and another one of the same name
// may begin.
static bool may_become(job_state now, job_state wanted) {
  return !is_over(now) || !is_over(wanted) || now == job_state::suspended;
}

std::optional<outcome> answer_waited_for_job(const command& c, const cluster_snapshot& now) {
  const job_snapshot* job = c.id.empty() ? nullptr : newest_job(c.id, now);
  if (c.id.empty())
    for (const auto& j : now.jobs)
      if (job == nullptr || j.started_seconds < job->started_seconds) job = &j;
  if (job == nullptr) return std::nullopt;  // it may come
  const auto said =
      c.json ? fmt::format("{{\"job\":{},\"state\":\"{}\",\"step\":{}}}\n",
                           json_line(nlohmann::json(job->name)), to_string(job->state), job->step)
             : fmt::format("{} is {}, at step {}\n", job->name, to_string(job->state), job->step);
  if (job->state == *c.job_wanted) return outcome{0, said, {}};
  if (may_become(job->state, *c.job_wanted)) return std::nullopt;
  return outcome{exit_failed, said,
                 fmt::format("troupe: {} is {}, and will not be {} any more{}{}\n", job->name,
                             to_string(job->state), to_string(*c.job_wanted),
                             job->cause.empty() ? "" : ": ", job->bare_cause())};
}

outcome answer_wait_timed_out(const command& c, const result<cluster_snapshot>& last) {
  const auto seconds = format_seconds(static_cast<double>(c.ask.timeout_ns) * 1e-9);
  outcome o;
  o.exit_code = static_cast<int>(error_code::timed_out);
  if (c.job_wanted && last) {
    const auto* job = c.id.empty() ? nullptr : newest_job(c.id, *last);
    o.err = fmt::format(
        "troupe: after {} {} (--timeout says how long to wait)\n", seconds,
        job != nullptr
            ? fmt::format("{} is {}, not {}", c.id, to_string(job->state), to_string(*c.job_wanted))
        : c.id.empty() ? fmt::format("no job is {}", to_string(*c.job_wanted))
                       : fmt::format("there is no job '{}'", c.id));
    return o;
  }
  const auto alive = last ? std::ranges::count_if(last->nodes, is_alive_node) : 0;
  const bool have_met = last && static_cast<std::size_t>(alive) == nodes_alive(*last);
  if (last && !have_met)
    o.err = fmt::format(
        "troupe: after {} {} of {} nodes are alive, and do not all reach each other (troupe "
        "list nodes says who, troupe events says why)\n",
        seconds, alive, c.nodes_wanted);
  else
    o.err = last ? fmt::format("troupe: after {} {} of {} nodes are alive\n", seconds,
                               nodes_alive(*last), c.nodes_wanted)
                 : fmt::format("troupe: after {} still: {}\n", seconds, last.error().text());
  return o;
}

}  // namespace troupe
