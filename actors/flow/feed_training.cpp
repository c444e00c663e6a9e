#include "troupe/actors/flow/feed_training.hpp"

#include "troupe/actors/flow/model_stage.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <set>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

// How soon it is seen that a topology has ended, and, async, that another worker has room.
constexpr auto feed_look_every = 20ms;
constexpr auto feed_room_every = 2ms;
// Within which the training says that it recovers from what its pipeline failed by, too.
constexpr auto recovers_within = 300ms;
constexpr std::uint32_t tries_max = 10;  // of a topology whose nodes go before it has begun

// Rows [from, to) of it.
tensor rows_of(const tensor& all, std::int64_t from, std::int64_t to) {
  std::vector<dim> dims;
  for (std::size_t i = 0; i < all.shape().rank(); ++i) dims.push_back(all.shape()[i]);
  const auto row_bytes = all.size_bytes() / static_cast<std::size_t>(dims.front().size);
  dims.front() = {to - from, 0};
  const tensor_spec spec{all.type(), *shape::from(dims)};
  const auto offset = static_cast<std::size_t>(from) * row_bytes;
  if (offset % tensor::alignment_bytes == 0) return all.part(offset, spec);
  auto copy = tensor::make(spec);
  std::memcpy(copy.bytes().data(), all.bytes().data() + offset, copy.size_bytes());
  return copy;
}

// Batches that were fed, or are to be fed again, from a step on.
struct kept_batches {
  std::uint64_t first = 0;
  std::deque<fed_batch> all{};
  std::uint64_t end() const noexcept { return first + all.size(); }
};

// One topology and its way into the training.
class inlet_of final : public training_inlet {
 public:
  // `again`: of which the feeders have been fed all, or nothing.
  inlet_of(std::vector<std::unique_ptr<feeder>> feeders, const training_facts& about,
           kept_batches again, bool has_fed_kept)
      : feeders_(std::move(feeders)),
        is_lost_(std::make_unique<std::atomic<bool>[]>(feeders_.size())),
        is_sync_(about.update == update_kind::sync),
        may_go_back_(about.may_finish),
        steps_(about.steps),
        kept_(std::move(again)),
        next_(has_fed_kept ? kept_.end() : kept_.first) {}

  // Called when the training wants no more, before the topology ends by it.
  std::function<void()> on_end = [] {};

  // --- on the thread of the topology, and then of its last stage ---

  // What is kept, before anything else.
  result<void> feed_kept() {
    while (next_ < kept_.end())
      if (auto ok = feed_all(kept_.all[static_cast<std::size_t>(next_ - kept_.first)]); !ok)
        return ok;
    return {};
  }
  result<void> take(fed_batch b) override {
    if (has_fed_all()) return refused(error(error_code::failed, "the training has what it needs"));
    if (!is_sync_) return feed_one(b);
    auto ok = feed_all(b);
    if (!ok) return ok;
    ++fed_;
    if (!may_go_back_) {
      ++kept_.first;
      return ok;
    }
    kept_.all.push_back(std::move(b));
    // Until the losses of its step and of some behind it are told, by who looks, who may be late.
    while (kept_.all.size() > kept_max ||
           (!kept_.all.empty() && kept_.first + kept_behind < told_.load())) {
      kept_.all.pop_front();
      ++kept_.first;
    }
    return ok;
  }

  // --- any thread ---

  // Nobody feeds any more.
  void stop() noexcept { is_stopped_.store(true); }
  bool is_stopped() const noexcept { return is_stopped_.load(); }
  // It is the training that wants no more of this topology.
  bool has_ended() const noexcept { return has_ended_.load(); }
  void lose(std::uint32_t worker) noexcept {
    if (worker < feeders_.size()) is_lost_[worker].store(true);
  }
  void told(std::uint64_t steps) noexcept { told_.store(steps); }

  // --- once the topology has ended ---

