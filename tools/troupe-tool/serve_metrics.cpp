#include "tools/troupe-tool/serve_metrics.hpp"

#include "tools/troupe-tool/lists.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

namespace {

using metric_labels = std::vector<std::pair<std::string_view, std::string_view>>;

// What a label may have in its quotes.
std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

class metrics_writer {
 public:
  // The series that follow are of it. `type` is gauge or counter.
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    head_ = fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void add(const metric_labels& labels, double value) {
    out_ += std::exchange(head_, {});
    out_ += name_;
    for (std::size_t i = 0; i < labels.size(); ++i)
      fmt::format_to(std::back_inserter(out_), "{}{}=\"{}\"", i == 0 ? "{" : ",", labels[i].first,
                     escaped_label(labels[i].second));
    if (!labels.empty()) out_ += '}';
    fmt::format_to(std::back_inserter(out_), " {}\n", std::isfinite(value) ? value : 0.0);
  }
  void add(const metric_labels& labels, std::uint64_t value) {
    add(labels, static_cast<double>(value));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_, head_, name_;
};

constexpr std::array node_states{node_state::alive, node_state::unreachable, node_state::dead,
                                 node_state::left};
constexpr std::array job_states{job_state::running,    job_state::done,    job_state::failed,
                                job_state::recovering, job_state::stopped, job_state::paused,
                                job_state::suspended};

void add_server(metrics_writer& w, const cluster_look& l) {
  w.family("troupe_up", "gauge", "Whether the cluster answered the last look.");
  w.add({}, std::uint64_t{l.snapshot.has_value()});
  w.family("troupe_build_info", "gauge", "The version of troupe that serves this page.");
  const std::string ours(version());
  w.add({{"version", ours}}, std::uint64_t{1});
  w.family("troupe_look_duration_seconds", "gauge", "How long the last look took.");
  w.add({}, l.seconds());
  w.family("troupe_look_timestamp_seconds", "gauge", "When the last look ended, as Unix time.");
  w.add({}, l.unix_seconds);
  w.family("troupe_looks_total", "counter", "Looks at the cluster.");
  w.add({}, l.number);
  w.family("troupe_looks_failed_total", "counter", "Looks that no node answered.");
  w.add({}, l.failed);
}

// Each name once, the living first: a process that comes back has a name of its own, and what two
// nodes of one name said would be one series twice.
std::vector<const node_snapshot*> nodes_with_names(const cluster_snapshot& c) {
  std::map<std::string_view, const node_snapshot*> by_name;
  for (const auto& n : c.nodes) {
    if (n.state == node_state::left && !is_recent(n)) continue;
    auto& at = by_name[n.name];
    if (at == nullptr || n.state < at->state) at = &n;
  }
  std::vector<const node_snapshot*> out;
  for (const auto& [name, n] : by_name) out.push_back(n);
  return out;
}

template <class T>
std::uint64_t cut(std::vector<T>& list) {
  const auto more = list.size() > series_max ? list.size() - series_max : 0;
  list.resize(list.size() - more);
  return more;
}

void add_nodes(metrics_writer& w, const cluster_look& l,
               const std::vector<const node_snapshot*>& nodes) {
  const auto& c = *l.snapshot;
  w.family("troupe_nodes", "gauge", "Members of the cluster by kind and state.");
  std::map<std::pair<std::string_view, node_state>, std::uint64_t> counts;
  for (const std::string_view kind : {"node", "client"})
    for (const auto s : node_states) counts[{kind, s}] = 0;
  for (const auto* n : nodes) ++counts[{n->kind, n->state}];
  for (const auto& [of, count] : counts)
    w.add({{"kind", of.first}, {"state", to_string(of.second)}}, count);
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        const std::function<std::optional<double>(const node_snapshot&)>& value) {
    w.family(name, type, help);
    for (const auto* n : nodes)
      if (const auto v = value(*n)) w.add({{"node", n->name}}, *v);
  };
  const auto has_answered = [](const node_snapshot& n) { return n.cores > 0; };
  each("troupe_node_up", "gauge", "Whether the node is alive, as the cluster sees it.",
       [](const auto& n) { return double(n.state == node_state::alive); });
  w.family("troupe_node_state", "gauge", "1 for the state that the node is in.");
  for (const auto* n : nodes)
    for (const auto s : node_states)
      w.add({{"node", n->name}, {"state", to_string(s)}}, std::uint64_t{n->state == s});
  w.family("troupe_node_info", "gauge", "What the node is; always 1.");
  for (const auto* n : nodes) {
    const auto known = l.node_infos.find(n->id);
    if (known == l.node_infos.end()) continue;  // it has not answered yet
    w.add({{"node", n->name},
           {"kind", n->kind},
           {"role", n->job},
           {"address", n->address},
           {"host", known->second.first},
           {"version", known->second.second}},
          std::uint64_t{1});
  }
  each("troupe_node_cores", "gauge", "Cores that the process may run on.",
       [&](const auto& n) -> std::optional<double> {
         if (!has_answered(n)) return std::nullopt;
         return double(n.cores);
       });
  each("troupe_node_cpu_seconds_total", "counter", "Processor time of the process.",
       [&](const auto& n) -> std::optional<double> {
         if (!has_answered(n)) return std::nullopt;
         return n.cpu_seconds;
       });
  each("troupe_node_memory_bytes", "gauge", "Resident memory of the process.",
       [](const auto& n) -> std::optional<double> {
         if (n.memory_bytes == 0) return std::nullopt;
         return double(n.memory_bytes);
       });
  each("troupe_node_uptime_seconds", "gauge", "Age of the process.",
       [](const auto& n) -> std::optional<double> {
         if (n.uptime_seconds <= 0) return std::nullopt;
         return n.uptime_seconds;
       });
  each("troupe_node_threads", "gauge", "Threads that run ops of the host.",
       [&](const auto& n) -> std::optional<double> {
         if (!has_answered(n)) return std::nullopt;
         return double(n.threads);
       });
  each("troupe_node_unreachable_seconds", "gauge", "How long it has not been alive; 0: it is.",
       [](const auto& n) { return n.unreachable_seconds; });
  each("troupe_node_links", "gauge", "Members that the node has a link to, as it said itself.",
       [&](const auto& n) -> std::optional<double> {
         if (!has_answered(n)) return std::nullopt;
         return double(n.reaches.size());
       });
  each("troupe_node_unreached_by", "gauge", "Nodes that answered and have no link to this one.",
       [](const auto& n) { return double(n.unreached_by); });
  w.family("troupe_device_memory_bytes", "gauge",
           "Memory of a device that jobs may use; 0: no limit but the machine's.");
  for (const auto* n : nodes) {
    std::set<std::string_view> seen;
    for (const auto& d : n->devices)
      if (seen.insert(d.name).second)
        w.add({{"node", n->name}, {"device", d.name}}, d.memory_bytes);
  }
  std::map<std::pair<std::string_view, actor_state>, std::uint64_t> actors;
  std::set<std::string_view> known;
  for (const auto* n : nodes) known.insert(n->name);
  for (const auto& a : c.actors)
    if (known.contains(a.node)) ++actors[{a.node, a.state}];
  w.family("troupe_node_actors", "gauge", "Actors of the node by state.");
  for (const auto& [of, count] : actors)
    w.add({{"node", of.first}, {"state", to_string(of.second)}}, count);
  w.family("troupe_silent_nodes", "gauge", "Nodes that did not answer the last look.");
  w.add({}, std::uint64_t{c.silent.size()});
  w.family("troupe_node_silent", "gauge", "1 for each node that did not answer the last look.");
  std::set<std::string_view> silent;
  for (const auto& s : c.silent)
    if (silent.size() < series_max && silent.insert(s.name).second)
      w.add({{"node", s.name}}, std::uint64_t{1});
  w.family("troupe_actors_left_out", "gauge", "Actors that did not fit into the nodes' answers.");
  w.add({}, c.actors_left_out);
}

void add_jobs(metrics_writer& w, const cluster_look& l,
              const std::vector<const job_snapshot*>& jobs) {
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        const std::function<double(const job_snapshot&)>& value) {
    w.family(name, type, help);
    for (const auto* j : jobs) w.add({{"job_name", j->name}, {"job_id", j->id}}, value(*j));
  };
  w.family("troupe_job_state", "gauge", "1 for the state that the job is in.");
  for (const auto* j : jobs)
    for (const auto s : job_states)
      w.add({{"job_name", j->name}, {"job_id", j->id}, {"state", to_string(s)}},
            std::uint64_t{j->state == s});
  each("troupe_job_step", "gauge", "Steps that are done; of a topology, items that have arrived.",
       [](const auto& j) { return double(j.step); });
  each("troupe_job_steps", "gauge", "Steps that were asked for; 0: not known before.",
       [](const auto& j) { return double(j.steps); });
  each("troupe_job_steps_per_second", "gauge", "Mean over its running time.",
       [](const auto& j) { return j.steps_per_second(); });
  each("troupe_job_recoveries_total", "counter", "Placings after a failure.",
       [](const auto& j) { return double(j.recoveries); });
  each("troupe_job_checkpoints_total", "counter", "Checkpoints that it has written.",
       [](const auto& j) { return double(j.checkpoints); });
  each("troupe_job_start_time_seconds", "gauge", "When it began, as Unix time.",
       [&](const auto& j) {
         const auto at = l.job_starts.find(j.id);
         return at != l.job_starts.end() ? at->second : l.unix_seconds - j.started_seconds;
       });
  each("troupe_job_workers", "gauge", "Logical workers.",
       [](const auto& j) { return double(j.workers); });
  each("troupe_job_shards", "gauge", "Places that its variables are spread over.",
       [](const auto& j) { return double(j.shards); });
  each("troupe_job_participants", "gauge", "Nodes that take part.",
       [](const auto& j) { return double(j.participants.size()); });
}

