#include "troupe/actors/node/ended_part.hpp"

namespace troupe {

namespace {

// Attributes may hold weights, and lists as long as a tensor.
std::shared_ptr<const plan> without_attributes(const plan& p) {
  auto out = std::make_shared<plan>(p);
  for (auto& a : out->actors)
    for (auto& op : a.ops) op.attrs = {};
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