  bool has_fed_all() const noexcept {
    for (std::size_t w = 0; w < feeders_.size(); ++w)
      if (!is_lost_[w].load() && feeders_[w]->next_step() < steps_) return false;
    return true;
  }
  std::uint64_t fed() const noexcept { return fed_; }
  std::uint64_t next_step() const noexcept { return next_; }  // sync
  std::vector<std::unique_ptr<feeder>> take_feeders() { return std::move(feeders_); }
  kept_batches take_kept() { return std::move(kept_); }

 private:
  static constexpr std::uint64_t kept_behind = 4;
  static constexpr std::size_t kept_max = 64;

  // FED-1.
  result<void> feed_all(const fed_batch& b) {
    const auto workers = static_cast<std::int64_t>(feeders_.size());
    for (std::int64_t w = 0; w < workers; ++w) {
      std::vector<std::pair<std::string_view, tensor>> values;
      for (const auto& [name, all] : b) {
        if (workers == 1 || all.shape().rank() == 0) {
          values.emplace_back(name, all);
          continue;
        }
        const auto rows = all.shape().size(0);
        if (rows < workers)
          return error(error_code::failed,
                       fmt::format("'{}' has {} rows, and the training {} workers, each of which "
                                   "takes one at least",
                                   name, rows, workers));
        values.emplace_back(name, rows_of(all, rows * w / workers, rows * (w + 1) / workers));
      }
      auto& to = *feeders_[static_cast<std::size_t>(w)];
      auto ok = to.feed(values, feed_look_every);
      while (!ok && ok.error().code() == error_code::timed_out && !is_stopped_.load())
        ok = to.feed(values, feed_look_every);
      if (!ok && workers > 1)
        ok = std::move(ok.error().while_doing(
            fmt::format("worker {} of {}, each of which takes its part of the rows", w, workers)));
      if (!ok) return refused(std::move(ok.error()));
    }
    ++next_;
    return {};
  }

  result<void> feed_one(const fed_batch& b) {
    const std::vector<std::pair<std::string_view, tensor>> values(b.begin(), b.end());
    for (std::size_t tried = 1; !is_stopped_.load() && !has_fed_all(); ++tried) {
      // One that has what it needs would keep the batch, and never use it; so would one that is
      // lost.
      std::vector<feeder*> takers;
      for (std::size_t w = 0; w < feeders_.size(); ++w)
        if (!is_lost_[w].load() && feeders_[w]->next_step() < steps_)
          takers.push_back(feeders_[w].get());
      if (takers.empty()) break;
      const bool has_asked_all = tried % takers.size() == 0;
      auto ok =
          takers[turn_++ % takers.size()]->feed(values, has_asked_all ? feed_room_every : 0ms);
      if (!ok && ok.error().code() == error_code::timed_out) continue;
      if (!ok) return refused(std::move(ok.error()));
      ++fed_;
      return {};
    }
    return refused(error(error_code::failed, "nobody wants it any more"));
  }

  result<void> refused(error e) {
    if (e.code() == error_code::failed || e.code() == error_code::timed_out) {
      has_ended_.store(true);
      on_end();
    }
    return e;
  }

  std::vector<std::unique_ptr<feeder>> feeders_;
  std::unique_ptr<std::atomic<bool>[]> is_lost_;  // by worker
  bool is_sync_, may_go_back_;
  std::uint64_t steps_;
  kept_batches kept_;  // sync
  std::uint64_t next_, fed_ = 0, turn_ = 0;
  std::atomic<std::uint64_t> told_{0};
  std::atomic<bool> is_stopped_{false}, has_ended_{false};
};

// A topology that runs, on a thread of its own.
class running_feed {
 public:
  running_feed(const topology_options& o, std::shared_ptr<inlet_of> inlet)
      : topology_(o), inlet_(std::move(inlet)) {
    inlet_->on_end = [this] { topology_.give_up(); };
  }
  ~running_feed() { end(); }
  running_feed(const running_feed&) = delete;
  running_feed& operator=(const running_feed&) = delete;