void add_groups(metrics_writer& w, const std::vector<const actor_group*>& groups) {
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        const std::function<double(const actor_group&)>& value) {
    w.family(name, type, help);
    for (const auto* g : groups) w.add({{"job_name", g->job}, {"kind", g->kind}}, value(*g));
  };
  const auto both = [&](std::string_view name, std::string_view help,
                        std::uint64_t actor_group::* in, std::uint64_t actor_group::* out) {
    w.family(name, "counter", help);
    for (const auto* g : groups) {
      w.add({{"job_name", g->job}, {"kind", g->kind}, {"direction", "in"}}, g->*in);
      w.add({{"job_name", g->job}, {"kind", g->kind}, {"direction", "out"}}, g->*out);
    }
  };
  w.family("troupe_actors", "gauge", "Actors by job, kind and state.");
  for (const auto* g : groups)
    for (std::size_t s = 0; s < actor_states; ++s)
      if (g->by_state[s] > 0)
        w.add({{"job_name", g->job},
               {"kind", g->kind},
               {"state", to_string(static_cast<actor_state>(s))}},
              g->by_state[s]);
  each("troupe_actors_busy_ratio", "gauge",
       "Mean part of the last second or two that an actor was busy.", [](const auto& g) {
         return g.living() > 0 ? g.busy_sum / static_cast<double>(g.living()) : 0.0;
       });
  each("troupe_actors_busy_ratio_max", "gauge", "The same of the busiest one.",
       [](const auto& g) { return g.busy_max; });
  each("troupe_actors_queued_messages", "gauge", "Messages that wait in mailboxes.",
       [](const auto& g) { return double(g.queue); });
  each("troupe_actors_queued_items", "gauge", "Items at inputs that are not yet used.",
       [](const auto& g) { return double(g.queued_items); });
  each("troupe_actors_credits", "gauge", "Credits at outputs: free buffers.",
       [](const auto& g) { return double(g.credits); });
  each("troupe_actors_credits_limit", "gauge", "Credits at outputs, free and used.",
       [](const auto& g) { return double(g.credits_max); });
  each("troupe_actors_wait_seconds_max", "gauge",
       "Age of the oldest wait, but for those that last by design.",
       [](const auto& g) { return g.wait_seconds_max; });
  both("troupe_actors_messages_total", "Messages, by direction.", &actor_group::messages_in,
       &actor_group::messages_out);
  both("troupe_actors_bytes_total", "Bytes of messages, by direction.", &actor_group::bytes_in,
       &actor_group::bytes_out);
  both("troupe_actors_items_total", "Items at ports, by direction.", &actor_group::items_in,
       &actor_group::items_out);
  each("troupe_actors_steps_total", "counter", "Steps, or firings, of the actors.",
       [](const auto& g) { return double(g.steps); });
}

