#pragma once
// Two CAF schedulers in place of CAF's own: actors pinned to threads, and one thread driven by a
// seed.
//
// Pinned: an actor runs on one worker for life: the worker it was spawned on (actor_config::host).
// Streams are workers, so a message between ops of one stream never changes thread; the I/O worker
// waits in an event source (epoll) instead of a condition variable. A message to an actor of the
// current worker takes no lock; one to another worker takes that worker's inbox lock and wakes it
// only if it sleeps. A stream that has nothing to run takes tiles of the ops of others.
//
// Seeded: every runnable actor waits in one list, and the caller chooses who is next. Same seed,
// same order. Actors may be spawned on units, one for each simulated process, so that the caller
// knows whose they are.
//
// Threading: spawn_on() from any thread. start/stop by CAF. The mutex and condition variable of a
// worker's inbox are the only ones in actors/ (a worker must be able to sleep).
//
// S-1  An actor is resumed only by its worker's thread.
// S-2  A worker that sleeps has an empty inbox, and a stream that does there is no op that it could
//      join.

#include "troupe/devices/host/tile_team.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/behavior.hpp>
#include <caf/execution_unit.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

// What a worker does instead of sleeping on a condition variable.
class event_source {
 public:
  virtual ~event_source() = default;
  // On the worker's thread; -1: until an event or wake(). False: there was nothing to do.
  virtual bool poll(int timeout_ms) = 0;
  virtual void wake() = 0;  // from any thread
};

struct scheduler_config : caf::actor_system_config {
  std::uint32_t streams = 1;
  // A worker for each, on whose thread its work is enqueued.
  std::uint32_t devices = 0;
  event_source* io = nullptr;  // of the I/O worker; must outlive the system
  // First thing that runs on each stream's thread.
  std::function<void(std::uint32_t)> on_stream_thread;
  // What a stream's thread does before it sleeps (devices/host/tile_team.hpp); must outlive the
  // system. None: it sleeps.
  tile_team* team = nullptr;
  // Of timelines, by worker: streams, then service, disk, I/O, devices. None: nothing is recorded.
  // Those of streams have their sleep only from here, and the I/O worker's from its event source;
  // what ops run is recorded by the ops.
  std::vector<std::shared_ptr<trace_lane>> lanes;

  // Loads the pinned or the seeded scheduler.
  scheduler_config& pinned();
  scheduler_config& seeded();
};

class pinned_scheduler final : public caf::scheduler::abstract_coordinator {
 public:
  explicit pinned_scheduler(caf::actor_system& sys);
  ~pinned_scheduler() override;
  static caf::actor_system::module* make(caf::actor_system& sys, caf::detail::type_list<>);

  // Workers to spawn on. The service worker runs everything that is neither op nor I/O; the disk's
  // may block.
  caf::execution_unit* stream(std::uint32_t i) noexcept;
  caf::execution_unit* service() noexcept;
  caf::execution_unit* disk() noexcept;
  caf::execution_unit* io() noexcept;
  caf::execution_unit* device(std::uint32_t i) noexcept;
  std::uint32_t streams() const noexcept;

  // As long as one lives, a thread of the program waits for what the service does: every message to
  // the service wakes it at once, also in trainings, where it else looks once in a millisecond.
  // From any thread.
  class waiter {
   public:
    explicit waiter(pinned_scheduler& s) noexcept : of_(s) { of_.waiters_.fetch_add(1); }
    ~waiter() { of_.waiters_.fetch_sub(1); }
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;

   private:
    pinned_scheduler& of_;
  };

  void enqueue(caf::resumable* what) override;
  caf::actor_clock& clock() noexcept override;

 protected:
  void start() override;
  void stop() override;

 private:
  class worker;
  void dispatch(caf::resumable* job, worker* from);
  void wake_helpers(std::size_t wanted);

  std::vector<std::unique_ptr<worker>> workers_;  // streams, then service, disk, I/O, devices
  std::uint32_t streams_ = 0;
  std::atomic<std::uint32_t> waiters_{0};
  std::unique_ptr<caf::actor_clock> clock_;
};

class seeded_scheduler final : public caf::scheduler::abstract_coordinator {
 public:
  explicit seeded_scheduler(caf::actor_system& sys);
  ~seeded_scheduler() override;
  static caf::actor_system::module* make(caf::actor_system& sys, caf::detail::type_list<>);

  // What runnable actor number `i` would do next. The texts live as long as the program.
  struct next_step {
    const char* actor = "";                     // its kind, as CAF names it
    caf::actor_id id = 0;                       // counts from 1 in each system
    const char* message = "";                   // mangled type
    const caf::execution_unit* home = nullptr;  // the unit that it was spawned on
  };

  // Lives as long as the scheduler.
  caf::execution_unit* make_unit();

  std::size_t runnable() const noexcept { return jobs_.size(); }
  next_step look(std::size_t i) const;
  // Resumes runnable actor number `i`, for one message.
  void run(std::size_t i);
  // Lets runnable actor number `i` fail, as an exception in a handler would.
  void fail(std::size_t i, const std::string& text);

  void enqueue(caf::resumable* what) override;
  caf::actor_clock& clock() noexcept override;
  bool detaches_utility_actors() const override { return false; }

 protected:
  void start() override;
  void stop() override;

 private:
  class unit;
  std::vector<caf::resumable*> jobs_;
  std::unique_ptr<unit> unit_;  // of actors that were spawned on none
  std::vector<std::unique_ptr<unit>> units_;
  std::unique_ptr<caf::actor_clock> clock_;
};

// Spawns a class-based actor on a worker (nullptr: wherever the scheduler puts it).
template <class Actor, class... Ts>
auto spawn_on(caf::actor_system& sys, caf::execution_unit* worker, Ts&&... xs) {
  caf::actor_config cfg{worker != nullptr ? worker : sys.dummy_execution_unit()};
  return sys.spawn_impl<Actor, caf::no_spawn_options>(cfg, std::forward<Ts>(xs)...);
}

// The same for a function-based actor.
template <class Self, class... Args, class... Ts>
auto spawn_on(caf::actor_system& sys, caf::execution_unit* worker,
              caf::behavior (*fun)(Self*, Args...), Ts&&... xs) {
  // For which CAF 0.17 would dereference a null pointer to no arguments.
  if constexpr (sizeof...(Ts) == 0) {
    return spawn_on(
        sys, worker, +[](Self* self, caf::behavior (*f)(Self*)) { return f(self); }, fun);
  } else {
    caf::actor_config cfg{worker != nullptr ? worker : sys.dummy_execution_unit()};
    return sys.spawn_functor<caf::no_spawn_options>(std::true_type{}, cfg, fun,
                                                    std::forward<Ts>(xs)...);
  }
}

}  // namespace troupe
