// Two kinds of actors stand behind a runner, on the service worker: one dispatcher, which knows the
// sets of feeds and fetches, and for each set the clients of its jobs, which admit runs. A set has
// one job, and more of them, on the other streams of the process, while runs come faster than they
// end: a run goes to the client with the fewest that have not ended. A call is a mailbox, from its
// first message to its answer.
//
//   message      from        effect                              answer
//   run_graph    a call      dispatcher: to a client of the set, run_ended, or (the first of a set)
//                            or kept while a call compiles       compile_first
//   compiled     that call   dispatcher: the set has a client,   -
//                            or none; kept runs go there
//   give_up      a call      client: the run is taken out, or    -
//                            its values are dropped
//   client_started  a client dispatcher: runs that waited go     -
//                            to it, and to further ones
//   client_over  a client    dispatcher: without another one     client_forgotten; until then runs
//                            the next run is compiled anew       come back
//   store_granted the store  dispatcher: the run has the values  -
//                            of its variables, and goes on
//   store_refused the store  -                                   run_ended
//   end_runner   the runner  everything ends                     runner_ended
//
// A run that changes variables has its turn from store_granted on. Its call makes the updates of
// the operands that were fetched, in the program's thread, and commits them to the store; or it
// gives up, by way of the dispatcher, which so asks for no turn afterwards.
//
// GR-1  A run that was taken is answered exactly once, or given up.
// GR-2  Runs of a job are fed in the order in which they came, each whole: all its inputs have
//       room.
// GR-3  What a run computes does not depend on which job of its set runs it: a set whose ops depend
//       on the step has one.

#include "troupe/actors/session/graph_runner.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/session/fetched_steps.hpp"
#include "troupe/actors/session/job_client.hpp"
#include "troupe/actors/session/store_actor.hpp"
#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/text/near_names.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/system_messages.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>

namespace troupe {

struct run_graph {
  std::string set;
  std::vector<std::pair<std::string, tensor>> feeds;
  caf::actor call;
  std::vector<std::string> writes{};  // variables that its updates change
  bool has_variables = false;         // it is its turn, and `feeds` has their values
  store_view before{};                // `writes`, as they were then
};
struct compile_first {
  std::uint64_t first_step = 0;
};
struct graph_compiled {
  std::string set;
  std::shared_ptr<const job_request> request;  // null: it cannot be compiled
  error why{error_code::failed, ""};
  std::uint32_t jobs_max = 1;
  std::vector<std::string> reads{};  // variables that the store gives
  std::vector<tensor_spec> specs{};  // and what they are in the graph
};
struct run_ended {
  std::vector<tensor> values;
  std::optional<error> failure;
  store_view before{};
};
struct give_up {
  std::string set;
  caf::actor call;
};
struct client_over {
  std::string set;
  caf::actor client;
  bool has_started = true;
  std::string why;
  std::uint64_t steps = 0;  // that a job of it has ended, and those before them
};
struct client_started {
  std::string set;
};
struct client_forgotten {};
struct end_runner {
  caf::actor to;
};
struct runner_ended {};
struct count_sets {
  caf::actor to;
};
struct sets_counted {
  std::size_t count = 0;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_graph)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::compile_first)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::graph_compiled)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::give_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::client_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::client_started)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::client_forgotten)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::end_runner)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runner_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::count_sets)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::sets_counted)

namespace troupe {

namespace {

// What dispatcher and client, on one worker, know of a job.
struct job_state {
  std::size_t runs = 0;      // that were given to it and have not ended
  bool has_started = false;  // it has begun to run
};

// --- the client of one set's job ---

struct set_client {
  caf::stateful_actor<set_client>* self = nullptr;
  std::string set;
  std::shared_ptr<const job_request> request;
  caf::actor node, dispatcher;
  std::shared_ptr<job_state> state;
  bool is_further = false;  // the set has had a job before this one

  std::shared_ptr<const part_handles> handles{};  // once the job runs
  fed_inputs inputs{};
  bool has_loops = false;
  std::deque<run_graph> waiting{};
  struct fed_run {
    caf::actor call;  // null: given up
    store_view before;
  };
  std::deque<fed_run> under_way{};  // by step, the oldest first
  std::uint64_t ended = 0;          // steps, counted from the first one of the set
  bool is_over = false;
  caf::actor ends_for{};  // not null: the runner ends

