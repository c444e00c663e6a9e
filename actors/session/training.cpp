// The program's end of a training: what it is told, and what it feeds.

#include "troupe/actors/session/job_client.hpp"

#include <caf/system_messages.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace troupe {

namespace {

// What the feeders of an epoch have done, for the training; each writes its own.
struct feeding {
  explicit feeding(std::uint32_t workers)
      : fed(std::make_unique<std::atomic<std::uint64_t>[]>(workers)),
        has_gone(std::make_unique<std::atomic<bool>[]>(workers)) {}
  std::atomic<bool> is_wanted{true};  // else nobody minds who goes
  std::unique_ptr<std::atomic<std::uint64_t>[]> fed;
  std::unique_ptr<std::atomic<bool>[]> has_gone;
};

// Feeds one worker, from a mailbox of its own.
class feeder_impl final : public feeder {
 public:
  feeder_impl(process& p, const part_handles& handles, std::span<const job_feed> inputs,
              std::uint32_t worker, std::uint64_t steps, std::shared_ptr<feeding> all,
              caf::actor of)
      : keeps_(p.weak_from_this().lock()),
        process_(p),
        self_(p.system()),
        worker_(worker),
        steps_wanted_(steps),
        all_(std::move(all)),
        training_(std::move(of)) {
    for (const auto& i : inputs) {
      feeds_.add(i.input, i.actor, i.spec);
      next_step_ = i.first_step;
      const auto& [to, is_new] = actors_.emplace(i.actor, handles.actors[i.actor]);
      self_->monitor(to->second);
      tell(nullptr, to->second, set_feeder{self_.handle()});
    }
    all_->fed[worker_].store(next_step_);
  }
  // Who goes before its last step has no more data; the training must not wait for it.
  ~feeder_impl() override {
    if (process_.is_forked()) {
      leave_alone(actors_);
      leave_alone(training_);
      return;
    }
    if (is_over_ || next_step_ >= steps_wanted_ || !all_->is_wanted.load()) return;
    all_->has_gone[worker_].store(true);
    tell(nullptr, training_,
         job_note{fmt::format("worker {} has no more data from step {} on: its feeder has gone",
                              worker_, next_step_)});
  }

  result<void> feed(std::span<const std::pair<std::string_view, tensor>> values,
                    std::chrono::milliseconds limit) override {
    if (auto there = process_.check_is_there(); !there)
      return std::move(there.error().while_doing(fmt::format("step {} was not fed", next_step_)));
    auto to = feeds_.find_all(values);
    if (!to) return std::move(to.error());
    const troupe::deadline end(limit);
    const auto has_room = [&] {
      return std::all_of(to->begin(), to->end(), [](const auto* f) { return f->room > 0; });
    };
    while (!has_room() && !is_over_) {
      const auto left = end.left();
      // What has come counts, however late it is.
      if (receive(left) || left.count() > 0) continue;
      return error(error_code::timed_out,
                   fmt::format("step {} was not fed: there is no room for it, after {} ms",
                               next_step_, limit.count()));
    }
    if (is_over_)
      return error(error_code::failed,
                   fmt::format("step {} was not fed: the training has ended, or goes back to a "
                               "step before, which its events say",
                               next_step_));
    for (std::size_t i = 0; i < to->size(); ++i) {
      auto& f = *(*to)[i];
      --f.room;
      ++f.fed;
      tell(nullptr, actors_.at(f.actor), tensor_ready{0, 0, {}, values[i].second});
    }
    ++steps_;
    ++next_step_;
    all_->fed[worker_].store(next_step_);
    return {};
  }

  std::uint64_t steps() const override { return steps_; }
  std::uint64_t next_step() const override { return next_step_; }

 private:
  // False: nothing came.
  bool receive(std::chrono::milliseconds timeout) {
    bool has_come = true;
    self_->receive([&](const feed_ready& m) { feeds_.on_ready(m); },
                   [&](const caf::down_msg&) { is_over_ = true; },
                   caf::after(timeout) >> [&] { has_come = false; });
    after_message();
    return has_come;
  }

