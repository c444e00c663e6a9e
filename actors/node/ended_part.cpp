#include "troupe/actors/node/ended_part.hpp"

namespace troupe {

namespace {

// Attributes may hold weights, and lists as long as a tensor: they are not copied.
std::vector<planned_op> without_attributes(const std::vector<planned_op>& ops) {
  std::vector<planned_op> out;
  out.reserve(ops.size());
  for (const auto& op : ops) out.push_back({op.type, op.name, {}, op.operands, op.source});
  return out;
}

std::shared_ptr<const plan> without_attributes(const plan& p) {
  auto out = std::make_shared<plan>();
  out->name = p.name;
  out->seed = p.seed;
  out->update = p.update;
  out->workers = p.workers;
  out->shards = p.shards;
  out->tasks = p.tasks;
  out->edges = p.edges;
  out->steps_in_flight = p.steps_in_flight;
  out->actors.reserve(p.actors.size());
  for (const auto& a : p.actors) {
    planned_actor kept;
    kept.kind = a.kind;
    kept.name = a.name;
    kept.task = a.task;
    kept.stream = a.stream;
    kept.ops = without_attributes(a.ops);
    kept.kernels = a.kernels;
    kept.copy = a.copy;
    kept.shard = a.shard;
    kept.collective = a.collective;
    kept.inputs = a.inputs;
    kept.outputs = a.outputs;
    kept.output_specs = a.output_specs;
    kept.start = a.start;
    kept.steps = a.steps;
    kept.source = a.source;
    out->actors.push_back(std::move(kept));
  }
  return out;
}

// The last counts of credits whose memory ends with the part.
void keep_counts(actor_record& r) {
  for (const auto& port : r.ports)
    if (const auto* credit = std::exchange(port->credit, nullptr))
      port->credits_left.store(credit->free(), std::memory_order_relaxed);
}

}  // namespace

std::shared_ptr<part_context> remains_of(const part_context& ended) {
  auto out = std::make_shared<part_context>();
  out->job = ended.job;
  out->epoch = ended.epoch;
  out->part = ended.part;
  out->node = ended.node;
  out->job_plan = without_attributes(*ended.job_plan);
  out->records = ended.records;
  out->ledgers = ended.ledgers;
  for (const auto& r : out->records)
    if (r) keep_counts(*r);
  return out;
}

}  // namespace troupe
