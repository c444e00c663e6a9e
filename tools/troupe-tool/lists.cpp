#include "tools/troupe-tool/lists.hpp"

#include "tools/troupe-tool/near_names.hpp"
#include "troupe/runtime/insight/listed_work.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/wire/node_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace troupe {

namespace {

std::string or_dash(std::string_view text) { return text.empty() ? "-" : std::string(text); }
std::string percent(double ratio) { return fmt::format("{:.0f}%", ratio * 100); }

std::string node_state_text(const node_snapshot& n) {
  std::string text(to_string(n.state));
  if (n.state != node_state::alive && n.unreachable_seconds > 0)
    text += n.state == node_state::left
                ? fmt::format(" {} ago", format_seconds(n.unreachable_seconds))
                : " for " + format_seconds(n.unreachable_seconds);
  return n.reason.empty() ? text : fmt::format("{} ({})", text, n.reason);
}

std::string devices_of(const node_snapshot& n) {
  if (n.devices.empty()) return "-";
  std::vector<device_group> groups;
  for (const auto& d : n.devices) add_device(groups, d.hardware, d.memory_bytes);
  return devices_text(groups);
}

// Which of the other nodes it has a link to, as it said itself. Also those that somebody holds
// dead, if they answered: they live.
std::string reach_of(const node_snapshot& n, const cluster_snapshot& c) {
  const auto is_node = [](const node_snapshot& o) {
    return o.kind != "client" && o.state != node_state::left &&
           (o.state == node_state::alive || !o.reaches.empty());
  };
  std::size_t others = 0;
  std::vector<std::string> missing;
  for (const auto& o : c.nodes) {
    if (o.id == n.id || !is_node(o)) continue;
    ++others;
    if (std::ranges::find(n.reaches, o.name) == n.reaches.end()) missing.push_back(o.name);
  }
  if (n.reaches.empty() && (others == 0 || n.state != node_state::alive)) return "-";
  if (missing.empty()) return "all";
  return fmt::format("{} of {}, not {}", others - missing.size(), others, fmt::join(missing, ", "));
}

std::string uptime_of(const node_snapshot& n) {
  return n.uptime_seconds <= 0 ? "-" : format_seconds(n.uptime_seconds);
}

std::string memory_of(const node_snapshot& n) {
  if (n.memory_bytes == 0) return "-";
  return fmt::format("{} in use, jobs may use {}", format_bytes(n.memory_bytes),
                     n.memory_max_bytes == 0 ? "all there is" : format_bytes(n.memory_max_bytes));
}

// Lines "name  value", names aligned.
std::string facts(const std::vector<std::pair<std::string_view, std::string>>& lines) {
  std::size_t widest = 0;
  for (const auto& [name, value] : lines) widest = std::max(widest, name.size());
  std::string out;
  for (const auto& [name, value] : lines) out += fmt::format("{:{}}  {}\n", name, widest, value);
  return out;
}

error unknown(std::string_view what, std::string_view id, const std::vector<std::string>& names,
              const cluster_snapshot& c) {
  return {error_code::not_found,
          fmt::format("no {} '{}' in cluster {}{}; troupe list {}s shows all", what, id, c.cluster,
                      did_you_mean(id, names), what)};
}

}  // namespace

bool is_recent(const node_snapshot& n) noexcept {
  return n.state != node_state::left || n.unreachable_seconds <= left_seconds_max;
}

std::string progress(const job_snapshot& j) {
  if (j.steps == 0) return j.step == 0 ? "-" : fmt::format("{}", j.step);
  return fmt::format("{}/{} ({:.0f}%)", j.step, j.steps,
                     100.0 * static_cast<double>(j.step) / static_cast<double>(j.steps));
}

