// Ops of one device become segments, each one actor: the stream of a device runs what it is given
// in order, so that nothing is won by a message for each op, and what is one actor can be captured
// and replayed as one.
//
// Two ops of a device are in one segment only if no way from one to the other leads out of the
// device: every op has a depth, the most often that a way to it has left and come back, and a
// segment has one depth. So segments have no cycle. What leaves for the host is waited for by
// somebody: a segment that has become long ends behind it, and does not keep it until its own end.
//
// A segment may need something from the host that stood behind others that take what it makes, so
// actors are put into an order of their dependencies again: memory that ops of the host write in
// turn (share_memory) has the order of the plan, and would wait for ever in another one.
//
// What leaves a loop depends on its body by what comes back in it, which neither depths nor that
// order see: where a graph has a loop, ops of devices stay apart, each a segment.
//
// O(n log n) in actors and edges.

#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

namespace troupe::passes {
namespace {

// Not tuned. An actor and the launch of a captured segment take some 10 us, as long as a few
// kernels; a backward pass has some 100.
constexpr std::size_t kernels_before_a_cut = 24;

class segmenter {
 public:
  segmenter(draft d, bool merges, pass_report* report, std::vector<placement_reason>* reasons)
      : d_(std::move(d)),
        has_loops_(std::any_of(d_.actors.begin(), d_.actors.end(), is_loop)),
        merges_(merges && !has_loops_),
        report_(report),
        reasons_(reasons) {}

  draft run() {
    const auto count = d_.actors.size();
    if (std::none_of(d_.actors.begin(), d_.actors.end(),
                     [](const auto& a) { return is_op_of_device(a); }))
      return std::move(d_);
    order_ = order_of(d_);
    find_leaving();
    group_of_.assign(count, none);
    assign_groups();
    auto out = merged();
    return merges_ ? sorted(std::move(out)) : std::move(out);
  }

 private:
  static constexpr std::uint32_t none = 0xFFFF'FFFF;
  // Whose ops may be one: task, device, and worker.
  using owner_key = std::tuple<std::uint32_t, std::uint32_t, std::uint8_t, std::uint32_t>;

  static bool is_op_of_device(const draft_actor& a) {
    return a.planned.kind == actor_kind::op && is_device_stream(a.planned.stream);
  }
  owner_key key_of(std::uint32_t i) const {
    const auto& a = d_.actors[i];
    return {a.planned.task, a.planned.stream, static_cast<std::uint8_t>(a.owner), a.index};
  }

  static bool is_loop(const draft_actor& a) {
    return a.planned.kind == actor_kind::op && a.planned.ops[0].type == loop_enter_op;
  }

  // Edges that go back (PS-2) order nothing. What a rank contributes may come from another
  // collective, and comes before it.
  static bool is_back(const draft& d, std::uint32_t consumer, std::size_t port) {
    const auto &c = d.actors[consumer].planned,
               &p = d.actors[d.actors[consumer].from[port].actor].planned;
    if (c.kind == actor_kind::shard) return true;
    if (c.collective && p.kind == actor_kind::collective && port >= c.collective->own_inputs())
      return true;
    return c.kind == actor_kind::op && c.ops[0].type == loop_enter_op && port == 1;
  }

  // A topological order, by the actors' own where there is a choice.
  static std::vector<std::uint32_t> order_of(const draft& d) {
    const auto count = static_cast<std::uint32_t>(d.actors.size());
    std::vector<std::uint32_t> order;
    std::vector<std::vector<std::uint32_t>> consumers(count);
    std::vector<std::uint32_t> missing(count, 0);
    for (std::uint32_t c = 0; c < count; ++c)
      for (std::size_t port = 0; port < d.actors[c].from.size(); ++port) {
        if (is_back(d, c, port)) continue;
        consumers[d.actors[c].from[port].actor].push_back(c);
        ++missing[c];
      }
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
    for (std::uint32_t i = 0; i < count; ++i)
      if (missing[i] == 0) ready.push(i);
    while (!ready.empty()) {
      const auto i = ready.top();
      ready.pop();
      order.push_back(i);
      for (const auto c : consumers[i])
        if (--missing[c] == 0) ready.push(c);
    }
    expects(order.size() == count,
            "PS-2: a draft has no other cycles than those through shards, ranks and loops");
    return order;
  }

