#include "tools/troupe-sim/sim_job.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/messages/member_messages.hpp"
#include "troupe/runtime/jobs/placement.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr std::int64_t s = 1000 * ms;

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t seeds_default = 40;
#else
constexpr std::uint64_t seeds_default = 250;
#endif

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Runs `one` for seeds 1 .. TROUPE_SEEDS / share, or for TROUPE_SEED alone. What it answers is
// wrong; "": nothing.
template <class One>
void for_seeds(std::uint64_t share, One&& one) {
  const auto only = number_from("TROUPE_SEED", 0);
  const auto last =
      only != 0 ? only
                : std::max<std::uint64_t>(1, number_from("TROUPE_SEEDS", seeds_default) / share);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t failures = 0;
  for (auto seed = only != 0 ? only : 1; seed <= last; ++seed) {
    const std::string wrong = one(seed);
    if (wrong.empty()) continue;
    BOOST_ERROR(fmt::format("TROUPE_SEED={}: {}", seed, wrong));
    if (++failures == 5) break;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  BOOST_TEST_MESSAGE(fmt::format(
      "{}: {} seeds, {:.1f} ms each", boost::unit_test::framework::current_test_case().p_name.get(),
      only != 0 ? 1 : last, took.count() / double(only != 0 ? 1 : last)));
}

using job_shape = sim_job_shape;

struct fixture {
  sim_tables tables;
  sim_data data = [] {
    auto made = sim_data::make();
    BOOST_TEST_REQUIRE(bool(made));
    return std::move(*made);
  }();
  sim_reference reference{tables, data};

  const sim_outcome& embedded(const job_shape& shape) { return reference.of(shape); }

  void start(sim_cluster& c, const job_shape& shape) {
    auto request =
        make_sim_request(tables, data, shape, nodes_in_order(c.nodes()), c.info(c.client()).id);
    BOOST_TEST_REQUIRE(bool(request), (request ? "" : request.error().text()));
    c.run_job(*request);
  }
};

// What every process noted, for a person who looks at one seed.
void tell_story(sim_cluster& c) {
  if (number_from("TROUPE_SEED", 0) == 0) return;
  for (std::uint32_t i = 0; i <= c.client(); ++i) {
    if (!c.is_alive(i)) continue;
    const auto answer = c.ask(i);
    for (const auto& e : answer.events)
      BOOST_TEST_MESSAGE(
          fmt::format("{}: {:.3f} s ago: {}", c.info(i).name, e.since_seconds, e.text));
    for (const auto& a : answer.actors) {
      std::string ports;
      for (const auto& p : a.ports)
        ports += fmt::format(" {}{}={}", p.is_waiting ? "*" : "", p.name,
                             p.is_input() ? p.queued : p.credits);
      if (a.state != actor_state::ended && !a.job.empty())
        BOOST_TEST_MESSAGE(fmt::format("{}: {} is {} after {} steps:{}", c.info(i).name, a.name,
                                       to_string(a.state), a.steps, ports));
    }
  }
}

// The whole life of a job that nothing disturbs for good; `disturb` is called before every message
// and event.
std::string run_whole(
    fixture& f, sim_cluster& c, const job_shape& shape,
    const std::function<void()>& disturb = [] {}) {
  if (!c.form()) return "the processes did not find each other";
  c.hold("stop_part_actors");  // the end of the parts, for a look at the credits
  f.start(c, shape);
  auto& p = c.program();
  const auto losses = shape.update == update_kind::sync ? shape.steps : shape.steps * shape.workers;
  const auto items = shape.observe_every == 0 ? 1 : shape.steps / shape.observe_every;
  const bool is_over = c.run_until(
      [&] {
        disturb();
        return p.is_over();
      },
      20 * s);
  if (p.failed) return p.failed->line;
  if (!is_over)
    return fmt::format("the job hangs after {} losses and {} observations", p.losses.size(),
                       p.variables.size());
  if (p.losses.size() != losses || p.variables.size() != items)
    return fmt::format("the job ended with {} losses and {} observations", p.losses.size(),
                       p.variables.size());
  std::string wrong;
  for (int tries = 0; tries < 10; ++tries) {  // a connection that was cut is dialled anew first
    c.run_for(50 * ms);
    wrong = check_credits(c);
    if (wrong.empty()) break;
  }
  if (!wrong.empty()) return wrong;
  c.hold("");
  c.run_for(50 * ms);
  wrong = left_over(c);
  return wrong.empty() ? check_ledger(*p.finished, shape, true) : wrong;
}

std::string check_asynchronous(fixture& f, sim_cluster& c, const job_shape& shape) {
  if (auto wrong = run_whole(f, c, shape); !wrong.empty()) return wrong;
  const auto fed = double(shape.steps * shape.workers);
  if (const auto counted = applied_by_counter(c.program()); counted != fed)
    return fmt::format("{} gradients were fed, and the variable that counts them has seen {}", fed,
                       counted);
  return {};
}

// The next chunk of an edge as another life of its sender would send it: the same place, other
// bytes.
outgoing_frame forge(const outgoing_frame& real) {
  auto h = *decode_chunk(real.header);
  h.sender = node_id{raw(h.sender) ^ 2};
  auto forged = real;
  forged.sequence = 0;  // not numbered: the lane delivers it
  forged.ack = 0;
  forged.header = encode(h);
  forged.payload = tensor::make(real.payload.spec());
  std::fill(forged.payload.bytes().begin(), forged.payload.bytes().end(), std::byte{0x3c});
  return forged;
}

// Three workers, so that the order of summing shows. `on_forged`: now and then a forged chunk comes
// before the real one.
std::string check_synchronous(fixture& f, sim_cluster& c,
                              const std::function<void()>& on_forged = {}) {
  const job_shape shape{.workers = 3};
  const auto& wanted = f.embedded(shape);
  std::mt19937_64 random(c.random()());
  if (on_forged)
    c.network().set_forger([&](const outgoing_frame& real) -> std::vector<outgoing_frame> {
      if (real.kind != frame_kind::chunk || random() % 20 != 0) return {};
      on_forged();
      return {forge(real)};
    });
  auto wrong = run_whole(f, c, shape);
  return wrong.empty() ? difference(collect(c.program()), wanted) : wrong;
}

// A check that finds something within so many seeds.
void find_within(std::uint64_t seeds, const std::function<std::string(std::uint64_t)>& check) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto wrong = check(seed);
    if (wrong.empty()) continue;
    BOOST_TEST_MESSAGE(fmt::format("found with seed {}: {}", seed, wrong));
    return;
  }
  BOOST_ERROR(fmt::format("not found with {} seeds", seeds));
}

