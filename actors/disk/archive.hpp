#pragma once
// The archive of a process: keeps account of who wants which checkpoint written or read, and gives
// the disk's actor one request at a time (actors/disk/disk_actor.hpp), since a disk may take its
// time, and since what breaks there shall cost one request only.
//
//   archive_actor
//   message        from        effect                                                 answer
//   open_cuts      node        shards of a part are going to save cuts in this        -
//                              folder
//   close_cuts     node        forget what was collected for them                     -
//   save_shard     shards      collect; the last one of a part and a cut: write the   cut_saved to
//                              part                                                   the shards,
//                                                                                     part_on_disk
//                                                                                     to the node
//   load_shards    node        read variables of a checkpoint, verified               shards_loaded
//   claim_next     job         claim the next epoch of a job; find its newest         epoch_claimed
//                              checkpoint
//   write_cut      job         write the manifest, then remove what is older than is  cut_written
//                              kept
//   drop_cut       job         remove what there is of a checkpoint that will not be  -
//                              whole
//   disk_done      disk        pass the answer on; the next request                   -
//   use_disk       supervisor  a disk's actor that runs                               -
//   disk_failed    supervisor  the request at hand is answered with an error, others  -
//                              wait
//
// AC-1  A part is reported as saved when it is on disk under its name, synced, and so is its
//       folder.
// AC-2  A shard is told cut_saved once for each save_shard, whatever became of it.
// AC-3  A manifest is written only while no later epoch of the job is claimed by anybody: two
//       programs cannot both write.
// AC-4  A failure of the disk is an answer; it ends nothing.
// AC-5  Every request is answered once, also when the disk's actor fails: what it had at hand with
//       that failure.
// Supervision: archive_policy. Who collects knows what nobody else does, so without it the process
// ends.
// Ends: with the process.
// Threading: the service worker; never blocks.

#include "troupe/actors/messages/archive_messages.hpp"
#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/shards/kept_shard.hpp"
#include "troupe/runtime/supervision/supervision_tree.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/schema/error.hpp"

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

inline constexpr supervision_policy archive_policy{.restart = restart_kind::transient,
                                                   .limits = no_restarts};

caf::actor spawn_archive(caf::actor_system& sys, caf::execution_unit* worker);

}  // namespace troupe