  void open() {
    made.emplace(request->job_plan);
    const auto& actors = request->job_plan.actors;
    for (std::uint32_t i = 0; i < actors.size(); ++i) {
      if (actors[i].kind == actor_kind::feed)
        inputs.add(actors[i].name, i, actors[i].output_specs.at(0));
      if (actors[i].kind == actor_kind::op && actors[i].ops.front().type == loop_condition_op)
        has_loops = true;
      ended = std::max(ended, actors[i].start);  // where all that fire begin
    }
    // It ends with the session; a job that it has not begun by then it never tells of.
    self->monitor(node);
    self->set_down_handler([this](const caf::down_msg&) {
      if (!is_over) on_over("the session has ended");
    });
    tell(self->context(), node, run_job{request, caf::actor_cast<caf::actor>(self)});
  }

  void answer(const caf::actor& call, run_ended with) {
    if (state->runs > 0) --state->runs;
    if (call) tell(self->context(), call, std::move(with));
  }

  void take(run_graph& r) {
    if (is_over) return tell(self->context(), dispatcher, std::move(r));
    // What no fetch needs has no input.
    std::erase_if(r.feeds, [&](const auto& f) { return !inputs.has(f.first); });
    std::vector<std::pair<std::string_view, tensor>> feeds(r.feeds.begin(), r.feeds.end());
    if (auto fits = inputs.find_all(feeds); !fits)
      return answer(r.call, {{}, std::move(fits.error())});
    waiting.push_back(std::move(r));
    admit();
  }

  void admit() {
    const auto has_room = [&] {
      return std::all_of(inputs.begin(), inputs.end(),
                         [](const auto& i) { return i.second.room > 0; });
    };
    // A graph that takes nothing makes its values by itself, a few ahead.
    while (handles && !waiting.empty() && has_room()) {
      auto run = std::move(waiting.front());
      waiting.pop_front();
      for (auto& [name, value] : run.feeds) {
        auto* to = *inputs.find(name, value);
        --to->room;
        ++to->fed;
        tell(self->context(), handles->actors[to->actor], tensor_ready{0, 0, {}, std::move(value)});
      }
      under_way.push_back({std::move(run.call), std::move(run.before)});
      hand_out();
    }
  }

  std::optional<fetched_steps> made{};  // before somebody asked, where the graph has no inputs

  void on_fetched(fetched& m) {
    made->take(m);
    hand_out();
  }
  void hand_out() {
    while (!made->empty() && !under_way.empty()) {
      auto run = std::move(under_way.front());
      under_way.pop_front();
      answer(run.call, {made->pop(), std::nullopt, std::move(run.before)});
      ++ended;
      if (!handles) continue;
      made->each_fetch([&](std::uint32_t fetch) {
        tell(self->context(), handles->actors[fetch], credit{0, 1});
      });
      if (!under_way.empty() && !under_way.front().call) cancel_loops();
    }
  }
  // Of the oldest step.
  void cancel_loops() {
    if (has_loops)
      tell(self->context(), node, cancel_own_run{caf::actor_cast<caf::actor>(self), ended});
  }

  void on_give_up(const give_up& m) {
    state->runs -= std::min(
        state->runs, std::erase_if(waiting, [&](const auto& r) { return r.call == m.call; }));
    // A run that has gone back to the dispatcher is given up there, behind it.
    if (is_over) return tell(self->context(), dispatcher, give_up(m));
    const auto at = std::ranges::find(under_way, m.call, &fed_run::call);
    if (at == under_way.end()) return;
    at->call = nullptr;
    if (at == under_way.begin() && handles) cancel_loops();  // else once it is the oldest
  }

  // Runs that were not fed have not failed, unless the set's first job could not begin: another
  // would not, either. Where a further one cannot, the set goes on with those that it has.
  void on_over(const std::string& why) {
    is_over = true;
    handles.reset();
    const error failure(error_code::failed, why);
    for (const auto& run : std::exchange(under_way, {})) answer(run.call, {{}, failure});
    if (ends_for) return leave();
    tell(self->context(), dispatcher,
         client_over{set, caf::actor_cast<caf::actor>(self), state->has_started, why, ended});
    for (auto& r : std::exchange(waiting, {}))
      state->has_started || is_further ? tell(self->context(), dispatcher, std::move(r))
                                       : answer(r.call, {{}, failure});
  }

