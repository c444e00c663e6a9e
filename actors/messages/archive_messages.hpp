#pragma once
// The messages of checkpoints inside a process: to the archive, back from it, and between it and
// the disk's actor. Each is said of in the tables of actors/disk/archive.hpp and
// actors/disk/disk_actor.hpp.
//
// Threading: values, inside one process.

#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/shards/kept_shard.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
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
  // The newest epoch that the caller knows of; denied, where one of these (host and pid count) has
  // claimed a newer one.
  std::uint32_t known_epoch = 0;
  std::vector<checkpoint_claimant> rivals{};
  bool is_anybody_a_rival = false;  // but the caller
  bool wants_lock = false;          // on the job's folder, if nobody holds it
};
struct epoch_claimed {
  std::shared_ptr<const result<std::uint32_t>> epoch;
  std::optional<checkpoint_manifest> newest;  // whole; where it was asked for
  std::vector<std::string> notes;
  std::shared_ptr<const void> lock{};  // null: somebody has it, or it was not asked for
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

// --- between the archive and the disk ------------------------------------------------------------

struct write_part {  // of a cut
  open_cuts about;
  std::vector<save_shard> shards;  // all of the part's
};
struct cut_dropped {};
using disk_request = std::variant<write_part, load_shards, claim_next, write_cut, drop_cut>;
// In the same order.
using disk_answer =
    std::variant<part_saved, shards_loaded, epoch_claimed, cut_written, cut_dropped>;

struct disk_work {
  std::shared_ptr<const disk_request> request;
  caf::actor to;
};
struct disk_done {
  std::shared_ptr<disk_answer> answer;
};

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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::disk_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::disk_done)
