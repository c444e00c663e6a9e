#include "troupe/runtime/insight/slow.hpp"

#include "troupe/runtime/insight/wait_walk.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

constexpr double full_least = 0.85;        // a thread that bounds the rate
constexpr double waited_least = 0.5;       // of the looks, for the program, the outside or a link
constexpr double on_the_way_least = 0.05;  // seconds: answers of one look are closer
constexpr double alone_least = 0.9;        // of a thread's time: it has the thread for itself
constexpr double told_least = 0.2;         // starved or blocked by what bounds the rate
constexpr std::size_t told_max = 3;        // of those, by name
constexpr std::size_t shares_max = 12;     // in the text; JSON has all

std::string percent_of(double x) { return fmt::format("{:.0f} %", x * 100); }

using thread_name = std::pair<std::string, std::string>;  // node, thread

struct seen_actor {
  std::string base, node, kind;
  thread_name thread;
  bool is_source = false;
  std::size_t looks = 0, busy = 0, starved = 0, blocked = 0;
  std::size_t without = 0;  // neither busy nor blocked, and its thread runs nothing else
  double busy_share() const { return looks == 0 ? 0 : double(busy) / double(looks); }
};

struct group {
  std::string name, kind;
  std::set<std::string> nodes;
  std::vector<const seen_actor*> replicas;
  bool is_source = false;
  double busy = 0, starved = 0, blocked = 0, without = 0;  // mean of its replicas
};

struct root_count {
  std::size_t program = 0, link = 0;
  std::map<std::pair<std::string, std::string>, std::size_t> running;  // base name, node
};

struct evidence {
  std::map<std::string, seen_actor> actors;       // by id; of the job
  std::map<thread_name, std::size_t> busy_looks;  // of all jobs
  std::vector<group> groups;                      // busiest first
  root_count roots;
  double seconds = 0, steps = 0;
  std::size_t looks = 0;
  std::map<std::string, double> free_factor;  // by node: how often the used cores fit into all

  double utilization(const thread_name& t) const {
    const auto at = busy_looks.find(t);
    return at == busy_looks.end() ? 0 : double(at->second) / double(looks);
  }
};

const job_snapshot* job_of(const cluster_snapshot& c, std::string_view id) {
  const auto at = std::ranges::find(c.jobs, id, &job_snapshot::id);
  return at == c.jobs.end() ? nullptr : &*at;
}

void count_states(evidence& e, const cluster_snapshot& c, const job_snapshot& j) {
  std::set<thread_name> busy;
  for (const auto& a : c.actors) {
    if (a.state == actor_state::running && !a.thread.empty()) busy.emplace(a.node, a.thread);
    if (!belongs(a, j) || a.kind == "job") continue;
    auto& s = e.actors[a.id];
    if (s.looks++ == 0) {
      s.base = name_of_replicas(a), s.node = a.node, s.kind = a.kind;
      s.thread = {a.node, a.thread};
      s.is_source = std::ranges::none_of(a.ports, [](const auto& p) { return p.is_input(); });
    }
    s.busy += a.state == actor_state::running;
    s.starved += a.state == actor_state::waiting_for_input;
    s.without += a.state == actor_state::waiting_for_input || a.state == actor_state::idle;
    s.blocked +=
        a.state == actor_state::waiting_for_credit || a.state == actor_state::waiting_for_resource;
  }
  for (const auto& t : busy) ++e.busy_looks[t];
}

void count_root(evidence& e, const cluster_snapshot& c, const job_snapshot& j) {
  const node_index nodes(c);
  const wait_walk walk(c, j, nodes);
  if (walk.roots().empty()) return;
  const auto& r = walk.roots().front();
  if (r.kind == root_kind::program_feed || r.kind == root_kind::program_fetch) ++e.roots.program;
  // What was sent between the answers of two nodes looks as if it were on its way.
  if (r.kind == root_kind::on_the_way && r.since_seconds >= on_the_way_least) ++e.roots.link;
  if (r.kind == root_kind::actor_running && walk.actor(r) != nullptr)
    ++e.roots.running[{std::string(name_of_replicas(*walk.actor(r))), std::string(r.node)}];
}