  void end(const end_runner& m) {
    ends_for = m.to;
    if (is_over) return leave();
    handles.reset();
    tell(self->context(), node,
         stop_own_job{caf::actor_cast<caf::actor>(self), std::string(job_done_reason)});
  }
  void leave() {
    tell(self->context(), ends_for, runner_ended{});
    self->quit();
  }
};

caf::behavior run_set(caf::stateful_actor<set_client>* self, std::string set,
                      std::shared_ptr<const job_request> request, caf::actor node,
                      caf::actor dispatcher, std::shared_ptr<job_state> state, bool is_further) {
  auto& s = self->state;
  s.self = self;
  s.set = std::move(set);
  s.request = std::move(request);
  s.node = std::move(node);
  s.dispatcher = std::move(dispatcher);
  s.state = std::move(state);
  s.is_further = is_further;
  s.open();
  return {
      [&s](run_graph& m) { s.take(m); },
      [&s](job_started& m) {
        if (s.ends_for) return;
        s.state->has_started = true;
        tell(s.self->context(), s.dispatcher, client_started{s.set});
        s.handles = std::move(m.handles);
        s.admit();
      },
      [&s](fetched& m) { s.on_fetched(m); },
      [&s](const feed_ready& m) {
        s.inputs.on_ready(m);
        s.admit();
      },
      [&s](const give_up& m) { s.on_give_up(m); },
      [&s](const job_finished&) { s.on_over("the job has ended"); },
      [&s](const job_failed& m) { s.on_over(m.line); },
      [self](client_forgotten) { self->quit(); },
      [&s](const end_runner& m) { s.end(m); },
  };
}

// --- the dispatcher ---

struct dispatcher_state {
  struct set_job {
    caf::actor client;
    std::shared_ptr<job_state> state;
    std::uint32_t offset = 0;  // of its streams
  };
  struct set {
    std::vector<set_job> jobs;       // none: somebody compiles it
    caf::actor compiler;             // whose call that is
    std::vector<run_graph> waiting;  // meanwhile
    std::shared_ptr<const job_request> request;
    std::uint32_t jobs_max = 1;
    std::vector<std::string> reads;  // variables that the store gives
    std::vector<tensor_spec> specs;  // and what they are in the graph
    bool has_run = false;
    std::uint64_t first_step = 0;  // of a job that is still to be made
  };
  caf::event_based_actor* self = nullptr;
  process* owner = nullptr;
  caf::actor store{};  // null: none
  std::unordered_map<std::string, set> sets{};
  std::unordered_map<std::uint64_t, run_graph> asked_for{};  // runs that wait for the store
  std::size_t compiled = 0;

  caf::execution_unit* service() const {
    return static_cast<pinned_scheduler&>(owner->system().scheduler()).service();
  }

  void take(run_graph& m) {
    const auto at = sets.try_emplace(m.set).first;
    auto& s = at->second;
    if (is_running(s)) return enter(at->first, s, m);
    const auto call = m.call;
    s.waiting.push_back(std::move(m));
    if (s.jobs.empty() && !s.compiler) ask(s, call);
  }

  static bool is_running(const set& s) {
    return std::ranges::any_of(s.jobs, [](const auto& j) { return j.state->has_started; });
  }

  // With the values of its variables.
  void enter(const std::string& key, set& s, run_graph& m) {
    if (!store || m.has_variables || (s.reads.empty() && m.writes.empty())) return give(key, s, m);
    const auto id = m.call->id();
    tell(self->context(), store,
         store_begin{{id, s.reads, m.writes}, caf::actor_cast<caf::actor>(self)});
    asked_for.insert_or_assign(id, std::move(m));
  }

  void on_granted(store_granted& m) {
    const auto asked = asked_for.extract(m.grant.id);
    if (asked.empty()) return;  // given up meanwhile, which the store is told
    auto& run = asked.mapped();
    if (const auto of = sets.find(run.set); of != sets.end())
      if (auto fits = check(of->second, m.grant.reads); !fits)
        return tell(self->context(), run.call, run_ended{{}, std::move(fits.error())});
    for (const auto& v : m.grant.reads.variables)
      run.feeds.emplace_back(v.name, v.entry->value.now);
    run.before = std::move(m.grant.writes);
    run.before.version = m.grant.reads.version;
    run.has_variables = true;
    take(run);
  }

  static result<void> check(const set& s, const store_view& given) {
    for (std::size_t i = 0; i < std::min(s.specs.size(), given.variables.size()); ++i) {
      const auto& spec = given.variables[i].entry->value.now.spec();
      if (spec != s.specs[i])
        return error(error_code::usage,
                     fmt::format("variable '{}' is {} in this graph, and {} in "
                                 "the store",
                                 s.reads[i], to_string(s.specs[i]), to_string(spec)));
    }
    return {};
  }

  void on_refused(store_refused& m) {
    const auto asked = asked_for.extract(m.id);
    if (!asked.empty()) tell(self->context(), asked.mapped().call, run_ended{{}, std::move(m.why)});
  }

