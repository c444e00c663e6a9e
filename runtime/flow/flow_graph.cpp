#include "troupe/runtime/flow/flow_graph.hpp"

#include "troupe/runtime/flow/kept_replicas.hpp"
#include "troupe/runtime/flow/lender.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace troupe {

std::string flow_graph::line_of(const source_location& where) {
  const std::string_view file = where.file_name();
  if (file.empty()) return "no line";
  const auto at = file.rfind('/');
  return fmt::format("{}:{}", at == std::string_view::npos ? file : file.substr(at + 1),
                     where.line());
}

std::uint32_t flow_graph::add_stage(stage_info info) {
  if (info.name.empty()) info.name = info.kind;
  if (!info.is_named) {
    const auto taken = [&](const std::string& name) {
      return std::ranges::any_of(stages_, [&](const auto& s) { return s.name == name; });
    };
    const auto stem = info.name;
    for (std::uint32_t n = 2; taken(info.name); ++n) info.name = fmt::format("{}_{}", stem, n);
  }
  flow_stage_info s;
  static_cast<stage_info&>(s) = std::move(info);
  s.in.resize(s.inputs, no_port);
  s.out.resize(s.outputs);
  stages_.push_back(std::move(s));
  return static_cast<std::uint32_t>(stages_.size() - 1);
}

std::uint32_t flow_graph::add_input(std::uint32_t stage) {
  stages_[stage].in.push_back(no_port);
  return stages_[stage].inputs++;
}
std::uint32_t flow_graph::add_output(std::uint32_t stage) {
  stages_[stage].out.emplace_back();
  return stages_[stage].outputs++;
}

std::uint32_t flow_graph::connect(std::uint32_t from, std::uint32_t from_port, std::uint32_t to,
                                  std::uint32_t to_port, std::uint64_t items_max) {
  const auto id = static_cast<std::uint32_t>(edges_.size());
  flow_edge_info e;
  e.from = from;
  e.from_port = from_port;
  e.to = to;
  e.to_port = to_port;
  e.items_max = items_max;
  edges_.push_back(e);
  stages_[from].out[from_port].push_back(id);
  stages_[to].in[to_port] = id;
  return id;
}

std::uint32_t flow_graph::add_removed_edge(std::uint32_t from, std::uint32_t to) {
  flow_edge_info e;
  e.from = from;
  e.to = to;
  edges_.push_back(e);
  return static_cast<std::uint32_t>(edges_.size() - 1);
}

std::uint32_t flow_graph::add_feedback(std::uint32_t stage, std::uint64_t credit,
                                       source_location where) {
  feedback_info f;
  f.stage = stage;
  f.credit = credit;
  f.where = where;
  feedbacks_.push_back(f);
  return static_cast<std::uint32_t>(feedbacks_.size() - 1);
}

void flow_graph::note_mistake(error e) {
  if (mistake_ == nullptr) mistake_ = std::make_shared<error>(std::move(e));
}

bool flow_graph::is_back_edge(const flow_edge_info& e) const {
  return std::ranges::any_of(feedbacks_, [&](const auto& f) { return f.stage == e.to; });
}

result<void> flow_graph::check() {
  if (mistake_ != nullptr) return *mistake_;
  if (stages_.empty()) return error(error_code::usage, "the topology has no stage");
  if (auto ok = check_names(); !ok) return ok;
  if (auto ok = check_order(); !ok) return ok;
  if (auto ok = check_loops(); !ok) return ok;
  chain_replicas();
  size_edges();
  return check_joins();
}

result<void> flow_graph::check_names() const {
  std::map<std::string_view, const flow_stage_info*> seen;
  for (const auto& s : stages_)
    if (const auto [at, is_new] = seen.emplace(s.name, &s); !is_new)
      return error(error_code::usage,
                   fmt::format("two stages are named {}: the other one stands at {}", s.name,
                               line_of(at->second->where)))
          .at(s.where);
  return {};
}