void find(fixture& f, const planted_bugs& bugs) {
  find_within(20, [&](std::uint64_t seed) {
    sim_cluster c(f.tables, {.seed = seed, .bugs = &bugs});
    const std::function<void()> ignore = [] {};
    return check_synchronous(f, c, bugs.admits_other_lives ? ignore : nullptr);
  });
}

void run_messages(sim_cluster& c, std::uint64_t n) {
  const auto end = c.messages() + n;
  c.run_until([&] { return c.messages() >= end || c.program().is_over(); }, 10 * s);
}

// A node goes at some moment of a synchronous job: the job fails in time, says who, and leaves
// nothing behind.
std::string lose_a_node(fixture& f, sim_cluster& c,
                        const std::function<void(sim_cluster&, std::uint32_t)>& lose) {
  const job_shape shape{.workers = 3, .steps = 1000, .observe_every = 0};
  if (!c.form()) return "the processes did not find each other";
  f.start(c, shape);
  auto& p = c.program();
  run_messages(c, c.random()() % 4000);
  const auto victim = static_cast<std::uint32_t>(c.random()() % 3);
  const auto name = c.info(victim).name;
  const auto then = c.now_ns();
  lose(c, victim);
  c.run_until([&] { return p.is_over(); }, 10 * s);
  if (!p.failed) {
    tell_story(c);
    return p.finished ? "the job claims to have finished" : "the job hangs";
  }
  const auto& line = p.failed->line;
  if (p.over_ns - then > 2 * s)
    return fmt::format("it took {} ms: {}", (p.over_ns - then) / ms, line);
  if (line.find('\n') != std::string::npos) return "more than one line: " + line;
  for (const auto& what : {"node " + name, std::string("actor "), std::string("step ")})
    if (line.find(what) == std::string::npos)
      return fmt::format("the line lacks '{}': {}", what, line);
  c.run_for(500 * ms);
  for (std::uint32_t i = 0; i <= c.client(); ++i)
    if (i != victim && c.job_actors(i) > 0)
      return fmt::format("actors of the job are left on {}", c.info(i).name);
  return check_ledger(p.failed->totals, shape, false);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cluster)

