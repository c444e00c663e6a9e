#pragma once
// One step of an optimizer on a variable: which numbers of its spec count in which step. The
// arithmetic is the device's.
//
// UP-1  The result is a pure function of the spec, the count, values, state and the gradients in
//       their order: no clock, no history.
// UP-2  A sum of gradients alone gives the bits of all of them (a replica gets the sum).
//
// Threading: pure functions.

#include "troupe/devices/optimizer_step.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <span>

namespace troupe {

// One of these is to be made.
struct update_count {
  // Of the variable, this one included: t of the bias corrections. sync: the version; async:
  // gradients.
  std::uint64_t updates = 1;
  std::uint64_t step = 0;  // of the schedule
};
// Of the update that makes version `version` (sync), or that applies the version-th gradient
// (async).
update_count count_of(const shard_spec& s, std::uint64_t version) noexcept;

// Whether an update changes those rows alone that have a gradient (its state then counts for
// nothing): SGD with neither momentum, decay nor clipping.
bool changes_rows_alone(const shard_spec& s) noexcept;
// The learning rate of an update, for SGD.
float learning_rate_at(const optimizer_spec& o, const learning_rate_schedule& s,
                       update_count at) noexcept;

// The numbers of an update: what a device makes it of.
optimizer_step step_of(const optimizer_spec& o, const learning_rate_schedule& s, update_count at);
optimizer_step step_of(const shard_spec& s, update_count at);

// What a shard does with the gradients of a step: update_shard(), or where it is a moving average
// or the scale of a loss, one step of that.
void apply_to_shard(const shard_spec& s, update_count at, stepped values,
                    std::span<const stepped> state, std::span<const float* const> gradients,
                    std::size_t elements);

// `state`: the slots, in the order of slots_of(). Every `out` may be its own `in`; gradients
// overlap with nothing.
void update_shard(const optimizer_spec& o, const learning_rate_schedule& s, update_count at,
                  stepped values, std::span<const stepped> state,
                  std::span<const float* const> gradients, std::size_t elements);

}  // namespace troupe
