#pragma once
// What a program that trains shows in TensorBoard (--tensorboard): `loss` of each step (of very
// many: is_kept()), `steps_per_second`, `samples_per_second` and `learning_rate` about once a
// second, and as texts `recoveries` (what failed, and where it went on) and `notes`; at the end
// what the program found, as `result/test_accuracy`.
//
// A training that goes on from a checkpoint may use the folder that it had before: what the earlier
// file has of steps that are made again is void (event_file::begin_at).
//
// Threading: one thread. Errors: those of event_file.

#include "troupe/actors/session/event_file.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class training_events {
 public:
  static result<std::unique_ptr<training_events>> open(const std::string& folder);

  result<void> add_loss(std::uint64_t step, float loss);
  // At the step that the training has come to.
  result<void> add_text(std::string_view tag, std::string text);
  // Likewise.
  result<void> add_number(std::string_view tag, double x) {
    return file_->add_scalar(tag, last_step_, x);
  }
  // Now and then, also without anything to add.
  result<void> flush_if_due() { return file_->flush_if_due(); }
  // The training has ended: all that there is, in the file. More may come.
  result<void> finish_training();
  result<void> add_result(const std::string& key, double found);
  result<void> close() { return file_->close(); }

 private:
  explicit training_events(std::unique_ptr<event_file> file) : file_(std::move(file)) {}
  result<void> add_rate(double seconds);

  std::unique_ptr<event_file> file_;
  std::uint64_t losses_ = 0, last_step_ = 0;
  std::uint64_t next_text_ = 0;                             // of several at one step some show one
  std::vector<std::pair<std::string, std::string>> early_;  // texts before the first loss
  // Steps since the last rate, or since the first loss.
  std::chrono::steady_clock::time_point rate_began_{};
  std::uint64_t steps_of_rate_ = 0;
  bool has_rate_ = false;
};

}  // namespace troupe