BOOST_FIXTURE_TEST_CASE(SC_1_one_seed_is_one_history, fixture) {
  std::set<std::uint64_t> orders;
  for (int repeat = 0; repeat < 3; ++repeat) {
    sim_cluster c(tables, {.seed = 7});
    BOOST_TEST(run_whole(*this, c, {}) == "");
    orders.insert(c.orders());
  }
  BOOST_TEST(orders.size() == 1U);
}

BOOST_FIXTURE_TEST_CASE(
    synchronous_training_gives_the_bits_of_one_process_in_every_order_of_messages, fixture) {
  std::set<std::uint64_t> orders;
  std::uint64_t messages = 0;
  for_seeds(1, [&](std::uint64_t seed) -> std::string {
    const job_shape shape{.workers = 2 + static_cast<std::uint32_t>(seed % 2)};
    sim_cluster c(tables, {.seed = seed});
    auto wrong = run_whole(*this, c, shape);
    if (wrong.empty()) wrong = difference(collect(c.program()), embedded(shape));
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    orders.insert(c.orders());
    messages += c.messages();
    return wrong;
  });
  BOOST_TEST_MESSAGE(
      fmt::format("{} distinct orders of messages, {} messages", orders.size(), messages));
}

namespace {

// What the living of these processes say together.
cluster_snapshot told_by(sim_cluster& c, const std::vector<std::uint32_t>& processes) {
  std::vector<node_answer> answers;
  for (const auto i : processes)
    if (c.is_alive(i)) answers.push_back(c.ask(i));
  return merge(answers);
}

// "" where each of these happenings is listed once, and no other of its kind.
std::string listed_once(const cluster_snapshot& c, event_kind kind, std::set<std::string> abouts) {
  for (const auto& e : c.events)
    if (e.kind == kind && abouts.erase(e.about) == 0)
      return fmt::format("'{}' of {} is listed again, or is not wanted: {}", to_string(kind),
                         e.about, e.text);
  return abouts.empty() ? std::string()
                        : fmt::format("'{}' of {} is not listed", to_string(kind), *abouts.begin());
}

std::string id_of(const member_info& m) { return fmt::format("{:016x}", raw(m.id)); }

std::string tell_of_a_life(fixture& f, sim_cluster& c) {
  if (!c.form()) return "the processes did not find each other";
  const auto client = c.client();
  const std::vector<std::uint32_t> all{0, 1, 2, client}, but_the_client{0, 1, 2}, two{1, 2};
  std::set<std::string> members;
  for (const auto i : all) members.insert(id_of(c.info(i)));
  std::string wrong;
  const auto expect = [&](const std::vector<std::uint32_t>& of, event_kind kind,
                          const std::set<std::string>& abouts) {
    if (wrong.empty()) wrong = listed_once(told_by(c, of), kind, abouts);
  };
  expect(all, event_kind::member_joined, members);
  f.start(c, {.workers = 3, .steps = 1000, .observe_every = 0});
  run_messages(c, c.random()() % 4000);
  const auto victim = id_of(c.info(0));
  c.kill(0);
  auto& p = c.program();
  c.run_until([&] { return p.is_over(); }, 10 * s);
  c.run_for(500 * ms);
  if (!p.failed) return "the job has not failed";
  const auto jobs = told_by(c, {client}).jobs;
  if (jobs.size() != 1) return "the client lists no job, or several";
  const std::set<std::string> job{jobs[0].id};
  for (const auto& of : {all, std::vector<std::uint32_t>{client}}) {
    expect(of, event_kind::member_lost, {victim});
    expect(of, event_kind::job_began, job);
    expect(of, event_kind::job_failed, job);
  }
  // The coordinator is gone, and what it has noted with it.
  const auto client_id = id_of(c.info(client));
  c.kill(client);
  c.run_for(2 * s);
  expect(two, event_kind::member_lost, {victim, client_id});
  // Parts that never ran have noted nothing.
  for (const auto kind : {event_kind::job_began, event_kind::job_failed}) {
    const auto said = told_by(c, two).events;
    if (wrong.empty() && std::ranges::count(said, kind, &event::kind) > 1)
      wrong = fmt::format("'{}' is listed twice", to_string(kind));
  }
  for (const auto i : two) {
    std::uint64_t last = 0;
    const auto id = id_of(c.info(i));
    for (const auto& e : c.ask(i).events) {
      if (e.number != last + 1 || e.node_id != id || e.node != c.info(i).name)
        return fmt::format("event {} of {} follows {}", e.number, e.node, last);
      last = e.number;
    }
  }
  return wrong;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(SN_5_each_happening_is_listed_once_whoever_is_lost, fixture) {
  for_seeds(5, [&](std::uint64_t seed) {
    sim_cluster c(tables, {.seed = seed, .nodes = 3});
    auto wrong = tell_of_a_life(*this, c);
    if (!wrong.empty()) tell_story(c);
    return wrong;
  });
}

BOOST_FIXTURE_TEST_CASE(NO_16_the_newest_events_are_kept_and_numbered_without_a_gap, fixture) {
  sim_cluster c(tables, {.seed = 1});
  BOOST_TEST_REQUIRE(c.form());
  for (int i = 0; i < 3000; ++i)
    tell(nullptr, c.node(0), member_event{make_event(event_kind::note, fmt::format("x{}", i))});
  tell(nullptr, c.node(0), member_event{make_event(event_kind::note, std::string(9000, 'y'))});
  c.run_for(100 * ms);
  auto events = c.ask(0).events;
  BOOST_TEST_REQUIRE(events.size() == 512U);
  BOOST_TEST(events.back().text.size() == 4096U);
  BOOST_TEST(events.front().number + 511 == events.back().number);
  BOOST_TEST(events.back().number >= 3001U);
  BOOST_TEST(c.ask(0).lines.empty());
  // An answer has room for them however long they are.
  for (int i = 0; i < 600; ++i)
    tell(nullptr, c.node(0), member_event{make_event(event_kind::note, std::string(5000, '"'))});
  c.run_for(100 * ms);
  const auto answer = c.ask(0);
  BOOST_TEST(answer.events.size() < 100U);
  BOOST_TEST(answer.events.back().number == events.back().number + 600);
  BOOST_TEST(to_json(answer).size() < answer_bytes_max / 16);
}

BOOST_FIXTURE_TEST_CASE(NO_16_a_long_name_drives_no_other_event_out, fixture) {
  sim_cluster c(tables, {.seed = 1});
  BOOST_TEST_REQUIRE(c.form());
  // Longer than all that is kept, and many that are long.
  for (int i = 0; i < 100; ++i) {
    const std::string name(i == 0 ? 1'200'000 : 60'000, 'n');
    tell(nullptr, c.node(0),
         member_event{make_job_event(event_kind::job_note, name, "1f", fmt::format("x{}", i),
                                     i % 2 == 0 ? name : std::string())});
  }
  c.run_for(100 * ms);
  const auto events = c.ask(0).events;
  BOOST_TEST_REQUIRE(events.size() > 100U);
  BOOST_TEST(events.back().text == "x99");
  for (const auto& e : events) {
    BOOST_TEST(e.job.size() <= 256U);
    BOOST_TEST(e.about.size() <= 256U);
  }
}

BOOST_FIXTURE_TEST_CASE(
    asynchronous_training_applies_every_gradient_once_in_every_order_of_messages, fixture) {
  for_seeds(2, [&](std::uint64_t seed) -> std::string {
    const job_shape shape{.workers = 1 + static_cast<std::uint32_t>(seed % 3),
                          .update = update_kind::async,
                          .observe_every = 0};
    sim_cluster c(tables, {.seed = seed});
    auto wrong = check_asynchronous(*this, c, shape);
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    return wrong;
  });
}

BOOST_FIXTURE_TEST_CASE(LK_1_connections_that_are_cut_change_no_bit, fixture) {
  std::uint64_t cuts = 0;
  for_seeds(2, [&](std::uint64_t seed) -> std::string {
    const job_shape shape{.workers = 2 + static_cast<std::uint32_t>(seed % 2)};
    sim_cluster c(tables, {.seed = seed});
    std::mt19937_64 random(seed);
    auto wrong = run_whole(*this, c, shape, [&] {
      if (random() % 150 != 0) return;
      const auto a = static_cast<std::uint32_t>(random() % 4),
                 b = static_cast<std::uint32_t>(random() % 4);
      if (a == b) return;
      c.cut(a, b);
      ++cuts;
    });
    if (wrong.empty()) wrong = difference(collect(c.program()), embedded(shape));
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    return wrong;
  });
  BOOST_TEST_MESSAGE(fmt::format("{} cuts", cuts));
  BOOST_TEST(cuts > 0U);
}

BOOST_FIXTURE_TEST_CASE(connections_that_are_cut_while_a_cluster_forms_keep_nobody_out, fixture) {
  for_seeds(2, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
    std::mt19937_64 random(seed);
    c.run_until(
        [&] {
          if (const auto a = static_cast<std::uint32_t>(random() % 4),
              b = static_cast<std::uint32_t>(random() % 4);
              random() % 20 == 0 && a != b)
            c.cut(a, b);
          return false;
        },
        500 * ms);
    std::string wrong = c.form() ? "" : "the processes did not find each other";
    if (wrong.empty()) wrong = run_whole(*this, c, {});
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    return wrong;
  });
}

BOOST_FIXTURE_TEST_CASE(ME_4_a_link_that_one_end_gave_up_is_replaced_by_a_new_one, fixture) {
  for_seeds(4, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
    if (!c.form()) return "the processes did not find each other";
    const auto a = static_cast<std::uint32_t>(seed % 4),
               b = (a + 1 + static_cast<std::uint32_t>(seed / 4 % 3)) % 4;
    if (seed % 3 != 0) {
      c.give_up_link(a, b);
      c.run_for(2 * s);
      auto wrong = run_whole(*this, c, {});
      if (!wrong.empty()) tell_story(c);
      if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
      return wrong;
    }
    start(c, {.steps = 1000, .observe_every = 0});
    run_messages(c, 100 + c.random()() % 3000);
    c.give_up_link(a, b);
    c.run_until([&] { return c.program().is_over(); }, 2 * s);
    c.run_for(2 * s);
    // Those two may have nothing to do with each other; but nothing hangs.
    std::string wrong = c.program().failed || c.program().finished || !c.program().losses.empty()
                            ? ""
                            : "the job hangs";
    if (c.program().failed) wrong = left_over(c);
    if (!c.form() && wrong.empty()) wrong = "the link did not come back";
    if (!wrong.empty()) tell_story(c);
    return wrong;
  });
}

BOOST_FIXTURE_TEST_CASE(
    a_node_that_is_killed_ends_a_synchronous_job_within_two_seconds_and_is_named, fixture) {
  for_seeds(4, [&](std::uint64_t seed) {
    sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
    return lose_a_node(*this, c, [](sim_cluster& in, std::uint32_t victim) { in.kill(victim); });
  });
}

BOOST_FIXTURE_TEST_CASE(
    a_node_that_stands_still_ends_a_synchronous_job_within_two_seconds_and_is_named, fixture) {
  for_seeds(4, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
    std::uint32_t frozen = 0;
    auto wrong = lose_a_node(
        *this, c, [&](sim_cluster& in, std::uint32_t victim) { in.freeze(frozen = victim); });
    if (!wrong.empty()) return wrong;
    c.thaw(frozen);
    c.run_for(3 * s);
    return left_over(c);
  });
}