  void give(const std::string& key, set& s, run_graph& m) {
    auto least = std::ranges::min_element(s.jobs, {}, [](const auto& j) { return j.state->runs; });
    if (least->state->runs > 0 && s.jobs.size() < s.jobs_max) {
      start_job(key, s);
      least = std::prev(s.jobs.end());
    }
    // What a run has read of a store would be old once a job has started, which may take long.
    if (m.has_variables && !least->state->has_started)
      least = std::ranges::min_element(s.jobs, {}, [](const auto& j) {
        return std::pair(!j.state->has_started, j.state->runs);
      });
    ++least->state->runs;
    tell(self->context(), least->client, std::move(m));
  }

  // One more job of the set: the same plan, on the streams behind those of the others.
  void start_job(const std::string& key, set& s) {
    std::uint32_t offset = 0;
    while (std::ranges::any_of(s.jobs, [&](const auto& j) { return j.offset == offset; })) ++offset;
    auto request = s.request;
    if (offset > 0) {
      auto moved = std::make_shared<job_request>(*request);
      for (auto& a : moved->job_plan.actors)
        if (!is_device_stream(a.stream)) a.stream += offset;
      for (auto& b : moved->job_plan.buffers) b.stream += offset;
      request = std::move(moved);
    }
    auto state = std::make_shared<job_state>();
    auto client = spawn_on(owner->system(), service(), &run_set, key, std::move(request),
                           owner->node(), caf::actor_cast<caf::actor>(self), state, offset > 0);
    s.jobs.push_back({std::move(client), std::move(state), offset});
  }

  void ask(set& s, const caf::actor& call) {
    s.compiler = call;
    tell(self->context(), call, compile_first{s.first_step});
  }

  void on_compiled(graph_compiled& m) {
    const auto at = sets.find(m.set);
    if (at == sets.end()) return;
    if (!m.request) return refuse(at, m.why);
    ++compiled;
    auto& s = at->second;
    s.request = m.request;
    s.jobs_max = m.jobs_max;
    s.reads = std::move(m.reads);
    s.specs = std::move(m.specs);
    start_job(at->first, s);  // which tells when it runs
  }

  void on_started(const client_started& m) {
    const auto at = sets.find(m.set);
    if (at == sets.end()) return;
    at->second.has_run = true;
    for (auto& r : std::exchange(at->second.waiting, {})) enter(at->first, at->second, r);
  }

  void on_over(const client_over& m) {
    tell(self->context(), m.client, client_forgotten{});
    const auto at = sets.find(m.set);
    if (at == sets.end()) return;
    auto& jobs = at->second.jobs;
    if (std::erase_if(jobs, [&](const auto& j) { return j.client == m.client; }) == 0) return;
    if (!m.has_started && !jobs.empty())
      at->second.jobs_max = static_cast<std::uint32_t>(jobs.size());
    if (!jobs.empty()) return;
    if (!at->second.has_run) return refuse(at, error(error_code::failed, m.why));
    // Who waits was not fed: the set is made anew. A step that is made again has the number that it
    // had, and so draws the same numbers.
    auto& s = at->second;
    s.first_step = std::max(s.first_step, m.steps);
    s.compiler = nullptr;
    s.has_run = false;
    if (!s.waiting.empty()) ask(s, s.waiting.front().call);
  }

  // Nobody makes a job of that set: a later run has it compiled anew.
  void refuse(std::unordered_map<std::string, set>::iterator at, const error& why) {
    auto waiting = std::exchange(at->second.waiting, {});
    forget(at);
    for (auto& r : waiting) tell(self->context(), r.call, run_ended{{}, why});
  }

  // But for the number of its next step.
  void forget(std::unordered_map<std::string, set>::iterator at) {
    if (at->second.first_step == 0) {
      sets.erase(at);
      return;
    }
    set left;
    left.first_step = at->second.first_step;
    at->second = std::move(left);
  }

  void on_give_up(give_up& m) {
    asked_for.erase(m.call->id());
    if (store) tell(self->context(), store, store_give_up{m.call->id()});
    const auto at = sets.find(m.set);
    if (at == sets.end()) return;
    std::erase_if(at->second.waiting, [&](const auto& r) { return r.call == m.call; });
    auto& s = at->second;
    if (!s.jobs.empty()) {
      for (const auto& j : s.jobs) tell(self->context(), j.client, give_up(m));
      return;
    }
    if (s.compiler != m.call) return;
    // He has left before he was asked to compile.
    if (s.waiting.empty())
      forget(at);
    else
      ask(s, s.waiting.front().call);
  }