drawn_table list_nodes(const cluster_snapshot& some, const cluster_snapshot& c, std::size_t width) {
  table t({{"NAME"},
           {"STATE", false, 12},
           {"KIND", false, 0, 2},
           {"JOB", false, 0, 1},
           {"PID", true},
           {"ADDRESS", false, 9, 3, 21},
           {"REACHES", false, 3, 4, 40},
           {"DEVICES", false, 14, 5, 40},
           {"HOST", false, 6, 6, 24},
           {"UP", true, 0, 7},
           {"THREADS", true, 0, 8},
           {"MEMORY", true, 0, 9},
           {"VERSION", false, 0, 10},
           {"INCARNATION", true, 0, 12},
           {"ID", false, 0, 11}});
  for (const auto& n : some.nodes)
    if (is_recent(n))
      t.add({n.name, node_state_text(n), or_dash(n.kind), or_dash(n.job), std::to_string(n.pid),
             or_dash(n.address), reach_of(n, c), devices_of(n), or_dash(n.host), uptime_of(n),
             n.threads == 0 ? "-" : std::to_string(n.threads),
             n.memory_bytes == 0 ? "-" : format_bytes(n.memory_bytes), or_dash(n.version),
             std::to_string(n.incarnation), n.id});
  return t.draw(width);
}

drawn_table list_actors(const cluster_snapshot& c, std::size_t width, bool is_sorted) {
  table t({{"ID"},
           {"NAME", false, 16, 0, 48},
           {"KIND", false, 0, 2},
           {"NODE", false, 0, 10},
           {"STATE"},
           {"SINCE", true, 0, 1},
           {"MSG IN", true, 0, 6},
           {"MSG OUT", true, 0, 7},
           {"BYTES IN", true, 0, 8},
           {"BYTES OUT", true, 0, 9},
           {"BUSY", true, 0, 3},
           {"QUEUE", true, 0, 4},
           {"STEPS", true, 0, 5},
           {"JOB", false, 4, 11}});
  // Those of a job that has ended come last.
  for (const bool ended : {false, true})
    for (const auto& a : c.actors)
      if (is_sorted ? !ended : (a.state == actor_state::ended) == ended)
        t.add({a.id, a.name, a.kind, a.node, std::string(to_string(a.state)),
               format_seconds(a.since_seconds), std::to_string(a.messages_in),
               std::to_string(a.messages_out), format_bytes(a.bytes_in), format_bytes(a.bytes_out),
               percent(a.busy_ratio), std::to_string(a.queue), std::to_string(a.steps),
               or_dash(a.job)});
  return t.draw(width);
}

drawn_table list_stages(const cluster_snapshot& c, std::size_t width) {
  table t({{"STAGE", false, 16, 0, 48},
           {"NODE", false, 0, 6},
           {"STATE"},
           {"SINCE", true, 0, 1},
           {"ITEMS IN", true},
           {"ITEMS OUT", true},
           {"BYTES IN", true, 0, 4},
           {"BYTES OUT", true, 0, 5},
           {"BUSY", true},
           {"QUEUE", true, 0, 2}});
  for (const auto& a : c.actors)
    t.add({a.name, a.node, std::string(to_string(a.state)), format_seconds(a.since_seconds),
           std::to_string(a.messages_in), std::to_string(a.messages_out), format_bytes(a.bytes_in),
           format_bytes(a.bytes_out), percent(a.busy_ratio), std::to_string(a.queue)});
  return t.draw(width);
}

drawn_table list_jobs(const cluster_snapshot& c, std::size_t width) {
  table t({{"NAME", false, 8, 0, 16},
           {"STATE"},
           {"STEP", true},
           {"STEPS/S", true},
           {"WORKERS", true, 0, 3},
           {"SHARDS", true, 0, 4},
           {"UPDATE", false, 0, 2},
           {"STARTED", true, 0, 5},
           {"CLIENT", false, 0, 6},
           {"ID", false, 0, 7},
           {"CAUSE", false, 20, 1}});
  for (const auto& j : c.jobs)
    t.add({j.name, std::string(to_string(j.state)), progress(j),
           fmt::format("{:.1f}", j.steps_per_second()), std::to_string(j.workers),
           std::to_string(j.shards), or_dash(j.update), format_seconds(j.started_seconds) + " ago",
           or_dash(j.client), j.id, or_dash(j.bare_cause())});
  return t.draw(width);
}

result<const node_snapshot*> find_node(const cluster_snapshot& c, std::string_view id) {
  const node_snapshot* found = nullptr;
  for (const auto& n : c.nodes) {
    if (n.id == id) return &n;
    // A name is unique among the living only.
    if (n.name == id && (found == nullptr || n.state < found->state)) found = &n;
  }
  if (found != nullptr) return found;
  std::vector<std::string> names;
  for (const auto& n : c.nodes) names.push_back(n.name);
  return unknown("node", id, names, c);
}