void group_actors(evidence& e) {
  std::map<std::tuple<std::string, std::string, std::string>, group> by_name;
  for (const auto& [id, a] : e.actors) {
    // Replicas of a stage may be on several nodes.
    auto& g = by_name[{a.base, a.kind, a.kind == "stage" ? "" : a.node}];
    g.name = a.base, g.kind = a.kind;
    g.nodes.insert(a.node);
    g.is_source = g.is_source || a.is_source;
    g.replicas.push_back(&a);
  }
  for (auto& [key, g] : by_name) {
    for (const auto* a : g.replicas) {
      const double n = double(a->looks) * double(g.replicas.size());
      g.busy += double(a->busy) / n;
      g.starved += double(a->starved) / n;
      g.blocked += double(a->blocked) / n;
      g.without += double(a->without) / n;
    }
    e.groups.push_back(std::move(g));
  }
  std::ranges::sort(e.groups, [](const auto& x, const auto& y) {
    return std::tuple(-x.busy, x.name, x.nodes) < std::tuple(-y.busy, y.name, y.nodes);
  });
}

double fetched(const cluster_snapshot& then, const cluster_snapshot& now, const job_snapshot& j) {
  double most = 0;
  for (const auto& a : now.actors) {
    if (a.kind != "fetch" || !belongs(a, j)) continue;
    const auto before = std::ranges::find(then.actors, a.id, &actor_snapshot::id);
    if (before != then.actors.end() && before->steps < a.steps)
      most = std::max(most, double(a.steps - before->steps));
  }
  return most;
}

// Processes of one host share its cores.
void count_cores(evidence& e, const cluster_snapshot& then, const cluster_snapshot& now) {
  if (e.seconds <= 0) return;
  const auto host_of = [](const node_snapshot& n) {
    return n.host.empty() ? n.address.substr(0, n.address.rfind(':')) : n.host;
  };
  std::map<std::string, double> used;
  for (const auto& n : now.nodes) {
    const auto before = std::ranges::find(then.nodes, n.id, &node_snapshot::id);
    if (before == then.nodes.end() || n.cores == 0) continue;
    used[host_of(n)] += std::max(0.0, n.cpu_seconds - before->cpu_seconds) / e.seconds;
  }
  for (const auto& n : now.nodes)
    if (const auto at = used.find(host_of(n)); at != used.end() && at->second > 0 && n.cores > 0)
      e.free_factor[n.name] = double(n.cores) / at->second;
}

evidence gather(std::span<const cluster_snapshot> looks, const std::string& id) {
  evidence e;
  const job_snapshot *first = nullptr, *last = nullptr;
  const cluster_snapshot *first_look = nullptr, *last_look = nullptr;
  for (const auto& c : looks) {
    const auto* j = job_of(c, id);
    if (j == nullptr || j->state != job_state::running) continue;
    if (first == nullptr) first = j, first_look = &c;
    last = j, last_look = &c;
    ++e.looks;
    count_states(e, c, *j);
    count_root(e, c, *j);
  }
  if (first != nullptr && first->epoch == last->epoch) {
    e.seconds = last->started_seconds - first->started_seconds;
    e.steps = double(last->step) - double(std::min(first->step, last->step));
    // A graph that is stepped counts at its fetches.
    if (e.steps == 0) e.steps = fetched(*first_look, *last_look, *last);
    count_cores(e, *first_look, *last_look);
  }
  group_actors(e);
  return e;
}

// By how much the rate may grow until `t`, or any other thread but those, is full.
double room_of_others(const evidence& e, const std::set<thread_name>& but) {
  double fullest = 0;
  for (const auto& [t, n] : e.busy_looks)
    if (!but.contains(t)) fullest = std::max(fullest, e.utilization(t));
  return fullest > 0 ? 1 / fullest : std::numeric_limits<double>::infinity();
}
double room_of_cores(const evidence& e, const group& g) {
  auto room = std::numeric_limits<double>::infinity();
  for (const auto& n : g.nodes)
    if (const auto at = e.free_factor.find(n); at != e.free_factor.end())
      room = std::min(room, at->second);
  return room;
}