  void end(const end_runner& m) {
    std::size_t clients = 0;
    for (auto& [key, s] : sets)
      for (const auto& j : s.jobs) ++clients, tell(self->context(), j.client, end_runner{m.to});
    tell(self->context(), m.to, sets_counted{clients});  // as many answer
    self->quit();
  }
};

caf::behavior dispatch(caf::stateful_actor<dispatcher_state>* self, process* owner,
                       caf::actor store) {
  auto& s = self->state;
  s.self = self;
  s.owner = owner;
  s.store = std::move(store);
  return {
      [&s](run_graph& m) { s.take(m); },
      [&s](graph_compiled& m) { s.on_compiled(m); },
      [&s](give_up& m) { s.on_give_up(m); },
      [&s](const client_over& m) { s.on_over(m); },
      [&s](const client_started& m) { s.on_started(m); },
      [&s](store_granted& m) { s.on_granted(m); },
      [&s](store_refused& m) { s.on_refused(m); },
      [&s](const count_sets& m) { tell(s.self->context(), m.to, sets_counted{s.compiled}); },
      [&s](const end_runner& m) { s.end(m); },
  };
}

// --- the program's side ---

class runner_impl final : public graph_runner {
 public:
  runner_impl(process& p, const graph& g, surroundings around,
              std::shared_ptr<const store_core> store)
      : keeps_(p.weak_from_this().lock()),
        process_(p),
        graph_(g),
        around_(std::move(around)),
        store_(std::move(store)) {
    auto* service = static_cast<pinned_scheduler&>(p.system().scheduler()).service();
    dispatcher_ =
        spawn_on(p.system(), service, &dispatch, &p, store_ ? store_->actor() : caf::actor());
    forget_logger();
    for (std::uint32_t i = 0; i < g.nodes().size(); ++i)
      if (!ops_.emplace(g.node(i).name, i).second) twice_.insert(g.node(i).name);
  }

  ~runner_impl() override {
    if (process_.is_forked()) {
      leave_alone(dispatcher_);
      return;
    }
    const mailbox call(process_.system());
    tell(nullptr, dispatcher_, end_runner{call.handle()});
    std::optional<std::size_t> clients;
    std::size_t ended = 0;
    while (!clients || ended < *clients)
      call->receive([&](const sets_counted& m) { clients = m.count; },
                    [&](runner_ended) { ++ended; });
    after_message();
  }

  result<void> bind(std::string_view name, tensor value) override {
    auto to = find(name);
    if (!to) return std::move(to.error());
    if (auto fits = check_fed(name, *to, value); !fits) return fits;
    const auto at =
        std::find_if(bound_.begin(), bound_.end(), [&](const auto& b) { return b.first == name; });
    if (at != bound_.end())
      at->second = std::move(value);
    else
      bound_.emplace_back(std::string(name), std::move(value));
    return {};
  }

  result<std::vector<tensor>> run(std::span<const feed> feeds,
                                  std::span<const std::string_view> fetches,
                                  std::chrono::milliseconds deadline) override {
    return step(feeds, fetches, {}, {.deadline = deadline});
  }

  result<std::vector<tensor>> step(std::span<const feed> feeds,
                                   std::span<const std::string_view> fetches,
                                   std::span<const std::string_view> updates,
                                   const step_options& options) override {
    if (auto there = process_.check_is_there(); !there) return std::move(there.error());
    if (store_ && !store_->is_of(process_))
      return error(error_code::usage, "the store of this runner is one of another session");
    asked a;
    a.limit = options.deadline;
    a.end = deadline(a.limit);
    run_graph m;
    if (auto ok = add_feeds(feeds, a, m); !ok) return std::move(ok.error());
    for (const auto& name : fetches) {
      auto from = find(name);
      if (!from) return std::move(from.error());
      a.fetches.push_back(*from);
    }
    if (auto ok = add_updates(updates, a); !ok) return std::move(ok.error());
    const bool is_async = options.update == update_kind::async;
    if (!is_async) m.writes = a.writes();
    m.set = name_of(m, fetches, updates);
    const mailbox call(process_.system());
    const pinned_scheduler::waiter waits(
        static_cast<pinned_scheduler&>(process_.system().scheduler()));
    m.call = call.handle();
    a.set = m.set;
    tell(nullptr, dispatcher_, std::move(m));
    auto ended = wait(call, a);
    if (!ended) return std::move(ended.error());
    if (options.version != nullptr) *options.version = ended->before.version;
    if (!a.updates.empty()) {
      if (is_async) {
        auto newest = take_turn(call, a);
        if (!newest) return std::move(newest.error());
        ended->before = std::move(*newest);
      }
      if (auto made = commit(call->id(), a, fetches.size(), *ended); !made)
        return std::move(made.error());
      ended->values.resize(fetches.size());
    }
    return std::move(ended->values);
  }

