#include "troupe/actors/program/training_report.hpp"

#include "troupe/actors/program/output.hpp"
#include "troupe/actors/program/training_events.hpp"
#include "troupe/actors/session/event_file.hpp"
#include "troupe/actors/session/record_file.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/devices/files/signals.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>

namespace troupe {

namespace {

// The only thing that a signal handler may touch.
volatile std::sig_atomic_t interruptions = 0, last_signal = 0;

void on_signal(int signal) {
  last_signal = signal;
  interruptions = interruptions + 1;
  if (interruptions > 1) std::signal(signal, SIG_DFL);  // a third one ends the program at once
}

}  // namespace

training_report::training_report(const training_flags& options) : options_(options) {
  take_writes_as_errors();
  heed_signal(SIGINT, on_signal);
  heed_signal(SIGTERM, on_signal);
}

training_report::~training_report() {
  if (losses_ != nullptr) std::fclose(losses_);
}

result<void> training_report::prepare() {
  if (!options_.save.empty())
    if (auto ok = can_save_safetensors(options_.save); !ok)
      return error(ok.error()).while_doing("--save");
  if (!options_.losses.empty()) losses_ = std::fopen(options_.losses.c_str(), "w");
  if (!options_.losses.empty() && losses_ == nullptr)
    return error(
        errno == ENOENT ? error_code::not_found : error_code::usage,
        fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno)));
  if (!options_.record.empty()) {
    auto record = record_file::open(options_.record);
    if (!record) return std::move(record.error().while_doing("--record"));
    record_ = std::move(*record);
  }
  if (options_.tensorboard.empty()) return {};
  auto events = training_events::open(options_.tensorboard);
  if (!events) return std::move(events.error().while_doing("--tensorboard"));
  events_ = std::move(*events);
  return {};
}

void training_report::begin(const extent& e) {
  extent_ = e;
  steps_ = e.steps * (options_.update == update_kind::async ? options_.workers : 1);
  bar_ = std::make_unique<progress_bar>(steps_, false);
  began_ = ended_ = std::chrono::steady_clock::now();
}

bool training_report::is_interrupted() { return interruptions > 0; }

double training_report::seconds() const {
  return std::chrono::duration<double>(ended_ - began_).count();
}

double training_report::samples() const {
  return extent_.samples * double(done_ - skipped_) / double(steps_);
}

void training_report::show(const training_event& e) {
  using kind = training_event::kind;
  if (events_) say_once(events_->flush_if_due());
  if (record_) say_once_of_record(record_->flush_if_due());
  switch (e.type) {
    case kind::none: return;
    case kind::started:
      began_ = ended_ = std::chrono::steady_clock::now();
      return begin_record(e.step);
    case kind::loss: return show_loss(e);
    case kind::variables:
      variables_ = e.variables;
      feeds_.clear();
      // Who tests a model has no scale in its graph.
      for (const auto& [name, value] : variables_)
        if (!loss_scale_of(options_.devices.precision, options_.loss_scale) ||
            name != loss_scale_name)
          feeds_.emplace_back(name, value);
      return;
    case kind::worker_lost:
      ++lost_workers_;
      ++recoveries_;
      if (events_) say_once(events_->add_text("recoveries", e.text));
      return bar_->say(options_.program + ": " + e.text + "; training goes on with the others");
    case kind::recovering:
    case kind::resumed:
    case kind::note:
      if (e.type == kind::recovering) ++recoveries_;
      if (events_)
        say_once(events_->add_text(e.type == kind::note ? "notes" : "recoveries", e.text));
      return say(e.text);
    case kind::finished: totals_ = e.totals; break;
    case kind::stopped:
      totals_ = e.totals;
      ended_early_ = fmt::format("job {} was stopped at step {}: {}", options_.name, done_, e.text);
      break;
    case kind::suspended:
      totals_ = e.totals;
      is_suspended_ = true;
      ended_early_ = fmt::format("job {} was suspended {}", options_.name, e.text);
      break;
    case kind::detached:
      ended_early_ = fmt::format("job {} goes on without this program: {}", options_.name, e.text);
      break;
    case kind::failed:
      totals_ = e.totals;
      failure_ = e.text;
      if (events_) say_once(events_->add_text("failure", e.text));
      break;
  }
  has_ended_ = true;
  if (events_ && !ended_early_.empty()) say_once(events_->add_text("end", ended_early_));
  if (events_ && losses_seen_ > 0 && !last_rate_) {  // shorter than a second
    say_once(events_->add_number("samples_per_second", rate()));
    say_once(events_->add_number("learning_rate", learning_rate_at(last_step_)));
  }
  if (events_) say_once(events_->finish_training());
  if (record_) say_once_of_record(record_->flush());
  bar_.reset();
  show_totals(totals_);
}