std::string names_of(std::vector<std::pair<double, std::string>> found) {
  std::ranges::sort(found, [](const auto& x, const auto& y) {
    return std::tuple(-x.first, x.second) < std::tuple(-y.first, y.second);
  });
  std::string out;
  for (std::size_t i = 0; i < std::min(found.size(), told_max); ++i)
    out += fmt::format("{}{} ({})", i > 0 ? ", " : "", found[i].second, percent_of(found[i].first));
  if (found.size() > told_max) out += fmt::format(" and {} more", found.size() - told_max);
  return out;
}

// Whom it starves and blocks: all others that wait for much of the time.
std::string effect_of(const evidence& e, const group& g) {
  std::vector<std::pair<double, std::string>> starved, blocked;
  for (const auto& other : e.groups) {
    if (&other == &g || other.kind != "stage") continue;
    if (other.starved >= told_least && other.starved >= other.blocked)
      starved.emplace_back(other.starved, other.name);
    else if (other.blocked >= told_least)
      blocked.emplace_back(other.blocked, other.name);
  }
  std::string out;
  if (!starved.empty()) out += " it starves " + names_of(std::move(starved));
  if (!blocked.empty())
    out += (out.empty() ? " it blocks " : " and blocks ") + names_of(std::move(blocked));
  return out.empty() ? out : ";" + out;
}

std::string gain_text(const slow_answer& a) {
  if (a.mend.empty()) return {};
  return a.gain >= 0.01 ? fmt::format(". {}: +{:.0f} %", a.mend, a.gain * 100)
                        : fmt::format(". {} would not help: something else is as full", a.mend);
}

void judge_thread(const evidence& e, const thread_name& full, slow_answer& a) {
  const auto used = e.utilization(full);
  const group* top = nullptr;
  double most = 0;
  for (const auto& g : e.groups)
    for (const auto* r : g.replicas)
      if (r->thread == full && r->busy_share() > most) most = r->busy_share(), top = &g;
  a.kind = bound_kind::thread;
  a.share = used;
  a.node = full.first;
  if (top == nullptr) {
    a.root = fmt::format("the thread {} of node {} bounds it: busy {}, with other jobs",
                         full.second, full.first, percent_of(used));
    return;
  }
  a.actor = top->name;
  const auto n = top->replicas.size();
  const bool is_alone = most >= alone_least * used;
  if (top->kind == "stage") {
    // Its replicas fill the threads that they are on; what else is there stays.
    std::set<thread_name> own;
    double beside = 0;
    std::map<thread_name, double> of_own;
    for (const auto* r : top->replicas) own.insert(r->thread), of_own[r->thread] += r->busy_share();
    for (const auto& [t, busy] : of_own) beside = std::max(beside, e.utilization(t) - busy);
    auto room = std::min(used * room_of_others(e, own), room_of_cores(e, *top));
    if (beside > 0.05) room = std::min(room, used / beside);
    const auto own_room = top->is_source ? 2.0 : double(n + 1) / double(n);
    a.mend = top->is_source
                 ? fmt::format("Twice as fast a source")
                 : fmt::format("{} replicas instead of {}, on a thread of its own", n + 1, n);
    a.gain = std::min(room, own_room) - 1;
  } else {
    a.mend = "Half the time in it";
    a.gain = std::min(used / (used - most / 2), used * room_of_others(e, {full})) - 1;
  }
  a.gain = std::max(0.0, a.gain);
  a.root = is_alone
               ? fmt::format("{} bounds it: busy {}{}{}", top->name, percent_of(most),
                             effect_of(e, *top), gain_text(a))
               : fmt::format("the thread {} of node {} bounds it: busy {}, {} of that with {}{}",
                             full.second, full.first, percent_of(used), percent_of(most / used),
                             top->name, gain_text(a));
}

