// A gradient waits for the ops of its stream that read the version it is made of, so that the shard never finds it read: the next version is written over it.
//
// Most read it before anyhow. What does not is the product that takes the gradient on to the layer below; where it stands on the same stream, waiting costs a hop.

#include "runtime/passes/passes.hpp"
#include "runtime/read_order.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace troupe::passes {

namespace {

constexpr std::string_view after_op = "after";

std::vector<version_reads> reads_of(const draft& d, const op_table& ops) {
  std::vector<actor_view> actors;
  actors.reserve(d.actors.size());
  for (const auto& a : d.actors) {
    const auto* row = a.planned.kind == actor_kind::op && a.planned.ops.size() == 1 ? ops.find(a.planned.ops.front().type) : nullptr;
    actors.push_back({&a.planned, a.from, row != nullptr && row->is_forwarding, a.region != 0 || a.planned.loop_level != 0});
  }
  return reads_of_versions(actors);
}

// Hands `gradient` on to the shard.
draft_actor make_gate(const draft& d, const version_reads& r) {
  const auto& maker = d.actors[r.gradient.actor];
  const auto& shard = d.actors[r.shard].planned;
  draft_actor a;
  a.owner = maker.owner;
  a.index = maker.index;
  a.planned.kind = actor_kind::op;
  a.planned.name = fmt::format("worker/{}/{}/after_reads", r.input, shard.shard.variable);
  a.planned.task = maker.planned.task;
  a.planned.stream = maker.planned.stream;
  a.planned.output_specs = {maker.planned.output_specs[r.gradient.port]};
  a.planned.start = maker.planned.start;
  a.planned.steps = maker.planned.steps;
  a.planned.source = shard.source;
  planned_op op;
  op.type = after_op;
  op.name = shard.shard.variable + "/after_reads";
  op.operands = {0};
  op.source = shard.source;
  a.planned.ops.push_back(std::move(op));
  a.from = {r.gradient};
  return a;
}

}  // namespace

draft order_reads(draft d, const op_table& ops, pass_report* report) {
  for (const auto& r : reads_of(d, ops)) {
    if (r.order != read_order::late) continue;
    const auto at = static_cast<std::uint32_t>(d.actors.size());
    auto gate = make_gate(d, r);
    for (const auto reader : r.readers) {
      if (reader == r.gradient.actor) continue;  // it has read when the gate runs
      gate.planned.ops.front().operands.push_back(static_cast<std::int32_t>(gate.from.size()));
      gate.from.push_back({reader, 0});
    }
    if (report != nullptr && r.input == 0)
      report->add(gate.planned.ops.front().name, gate.planned.source, [&] {
        return fmt::format("is put in, for each worker: the gradient waits for {}, which {} the same version, so that the next one is written over it",
                           gate.from.size() > 2 ? fmt::format("{} ops", gate.from.size() - 1) : fmt::format("'{}'", d.actors[gate.from.size() > 1 ? gate.from[1].actor : r.gradient.actor].planned.name),
                           gate.from.size() > 2 ? "read" : "reads");
      });
    d.actors[r.shard].from[r.input] = {at, 0};
    d.actors.push_back(std::move(gate));
  }
  return d;
}

}  // namespace troupe::passes
