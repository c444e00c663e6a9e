#pragma once
// Which stages of a topology share a group (flow_group.hpp), and a thread. As a rule the stages of
// one thread are one group, of the thread's number: what passes between them costs a call.
// Stages that are elsewhere count for nothing, whatever place they have.
//
// FP-1  Stages of one loop stay together.
// FP-2  A stage that may sleep has a thread of its own, behind the others.
// FP-3  Stages that stand behind each other stay together where nothing is gained by parting them.

#include "troupe/runtime/flow/flow_graph.hpp"

#include <cstdint>
#include <vector>

namespace troupe {

// Threads that `g` needs beside those that compute: of stages that may sleep.
std::uint32_t sleeping_stages(const flow_graph& g);

// By stage, the thread: 0 .. threads - 1 compute, then one for each stage that may sleep.
std::vector<std::uint32_t> place_together(const flow_graph& g, std::uint32_t threads);
// `loads`: of each stage, the part of a thread's time that it takes.
std::vector<std::uint32_t> place_by_load(const flow_graph& g, std::uint32_t threads,
                                         const std::vector<double>& loads);

// A group for each stage (but one for those of a loop), over the threads in turn: what passes
// between two of them costs a message, on the same thread too.
struct flow_groups {
  std::vector<std::uint32_t> group_of;   // by stage
  std::vector<std::uint32_t> thread_of;  // by group
};
flow_groups place_apart(const flow_graph& g, std::uint32_t threads);
// Of the busiest of the threads that compute.
double largest_load(const std::vector<std::uint32_t>& places, std::uint32_t threads,
                    const std::vector<double>& loads);

}  // namespace troupe