  topology& described() { return topology_; }
  // `has_flow`: it was described; else only what is kept is fed.
  void start(bool has_flow) {
    thread_ = std::thread([this, has_flow] {
      try {
        auto ok = inlet_->feed_kept();
        if (ok && has_flow)
          if (auto done = topology_.run_to_end(); !done) ok = std::move(done.error());
        if (!ok) failure_ = std::move(ok.error());
      } catch (const std::exception& e) {
        failure_ = error(error_code::failed, fmt::format("the pipeline failed: {}", e.what()));
      } catch (...) {
        failure_ = error(error_code::failed, "the pipeline failed: an exception of unknown type");
      }
      is_over_.store(true);
    });
  }
  void end() {
    inlet_->stop();
    topology_.give_up();
    if (thread_.joinable()) thread_.join();
  }
  bool is_over() const noexcept { return is_over_.load(); }
  const std::optional<error>& failure() const noexcept { return failure_; }  // once it is over
  inlet_of& inlet() noexcept { return *inlet_; }
  // Nothing of it had begun, since a node that was to make samples is not there; others may do it.
  bool may_begin_again() const noexcept {
    return failure_ && failure_->code() == error_code::unreachable && inlet_->fed() == 0;
  }

 private:
  topology topology_;
  std::shared_ptr<inlet_of> inlet_;
  std::thread thread_;
  std::optional<error> failure_;
  std::atomic<bool> is_over_{false};
};

bool is_last(training_event::kind k) noexcept {
  using kind = training_event::kind;
  return k == kind::finished || k == kind::stopped || k == kind::suspended || k == kind::detached ||
         k == kind::failed;
}

class fed_run {
 public:
  fed_run(training& run, const describe_feed& describe, const look_at_training& look,
          const feed_options& o)
      : run_(run), about_(run.about()), describe_(describe), look_(look), options_(o) {}

  result<training_event> follow() {
    using kind = training_event::kind;
    if (const auto step = about_.began_at) begin(*step);
    while (auto e = run_.next(feed_look_every)) {
      if (e->type == kind::recovering) now_ ? now_->end() : void();
      if (is_last(e->type)) now_.reset();
      // Whoever looks sees why.
      if (failed_ && is_last(e->type)) e->type = kind::failed, e->text = failed_->text();
      if (e->type == kind::started || e->type == kind::resumed) begin(e->step);
      if (now_ != nullptr && e->type == kind::loss) now_->inlet().told(e->step + 1);
      if (e->type == kind::worker_lost) {
        lost_.insert(e->worker);
        if (now_ != nullptr) now_->inlet().lose(e->worker);
      }
      if (look_) look_(*e);
      if (!is_last(e->type)) {
        look_at_topology();
        continue;
      }
      if (failed_) return std::move(*failed_);
      if (e->type == kind::failed) return error(error_code::failed, e->text);
      return std::move(*e);
    }
    return error(error_code::failed, "the training had ended before");
  }

 private:
  void begin(std::uint64_t step) {
    kept_batches kept{step, {}};
    if (now_ != nullptr) {
      now_->end();
      kept = now_->inlet().take_kept();
      now_.reset();
    }
    tries_ = 0;
    lost_.clear();
    if (failed_) return;
    std::vector<std::unique_ptr<feeder>> feeders;
    for (std::uint32_t w = 0; w < about_.workers; ++w) {
      auto f = run_.make_feeder(w);
      if (!f) return fail(std::move(f.error()));
      feeders.push_back(std::move(*f));
    }
    // What is kept need not be made again, if it reaches back so far.
    if (about_.update == update_kind::async || step < kept.first || step > kept.end()) {
      kept = {step, {}};
      has_flow_ended_ = false;
    }
    while (kept.first < step) kept.all.pop_front(), ++kept.first;
    begin_with(std::move(feeders), std::move(kept), false);
  }

