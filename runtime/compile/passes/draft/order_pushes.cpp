// The gradient that is most of what a worker exchanges is made before all others that need not be
// there for it, so that its collective runs while they are computed.
//
// The backward pass makes the first layer's gradient last, and in a perceptron or behind an
// embedding that is the largest: its exchange then lies bare at the end of the step. The others are
// small, and wait: an operand of each goes through a gate that the largest gradient opens. Where no
// gradient is as large as all others together there is nothing to win: those of the upper layers
// are exchanged while the lower ones are computed.
//
// Nobody waits whom the largest gradient of any worker needs, so there are no cycles, whatever
// collectives a program calls. What waits stands right behind the gradient that it waits for.

#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::passes {

namespace {

constexpr std::string_view after_op = "after";
// A bucket of its own: what is smaller waits for others of its bucket anyway.
constexpr std::size_t ordered_from_bytes = 256 * 1024;

struct gradient {
  port_ref from;
  std::size_t bytes = 0;
  std::uint32_t shard = 0;  // whose variable it is of
};

// What one worker exchanges.
struct pushes {
  std::vector<gradient> all;
  std::size_t bytes = 0;
  const gradient* largest() const {
    return &*std::max_element(all.begin(), all.end(),
                              [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  }
};

std::map<std::uint32_t, pushes> pushes_of(const draft& d) {
  // By rank: port and shard.
  std::map<std::uint32_t, std::vector<std::pair<std::uint32_t, std::uint32_t>>> shards_of;
  for (std::uint32_t i = 0; i < d.actors.size(); ++i) {
    const auto& a = d.actors[i];
    if (a.planned.kind != actor_kind::shard ||
        !(a.planned.shard.takes_sums || a.planned.shard.follows))
      continue;
    if (const auto& from = a.from[0]; d.actors[from.actor].planned.kind == actor_kind::collective)
      shards_of[from.actor].emplace_back(from.port, i);
  }
  std::map<std::uint32_t, pushes> out;
  for (const auto& [rank, shards] : shards_of) {
    const auto& r = d.actors[rank];
    const auto& c = *r.planned.collective;
    for (std::size_t part = 0; part < c.own_parts(); ++part)
      for (const auto& [port, shard] : shards) {
        const auto from = r.from[part * c.tensors + port];
        const auto& maker = d.actors[from.actor];
        if (maker.planned.kind != actor_kind::op || maker.region != 0 ||
            maker.planned.loop_level != 0 || is_device_stream(maker.planned.stream))
          continue;
        auto& of_worker = out[c.workers[part]];
        of_worker.all.push_back({from, r.planned.output_specs[port].size_bytes(), shard});
        of_worker.bytes += of_worker.all.back().bytes;
      }
  }
  return out;
}

// All that the actors need within a step, they themselves included.
std::vector<bool> needed_by(const draft& d, const std::vector<std::uint32_t>& actors) {
  std::vector<bool> is_needed(d.actors.size());
  auto open = actors;
  while (!open.empty()) {
    const auto i = open.back();
    open.pop_back();
    if (is_needed[i]) continue;
    is_needed[i] = true;
    // What it takes is of the step before.
    if (d.actors[i].planned.kind == actor_kind::shard) continue;
    for (const auto& f : d.actors[i].from) open.push_back(f.actor);
  }
  return is_needed;
}

// The operand that comes last; nullopt: it takes nothing that an op makes.
std::optional<std::size_t> last_operand(const draft& d, std::uint32_t actor) {
  std::optional<std::size_t> last;
  const auto& from = d.actors[actor].from;
  for (std::size_t k = 0; k < from.size(); ++k) {
    const auto& maker = d.actors[from[k].actor].planned;
    if (maker.kind != actor_kind::op || from[k].actor >= actor ||
        from[k].port >= maker.output_specs.size())
      continue;
    if (!last || from[k].actor > from[*last].actor) last = k;
  }
  return last;
}

struct push_gate {
  std::uint32_t actor = 0;  // that waits
  std::size_t operand = 0;
  port_ref until;
};

draft_actor make_gate(const draft& d, const push_gate& g) {
  const auto& waits = d.actors[g.actor];
  const auto value = waits.from[g.operand];
  draft_actor a;
  a.owner = waits.owner;
  a.index = waits.index;
  a.planned.kind = actor_kind::op;
  a.planned.name = waits.planned.name + "/after_largest";
  a.planned.task = waits.planned.task;
  a.planned.stream = waits.planned.stream;
  a.planned.output_specs = {d.actors[value.actor].planned.output_specs[value.port]};
  a.planned.start = waits.planned.start;
  a.planned.steps = waits.planned.steps;
  a.planned.source = waits.planned.source;
  planned_op op;
  op.type = after_op;
  op.name = (waits.planned.ops.empty() ? waits.planned.name : waits.planned.ops.front().name) +
            "/after_largest";
  op.operands = {0, 1};
  op.source = waits.planned.source;
  a.planned.ops.push_back(std::move(op));
  a.from = {value, g.until};
  return a;
}

draft put_in(draft d, const std::vector<push_gate>& gates, std::vector<placement_reason>* reasons) {
  const auto count = static_cast<std::uint32_t>(d.actors.size());
  std::vector<const push_gate*> gate_of(count);
  for (const auto& g : gates) gate_of[g.actor] = &g;
  // What needs something that waits goes behind with it; else the order stays.
  std::vector<std::uint32_t> behind(count), order(count), now(count), gate_now(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (gate_of[i] != nullptr) behind[i] = gate_of[i]->until.actor;
    if (d.actors[i].planned.kind != actor_kind::shard)
      for (const auto& f : d.actors[i].from)
        if (f.actor < i) behind[i] = std::max(behind[i], behind[f.actor]);
    order[i] = i;
  }
  const auto place = [&](std::uint32_t i) {
    return std::tuple(std::max(i, behind[i]), behind[i] > i, i);
  };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return place(a) < place(b); });
  draft out;
  out.actors.reserve(count + gates.size());
  std::vector<placement_reason> why;
  for (const auto i : order) {
    const bool has_reason = reasons != nullptr && i < reasons->size();
    if (gate_of[i] != nullptr) {
      gate_now[i] = static_cast<std::uint32_t>(out.actors.size());
      out.actors.push_back(make_gate(d, *gate_of[i]));
      if (has_reason) why.push_back((*reasons)[i]);
    }
    now[i] = static_cast<std::uint32_t>(out.actors.size());
    out.actors.push_back({});  // its turn comes when all gates are made
    if (has_reason) why.push_back((*reasons)[i]);
  }
  for (std::uint32_t i = 0; i < count; ++i) out.actors[now[i]] = std::move(d.actors[i]);
  for (auto& a : out.actors)
    for (auto& f : a.from) f.actor = now[f.actor];
  for (const auto& g : gates) out.actors[now[g.actor]].from[g.operand] = {gate_now[g.actor], 0};
  if (reasons != nullptr) *reasons = std::move(why);
  return out;
}

}  // namespace