// What goes round does so by a feedback.
result<void> flow_graph::check_order() const {
  std::vector<std::uint32_t> waits(stages_.size());
  for (const auto& e : edges_)
    if (!is_back_edge(e) && !stages_[e.from].is_removed) ++waits[e.to];
  std::vector<std::uint32_t> ready;
  for (std::uint32_t i = 0; i < stages_.size(); ++i)
    if (waits[i] == 0) ready.push_back(i);
  std::size_t ordered = 0;
  for (; !ready.empty(); ++ordered) {
    const auto i = ready.back();
    ready.pop_back();
    for (const auto& port : stages_[i].out)
      for (const auto e : port)
        if (!is_back_edge(edges_[e]) && --waits[edges_[e].to] == 0) ready.push_back(edges_[e].to);
  }
  if (ordered == stages_.size()) return {};
  const auto at = static_cast<std::size_t>(
      std::ranges::find_if(waits, [](auto n) { return n > 0; }) - waits.begin());
  return error(error_code::usage,
               fmt::format("what {} makes comes back to it without a feedback: nobody could begin",
                           stages_[at].name))
      .at(stages_[at].where);
}

// A loop: the stages that are behind its entrance and before its feedback.
result<void> flow_graph::check_loops() {
  for (std::uint32_t f = 0; f < feedbacks_.size(); ++f) {
    const auto& fb = feedbacks_[f];
    const auto& name = stages_[fb.stage].name;
    if (!fb.is_closed)
      return error(error_code::usage,
                   fmt::format("nothing comes back to {}: close(loop, flow) is missing", name))
          .at(fb.where);
    if (fb.entrance == no_port)
      return error(error_code::usage,
                   fmt::format("what comes back by {} is not merged with what begins: "
                               "merge(begin, loop)",
                               name))
          .at(fb.where);
    if (fb.credit == 0)
      return error(error_code::usage, fmt::format("{} has no credit", name)).at(fb.where);
    std::vector<bool> behind(stages_.size()), before(stages_.size());
    behind[fb.entrance] = true;
    for (std::size_t i = fb.entrance; i < stages_.size(); ++i)
      if (behind[i])
        for (const auto& port : stages_[i].out)
          for (const auto e : port)
            if (!is_back_edge(edges_[e])) behind[edges_[e].to] = true;
    for (const auto e : stages_[fb.stage].in) before[edges_[e].from] = true;
    for (auto i = stages_.size(); i-- > 0;)
      if (before[i])
        for (const auto e : stages_[i].in)
          if (!is_back_edge(edges_[e])) before[edges_[e].from] = true;
    if (!before[fb.entrance])
      return error(error_code::usage,
                   fmt::format("what is closed with {} does not come of its merge", name))
          .at(fb.where);
    stages_[fb.stage].loop = f;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      auto& s = stages_[i];
      if (!behind[i] || !before[i]) continue;
      const auto refused = !s.on.empty()                      ? "runs on a node"
                           : s.holds                          ? "keeps items"
                           : s.is_join                        ? "waits for several"
                           : s.looks_for_room                 ? "has replicas, or drops items"
                           : s.is_replica                     ? "is a replica"
                           : s.may_block                      ? "may sleep"
                           : s.loop != no_port && s.loop != f ? "is part of another loop"
                                                              : "";
      if (*refused != 0)
        return error(error_code::usage,
                     fmt::format("{} {}, and so cannot stand in the loop of {} ({})", s.name,
                                 refused, name, line_of(fb.where)))
            .at(s.where);
      s.loop = f;
    }
    for (auto& e : edges_)
      if (stages_[e.from].loop == f && stages_[e.to].loop == f) e.loop = f;
  }
  return {};
}

// Each edge has an equal part of the budget; loops hold what their credit lets in.
void flow_graph::size_edges() {
  // Who stands by has items only when somebody else has none any more.
  const auto used = static_cast<std::uint64_t>(std::ranges::count_if(edges_, [&](const auto& e) {
    const auto& from = stages_[e.from];
    return !from.is_removed && from.stands_by == 0 && stages_[e.to].stands_by == 0;
  }));
  const auto part = std::max<std::uint64_t>(1, budget_bytes_ / std::max<std::uint64_t>(1, used));
  std::vector<bool> is_narrow(stages_.size());  // edges lead from earlier to later ones
  for (std::size_t i = 0; i < stages_.size(); ++i) is_narrow[i] = stages_[i].is_last;
  std::vector<flow_edge_info*> in_order;
  for (auto& e : edges_) in_order.push_back(&e);
  std::ranges::stable_sort(in_order, {}, &flow_edge_info::from);
  for (auto* each : in_order) {
    auto& e = *each;
    e.bytes_max = part;
    if (stages_[e.from].kind == "drop_oldest") e.items_max = 1;
    // Behind a batch of as many as wait nothing else gathers, as far as each becomes one: it would
    // wait there in batches of one. But nobody is to wait for the others of his kind: replicas have
    // some room behind them, and branches that meet again as much as ever.
    if (is_narrow[e.from] && e.from_port != stages_[e.from].dead_output) {
      const auto& to = stages_[e.to];
      const bool is_one_of_one = to.rate == stage_rate{};
      if (to.kind == "gather")
        e.items_max = 4;
      else if (!to.is_join && (is_one_of_one || stages_[e.from].kind != "deal"))
        e.items_max = 1;
      is_narrow[e.to] = is_narrow[e.to] || (is_one_of_one && !to.is_join);
    }
    if (e.loop != no_port) {
      // One firing may put several: what is under way is what bounds them.
      e.items_max = e.items_min = never_ns;
    }
  }
}