void training_report::say(const std::string& text) {
  if (bar_)
    bar_->say(options_.program + ": " + text);
  else
    say_error(options_.program + ": " + text);
}

void training_report::say_once(result<void> of_events) {
  if (of_events || std::exchange(has_said_events_, true)) return;
  say(of_events.error().while_doing("--tensorboard").text() + "; training goes on");
}

void training_report::say_once_of_record(result<void> of_record) {
  if (of_record || std::exchange(has_said_record_, true)) return;
  say(of_record.error().while_doing("--record").text() + "; training goes on");
}

// Of the schedule as devices follow it: async, steps are those of a worker.
double training_report::learning_rate_at(std::uint64_t step) const {
  const bool is_async = options_.update == update_kind::async;
  return options_.optimizer.learning_rate *
         learning_rate_factor(options_.schedule_over(extent_.steps),
                              is_async ? step / std::max(1U, options_.workers) : step);
}

// About once a second. Losses come in bursts: a rate of less than a second is none.
void training_report::show_rates(const training_event& e) {
  const auto now = std::chrono::steady_clock::now();
  if (losses_seen_++ == 0) {
    rate_began_ = now;
    samples_then_ = samples();
    return;
  }
  const std::chrono::duration<double> passed = now - rate_began_;
  if (passed.count() < 1) return;
  last_rate_ = (samples() - samples_then_) / passed.count();
  rate_began_ = now;
  samples_then_ = samples();
  if (!events_) return;
  say_once(events_->add_number("samples_per_second", *last_rate_));
  say_once(events_->add_number("learning_rate", learning_rate_at(e.step)));
}

// A training that goes on from a checkpoint; async, steps are those of a worker, and its losses say
// where it begins.
void training_report::begin_record(std::uint64_t step) {
  if (!record_ || options_.update == update_kind::async) return;
  if (const auto lacks = record_->lacking_before(step))
    say(
        fmt::format("{} lacks steps {} to {}, which were made and not recorded: the program ended "
                    "before it could write them",
                    options_.record, lacks->first, lacks->second));
  say_once_of_record(record_->begin_at(step));
  last_recorded_ = step > 0 ? step - 1 : 0;
}

// RF-2, also for one that is restarted.
void training_report::record_loss(const training_event& e) {
  const auto nth = losses_seen_ - 1;
  if (nth == 0 || e.step <= last_recorded_) say_once_of_record(record_->begin_at(e.step));
  last_recorded_ = e.step;
  if (!is_kept(nth)) return;
  say_once_of_record(record_->add({.step = e.step,
                                   .loss = static_cast<double>(e.loss),
                                   .learning_rate = learning_rate_at(e.step),
                                   .samples_per_second = last_rate_,
                                   .recoveries = recoveries_}));
}

void training_report::record_result(const std::string& key, double found) {
  // All steps were made by an earlier run.
  if (losses_seen_ == 0) {
    say_once_of_record(record_->begin_behind_losses());
    if (options_.update == update_kind::async) last_recorded_ = record_->last_step().value_or(0);
  }
  say_once_of_record(record_->add({.step = last_recorded_,
                                   .recoveries = recoveries_,
                                   .metric = "result/" + key,
                                   .value = found}));
}

void training_report::show_loss(const training_event& e) {
  const bool is_sync = options_.update == update_kind::sync;
  if (done_ == skipped_ && is_sync) done_ = skipped_ = e.step;  // a resumed run begins there
  ++done_;
  ended_ = std::chrono::steady_clock::now();
  last_step_ = e.step;
  mean_loss_ = done_ == skipped_ + 1 ? e.loss : mean_loss_ + (e.loss - mean_loss_) * 0.02f;
  look_for_nan(e.step, e.loss);
  if (events_) say_once(events_->add_loss(e.step, e.loss));
  if (events_ || record_) show_rates(e);
  if (record_) record_loss(e);
  if (losses_ != nullptr && !write_text(losses_, fmt::format("{},{:.9g}\n", e.step, e.loss)) &&
      losses_failure_.empty()) {
    losses_failure_ =
        fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno));
    bar_->say(options_.program + ": " + losses_failure_ + "; training goes on");
  }
  const auto left =
      rate() > 0 ? extent_.samples * double(steps_ - done_) / double(steps_) / rate() : 0;
  const auto epoch = std::min<std::uint64_t>(extent_.epochs, 1 + done_ * extent_.epochs / steps_);
  const auto where =
      extent_.epochs > 1 ? fmt::format("epoch {}/{}  ", epoch, extent_.epochs) : std::string();
  bar_->show(done_, fmt::format("{}loss {}  {:.0f} {}/s  {} left", where,
                                std::isnan(mean_loss_) ? "nan" : fmt::format("{:.4f}", mean_loss_),
                                rate(), extent_.unit, format_seconds(left)));
}