draft order_pushes(draft d, pass_report* report, std::vector<placement_reason>* reasons) {
  const auto by_worker = pushes_of(d);
  std::vector<std::uint32_t> largest;
  for (const auto& [worker, p] : by_worker) largest.push_back(p.largest()->from.actor);
  if (largest.empty()) return d;
  const auto is_needed = needed_by(d, largest);
  std::vector<push_gate> gates;
  std::vector<bool> waits(d.actors.size());
  for (const auto& [worker, p] : by_worker) {
    const auto& first = *p.largest();
    if (first.bytes < ordered_from_bytes || first.bytes < p.bytes - first.bytes) continue;
    const auto& maker = d.actors[first.from.actor].planned;
    std::size_t before = gates.size();
    for (const auto& g : p.all) {
      const auto& other = d.actors[g.from.actor].planned;
      if (is_needed[g.from.actor] || waits[g.from.actor] || other.task != maker.task ||
          other.stream != maker.stream)
        continue;
      const auto operand = last_operand(d, g.from.actor);
      if (!operand) continue;
      waits[g.from.actor] = true;
      gates.push_back({g.from.actor, *operand, first.from});
    }
    before = gates.size() - before;
    if (report != nullptr && worker == 0 && before > 0)
      report->add(
          d.actors[first.shard].planned.shard.variable, d.actors[first.shard].planned.source, [&] {
            return fmt::format(
                "its gradient is {} of {} bytes that each worker exchanges, and is made first: {} {} it",
                first.bytes, p.bytes, before, before == 1 ? "other waits for" : "others wait for");
          });
  }
  if (gates.empty()) return d;
  return put_in(std::move(d), gates, reasons);
}

}  // namespace troupe::passes