// Whether items of `fork` reach inputs `a` and `b` of `join` by ways that have no other stage in
// common: else they part behind it.
bool flow_graph::parts_before(std::uint32_t fork, const flow_stage_info& join, std::uint32_t a,
                              std::uint32_t b) const {
  // Two ways upward, found one after the other; the second may push the first one aside.
  std::vector<std::uint32_t> above(stages_.size(), no_port);  // of the first way, what is above
  const auto up = [&](std::uint32_t stage, auto&& see) {
    for (const auto e : stages_[stage].in)
      if (e != no_port && !is_back_edge(edges_[e]) && see(edges_[e].from)) return true;
    return false;
  };
  std::vector<char> seen(stages_.size());
  const auto first_way = [&](auto&& self, std::uint32_t at) -> bool {
    if (at == fork) return true;
    if (std::exchange(seen[at], char{1})) return false;
    return up(at, [&](std::uint32_t next) {
      if (!self(self, next)) return false;
      above[at] = next;
      return true;
    });
  };
  const auto begin = edges_[join.in[a]].from, other = edges_[join.in[b]].from;
  if (begin == fork || other == fork) {
    seen.assign(stages_.size(), 0);
    return first_way(first_way, begin == fork ? other : begin);
  }
  if (begin == other || !first_way(first_way, begin)) return false;
  std::vector<bool> is_taken(stages_.size());
  for (auto at = begin; at != fork; at = above[at]) is_taken[at] = true;
  std::vector<std::uint32_t> below(stages_.size(), no_port);
  for (auto at = begin; at != fork; at = above[at]) below[above[at]] = at;
  // By whom a stage may be left: from outside it must go down the first way once it meets it.
  std::vector<char> seen_in(stages_.size()), seen_out(stages_.size());
  const auto second_way = [&](auto&& self, std::uint32_t at, bool came_down) -> bool {
    if (at == fork) return true;
    if (is_taken[at] && !came_down) {
      if (std::exchange(seen_in[at], char{1})) return false;
      return below[at] != no_port && self(self, below[at], true);
    }
    if (std::exchange(seen_out[at], char{1})) return false;
    if (up(at, [&](std::uint32_t next) {
          return (!is_taken[at] || above[at] != next) && self(self, next, false);
        }))
      return true;
    return is_taken[at] && below[at] != no_port && self(self, below[at], true);
  };
  return second_way(second_way, other, false);
}

// What gather and deal lie between leaves nothing for them to do, where both have the same replicas
// on the same nodes: then the tickets of the first deal go through to the last gather.
void flow_graph::chain_replicas() {
  for (std::uint32_t d = 0; d < stages_.size(); ++d) {
    auto& deal = stages_[d];
    if (deal.kind != "deal" || deal.ledger == nullptr || deal.is_removed ||
        deal.ledger->has_lanes() || deal.control != nullptr)
      continue;
    const auto between = deal.in[0];
    const auto g = edges_[between].from;
    auto& gather = stages_[g];
    if (gather.kind != "gather" || gather.ledger == nullptr || gather.ledger->has_lanes() ||
        gather.inputs != deal.outputs || gather.out[0].size() != 1 ||
        stages_[edges_[gather.in[0]].from].control != nullptr)
      continue;
    bool are_alike = true;
    for (std::uint32_t i = 0; i < deal.outputs; ++i) {
      const auto& before = stages_[edges_[gather.in[i]].from];
      const auto& behind = stages_[edges_[deal.out[i][0]].to];
      are_alike = are_alike && before.on == behind.on && before.is_kept == behind.is_kept;
    }
    if (!are_alike) continue;
    std::uint32_t last = no_port;  // the gather behind
    for (std::uint32_t i = 0; i < deal.outputs; ++i) {
      auto& edge = edges_[gather.in[i]];
      const auto dealt = deal.out[i][0];
      const auto to = edges_[dealt].to;
      edge.to = to;
      edge.to_port = edges_[dealt].to_port;
      stages_[to].in[edge.to_port] = gather.in[i];
      stages_[to].is_chained = true;
      edges_[dealt].from = d, edges_[dealt].to = g;
      last = edges_[stages_[to].out[0][0]].to;
    }
    edges_[between].from = d, edges_[between].to = g;
    auto& end = stages_[last];
    end.ledger = gather.ledger;
    end.make = [lanes = end.inputs, keeps = !end.takes_any, ledger = end.ledger] {
      return std::unique_ptr<stage>(std::make_unique<keeping_gather>(lanes, keeps, ledger));
    };
    for (auto* s : {&deal, &gather}) {
      s->is_removed = s->is_elsewhere = true;
      s->inputs = s->outputs = 0;
      s->in.clear();
      s->out.clear();
    }
  }
}