result<const actor_snapshot*> find_actor(const cluster_snapshot& c, std::string_view id) {
  std::vector<const actor_snapshot*> named;
  for (const auto& a : c.actors) {
    if (a.id == id) return &a;
    if (a.name == id) named.push_back(&a);
  }
  if (named.size() == 1) return named[0];
  if (named.size() > 1) {
    const auto lives = [](const auto* a) { return a->state != actor_state::ended; };
    if (std::count_if(named.begin(), named.end(), lives) == 1)
      return *std::find_if(named.begin(), named.end(), lives);
    constexpr std::size_t shown_max = 8;
    std::string ids;
    for (std::size_t i = 0; i < std::min(named.size(), shown_max); ++i)
      ids += fmt::format(
          "{}{} ({}{}{})", i > 0 ? ", " : "", named[i]->id, named[i]->job.empty() ? "" : "job ",
          named[i]->job.empty() ? "" : named[i]->job + ", ", to_string(named[i]->state));
    if (named.size() > shown_max) ids += fmt::format(" and {} more", named.size() - shown_max);
    return error(
        error_code::not_found,
        fmt::format("{} actors are named '{}': {}; name one by its id", named.size(), id, ids));
  }
  std::vector<std::string> names;
  for (const auto& a : c.actors) names.push_back(a.id), names.push_back(a.name);
  return unknown("actor", id, names, c);
}

std::string show_node(const cluster_snapshot& c, const node_snapshot& n) {
  std::map<actor_state, std::size_t> states;
  for (const auto& a : c.actors)
    if (a.node == n.name && n.state == node_state::alive) ++states[a.state];
  std::string actors;
  for (const auto& [state, number] : states)
    actors += fmt::format("{}{} {}", actors.empty() ? "" : ", ", number, to_string(state));
  std::string jobs;
  for (const auto& j : c.jobs)
    if (std::find(j.participants.begin(), j.participants.end(), n.name) != j.participants.end())
      jobs += fmt::format("{}{} ({})", jobs.empty() ? "" : ", ", j.name, to_string(j.state));
  return facts(
      {{"name", n.name},
       {"id", n.id},
       {"kind", or_dash(n.kind)},
       {"job", or_dash(n.job)},
       {"state", node_state_text(n)},
       {"pid", std::to_string(n.pid)},
       {"address", or_dash(n.address)},
       {"reaches", reach_of(n, c)},
       {"host", or_dash(n.host)},
       {"version", or_dash(n.version)},
       {"up for", uptime_of(n)},
       {"threads", n.threads == 0 ? "-" : fmt::format("{}, on {} cores", n.threads, n.cores)},
       {"memory", memory_of(n)},
       {"devices", devices_of(n)},
       {"libraries", or_dash(fmt::format("{}", fmt::join(n.libraries, ", ")))},
       {"labels", or_dash(fmt::format("{}", fmt::join(n.labels, ", ")))},
       {"incarnation", std::to_string(n.incarnation)},
       {"actors", or_dash(actors)},
       {"takes part in", or_dash(jobs)}});
}

std::string show_job(const cluster_snapshot& c, const job_snapshot& j) {
  std::map<std::string, std::map<actor_state, std::size_t>> by_node;
  for (const auto& a : c.actors)
    if (belongs(a, j)) ++by_node[a.node][a.state];
  const auto took = j.started_seconds - j.ended_seconds;
  auto out = facts(
      {{"name", j.name},
       {"id", j.id},
       {"state", std::string(to_string(j.state))},
       {"cause", or_dash(j.bare_cause())},
       {"steps", progress(j)},
       {"rate",
        j.steps_per_second() > 0 ? fmt::format("{:.1f} steps/s", j.steps_per_second()) : "-"},
       {"update", or_dash(j.update)},
       {"workers", std::to_string(j.workers)},
       {"shards", std::to_string(j.shards)},
       {"started", format_seconds(j.started_seconds) + " ago"},
       {"ended", is_over(j.state) ? fmt::format("{} ago, after {}", format_seconds(j.ended_seconds),
                                                format_seconds(std::max(0.0, took)))
                                  : "-"},
       {"coordinator", or_dash(j.client)},
       {"takes part", or_dash(fmt::format("{}", fmt::join(j.participants, ", ")))},
       {"epoch", std::to_string(j.epoch)},
       {"recoveries", std::to_string(j.recoveries)},
       {"checkpoints", std::to_string(j.checkpoints)}});
  for (const auto& [node, states] : by_node) {
    std::string actors;
    for (const auto& [state, number] : states)
      actors += fmt::format("{}{} {}", actors.empty() ? "" : ", ", number, to_string(state));
    out += fmt::format("on {}: {}\n", node, actors);
  }
  return out;
}

