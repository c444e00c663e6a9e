#include "tools/troupe-tool/serve_look.hpp"

#include "troupe/runtime/insight/slow.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <string_view>

namespace troupe {

namespace {

// Ended actors are listed for a minute.
constexpr std::int64_t kept_ns = 300'000'000'000;

std::array<std::uint64_t, 7> counters_of(const actor_snapshot& a) {
  std::array<std::uint64_t, 7> n{a.messages_in, a.messages_out, a.bytes_in, a.bytes_out, 0, 0,
                                 a.steps};
  for (const auto& p : a.ports) n[p.is_input() ? 4 : 5] += p.items;
  return n;
}

std::array<std::uint64_t*, 7> totals_of(actor_group& g) {
  return {&g.messages_in, &g.messages_out, &g.bytes_in, &g.bytes_out,
          &g.items_in,    &g.items_out,    &g.steps};
}

void add_present(actor_group& g, const actor_snapshot& a) {
  ++g.by_state[static_cast<std::size_t>(a.state)];
  if (a.state == actor_state::ended) return;
  g.busy_sum += a.busy_ratio;
  g.busy_max = std::max(g.busy_max, a.busy_ratio);
  g.queue += a.queue;
  for (const auto& p : a.ports) {
    if (p.is_input())
      g.queued_items += p.queued;
    else
      g.credits += p.credits_max > 0 ? p.credits : 0, g.credits_max += p.credits_max;
    if (a.waits_at(p)) g.wait_seconds_max = std::max(g.wait_seconds_max, p.since_seconds);
  }
}

// The totals of a group, and nothing else.
actor_group without_present(actor_group g) {
  actor_group out;
  out.job = std::move(g.job), out.kind = std::move(g.kind);
  const auto from = totals_of(g), to = totals_of(out);
  for (std::size_t i = 0; i < from.size(); ++i) *to[i] = *from[i];
  return out;
}

}  // namespace

std::uint64_t actor_group::living() const noexcept {
  return std::accumulate(by_state.begin(), by_state.end(), std::uint64_t{0}) -
         by_state[static_cast<std::size_t>(actor_state::ended)];
}

void look_totals::add(cluster_look& look) {
  const auto now = look.ended_ns;
  for (auto* all : {&groups_, &stages_})
    for (auto& [k, g] : *all) g.first = without_present(std::move(g.first));
  for (const auto& a : look.snapshot->actors) {
    auto& before = actors_[a.id];
    const auto is = counters_of(a);
    // A stage that has fewer than before has given items back, which it takes again; the id of
    // another actor that has fewer belongs to a new one.
    const bool is_same_stage = a.kind == "stage" && a.job_id == before.job_id;
    auto more = is, most = is;
    for (std::size_t i = 0; i < is.size(); ++i)
      if (is[i] >= before.was[i])
        more[i] -= before.was[i];
      else if (is_same_stage)
        more[i] = 0, most[i] = before.was[i];
    before = {most, now, a.job_id, a.node};
    const auto add_to = [&](auto& all, std::string_view name) {
      auto& [g, seen] = all[{a.job, std::string(name)}];
      g.job = a.job, g.kind = name, seen = now;
      add_present(g, a);
      const auto to = totals_of(g);
      for (std::size_t i = 0; i < more.size(); ++i) *to[i] += more[i];
    };
    add_to(groups_, a.kind);
    if (a.kind == "stage") add_to(stages_, name_of_replicas(a));
  }
  // What a node that is silent has will be listed again once it answers.
  std::set<std::string_view> listed, answered;
  for (const auto& n : look.snapshot->nodes) {
    listed.insert(n.name);
    if (n.cores > 0) answered.insert(n.name);
  }
  for (auto& [id, c] : actors_)
    if (listed.contains(c.node) && !answered.contains(c.node)) c.seen_ns = now;
  std::erase_if(actors_, [&](const auto& a) { return now - a.second.seen_ns > kept_ns; });
  for (auto* all : {&groups_, &stages_})
    std::erase_if(*all, [&](const auto& g) { return now - g.second.second > kept_ns; });
  for (const auto& [k, g] : groups_)
    if (g.second == now) look.groups.push_back(g.first);
  for (const auto& [k, g] : stages_)
    if (g.second == now) look.stages.push_back(g.first);
  // The first word counts: a start that moves with every look by what the answer took is none.
  std::map<std::string, double> starts;
  for (const auto& j : look.snapshot->jobs) {
    const auto known = starts_.find(j.id);
    starts[j.id] = known != starts_.end() ? known->second : look.unix_seconds - j.started_seconds;
  }
  starts_ = starts;
  look.job_starts = std::move(starts);
  // A silent node says neither, and is what it was.
  std::map<std::string, std::pair<std::string, std::string>> infos;
  for (const auto& n : look.snapshot->nodes) {
    const auto known = infos_.find(n.id);
    if (n.cores > 0 || !n.host.empty())
      infos[n.id] = {n.host, n.version};
    else if (known != infos_.end())
      infos[n.id] = known->second;
  }
  infos_ = infos;
  look.node_infos = std::move(infos);
}

}  // namespace troupe
