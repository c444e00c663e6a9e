#include "troupe/actors/base/scheduler.hpp"

#include "troupe/actors/base/failing.hpp"

#include <caf/detail/test_actor_clock.hpp>
#include <caf/scheduled_actor.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace troupe {

namespace {

// Time belongs to the transport (real or simulated); CAF's own timers are not used. One clock
// object per system satisfies the interface, and nothing is ever scheduled on it.
std::unique_ptr<caf::actor_clock> make_unused_clock() {
  return std::make_unique<caf::detail::test_actor_clock>();
}

constexpr std::size_t messages_per_resume = 64;  // keeps one busy actor from holding its stream

// The worker that an actor is pinned to; null for what is not an actor, and for actors that were
// spawned without one.
caf::execution_unit* home_of(caf::resumable* job) noexcept {
  if (job->subtype() != caf::resumable::scheduled_actor) return nullptr;
  return static_cast<caf::scheduled_actor*>(job)->context();
}

}  // namespace

scheduler_config& scheduler_config::pinned() {
  load<pinned_scheduler>();
  return *this;
}

scheduler_config& scheduler_config::seeded() {
  load<seeded_scheduler>();
  return *this;
}

class pinned_scheduler::worker final : public caf::execution_unit {
 public:
  // `naps`: see nap(). `lane`, which may be null: of timelines; `has_turns`: actors that run here
  // record nothing by themselves. `team`, which may be null: whose tiles it takes before it sleeps.
  worker(pinned_scheduler& parent, event_source* events, std::function<void()> on_start,
         std::shared_ptr<trace_lane> lane, bool has_turns, bool naps = false,
         tile_team* team = nullptr)
      : execution_unit(&parent.system()),
        parent_(parent),
        events_(events),
        on_start_(std::move(on_start)),
        lane_(std::move(lane)),
        turns_(has_turns ? lane_.get() : nullptr),
        naps_(naps),
        team_(team) {}

  ~worker() override {
    if (thread_.joinable()) stop_and_join();  // another one could not be started
  }

  void start() {
    thread_ = std::thread([this] {
      self_.store(std::this_thread::get_id(), std::memory_order_relaxed);
      system().thread_started();
      if (on_start_) on_start_();
      turns_ != nullptr ? run<true>() : run<false>();
      system().thread_terminates();
    });
  }

