#include "troupe/runtime/insight/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>

namespace troupe {

namespace {

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

std::string_view take_digits(std::string_view& s) noexcept {
  std::size_t n = 0;
  while (n < s.size() && is_digit(s[n])) ++n;
  auto digits = s.substr(0, n);
  s.remove_prefix(n);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

// How much a state says: what a node announced itself says more than what others concluded.
int weight(node_state s) noexcept { return static_cast<int>(s); }

using nodes_by_id = std::map<std::string, node_snapshot>;

// The view that `who` has of a node that did not answer itself.
void add_view(nodes_by_id& nodes, const node_snapshot& seen) {
  auto [at, is_new] = nodes.try_emplace(seen.id, seen);
  if (is_new) return;
  auto& known = at->second;
  if (weight(seen.state) > weight(known.state))
    known = seen;
  else if (seen.state == known.state)
    known.unreachable_seconds = std::max(known.unreachable_seconds, seen.unreachable_seconds);
}

// What others see of a node that answered itself: it lives, but a wait across that link does not
// end.
void add_doubt(node_snapshot& self, const node_snapshot& seen, const std::string& who) {
  if (seen.state == node_state::alive || self.state == node_state::left) return;
  const auto reason = fmt::format("{} sees it as {}{}{}", who, to_string(seen.state),
                                  seen.reason.empty() ? "" : ": ", seen.reason);
  self.reason = self.reason.empty() ? reason : fmt::format("{}; {}", self.reason, reason);
  if (weight(seen.state) > weight(self.state)) self.state = seen.state;
  self.unreachable_seconds = std::max(self.unreachable_seconds, seen.unreachable_seconds);
}

std::vector<node_snapshot> merge_nodes(std::span<const node_answer> answers,
                                       std::span<const silent_node> silent) {
  nodes_by_id nodes;
  std::set<std::string> answered;
  for (const auto& a : answers)
    if (answered.insert(a.self.id).second) nodes.emplace(a.self.id, a.self);
  for (const auto& a : answers)
    for (const auto& peer : a.peers) {
      if (!answered.contains(peer.id))
        add_view(nodes, peer);
      else if (peer.id != a.self.id)
        add_doubt(nodes.at(peer.id), peer, a.self.name);
    }
  for (const auto& a : answers) {
    if (a.self.kind != "node") continue;
    std::set<std::string_view> known{a.self.id};
    for (const auto& peer : a.peers) known.insert(peer.id);
    const std::set<std::string_view> reached(a.self.reaches.begin(), a.self.reaches.end());
    for (auto& [id, n] : nodes) {
      n.unknown_to += known.contains(id) ? 0 : 1;
      n.unreached_by += id == a.self.id || reached.contains(n.name) ? 0 : 1;
    }
  }
  std::vector<node_snapshot> list;
  for (auto& [id, n] : nodes) list.push_back(std::move(n));
  for (auto& n : list)
    for (const auto& s : silent)
      if (s.name == n.name && n.state == node_state::alive && !answered.contains(n.id))
        n.state = node_state::unreachable, n.reason = s.reason;
  return list;
}

// Whose word on a job counts most: its client's, then who saw an end, then who saw most steps.
auto authority(const job_snapshot& j, const std::string& who) {
  return std::tuple(j.client == who, is_over(j.state), j.step, j.name, who);
}

std::vector<job_snapshot> merge_jobs(std::span<const node_answer> answers) {
  struct view {
    const job_snapshot* job;
    const std::string* who;
  };
  std::map<std::string, view> best;
  std::map<std::string, std::set<std::string>> participants;
  std::map<std::string, std::string> causes;
  for (const auto& a : answers)
    for (const auto& j : a.jobs) {
      participants[j.id].insert(j.participants.begin(), j.participants.end());
      if (auto& cause = causes[j.id]; !j.cause.empty() && (cause.empty() || j.cause < cause))
        cause = j.cause;
      auto [at, is_new] = best.try_emplace(j.id, view{&j, &a.self.name});
      if (!is_new && authority(*at->second.job, *at->second.who) < authority(j, a.self.name))
        at->second = {&j, &a.self.name};
    }
  std::vector<job_snapshot> list;
  for (const auto& [id, v] : best) {
    auto& j = list.emplace_back(*v.job);
    j.participants.assign(participants[id].begin(), participants[id].end());
    std::sort(j.participants.begin(), j.participants.end(), natural_less);
    if (j.state == job_state::failed && j.cause.empty()) j.cause = causes[id];
  }
  return list;
}

void add_range(std::vector<event_range>& ranges, const node_answer& a,
               std::span<const event> events, bool is_of_lines) {
  if (events.empty()) return;
  event_range r{a.self.name, a.self.id, events.front().number, events.front().number, is_of_lines};
  for (const auto& e : events) {
    r.first = std::min(r.first, e.number);
    r.last = std::max(r.last, e.number);
  }
  ranges.push_back(std::move(r));
}

void sort_by_name(auto& list) {
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    if (natural_less(a.name, b.name)) return true;
    return !natural_less(b.name, a.name) && natural_less(a.id, b.id);
  });
}

}  // namespace

