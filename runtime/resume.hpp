#pragma once
// A job's folder of checkpoints, from the side of the program that starts the job: may it, and
// where does it begin?
//
// RS-1  Of two programs that start a job of one name in one folder, one is told that the other has
//       it.
// RS-2  What was made by another graph is refused; what was made by another schedule is refused
//       unless `rebatch` says so.
// RS-3  No checkpoint of an earlier run is removed or passed over without a word: without `resume`,
//       a folder that has one is refused.

#include "devices/disk.hpp"
#include "runtime/checkpoint.hpp"
#include "runtime/compile.hpp"
#include "runtime/job_coordinator.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// Where a training is saved so that it can go on: after the loss of variables, and in another
// program (`resume`).
struct checkpoint_options {
  // That every node reaches under this path; empty: no checkpoints.
  std::string folder{};
  std::uint64_t every_steps = 0;  // async: of each worker, in the mean
  std::int64_t every_ns = 0;      // 0: not by time; neither: at the end only
  std::uint32_t keep = 3;         // the newest ones stay
  // Go on with the newest whole one of a job of this name, if there is one.
  bool resume = false;
  // With other numbers than it was made with: its data epoch begins anew.
  bool rebatch = false;
};

struct opened_folder {
  std::unique_ptr<disk_lock> lock;              // to be kept while the job lives
  std::uint32_t epoch = 1;                      // claimed
  std::optional<known_checkpoint> resume_from;  // empty: begins at step 0
  std::vector<std::string> notes;               // what people want to know of it
};

// Locks the folder of the job, looks for the newest whole checkpoint (reads it all) and claims the
// next epoch.
// Errors: denied (another program has it), usage (RS-2, RS-3), failed (the disk).
result<opened_folder> open_job_folder(disk& d, const checkpoint_options& o,
                                      const training_program& program,
                                      const checkpoint_claimant& who);

}  // namespace troupe