  bool is_on(const variable_store& store) const override {
    return store_ != nullptr && store.core() == store_;
  }

  std::vector<std::string> changed_by(std::string_view update) const override {
    std::vector<std::string> out;
    for (const auto& u : graph_.updates())
      if (u.name == update) out.push_back(graph_.node(u.variable.node).name);
    return out;
  }

  std::size_t compiled() override {
    if (process_.is_forked()) return 0;
    const mailbox call(process_.system());
    tell(nullptr, dispatcher_, count_sets{call.handle()});
    std::size_t count = 0;
    call->receive([&](const sets_counted& m) { count = m.count; });
    after_message();
    return count;
  }

 private:
  // What a call asks for.
  struct asked {
    std::vector<value> feeds, fetches;  // fetches: also the operands of updates, behind the rest
    std::vector<const graph_update*> updates;
    std::string set;
    std::chrono::milliseconds limit{};
    deadline end{limit};

    std::vector<std::string> writes() const {
      std::vector<std::string> out;
      for (const auto* u : updates) out.push_back(u->variable.owner->node(u->variable.node).name);
      return out;
    }
    error late() const {
      return {error_code::timed_out,
              fmt::format("the run has not ended, and was cancelled, after {} ms", limit.count())};
    }
  };

  result<void> add_feeds(std::span<const feed> feeds, asked& a, run_graph& m) const {
    const auto is_fed = [&](std::string_view name) {
      return std::ranges::any_of(m.feeds, [&](const auto& f) { return f.first == name; });
    };
    for (const auto& [name, value] : feeds) {
      auto to = find(name);
      if (!to) return std::move(to.error());
      if (auto fits = check_fed(name, *to, value); !fits) return fits;
      if (is_fed(name)) return error(error_code::usage, fmt::format("'{}' is fed twice", name));
      a.feeds.push_back(*to);
      m.feeds.emplace_back(std::string(name), value);
    }
    for (const auto& [name, value] : bound_) {
      if (is_fed(name)) continue;
      a.feeds.push_back(*find(name));
      m.feeds.emplace_back(name, value);
    }
    return {};
  }

  result<void> add_updates(std::span<const std::string_view> names, asked& a) const {
    if (names.empty()) return {};
    if (!store_)
      return error(error_code::usage,
                   "a runner without a store has no updates: make it by "
                   "session.runner(g, store)");
    std::unordered_map<std::uint32_t, const graph_update*> by_variable;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::ranges::count(names.first(i), names[i]) > 0) continue;  // asked for once
      const auto before = a.updates.size();
      for (const auto& u : graph_.updates()) {
        if (u.name != names[i]) continue;
        const auto [other, is_new] = by_variable.emplace(u.variable.node, &u);
        // Two losses that move one average move it once.
        if (!is_new && is_same_average(*other->second, u)) continue;
        if (!is_new)
          return error(error_code::usage,
                       fmt::format("one run cannot make two updates of variable '{}': '{}', and "
                                   "'{}' of {}:{}",
                                   graph_.node(u.variable.node).name, u.name, other->second->name,
                                   other->second->source.file_name(), other->second->source.line()))
              .at(u.source);
        a.updates.push_back(&u);
        for (const auto& v : {u.operand, u.rate, u.when})
          if (v.is_valid()) a.fetches.push_back(v);
      }
      if (a.updates.size() == before &&
          std::ranges::none_of(graph_.updates(), [&](const auto& u) { return u.name == names[i]; }))
        return unknown_update(names[i]);
    }
    return {};
  }

  static bool is_same_average(const graph_update& a, const graph_update& b) {
    const auto is_same = [](const value& x, const value& y) {
      return x.owner == y.owner && x.node == y.node && x.output == y.output;
    };
    return a.type == graph_update::kind::average && b.type == a.type &&
           is_same(a.operand, b.operand) && is_same(a.when, b.when);
  }

  error unknown_update(std::string_view name) const {
    if (graph_.first_error()) return *graph_.first_error();
    std::set<std::string_view> all;
    for (const auto& u : graph_.updates()) all.insert(u.name);
    const std::vector<std::string_view> known(all.begin(), all.end());
    constexpr std::size_t most = 8;
    auto there = near_names(name, known);
    if (there.empty() && !known.empty())
      there = fmt::format(
          "; there {} '{}'{}", known.size() == 1 ? "is" : "are",
          fmt::join(known.begin(),
                    known.begin() + static_cast<std::ptrdiff_t>(std::min(known.size(), most)),
                    "', '"),
          known.size() > most ? ", ..." : "");
    return {error_code::usage,
            printable(fmt::format("the graph has no update '{}'{}", name, there))};
  }

