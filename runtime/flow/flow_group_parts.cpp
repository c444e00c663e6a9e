// How a group is made, opened, cut into several and put together again.

#include "troupe/runtime/flow/flow_counting.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/stage_replacement.hpp"
#include "troupe/runtime/flow/topology_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

flow_group::~flow_group() = default;

flow_group::flow_group(std::shared_ptr<const flow_graph> g, const std::vector<bool>& over)
    : graph_(std::move(g)) {
  const auto& stages = graph_->stages();
  slots_.resize(stages.size());
  edges_.resize(graph_->edges().size());
  loops_.resize(graph_->feedbacks().size());
  pulse_ = std::make_shared<group_pulse>();
  for (std::uint32_t i = 0; i < stages.size(); ++i) {
    if (stages[i].is_elsewhere) continue;
    auto s = std::make_unique<flow_slot>();
    s->id = i;
    s->info = &stages[i];
    s->what = stages[i].make();
    s->counters = std::make_shared<stage_counters>();
    s->origin.source = i;
    slots_[i] = std::move(s);
  }
  for (std::uint32_t i = 0; i < edges_.size(); ++i) {
    const auto& info = graph_->edges()[i];
    if (stages[info.from].is_elsewhere && stages[info.to].is_elsewhere) continue;
    edges_[i] = std::make_unique<flow_edge>();
    edges_[i]->id = i;
    edges_[i]->info = &info;
    edges_[i]->meter = std::make_shared<edge_meter>();
    edges_[i]->is_far = stages[info.from].is_elsewhere;
  }
  wire_slots();
  for (auto& s : slots_) {
    if (s == nullptr) continue;
    for (std::uint32_t p = 0; p < s->out.size(); ++p)
      if (p != s->info->dead_output)
        s->outputs_open += static_cast<std::uint32_t>(s->out[p].size());
  }
  for (auto& s : slots_)
    if (s != nullptr && s->info->stands_by == 0 && !(s->id < over.size() && over[s->id]) &&
        !open(*s))
      return;
}

// False: it has failed, and the topology with it.
bool flow_group::open(flow_slot& s) {
  s.is_open = true;
  result<void> done;
  try {
    done = s.what->open();
  } catch (const broken_invariant&) {
    throw;
  } catch (...) {
    done = what_was_thrown();
  }
  if (done) return true;
  const auto where = flow_graph::line_of(s.info->where);
  error why(done.error().code(), fmt::format("{} ({}): it cannot begin: {}", s.info->name, where,
                                             done.error().message()));
  if (!failure_) failure_ = flow_failure{s.info->name, std::move(why)};
  return false;
}

// After a failure: with a fresh state.
void flow_group::begin_anew(flow_slot& s) {
  std::unique_ptr<stage> before;  // until the new one is open: what they share is made once
  try {
    before = std::exchange(s.what, s.make()());
  } catch (const broken_invariant&) {
    throw;
  } catch (...) {
    if (!failure_)
      failure_ = flow_failure{
          s.info->name,
          error(error_code::failed,
                fmt::format("{} ({}): it cannot begin anew: {}", s.info->name,
                            flow_graph::line_of(s.info->where), what_was_thrown().message()))};
    return;
  }
  s.has_more = false;
  if (open(s)) count(s.counters->restarts, std::uint64_t{1});
}

const stage_counters& flow_group::counters(std::uint32_t stage) const {
  static const stage_counters none;
  return slots_[stage] != nullptr ? *slots_[stage]->counters : none;
}

// Who is here, which edges lead out, what may have something to do.
void flow_group::wire_slots() {
  open_ = sources_ = 0;
  ready_.assign((slots_.size() + 63) / 64, 0);
  timed_.clear();
  last_.clear();
  outgoing_.clear();
  letters_.clear();
  for (auto& s : slots_) {
    if (s == nullptr) continue;
    s->in.clear();
    s->out.assign(s->info->outputs, {});
    for (const auto e : s->info->in) s->in.push_back(edges_[e].get());
    for (std::uint32_t p = 0; p < s->info->outputs; ++p)
      for (const auto e : s->info->out[p]) s->out[p].push_back(edges_[e].get());
    s->called_ns = 0;
    s->only = !s->out.empty() && s->out[0].size() == 1 ? s->out[0][0] : nullptr;
    s->is_source = s->info->is_source;
    sources_ += s->is_source ? 1 : 0;
    s->is_end = s->info->is_end();
    s->may_wait = !s->info->in.empty() && std::ranges::all_of(s->info->in, [this](auto e) {
      return e != no_port && items_may_wait(*graph_, graph_->edges()[e]);
    });
    s->feeds_unwritten = std::ranges::any_of(s->info->out, [this](const auto& port) {
      return std::ranges::any_of(
          port, [this](auto e) { return !items_may_wait(*graph_, graph_->edges()[e]); });
    });
    s->is_slow = s->is_slow || s->info->may_block;
    s->is_replica = s->info->is_replica;
    s->is_chained = s->info->is_chained;
    s->is_recovered = s->info->is_recovered;
    s->has_chores = s->is_replica || s->info->is_timed || s->info->is_last ||
                    s->info->may_be_over ||
                    std::ranges::any_of(s->in, [](auto* e) { return e->info->loop != no_port; });
    if (s->is_over) continue;
    ++open_;
    mark(*s);
    if (s->info->is_timed) timed_.push_back(s->id);
    if (s->info->is_last) last_.push_back(s->id);
  }
  for (auto& e : edges_) {
    if (e == nullptr) continue;
    e->from = slots_[e->info->from].get();
    e->to = slots_[e->info->to].get();
    e->to_port = e->info->to_port;
    e->is_plain = e->to != nullptr && (e->to->in.size() == 1 || e->to->info->takes_any) &&
                  !e->to->info->looks_for_room && e->info->loop == no_port;
    if (e->from == nullptr || e->to != nullptr) continue;
    outgoing_.push_back(e->id);
    if (e->info->from_port == e->from->info->dead_output) letters_.push_back(e->id);
  }
  count_full();
}

