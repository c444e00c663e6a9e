#include "troupe/actors/flow/feed_training.hpp"

#include "troupe/actors/flow/model_stage.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

// How soon it is seen that a topology has ended, and, async, that another worker has room.
constexpr auto feed_look_every = 20ms;
constexpr auto feed_room_every = 2ms;
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

// One topology and its way into the training.
class inlet_of final : public training_inlet {
 public:
  inlet_of(std::vector<std::unique_ptr<feeder>> feeders, update_kind update, std::uint64_t steps)
      : feeders_(std::move(feeders)), update_(update), steps_(steps) {}

  // On the thread of the topology's last stage.
  result<void> take(fed_batch b) override {
    return update_ == update_kind::sync ? feed_all(b) : feed_one(b);
  }

  // By who owns it, when its topology has ended.
  std::vector<std::unique_ptr<feeder>> take_feeders() { return std::move(feeders_); }
  // Nobody feeds any more.
  void stop() noexcept { is_stopped_.store(true); }
  // It is the training that wants no more of this topology.
  bool has_ended() const noexcept { return has_ended_.load(); }
  bool has_fed_all() const noexcept {
    for (const auto& f : feeders_)
      if (f->next_step() < steps_) return false;
    return true;
  }
  std::uint64_t fed() const noexcept { return fed_.load(); }

 private:
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
      if (!ok) return refused(std::move(ok.error()));
    }
    fed_.fetch_add(1);
    return {};
  }

  result<void> feed_one(const fed_batch& b) {
    const std::vector<std::pair<std::string_view, tensor>> values(b.begin(), b.end());
    // One that has what it needs would keep the batch, and never use it.
    std::vector<feeder*> takers;
    for (const auto& f : feeders_)
      if (f->next_step() < steps_ || has_fed_all()) takers.push_back(f.get());
    for (std::size_t tried = 1; !is_stopped_.load(); ++tried) {
      const bool has_asked_all = tried % takers.size() == 0;
      auto ok =
          takers[next_++ % takers.size()]->feed(values, has_asked_all ? feed_room_every : 0ms);
      if (!ok && ok.error().code() == error_code::timed_out) continue;
      if (!ok) return refused(std::move(ok.error()));
      fed_.fetch_add(1);
      return {};
    }
    return refused(error(error_code::failed, "nobody wants it any more"));
  }

  result<void> refused(error e) {
    if (e.code() == error_code::failed || e.code() == error_code::timed_out) has_ended_.store(true);
    return e;
  }

  std::vector<std::unique_ptr<feeder>> feeders_;
  update_kind update_;
  std::uint64_t steps_, next_ = 0;
  std::atomic<std::uint64_t> fed_{0};
  std::atomic<bool> is_stopped_{false}, has_ended_{false};
};

// A topology that runs, on a thread of its own.
class running_feed {
 public:
  running_feed(const topology_options& o, std::shared_ptr<inlet_of> inlet)
      : topology_(o), inlet_(std::move(inlet)) {}
  ~running_feed() {
    inlet_->stop();
    topology_.kill();
    if (thread_.joinable()) thread_.join();
  }
  running_feed(const running_feed&) = delete;
  running_feed& operator=(const running_feed&) = delete;

  topology& described() { return topology_; }
  void start() {
    thread_ = std::thread([this] {
      if (auto ok = topology_.run_to_end(); !ok) failure_ = std::move(ok.error());
      is_over_.store(true);
    });
  }
  bool is_over() const noexcept { return is_over_.load(); }
  const std::optional<error>& failure() const noexcept { return failure_; }  // once it is over
  const inlet_of& inlet() const noexcept { return *inlet_; }
  // Nothing of it had begun, since a node that was to make samples is gone; others may do it.
  bool may_begin_again() const noexcept {
    return failure_ && failure_->code() == error_code::unreachable && inlet_->fed() == 0;
  }
  std::vector<std::unique_ptr<feeder>> take_feeders() { return inlet_->take_feeders(); }

 private:
  topology topology_;
  std::shared_ptr<inlet_of> inlet_;
  std::thread thread_;
  std::optional<error> failure_;
  std::atomic<bool> is_over_{false};
};

bool is_last(training_event::kind k) noexcept {
  using kind = training_event::kind;
  return k == kind::finished || k == kind::stopped || k == kind::detached || k == kind::failed;
}

class fed_run {
 public:
  fed_run(training& run, const describe_feed& describe, const look_at_training& look,
          const feed_options& o)
      : run_(run), about_(run.about()), describe_(describe), look_(look), options_(o) {}

  result<training_event> follow() {
    using kind = training_event::kind;
    while (auto e =
               run_.next(std::chrono::duration_cast<std::chrono::milliseconds>(feed_look_every))) {
      if (e->type == kind::none) {
        look_at_topology();
        continue;
      }
      if (e->type == kind::recovering || is_last(e->type)) now_.reset();
      // Whoever looks sees why.
      if (failed_ && is_last(e->type)) e->type = kind::failed, e->text = failed_->text();
      if (e->type == kind::started || e->type == kind::resumed) begin(e->step);
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
    now_.reset();
    tries_ = 0;
    if (failed_) return;
    std::vector<std::unique_ptr<feeder>> feeders;
    for (std::uint32_t w = 0; w < about_.workers; ++w) {
      auto f = run_.make_feeder(w);
      if (!f) return fail(std::move(f.error()));
      feeders.push_back(std::move(*f));
    }
    begin_with(std::move(feeders), step);
  }

  void begin_with(std::vector<std::unique_ptr<feeder>> feeders, std::uint64_t step) {
    has_told_end_ = false;
    step_ = step;
    auto inlet = std::make_shared<inlet_of>(std::move(feeders), about_.update, about_.steps);
    auto next = std::make_unique<running_feed>(options_.topology, inlet);
    describe_(next->described(), step, inlet);
    now_ = std::move(next);
    now_->start();
  }

  void look_at_topology() {
    if (now_ == nullptr || !now_->is_over() || has_told_end_) return;
    has_told_end_ = true;
    if (now_->inlet().has_ended()) return;  // the training tells why
    if (now_->may_begin_again() && ++tries_ < tries_max) {
      auto feeders = now_->take_feeders();
      now_.reset();
      return begin_with(std::move(feeders), step_);
    }
    if (const auto& why = now_->failure()) return fail(*why);
    if (now_->inlet().has_fed_all()) return;
    if (options_.finishes_with_flow && about_.may_finish) return run_.finish();
    fail(error(error_code::failed,
               fmt::format("the flow has ended after {} batches, and the training has not fed all "
                           "of its {} steps: let the flow go on (sample_options::epochs), train "
                           "fewer steps, or end with the flow (feed_options::finishes_with_flow, "
                           "training_options::may_finish)",
                           now_->inlet().fed(), about_.steps)));
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
  bool has_told_end_ = false;
  std::uint64_t step_ = 0;  // that the topology begins with
  std::uint32_t tries_ = 0;
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
