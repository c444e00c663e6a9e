#pragma once
// What a program asks of checkpoints, and what the coordinator of its job is told.
//
// Threading: values.

#include <cstdint>
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

// --- for the coordinator -------------------------------------------------------------------------

// A checkpoint that is whole.
struct known_checkpoint {
  std::uint32_t epoch = 0;
  // Its name; sync: version; async: gradients applied, all workers together.
  std::uint64_t step = 0;
  std::vector<std::uint64_t> worker_steps;  // where the workers go on
};

struct checkpoint_policy {
  std::string folder;  // with a folder for each job; empty: none are written
  // Sync: versions, see training_spec::cut_every; async: steps of a worker, in the mean.
  std::uint64_t every_steps = 0;
  std::int64_t every_ns = 0;                    // 0: not by time
  std::optional<known_checkpoint> resume_from;  // the first epoch begins with it
  std::uint32_t epoch = 1;                      // claimed for the first epoch
};

}  // namespace troupe