  std::shared_ptr<process> keeps_;  // where the session ends before it
  process& process_;
  mailbox self_;
  fed_inputs feeds_;
  std::map<std::uint32_t, port_actor> actors_;  // by number in the plan
  std::uint64_t steps_ = 0, next_step_ = 0;
  bool is_over_ = false;
  std::uint32_t worker_;
  std::uint64_t steps_wanted_;
  std::shared_ptr<feeding> all_;
  caf::actor training_;
};

class training_impl final : public training, private job_client {
 public:
  training_impl(process& p, std::shared_ptr<const job_request> request,
                std::vector<std::string> notes, bool is_fed)
      : job_client(p) {
    const auto& spec = request->program->spec();
    about_ = {spec.workers, spec.steps, spec.update, is_fed, spec.may_end_early()};
    job_ = request->name();
    folder_ = request->checkpoints.folder;
    for (auto& n : notes) {
      training_event e;
      e.type = training_event::kind::note;
      e.text = std::move(n);
      before_.push_back(std::move(e));
    }
    tell(nullptr, process_.node(), run_job{std::move(request), own_mailbox()});
  }
  // Of a job that is somewhere else.
  training_impl(process& p, std::string job) : job_client(p), job_(std::move(job)) { ask(); }

  ~training_impl() override {
    if (process_.is_forked()) return;
    handles_.reset();
    if (is_over_ || !process_.check_is_there()) return;
    if (is_asking_) {
      tell(nullptr, process_.node(), forget_attach{own_mailbox()});
      return;
    }
    is_ending_ = true;
    stop("the program has given it up");
    while (next(std::chrono::hours(24))) {
    }
  }

  // Waits for what was asked for; what it is told until then comes with the first events.
  result<void> wait_for_job(std::chrono::milliseconds timeout) {
    const deadline end(timeout);
    while (is_asking_) {
      const auto left = end.left();
      if (left.count() <= 0)
        return error(
            error_code::timed_out,
            fmt::format("no process has given job '{}' away within {} ms: troupe list jobs "
                        "shows what runs",
                        job_, timeout.count()));
      auto e = receive(left);
      if (!e) continue;
      if (e->type == training_event::kind::failed)
        return error(error_code::failed, fmt::format("job '{}': {}", job_, e->text));
      before_.push_back(std::move(*e));
    }
    return {};
  }

  void stop(const std::string& reason) override {
    forget_feeders();
    // The second word for its end is the last one, whether or not the job is found.
    if (is_asking_ && (ends_early_ || stop_when_there_)) return give_up(reason);
    if (is_asking_)
      stop_when_there_ = reason;
    else
      job_client::stop(reason);
  }
  training_facts about() const override { return about_; }
  void finish(std::uint64_t at_least) override {
    ends_early_ = true;
    forget_feeders();
    wish(job_wish::finish, at_least);
  }
  void suspend(const std::string& reason) override {
    ends_early_ = true;
    forget_feeders();
    wish(job_wish::suspend, 0, reason);
  }
  void detach() override { wish(job_wish::detach); }

  std::optional<training_event> next(std::chrono::milliseconds timeout) override {
    if (!before_.empty()) {
      auto e = std::move(before_.front());
      before_.pop_front();
      return e;
    }
    if (is_over_) return std::nullopt;
    const deadline end(timeout);
    for (;;) {
      const auto there = process_.check_is_there();
      const auto left = there ? end.left() : std::chrono::milliseconds(0);
      // While it asks for its job nobody may answer.
      const auto most = is_asking_ ? std::chrono::milliseconds(200) : left;
      if (!process_.is_forked())  // else its mailbox is left alone
        if (auto e = receive(std::min(left, most))) return e;
      // The session's end ends the job, and with it what is told of it; the job's own end may have
      // come before that.
      if (!there && has_come_ && !process_.is_forked()) continue;
      if (!there) return end_without_session(there.error());
      if (left.count() <= 0) return training_event{};
    }
  }

 private:
  using kind = training_event::kind;

  // How long a job may take to be given away to a program that had it before.
  static constexpr auto asking_max = std::chrono::seconds(60);

  void ask() {
    is_asking_ = true;
    asked_ = std::chrono::steady_clock::now();
    tell(nullptr, process_.node(), attach_job{job_, own_mailbox()});
  }

