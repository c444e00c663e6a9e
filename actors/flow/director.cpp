#include "troupe/actors/flow/director.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/group_actor.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/runtime/flow/flow_placement.hpp"
#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/replica_tuner.hpp"
#include "troupe/runtime/flow/topology_checkpoint.hpp"

#include <fmt/format.h>

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t first_look_ns = 10'000'000, looks_ns = 50'000'000;
constexpr std::int64_t halt_limit_ns = 50'000'000;
constexpr std::int64_t keeping_looks_ns = 2'000'000, keeping_limit_ns = 100'000'000;
// That sources stand still for a checkpoint, unless those come less often.
constexpr std::int64_t keeping_longest_ns = 10'000'000'000;
constexpr std::int64_t elsewhere_longest_ns = 5'000'000'000;
constexpr std::int64_t troubles_each_ns = 60'000'000'000;
constexpr std::uint32_t vain_suspensions_max = 10;
constexpr std::int64_t calls_longest = 6;  // times that: a call under way is not waited for longer
// A placement has to take as much of the busiest thread's load away.
constexpr double gain_min = 0.15, busy_min = 0.5;
constexpr std::uint32_t rest_max = 64;  // looks between two placements, at most

// Replicas whose number may change.
struct changing_replicas {
  std::uint32_t deal = 0;
  std::shared_ptr<replica_control> control;
  std::vector<std::vector<std::uint32_t>> stages;  // by replica: its instances
  std::uint32_t seen = 0, moves = 0;               // as the deal was told
  bool sleeps = false, is_far = false;
};
std::vector<changing_replicas> changing_of(const flow_graph& g) {
  std::vector<changing_replicas> all;
  for (std::uint32_t d = 0; d < g.stages().size(); ++d) {
    const auto& s = g.stages()[d];
    if (s.kind != "deal" || s.control == nullptr || s.is_elsewhere) continue;
    changing_replicas c{d, s.control, {}, s.control->working.load(), 0, false, false};
    for (const auto& port : s.out)
      for (const auto e : port) {
        const auto i = g.edges()[e].to;
        const auto& one = g.stages()[i];
        if (one.replica >= c.stages.size()) c.stages.resize(one.replica + 1);
        c.stages[one.replica].push_back(i);
        c.sleeps = c.sleeps || one.may_block || one.is_elsewhere;
        c.is_far = c.is_far || one.is_elsewhere;
      }
    all.push_back(std::move(c));
  }
  return all;
}

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
  bool is_finishing = false, is_paused = false;  // as groups were told
  bool wants_pause = false;                      // the program, or a tool
  // Of the checkpoint that is being made: sources stand still meanwhile.
  bool is_keeping = false, is_suspending = false, is_hold_lifted = false;
  std::int64_t keep_due_ns = never_ns, kept_since_ns = 0, moved_ns = 0, tries_ns = 0;
  std::int64_t try_wait_ns = 0, tells_trouble_ns = 0;
  std::uint64_t done_at_look = 0;
  std::uint32_t vain_suspensions = 0;
  std::string last_under_way;
  std::vector<changing_replicas> changing;
  topology_wishes::replacements replacing;              // which groups do not have yet
  std::vector<std::shared_ptr<stage_change>> on_trial;  // functions
  std::optional<replica_tuner> tuner;

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
    changing = changing_of(*setup.graph);
    tuner.emplace(changing.size());
    if (setup.wishes != nullptr) {
      setup.wishes->has_begun.store(true);
      is_paused = wants_pause = setup.wishes->pause.load();
      setup.view->is_paused.store(is_paused);
    }
    if (setup.checkpoints) keep_due_ns = setup.now_ns() + setup.checkpoints->every_ns;
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
      if (is_paused) tell(self->context(), groups[i], flow_pause{true, holds()});
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
    see_trials();
    on_trial.clear();
    parts.clear();
    replacing.clear();
    if (setup.wishes != nullptr) setup.wishes->close();
    tell_all(flow_end{});
    tell(self->context(), setup.program, std::move(m));
  }

  void tick() {
    if (now == phase::ended) return;
    const auto at = setup.now_ns();
    see_wishes();
    if (now == phase::halts && lost.empty() && is_halted_too_long(at)) {
      now = phase::runs;
      is_on_trial = false;
      tell_all_and_gate(flow_resume{});
      if (!is_keeping) back_off();
    }
    if (now == phase::runs) look_at_keeping(at);
    if (now == phase::runs && !is_keeping) measure(at);
    if (now != phase::ended) tick_in(is_keeping ? keeping_looks_ns : looks_ns);
  }

  // A placement is not worth a long wait. A checkpoint is, for as long as a call takes; but a
  // source may wait for the world.
  bool is_halted_too_long(std::int64_t at) {
    if (at - halted_ns <= halt_limit_ns) return false;
    if (!is_keeping) return true;
    bool waits_for_source = false;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (answered[g]) continue;
      const auto i = setup.view->pulses[g]->running.load(std::memory_order_relaxed);
      if (i >= setup.graph->stages().size()) continue;
      const auto& s = setup.graph->stages()[i];
      last_under_way = fmt::format("{} is in a call that takes long", s.name);
      waits_for_source = waits_for_source || s.is_source;
    }
    return (waits_for_source && !is_suspending) ||
           at - halted_ns >
               calls_longest * std::max(keeping_longest_ns, setup.checkpoints->every_ns);
  }

  // --- checkpoints ---
  // Whether what waited anywhere has been taken: then it is worth while to look closely.
  bool seems_done() const {
    const auto& edges = setup.graph->edges();
    const auto& stages = setup.graph->stages();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (stages[edges[i].from].is_elsewhere || stages[edges[i].to].is_elsewhere ||
          items_may_wait(*setup.graph, edges[i]))
        continue;
      const auto& m = *setup.view->edges[i];
      if (m.put_items.load(std::memory_order_relaxed) !=
          m.taken_items.load(std::memory_order_relaxed))
        return false;
    }
    return true;
  }
  std::string what_waits() const {
    if (!last_under_way.empty()) return last_under_way;
    const auto& edges = setup.graph->edges();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const auto& m = *setup.view->edges[i];
      const auto& to = setup.graph->stages()[edges[i].to];
      if (const auto n = m.put_items.load() - m.taken_items.load();
          n > 0 && !to.is_elsewhere && !items_may_wait(*setup.graph, edges[i]))
        return fmt::format(
            "{} items still wait before {}{}", n, to.name,
            to.holds_items.empty() ? ", which cannot be written: give their struct `fields`" : "");
    }
    return "something is still under way";
  }
  void look_at_keeping(std::int64_t at) {
    if (!setup.checkpoints || is_finishing) return;
    if (!is_keeping) {
      if (at < keep_due_ns) return;
      is_keeping = true;
      kept_since_ns = moved_ns = at;
      tries_ns = 0;
      try_wait_ns = 2 * keeping_looks_ns;
      last_under_way.clear();
      is_hold_lifted = false;
      done_at_look = 0;
      tell_pause();
    }
    std::uint64_t done = 0;
    bool is_busy = false;
    for (const auto& c : setup.view->stages) done += c->items_in.load(std::memory_order_relaxed);
    // A source that waits for the world holds nobody up but itself.
    for (const auto& p : setup.view->pulses)
      if (const auto i = p->running.load(std::memory_order_relaxed);
          i < setup.graph->stages().size() && !setup.graph->stages()[i].is_source)
        is_busy = true;
    if (is_busy || std::exchange(done_at_look, done) != done) moved_ns = at;
    // Sources have stood still in vain: something waits for what they have not made, or goes round
    // for ever.
    const auto longest = calls_longest * std::max(keeping_longest_ns, setup.checkpoints->every_ns);
    // Whoever is held back may be who others need: then all is to go its way.
    if (at - moved_ns > keeping_limit_ns && !std::exchange(is_hold_lifted, true)) {
      moved_ns = at;
      tell_pause();
    }
    if (at - moved_ns > keeping_limit_ns || at - kept_since_ns > longest) {
      if (is_suspending && ++vain_suspensions >= vain_suspensions_max)
        return end(
            {true, error(error_code::failed,
                         "it cannot be suspended, and ends at once: sources stood still, and " +
                             what_waits())});
      if (at >= tells_trouble_ns)
        tell(self->context(), setup.program,
             topology_note{"no checkpoint, it is tried again: sources stood still, and " +
                           what_waits()});
      if (at >= tells_trouble_ns) tells_trouble_ns = at + troubles_each_ns;
      return end_keeping(at);
    }
    if (at < tries_ns || !seems_done()) return;
    try_wait_ns = std::min(looks_ns, 2 * try_wait_ns);
    tries_ns = at + try_wait_ns;
    is_on_trial = false;
    move(places, at);
  }
  void end_keeping(std::int64_t at) {
    is_keeping = false;
    // Of a topology that needs long to become empty, half of the time goes on as before.
    keep_due_ns = at + std::max(setup.checkpoints->every_ns, at - kept_since_ns);
    if (is_suspending) keep_due_ns = at + looks_ns;
    tell_pause();
    forget_loads(at);
  }
  // What stages did while sources stood still says nothing of their loads.
  void forget_loads(std::int64_t at) {
    looked_ns = at;
    done_before = 0;
    for (std::size_t i = 0; i < busy_before.size(); ++i)
      busy_before[i] = setup.view->stages[i]->busy_ns();
    for (const auto& c : setup.view->stages)
      done_before += c->items_in.load(std::memory_order_relaxed);
  }
  // Of a topology that stands still. True: it is over.
  bool keep(flow_group& whole) {
    last_under_way = whole.under_way();
    if (!last_under_way.empty()) {
      // Elsewhere a call may take long.
      const auto at = setup.now_ns();
      if (whole.has_items_elsewhere() &&
          at - kept_since_ns < std::max(elsewhere_longest_ns, setup.checkpoints->every_ns))
        moved_ns = at;
      return false;
    }
    auto done = [&]() -> result<void> {
      try {
        auto c = whole.keep();
        if (!c) return std::move(c.error());
        return setup.checkpoints->write(std::move(*c));
      } catch (const std::bad_alloc&) {
        return error(error_code::failed, "there is no memory for it");
      } catch (const std::exception& e) {
        return error(error_code::failed, e.what());
      } catch (...) {
        return error(error_code::failed, "an exception of unknown type");
      }
    }();
    const auto at = setup.now_ns();
    if (done && is_suspending) {
      end({.is_suspended = true});
      return true;
    }
    if (!done && is_suspending) {
      end({true, std::move(done.error().while_doing("the topology is not suspended"))});
      return true;
    }
    if (!done && at >= tells_trouble_ns) {
      tells_trouble_ns = at + troubles_each_ns;
      tell(self->context(), setup.program,
           topology_note{"no checkpoint, and it goes on: " + done.error().text()});
    }
    if (done) tells_trouble_ns = 0;
    is_keeping = false;
    keep_due_ns = at + std::max(setup.checkpoints->every_ns, at - kept_since_ns);
    is_paused = wants_pause;
    forget_loads(at);
    return false;
  }
  bool holds() const { return is_keeping && !is_hold_lifted; }
  void tell_pause() {
    is_paused = wants_pause || is_keeping;
    if (now == phase::runs || now == phase::halts) tell_all(flow_pause{is_paused, holds()});
  }
  // While everybody stands still they are told with the new placement.
  void see_wishes() {
    if (const bool wish = setup.wishes != nullptr && setup.wishes->pause.load();
        wish != wants_pause) {
      wants_pause = wish;
      tuner->forget();
      setup.view->is_paused.store(wants_pause);
      tell_pause();
    }
    if (setup.wishes != nullptr)
      for (auto& all : setup.wishes->take_replacements()) {
        if (all.front()->change->trial > 0) on_trial.push_back(all.front()->change);
        for (auto& r : all) replacing.push_back(std::move(r));
      }
    // Whoever surrenders has nobody to give it to.
    if (now == phase::runs)
      for (auto& r : std::exchange(replacing, {})) {
        const auto group = places[r->stage];
        tell(self->context(), groups[group], flow_replace{std::move(r)});
      }
    see_trials();
    for (auto& c : changing)
      if (const auto n = c.control->working.load(), m = c.control->moves.load();
          n != std::exchange(c.seen, n) || m != std::exchange(c.moves, m))
        tell_all(flow_look{c.deal});
  }
  void see_trials() {
    std::erase_if(on_trial, [this](const auto& c) {
      if (c->is_told_why.load())
        tell(self->context(), setup.program,
             topology_note{
                 c->name +
                 ": the new function is taken back, and the one before works on: " + c->why_back});
      return c->is_told_why.load() || c->judged.load() == stage_change::verdict::stays;
    });
  }

  // Of the call of that stage that is under way, which its counters do not know yet.
  double running_ns(std::uint32_t stage, std::int64_t at) const {
    const auto& pulse = *setup.view->pulses[places[stage]];
    if (setup.graph->stages()[stage].is_elsewhere ||
        setup.view->stages[stage]->is_borrowing.load(std::memory_order_relaxed) ||
        pulse.running.load(std::memory_order_relaxed) != stage)
      return 0;
    const auto now_ticks = static_cast<std::uint32_t>(at / coarse_tick_ns);
    const auto since = pulse.since_ticks.load(std::memory_order_relaxed);
    return now_ticks > since + 1 ? double(now_ticks - since) * double(coarse_tick_ns) : 0;
  }
  static bool is_tuned(const changing_replicas& c) {
    return c.control->is_automatic && !c.control->is_set.load();
  }
  // How many work of the replicas that are left to us. True: it has changed, and `loads`, of each
  // stage, are as they are likely to become.
  bool tune(std::int64_t at, std::vector<double>& loads) {
    if (changing.empty() || is_paused) return false;
    double computes = 0;
    for (std::size_t i = 0; i < loads.size(); ++i)
      if (!setup.graph->stages()[i].may_block) computes += loads[i];
    std::vector<tuned_stage> all;
    for (const auto& c : changing) {
      tuned_stage t;
      t.working = c.control->working.load();
      t.most = c.control->most;
      t.is_tuned = is_tuned(c);
      t.sleeps = c.sleeps;
      t.is_far = c.is_far;
      for (const auto& replica : c.stages)
        for (const auto i : replica) {
          t.busy_ns += setup.view->stages[i]->busy_ns() + running_ns(i, at);
          t.done += setup.view->stages[i]->items_in.load(std::memory_order_relaxed);
        }
      all.push_back(t);
    }
    const auto wanted = tuner->look(at, all, std::max(0.0, double(setup.threads) - computes));
    for (std::size_t i = 0; i < changing.size(); ++i)
      if (all[i].is_tuned)
        changing[i].control->reason.store(tuner->reason(i), std::memory_order_relaxed);
    if (!wanted) return false;
    auto& c = changing[wanted->stage];
    double load = 0;
    for (const auto& replica : c.stages)
      for (const auto i : replica) load += loads[i];
    for (std::size_t r = 0; r < c.stages.size(); ++r)
      for (std::size_t k = 0; k < c.stages[r].size(); ++k)
        loads[c.stages[r][k]] = k == 0 && r < wanted->working ? load / wanted->working : 0;
    // Somebody may have said meanwhile how many.
    auto before = all[wanted->stage].working;
    if (!c.control->working.compare_exchange_strong(before, wanted->working)) return false;
    c.seen = wanted->working;
    tell_all(flow_look{c.deal});
    return !c.sleeps;
  }

  void back_off() {
    rest = next_rest;
    next_rest = std::min(rest_max, next_rest * 2);
  }

  void measure(std::int64_t at) {
    const auto took = double(at - std::exchange(looked_ns, at));
    std::vector<double> loads;
    for (std::size_t i = 0; i < busy_before.size(); ++i) {
      const auto busy =
          setup.view->stages[i]->busy_ns() + running_ns(static_cast<std::uint32_t>(i), at);
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
    // Those that compute anew have a new place at once.
    if (tune(at, loads)) rest = 0, next_rest = 1, is_on_trial = false;
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
    const bool was_for_keeping = is_keeping;
    if (is_keeping && keep(whole)) return;
    if (!was_for_keeping) back_off();
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
        if (m.how == stop_topology::how::at_once)
          return s.end({true, error(error_code::failed, "stopped at once")});
        if (m.how == stop_topology::how::suspends) {
          s.is_suspending = true;
          s.keep_due_ns = 0;
          return;
        }
        s.is_finishing = true;
        s.is_keeping = false;
        s.tell_pause();
        s.tell_all(flow_finish{});
      },
      [self](flow_end) {
        auto& mine = self->state;
        mine.tell_all(flow_end{});
        mine.groups.clear();
        mine.replacing.clear();
        mine.on_trial.clear();
        mine.parts.clear();
        if (mine.setup.wishes != nullptr) mine.setup.wishes->close();
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
