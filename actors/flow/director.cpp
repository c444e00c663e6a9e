#include "troupe/actors/flow/director.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/group_actor.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/runtime/flow/flow_placement.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t first_look_ns = 10'000'000, looks_ns = 50'000'000;
constexpr std::int64_t halt_limit_ns = 50'000'000;
// A placement has to take as much of the busiest thread's load away.
constexpr double gain_min = 0.15, busy_min = 0.5;
constexpr std::uint32_t rest_max = 64;  // looks between two placements, at most

struct director_state {
  static inline const char* name = "topology";
  caf::stateful_actor<director_state>* self = nullptr;
  director_setup setup;
  std::vector<caf::actor> groups;
  std::vector<bool> over, answered;
  std::vector<std::uint32_t> places, wanted;
  std::vector<std::shared_ptr<flow_group>> parts;
  std::vector<std::uint32_t> lost;  // stages whose process is gone, which groups do not know yet
  std::vector<double> busy_before;
  std::vector<std::uint32_t> places_before;  // of the placement on trial
  double rate_before = 0;
  std::uint64_t halts = 0;
  std::uint64_t done_before = 0;
  bool is_on_trial = false;
  std::int64_t looked_ns = 0, halted_ns = 0;
  std::uint32_t rest = 0, next_rest = 1;
  enum class phase { runs, halts, collects, ended } now = phase::runs;
  bool is_finishing = false;

  template <class M>
  void tell_all(const M& m) {
    for (const auto& g : groups) tell(self->context(), g, M(m));
  }
  // Whoever stands still for a new placement: the gate is the last one.
  template <class M>
  void tell_all_and_gate(const M& m) {
    tell_all(m);
    if (setup.gate) tell(nullptr, setup.gate, M(m));
  }
  std::size_t answers() const { return groups.size() + (setup.gate ? 1 : 0); }
  void start() {
    for (std::uint32_t i = 0; i < setup.workers.size(); ++i)
      groups.push_back(spawn_group(self->system(), setup.workers[i],
                                   {i, caf::actor(self), setup.clock, setup.now_ns}));
    busy_before.assign(setup.graph->stages().size(), 0);
    place(std::move(*setup.whole), setup.places);
    looked_ns = setup.now_ns();
    tick_in(first_look_ns);
  }
  void tick_in(std::int64_t ns) {
    tell(self->context(), setup.clock, wake_me{setup.now_ns() + ns, caf::actor(self), true});
  }

  void place(flow_group whole, std::vector<std::uint32_t> where) {
    places = std::move(where);
    auto numbered = places;
    // cut() makes as many groups as the highest number says.
    auto cut = flow_group::cut(std::move(whole), numbered);
    auto routes = std::make_shared<flow_routes>();
    const auto& stages = setup.graph->stages();
    for (const auto& e : setup.graph->edges()) {
      routes->from.push_back(stages[e.from].is_elsewhere ? nullptr : groups[places[e.from]]);
      routes->to.push_back(stages[e.to].is_elsewhere ? nullptr : groups[places[e.to]]);
    }
    routes->far = setup.far;
    over.assign(groups.size(), true);
    for (std::uint32_t i = 0; i < cut.size(); ++i) {
      over[i] = cut[i].is_over();
      cut[i].set_pulse(setup.view->pulses[i]);
      tell(self->context(), groups[i],
           flow_begin{std::make_shared<flow_group>(std::move(cut[i])), routes});
      if (is_finishing) tell(self->context(), groups[i], flow_finish{});
    }
    if (setup.gate) tell(nullptr, setup.gate, flow_begin{nullptr, routes, caf::actor(self)});
    // All have their stages before one of them runs, and sends items to the others.
    tell_all_and_gate(flow_resume{});
    for (std::size_t i = 0; i < places.size(); ++i)
      setup.view->places[i].store(places[i], std::memory_order_relaxed);
    setup.view->placements.fetch_add(1, std::memory_order_relaxed);
    now = phase::runs;
    look_for_end();
  }

  void look_for_end() {
    if (now == phase::ended || !std::ranges::all_of(over, std::identity())) return;
    end({});
  }
  void end(topology_ended m) {
    now = phase::ended;
    tell_all(flow_end{});
    tell(self->context(), setup.program, std::move(m));
  }

  void tick() {
    if (now == phase::ended) return;
    const auto at = setup.now_ns();
    if (now == phase::halts && lost.empty() && at - halted_ns > halt_limit_ns) {
      now = phase::runs;
      is_on_trial = false;
      tell_all_and_gate(flow_resume{});
      back_off();
    }
    if (now == phase::runs) measure(at);
    tick_in(looks_ns);
  }
  void back_off() {
    rest = next_rest;
    next_rest = std::min(rest_max, next_rest * 2);
  }