void judge_step(const evidence& e, slow_answer& a) {
  const auto most = std::ranges::max_element(
      e.roots.running, [](const auto& x, const auto& y) { return x.second < y.second; });
  if (most == e.roots.running.end()) {
    a.root = "nothing that was seen bounds it";
    return;
  }
  a.kind = bound_kind::step;
  a.actor = most->first.first, a.node = most->first.second;
  a.share = double(most->second) / double(e.looks);
  a.mend = "Half the time in it";
  a.gain = 1 / (1 - a.share / 2) - 1;
  a.root = fmt::format("no thread is busy all the time: {} on node {} is waited for {} of it{}",
                       a.actor, a.node, percent_of(a.share), gain_text(a));
}

void judge(const evidence& e, slow_answer& a) {
  std::optional<thread_name> fullest;
  for (const auto& [id, s] : e.actors)
    if (!s.thread.second.empty() && (!fullest || e.utilization(s.thread) > e.utilization(*fullest)))
      fullest = s.thread;
  if (fullest && e.utilization(*fullest) >= full_least) return judge_thread(e, *fullest, a);
  const auto of_looks = [&](std::size_t n) { return double(n) / double(e.looks); };
  if (of_looks(e.roots.program) >= waited_least) {
    a.kind = bound_kind::program;
    a.share = of_looks(e.roots.program);
    a.mend = "A program that never lets it wait";
    a.gain = 1 / std::max(1 - a.share, 0.02) - 1;
    a.root = fmt::format("the program bounds it: what it feeds or fetches is waited for {}{}",
                         percent_of(a.share), gain_text(a));
    return;
  }
  if (of_looks(e.roots.link) >= waited_least) {
    a.kind = bound_kind::link;
    a.share = of_looks(e.roots.link);
    a.root = fmt::format("a link bounds it: what is on its way is waited for {} of the time",
                         percent_of(a.share));
    return;
  }
  // All sources: one beside others (a timer) may have nothing for long, and bound nothing.
  const group* source = nullptr;
  bool is_outside = true;
  for (const auto& g : e.groups)
    if (g.kind == "stage" && g.is_source) {
      source = &g;
      is_outside = is_outside && g.without >= waited_least;
    }
  if (source != nullptr && is_outside) {
    a.kind = bound_kind::outside;
    a.actor = source->name;
    a.share = source->without;
    a.root = fmt::format("what comes from outside bounds it: {} has nothing {} of the time",
                         source->name, percent_of(a.share));
    return;
  }
  judge_step(e, a);
}

}  // namespace

std::string_view name_of_replicas(const actor_snapshot& a) noexcept {
  const std::string_view name = a.name;
  const auto slash = name.rfind('/');
  if (a.kind != "stage" || slash == std::string_view::npos || slash + 1 == name.size()) return name;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(slash) + 1, name.end(), is_digit)
             ? name.substr(0, slash)
             : name;
}

std::string_view to_string(bound_kind k) noexcept {
  switch (k) {
    case bound_kind::not_known: return "not known";
    case bound_kind::thread: return "thread";
    case bound_kind::program: return "program";
    case bound_kind::outside: return "outside";
    case bound_kind::link: return "link";
    case bound_kind::step: return "step";
  }
  return {};
}