void flow_group::count_full() {
  for (auto& s : slots_)
    if (s != nullptr) s->full_outputs = 0;
  for (auto& e : edges_) {
    if (e == nullptr || e->from == nullptr) continue;
    e->is_full = false;
    set_full(*e);
  }
}

std::vector<flow_group> flow_group::cut(flow_group&& whole,
                                        const std::vector<std::uint32_t>& group_of) {
  const auto groups = *std::ranges::max_element(group_of) + 1;
  std::vector<flow_group> parts;
  for (std::uint32_t g = 0; g < groups; ++g) {
    flow_group part;
    part.graph_ = whole.graph_;
    part.slots_.resize(whole.slots_.size());
    part.edges_.resize(whole.edges_.size());
    part.loops_ = whole.loops_;  // each is used by one group
    part.pulse_ = std::make_shared<group_pulse>();
    part.is_closing_ = whole.is_closing_;
    parts.push_back(std::move(part));
  }
  for (std::uint32_t i = 0; i < group_of.size(); ++i)
    parts[group_of[i]].slots_[i] = std::move(whole.slots_[i]);
  for (std::uint32_t i = 0; i < whole.edges_.size(); ++i) {
    auto& e = whole.edges_[i];
    if (e == nullptr) continue;
    auto& from = parts[group_of[e->info->from]];
    auto& to = parts[group_of[e->info->to]];
    if (e->to == nullptr || e->from == nullptr) {
      (e->to == nullptr ? from : to).edges_[i] = std::move(e);
      continue;
    }
    if (&from != &to) {
      // The producer's end: the counts tell it what is under way.
      auto end = std::make_unique<flow_edge>();
      end->id = e->id;
      end->info = e->info;
      end->meter = e->meter;
      end->is_closed = e->is_closed;
      end->end_sent = e->has_ended;
      from.edges_[i] = std::move(end);
    }
    to.edges_[i] = std::move(e);
  }
  for (auto& p : parts) p.wire_slots();
  return parts;
}

flow_group flow_group::put_together(std::vector<flow_group>&& parts) {
  flow_group whole;
  whole.graph_ = parts.front().graph_;
  whole.slots_.resize(parts.front().slots_.size());
  whole.edges_.resize(parts.front().edges_.size());
  whole.loops_.resize(parts.front().loops_.size());
  whole.pulse_ = std::make_shared<group_pulse>();
  for (auto& p : parts) {
    whole.is_closing_ = whole.is_closing_ || p.is_closing_;
    if (p.failure_ && !whole.failure_) whole.failure_ = std::move(p.failure_);
    for (std::size_t i = 0; i < p.loops_.size(); ++i)
      if (const auto at = p.graph_->feedbacks()[i].stage; p.slots_[at] != nullptr)
        whole.loops_[i] = p.loops_[i];
    for (std::size_t i = 0; i < p.slots_.size(); ++i)
      if (p.slots_[i] != nullptr) whole.slots_[i] = std::move(p.slots_[i]);
  }
  for (std::size_t i = 0; i < whole.edges_.size(); ++i) {
    std::unique_ptr<flow_edge> producer;
    for (auto& p : parts) {
      auto& e = p.edges_[i];
      if (e == nullptr) continue;
      (e->to != nullptr ? whole.edges_[i] : producer) = std::move(e);
    }
    if (producer == nullptr) continue;
    if (whole.edges_[i] == nullptr) {  // to another process
      whole.edges_[i] = std::move(producer);
      continue;
    }
    auto& e = *whole.edges_[i];
    for (const auto& it : producer->outbox) e.queued_bytes += it.bytes;
    e.queue.push(std::move(producer->outbox));
    e.is_closed = e.is_closed || producer->is_closed;
    e.has_ended = e.has_ended || producer->end_sent;
    e.meter->producer_waits.store(false);
  }
  whole.wire_slots();
  return whole;
}

}  // namespace troupe
