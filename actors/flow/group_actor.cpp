#include "troupe/actors/flow/group_actor.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/messages/stream_messages.hpp"

#include <fmt/format.h>

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t slice_ns = 500'000;
thread_local const flow_graph* running_here = nullptr;

struct group_actor_state : flow_wire {
  static inline const char* name = "stages";
  caf::stateful_actor<group_actor_state>* self = nullptr;
  group_setup setup;
  std::shared_ptr<flow_group> group;
  std::shared_ptr<const flow_routes> routes;
  std::int64_t wakes_at = never_ns;
  bool is_halted = false, is_going = false, has_told = false;

  const far_route* far_of(std::uint32_t edge) const {
    return routes->far.empty() || !routes->far[edge] ? nullptr : &*routes->far[edge];
  }
  void send(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) override {
    if (const auto* far = far_of(edge)) return send_far(edge, *far, items, is_last);
    tell(self->context(), routes->to[edge],
         flow_items{edge, std::make_shared<std::vector<flow_item>>(std::move(items)), is_last});
  }
  void give_room(std::uint32_t edge) override {
    if (const auto* far = far_of(edge)) {
      const auto& m = *group->meter(edge);
      return tell(
          nullptr, far->link,
          send_stream{far->job, taken_frame(edge, m.taken_items.load(), m.taken_bytes.load())});
    }
    tell(self->context(), routes->from[edge], flow_room{edge});
  }
  void close(std::uint32_t edge) override {
    if (const auto* far = far_of(edge))
      return tell(nullptr, far->link, send_stream{far->job, closed_frame(edge)});
    tell(self->context(), routes->from[edge], flow_closed{edge});
  }
  void send_far(std::uint32_t edge, const far_route& far, std::vector<flow_item>& items,
                bool is_last) {
    try {
      auto frame =
          items_frame(edge, items, is_last, far.end, setup.now_ns(), stream_value_bytes_max);
      if (frame)
        tell(nullptr, far.link, send_stream{far.job, std::move(*frame)});
      else
        fail_at(edge, frame.error().message());
    } catch (const std::bad_alloc&) {
      fail_at(edge, "there is no memory to send its items to another process");
    } catch (const std::exception& e) {
      fail_at(edge, fmt::format("its items cannot be sent to another process: {}", e.what()));
    } catch (...) {
      fail_at(edge, "its items cannot be sent to another process: an exception of unknown type");
    }
  }
  // Of the stage that makes the items of that edge.
  void fail_at(std::uint32_t edge, const std::string& why) {
    const auto& s = group->graph().stages()[group->graph().edges()[edge].from];
    if (!std::exchange(has_told, true))
      tell(self->context(), setup.director,
           group_failed{{s.name, error(error_code::failed,
                                       fmt::format("{} ({}): {}", s.name,
                                                   flow_graph::line_of(s.where), why))}});
  }
  void take_frame(flow_frame& m) {
    const auto* far = far_of(m.edge);
    std::optional<read_frame_items> read;
    try {
      if (far != nullptr) read = items_of(m.frame, far->end, setup.now_ns());
    } catch (const std::bad_alloc&) {
      return fail_at(m.edge, "there is no memory for the items that came from another process");
    } catch (const std::exception& e) {
      return fail_at(m.edge, fmt::format("what came from another process: {}", e.what()));
    } catch (...) {
      return fail_at(m.edge, "what came from another process: an exception of unknown type");
    }
    const auto stages = group->graph().stages().size();
    if (read && std::ranges::any_of(read->items,
                                    [&](const auto& it) { return it.origin.source >= stages; }))
      read.reset();
    if (!read) return fail_at(m.edge, "what came from another process is no item");
    group->deliver(m.edge, std::move(read->items), read->is_last);
    run_if_idle();
  }

  // A broken invariant of ours: no stage's failure, but the topology's end as well.
  void fail(const char* what) {
    if (!std::exchange(has_told, true))
      tell(self->context(), setup.director, group_failed{{"", error(error_code::failed, what)}});
  }
  // What has come is looked at with all that has come by then, where it is to go on anyway: each
  // message would have a slice of its own otherwise, and who sends many would wait for them.
  void run_if_idle() {
    if (!is_going) run();
  }
  void run() {
    if (group == nullptr || is_halted || has_told) return;
    auto state = flow_group::state::idle;
    struct runs_here {
      ~runs_here() { running_here = nullptr; }
    } const here;
    running_here = &group->graph();
    try {
      state = group->run(setup.now_ns, setup.now_ns() + slice_ns, this);
    } catch (const std::exception& e) {
      return fail(e.what());
    } catch (...) {
      return fail("an exception of unknown type");
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
        s.run_if_idle();
      },
      [&s](flow_frame& m) {
        after_message();
        if (s.group == nullptr) return s.fail("items came to stages that are elsewhere");
        s.take_frame(m);
      },
      [&s](const flow_room& m) {
        if (s.group != nullptr) s.group->room(m.edge);
        s.run_if_idle();
      },
      [&s](const flow_closed& m) {
        if (s.group != nullptr) s.group->close(m.edge);
        s.run_if_idle();
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
        s.run_if_idle();
      },
      [&s](const flow_halt& m) {
        s.is_halted = true;
        tell(s.self->context(), s.setup.director, group_halted{s.setup.group, m.number});
      },
      [&s](flow_resume) {
        s.is_halted = false;
        s.run_if_idle();
      },
      [&s](flow_surrender) {
        tell(s.self->context(), s.setup.director,
             group_surrendered{s.setup.group, std::move(s.group)});
        s.group = nullptr;
      },
      [&s](flow_finish) {
        if (s.group != nullptr) s.group->finish();
        s.run_if_idle();
      },
      [&s](const flow_pause& m) {
        if (s.group != nullptr) s.group->pause(m.is_paused, m.is_held);
        s.run_if_idle();
      },
      [&s](flow_replace& m) {
        if (s.group != nullptr) s.group->replace(std::move(m.what));
      },
      [&s](const flow_look& m) {
        if (s.group != nullptr) s.group->look(m.stage);
        s.run_if_idle();
      },
      [self](flow_end) {
        self->state.group = nullptr;
        self->state.routes = nullptr;
        self->quit();
      },
  };
}

}  // namespace

const flow_graph* graph_that_runs_here() noexcept { return running_here; }

caf::actor spawn_group(caf::actor_system& sys, caf::execution_unit* thread, group_setup setup) {
  return spawn_on(sys, thread, &run_group, std::move(setup));
}

}  // namespace troupe