BOOST_FIXTURE_TEST_CASE(LK_5_tensors_are_free_as_soon_as_their_credits_are_back, fixture) {
  for_seeds(20, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed});
    c.form();
    c.hold("stop_part_actors");
    start(c, {});
    if (!c.run_until([&] { return c.program().is_over(); }, 10 * s)) return "the job hangs";
    // Acknowledgements by time alone would come after 20 ms, and with the next tick.
    c.run_for(8 * ms);
    if (c.kept_bytes() > 0) return fmt::format("{} bytes are kept", c.kept_bytes());
    return {};
  });
}

BOOST_FIXTURE_TEST_CASE(asynchronous_training_goes_on_without_a_worker, fixture) {
  std::uint64_t lost = 0;
  for_seeds(4, [&](std::uint64_t seed) -> std::string {
    const job_shape shape{.update = update_kind::async, .steps = 8, .observe_every = 0};
    sim_cluster c(tables, {.seed = seed, .ps_nodes = 1, .is_one_machine = seed % 2 == 0});
    if (!c.form()) return "the processes did not find each other";
    start(c, shape);
    auto& p = c.program();
    if (!c.run_until([&] { return p.has_started; }, 10 * s)) return "the job does not start";
    run_messages(c, c.random()() % 1500);
    if (p.finished) return {};
    const auto victim = static_cast<std::uint32_t>(c.random()() % 2);
    c.kill(victim);
    if (!c.run_until([&] { return p.is_over(); }, 10 * s)) {
      tell_story(c);
      return "the job hangs without the worker";
    }
    if (p.failed) return p.failed->line;
    if (auto wrong = check_ledger(*p.finished, shape, false); !wrong.empty()) return wrong;
    const auto& other = p.finished->workers[1 - victim];
    if (other.applied != shape.steps)
      return fmt::format("of the other worker's {} steps {} were applied", shape.steps,
                         other.applied);
    std::uint64_t fed = 0, applied = 0;
    for (const auto& w : p.finished->workers) fed += w.fed, applied += w.applied;
    const auto counted = applied_by_counter(p);
    if (counted < double(applied) || counted > double(fed))
      return fmt::format("{} were fed, {} applied, and the variable that counts them has seen {}",
                         fed, applied, counted);
    lost += p.workers_lost.size();
    c.run_for(100 * ms);
    return left_over(c);
  });
  BOOST_TEST(lost > 0U);
}

