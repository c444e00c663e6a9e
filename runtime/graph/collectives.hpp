#pragma once
// Collectives that a program calls: ops by which workers of a training exchange tensors within a
// step.
//
//   const auto mean = all_reduce(reduce_mean(x, {0}), reduction_kind::mean);  // over all workers
//   const auto all = all_gather(keys, all_workers(n));                        // [n * rows, ...]
//
// Every worker has a copy of the graph, so every member of a group makes the same call, with equal
// shapes and types, in the same order: what workers of other systems get wrong at run time does not
// come up. Calls need no order among each other either: each has its own edges between ranks, and a
// rank that waits blocks nobody. What is checked while the graph is built: shapes, types, groups;
// when it is compiled: that the workers are there, all of them in groups of one size where shapes
// depend on it, that training is synchronous, and that no call lies in a branch or loop, where
// workers may go different ways. Errors have the line of the call.
//
// Sums and means add up in the order of the group, wherever its workers run: any number of
// processes gives the same bits (with compile_options::fast: rings over more than 8 processes add
// up in another order). A worker that is in no group keeps its own x. A graph that is stepped or
// computes at once has one worker, number 0: its collectives hand x on.
//
// Gradients: the loss of a training is the sum of its workers' losses. So that of an all_reduce
// (sum, mean) is one, of an all_gather a reduce_scatter, of a reduce_scatter (sum, mean) an
// all_gather, of a barrier x's. Minima, maxima and broadcasts have none: differentiating through
// one is an error; stop_gradient() of its result says that nobody wants to.
//
// How they run: runtime/plan/collective.hpp has steps and bytes of each algorithm,
// passes/draft/collectives.cpp puts the ranks in.

#include "troupe/runtime/graph/graph.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe {

// Who takes part: groups of logical workers, in the order in which they add up and gather. None:
// one of all workers, in their order.
struct worker_groups {
  std::vector<std::vector<std::uint32_t>> groups;
  friend bool operator==(const worker_groups&, const worker_groups&) = default;
};
// One group, of workers 0, 1, ..., n - 1.
worker_groups all_workers(std::uint32_t n);

// The sum, mean, least or greatest of every member's x, element by element. f32, f64, i32 and i64;
// a mean: f32 and f64.
value all_reduce(value x, reduction_kind reduction = reduction_kind::sum,
                 const worker_groups& among = {},
                 source_location where = source_location::current());
// Of the same, member i of a group of n gets slice i along the first axis, which n divides. Groups
// say all workers, and are of one size.
value reduce_scatter(value x, const worker_groups& among,
                     reduction_kind reduction = reduction_kind::sum,
                     source_location where = source_location::current());
// Every member's x, one after the other along the first axis; all types. Groups as of
// reduce_scatter.
value all_gather(value x, const worker_groups& among,
                 source_location where = source_location::current());
// The x of the member at position `root` of each group; all types.
value broadcast(value x, std::uint32_t root = 0, const worker_groups& among = {},
                source_location where = source_location::current());
// x, once all members have theirs; f32, f64, i32 and i64.
value barrier(value x, const worker_groups& among = {},
              source_location where = source_location::current());

// For the compiler: ops that collectives are. Their groups stand in an attribute, as sizes each
// with its workers behind it.
inline constexpr std::string_view all_reduce_op = "all_reduce",
                                  reduce_scatter_op = "reduce_scatter",
                                  all_gather_op = "all_gather", broadcast_op = "broadcast";
bool is_collective(std::string_view op_type) noexcept;
collective_kind kind_of(std::string_view op_type) noexcept;  // of one that is
worker_groups groups_of(const attributes& attrs);

}  // namespace troupe