// Of a topology, whose stages a person knows by name.
void add_stages(metrics_writer& w, const std::vector<const actor_group*>& stages) {
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        const std::function<double(const actor_group&)>& value) {
    w.family(name, type, help);
    for (const auto* s : stages) w.add({{"job_name", s->job}, {"stage", s->kind}}, value(*s));
  };
  each("troupe_stage_replicas", "gauge", "Replicas of the stage that have not ended.",
       [](const auto& s) { return double(s.living()); });
  each("troupe_stage_busy_ratio", "gauge",
       "Mean part of the last second or two that a replica was busy.", [](const auto& s) {
         return s.living() > 0 ? s.busy_sum / static_cast<double>(s.living()) : 0.0;
       });
  each("troupe_stage_queued_items", "gauge", "Items before the stage.",
       [](const auto& s) { return double(s.queued_items); });
  each("troupe_stage_wait_seconds_max", "gauge", "Age of its oldest wait.",
       [](const auto& s) { return s.wait_seconds_max; });
  w.family("troupe_stage_items_total", "counter", "Items of the stage, by direction.");
  for (const auto* s : stages) {
    w.add({{"job_name", s->job}, {"stage", s->kind}, {"direction", "in"}}, s->items_in);
    w.add({{"job_name", s->job}, {"stage", s->kind}, {"direction", "out"}}, s->items_out);
  }
}

}  // namespace

std::string metrics_text(const cluster_look& l) {
  metrics_writer w;
  add_server(w, l);
  if (!l.snapshot) return w.take();
  const auto& c = *l.snapshot;
  w.family("troupe_cluster_info", "gauge", "The name of the cluster; always 1.");
  w.add({{"cluster", c.cluster}}, std::uint64_t{1});
  auto nodes = nodes_with_names(c);
  std::vector<const job_snapshot*> jobs;
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const auto& j : c.jobs)
    if (seen.emplace(j.name, j.id).second) jobs.push_back(&j);
  std::vector<const actor_group*> groups, stages;
  for (const auto& g : l.groups) groups.push_back(&g);
  for (const auto& s : l.stages) stages.push_back(&s);
  const auto left_out = cut(nodes) + cut(jobs) + cut(groups) + cut(stages);
  add_nodes(w, l, nodes);
  add_jobs(w, l, jobs);
  add_groups(w, groups);
  add_stages(w, stages);
  w.family("troupe_metrics_left_out", "gauge",
           "Nodes, jobs, stages and groups of actors that are not here: too many.");
  w.add({}, left_out);
  return w.take();
}

}  // namespace troupe
