#pragma once
// The flags that every program takes that trains: where, how, with which optimizer, and what to
// write.

#include "troupe/actors/program/cluster_flags.hpp"
#include "troupe/actors/program/device_flags.hpp"
#include "troupe/actors/session/session.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troupe {

// Whether both name one file, which need not exist; an empty name is none.
bool is_same_file(const std::string& a, const std::string& b);

struct training_flags : cluster_flags {
  std::string program;  // stands in front of what it says
  std::uint32_t workers = 1, shards = 1, threads = 1, credits = 2;
  update_kind update = update_kind::sync;
  bool all_reduce = false;
  device_flags devices;
  std::uint64_t seed = 1;
  std::string losses, tensorboard, save, name;  // tensorboard: a folder
  std::string record;                           // a file; one of TensorBoard is in `tensorboard`
  std::string save_graph;  // a file: the graph is written there, and nothing is trained
  failure_policy on_failure = failure_policy::stop;
  bool outlive = false;
  std::uint32_t replicas = 0;
  checkpoint_options checkpoints;
  optimizer_spec optimizer;
  double clip_global_norm = 0;
  bool fuse = true, fast = false, json = false;
  nan_policy on_nan = nan_policy::ignore;
  std::optional<loss_scale_spec> loss_scale;  // none: as the precision has it
  std::vector<std::string> without;           // passes of the compiler

  // Prints help or what is wrong with the flags, and exits (0 or 2). `optimizer`: the one without
  // --optimizer; `own` adds the program's flags.
  void parse(int argc, char** argv, const std::string& description,
             const std::string& default_optimizer, const std::function<void(CLI::App&)>& own);
  [[noreturn]] void usage_error(const std::string& text) const;

  // Of a training of so many steps, at whose end cosine and linear have come down.
  learning_rate_schedule schedule_over(std::uint64_t steps) const;
  training_options training(std::uint64_t steps) const;
  compile_options compiling() const;
  session_options session(std::function<bool()> is_cancelled) const;

 private:
  void set_record(bool is_given);

  learning_rate_schedule schedule_;
};

}  // namespace troupe
