#pragma once
// The supervisor of a process: drives the tree (runtime/supervision/supervision_tree.hpp) of the
// actors that a process has one of.
//
//     process   one for one, no restarts
//       node, member, archive   each holds what nobody else knows: when one fails, the process
//                               ends, and the others notice at once
//       disk   one for one     the disk's actor, which holds nothing: restarted
//
//   process_supervisor
//   message             from     effect                                       to the archive
//   watch               process  an actor that the process cannot do without  -
//   supervision_tick    node     what waited for the end of its back-off      use_disk
//                                starts
//   end_actor           process  end                                          -
//   its end             a child  as the tree says: start it again, or give    disk_failed, use_disk
//                                up
//
// PV-1  on_give_up is called once, with one line that names the actor whose failure began it. The
//       end of the process is what stops the tree's other children: none of them could end in good
//       order without the one that failed.
// Links are the member's children (actors/cluster/member.hpp), the actors of a part those of its
// own supervisor (actors/node/part_supervisor.hpp).
// Ends: on end_actor, or when it has given up.
// Threading: the service worker.

#include "troupe/actors/messages/process_messages.hpp"
#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/supervision/supervision_tree.hpp"

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace troupe {

struct process_supervision {
  std::function<std::int64_t()> now_ns;  // monotonic
  caf::actor archive;
  disk* files = nullptr;  // outlives the actor
  caf::execution_unit* disk_worker = nullptr;
  std::function<void(const std::string& line)> on_give_up;  // the process cannot go on
  std::function<void(const std::string& line)> on_restart;  // for people
};

caf::actor spawn_process_supervisor(caf::actor_system& sys, caf::execution_unit* worker,
                                    process_supervision about);

}  // namespace troupe
