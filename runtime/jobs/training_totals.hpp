#pragma once
// What a training has done, in numbers, as its program is told at the end.
//
// Threading: values.

#include <cstdint>
#include <vector>

namespace troupe {

// Steps of one worker; fed = applied + dropped + in flight at its end. A step counts as applied
// once every shard has applied its gradient, as dropped once a shard dropped it.
struct worker_totals {
  std::uint64_t fed = 0;
  std::uint64_t applied = 0;
  std::uint64_t dropped = 0;
  std::uint64_t in_flight = 0;
  friend bool operator==(const worker_totals&, const worker_totals&) = default;
};

struct training_totals {
  std::vector<worker_totals> workers;
  std::uint64_t actors = 0;  // of the job, on all nodes, in its last epoch
  std::uint64_t op_actors = 0;
  std::uint64_t data_messages = 0;        // items on edges, credits not counted
  std::uint64_t recoveries = 0;           // epochs begun after a failure
  std::uint64_t redone = 0;               // steps made again, all workers together
  std::uint64_t checkpoints = 0;          // written
  std::uint64_t checkpoints_missing = 0;  // not written, since the last one that is there
};

}  // namespace troupe