  // The newest values of the variables that it changes, once nobody else does.
  result<store_view> take_turn(const mailbox& call, const asked& a) {
    const auto id = call->id();
    tell(nullptr, store_->actor(), store_begin{{id, {}, a.writes()}, call.handle()});
    std::optional<result<store_view>> out;
    call->receive([&](store_granted& m) { out = std::move(m.grant.writes); },
                  [&](store_refused& m) { out = std::move(m.why); },
                  caf::after(a.end.left()) >> [&] { out = a.late(); });
    after_message();
    if (!*out) tell(nullptr, store_->actor(), store_give_up{id});
    return std::move(*out);
  }

  // Makes the updates, in this thread, and commits all or none.
  result<void> commit(std::uint64_t id, const asked& a, std::size_t first, run_ended& ended) {
    const auto give_up = [&] { tell(nullptr, store_->actor(), store_give_up{id}); };
    try {
      auto changes = made_of(a, first, ended);
      if (!changes) {
        give_up();
        return std::move(changes.error());
      }
      tell(nullptr, store_->actor(), store_commit{id, std::move(*changes)});
      return {};
    } catch (const std::bad_alloc&) {
      give_up();
      return error(error_code::failed, "no memory is left for the updates of the run");
    } catch (...) {
      give_up();
      throw;
    }
  }

  static result<std::vector<stored_variable>> made_of(const asked& a, std::size_t first,
                                                      run_ended& ended) {
    std::vector<stored_variable> changes;
    auto next = ended.values.begin() + static_cast<std::ptrdiff_t>(first);
    for (std::size_t i = 0; i < a.updates.size(); ++i) {
      const auto& u = *a.updates[i];
      update_operands with{std::move(*next++)};
      if (u.rate.is_valid()) with.rate = std::move(*next++);
      if (u.when.is_valid()) with.when = std::move(*next++);
      if (!is_made(with)) continue;
      const auto& before = ended.before.variables.at(i);
      auto entry = updated(*before.entry, u, with);
      if (!entry) return std::move(entry.error());
      changes.push_back(
          {before.name, std::make_shared<const variable_entry>(std::move(*entry)), 0});
    }
    return changes;
  }

  result<value> find(std::string_view name) const {
    std::uint32_t output = 0;
    auto at = ops_.find(std::string(name));
    if (const auto colon = name.rfind(':'); at == ops_.end() && colon != std::string_view::npos) {
      const auto number = name.substr(colon + 1);
      if (const auto [rest, ec] =
              std::from_chars(number.data(), number.data() + number.size(), output);
          ec == std::errc() && rest == number.data() + number.size() && output > 0)
        at = ops_.find(std::string(name.substr(0, colon)));
    }
    if (at == ops_.end()) {
      if (graph_.first_error()) return *graph_.first_error();
      if (std::ranges::any_of(graph_.updates(), [&](const auto& u) { return u.name == name; }))
        return error(error_code::usage,
                     fmt::format("'{}' is an update, which has no value to fetch or feed: name it "
                                 "among the updates of step()",
                                 name));
      return error(error_code::usage, printable(fmt::format("the graph has no '{}'{}", name,
                                                            near_names(name, names_to_fetch()))));
    }
    const auto& n = graph_.node(at->second);
    if (twice_.contains(n.name))
      return error(
                 error_code::usage,
                 fmt::format("two ops are named '{}': name them by named(value, name), which sees "
                             "to that",
                             n.name))
          .at(n.source);
    if (output >= n.outputs.size())
      return error(error_code::usage,
                   fmt::format("'{}' has {} outputs, and '{}' asks for number {}", n.name,
                               n.outputs.size(), name, output))
          .at(n.source);
    return value{const_cast<graph*>(&graph_), at->second, output};  // it is only looked at
  }

  std::vector<std::string_view> names_to_fetch() const {
    std::vector<std::string_view> names;
    for (const auto& n : graph_.nodes())
      if (n.region == 0) names.push_back(n.name);
    return names;
  }

  result<void> check_fed(std::string_view name, const value& to, const tensor& t) const {
    const auto& n = graph_.node(to.node);
    const auto& spec = n.outputs[to.output];
    if (!t) return error(error_code::usage, fmt::format("'{}' was given no tensor", name));
    if (t.type() != spec.type || !spec.shape.admits(t.shape()))
      return error(error_code::usage, fmt::format("'{}' takes {}, and was given {}", name,
                                                  to_string(spec), to_string(t.spec())))
          .at(n.source);
    return {};
  }

