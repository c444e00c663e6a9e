#include "tools/troupe-tool/status.hpp"

#include "tools/troupe-tool/lists.hpp"
#include "tools/troupe-tool/table.hpp"
#include "troupe/runtime/insight/listed_work.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace troupe {

namespace {

constexpr std::size_t list_max = 5;  // actors in each of the two short lists
constexpr std::size_t bar_width = 20;
constexpr double busy_least = 0.005;  // below, it is printed as 0 %

std::string plural(std::size_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string headline(const cluster_snapshot& c) {
  std::size_t nodes = 0, clients = 0, lost = 0, running = 0;
  for (const auto& n : c.nodes) {
    if (n.state == node_state::alive) ++(n.kind == "client" ? clients : nodes);
    lost += n.state == node_state::dead || n.state == node_state::unreachable;
  }
  for (const auto& j : c.jobs) running += !is_over(j.state);
  auto line = fmt::format("cluster {}: {}", c.cluster, plural(nodes, "node"));
  if (clients > 0) line += ", " + plural(clients, "client");
  if (lost > 0) line += fmt::format(", {} not alive", lost);
  const auto ended =
      static_cast<std::size_t>(std::count_if(c.actors.begin(), c.actors.end(), [](const auto& a) {
        return a.state == actor_state::ended;
      }));
  line += fmt::format(", {} running, {}", plural(running, "job"),
                      plural(c.actors.size() - ended, "actor"));
  if (ended > 0) line += fmt::format(" and {} ended", ended);
  return line + "\n";
}

std::string draw_nodes(const cluster_snapshot& c, std::size_t width) {
  struct load {
    std::size_t actors = 0;
    double busy = 0;
  };
  std::map<std::string_view, load> loads;
  for (const auto& a : c.actors) {
    if (a.state == actor_state::ended) continue;
    auto& l = loads[a.node];
    ++l.actors;
    if (a.kind == "stream") l.busy += a.busy_ratio;  // the others run on streams
  }
  table t({{"NODE"},
           {"STATE"},
           {"KIND", false, 0, 2},
           {"JOB", false, 0, 1},
           {"PID", true},
           {"ADDRESS", false, 9, 3, 21},
           {"ACTORS", true},
           {"BUSY", true},
           {"REASON", false, 10, 4}});
  for (const auto& n : c.nodes) {
    if (n.state == node_state::left && (n.kind == "client" || !is_recent(n))) continue;
    const auto& l = loads[n.name];
    t.add({n.name, std::string(to_string(n.state)), n.kind, n.job.empty() ? "-" : n.job,
           std::to_string(n.pid), n.address, std::to_string(l.actors),
           fmt::format("{:.0f}%", l.busy * 100), n.reason.empty() ? "-" : n.reason});
  }
  return t.is_empty() ? std::string() : "\n" + t.draw(width).text;
}

std::string bar(const job_snapshot& j) {
  if (j.steps == 0) return "-";
  const auto done = static_cast<std::size_t>(static_cast<double>(std::min(j.step, j.steps)) /
                                             static_cast<double>(j.steps) * bar_width);
  return "[" + std::string(done, '#') + std::string(bar_width - done, '.') + "]";
}

std::string time_left(const job_snapshot& j) {
  const auto rate = j.steps_per_second();
  if (j.state != job_state::running || j.steps <= j.step || rate <= 0) return "-";
  return format_seconds(static_cast<double>(j.steps - j.step) / rate);
}

std::string draw_jobs(const cluster_snapshot& c, std::size_t width) {
  table t({{"JOB", false, 8, 0, 16},
           {"STATE"},
           {"STEP", true},
           {"PROGRESS", false, 0, 5},
           {"STEPS/S", true},
           {"LEFT", true, 0, 1},
           {"WORKERS", true, 0, 3},
           {"SHARDS", true, 0, 4},
           {"UPDATE", false, 0, 2}});
  std::string causes;
  for (const auto& j : c.jobs) {
    t.add({j.name, std::string(to_string(j.state)), progress(j), bar(j),
           fmt::format("{:.1f}", j.steps_per_second()), time_left(j), std::to_string(j.workers),
           std::to_string(j.shards), j.update.empty() ? "-" : j.update});
    if (!j.cause.empty()) causes += fmt::format("{} failed: {}\n", j.name, j.bare_cause());
  }
  return t.is_empty() ? "\nno jobs\n" : "\n" + t.draw(width).text + causes;
}

using actor_list = std::vector<const actor_snapshot*>;

std::string more(std::size_t shown, std::size_t all) {
  return all > shown ? fmt::format("and {} more: troupe list actors\n", all - shown)
                     : std::string();
}

std::string draw_busiest(const cluster_snapshot& c, std::size_t width, std::size_t most) {
  actor_list busy;
  for (const auto& a : c.actors)
    if (a.busy_ratio >= busy_least && a.state != actor_state::ended) busy.push_back(&a);
  std::stable_sort(busy.begin(), busy.end(),
                   [](auto* a, auto* b) { return a->busy_ratio > b->busy_ratio; });
  table t({{"BUSIEST", false, 16, 0, 48},
           {"ID"},
           {"KIND", false, 0, 1},
           {"BUSY", true},
           {"STEPS", true, 0, 2},
           {"STATE", false, 0, 3}});
  for (const auto* a : actor_list(
           busy.begin(), busy.begin() + static_cast<std::ptrdiff_t>(std::min(most, busy.size()))))
    t.add({a->name, a->id, a->kind, fmt::format("{:.0f}%", a->busy_ratio * 100),
           std::to_string(a->steps), std::string(to_string(a->state))});
  return t.is_empty() ? std::string() : "\n" + t.draw(width).text + more(most, busy.size());
}

std::string draw_waits(const cluster_snapshot& c, std::size_t width, std::size_t most) {
  struct wait {
    const actor_snapshot* actor;
    const port_snapshot* port;
  };
  std::vector<wait> waits;
  for (const auto& a : c.actors)
    for (const auto& p : a.ports)
      if (a.waits_at(p)) waits.push_back({&a, &p});
  std::stable_sort(waits.begin(), waits.end(),
                   [](auto& a, auto& b) { return a.port->since_seconds > b.port->since_seconds; });
  table t({{"WAITS", false, 16, 0, 28},
           {"ID", false, 0, 1},
           {"FOR"},
           {"FROM", false, 16, 0, 28},
           {"ON", false, 0, 2},
           {"SINCE", true}});
  for (std::size_t i = 0; i < std::min(most, waits.size()); ++i) {
    const auto& [a, p] = waits[i];
    t.add({a->name, a->id,
           (p->is_input()                          ? "input "
            : what_is_waited_for(*p) == "a credit" ? "credit "
                                                   : "") +
               p->name,
           p->peer, p->peer_node.empty() ? "-" : p->peer_node, format_seconds(p->since_seconds)});
  }
  return t.is_empty() ? std::string() : "\n" + t.draw(width).text + more(most, waits.size());
}

}  // namespace

std::string draw_status(const cluster_snapshot& c, std::size_t width, std::size_t height) {
  auto page = headline(c) + draw_nodes(c, width) + draw_jobs(c, width);
  // The two short lists share what a terminal has left: each has a blank line, a title and a line
  // for "more".
  std::size_t each = list_max;
  if (height > 0) {
    const auto used = static_cast<std::size_t>(std::count(page.begin(), page.end(), '\n')) + 1;
    const std::size_t left = height > used ? height - used : 0;
    each = left / 2 > 3 ? std::min(list_max, left / 2 - 3) : 0;
  }
  if (each == 0)
    return page + "(a taller terminal shows the busiest actors and the oldest waits too)\n";
  page += draw_busiest(c, width, each) + draw_waits(c, width, each);
  return page;
}

}  // namespace troupe
