#pragma once
// What a program shows and writes that trains: progress, losses, events for TensorBoard
// (training_events.hpp), a record for other tools (record_file.hpp), the trained variables, the
// last line. A file of losses, events or a record that cannot be written ends no training: that is
// said once, and where it lacks something in the end, finish() has failed.

#include "troupe/actors/program/progress_bar.hpp"
#include "troupe/actors/program/training_flags.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class record_file;
class training_events;

class training_report {
 public:
  // From now on Ctrl-C and SIGTERM are interruptions, not the end.
  explicit training_report(const training_flags& options);
  ~training_report();

  // Before anything long begins: the files that are asked for can be written.
  result<void> prepare();
  // What the steps of the training go through: `samples` in all, in `epochs` rounds, called `unit`.
  struct extent {
    double samples = 0;
    std::uint64_t steps = 1, epochs = 1;
    std::string unit = "samples";
  };
  void begin(const extent& e);
  std::chrono::milliseconds refresh() const { return std::chrono::milliseconds(100); }
  bool is_interrupted();  // and will stay so
  void show(const training_event& e);
  result<void> outcome() const;  // of the training
  // After an interruption the training ends: it is suspended where it has checkpoints, else
  // stopped; a second one stops it in any case. To be called whenever there is time.
  void heed_signals(training& run);
  // What ended early, while the program did that: an error for fail().
  error interrupted_while(std::string_view doing);
  // Shows what happens until the training ends, which signals bring about; its outcome.
  result<void> follow(training& run);

  // Name and value of every variable, for feeding.
  std::span<const std::pair<std::string_view, tensor>> variables() const { return feeds_; }

  // Prints the line; the exit code: the error's; of a training that was suspended, stopped or
  // detached, which is no failure, 0, or 128 + N by signal N.
  int fail(const error& e);
  result<void> save();  // the variables, if asked for
  // --save-graph, instead of training: the graph with its loss and how it would be trained. Says
  // so.
  result<void> save_graph(graph& g, value loss, const training_options& how);
  // Prints the result; the exit code. `key`, `text`: what the program found in the end, in JSON and
  // in words.
  int finish(const std::string& key, double found, const std::string& text);
  float mean_loss() const noexcept { return mean_loss_; }  // of the last steps

 private:
  void say(const std::string& text);
  void show_loss(const training_event& e);
  // Says the first error of the events; what could not be written may be in the end.
  void say_once(result<void> of_events);
  void say_once_of_record(result<void> of_record);
  void begin_record(std::uint64_t step);
  void record_loss(const training_event& e);
  void record_result(const std::string& key, double found);
  double learning_rate_at(std::uint64_t step) const;
  void show_rates(const training_event& e);
  void show_totals(const training_totals& t);
  // Of a training that has diverged, where --on-nan leaves that to us: says so once.
  void look_for_nan(std::uint64_t step, float loss);
  std::string why_diverged() const;  // empty: it has not
  std::string json(const std::string& key, double found) const;
  double samples() const;  // so far
  double rate() const { return seconds() > 0 ? samples() / seconds() : 0; }
  double seconds() const;

  const training_flags& options_;
  std::unique_ptr<progress_bar> bar_;
  std::FILE* losses_ = nullptr;
  std::unique_ptr<training_events> events_;  // null without --tensorboard
  std::unique_ptr<record_file> record_;      // null without --record
  std::uint64_t recoveries_ = 0, last_recorded_ = 0, last_step_ = 0, losses_seen_ = 0;
  bool has_said_record_ = false;
  // Samples per second of about the last second: since then, and how many were done then.
  std::chrono::steady_clock::time_point rate_began_{};
  double samples_then_ = 0;
  std::optional<double> last_rate_;
  extent extent_;
  // Steps of all workers; skipped: done by an earlier run.
  std::uint64_t steps_ = 1, done_ = 0, skipped_ = 0;
  float mean_loss_ = 0;
  std::chrono::steady_clock::time_point began_{}, ended_{};
  std::vector<std::pair<std::string, tensor>> variables_;
  std::vector<std::pair<std::string_view, tensor>> feeds_;
  training_totals totals_;
  std::string failure_, losses_failure_;
  std::string ended_early_;  // suspended, stopped or detached: what there is to say
  bool is_suspended_ = false, has_ended_ = false, was_interrupted_ = false;
  int heeded_ = 0;                        // interruptions
  std::optional<std::uint64_t> lost_at_;  // the first step of those to the last whose loss is none
  bool has_said_nan_ = false;
  bool has_said_events_ = false;
  std::uint32_t lost_workers_ = 0;
};

}  // namespace troupe
