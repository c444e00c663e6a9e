#include "apps/support/classifier_report.hpp"

#include "apps/support/output.hpp"
#include "devices/host/safetensors.hpp"
#include "runtime/duration.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace troupe {

namespace {

// The only thing that a signal handler may touch.
volatile std::sig_atomic_t interruptions = 0;

void on_signal(int signal) {
  interruptions = interruptions + 1;
  if (interruptions > 1) std::signal(signal, SIG_DFL);  // a third one ends the program at once
}

}  // namespace

classifier_report::classifier_report(const classifier_options& options) : options_(options) {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

classifier_report::~classifier_report() {
  if (losses_ != nullptr) std::fclose(losses_);
}

result<void> classifier_report::prepare(const idx_info& images, const idx_info& test_images) {
  if (test_images.samples == 0) return error(error_code::usage, fmt::format("there are no test images in {}", options_.data));
  if (test_images.rows != images.rows || test_images.columns != images.columns)
    return error(error_code::usage, fmt::format("the test images in {} have {}x{} pixels, the others {}x{}", options_.data, test_images.rows,
                                                test_images.columns, images.rows, images.columns));
  if (!options_.save.empty())
    if (auto ok = can_save_safetensors(options_.save); !ok) return error(ok.error()).while_doing("--save");
  if (options_.losses.empty()) return {};
  losses_ = std::fopen(options_.losses.c_str(), "w");
  if (losses_ == nullptr)
    return error(errno == ENOENT ? error_code::not_found : error_code::usage, fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno)));
  return {};
}

void classifier_report::begin(std::int64_t samples, std::uint64_t steps_per_epoch) {
  samples_ = samples;
  steps_ = options_.epochs * steps_per_epoch * (options_.update == update_kind::async ? options_.workers : 1);
  bar_ = std::make_unique<progress_bar>(steps_, false);
  began_ = ended_ = std::chrono::steady_clock::now();
}

bool classifier_report::is_interrupted() { return interruptions > 0; }

double classifier_report::seconds() const { return std::chrono::duration<double>(ended_ - began_).count(); }

double classifier_report::images() const { return double(samples_) * double(options_.epochs) * double(done_ - skipped_) / double(steps_); }

void classifier_report::show(const training_event& e) {
  using kind = training_event::kind;
  switch (e.type) {
    case kind::none: return;
    case kind::started: began_ = ended_ = std::chrono::steady_clock::now(); return;
    case kind::loss: return show_loss(e);
    case kind::variables:
      variables_ = e.variables;
      feeds_.assign(variables_.begin(), variables_.end());
      return;
    case kind::worker_lost:
      ++lost_workers_;
      return bar_->say("train_classifier: " + e.text + "; training goes on with the others");
    case kind::recovering:
    case kind::resumed:
    case kind::note: return say(e.text);
    case kind::finished: totals_ = e.totals; break;
    case kind::failed:
      totals_ = e.totals;
      failure_ = e.text;
      break;
  }
  bar_.reset();
  show_totals(totals_);
}

void classifier_report::say(const std::string& text) {
  if (bar_)
    bar_->say("train_classifier: " + text);
  else
    say_error("train_classifier: " + text);
}

void classifier_report::show_loss(const training_event& e) {
  const bool is_sync = options_.update == update_kind::sync;
  if (done_ == skipped_ && is_sync) done_ = skipped_ = e.step;  // a resumed run begins there
  ++done_;
  ended_ = std::chrono::steady_clock::now();
  mean_loss_ = done_ == skipped_ + 1 ? e.loss : mean_loss_ + (e.loss - mean_loss_) * 0.02f;
  if (losses_ != nullptr && !write_text(losses_, fmt::format("{},{:.9g}\n", e.step, e.loss)) && losses_failure_.empty()) {
    losses_failure_ = fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno));
    bar_->say("train_classifier: " + losses_failure_ + "; training goes on");
  }
  const auto rate = seconds() > 0 ? images() / seconds() : 0;
  const auto left = rate > 0 ? double(samples_) * double(options_.epochs) * double(steps_ - done_) / double(steps_) / rate : 0;
  const auto epoch = std::min<std::uint64_t>(options_.epochs, 1 + done_ * options_.epochs / steps_);
  bar_->show(done_, fmt::format("epoch {}/{}  loss {:.4f}  {:.0f} images/s  {} left", epoch, options_.epochs, mean_loss_, rate, format_seconds(left)));
}

