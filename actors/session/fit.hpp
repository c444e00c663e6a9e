#pragma once
// The usual loop around a step: epochs, validation, early stopping, the best weights, a log. Small
// on purpose: a program that wants another loop writes it, as this one is written, with
// graph_runner::step().
//
//   auto done = fit(*r, *store, {.epochs = 20,
//                                .training = times(steps_per_epoch),   // a graph that reads
//                                .validation = every_batch(images, labels),
//                                .metrics = {"accuracy"},
//                                .is_larger_better = true,
//                                .patience = 3,
//                                .keeps_best = true});
//
// Threading: the calling thread; callbacks are called there. Errors: those of step(); usage: a
// metric that is no scalar of f32.

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

  batch_source validation{};           // none: no validation, and `watched` is the loss
  std::vector<std::string> metrics{};  // fetched of it, f32[] each; empty: the loss
  // Of another graph on the same store, as one without dropout; null: the same runner.
  graph_runner* validator = nullptr;

  // The first metric is watched. It ends early after so many epochs that were no better than the
  // best one by `at_least`; 0: never.
  std::uint64_t patience = 0;
  double at_least = 0;
  bool is_larger_better = false;
  bool keeps_best = false;    // at the end the store has the values of the best epoch
  std::string save_best{};    // a safetensors file, written after each epoch that is the best
  std::string log_file{};     // a line of JSON per epoch is added to it
  std::uint64_t retries = 0;  // a step that failed, as when a node dies, is made again
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
  double best = 0;  // of what is watched
};

result<fit_report> fit(graph_runner& r, variable_store& store, const fit_options& options);

struct rate_options {
  batch_source training{};
  std::string loss = "loss", update = "train";
  std::string rate = "rate";  // the input that apply_options::rate of the update is
  double from = 1e-6, to = 10;
  std::uint64_t steps = 100;
};
struct rate_report {
  std::vector<std::pair<double, double>> losses;  // by rate
  // A tenth of the one at which the smoothed loss was least; 0: it never fell.
  double suggested = 0;
};
// Learning rates from `from` to `to`, one a step, each as much larger than the one before, until
// the loss is four times its least one or no number; on a copy of the store (Smith: Cyclical
// learning rates for training neural networks, 2017).
result<rate_report> find_learning_rate(session& s, const graph& g, const variable_store& store,
                                       const rate_options& options);

}  // namespace troupe
