#pragma once
// Runs the steps of a plan from an actor on a stream, in place of the program: the production
// actors, without the crossings to the program's thread.
//
// It talks to feeds and fetches as a program does: an item for each feed of a step, at most as many
// ahead as a feed has room for, and a credit for every fetched value.
//
// Threading: open, run and destroy from one thread.

#include "troupe/actors/process/process.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

class graph_driver {
 public:
  // The plan runs on `nodes`, by task; feeds and fetch are on `p`. Stream 0 is the driver's.
  static result<std::unique_ptr<graph_driver>> start(process& p, plan job_plan,
                                                     std::vector<node_id> nodes);
  ~graph_driver();

  // Seconds for `steps` steps, `in_flight` of them at a time.
  result<double> run(std::uint64_t steps, std::uint64_t in_flight);
  std::uint64_t actors() const { return actors_; }

 private:
  graph_driver() = default;
  struct parts;
  std::unique_ptr<parts> parts_;
  std::uint64_t actors_ = 0;
};

// Who `p` is, and whom it sees.
view_changed view_of(process& p);

}  // namespace troupe