void classifier_report::show_totals(const training_totals& t) {
  if (options_.update != update_kind::async) return;
  for (std::size_t w = 0; w < t.workers.size(); ++w) {
    const auto& x = t.workers[w];
    say_error(fmt::format("worker {}: fed {} = applied {} + dropped {} + in flight at death {}", w, x.fed, x.applied, x.dropped, x.in_flight));
  }
}

result<void> classifier_report::outcome() const {
  const auto& folder = options_.checkpoints.folder;
  if (!failure_.empty() && totals_.checkpoints > 0)
    return error(error_code::failed, fmt::format("{}; the same command with --resume goes on from the newest checkpoint in {}", failure_, folder));
  if (!failure_.empty()) return error(error_code::failed, failure_);
  if (variables_.empty()) return error(error_code::failed, "the job ended without its variables");
  return {};
}

int classifier_report::fail(const error& e) {
  bar_.reset();
  say_error("train_classifier: " + e.text());
  return static_cast<int>(e.code());
}

result<void> classifier_report::save() {
  if (losses_ != nullptr && std::fclose(std::exchange(losses_, nullptr)) != 0 && losses_failure_.empty())
    losses_failure_ = fmt::format("--losses: cannot write {}: {}", options_.losses, std::strerror(errno));
  if (options_.save.empty()) return {};
  std::vector<named_tensor> tensors;
  for (const auto& [name, value] : variables_) tensors.push_back({name, value});
  return save_safetensors(options_.save, tensors);
}

int classifier_report::finish(double accuracy) {
  std::uint64_t applied = 0, dropped = 0;
  for (const auto& w : totals_.workers) {
    applied += w.applied;
    dropped += w.dropped;
  }
  const auto rate = seconds() > 0 ? images() / seconds() : 0;
  const auto text = options_.json ? json(accuracy, rate, applied, dropped)
                                  : fmt::format("test accuracy {:.4f}, {:.0f} images/s, {} steps in {}", accuracy, rate, done_ - skipped_, format_seconds(seconds()));
  if (!write_text(stdout, text + "\n") || std::fflush(stdout) != 0)
    return fail(error(error_code::failed, fmt::format("the result cannot be written: {}", std::strerror(errno))));
  if (!losses_failure_.empty()) return fail(error(error_code::failed, losses_failure_));
  if (totals_.checkpoints_missing > 0) return fail(error(error_code::failed, "trained, and its last checkpoint is not there (see above)"));
  return 0;
}

std::string classifier_report::json(double accuracy, double rate, std::uint64_t applied, std::uint64_t dropped) const {
  std::vector<named_tensor> tensors;
  for (const auto& [name, value] : variables_) tensors.push_back({name, value});
  nlohmann::ordered_json j;
  j["test_accuracy"] = accuracy;
  j["images_per_second"] = rate;
  j["steps"] = done_ - skipped_;
  j["seconds"] = seconds();
  j["workers"] = options_.workers;
  j["shards"] = options_.shards;
  j["update"] = options_.update == update_kind::sync ? "sync" : "async";
  j["applied"] = applied;
  j["dropped"] = dropped;
  j["actors"] = totals_.actors;
  j["data_messages"] = totals_.data_messages;
  j["recoveries"] = totals_.recoveries;
  j["redone_steps"] = totals_.redone;
  j["checkpoints"] = totals_.checkpoints;
  j["checkpoints_missing"] = totals_.checkpoints_missing;
  j["weights_hash"] = weights_hash(tensors);
  return j.dump();
}

}  // namespace troupe
