#pragma once
// Runs a topology: puts its stages on threads, moves them where that gains something, and ends it.
//
//   message            from      effect                                      answer
//   group_over         groups    when all are: the topology is over          topology_ended to the
//                                                                            program
//   group_failed       groups    all groups end                              topology_ended
//   group_halted       groups    when all have: they are asked to surrender  -
//   group_surrendered  groups    when all have: put together, cut anew       -
//   lose_stages        gate      all are halted; what those had is dealt    -
//                                again
//   director_tick      clock     measures loads; halts all where another     -
//                                placement gains enough
//   stop_topology      program   sources end, and what is under way goes on  -
//                                to its end; or everything ends at once; or
//                                after a checkpoint
//   flow_end           program   groups end, and it does                     director_gone
//
// Groups are numbered, and each is on one worker for life; several may share one. As a rule there
// is a group for each thread: a topology begins with all its stages on one, where they are
// measured. It is cut over the others as soon as one of them is busy, and anew when the loads have
// changed; a placement that made it slower is taken back.
//
// Twenty times a second it looks at what the program and tools ask for (topology_wishes), and
// at replicas whose number is left to it (replica_tuner.hpp).
//
// TD-1  No item is lost, doubled or overtaken by a new placement: groups stand still, with all that
//       was sent to them, before they surrender.
// TD-2  Who does not stand still in time (a stage that takes long) calls a placement off, but not
//       what is to be done for a process that is lost: that waits.
// TD-3  Of several failures the first one counts.
// TD-4  A checkpoint is made while all stand still between two calls. Where that does not come
//       about, since some stage waits for what a source has not made yet, or a call takes very
//       long, all go on, and it is tried again later.
// Of a topology over several processes each one has a director for its part. The gate
// (gate_actor.hpp) then stands still, surrenders and begins with the groups, as one that has no
// stages: what comes from other processes meanwhile stays with it.
// Ends: on flow_end, with its groups. Threading: on the service worker.

#include "troupe/actors/flow/flow_messages.hpp"
#include "troupe/runtime/flow/topology_checkpoint.hpp"
#include "troupe/runtime/flow/topology_control.hpp"

#include <caf/actor_system.hpp>
#include <caf/execution_unit.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

class io_loop;

// What tools read, and the program at the end. Atomics only.
struct topology_view {
  std::shared_ptr<const flow_graph> graph;
  std::vector<std::shared_ptr<stage_counters>> stages;
  std::vector<std::shared_ptr<edge_meter>> edges;
  std::vector<std::atomic<std::uint32_t>> places;    // the group of each stage
  std::vector<std::shared_ptr<group_pulse>> pulses;  // of each group
  std::atomic<std::uint64_t> placements{0};
  std::atomic<bool> is_paused{false};
  std::vector<std::atomic<float>> busy;  // of each stage, of late
  explicit topology_view(std::size_t n) : places(n), busy(n) {}
};

// How a topology is kept (runtime/flow/topology_checkpoint.hpp).
struct director_checkpoints {
  std::int64_t every_ns = 0;
  // On the director's thread, while everybody stands still.
  std::function<result<void>(topology_checkpoint)> write;
};

struct director_setup {
  std::shared_ptr<const flow_graph> graph;    // checked
  std::uint32_t threads = 1;                  // that compute
  std::vector<caf::execution_unit*> workers;  // of each group
  std::vector<std::uint32_t> places;          // the group of each stage, at first
  // Group i is alone on thread i, and stages move between them. Otherwise they stay.
  bool moves = true;
  caf::actor clock, program;
  std::function<std::int64_t()> now_ns;
  std::shared_ptr<topology_view> view;
  std::shared_ptr<topology_wishes> wishes;  // null: nobody asks for anything
  std::optional<director_checkpoints> checkpoints;
  std::shared_ptr<flow_group> whole;
  // Where the topology has stages in other processes: the gate, and the routes to those, by edge.
  caf::actor gate;
  std::vector<std::optional<far_route>> far;
};

caf::actor spawn_director(caf::actor_system& sys, caf::execution_unit* service,
                          director_setup setup);
// Sends flow_wake (or director_tick) when a time has come. On the worker of `loop`.
caf::actor spawn_flow_clock(caf::actor_system& sys, caf::execution_unit* io, io_loop& loop,
                            std::function<std::int64_t()> now_ns);

}  // namespace troupe
