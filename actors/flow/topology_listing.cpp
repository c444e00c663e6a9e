#include "troupe/actors/flow/topology_listing.hpp"

#include "troupe/runtime/flow/lender.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <utility>

namespace troupe {
namespace {

std::uint64_t relaxed(const std::atomic<std::uint64_t>& a) {
  return a.load(std::memory_order_relaxed);
}

// Of this process, so that tools tell two of one name apart.
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> numbers{0};
  return ++numbers;
}

}  // namespace

topology_listing::topology_listing(std::shared_ptr<topology_view> view, std::string name,
                                   std::uint64_t id, std::function<std::int64_t()> now_ns,
                                   std::vector<std::string> nodes,
                                   std::shared_ptr<topology_wishes> wishes)
    : view_(std::move(view)),
      name_(name.empty() ? "topology" : std::move(name)),
      now_ns_(std::move(now_ns)),
      wishes_(std::move(wishes)),
      replicas_(*view_->graph),
      began_ns_(now_ns_()),
      nodes_(std::move(nodes)) {
  const auto number = next_number();
  prefix_ = number == 1 ? name_ : fmt::format("{}#{}", name_, number);
  id_ = fmt::format("{:016x}", id);
  const auto& g = *view_->graph;
  for (const auto& s : g.stages()) {
    const bool may_idle = s.stands_by > 0 || (s.control != nullptr && s.replica > 0);
    stage_place p{s.name, s.is_source, s.is_end(), s.is_elsewhere, may_idle, {}, {}};
    for (const auto e : s.in) p.in.push_back(e);
    for (const auto& port : s.out)
      for (const auto e : port) p.out.push_back(e);
    stages_.push_back(std::move(p));
  }
  for (const auto& e : g.edges()) edges_.push_back({e.from, e.to, e.items_max, e.bytes_max});
}

void topology_listing::end(bool has_failed, const std::string& cause) {
  has_failed_ = has_failed;
  if (has_failed) cause_ = cause;
  ended_ns_.store(now_ns_(), std::memory_order_release);
}

job_snapshot topology_listing::job(const std::string& node) const {
  job_snapshot j;
  j.id = id_;
  j.name = name_;
  // The program has all ends but those on nodes, and counts of all.
  const bool is_program =
      std::ranges::any_of(stages_, [](const auto& s) { return s.is_source && !s.is_elsewhere; });
  j.client = is_program ? node : "";
  j.participants = {node};
  const auto now = now_ns_(), ended = ended_ns_.load(std::memory_order_acquire);
  j.started_seconds = double(now - began_ns_) * 1e-9;
  if (ended != 0) {
    j.ended_seconds = std::max(0.001, double(now - ended) * 1e-9);
    j.state = has_failed_ ? job_state::failed : job_state::done;
    j.cause = cause_;
  } else if (view_->is_paused.load()) {
    j.state = job_state::paused;
  }
  // Its steps are the items that have arrived.
  for (std::size_t i = 0; i < stages_.size(); ++i)
    if (stages_[i].is_end) j.step += relaxed(view_->stages[i]->items_in);
  return j;
}

std::string topology_listing::obey(std::string_view what, std::string_view rest) const {
  if (wishes_ == nullptr) return {};
  if (ended_ns_.load(std::memory_order_acquire) != 0) return "refused: the topology is over";
  if (what == "pause" || what == "resume") {
    wishes_->pause.store(what == "pause");
    return what == "pause" ? "pauses" : "resumes";
  }
  if (what == "drain" || what == "stop" || what == "finish") {
    wishes_->stop.fetch_or(1);
    return "drains";
  }
  if (what != "replicas" && what != "move") return {};
  const auto tab = rest.find('\t');
  const auto stage = rest.substr(0, tab);
  if (what == "move") {
    const auto node = tab == std::string_view::npos ? std::string_view() : rest.substr(tab + 1);
    if (const auto moved = replicas_.move(stage, node, nodes_); !moved)
      return fmt::format("refused: {}", moved.error().message());
    return "moved";
  }
  std::uint32_t count = 0;
  if (tab != std::string_view::npos)
    std::from_chars(rest.data() + tab + 1, rest.data() + rest.size(), count);
  if (const auto set = replicas_.set(stage, count); !set)
    return fmt::format("refused: {}", set.error().message());
  return fmt::format("{} of {} replicas", count, replicas_.most(stage));
}