result<slow_answer> explain_slow(std::span<const cluster_snapshot> looks, std::string_view job) {
  if (looks.empty()) return error(error_code::usage, "there are no looks");
  std::vector<const job_snapshot*> found;
  std::string names;
  for (const auto& j : looks.back().jobs) {
    if (!is_over(j.state)) names += (names.empty() ? "" : ", ") + j.name;
    if (job.empty() ? !is_over(j.state) : j.name == job || j.id == job) found.push_back(&j);
  }
  std::ranges::stable_sort(found, {}, [](const auto* j) { return is_over(j->state); });
  if (found.empty())
    return error(error_code::not_found,
                 job.empty()
                     ? fmt::format("no job runs in cluster {}", looks.back().cluster)
                     : fmt::format("no job '{}' in cluster {}; {}", job, looks.back().cluster,
                                   names.empty() ? "none runs" : "there are: " + names));
  if (job.empty() && found.size() > 1)
    return error(error_code::usage, fmt::format("several jobs run: say which of {}", names));
  const auto& j = *found.front();
  slow_answer a;
  a.job = j.name;
  const auto e = gather(looks, j.id);
  const auto is_of_another_epoch = [&](const cluster_snapshot& c) {
    const auto* seen = job_of(c, j.id);
    return seen != nullptr && seen->epoch != j.epoch;
  };
  if (std::ranges::any_of(looks, is_of_another_epoch)) {
    a.root = fmt::format("Job {}: it was placed anew while it was looked at: ask again", j.name);
    return a;
  }
  if (e.looks >= looks_least && e.steps == 0) {
    a.root = fmt::format(
        "Job {}: no step of it has ended while it was looked at: what it waits for says troupe why",
        j.name);
    return a;
  }
  if (e.looks < looks_least || e.seconds <= 0) {
    a.root = fmt::format("Job {}: it is {}, and was seen running {} time{} only", j.name,
                         to_string(j.state), e.looks, e.looks == 1 ? "" : "s");
    return a;
  }
  for (const auto& g : e.groups)
    a.shares.push_back({g.name, g.nodes.size() == 1 ? *g.nodes.begin() : std::string(),
                        static_cast<std::uint32_t>(g.replicas.size()), g.busy, g.starved, g.blocked,
                        std::max(0.0, 1 - g.busy - g.starved - g.blocked)});
  a.rate = e.steps / e.seconds;
  const bool has_stages =
      std::ranges::any_of(e.groups, [](const auto& g) { return g.kind == "stage"; });
  const auto heading = a.rate > 0 ? fmt::format("Job {}, {:.{}f} {}/s: ", j.name, a.rate,
                                                a.rate < 10 ? 2 : 0, has_stages ? "items" : "steps")
                                  : fmt::format("Job {}: ", j.name);
  judge(e, a);
  a.root = heading + a.root;
  return a;
}

std::string slow_answer::text() const {
  auto out = root + ".";
  if (shares.empty()) return out;
  std::size_t widest = 5;
  for (std::size_t i = 0; i < std::min(shares.size(), shares_max); ++i)
    widest = std::max(widest, shares[i].name.size() + (shares[i].replicas > 1 ? 5 : 0));
  out += fmt::format("\n  {:<{}}  {:>6} {:>8} {:>8} {:>6}", "ACTOR", widest, "BUSY", "STARVED",
                     "BLOCKED", "READY");
  for (std::size_t i = 0; i < std::min(shares.size(), shares_max); ++i) {
    const auto& s = shares[i];
    const auto name = s.replicas > 1 ? fmt::format("{} x {}", s.name, s.replicas) : s.name;
    out += fmt::format("\n  {:<{}}  {:>6} {:>8} {:>8} {:>6}", name, widest, percent_of(s.busy),
                       percent_of(s.starved), percent_of(s.blocked), percent_of(s.ready));
  }
  if (shares.size() > shares_max)
    out += fmt::format("\n  ({} more, which --json lists)", shares.size() - shares_max);
  return out;
}

std::string slow_answer::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& s : shares)
    list.push_back({{"name", s.name},
                    {"node", s.node},
                    {"replicas", s.replicas},
                    {"busy_ratio", three_decimals(s.busy)},
                    {"starved_ratio", three_decimals(s.starved)},
                    {"blocked_ratio", three_decimals(s.blocked)},
                    {"ready_ratio", three_decimals(s.ready)}});
  const nlohmann::ordered_json out{{"kind", to_string(kind)},
                                   {"job", job},
                                   {"actor", actor},
                                   {"node", node},
                                   {"share_ratio", three_decimals(share)},
                                   {"rate_per_second", three_decimals(rate)},
                                   {"mend", mend},
                                   {"gain_ratio", three_decimals(gain)},
                                   {"root", root},
                                   {"shares", list}};
  return json_line(out);
}

}  // namespace troupe