std::string draw_top(const cluster_snapshot& c, std::size_t width, std::size_t height) {
  std::map<std::string_view, double> busy;
  std::vector<const actor_snapshot*> actors;
  for (const auto& a : c.actors) {
    if (a.state == actor_state::ended) continue;
    if (a.kind == "stream") busy[a.node] += a.busy_ratio;  // the others run on streams
    if (a.kind != "stream") actors.push_back(&a);
  }
  table nodes({{"NODE"},
               {"BUSY", true},
               {"THREADS", true},
               {"CORES", true, 0, 1},
               {"MEMORY", true, 0, 2},
               {"UP", true, 0, 3}});
  for (const auto& n : c.nodes)
    if (n.state == node_state::alive)
      nodes.add({n.name, percent(busy[n.name]), std::to_string(n.threads), std::to_string(n.cores),
                 n.memory_bytes == 0 ? "-" : format_bytes(n.memory_bytes), uptime_of(n)});
  auto page = nodes.draw(width).text + "\n";
  const auto used = static_cast<std::size_t>(std::count(page.begin(), page.end(), '\n')) + 2;
  const std::size_t fit = height == 0 ? actors.size() : height > used ? height - used : 0;
  const auto shown = std::min(fit, actors.size());
  std::ranges::stable_sort(actors, std::greater<>(), [](const auto* a) { return a->busy_ratio; });
  table t({{"ACTOR", false, 16, 0, 48},
           {"ID"},
           {"KIND", false, 0, 3},
           {"JOB", false, 6, 4, 16},
           {"BUSY", true},
           {"QUEUE", true, 0, 1},
           {"STEPS", true, 0, 2},
           {"STATE", false, 0, 5}});
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& a = *actors[i];
    t.add({a.name, a.id, a.kind, or_dash(a.job), percent(a.busy_ratio), std::to_string(a.queue),
           std::to_string(a.steps), std::string(to_string(a.state))});
  }
  if (!t.is_empty()) page += t.draw(width).text;
  if (actors.empty()) page += "no actors\n";
  if (shown < actors.size()) page += fmt::format("and {} more\n", actors.size() - shown);
  return page;
}

std::string show_actor(const actor_snapshot& a, std::size_t width) {
  auto out = facts(
      {{"id", a.id},
       {"name", a.name},
       {"kind", a.kind},
       {"node", a.node},
       {"job", or_dash(a.job)},
       {"state", fmt::format("{} for {}", to_string(a.state), format_seconds(a.since_seconds))},
       {"messages", fmt::format("{} in, {} out", a.messages_in, a.messages_out)},
       {"bytes", fmt::format("{} in, {} out", format_bytes(a.bytes_in), format_bytes(a.bytes_out))},
       {"busy", percent(a.busy_ratio)},
       {"queue", std::to_string(a.queue)},
       {"steps", std::to_string(a.steps)}});
  if (a.ports.empty()) return out + "no ports\n";
  table t({{"PORT"},
           {"PEER", false, 16},
           {"PEER NODE"},
           {"CREDITS", true},
           {"QUEUED", true},
           {"WAITS", false}});
  for (const auto& p : a.ports)
    t.add(
        {p.name, or_dash(p.peer), or_dash(p.peer_node),
         p.is_input() || p.credits_max == 0 ? "-" : fmt::format("{}/{}", p.credits, p.credits_max),
         std::to_string(p.queued),
         p.is_waiting
             ? fmt::format("for {}, for {}{}", what_is_waited_for(p),
                           format_seconds(p.since_seconds), p.is_sparse ? ", by design" : "")
             : "-"});
  return out + "\n" + t.draw(width).text;
}

}  // namespace troupe