  void measure(std::int64_t at) {
    const auto took = double(at - std::exchange(looked_ns, at));
    std::vector<double> loads;
    for (std::size_t i = 0; i < busy_before.size(); ++i) {
      const auto busy = setup.view->stages[i]->busy_ns();
      const auto load =
          std::max(0.0, busy - std::exchange(busy_before[i], busy)) / std::max(1.0, took);
      loads.push_back(setup.graph->stages()[i].is_elsewhere ? 0 : load);
    }
    for (std::size_t i = 0; i < loads.size(); ++i)
      if (!setup.graph->stages()[i].is_elsewhere)
        setup.view->busy[i].store(static_cast<float>(std::min(1.0, loads[i])),
                                  std::memory_order_relaxed);
    std::uint64_t done = 0;
    for (const auto& c : setup.view->stages) done += c->items_in.load(std::memory_order_relaxed);
    const auto rate = double(done - std::exchange(done_before, done)) / std::max(1.0, took);
    if (setup.threads < 2 || !setup.moves) return;
    if (rest > 0) {
      --rest;
      return;
    }
    // A placement that made it slower is taken back.
    if (std::exchange(is_on_trial, false) && rate < rate_before * 0.9) {
      next_rest = rest_max;
      return move(std::move(places_before), at);
    }
    rate_before = rate;
    const auto current = largest_load(places, setup.threads, loads);
    if (current < busy_min) return;
    wanted = place_by_load(*setup.graph, setup.threads, loads);
    if (wanted == places || largest_load(wanted, setup.threads, loads) > current * (1 - gain_min))
      return;
    is_on_trial = true;
    places_before = places;
    move(std::move(wanted), at);
  }
  void move(std::vector<std::uint32_t> where, std::int64_t at) {
    wanted = std::move(where);
    now = phase::halts;
    halted_ns = at;
    answered.assign(answers(), false);
    tell_all_and_gate(flow_halt{++halts});
  }

  void lose(lose_stages& m) {
    if (now == phase::ended) return;
    lost.insert(lost.end(), m.stages.begin(), m.stages.end());
    // Where all are to stand still already, it is done then.
    if (now != phase::runs) return;
    is_on_trial = false;
    move(places, setup.now_ns());
  }

  void halted(const group_halted& m) {
    if (now != phase::halts || m.number != halts) return;
    answered[m.group] = true;
    if (!std::ranges::all_of(answered, std::identity())) return;
    now = phase::collects;
    answered.assign(answers(), false);
    parts.assign(answers(), nullptr);
    tell_all_and_gate(flow_surrender{});
  }
  void surrendered(group_surrendered& m) {
    if (now != phase::collects) return;
    answered[m.group] = true;
    parts[m.group] = std::move(m.part);
    if (!std::ranges::all_of(answered, std::identity())) return;
    std::vector<flow_group> all;
    for (auto& p : std::exchange(parts, {}))
      if (p != nullptr) all.push_back(std::move(*p));
    auto whole = flow_group::put_together(std::move(all));
    if (whole.failure()) return end({true, whole.failure()->why});
    if (!lost.empty()) whole.lose(std::exchange(lost, {}));
    if (whole.failure()) return end({true, whole.failure()->why});
    back_off();
    place(std::move(whole), std::move(wanted));
  }
};

caf::behavior run_director(caf::stateful_actor<director_state>* self, director_setup setup) {
  auto& s = self->state;
  s.self = self;
  s.setup = std::move(setup);
  s.start();
  return {
      [&s](const group_over& m) {
        s.over[m.group] = true;
        s.look_for_end();
      },
      [&s](group_failed& m) {
        if (s.now != director_state::phase::ended) s.end({true, std::move(m.why.why)});
      },
      [&s](const group_halted& m) { s.halted(m); },
      [&s](group_surrendered& m) { s.surrendered(m); },
      [&s](lose_stages& m) { s.lose(m); },
      [&s](director_tick) { s.tick(); },
      [&s](const stop_topology& m) {
        if (s.now == director_state::phase::ended) return;
        if (!m.is_graceful) return s.end({true, error(error_code::failed, "stopped at once")});
        s.is_finishing = true;
        s.tell_all(flow_finish{});
      },
      [self](flow_end) {
        auto& mine = self->state;
        mine.tell_all(flow_end{});
        mine.groups.clear();
        tell(nullptr, mine.setup.program, director_gone{});
        mine.setup = {};
        self->quit();
      },
  };
}

struct flow_clock_state {
  static inline const char* name = "clock";
};

caf::behavior run_clock(caf::stateful_actor<flow_clock_state>* self, io_loop* loop,
                        std::function<std::int64_t()> now_ns) {
  return {
      [=](wake_me& m) {
        const auto delay = std::max<std::int64_t>(0, m.at_ns - now_ns());
        loop->after(delay, [whom = std::move(m.whom), is_director = m.is_director] {
          if (is_director)
            tell(nullptr, whom, director_tick{});
          else
            tell(nullptr, whom, flow_wake{});
        });
      },
      [self](flow_end) { self->quit(); },
  };
}

}  // namespace

caf::actor spawn_director(caf::actor_system& sys, caf::execution_unit* service,
                          director_setup setup) {
  return spawn_on(sys, service, &run_director, std::move(setup));
}
caf::actor spawn_flow_clock(caf::actor_system& sys, caf::execution_unit* io, io_loop& loop,
                            std::function<std::int64_t()> now_ns) {
  return spawn_on(sys, io, &run_clock, &loop, std::move(now_ns));
}

}  // namespace troupe
