#pragma once
// Runs a topology in the calling thread, deterministically: for tests, and for programs that want
// no threads. Stages run as everywhere else; time is that of the run, and goes on by itself where
// all wait for it.
//
// Errors: usage: the topology has a mistake; failed: a stage did, in one line.

#include "troupe/runtime/flow/flow_group.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// What a stage did.
struct stage_totals {
  std::string name;
  std::uint64_t items_in = 0, items_out = 0;
  std::uint64_t skipped = 0, dropped = 0, restarts = 0;
};
struct flow_totals {
  std::vector<stage_totals> stages;
  // Of a stage by its name; all zero where there is none.
  const stage_totals& of(std::string_view stage) const;
};
stage_totals totals_of(const std::string& name, const stage_counters& c);
// Of all stages of a group that is whole.
flow_totals totals_of(const flow_group& g);
// What stands in the way of a group where nothing goes on though it is not over.
std::string why_stuck(const flow_group& g);

result<flow_totals> drain(flow_graph& g);

}  // namespace troupe
