#pragma once
// Runs one group of a topology (runtime/flow/flow_group.hpp) on a thread: its messages become calls
// of the group, and what the group sends becomes messages.
//
//   message         from      effect                                   answer
//   flow_begin      director  this is its group now, and stands still  -
//   flow_items      groups    items of an edge; run                    -
//   flow_frame      gate      the same, of another process             -
//   flow_room       groups,   there is room behind an edge; run        -
//                   gate
//   flow_closed     groups,   nobody needs that edge's items; run      -
//                   gate
//   flow_go         itself    run on                                   -
//   flow_wake       clock     run                                      -
//   flow_halt       director  run no more                              group_halted
//   flow_resume     director  run, or run again                        -
//   flow_surrender  director  give the group away                      group_surrendered
//   flow_finish     director  its sources make no more; run            -
//   flow_pause      director  its sources stand still, or go on; run   -
//   flow_replace    director  another function for a stage              -
//   flow_look       director  that stage may have something to do; run -
//   flow_end        director  drop everything and end                  -
//
// What goes to another process it sends to that one's link, as a frame, which is written and read
// on the group's own thread.
//
// It tells the director group_over once, when all its stages are, and group_failed once.
//
// GA-1  Between flow_begin or flow_halt and flow_resume nothing fires. What comes is kept, so that
//       nobody sends to a group that has not begun, and what a group surrenders has all that was
//       sent to it.
// GA-2  It runs for a slice of time at most, then other messages have their turn.
// Ends: on flow_end.
// Threading: pinned to one thread; stages run in its handlers, and may take as long as they like.

#include "troupe/actors/flow/flow_messages.hpp"

#include <caf/actor_system.hpp>
#include <caf/execution_unit.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace troupe {

struct group_setup {
  std::uint32_t group = 0;
  caf::actor director, clock;
  std::function<std::int64_t()> now_ns;
};

// The graph whose stages run in the calling thread at this moment; null: none does.
const flow_graph* graph_that_runs_here() noexcept;
caf::actor spawn_group(caf::actor_system& sys, caf::execution_unit* thread, group_setup setup);

}  // namespace troupe
