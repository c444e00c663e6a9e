#pragma once
// Functions that bound values, gradients above all, composed of the ops of runtime/graph/ops.hpp:
// they work on any f32 or f64 values, have gradients, and run wherever the graph does. (An
// optimizer clips on the shard, after the gradients of all workers are summed:
// runtime/plan/optimizer.hpp.)
//
// What clip_by_global_norm() and global_norm() make of one value stands on its device
// (runtime/graph/on_device.hpp).
//
// A bound that is not a finite number above 0 is an error of the graph at the caller's line.

#include "troupe/runtime/graph/graph.hpp"

#include <span>
#include <vector>

namespace troupe {

// Each element moved into [-most, most]; NaN stays.
value clip_by_value(value x, double most, source_location where = source_location::current());
// x, times most / |x| where its Euclidean norm |x| is above `most`; else x, bit by bit. An infinite
// norm gives zeros, and NaN where x is infinite.
value clip_by_norm(value x, double most, source_location where = source_location::current());
// The same with one norm, that of all values together. They have one element type. An invalid value
// stays one.
std::vector<value> clip_by_global_norm(std::span<const value> values, double most,
                                       source_location where = source_location::current());
// The norm of all values together, a scalar.
value global_norm(std::span<const value> values,
                  source_location where = source_location::current());

}  // namespace troupe
