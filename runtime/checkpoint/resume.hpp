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

#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/compile/compile.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

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
