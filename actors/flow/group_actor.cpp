#include "troupe/actors/flow/group_actor.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <exception>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t slice_ns = 500'000;

struct group_actor_state : flow_wire {
  static inline const char* name = "stages";
  caf::stateful_actor<group_actor_state>* self = nullptr;
  group_setup setup;
  std::shared_ptr<flow_group> group;
  std::shared_ptr<const flow_routes> routes;
  std::int64_t wakes_at = never_ns;
  bool is_halted = false, is_going = false, has_told = false;

  void send(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) override {
    tell(self->context(), routes->to[edge],
         flow_items{edge, std::make_shared<std::vector<flow_item>>(std::move(items)), is_last});
  }
  void give_room(std::uint32_t edge) override {
    tell(self->context(), routes->from[edge], flow_room{edge});
  }
  void close(std::uint32_t edge) override {
    tell(self->context(), routes->from[edge], flow_closed{edge});
  }

  // A broken invariant of ours: no stage's failure, but the topology's end as well.
  void fail(const char* what) {
    if (!std::exchange(has_told, true))
      tell(self->context(), setup.director, group_failed{{"", error(error_code::failed, what)}});
  }
  void run() {
    if (group == nullptr || is_halted || has_told) return;
    auto state = flow_group::state::idle;
    try {
      state = group->run(setup.now_ns, setup.now_ns() + slice_ns, this);
    } catch (const std::exception& e) {
      return fail(e.what());
    }
    switch (state) {
      case flow_group::state::failed:
        has_told = true;
        tell(self->context(), setup.director, group_failed{*group->failure()});
        return;
      case flow_group::state::over:
        has_told = true;
        tell(self->context(), setup.director, group_over{setup.group});
        return;
      case flow_group::state::more:
        if (!std::exchange(is_going, true)) tell(self->context(), self, flow_go{});
        return;
      case flow_group::state::idle: break;
    }
    const auto at = group->wakes_at();
    if (at >= wakes_at) return;  // an earlier wake asks again
    wakes_at = at;
    tell(self->context(), setup.clock, wake_me{at, caf::actor(self)});
  }
};

caf::behavior run_group(caf::stateful_actor<group_actor_state>* self, group_setup setup) {
  auto& s = self->state;
  s.self = self;
  s.setup = std::move(setup);
  return {
      [&s](flow_items& m) {
        after_message();
        if (s.group == nullptr) return s.fail("items came to stages that are elsewhere");
        s.group->deliver(m.edge, std::move(*m.items), m.is_last);
        s.run();
      },
      [&s](const flow_room& m) {
        if (s.group != nullptr) s.group->room(m.edge);
        s.run();
      },
      [&s](const flow_closed& m) {
        if (s.group != nullptr) s.group->close(m.edge);
        s.run();
      },
      [&s](flow_begin& m) {
        s.group = std::move(m.group);
        s.routes = std::move(m.routes);
        s.is_halted = true;
        s.has_told = false;
        s.wakes_at = never_ns;
      },
      [&s](flow_go) {
        s.is_going = false;
        s.run();
      },
      [&s](flow_wake) {
        s.wakes_at = never_ns;
        s.run();
      },
      [&s](const flow_halt& m) {
        s.is_halted = true;
        tell(s.self->context(), s.setup.director, group_halted{s.setup.group, m.number});
      },
      [&s](flow_resume) {
        s.is_halted = false;
        s.run();
      },
      [&s](flow_surrender) {
        tell(s.self->context(), s.setup.director,
             group_surrendered{s.setup.group, std::move(s.group)});
        s.group = nullptr;
      },
      [&s](flow_finish) {
        if (s.group != nullptr) s.group->finish();
        s.run();
      },
      [self](flow_end) {
        self->state.group = nullptr;
        self->state.routes = nullptr;
        self->quit();
      },
  };
}

}  // namespace

caf::actor spawn_group(caf::actor_system& sys, caf::execution_unit* thread, group_setup setup) {
  return spawn_on(sys, thread, &run_group, std::move(setup));
}

}  // namespace troupe
