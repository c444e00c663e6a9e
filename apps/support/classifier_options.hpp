#pragma once
// The flags of train_classifier.

#include "actors/session.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class scratch_folder;

struct classifier_options {
  std::string data;     // folder of IDX files; without --data one that is made, and removed at the end
  std::string cluster;  // empty: in this process
  std::vector<std::string> join;
  std::string token_file;
  std::chrono::milliseconds timeout{5000};
  std::uint32_t workers = 1, shards = 1, threads = 1, credits = 2;
  update_kind update = update_kind::sync;
  std::uint64_t epochs = 10, seed = 1;
  std::int64_t batch = 128;
  std::string losses, save, name = "classifier";
  failure_policy on_failure = failure_policy::stop;
  std::uint32_t replicas = 0;
  checkpoint_options checkpoints;
  optimizer_spec optimizer;
  double clip_global_norm = 0;
  bool fuse = true, json = false;
  std::shared_ptr<scratch_folder> made_data;

  // Prints help or what is wrong with the flags, and exits (0 or 2).
  static classifier_options parse(int argc, char** argv);
  // Of a training of so many steps, at whose end cosine and linear have come down.
  learning_rate_schedule schedule_over(std::uint64_t steps) const;

 private:
  learning_rate_schedule schedule_;
};

}  // namespace troupe