  training_event end_without_session(const error& why) {
    is_over_ = true;
    forget_feeders();
    training_event e;
    e.type = kind::failed;
    e.text = why.text();
    return e;
  }

  void wish(job_wish w, std::uint64_t at_least = 0, std::string reason = {}) {
    wish_of_own_job m{own_mailbox(), w, at_least, std::move(reason)};
    if (is_asking_)
      wishes_when_there_.push_back(std::move(m));
    else if (!is_over_ && process_.check_is_there())
      tell(nullptr, process_.node(), std::move(m));
  }

  // What it was asked for while the job was elsewhere.
  void ask_again() {
    for (auto& m : std::exchange(wishes_when_there_, {}))
      tell(nullptr, process_.node(), std::move(m));
    if (const auto reason = std::exchange(stop_when_there_, std::nullopt))
      job_client::stop(*reason);
  }

  void give_up(const std::string& why) {
    if (process_.check_is_there()) tell(nullptr, process_.node(), forget_attach{own_mailbox()});
    before_.push_back(failure(why));
    is_over_ = true;
  }

  training_event failure(const std::string& why) const {
    training_event e;
    e.type = kind::failed;
    e.text = has_begun_
                 ? fmt::format(
                       "job {} went on without this program, which cannot attach to "
                       "it: {}{}",
                       job_, why, folder_.empty() ? "" : "; its checkpoints are in " + folder_)
                 : why;
    return e;
  }

  // Nullopt: nothing, or nothing that concerns the program.
  std::optional<training_event> receive(std::chrono::milliseconds timeout) {
    std::optional<training_event> out;
    const auto make = [&](kind k) -> training_event& {
      out.emplace();
      out->type = k;
      return *out;
    };
    const auto end_with = [&](kind k, const training_totals& totals) -> training_event& {
      is_over_ = true;
      auto& e = make(k);
      e.totals = totals;
      return e;
    };
    has_come_ = true;
    self_->receive(
        [&](job_started& m) {
          is_asking_ = false;
          ask_again();
          if (!std::exchange(has_begun_, true)) make(kind::started).step = m.step;
          if (!about_.began_at) about_.began_at = m.step;
          if (!about_.is_fed) return;
          handles_ = std::move(m.handles);
          feeds_ = std::move(m.feeds);
          begin_feeding();
        },
        [&](const job_progress& m) {
          // One that it had been told before it lost the job.
          if (m.step < next_) return;
          next_ = m.step + 1;
          auto& e = make(kind::loss);
          e.step = m.step;
          e.worker = m.worker;
          e.loss = m.loss;
        },
        [&](job_variables& m) {
          auto& e = make(kind::variables);
          e.item = m.item;
          e.step = m.version;
          e.variables = std::move(m.values);
        },
        [&](worker_lost& m) {
          auto& e = make(kind::worker_lost);
          e.worker = m.worker;
          e.text = std::move(m.text);
        },
        [&](job_recovering& m) {
          forget_feeders();
          if (m.has_resumed) {
            about_.began_at = m.step;
            begin_feeding();  // those that were made between the two words are of the past
          }
          auto& e = make(m.has_resumed ? kind::resumed : kind::recovering);
          e.step = m.step;
          e.text = std::move(m.text);
        },
        [&](job_note& m) { make(kind::note).text = std::move(m.text); },
        [&](const job_finished& m) { end_with(kind::finished, m.totals); },
        [&](job_stopped& m) { end_with(kind::stopped, m.totals).text = std::move(m.reason); },
        [&](job_suspended& m) {
          auto& e = end_with(kind::suspended, m.totals);
          e.step = m.step;
          e.text = std::move(m.text);
        },
        [&](job_has_moved& m) {
          if (!m.is_lost) {
            end_with(kind::detached, {}).text = std::move(m.text);
            return;
          }
          if (is_ending_) {
            end_with(kind::detached, {}).text = std::move(m.text);
            return;
          }
          make(kind::note).text = m.text + "; this program attaches to it again";
          ask();
        },
        [&](attach_failed& m) {
          is_over_ = true;
          is_asking_ = false;
          out = failure(m.text);
        },
        [&](job_failed& m) { end_with(kind::failed, m.totals).text = std::move(m.line); },
        caf::after(timeout) >> [&] { has_come_ = false; });
    after_message();
    if (is_over_) handles_.reset();
    if (is_over_)
      forget_feeders();
    else
      end_if_unfed();
    if (!out && has_begun_ && is_asking_ &&
        std::chrono::steady_clock::now() - asked_ > asking_max) {
      give_up("nobody has given it away");
      out = std::move(before_.front());
      before_.pop_front();
    }
    return out;
  }

