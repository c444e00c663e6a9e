// The program's end of a training: what it is told, and what it feeds.

#include "troupe/actors/session/job_client.hpp"

#include <caf/system_messages.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace troupe {

namespace {

// Feeds one worker, from a mailbox of its own.
class feeder_impl final : public feeder {
 public:
  feeder_impl(process& p, const part_handles& handles, std::span<const job_feed> inputs)
      : self_(p.system()) {
    for (const auto& i : inputs) {
      feeds_.add(i.input, i.actor, i.spec);
      const auto& [to, is_new] = actors_.emplace(i.actor, handles.actors[i.actor]);
      self_->monitor(to->second);
      tell(nullptr, to->second, set_feeder{caf::actor_cast<caf::actor>(self_)});
    }
  }

  result<void> feed(std::span<const std::pair<std::string_view, tensor>> values,
                    std::chrono::milliseconds deadline) override {
    auto to = feeds_.find_all(values);
    if (!to) return std::move(to.error());
    const auto end = std::chrono::steady_clock::now() + deadline;
    const auto has_room = [&] {
      return std::all_of(to->begin(), to->end(), [](const auto* f) { return f->room > 0; });
    };
    while (!has_room() && !is_over_) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0)
        return error(error_code::timed_out,
                     fmt::format("step {} was not fed: there is no room for it, after {} ms",
                                 steps_, deadline.count()));
      receive(left);
    }
    if (is_over_)
      return error(error_code::failed,
                   fmt::format("step {} was not fed: the training has ended", steps_));
    for (std::size_t i = 0; i < to->size(); ++i) {
      auto& f = *(*to)[i];
      --f.room;
      ++f.fed;
      tell(nullptr, actors_.at(f.actor), tensor_ready{0, 0, {}, values[i].second});
    }
    ++steps_;
    return {};
  }

  std::uint64_t steps() const override { return steps_; }

 private:
  void receive(std::chrono::milliseconds timeout) {
    self_->receive([&](const feed_ready& m) { feeds_.on_ready(m); },
                   [&](const caf::down_msg&) { is_over_ = true; }, caf::after(timeout) >> [] {});
    after_message();
  }

  caf::scoped_actor self_;
  fed_inputs feeds_;
  std::map<std::uint32_t, port_actor> actors_;  // by number in the plan
  std::uint64_t steps_ = 0;
  bool is_over_ = false;
};

class training_impl final : public training, private job_client {
 public:
  training_impl(process& p, std::shared_ptr<const job_request> request,
                std::vector<std::string> notes, bool is_fed)
      : job_client(p),
        notes_(std::move(notes)),
        workers_(request->program->spec().workers),
        is_fed_(is_fed) {
    tell(nullptr, process_.node(), run_job{std::move(request), mailbox()});
  }
  ~training_impl() override {
    handles_.reset();
    if (!is_over_) {
      stop("the program has given it up");
      while (next(std::chrono::hours(24))) {
      }
    }
  }

  void stop(const std::string& reason) override { job_client::stop(reason); }

  std::optional<training_event> next(std::chrono::milliseconds timeout) override {
    using kind = training_event::kind;
    if (is_over_) return std::nullopt;
    training_event e;
    if (!notes_.empty()) {
      e.type = kind::note;
      e.text = std::move(notes_.front());
      notes_.erase(notes_.begin());
      return e;
    }
    self_->receive(
        [&](job_started& m) {
          e.type = kind::started;
          if (!is_fed_) return;
          handles_ = std::move(m.handles);
          feeds_ = std::move(m.feeds);
        },
        [&](const job_progress& m) {
          e.type = kind::loss;
          e.step = m.step;
          e.worker = m.worker;
          e.loss = m.loss;
        },
        [&](job_variables& m) {
          e.type = kind::variables;
          e.item = m.item;
          e.variables = std::move(m.values);
        },
        [&](worker_lost& m) {
          e.type = kind::worker_lost;
          e.text = std::move(m.text);
        },
        [&](job_recovering& m) {
          e.type = m.has_resumed ? kind::resumed : kind::recovering;
          e.step = m.step;
          e.text = std::move(m.text);
        },
        [&](job_note& m) {
          e.type = kind::note;
          e.text = std::move(m.text);
        },
        [&](const job_finished& m) {
          e.type = kind::finished;
          e.totals = m.totals;
          is_over_ = true;
        },
        [&](job_failed& m) {
          e.type = kind::failed;
          e.text = std::move(m.line);
          e.totals = m.totals;
          is_over_ = true;
        },
        caf::after(timeout) >> [&] {});
    after_message();
    if (is_over_) handles_.reset();
    return e;
  }

  result<std::unique_ptr<feeder>> make_feeder(std::uint32_t worker) override {
    if (!is_fed_)
      return error(error_code::usage,
                   "this training reads its samples itself: training_options::is_fed is not set");
    if (worker >= workers_)
      return error(error_code::usage,
                   fmt::format("there is no worker {}: the training has {}", worker, workers_));
    if (is_over_) return error(error_code::failed, "the training has ended");
    if (!handles_)
      return error(error_code::usage,
                   "the training has not started: a feeder is made after its event 'started'");
    if (!has_feeder_.insert(worker).second)
      return error(error_code::usage, fmt::format("worker {} has a feeder already", worker));
    std::vector<job_feed> mine;
    for (const auto& f : feeds_)
      if (f.worker == worker) mine.push_back(f);
    return std::unique_ptr<feeder>(std::make_unique<feeder_impl>(process_, *handles_, mine));
  }

 private:
  std::vector<std::string> notes_;  // from before it started
  std::uint32_t workers_;
  bool is_fed_;
  std::vector<job_feed> feeds_;
  std::set<std::uint32_t> has_feeder_;
};

}  // namespace

std::unique_ptr<training> make_training(process& p, std::shared_ptr<const job_request> request,
                                        std::vector<std::string> notes, bool is_fed) {
  return std::make_unique<training_impl>(p, std::move(request), std::move(notes), is_fed);
}

}  // namespace troupe
