#pragma once
// The supervisor of one part of a job: spawns its actors, wires them, ends them, and reports
// part_events to the node.
//
//   part_supervisor
//   message           from         effect                                       to the node
//   actor_ready       port actors  wired; when all are                          placed
//   actor_done        port actors  it has done its steps; when all have         done
//   actor_noted       port actors  people want to know it                       noted
//   actor_failed      port actors  the first one that is no consequence counts  failed
//   start_firing      node         sources may fire                             -
//   cancel_step       node         loops of steps up to that one end            -
//   mark_cut          node         workers mark what they make next             -
//   task_lost         node         the ports that lead there are lost           -
//   stop_part_actors  node         end all actors; then ask the streams         -
//   stream_through    stream       through with all; when all streams are       stopped
//
// Supervision: its actors are not restarted one by one. What they have sent each other is gone with
// any one of them, so that a failure of one ends them all, by way of the job, which begins a new
// epoch. Nor is the supervisor itself: the job is told, and another supervisor ends what is left.
//
// PT-1  A part fails once: with the first failure that is not derived from a lost peer.
// PT-2  A part has ended when its actors have, and then the streams of devices that they used are
//       through with what they were given: what of it fails late fails before the next part begins
//       there. A stream that has failed is through, too, and one whose process ends.
// Ends: with the part (PT-2).
// Threading: the service worker.

#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/actors/plan/part_context.hpp"

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

struct part_request {
  // Supervisor and program are filled in by the supervisor and the node.
  std::shared_ptr<part_context> context{};
  std::vector<std::uint32_t> actors{};  // indices in the plan
  std::vector<caf::actor> links{};      // by task
  std::vector<caf::execution_unit*> streams{};
  caf::execution_unit* io = nullptr;
  caf::actor node{};
  std::shared_ptr<part_handles> handles{};  // filled in by the supervisor
  // Another supervisor has failed: end the actors in `handles`.
  bool is_left_over = false;
};
caf::actor spawn_supervisor(caf::actor_system& sys, caf::execution_unit* worker,
                            part_request request);

}  // namespace troupe