std::string_view to_string(node_state s) noexcept {
  switch (s) {
    case node_state::alive: return "alive";
    case node_state::unreachable: return "unreachable";
    case node_state::dead: return "dead";
    case node_state::left: return "left";
  }
  return {};
}

std::string_view to_string(actor_state s) noexcept {
  switch (s) {
    case actor_state::idle: return "idle";
    case actor_state::running: return "running";
    case actor_state::waiting_for_input: return "waiting for input";
    case actor_state::waiting_for_credit: return "waiting for credit";
    case actor_state::ended: return "ended";
    case actor_state::waiting_for_thread: return "waiting for thread";
    case actor_state::waiting_for_resource: return "waiting for resource";
  }
  return {};
}

std::string_view to_string(job_state s) noexcept {
  switch (s) {
    case job_state::running: return "running";
    case job_state::done: return "done";
    case job_state::failed: return "failed";
    case job_state::recovering: return "recovering";
    case job_state::stopped: return "stopped";
    case job_state::paused: return "paused";
    case job_state::suspended: return "suspended";
  }
  return {};
}

double job_snapshot::steps_per_second() const noexcept {
  const double seconds = started_seconds - ended_seconds;
  return step > 0 && seconds > 0 ? static_cast<double>(step) / seconds : 0;
}

std::string_view job_snapshot::bare_cause() const noexcept {
  constexpr std::string_view before = "job ", after = " failed: ";
  std::string_view rest = cause;
  for (const auto part : {before, std::string_view(name), after}) {
    if (!rest.starts_with(part)) return cause;
    rest.remove_prefix(part.size());
  }
  return rest;
}

bool belongs(const actor_snapshot& a, const job_snapshot& j) noexcept {
  return a.job_id.empty() || j.id.empty() ? a.job == j.name && !a.job.empty() : a.job_id == j.id;
}

bool natural_less(std::string_view a, std::string_view b) noexcept {
  const auto whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto x = take_digits(a), y = take_digits(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "n01" and "n1" differ
}

cluster_snapshot merge(std::span<const node_answer> answers, std::vector<silent_node> silent) {
  cluster_snapshot c;
  c.nodes = merge_nodes(answers, silent);
  c.jobs = merge_jobs(answers);
  std::set<std::string> seen;
  for (const auto& a : answers) {
    if (c.cluster.empty()) c.cluster = a.cluster;
    for (const auto& actor : a.actors)
      if (seen.insert(actor.id).second) c.actors.push_back(actor);
    c.events.insert(c.events.end(), a.events.begin(), a.events.end());
    c.lines.insert(c.lines.end(), a.lines.begin(), a.lines.end());
    add_range(c.ranges, a, a.events, false);
    add_range(c.ranges, a, a.lines, true);
    c.actors_left_out += a.actors_left_out;
    if (!a.said.empty()) c.said.push_back({a.self.name, a.said});
  }
  sort_by_name(c.nodes);
  sort_by_name(c.jobs);
  std::sort(c.actors.begin(), c.actors.end(),
            [](const auto& a, const auto& b) { return natural_less(a.id, b.id); });
  std::ranges::sort(c.ranges, {}, [](const event_range& r) {
    return std::tuple(std::string_view(r.node), std::string_view(r.node_id), r.is_of_lines);
  });
  c.events = each_happening_once(std::move(c.events));
  std::stable_sort(c.lines.begin(), c.lines.end(), [](const event& a, const event& b) {
    return std::tuple(-a.since_seconds, a.node, a.number) <
           std::tuple(-b.since_seconds, b.node, b.number);
  });
  std::sort(silent.begin(), silent.end(),
            [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
  c.silent = std::move(silent);
  return c;
}

}  // namespace troupe