// What is joined must come in equal numbers, or one branch fills while the other one starves.
result<void> flow_graph::check_joins() {
  struct path {
    stage_rate rate;
    std::uint64_t lag = 0;
    std::uint32_t blame = no_port;  // the stage that makes the rate unknown
  };
  const auto multiply = [](const stage_rate& a, const stage_rate& b) {
    if (!a.is_known || !b.is_known) return unknown_rate;
    const auto out = a.out * b.out, in = a.in * b.in, g = std::gcd(out, in);
    return g == 0 ? stage_rate{0, 1} : stage_rate{out / g, in / g};
  };
  // One that leaves items out makes fewer.
  const auto rate_of = [](const flow_stage_info& s) {
    if (s.on_error.what != error_policy::kind::stop) return unknown_rate;
    return s.kind == "deal" ? stage_rate{} : s.rate;
  };
  for (const auto& join : stages_) {
    if (!join.is_join) continue;
    std::uint64_t lag_max = 0;
    std::vector<bool> above(stages_.size());
    for (std::uint32_t fork = 0; fork < stages_.size(); ++fork) {
      // From each output edge of `fork`, whose items are copies where they leave by one port.
      std::vector<std::optional<path>> at(stages_.size());
      std::uint32_t ways = 0;
      for (const auto& port : stages_[fork].out) ways += static_cast<std::uint32_t>(port.size());
      if (ways < 2) continue;
      if (stages_[fork].kind == "deal") continue;  // its items come together again
      for (std::size_t p = 0; p < stages_[fork].out.size(); ++p)
        for (const auto e : stages_[fork].out[p]) {
          if (is_back_edge(edges_[e])) continue;
          path one;
          if (stages_[fork].kind == "split") one.rate = unknown_rate, one.blame = fork;
          auto& there = at[edges_[e].to];
          if (!there) there = one;
        }
      std::vector<std::optional<path>> inputs(join.in.size());
      std::vector<bool> reaches(stages_.size());
      const auto arrive = [&](std::uint32_t edge, const path& p) {
        const auto to = edges_[edge].to;
        if (&stages_[to] == &join) {
          auto& in = inputs[edges_[edge].to_port];
          if (!in)
            in = p;
          else if (!(in->rate == p.rate))
            in->rate = unknown_rate, in->blame = to;
        } else if (auto& there = at[to]; !there) {
          there = p;
        } else {
          if (!(there->rate == p.rate)) there->rate = unknown_rate, there->blame = to;
          there->lag = std::max(there->lag, p.lag);
        }
      };
      for (const auto& port : stages_[fork].out)
        for (const auto e : port)
          if (&stages_[edges_[e].to] == &join) arrive(e, *at[edges_[e].to]);
      for (auto i = fork + 1; i < stages_.size(); ++i) {
        if (!at[i] || &stages_[i] == &join) continue;
        const auto& s = stages_[i];
        for (const auto& port : s.out)
          for (const auto e : port) {
            if (is_back_edge(edges_[e])) continue;
            auto p = *at[i];
            const auto rate = rate_of(s);
            if (!rate.is_known && p.rate.is_known) p.blame = i;
            p.rate = multiply(p.rate, rate);
            p.lag += s.lag;
            arrive(e, p);
          }
      }
      std::optional<path> first;
      bool parts = false;
      for (std::uint32_t a = 0; a < inputs.size(); ++a)
        for (std::uint32_t b = a + 1; b < inputs.size(); ++b)
          parts = parts || (inputs[a] && inputs[b] && parts_before(fork, join, a, b));
      if (!parts) continue;
      for (const auto& in : inputs)
        if (in) lag_max = std::max(lag_max, in->lag);
      for (const auto& in : inputs) {
        if (!in) continue;
        if (!in->rate.is_known)
          return error(error_code::usage,
                       fmt::format("{} joins branches of {} ({}), of which one passes {} ({}), "
                                   "whose number of items depends on the data: one branch would "
                                   "fill while the other one waits; pair them by a key (join_by), "
                                   "or join them before it",
                                   join.name, stages_[fork].name, line_of(stages_[fork].where),
                                   stages_[in->blame].name, line_of(stages_[in->blame].where)))
              .at(join.where);
        if (!first)
          first = in;
        else if (!(first->rate == in->rate))
          return error(error_code::usage,
                       fmt::format("{} joins branches of {} ({}) that have unequal numbers of "
                                   "items: {} of {} and {} of {}",
                                   join.name, stages_[fork].name, line_of(stages_[fork].where),
                                   first->rate.out, first->rate.in, in->rate.out, in->rate.in))
              .at(join.where);
      }
      for (std::size_t i = 0; i < stages_.size(); ++i)
        if (at[i]) above[i] = true;
    }
    // Branches without a lag hold what the others are behind by.
    if (lag_max == 0) continue;
    for (auto& e : edges_)
      if (above[e.to] || &stages_[e.to] == &join) e.items_min = std::max(e.items_min, lag_max + 1);
  }
  return {};
}