void training_report::look_for_nan(std::uint64_t step, float loss) {
  if (std::isfinite(loss)) return lost_at_.reset();
  if (!lost_at_) lost_at_ = step;
  // A loss scale meets some, and goes on; the others have said what is to be done.
  if (options_.on_nan != nan_policy::ignore ||
      loss_scale_of(options_.devices.precision, options_.loss_scale) ||
      std::exchange(has_said_nan_, true))
    return;
  say(
      fmt::format("the loss of step {} is {}: if the variables hold NaN, no checkpoint of them is "
                  "written; --on-nan stop names the op that makes it",
                  step, loss));
}

std::string training_report::why_diverged() const {
  if (options_.on_nan != nan_policy::ignore) return {};
  for (const auto& [name, value] : variables_)
    if (const auto at = first_nan(value))
      return fmt::format("{} has {} (its element {})", name, not_finite_text(value, *at), *at);
  return lost_at_ ? fmt::format("its loss is no number from step {} on", *lost_at_) : std::string();
}

void training_report::show_totals(const training_totals& t) {
  if (options_.update != update_kind::async) {
    std::uint64_t dropped = 0, fed = 0;
    for (const auto& w : t.workers) dropped += w.dropped, fed += w.fed;
    if (dropped > 0)
      say_error(fmt::format("{}: of the workers' {} gradients, {} were left out", options_.program,
                            fed, dropped));
    return;
  }
  for (std::size_t w = 0; w < t.workers.size(); ++w) {
    const auto& x = t.workers[w];
    say_error(fmt::format("worker {}: fed {} = applied {} + dropped {} + in flight at death {}", w,
                          x.fed, x.applied, x.dropped, x.in_flight));
  }
}

result<void> training_report::outcome() const {
  const auto& folder = options_.checkpoints.folder;
  const auto& early = ended_early_;
  if (is_suspended_)
    return error(error_code::failed,
                 fmt::format("{}; the same command with --resume goes on from there", early));
  if (heeded_ > 0 && !early.empty() && folder.empty())
    return error(
        error_code::failed,
        fmt::format("{}; nothing of it is kept: with --checkpoint DIR it would be", early));
  if (!early.empty() && totals_.checkpoints > 0)
    return error(
        error_code::failed,
        fmt::format("{}; the same command with --resume goes on from the newest checkpoint in {}",
                    early, folder));
  if (!early.empty()) return error(error_code::failed, early);
  if (!failure_.empty() && totals_.checkpoints > 0)
    return error(
        error_code::failed,
        fmt::format("{}; the same command with --resume goes on from the newest checkpoint in {}",
                    failure_, folder));
  if (!failure_.empty()) return error(error_code::failed, failure_);
  if (variables_.empty()) return error(error_code::failed, "the job ended without its variables");
  return {};
}

result<void> training_report::follow(training& run) {
  while (auto event = run.next(refresh())) {
    heed_signals(run);
    show(*event);
  }
  return outcome();
}

void training_report::heed_signals(training& run) {
  const int seen = interruptions;
  if (seen == std::exchange(heeded_, seen)) return;
  const auto* name = last_signal == SIGTERM ? "SIGTERM" : "Ctrl-C";
  if (options_.checkpoints.folder.empty() || seen > 1)
    run.stop(seen > 1 ? fmt::format("interrupted by {} again", name)
                      : fmt::format("interrupted by {}", name));
  else
    run.suspend(fmt::format("interrupted by {}", name));
}

error training_report::interrupted_while(std::string_view doing) {
  was_interrupted_ = true;
  return {error_code::failed, fmt::format("interrupted while {}", doing)};
}