BOOST_FIXTURE_TEST_CASE(NO_2_when_the_client_is_killed_all_its_parts_end_within_two_seconds,
                        fixture) {
  for_seeds(4, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
    if (!c.form()) return "the processes did not find each other";
    start(c, {.steps = 1000, .observe_every = 0});
    run_messages(c, 100 + c.random()() % 3000);
    c.kill(c.client());
    c.run_for(2 * s);
    auto wrong = left_over(c);
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    return wrong;
  });
}

// --- the checks themselves -----------------------------------------------------------------------

BOOST_FIXTURE_TEST_CASE(LK_3_a_chunk_of_another_life_is_dropped_and_counted, fixture) {
  for_seeds(20, [&](std::uint64_t seed) -> std::string {
    sim_cluster c(tables, {.seed = seed});
    std::uint64_t forged = 0;
    auto wrong = check_synchronous(*this, c, [&] { ++forged; });
    if (wrong.empty() && forged == 0) wrong = "no chunk was forged";
    if (wrong.empty() && c.drops(drop_reason::stale_generation) != forged)
      wrong = fmt::format("{} chunks were forged and {} dropped", forged,
                          c.drops(drop_reason::stale_generation));
    return wrong;
  });
}

BOOST_FIXTURE_TEST_CASE(a_lost_credit_is_found, fixture) { find(*this, {.forgets_credits = true}); }
BOOST_FIXTURE_TEST_CASE(a_gradient_that_is_applied_twice_is_found, fixture) {
  find(*this, {.applies_twice = true});
}
BOOST_FIXTURE_TEST_CASE(gradients_that_are_summed_as_they_come_are_found, fixture) {
  find(*this, {.sums_as_they_come = true});
}
BOOST_FIXTURE_TEST_CASE(an_item_that_is_sent_without_a_credit_is_found, fixture) {
  find(*this, {.sends_without_credit = true});
}
BOOST_FIXTURE_TEST_CASE(a_chunk_of_another_life_that_is_taken_is_found, fixture) {
  find(*this, {.admits_other_lives = true});
}

BOOST_FIXTURE_TEST_CASE(a_gradient_that_is_applied_twice_is_found_in_asynchronous_training,
                        fixture) {
  const planted_bugs bugs{.applies_twice = true};
  find_within(20, [&](std::uint64_t seed) {
    sim_cluster c(tables, {.seed = seed, .bugs = &bugs});
    return check_asynchronous(*this, c,
                              {.workers = 2, .update = update_kind::async, .observe_every = 0});
  });
}

// --- what breaks in the simulation itself ---

BOOST_FIXTURE_TEST_CASE(
    SC_5_what_breaks_while_the_program_takes_a_message_is_told_and_all_ends_as_ever, fixture) {
  sim_cluster c(tables, {.seed = 1});
  BOOST_TEST_REQUIRE(c.form());
  c.program().hear = [](const std::string&) {
    fail_invariant("it was planted in the program", std::source_location::current());
  };
  start(c, {});
  BOOST_TEST(c.run_until([&] { return !c.program().broken.empty(); }, 10 * s));
  BOOST_TEST(c.program().broken.find("broken invariant: it was planted in the program") !=
                 std::string::npos,
             c.program().broken);
  BOOST_TEST(c.finish());
}

BOOST_AUTO_TEST_SUITE_END()