std::vector<actor_snapshot> topology_listing::actors(const std::string& node) const {
  std::vector<actor_snapshot> all;
  const bool has_ended = ended_ns_.load(std::memory_order_acquire) != 0;
  const auto ticks = static_cast<std::uint32_t>(now_ns_() / coarse_tick_ns);
  const auto age = [&](std::uint32_t then) {
    return ticks > then ? double(ticks - then) * double(coarse_tick_ns) * 1e-9 : 0.0;
  };
  const auto node_of = [&](std::uint32_t stage) {
    return stages_[stage].is_elsewhere && stage < nodes_.size() ? nodes_[stage] : node;
  };
  // Who stands by is seen when it has taken over, and a replica when it has worked.
  const auto is_idle = [&](std::uint32_t stage) {
    return stages_[stage].is_idle_at_first && relaxed(view_->stages[stage]->items_in) == 0;
  };
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& s = stages_[i];
    if (s.is_elsewhere || is_idle(static_cast<std::uint32_t>(i))) continue;
    const auto& c = *view_->stages[i];
    actor_snapshot a;
    a.id = fmt::format("{}.{}.{}", node, prefix_, i);
    a.kind = "stage";
    a.name = s.name;
    a.node = node;
    a.job = name_;
    a.job_id = id_;
    a.messages_in = a.steps = relaxed(c.items_in);
    a.messages_out = relaxed(c.items_out);
    if (s.is_source) a.steps = a.messages_out;
    a.bytes_in = relaxed(c.bytes_in);
    a.bytes_out = relaxed(c.bytes_out);
    a.busy_ratio = has_ended ? 0 : double(view_->busy[i].load(std::memory_order_relaxed));
    const auto place = view_->places[i].load(std::memory_order_relaxed);
    a.thread = fmt::format("{}:{}", prefix_, place);
    const auto& pulse = *view_->pulses[place];
    const bool runs = pulse.running.load(std::memory_order_relaxed) == i;
    const auto last = c.last_ticks.load(std::memory_order_relaxed);
    a.state = has_ended || c.is_over.load(std::memory_order_relaxed) ? actor_state::ended
              : runs                                                 ? actor_state::running
              : c.is_blocked.load(std::memory_order_relaxed) ? actor_state::waiting_for_credit
                                                             : actor_state::waiting_for_input;
    a.since_seconds = last == 0
                          ? age(static_cast<std::uint32_t>(began_ns_ / coarse_tick_ns))
                          : age(runs ? pulse.since_ticks.load(std::memory_order_relaxed) : last);
    const auto waiting = [&](std::uint32_t e) {
      const auto& m = *view_->edges[e];
      const auto put = relaxed(m.put_items), taken = relaxed(m.taken_items);
      // While items are dealt again, fewer may have been taken than none.
      return static_cast<std::int64_t>(put - taken) > 0 ? put - taken : 0;
    };
    // A meter leaves out what is taken at once, which happens inside of a process only: there the
    // counters of one of the ends have all, unless both have several edges.
    const auto has_only = [&](std::uint32_t e) { return stages_[edges_[e].to].in.size() == 1; };
    const auto gives_all = [&](std::uint32_t e) {
      return std::ranges::count_if(view_->graph->stages()[edges_[e].from].out,
                                   [](const auto& port) { return !port.empty(); }) == 1;
    };
    const auto taken = [&](std::uint32_t e) {
      const auto& from = edges_[e].from;
      if (has_only(e)) return relaxed(c.items_in);
      if (stages_[from].is_elsewhere || !gives_all(e)) return relaxed(view_->edges[e]->taken_items);
      const auto made = relaxed(view_->stages[from]->items_out);
      return made - std::min(made, waiting(e));
    };
    const auto put = [&](std::uint32_t e) {
      const auto& to = edges_[e].to;
      if (gives_all(e)) return relaxed(c.items_out);
      if (stages_[to].is_elsewhere || !has_only(e)) return relaxed(view_->edges[e]->put_items);
      return relaxed(view_->stages[to]->items_in) + waiting(e);
    };
    for (std::size_t p = 0; p < s.in.size(); ++p) {
      if (is_idle(edges_[s.in[p]].from)) continue;
      port_snapshot port;
      port.name = fmt::format("in{}", p);
      port.peer = stages_[edges_[s.in[p]].from].name;
      port.peer_node = node_of(edges_[s.in[p]].from);
      port.credits_max = edges_[s.in[p]].items_max;
      port.queued = waiting(s.in[p]);
      port.items = taken(s.in[p]);
      a.queue += port.queued;
      port.is_waiting = a.state == actor_state::waiting_for_input && port.queued == 0;
      if (port.is_waiting) port.since_seconds = a.since_seconds;
      a.ports.push_back(std::move(port));
    }
    for (std::size_t p = 0; p < s.out.size(); ++p) {
      const auto& e = edges_[s.out[p]];
      if (is_idle(e.to)) continue;
      const auto& m = *view_->edges[s.out[p]];
      port_snapshot port;
      port.name = fmt::format("out{}", p);
      port.peer = stages_[e.to].name;
      port.peer_node = node_of(e.to);
      port.credits_max = e.items_max;
      const auto under_way = waiting(s.out[p]);
      port.items = put(s.out[p]);
      const auto put_bytes = relaxed(m.put_bytes), taken_bytes = relaxed(m.taken_bytes);
      const bool is_full = under_way >= e.items_max ||
                           (put_bytes > taken_bytes && put_bytes - taken_bytes >= e.bytes_max);
      port.credits = is_full ? 0 : e.items_max - std::min(e.items_max, under_way);
      port.is_waiting = a.state == actor_state::waiting_for_credit && under_way > 0;
      if (port.is_waiting) port.since_seconds = a.since_seconds;
      a.ports.push_back(std::move(port));
    }
    const auto& borrows = view_->graph->stages()[i].borrows;
    // 0: it has just been given back.
    const auto holder = borrows != nullptr ? borrows->holder() : 0;
    if (runs && borrows != nullptr && c.is_borrowing.load(std::memory_order_relaxed) &&
        holder != 0) {
      port_snapshot lent;
      lent.name = std::string(resource_port) + borrows->name();
      lent.is_waiting = true;
      lent.since_seconds = a.since_seconds;
      if (const auto who = view_->graph->stage_of(holder); who && *who != i) {
        lent.peer = stages_[*who].name;
        lent.peer_node = node;
      }
      a.state = actor_state::waiting_for_resource;
      a.ports.push_back(std::move(lent));
    }
    // Whatever it has: nothing is called while its thread runs another stage.
    const auto other = pulse.running.load(std::memory_order_relaxed);
    const auto busy_seconds = age(pulse.since_ticks.load(std::memory_order_relaxed));
    if (!runs && other < stages_.size() && a.state != actor_state::ended) {
      for (auto& p : a.ports) p.is_waiting = false, p.since_seconds = 0;
      port_snapshot thread;
      thread.name = std::string(thread_port);
      thread.peer = stages_[other].name;
      thread.peer_node = node;
      thread.is_waiting = true;
      thread.since_seconds = a.since_seconds = busy_seconds;
      a.state = actor_state::waiting_for_thread;
      a.ports.push_back(std::move(thread));
    } else if (a.state == actor_state::waiting_for_input &&
               std::ranges::none_of(a.ports, [](const auto& p) { return p.is_waiting; })) {
      a.state = actor_state::idle;
    }
    all.push_back(std::move(a));
  }
  return all;
}

}  // namespace troupe