  // `why_`: of every actor, in the order of `d`.
  draft sorted(draft d) {
    const auto order = order_of(d);
    std::vector<std::uint32_t> now(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) now[order[i]] = i;
    draft out;
    std::vector<placement_reason> why;
    for (const auto i : order) {
      out.actors.push_back(std::move(d.actors[i]));
      why.push_back(std::move(why_[i]));
    }
    for (auto& a : out.actors)
      for (auto& f : a.from) f.actor = now[f.actor];
    if (reasons_ != nullptr) *reasons_ = std::move(why);
    return out;
  }

  // Of actor i of the draft before.
  placement_reason reason_of(std::uint32_t i) const {
    if (reasons_ != nullptr && i < reasons_->size()) return (*reasons_)[i];
    using kind = placement_reason::kind;
    const auto owner = d_.actors[i].owner;
    return {owner == owner_kind::worker  ? kind::worker
            : owner == owner_kind::shard ? kind::shard
                                         : kind::client,
            d_.actors[i].index};
  }

  void find_leaving() {
    leaves_.assign(d_.actors.size(), false);
    for (const auto& a : d_.actors)
      for (const auto& f : a.from)
        if (!is_op_of_device(a) && is_op_of_device(d_.actors[f.actor])) leaves_[f.actor] = true;
  }

  void assign_groups() {
    std::vector<std::uint32_t> depth(d_.actors.size(), 0);
    // Owner and depth -> segment that takes more.
    std::map<std::pair<owner_key, std::uint32_t>, std::uint32_t> open;
    for (const auto i : order_) {
      const auto& a = d_.actors[i];
      const bool is_here = is_op_of_device(a);
      for (std::size_t port = 0; port < a.from.size(); ++port) {
        if (is_back(d_, i, port)) continue;
        const auto from = a.from[port].actor;
        const bool is_from_op = is_op_of_device(d_.actors[from]);
        const bool stays = !is_from_op || (is_here && key_of(from) == key_of(i));
        depth[i] = std::max(depth[i], depth[from] + (stays ? 0 : 1));
      }
      if (!is_here) continue;
      const auto at = open.try_emplace({key_of(i), depth[i]}, none).first;
      if (!merges_ || at->second == none) {
        at->second = static_cast<std::uint32_t>(members_.size());
        members_.emplace_back();
      }
      group_of_[i] = at->second;
      members_[at->second].push_back(i);
      if (leaves_[i] && members_[at->second].size() >= kernels_before_a_cut) open.erase(at);
    }
  }

  // A segment stands where its last member stood.
  draft merged() {
    std::vector<std::uint32_t> now(d_.actors.size(), none);
    std::vector<draft_actor> segments(members_.size());
    ports_.resize(d_.actors.size());
    for (std::uint32_t g = 0; g < members_.size(); ++g) segments[g] = make(g);
    draft out;
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      const auto g = group_of_[i];
      const bool stands =
          g == none || *std::max_element(members_[g].begin(), members_[g].end()) == i;
      if (stands) why_.push_back(reason_of(i));
      if (g == none) {
        now[i] = static_cast<std::uint32_t>(out.actors.size());
        out.actors.push_back(std::move(d_.actors[i]));
      } else if (stands) {
        const auto at = static_cast<std::uint32_t>(out.actors.size());
        for (const auto m : members_[g]) now[m] = at;
        out.actors.push_back(std::move(segments[g]));
      }
    }
    for (auto& a : out.actors)
      for (auto& f : a.from) {
        const bool is_of_segment = group_of_[f.actor] != none;
        f = {now[f.actor], is_of_segment ? ports_[f.actor].at(f.port) : f.port};
      }
    if (!merges_ && reasons_ != nullptr) *reasons_ = std::move(why_);
    return out;
  }

