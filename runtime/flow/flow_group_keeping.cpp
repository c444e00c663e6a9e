// How a topology that stands still becomes a checkpoint, and a new one goes on from it.

#include "troupe/runtime/flow/flow_counting.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/shape_stages.hpp"
#include "troupe/runtime/flow/stage_replacement.hpp"
#include "troupe/runtime/flow/topology_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe {

namespace {
constexpr const char* cannot_be_written =
    ", which cannot be written: give their struct `fields`, and a checkpoint need not wait for them";
std::string layout_kept(const stage_info& s) {
  std::string text = "state " + (s.state_layout.empty() ? "nothing" : s.state_layout);
  for (const auto* t : s.holds_items) text += ", items " + (t != nullptr ? t->layout() : "?");
  return text;
}
}  // namespace

std::string flow_group::under_way() const {
  for (const auto& s : slots_) {
    if (s == nullptr || s->is_over) continue;
    if (s->has_more || s->is_busy || s->is_closing || s->ticket_is_open ||
        s->replacement != nullptr)
      return fmt::format("{} has not put all that it makes of an item", s->info->name);
    if (s->what->has_under_way())
      return fmt::format("{} has items that are not done", s->info->name);
  }
  for (const auto& e : edges_) {
    if (e == nullptr) continue;
    const auto& to = graph_->stages()[e->info->to];
    // What is dealt again has a place in an order that a checkpoint does not know.
    const bool may_wait = items_may_wait(*graph_, *e->info) &&
                          (e->queue.empty() || !e->queue.front().origin.is_again);
    if (!e->outbox.empty() || (!e->queue.empty() && !may_wait))
      return fmt::format("{} items wait before {}{}", e->queue.count + e->outbox.size(), to.name,
                         to.holds_items.empty() ? cannot_be_written : "");
  }
  return {};
}

bool flow_group::has_items_elsewhere() const {
  return std::ranges::any_of(slots_, [](const auto& s) {
    return s != nullptr && !s->is_over && s->what->has_under_way();
  });
}

result<topology_checkpoint> flow_group::keep() {
  expects(under_way().empty(), "a checkpoint is made when nothing is under way");
  topology_checkpoint c;
  const auto& stages = graph_->stages();
  for (std::uint32_t i = 0; i < stages.size(); ++i) {
    kept_stage k;
    k.name = stages[i].name;
    k.kind = stages[i].kind;
    k.layout = layout_kept(stages[i]);
    if (auto* s = slots_[i].get(); s != nullptr) {
      k.is_over = s->is_over;
      k.made = s->made;
      k.failures = s->failures;
      if (s->is_source) c.items += s->made;
      if (s->what != nullptr) {
        result<tensor> state = tensor{};
        try {
          state = s->what->keep(stages[i].holds_items);
        } catch (const broken_invariant&) {
          throw;
        } catch (...) {
          state = what_was_thrown();
        }
        if (!state)
          return error(state.error().code(),
                       fmt::format("{} ({}): {}", k.name, flow_graph::line_of(stages[i].where),
                                   state.error().message()));
        k.state = std::move(*state);
      }
    }
    c.stages.push_back(std::move(k));
  }
  for (std::uint32_t i = 0; i < edges_.size(); ++i) {
    const auto& info = graph_->edges()[i];
    kept_edge k{info.from, info.from_port, info.to, info.to_port, false, false, false, {}};
    if (auto* e = edges_[i].get(); e != nullptr) {
      k.has_ended = e->to != nullptr ? e->has_ended : e->end_sent;
      k.end_told = e->end_told;
      k.is_closed = e->is_closed;
      if (!e->queue.empty()) {
        // They stay where they are: who writes them does not change them.
        std::vector<flow_item> waiting;
        waiting.reserve(e->queue.count);
        while (!e->queue.empty()) waiting.push_back(e->queue.pop());
        const auto& types = stages[e->info->to].holds_items;
        try {
          k.items = kept_items(waiting, types[std::min<std::size_t>(e->to_port, types.size() - 1)]);
        } catch (...) {
          e->queue.push(std::move(waiting));
          throw;
        }
        e->queue.push(std::move(waiting));
      }
    }
    c.edges.push_back(std::move(k));
  }
  return c;
}