std::uint64_t flow_graph::mark_of(std::uint32_t stage) const noexcept {
  const auto graph = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(this) >> 4);
  return (std::uint64_t{graph} << 32) + stage + 1;
}
std::optional<std::uint32_t> flow_graph::stage_of(std::uint64_t mark) const noexcept {
  const auto i = mark - mark_of(0);
  return i < stages_.size() ? std::optional(static_cast<std::uint32_t>(i)) : std::nullopt;
}

std::string explain(const flow_graph& g) {
  std::string text =
      fmt::format("{} stages, {} edges, at most {} in all edges together\n", g.stages().size(),
                  g.edges().size(), format_bytes(g.budget_bytes()));
  for (const auto& s : g.stages()) {
    if (s.is_hidden || s.replica > 0) continue;
    std::string name = s.name;
    if (s.control == nullptr && s.replicas > 1)
      name = fmt::format("{} x {}", name.substr(0, name.rfind('/')), s.replicas);
    if (s.control != nullptr)
      name = fmt::format("{} x {}..{}", name.substr(0, name.rfind('/')),
                         s.control->working.load(std::memory_order_relaxed), s.control->most);
    std::string from;
    const auto add_from = [&](std::uint32_t edge) {
      const auto* p = &g.stages()[g.edges()[edge].from];
      if (p->kind == "deal") p = &g.stages()[g.edges()[p->in[0]].from];
      auto n = p->name;
      if (p->kind == "gather" || p->replicas > 1) n = n.substr(0, n.rfind('/'));
      from += (from.empty() ? "" : ", ") + n;
    };
    for (const auto e : s.in)
      if (e != no_port) add_from(e);
    std::string bound;
    for (const auto e : s.in) {
      if (e == no_port) continue;
      const auto& i = g.edges()[e];
      bound = i.loop != no_port
                  ? fmt::format("credit {}", g.feedbacks()[i.loop].credit)
                  : fmt::format("{} items, {}", i.items_max, format_bytes(i.bytes_max));
      break;
    }
    text += fmt::format(
        "  {:<22} {:<20} {}{}{}{}{}\n", name, flow_graph::line_of(s.where),
        s.is_source ? "source" : "of " + from,
        s.on.empty()
            ? ""
            : "; on " + s.on + (s.is_kept ? ", whose loss it survives" : ", and ends with it"),
        bound.empty() ? "" : "; its inputs hold " + bound,
        s.on_error.what == error_policy::kind::skip      ? "; skips"
        : s.on_error.what == error_policy::kind::restart ? "; restarts"
                                                         : "",
        s.borrows == nullptr
            ? ""
            : fmt::format("; borrows {}, of which there {} {}", s.borrows->name(),
                          s.borrows->units() == 1 ? "is" : "are", s.borrows->units()));
    const bool is_unused = s.outputs > 0 && s.replicas == 1 &&
                           std::ranges::all_of(s.out, [](const auto& p) { return p.empty(); });
    if (is_unused) text += fmt::format("  {:<22} nobody takes what it makes\n", "");
  }
  return text;
}

}  // namespace troupe
