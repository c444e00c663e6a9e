#pragma once
// The archive of a process: what writes and reads checkpoints, on a thread of its own, since a disk may take its time.
//
//   archive_actor
//   message        from          effect                                                        answer
//   open_cuts      node          shards of a part are going to save cuts in this folder        -
//   close_cuts     node          forget what was collected for them                            -
//   save_shard     shards        collect; the last one of a part and a cut: write the part     cut_saved to the shards,
//                                                                                              part_on_disk to the node
//   load_shards    node          read variables of a checkpoint, verified                      shards_loaded
//   claim_next     job           claim the next epoch of a job; find its newest checkpoint     epoch_claimed
//   write_cut      job           write the manifest, then remove what is older than is kept    cut_written
//
// AC-1  A part is reported as saved when it is on disk under its name, synced, and so is its folder.
// AC-2  A shard is told cut_saved once for each save_shard, whatever became of it.
// AC-3  A manifest is written only while no later epoch of the job is claimed by anybody: two programs cannot both write.
// AC-4  A failure of the disk is an answer; it ends nothing.
// Ends: with the process.
// Threading: the disk's worker; blocks there, and only there.

#include "actors/messages.hpp"
#include "devices/disk.hpp"
#include "runtime/checkpoint.hpp"
#include "runtime/control_message.hpp"
#include "runtime/kept_shard.hpp"
#include "runtime/planted_bugs.hpp"
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
struct close_cuts { job_id job{}; };
struct part_on_disk { part_saved report; };
struct load_shards {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string folder, name;  // user's folder, name of the job
  std::string checkpoint;    // name of its folder
  std::vector<std::string> variables;
  caf::actor to;
};
struct shards_loaded {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string error;         // empty: loaded
  std::map<std::string, std::shared_ptr<kept_shard>> shards;
};
struct claim_next {
  std::string folder, name;
  checkpoint_claimant who;
  bool wants_checkpoint = false;  // the newest whole one
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
  caf::actor to;
};
struct cut_written {
  std::uint64_t step = 0;
  std::uint32_t epoch = 0;
  std::shared_ptr<const result<void>> written;
};

// `where` outlives the actor.
caf::actor spawn_archive(caf::actor_system& sys, caf::execution_unit* worker, disk& where);

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
