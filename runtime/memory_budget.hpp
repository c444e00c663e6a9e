#pragma once
// How much memory a part of a plan may need, known before it is placed: a node has one budget for all its parts (--memory), and
// what does not fit is refused.
//
// The bound is the sum over the actors of the part; tensors are counted at their bounds:
//   op, feed    every output port: one buffer being written, and one for each credit of its edges
//   receive     twice the credits of its edge, and one being read (items that wait here, and items passed on)
//   shard       version slots, the optimizer's slots once and once more for each older version that is kept, values and slots of a
//               cut that is being written, and one spare for each credit of its edges; where rows are pushed one gradient for each worker
//   send, fetch nothing: they hold what others made
// Datasets that readers load are shared by a process and not counted.

#include "runtime/plan.hpp"

#include <cstdint>
#include <string>

namespace troupe {

struct memory_need {
  std::uint64_t bytes = 0;
  std::string largest;  // name of the actor that needs most
  std::uint64_t largest_bytes = 0;
};

// Of one of its actors.
std::uint64_t memory_of_actor(const plan& p, const planned_actor& a);
// Of the actors of `task`. Saturates at the largest number.
memory_need memory_of_part(const plan& p, std::uint32_t task);

}  // namespace troupe