  // Ports in `from` are still those of the draft before.
  draft_actor make(std::uint32_t g) {
    const auto& members = members_[g];
    // Actor and port of the draft.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> value_of;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> input_of;
    draft_actor s;
    const auto& first = d_.actors[members.front()];
    s.owner = first.owner;
    s.index = first.index;
    s.device = first.device;
    s.planned.kind = actor_kind::op;
    s.planned.task = first.planned.task;
    s.planned.stream = first.planned.stream;
    s.planned.start = first.planned.start;
    s.planned.steps = first.planned.steps;
    s.planned.source = first.planned.source;
    s.planned.name = members.size() == 1 ? first.planned.name
                                         : fmt::format("{}..{}", first.planned.name,
                                                       d_.actors[members.back()].planned.name);
    std::int32_t values = 0;
    for (const auto m : members) {
      auto& a = d_.actors[m];
      planned_kernel k;
      k.first_op = static_cast<std::uint32_t>(s.planned.ops.size());
      for (const auto& f : a.from) {
        const auto key = std::pair(f.actor, f.port);
        if (const auto inside = value_of.find(key); inside != value_of.end()) {
          k.operands.push_back(-1 - inside->second);
          continue;
        }
        const auto [at, is_new] =
            input_of.try_emplace(key, static_cast<std::int32_t>(s.from.size()));
        if (is_new) s.from.push_back(f);
        k.operands.push_back(at->second);
      }
      k.results = a.planned.output_specs;
      for (std::uint32_t port = 0; port < k.results.size(); ++port) {
        value_of.emplace(std::pair(m, port), values++);
        if (!leaves_segment(m, port, g)) {
          k.places.push_back(0);
          continue;
        }
        const auto out = static_cast<std::uint32_t>(s.planned.output_specs.size());
        k.places.push_back(-1 - std::int64_t{out});
        ports_[m][port] = out;
        s.planned.output_specs.push_back(k.results[port]);
      }
      for (auto& op : a.planned.ops) s.planned.ops.push_back(op);
      s.planned.kernels.push_back(std::move(k));
    }
    s.planned.arena_bytes = place_values(s.planned.kernels);
    if (report_ != nullptr && members.size() > 1 && s.index == 0)
      report_->add(s.planned.name, s.planned.source, [&] {
        return fmt::format("is one actor on {}, of {} kernels, with {} inputs and {} outputs",
                           stream_text(s.planned.stream), members.size(), s.from.size(),
                           s.planned.output_specs.size());
      });
    return s;
  }

  bool leaves_segment(std::uint32_t actor, std::uint32_t port, std::uint32_t g) {
    if (takers_.empty()) {
      takers_.resize(d_.actors.size());
      for (std::uint32_t c = 0; c < d_.actors.size(); ++c)
        for (const auto& f : d_.actors[c].from) takers_[f.actor].emplace_back(f.port, c);
    }
    return std::any_of(takers_[actor].begin(), takers_[actor].end(),
                       [&](const auto& t) { return t.first == port && group_of_[t.second] != g; });
  }

  draft d_;
  bool has_loops_, merges_;
  pass_report* report_;
  std::vector<placement_reason>* reasons_;
  std::vector<placement_reason> why_;  // by actor, with segments
  std::vector<std::uint32_t> order_;
  // By actor: to something that is no op of a device.
  std::vector<bool> leaves_;
  std::vector<std::uint32_t> group_of_;              // by actor: its segment
  std::vector<std::vector<std::uint32_t>> members_;  // by segment, in order
  // By actor: output port -> that of its segment.
  std::vector<std::map<std::uint32_t, std::uint32_t>> ports_;
  // By actor: port and consumer.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> takers_;
};

}  // namespace

draft segments(draft d, bool merges, pass_report* report, std::vector<placement_reason>* reasons) {
  return segmenter(std::move(d), merges, report, reasons).run();
}

}  // namespace troupe::passes