  // Names have no line breaks.
  static std::string name_of(const run_graph& m, std::span<const std::string_view> fetches,
                             std::span<const std::string_view> updates) {
    std::vector<std::string_view> names;
    for (const auto& f : m.feeds) names.push_back(f.first);
    std::sort(names.begin(), names.end());
    return fmt::format("{}\n\n{}\n\n{}", fmt::join(names, "\n"), fmt::join(fetches, "\n"),
                       fmt::join(updates, "\n"));
  }

  // After an error it is nobody's turn any more.
  result<run_ended> wait(const mailbox& call, const asked& a) {
    for (;;) {
      std::optional<run_ended> ended;
      std::optional<std::uint64_t> first_step;
      bool is_late = false;
      call->receive([&](run_ended& m) { ended = std::move(m); },
                    [&](const compile_first& m) { first_step = m.first_step; },
                    caf::after(a.end.left()) >> [&] { is_late = true; });
      after_message();
      if (first_step) {  // even if it is late: others wait for it
        compile(a, *first_step);
        continue;
      }
      if (is_late) {
        tell(nullptr, dispatcher_, give_up{a.set, call.handle()});
        return a.late();
      }
      if (!ended->failure) return std::move(*ended);
      if (!a.updates.empty()) tell(nullptr, store_->actor(), store_give_up{call->id()});
      return std::move(*ended->failure);
    }
  }

  void compile(const asked& a, std::uint64_t first_step) {
    graph_compiled m{a.set, nullptr};
    auto compiled = [&]() -> result<plan> {  // of a plan that the message has
      if (auto there = process_.check_is_there(); !there) return std::move(there.error());
      try {
        auto options = around_();  // nodes come and go
        options.first_step = first_step;
        auto made = compile_steps(graph_, a.fetches, a.feeds, options,
                                  store_ ? unfed_variables::fed : unfed_variables::refused);
        if (!made) return made;
        m.jobs_max = jobs_max_of(*made, options);
        add_variables_fed(m, *made, a);
        m.request = request_of(std::move(*made));
        return plan{};
      } catch (const std::bad_alloc&) {
        return error(error_code::failed, "no memory is left to compile what is fetched");
      }
    }();
    if (!compiled) m.why = std::move(compiled.error());
    tell(nullptr, dispatcher_, std::move(m));
  }

  // What a plan is fed with that the program does not feed.
  void add_variables_fed(graph_compiled& m, const plan& p, const asked& a) const {
    std::set<std::string> fed;
    for (const auto& v : a.feeds) fed.insert(feed_name(graph_, v));
    for (const auto& actor : p.actors)
      if (actor.kind == actor_kind::feed && !fed.contains(actor.name)) {
        m.reads.push_back(actor.name);
        m.specs.push_back(actor.output_specs.at(0));
      }
  }

  // How many jobs of it may run side by side: on as many streams as there are, within some memory.
  // Where the user says which stream, that one.
  std::uint32_t jobs_max_of(const plan& p, const compile_options& options) const {
    constexpr std::uint64_t memory_max = std::uint64_t{1} << 30;
    if (!options.spread || options.device.find("/cpu:") != std::string::npos) return 1;
    for (const auto& a : p.actors) {
      if (is_device_stream(a.stream)) return 1;
      for (const auto& op : a.ops) {
        const auto* row = graph_.ops().find(op.type);
        if (row == nullptr || row->depends_on_step || (row->is_source && !row->is_constant))
          return 1;
      }
    }
    if (std::ranges::any_of(graph_.nodes(), [](const auto& n) {
          return n.device.find("/cpu:") != std::string::npos;
        }))
      return 1;
    std::uint64_t bytes = 1;
    for (std::uint32_t t = 0; t < p.tasks.size(); ++t)
      bytes = std::max(bytes, memory_of_part(p, t).bytes);
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(memory_max / bytes, 1, std::max(1U, options.streams)));
  }

  std::shared_ptr<process> keeps_;  // where the session ends before it
  process& process_;
  const graph& graph_;
  surroundings around_;
  std::shared_ptr<const store_core> store_;  // null: none
  caf::actor dispatcher_;
  std::unordered_map<std::string, std::uint32_t> ops_;  // by name: the op that makes it
  std::set<std::string> twice_;                         // names of several ops
  std::vector<std::pair<std::string, tensor>> bound_;
};

}  // namespace

std::unique_ptr<graph_runner> make_runner(process& p, const graph& g, surroundings around,
                                          std::shared_ptr<const store_core> store) {
  return std::make_unique<runner_impl>(p, g, std::move(around), std::move(store));
}

}  // namespace troupe
