#pragma once
// The archive of a process: keeps account of who wants which checkpoint written or read, and gives
// the disk's actor one request at a time (actors/disk_actor.hpp), since a disk may take its time,
// and since what breaks there shall cost one request only.
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

#include "actors/messages.hpp"
#include "devices/disk.hpp"
#include "runtime/checkpoint.hpp"
#include "runtime/checkpoint_store.hpp"
#include "runtime/control_message.hpp"
#include "runtime/kept_shard.hpp"
#include "runtime/planted_bugs.hpp"
#include "runtime/supervision_tree.hpp"
#include "schema/error.hpp"

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct open_cuts {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string folder, name;  // user's folder, name of the job
  std::uint32_t part = 0;    // number of the part's file
  std::size_t shards = 0;    // that save in each cut
  caf::actor node;
  const planted_bugs* bugs = nullptr;  // tests only
};
struct close_cuts {
  job_id job{};
};
struct part_on_disk {
  part_saved report;
};
struct load_shards {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string folder, name;  // user's folder, name of the job
  std::string checkpoint;    // name of its folder
  // With the slots that each must have, in this order.
  std::map<std::string, std::vector<std::string>> variables;
  caf::actor to;
};
struct shards_loaded {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string error;  // empty: loaded
  std::map<std::string, std::shared_ptr<kept_shard>> shards;
};
struct claim_next {
  std::string folder, name;
  checkpoint_claimant who;
  bool wants_checkpoint = false;  // the newest whole one of `run`
  checkpoint_lineage run;
  caf::actor to;
};
struct epoch_claimed {
  std::shared_ptr<const result<std::uint32_t>> epoch;
  std::optional<checkpoint_manifest> newest;  // whole; where it was asked for
  std::vector<std::string> notes;
};
struct write_cut {
  std::string folder;
  checkpoint_manifest manifest;
  std::uint32_t keep = 3;
  checkpoint_lineage run;
  caf::actor to;
};
struct cut_written {
  std::uint64_t step = 0;
  std::uint32_t epoch = 0;
  std::shared_ptr<const result<void>> written;
};
struct drop_cut {
  std::string folder, name;
  checkpoint_id id;
};

struct use_disk {
  caf::actor disk;
};
struct disk_failed {
  std::string text;
};

inline constexpr supervision_policy archive_policy{.restart = restart_kind::transient,
                                                   .limits = no_restarts};

caf::actor spawn_archive(caf::actor_system& sys, caf::execution_unit* worker);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::open_cuts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::close_cuts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_on_disk)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::load_shards)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::shards_loaded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::claim_next)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::epoch_claimed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::write_cut)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::cut_written)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::drop_cut)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::use_disk)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::disk_failed)