int training_report::fail(const error& e) {
  bar_.reset();
  say_error(options_.program + ": " + e.text());
  // Before anything ran, or what ended early: that is no failure.
  const bool is_interrupted =
      interruptions > 0 && (!has_ended_ || !ended_early_.empty() || was_interrupted_);
  if (is_interrupted) return 128 + last_signal;
  if (!ended_early_.empty()) return 0;
  return static_cast<int>(e.code());
}

result<void> training_report::save() {
  if (losses_ != nullptr && std::fclose(std::exchange(losses_, nullptr)) != 0 &&
      losses_failure_.empty())
    losses_failure_ =
        fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno));
  if (options_.save.empty()) return {};
  std::vector<named_tensor> tensors;
  for (const auto& [name, value] : variables_) tensors.push_back({name, value});
  auto saved = save_safetensors(options_.save, tensors);
  if (saved) return {};
  return error(error_code::failed,
               fmt::format("the training finished, but --save failed, so its variables are lost: "
                           "{}",
                           saved.error().text()));
}

result<void> training_report::save_graph(graph& g, value loss, const training_options& how) {
  const auto& file = options_.save_graph;
  const auto saved = troupe::save_graph(
      *make_host_disk(), file, g,
      {.name = options_.name, .loss = loss, .training = graph_training{spec_of(how), how.compile}});
  if (!saved) return error(saved.error()).while_doing("--save-graph");
  const auto ops = g.nodes().size();
  const auto text =
      options_.json
          ? json_line(nlohmann::ordered_json{{"graph", file}, {"ops", ops}})
          : fmt::format("{}: a graph of {} ops; troupe plan {} explains what becomes of it", file,
                        ops, file);
  if (!write_text(stdout, text + "\n") || std::fflush(stdout) != 0)
    return error(error_code::failed,
                 fmt::format("the result cannot be written: {}", std::strerror(errno)));
  return {};
}

int training_report::finish(const std::string& key, double found, const std::string& in_words) {
  result<void> record;
  if (record_) {
    record_result(key, found);
    record = record_->close();
  }
  result<void> events;
  if (events_) {
    say_once(events_->add_result(key, found));
    events = events_->close();
  }
  const auto text = options_.json
                        ? json(key, found)
                        : fmt::format("{}, {:.0f} {}/s, {} steps in {}", in_words, rate(),
                                      extent_.unit, done_ - skipped_, format_seconds(seconds()));
  if (!write_text(stdout, text + "\n") || std::fflush(stdout) != 0)
    return fail(error(error_code::failed,
                      fmt::format("the result cannot be written: {}", std::strerror(errno))));
  if (!losses_failure_.empty()) return fail(error(error_code::failed, losses_failure_));
  if (!events) return fail(events.error().while_doing("--tensorboard"));
  if (!record) return fail(record.error().while_doing("--record"));
  if (auto why = why_diverged(); !why.empty())
    return fail(error(
        error_code::failed,
        fmt::format("the training has diverged: {}{}; try a lower --learning-rate, or "
                    "--clip-norm",
                    why, totals_.checkpoints > 0 ? "; its checkpoints are of steps before" : "")));
  if (totals_.checkpoints_missing > 0)
    return fail(error(error_code::failed,
                      "the training finished, but its last checkpoint was not written "
                      "(see above)"));
  return 0;
}

std::string training_report::json(const std::string& key, double found) const {
  std::uint64_t applied = 0, dropped = 0;
  for (const auto& w : totals_.workers) {
    applied += w.applied;
    dropped += w.dropped;
  }
  std::vector<named_tensor> tensors;
  for (const auto& [name, value] : variables_) tensors.push_back({name, value});
  nlohmann::ordered_json j;
  j[key] = found;
  j[extent_.unit + "_per_second"] = rate();
  j["steps"] = done_ - skipped_;
  j["seconds"] = seconds();
  j["workers"] = options_.workers;
  j["shards"] = options_.shards;
  j["update"] = options_.update == update_kind::async ? "async"
                : options_.all_reduce                 ? "allreduce"
                                                      : "sync";
  j["applied"] = applied;
  j["dropped"] = dropped;
  j["actors"] = totals_.actors;
  j["data_messages"] = totals_.data_messages;
  j["recoveries"] = totals_.recoveries;
  j["redone_steps"] = totals_.redone;
  j["checkpoints"] = totals_.checkpoints;
  j["checkpoints_missing"] = totals_.checkpoints_missing;
  j["weights_hash"] = weights_hash(tensors);
  return json_line(j);
}

}  // namespace troupe