 public:
  result<std::unique_ptr<feeder>> make_feeder(std::uint32_t worker) override {
    if (!about_.is_fed)
      return error(error_code::usage,
                   "this training reads its samples itself: training_options::is_fed is not set");
    if (worker >= about_.workers)
      return error(error_code::usage, fmt::format("there is no worker {}: the training has {}",
                                                  worker, about_.workers));
    if (is_over_) return error(error_code::failed, "the training has ended");
    if (auto there = process_.check_is_there(); !there) return std::move(there.error());
    if (!handles_)
      return error(error_code::usage,
                   "the training has not started: a feeder is made after its event 'started'");
    if (!has_feeder_.insert(worker).second)
      return error(error_code::usage, fmt::format("worker {} has a feeder already", worker));
    std::vector<job_feed> mine;
    for (const auto& f : feeds_)
      if (f.worker == worker) mine.push_back(f);
    return std::unique_ptr<feeder>(std::make_unique<feeder_impl>(
        process_, *handles_, mine, worker, about_.steps, feeding_, own_mailbox()));
  }

 private:
  void begin_feeding() {
    has_feeder_.clear();
    forget_feeders();
    feeding_ = std::make_shared<feeding>(about_.workers);
    if (ends_early_) forget_feeders();
  }
  void forget_feeders() {
    if (feeding_) feeding_->is_wanted.store(false);
  }

  // Behind the last step that all workers have data for (sync), or once none has more (async).
  void end_if_unfed() {
    if (!feeding_ || !feeding_->is_wanted.load()) return;
    const bool is_sync = about_.update == update_kind::sync;
    std::uint64_t first = about_.steps, all = 0, gone = about_.workers, done = 0;
    for (std::uint32_t w = 0; w < about_.workers; ++w) {
      const auto fed = feeding_->fed[w].load();
      const bool has_gone = feeding_->has_gone[w].load();
      all += fed;
      done += fed >= about_.steps || has_gone;
      if (has_gone && fed < first) first = fed, gone = w;
    }
    if (gone == about_.workers) return;
    const auto told = std::max(next_, about_.began_at.value_or(0));
    if (is_sync ? told < first : done < about_.workers || told < all) return;
    stop(fmt::format("worker {} has no more data: it was fed {} of its {} steps", gone, first,
                     about_.steps));
  }

  std::deque<training_event> before_;  // that next() gives first
  std::string job_, folder_;
  training_facts about_;
  bool is_asking_ = false;  // for the job, which is elsewhere
  bool has_come_ = false;   // by the last receive(): a message, whatever came of it
  bool has_begun_ = false;
  std::chrono::steady_clock::time_point asked_{};
  std::uint64_t next_ = 0;  // the step after the last loss; async: of all workers together
  bool is_ending_ = false;
  std::optional<std::string> stop_when_there_;
  std::vector<wish_of_own_job> wishes_when_there_;
  std::vector<job_feed> feeds_;
  std::set<std::uint32_t> has_feeder_;
  std::shared_ptr<feeding> feeding_;
  bool ends_early_ = false;  // then feeders may go before their last step
};

}  // namespace

std::unique_ptr<training> make_training(process& p, std::shared_ptr<const job_request> request,
                                        std::vector<std::string> notes, bool is_fed) {
  return std::make_unique<training_impl>(p, std::move(request), std::move(notes), is_fed);
}

result<std::unique_ptr<training>> attach_training(process& p, const std::string& job,
                                                  std::chrono::milliseconds timeout) {
  auto out = std::make_unique<training_impl>(p, job);
  if (auto there = out->wait_for_job(timeout); !there) return std::move(there.error());
  return std::unique_ptr<training>(std::move(out));
}

}  // namespace troupe
