#include "tools/troupe-bench/graph_driver.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/session/fetched_steps.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <chrono>
#include <optional>

namespace troupe {

struct run_steps {
  std::uint64_t steps = 0, in_flight = 0;
  caf::actor to;
};
struct driver_ready {};
struct driver_failed {
  std::string line;
};
struct steps_done {
  double seconds = 0;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_steps)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::driver_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::driver_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::steps_done)

namespace troupe {

namespace {

// What a feed actor holds (actors/plan/feed_fetch_actor.cpp)
constexpr std::uint32_t feed_room = 4;

struct driver_state {
  struct feed {
    std::uint32_t actor = 0;
    std::uint32_t room = feed_room;
    std::uint64_t sent = 0;
    tensor value;
  };

  caf::event_based_actor* self = nullptr;
  caf::actor node, owner;
  std::shared_ptr<const part_handles> handles;
  std::vector<feed> feeds;
  std::optional<fetched_steps> ready;
  run_steps task;
  std::uint64_t done = 0;
  std::chrono::steady_clock::time_point began;

  template <class Handle, class Message>
  void say(const Handle& to, Message m) {
    tell(self->context(), to, std::move(m));
  }

  void start(run_steps& m) {
    task = std::move(m);
    done = 0;
    for (auto& f : feeds) f.sent = 0;
    began = std::chrono::steady_clock::now();
    for (auto& f : feeds) fill(f);
  }

  void fill(feed& f) {
    for (; f.sent < task.steps && f.sent < done + task.in_flight && f.room > 0; ++f.sent, --f.room)
      say(handles->actors[f.actor], tensor_ready{0, 0, {}, f.value});
  }

  void on_room(const feed_ready& m) {
    for (auto& f : feeds)
      if (f.actor == m.feed) {
        ++f.room;
        if (done < task.steps) fill(f);
      }
  }

  void on_fetched(fetched& m) {
    ready->take(m);
    if (ready->empty()) return;
    ready->pop();
    ready->each_fetch([&](std::uint32_t fetch) { say(handles->actors[fetch], credit{0, 1}); });
    if (++done == task.steps)
      return say(
          task.to,
          steps_done{
              std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()});
    for (auto& f : feeds) fill(f);
  }

  void over(std::string line) {
    handles.reset();
    say(owner, driver_failed{line});
    if (task.to) say(task.to, driver_failed{std::move(line)});
    self->quit();
  }
};

caf::behavior driver(caf::stateful_actor<driver_state>* self, caf::actor node, caf::actor owner,
                     std::shared_ptr<const job_request> request) {
  auto& s = self->state;
  s.self = self;
  s.node = std::move(node);
  s.owner = std::move(owner);
  const auto& actors = request->job_plan.actors;
  for (std::uint32_t i = 0; i < actors.size(); ++i) {
    if (actors[i].kind == actor_kind::feed) {
      s.feeds.push_back({i, feed_room, 0, tensor::make(actors[i].output_specs[0])});
      auto bytes = s.feeds.back().value.bytes();
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
    }
  }
  s.ready.emplace(request->job_plan);
  s.say(s.node, run_job{std::move(request), caf::actor_cast<caf::actor>(self)});
  return {
      [&s](job_started& m) {
        s.handles = std::move(m.handles);
        s.say(s.owner, driver_ready{});
      },
      [&s](fetched& m) { s.on_fetched(m); },
      [&s](const feed_ready& m) { s.on_room(m); },
      [&s](run_steps& m) { s.start(m); },
      [self, &s](const stop_job& m) {
        s.say(s.node, stop_own_job{caf::actor_cast<caf::actor>(self), m.reason});
      },
      [&s](const job_finished&) { s.over("the job has ended"); },
      [&s](job_failed& m) { s.over(std::move(m.line)); },
  };
}

}  // namespace

struct graph_driver::parts {
  explicit parts(caf::actor_system& sys) : self(sys) {}
  caf::scoped_actor self;
  caf::actor actor;
  std::string failure;  // not empty: it is over

  error failed() const { return {error_code::failed, failure}; }
};

result<std::unique_ptr<graph_driver>> graph_driver::start(process& p, plan job_plan,
                                                          std::vector<node_id> nodes) {
  if (auto ok = check(job_plan); !ok) return ok.error();
  std::unique_ptr<graph_driver> d(new graph_driver);
  d->actors_ = job_plan.actors.size();
  d->parts_ = std::make_unique<parts>(p.system());
  auto& parts = *d->parts_;
  auto request =
      std::make_shared<const job_request>(job_request{std::move(job_plan), std::move(nodes), true});
  auto* stream = static_cast<pinned_scheduler&>(p.system().scheduler()).stream(0);
  parts.actor = spawn_on(p.system(), stream, &driver, p.node(),
                         caf::actor_cast<caf::actor>(parts.self), std::move(request));
  parts.self->receive([](driver_ready) {},
                      [&](driver_failed& m) { parts.failure = std::move(m.line); });
  if (!parts.failure.empty()) return parts.failed();
  return d;
}

graph_driver::~graph_driver() {
  if (!parts_->failure.empty()) return;
  tell(nullptr, parts_->actor, stop_job{"the benchmark is over"});
  parts_->self->receive([](const driver_failed&) {});
}

result<double> graph_driver::run(std::uint64_t steps, std::uint64_t in_flight) {
  if (!parts_->failure.empty()) return parts_->failed();
  caf::scoped_actor self{parts_->self->home_system()};
  tell(nullptr, parts_->actor, run_steps{steps, in_flight, caf::actor_cast<caf::actor>(self)});
  double seconds = 0;
  self->receive([&](const steps_done& m) { seconds = m.seconds; },
                [&](driver_failed& m) { parts_->failure = std::move(m.line); });
  if (!parts_->failure.empty()) return parts_->failed();
  return seconds;
}

view_changed view_of(process& p) {
  caf::scoped_actor self{p.system()};
  view_changed view;
  tell(nullptr, p.node(), get_view{caf::actor_cast<caf::actor>(self)});
  self->receive([&](view_changed& v) { view = std::move(v); });
  return view;
}

}  // namespace troupe