  void begin_with(std::vector<std::unique_ptr<feeder>> feeders, kept_batches kept,
                  bool has_fed_kept) {
    has_told_end_ = false;
    failed_at_.reset();
    const auto step = kept.end();
    auto about = about_;
    if (finishes_at_ != 0) about.steps = finishes_at_;
    auto inlet =
        std::make_shared<inlet_of>(std::move(feeders), about, std::move(kept), has_fed_kept);
    for (const auto w : lost_) inlet->lose(w);
    auto next = std::make_unique<running_feed>(options_.topology, inlet);
    const bool has_flow =
        !has_flow_ended_ && (about.update == update_kind::async || step < about.steps);
    if (has_flow) describe_(next->described(), step, inlet);
    now_ = std::move(next);
    now_->start(has_flow);
  }

  void look_at_topology() {
    if (now_ == nullptr || !now_->is_over() || has_told_end_) return;
    auto& inlet = now_->inlet();
    has_told_end_ = true;
    // The training tells why, or needs no more, whatever came behind its last step.
    if (inlet.has_ended() || inlet.has_fed_all()) return;
    // For a recovery, after which it begins anew.
    if (inlet.is_stopped() && now_->failure()) return;
    if (now_->may_begin_again() && ++tries_ < tries_max) {
      auto feeders = inlet.take_feeders();
      auto kept = inlet.take_kept();
      now_.reset();
      return begin_with(std::move(feeders), std::move(kept), true);
    }
    if (const auto& why = now_->failure()) {
      // A loss that the training goes back for as well is told by both; then it begins again.
      const auto now = std::chrono::steady_clock::now();
      if (!failed_at_) failed_at_ = now;
      has_told_end_ = !about_.may_finish || now - *failed_at_ > recovers_within;
      return has_told_end_ ? fail(*why) : void();
    }
    has_flow_ended_ = true;
    const auto fed = inlet.next_step();
    if (options_.finishes_with_flow && about_.may_finish && about_.update == update_kind::sync &&
        fed > 0 && finishes_at_ == 0) {
      finishes_at_ = fed;
      return run_.finish(fed);
    }
    if (finishes_at_ != 0 && fed >= finishes_at_) return;
    if (finishes_at_ != 0)
      return fail(error(error_code::failed,
                        fmt::format("the training goes back to step {}, and the flow gives nothing "
                                    "from there on",
                                    fed)));
    fail(error(error_code::failed,
               fmt::format("the flow has ended after {} batches, and the training was not fed all "
                           "of its {} steps: let the flow go on (sample_options::epochs), train "
                           "fewer steps, or end with the flow (feed_options::finishes_with_flow, "
                           "training_options::may_finish; synchronous)",
                           about_.update == update_kind::sync ? fed : inlet.fed(), about_.steps)));
  }

  void fail(error e) {
    run_.stop("its pipeline failed: " + e.text());
    failed_ = std::move(e);
  }

  training& run_;
  const training_facts about_;
  const describe_feed& describe_;
  const look_at_training& look_;
  const feed_options& options_;
  std::unique_ptr<running_feed> now_;
  bool has_told_end_ = false, has_flow_ended_ = false;
  std::set<std::uint32_t> lost_;   // workers, since it began last
  std::uint64_t finishes_at_ = 0;  // steps; 0: it was not asked to
  std::uint32_t tries_ = 0;
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
  std::optional<error> failed_;
};

}  // namespace

result<tensor> make_fed(dtype type, std::size_t rows, const std::vector<std::int64_t>& row_shape) {
  std::vector<dim> dims{{static_cast<std::int64_t>(rows), 0}};
  for (const auto d : row_shape) dims.push_back({d, 0});
  const auto s = shape::from(dims);
  if (!s) return error(error_code::failed, fmt::format("{} rows are too many for a tensor", rows));
  return tensor::make({type, *s});
}

error unequal_rows(std::string_view field, std::size_t row) {
  return {error_code::failed,
          fmt::format("'{}' of number {} of the batch has another length than that of number 0",
                      field, row)};
}

result<training_event> feed_by(training& run, const describe_feed& describe,
                               const look_at_training& look, const feed_options& o) {
  if (!run.about().is_fed)
    return error(error_code::usage,
                 "this training reads its samples itself: training_options::is_fed is not set");
  return fed_run(run, describe, look, o).follow();
}

}  // namespace troupe