namespace {

// What this graph has otherwise than the one that the checkpoint is of; empty: nothing.
std::string difference(const flow_graph& g, const topology_checkpoint& c) {
  const auto& stages = g.stages();
  for (std::size_t i = 0; i < std::max(stages.size(), c.stages.size()); ++i) {
    if (i >= stages.size())
      return fmt::format("its stage {} is none of this program's", c.stages[i].name);
    if (i >= c.stages.size()) return fmt::format("it has no stage {}", stages[i].name);
    const auto& k = c.stages[i];
    // Deals and gathers are parts of the stage that the user wrote.
    const auto named = [](const std::string& kind, const std::string& name) {
      return kind == "deal" || kind == "gather" ? "stage " + name.substr(0, name.rfind('/'))
                                                : kind + " " + name;
    };
    if (k.name != stages[i].name || k.kind != stages[i].kind)
      return fmt::format("it has {} where this program has {} ({})", named(k.kind, k.name),
                         named(stages[i].kind, stages[i].name),
                         flow_graph::line_of(stages[i].where));
    if (const auto layout = layout_kept(stages[i]); k.layout != layout)
      return fmt::format("what is kept of {} is {} there, and {} here", k.name, k.layout, layout);
  }
  const auto is_same = [](const kept_edge& a, const flow_edge_info& b) {
    return a.from == b.from && a.from_port == b.from_port && a.to == b.to && a.to_port == b.to_port;
  };
  if (!std::ranges::equal(c.edges, g.edges(), is_same))
    return "its stages are joined in another way";
  return {};
}

}  // namespace

result<void> flow_group::go_on_from(const topology_checkpoint& c) {
  if (const auto other = difference(*graph_, c); !other.empty())
    return error(error_code::usage,
                 fmt::format("the checkpoint is of another topology: {}{}", other,
                             std::ranges::any_of(graph_->stages(),
                                                 [](const auto& s) {
                                                   return s.control != nullptr &&
                                                          s.control->is_automatic;
                                                 })
                                 ? " (with .replicas = automatic it goes on with as many --threads "
                                   "as it had)"
                                 : ""));
  const auto damaged = [](const std::string& what) {
    return error(error_code::failed, fmt::format("the checkpoint does not fit: {}", what));
  };
  const auto& stages = graph_->stages();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    auto* s = slots_[i].get();
    if (s == nullptr) continue;
    const auto& k = c.stages[i];
    s->made = k.made;
    s->failures = k.failures;
    s->inputs_ended = 0;
    for (const auto e : s->info->in) s->inputs_ended += c.edges[e].end_told ? 1 : 0;
    s->outputs_open = 0;
    for (std::uint32_t p = 0; p < s->info->outputs; ++p)
      for (const auto e : s->info->out[p])
        s->outputs_open += p != s->info->dead_output && !c.edges[e].is_closed ? 1 : 0;
    if (k.is_over) {
      s->is_over = true;
      s->what.reset();
      s->counters->is_over.store(true);
      continue;
    }
    result<void> ok;
    try {
      ok = s->what->reopen(k.state, stages[i].holds_items);
    } catch (const broken_invariant&) {
      throw;
    } catch (...) {
      ok = what_was_thrown();
    }
    if (s->info->is_timed || s->info->is_last) s->deadline_ns = s->what->wakes_at();
    if (!ok)
      return error(ok.error().code(),
                   fmt::format("{} ({}): it cannot go on from the checkpoint: {}", k.name,
                               flow_graph::line_of(stages[i].where), ok.error().message()));
  }
  for (std::uint32_t i = 0; i < edges_.size(); ++i) {
    auto* e = edges_[i].get();
    if (e == nullptr) continue;
    const auto& k = c.edges[i];
    e->is_closed = k.is_closed;
    e->end_told = k.end_told;
    if (e->to != nullptr)
      e->has_ended = k.has_ended;
    else
      e->end_sent = e->owes_end = k.has_ended;
    if (!k.items) continue;
    const auto& types = stages[e->info->to].holds_items;
    if (types.empty() || e->to == nullptr) return damaged(stages[e->info->to].name);
    auto items = items_kept(k.items, types[std::min<std::size_t>(e->to_port, types.size() - 1)]);
    if (!items) return damaged(stages[e->info->to].name);
    for (const auto& it : *items) {
      if (it.origin.source >= stages.size()) return damaged(stages[e->info->to].name);
      e->queued_bytes += it.bytes;
      e->meter->put_bytes.fetch_add(it.bytes);
    }
    e->meter->put_items.fetch_add(items->size());
    e->queue.push(std::move(*items));
  }
  wire_slots();
  return {};
}

}  // namespace troupe
