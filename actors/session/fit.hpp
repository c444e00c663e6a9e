#pragma once
// The usual loop around a step: epochs, validation, early stopping, the best weights, a log. Small
// on purpose: a program that wants another loop writes it, as this one is written, with
// graph_runner::step().
//
//   auto done = fit(*r, *store, {.epochs = 20,
//                                .training = batches_of({{"x", x}, {"y", y}}, 128),
//                                .validation = batches_of({{"x", held}, {"y", labels}}, 512),
//                                .metrics = {"accuracy"},
//                                .is_larger_better = true,
//                                .patience = 3,
//                                .keeps_best = true,
//                                .tensorboard = "runs/1"});
//
// Threading: the calling thread; callbacks are called there. Errors: those of step(), of sources,
// of files and of the store; usage: a metric that is no scalar of f32, an epoch without a batch,
// options that do not go together.

#include "troupe/actors/session/graph_runner.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/actors/session/variable_store.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

using fed_batch = std::vector<std::pair<std::string, tensor>>;
// A batch, or std::nullopt: the epoch has ended; or an error, with which fit() ends.
struct next_batch {
  next_batch(fed_batch b) : batch(std::move(b)) {}
  next_batch(std::nullopt_t) {}
  next_batch(error e) : failure(std::move(e)) {}
  std::optional<fed_batch> batch;
  std::optional<error> failure;
};
// The batch of a step of an epoch; both count from 0.
using batch_source = std::function<next_batch(std::uint64_t epoch, std::uint64_t step)>;
// Of a graph that reads by itself: so many steps, which are fed nothing.
batch_source times(std::uint64_t steps);
// Rows of tensors that have as many each, `rows` at a time; the last batch of an epoch is smaller.
// With a seed in an order of its own in each epoch, that of index_batch() with this seed, so that a
// loop sees what a training saw (apps/resume_elsewhere.cpp); else as they are.
batch_source batches_of(std::vector<std::pair<std::string, tensor>> data, std::int64_t rows,
                        std::optional<std::uint64_t> shuffled_by = std::nullopt);

struct epoch_report {
  std::uint64_t epoch = 0;  // from 0
  std::uint64_t steps = 0;  // of all epochs so far
  double loss = 0;          // the mean of its steps
  // By metric, over the validation: the mean of its batches, each counted by its rows (the first
  // dimension of what is fed first; 1 where nothing is).
  std::vector<double> metrics{};
  bool is_best = false;
  double seconds = 0;
};

struct fit_options {
  std::uint64_t epochs = 1;
  batch_source training{};
  std::string loss = "loss";     // what is fetched of each step: f32[]
  std::string update = "train";  // and done

  // None: no validation, no metrics, and the loss is watched.
  batch_source validation{};
  std::vector<std::string> metrics{};  // fetched of it, f32[] each; empty: the loss
  // Of another graph on the same store, as one without dropout; null: the same runner.
  graph_runner* validator = nullptr;

  // The first metric is watched. It ends early after so many epochs that were no better than the
  // best one by `at_least`; 0: never.
  std::uint64_t patience = 0;
  double at_least = 0;
  bool is_larger_better = false;
  // At the end, also of an error, the variables that the update changes have their values of the
  // best epoch; what optimizers keep stays.
  bool keeps_best = false;
  std::string save_best{};  // a safetensors file, written after each epoch that is the best
  bool saves_optimizers = false;
  std::string log_file{};  // a line of JSON per epoch is added to it
  // A folder, which has this run alone: an event file in it gets the loss of each step (of very
  // many: is_kept()), and with each epoch epoch/LOSS, validation/METRIC and steps_per_second.
  std::string tensorboard{};
  // A file, FILE.jsonl or FILE.csv (record_file.hpp), which gets the loss of each step (likewise),
  // and with each epoch epoch/LOSS, validation/METRIC and steps_per_second. What it had is
  // replaced.
  std::string record{};
  // A step that failed, as when a node dies, is made again so often, after 20 ms, 40 ms, ... Once
  // one went well, also what is a usage error: the node that devices name may be missing for a
  // while.
  std::uint64_t retries = 0;
  // False: it ends after this epoch (this step).
  std::function<bool(const epoch_report&)> on_epoch{};
  std::function<bool(std::uint64_t step, double loss)> on_step{};
};

enum class fit_end : std::uint8_t {
  epochs,       // all were done
  no_progress,  // it ended early
  callback,     // a callback said so
};

struct fit_report {
  fit_end why = fit_end::epochs;
  std::vector<epoch_report> epochs;
  std::uint64_t steps = 0;
  std::uint64_t best_epoch = 0;
  // Of what is watched; NaN: no epoch had a number.
  double best = std::numeric_limits<double>::quiet_NaN();
};

// The store is that of the runner, and of the validator.
result<fit_report> fit(graph_runner& r, variable_store& store, const fit_options& options);

struct rate_options {
  batch_source training{};
  std::string loss = "loss", update = "train";
  std::string rate = "rate";  // the input that the update's rate is (apply_options::rate)
  double from = 1e-6, to = 10;
  std::uint64_t steps = 100;
};
struct rate_report {
  std::vector<std::pair<double, double>> losses;  // by rate
  // A tenth of the one at which the smoothed loss was least; 0: it never fell. A factor of the
  // optimizer's learning rate, as rates of updates are.
  double suggested = 0;
};
// Rates from `from` to `to`, one a step, each as much larger than the one before, until the loss
// has risen above its first value by as much as it had fallen, and by that value, or is no number;
// on a copy of the store (Smith: Cyclical learning rates for training neural networks, 2017).
result<rate_report> find_learning_rate(session& s, const graph& g, const variable_store& store,
                                       const rate_options& options);

}  // namespace troupe
