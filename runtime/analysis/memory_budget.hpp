#pragma once
// How much memory a part of a plan may need, known before it is placed: a node has one budget for
// all its parts (--memory), and what does not fit is refused.
//
// The bound is the sum over the actors of the part; tensors are counted at their bounds:
//   buffers     of the plan, which ops share: a copy for each step in flight
//   op, feed    every output port with memory of its own: one buffer being written, and as many as
//               its edges have credits: consumers take in order, so all hold the same ones. A
//               gradient for a shard that needs no spares (below) is one: the next one is made of
//               the version that is made of it
//   receive     twice the credits of its edge, and one being read (items that wait here, and items
//               passed on)
//   shard       version slots, the optimizer's slots once and once more for each older version that
//               is kept, values and slots of a cut that is being written, and a spare for each
//               version that readers may still have (sync: as many as an edge has credits; none
//               where each worker is done with a version when its gradient comes:
//               runtime/analysis/read_order.hpp); where rows are pushed one gradient for each
//               worker
//   send, fetch nothing: they hold what others made
// Datasets that readers load are shared by a process and not counted.

#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct memory_need {
  struct contributor {
    std::string actor;  // a shared buffer is for the largest of what is written to it
    std::uint64_t bytes = 0;
    source_line source;
  };
  std::uint64_t bytes = 0;
  std::vector<contributor> largest;  // up to contributors_max, those that need most first
};
inline constexpr std::size_t contributors_max = 5;

// Of every actor.
std::vector<std::uint64_t> memory_by_actor(const plan& p);
// Of the actors of `task`. Saturates at the largest number.
memory_need memory_of_part(const plan& p, std::uint32_t task);
// "worker/0/conv_2/conv2d (1.5 GiB, model.cpp:12), ...": who needs most.
std::string to_string(const std::vector<memory_need::contributor>& largest);
// What all outputs of its ops and feeds take if each has one buffer of its own: a step without any
// reuse.
std::uint64_t bytes_of_all_tensors(const plan& p, std::uint32_t task);

}  // namespace troupe