  void stop_and_join() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      has_inbox_.store(true, std::memory_order_release);
    }
    wake_up(true);
    if (thread_.joinable()) thread_.join();
    for (auto* job : local_) cleanup_and_release(job);
    for (auto* job : inbox_) cleanup_and_release(job);
  }

  // By an actor of this worker, for any actor; and by whoever spawns an actor here, from any
  // thread.
  void exec_later(caf::resumable* job) override {
    parent_.dispatch(
        job, std::this_thread::get_id() == self_.load(std::memory_order_relaxed) ? this : nullptr);
  }

  void push_local(caf::resumable* job) { local_.push_back(job); }

  void push_inbox(caf::resumable* job) {
    bool sleeps = false;
    {
      std::lock_guard lock(mutex_);
      inbox_.push_back(job);
      has_inbox_.store(true, std::memory_order_release);
      sleeps = sleeping_ || (napping_ && parent_.waiters_.load() > 0);
    }
    wake_up(sleeps);
  }

  // There are tiles to take. False: it does not sleep.
  bool wake_to_help() {
    bool sleeps = false;
    {
      std::lock_guard lock(mutex_);
      sleeps = sleeping_;
    }
    if (sleeps) condition_.notify_one();
    return sleeps;
  }

 private:
  void wake_up(bool sleeps) {
    if (events_ != nullptr)
      events_->wake();  // knows by itself whether anybody waits
    else if (sleeps)
      condition_.notify_one();
  }

  template <bool has_turns>  // so that a stream, which has none, does not look for each message
  void run() {
    for (;;) {
      if (has_inbox_.load(std::memory_order_acquire) && !take_inbox()) return;
      if (local_.empty()) {
        sleep();
        continue;
      }
      // The I/O worker looks at its descriptors after every round, however many actors are
      // runnable.
      for (auto n = events_ != nullptr ? local_.size() : std::size_t{64}; n > 0 && !local_.empty();
           --n) {
        auto* job = local_.front();
        local_.pop_front();
        if constexpr (has_turns)
          resume_traced(job);
        else
          resume(job);
        if (events_ == nullptr && has_inbox_.load(std::memory_order_relaxed)) break;
      }
      if (events_ != nullptr) poll(0);
    }
  }

  void poll(int timeout_ms) {
    if (events_->poll(timeout_ms) && turns_ != nullptr)
      turns_->slice(trace_kind::turn, subject_of("network"));
  }

  // False: time to stop.
  bool take_inbox() {
    std::lock_guard lock(mutex_);
    local_.insert(local_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
    has_inbox_.store(false, std::memory_order_relaxed);
    return !stopping_;
  }

  void sleep() {
    if (events_ != nullptr) return poll(-1);
    if (team_ != nullptr && team_->help()) {
      if (lane_ != nullptr && lane_->is_on()) lane_->slice(trace_kind::turn, subject_of("tiles"));
      return;
    }
    if (lane_ != nullptr) lane_->falls_asleep();
    wait_for_inbox();
    if (lane_ != nullptr) lane_->wakes();
  }

  void wait_for_inbox() {
    std::unique_lock lock(mutex_);
    if (naps_ && parent_.waiters_.load() == 0 && is_woken_often() && nap(lock)) return;
    sleeping_ = true;
    condition_.wait(lock, [this] {
      return !inbox_.empty() || stopping_ || (team_ != nullptr && team_->has_work());
    });
    sleeping_ = false;
    woken_ = steady::now();
  }

  using steady = std::chrono::steady_clock;
  static constexpr auto nap_time = std::chrono::milliseconds(1);
  static constexpr std::uint32_t wakes_often = 16;

  // As often as a stream that hands over something small in every step of some 100 us wakes its
  // service.
  bool is_woken_often() {
    wakes_ = steady::now() - woken_ < nap_time ? wakes_ + 1 : 0;
    return wakes_ >= wakes_often;
  }

  // Each time that a stream's thread wakes a sleeper it pays 5 us, and on a small machine it is
  // often preempted by whom it woke: at a step of 300 us that was 6 % of its time. So who is woken
  // often looks by itself, after a while in which nobody wakes him, unless somebody waits for what
  // he does (waiter). False: nothing has come.
  bool nap(std::unique_lock<std::mutex>& lock) {
    napping_ = true;
    condition_.wait_for(lock, nap_time, [this] {
      return stopping_ || (parent_.waiters_.load() > 0 && !inbox_.empty());
    });
    napping_ = false;
    woken_ = steady::now();
    if (!inbox_.empty() || stopping_) return true;
    wakes_ = 0;
    return false;
  }

  void resume_traced(caf::resumable* job) {
    const char* name = turns_->is_on() ? name_of(job) : nullptr;  // it may be gone afterwards
    resume(job);
    if (name != nullptr) turns_->slice(trace_kind::turn, subject_of(name));
  }

  void resume(caf::resumable* job) {
    switch (job->resume(this, messages_per_resume)) {
      case caf::resumable::resume_later: local_.push_back(job); break;
      case caf::resumable::shutdown_execution_unit:
      case caf::resumable::done:
      case caf::resumable::awaiting_message: caf::intrusive_ptr_release(job); break;
    }
  }

  // As its class says: a text that lives as long as the program.
  static const char* name_of(caf::resumable* job) noexcept {
    return job->subtype() == caf::resumable::scheduled_actor
               ? static_cast<caf::scheduled_actor*>(job)->name()
               : "CAF";
  }
  static std::uint64_t subject_of(const char* name) noexcept {
    return reinterpret_cast<std::uintptr_t>(name);
  }

  pinned_scheduler& parent_;
  event_source* events_;
  std::function<void()> on_start_;
  const std::shared_ptr<trace_lane> lane_;
  trace_lane* const turns_;
  const bool naps_;
  tile_team* const team_;
  steady::time_point woken_{};
  std::uint32_t wakes_ = 0;  // in a row, each soon after the one before
  std::thread thread_;
  std::atomic<std::thread::id> self_{};  // of the running thread
  std::deque<caf::resumable*> local_;
  std::atomic<bool> has_inbox_{false};
  std::mutex mutex_;  // guards all below
  std::condition_variable condition_;
  std::vector<caf::resumable*> inbox_;
  bool sleeping_ = false, napping_ = false;
  bool stopping_ = false;
};

pinned_scheduler::pinned_scheduler(caf::actor_system& sys)
    : abstract_coordinator(sys), clock_(make_unused_clock()) {}

pinned_scheduler::~pinned_scheduler() = default;

caf::actor_system::module* pinned_scheduler::make(caf::actor_system& sys,
                                                  caf::detail::type_list<>) {
  return new pinned_scheduler(sys);
}

caf::execution_unit* pinned_scheduler::stream(std::uint32_t i) noexcept {
  return workers_[i % streams()].get();
}
caf::execution_unit* pinned_scheduler::service() noexcept { return workers_[streams()].get(); }
caf::execution_unit* pinned_scheduler::disk() noexcept { return workers_[streams() + 1].get(); }
caf::execution_unit* pinned_scheduler::io() noexcept { return workers_[streams() + 2].get(); }
caf::execution_unit* pinned_scheduler::device(std::uint32_t i) noexcept {
  return workers_[streams() + 3 + i].get();
}
std::uint32_t pinned_scheduler::streams() const noexcept { return streams_; }

