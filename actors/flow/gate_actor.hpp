#pragma once
// A topology over several processes. Each process has a gate: an actor beside its node, by which
// the items of other processes come in, and which says the words of part_words.hpp. The program's
// gate places parts on nodes and ends them all; a node's gate runs the node's part, on threads and
// actors of its own.
//
//   program's gate        node's gate
//   place ─────────────▸  builds its graph, or `refused`; binds streams to its neighbours
//         ◂───────────── placed        (or `unlinked`, and `again`, until there is a link)
//   start ─────────────▸  its stages run        when all are placed: nobody's items come to
//         ◂───────────── counts, ...            a process that has not bound its streams
//         ◂───────────── over | failed
//   end   ─────────────▸  what still runs ends
//
//   message            from           effect                                   answer
//   work_word_came     node           as above                                 -
//   node_lost          node           program: what that node had is made      lose_stages to the
//                                     again, if all its stages are kept        director, part_lost
//                                     (kept_replicas.hpp,                      parts_ended
//                                     recovered_replicas.hpp); else the
//                                     topology fails
//                                     node: its part ends with its program
//   word_refused       node           the topology fails                       parts_ended
//   stream_bound       link, node     all bound: placed                        -
//   stream_value       link           a frame: to the group that it is for     -
//   flow_begin,        director       GT-1                                     group_halted,
//   flow_halt, ...                                                             group_surrendered
//   start_parts        program        -                                        -
//   gate_tick          program        what was unlinked is tried again         -
//   end_parts          program,       it holds nobody any more; the program's  the promise
//                      its thread     ends all parts, and leaves
//   part_up, part_down its thread     (of a node's part)                       -
//   topology_ended     its thread     over or failed                           -
//
// GT-1  Between flow_halt, or its own beginning, and flow_resume it passes nothing on: what comes
//       is kept, in order. So nothing of another process comes to a group that has surrendered.
// GT-2  Frames of one edge are passed on in the order in which they came.
// GT-3  Whatever comes from another process, the gate goes on, or the topology fails with a line
//       that says whose bytes they were.
// GT-4  Of a process that is lost nothing is passed on, once its director has been told.
// GT-5  A node's part ends with its program: by `end`, or when the node hears that it is lost.
// Ends: the program's on end_parts, a node's with its part.
// Threading: on the service worker of its process. What it tells groups and directors goes to
// another actor system.

#include "troupe/actors/flow/director.hpp"
#include "troupe/actors/flow/part_words.hpp"
#include "troupe/actors/process/process.hpp"

#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/execution_unit.hpp>

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// To the program. `far`: by edge, for its director.
struct parts_placed {
  std::vector<std::optional<far_route>> far;
};
// One line: what was lost, and what is done about it.
struct part_lost {
  std::string text;
};
struct parts_ended {
  bool has_failed = false;
  error why{error_code::failed, ""};
};
// To the program's gate.
struct start_parts {};
// To a gate, when the director is gone: it gives up what it holds of the topology's actor system,
// and says so in the one way that holds nothing of it. The program's ends all parts, too.
struct end_parts {
  std::shared_ptr<std::promise<void>> left;
  bool has_failed = false;  // of the program's: how the topology ended
  error why{error_code::failed, ""};
};
// To any: some time has passed.
struct gate_tick {};
// To a node's gate, of the thread that runs its part.
struct part_up {
  caf::actor owner;  // takes flow_end
};
struct part_down {};

struct program_gate_setup {
  caf::actor node;
  job_id job{};
  topology_description what;  // with its processes
  std::shared_ptr<topology_view> view;
  caf::actor program;
};
caf::actor spawn_program_gate(caf::actor_system& sys, caf::execution_unit* service,
                              program_gate_setup setup);

struct node_gate_setup {
  work_host host;
  job_id job{};
  node_id program{};
  library_list libraries;
};
caf::actor spawn_node_gate(node_gate_setup setup);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::parts_placed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::parts_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::start_parts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::end_parts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::gate_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_down)
