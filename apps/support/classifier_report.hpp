#pragma once
// What train_classifier shows and writes: progress, losses, the trained variables, the last line.

#include "actors/session.hpp"
#include "apps/support/classifier_options.hpp"
#include "apps/support/progress_bar.hpp"
#include "schema/error.hpp"

#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class classifier_report {
 public:
  explicit classifier_report(const classifier_options& options);  // from now on Ctrl-C is an interruption, not the end
  ~classifier_report();

  // Before anything long begins: the test images fit the others, and the files that are asked for can be written.
  result<void> prepare(const idx_info& images, const idx_info& test_images);
  void begin(std::int64_t samples, std::uint64_t steps_per_epoch);
  std::chrono::milliseconds refresh() const { return std::chrono::milliseconds(100); }
  bool is_interrupted();  // and will stay so
  void show(const training_event& e);
  result<void> outcome() const;  // of the training

  // Name and value of every variable, for feeding.
  std::span<const std::pair<std::string_view, tensor>> variables() const { return feeds_; }

  int fail(const error& e);        // prints the line; the exit code
  result<void> save();             // the variables, if asked for
  int finish(double accuracy);     // prints the result; the exit code

 private:
  void say(const std::string& text);
  void show_loss(const training_event& e);
  void show_totals(const training_totals& t);
  std::string json(double accuracy, double rate, std::uint64_t applied, std::uint64_t dropped) const;
  double images() const;
  double seconds() const;

  const classifier_options& options_;
  std::unique_ptr<progress_bar> bar_;
  std::FILE* losses_ = nullptr;
  std::int64_t samples_ = 0;
  std::uint64_t steps_ = 1, done_ = 0, skipped_ = 0;  // skipped: done by an earlier run
  float mean_loss_ = 0;
  std::chrono::steady_clock::time_point began_{}, ended_{};
  std::vector<std::pair<std::string, tensor>> variables_;
  std::vector<std::pair<std::string_view, tensor>> feeds_;
  training_totals totals_;
  std::string failure_, losses_failure_;
  std::uint32_t lost_workers_ = 0;
};

}  // namespace troupe