void pinned_scheduler::dispatch(caf::resumable* job, worker* from) {
  const auto* home = home_of(job);
  if (from != nullptr && home == from) return from->push_local(job);
  const auto at = std::find_if(workers_.begin(), workers_.end(),
                               [&](const auto& w) { return w.get() == home; });
  // CAF's own actors are spawned without a worker, and find theirs here.
  (at != workers_.end() ? *at : workers_[streams()])->push_inbox(job);
}

// On the thread of whoever runs the op: a stream, or the program.
void pinned_scheduler::wake_helpers(std::size_t wanted) {
  for (std::uint32_t i = 0; i < streams() && wanted > 0; ++i)
    if (workers_[i]->wake_to_help()) --wanted;
}

void pinned_scheduler::enqueue(caf::resumable* what) { dispatch(what, nullptr); }

caf::actor_clock& pinned_scheduler::clock() noexcept { return *clock_; }

void pinned_scheduler::start() {
  const auto& cfg = static_cast<const scheduler_config&>(config());
  expects(cfg.lanes.empty() || cfg.lanes.size() == cfg.streams + 3 + cfg.devices,
          "every worker has a lane, or none has");
  const auto lane = [&] { return cfg.lanes.empty() ? nullptr : cfg.lanes[workers_.size()]; };
  streams_ = cfg.streams;
  for (std::uint32_t i = 0; i < cfg.streams; ++i) {
    auto on_start = [f = cfg.on_stream_thread, i] {
      if (f) f(i);
    };
    workers_.push_back(std::make_unique<worker>(*this, nullptr, std::move(on_start), lane(), false,
                                                false, cfg.team));
  }
  if (cfg.team != nullptr)
    cfg.team->set_up(cfg.streams, [this](std::size_t wanted) { wake_helpers(wanted); });
  workers_.push_back(std::make_unique<worker>(*this, nullptr, nullptr, lane(), true, true));
  workers_.push_back(std::make_unique<worker>(*this, nullptr, nullptr, lane(), true));
  workers_.push_back(std::make_unique<worker>(*this, cfg.io, nullptr, lane(), true));
  for (std::uint32_t i = 0; i < cfg.devices; ++i)
    workers_.push_back(std::make_unique<worker>(*this, nullptr, nullptr, lane(), false));
  for (auto& w : workers_) w->start();
  abstract_coordinator::start();
}

void pinned_scheduler::stop() {
  stop_actors();
  for (auto& w : workers_) w->stop_and_join();
  if (auto* team = static_cast<const scheduler_config&>(config()).team; team != nullptr)
    team->set_up(1, {});
}

class seeded_scheduler::unit final : public caf::execution_unit {
 public:
  explicit unit(seeded_scheduler& parent) : execution_unit(&parent.system()), parent_(parent) {}
  void exec_later(caf::resumable* job) override { parent_.jobs_.push_back(job); }

 private:
  seeded_scheduler& parent_;
};

seeded_scheduler::seeded_scheduler(caf::actor_system& sys)
    : abstract_coordinator(sys), clock_(make_unused_clock()) {}

seeded_scheduler::~seeded_scheduler() = default;

caf::actor_system::module* seeded_scheduler::make(caf::actor_system& sys,
                                                  caf::detail::type_list<>) {
  return new seeded_scheduler(sys);
}

seeded_scheduler::next_step seeded_scheduler::look(std::size_t i) const {
  auto* job = jobs_[i];
  if (job->subtype() != caf::resumable::scheduled_actor) return {};
  auto* actor = static_cast<caf::scheduled_actor*>(job);
  const auto* next = actor->mailbox().peek();
  const bool has_type =
      next != nullptr && !next->content().empty() && next->content().type(0).second != nullptr;
  return {actor->name(), actor->id(), has_type ? next->content().type(0).second->name() : "",
          home_of(job)};
}

caf::execution_unit* seeded_scheduler::make_unit() {
  units_.push_back(std::make_unique<unit>(*this));
  return units_.back().get();
}

void seeded_scheduler::run(std::size_t i) {
  auto* job = jobs_[i];
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  auto* home = home_of(job);
  if (std::none_of(units_.begin(), units_.end(), [&](const auto& u) { return u.get() == home; }))
    home = unit_.get();
  if (job->resume(home, 1) == caf::resumable::resume_later)
    jobs_.push_back(job);
  else
    caf::intrusive_ptr_release(job);
}

void seeded_scheduler::fail(std::size_t i, const std::string& text) {
  auto* actor = static_cast<caf::scheduled_actor*>(jobs_[i]);
  actor->enqueue(caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                           caf::exit_msg{actor->address(), failure_reason(text)}),
                 nullptr);
}

void seeded_scheduler::enqueue(caf::resumable* what) { jobs_.push_back(what); }

caf::actor_clock& seeded_scheduler::clock() noexcept { return *clock_; }

void seeded_scheduler::start() {
  unit_ = std::make_unique<unit>(*this);
  abstract_coordinator::start();
}

void seeded_scheduler::stop() {
  while (!jobs_.empty()) run(0);
  stop_actors();
  while (!jobs_.empty()) run(0);
}

}  // namespace troupe
