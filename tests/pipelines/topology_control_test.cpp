// Topologies that are changed while they run: more and fewer replicas, pauses, ends.

#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/flow/topology_listing.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/topology_control.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using number = std::int64_t;

// As a node would run it: nothing is kept from item to item, all of it stands in `state`, or more.
struct kept_triple {
  number operator()(number x) const { return 3 * x; }
};
struct recovered_triple {
  number state = 0;
  number operator()(number x) { return ++state, 3 * x; }
};
struct plain_triple {
  number calls = 0;
  number operator()(number x) { return ++calls, 3 * x; }
};
struct keys {
  number operator()(const number& x) const { return x % 7; }
};

flow_totals must(result<flow_totals> r) {
  if (!r) BOOST_FAIL(r.error().text());
  return std::move(*r);
}

// Numbers from 0 on; `look(x)` before x is made.
template <class Look>
troupe::flow<number> counted(flow_graph& g, number n, Look look) {
  return source(g, [=, x = number{0}]() mutable -> std::optional<number> {
    if (x == n) return std::nullopt;
    look(x);
    return x++;
  });
}

std::uint64_t calls_of(const flow_totals& t, const std::string& stage, std::uint32_t replica) {
  return t.of(stage + "/" + std::to_string(replica)).items_in;
}

// Describes the same three times: whose replicas nobody could lose, kept and recovered ones.
void each_kind(const std::function<void(const std::string& on, int kind)>& body) {
  body("", 0);
  body("/job:worker", 1);
  body("/job:worker", 2);
}
troupe::flow<number> triples(const troupe::flow<number>& in, int kind, const stage_options& o) {
  if (kind == 0) return map(in, plain_triple{}, o);
  if (kind == 1) return map(in, kept_triple{}, o);
  return map(in, recovered_triple{}, o);
}

void are_triples(const std::vector<number>& all, number n) {
  BOOST_REQUIRE_EQUAL(all.size(), std::size_t(n));
  for (number x = 0; x < n; ++x) BOOST_REQUIRE_EQUAL(all[std::size_t(x)], 3 * x);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(topology_control)

BOOST_AUTO_TEST_CASE(RPC_1_items_go_to_as_many_replicas_as_work) {
  each_kind([](const std::string& on, int kind) {
    flow_graph g;
    const replica_controls* controls = nullptr;
    const auto numbers = counted(g, 4000, [&controls](number x) {
      if (x == 1000) BOOST_REQUIRE(controls->set("work", 4));
      if (x == 2000) BOOST_REQUIRE(controls->set("work", 2));
      if (x == 3000) BOOST_REQUIRE(controls->set("work", 1));
    });
    const auto all =
        collect(triples(numbers, kind, {.name = "work", .replicas = between(1, 4), .on = on}));
    const replica_controls of_graph(g);
    controls = &of_graph;
    const auto t = must(drain(g));
    are_triples(*all, 4000);
    // In turn while all have as little to do: one alone, four, two, one.
    std::uint64_t sum = 0;
    for (std::uint32_t r = 0; r < 4; ++r) sum += calls_of(t, "work", r);
    BOOST_TEST(sum == 4000U);
    for (std::uint32_t r = 2; r < 4; ++r)
      BOOST_TEST((calls_of(t, "work", r) >= 200 && calls_of(t, "work", r) <= 300),
                 "kind " << kind << ", replica " << r << ": " << calls_of(t, "work", r));
    BOOST_TEST(calls_of(t, "work", 1) >= 600U);
    BOOST_TEST(calls_of(t, "work", 1) <= 800U);
    BOOST_TEST(*of_graph.working("work") == 1U);
  });
}

// What is asked for while it runs on threads, again and again: nothing is lost, doubled, or out of
// order.
BOOST_AUTO_TEST_CASE(replicas_that_come_and_go_lose_nothing) {
  each_kind([](const std::string& on, int kind) {
    troupe::topology t({.threads = 2, .is_quiet = true});
    constexpr number n = 60'000;
    std::atomic<number> made{0};
    const auto numbers = counted(t, n, [&made](number x) { made.store(x); });
    const auto all =
        collect(triples(numbers, kind, {.name = "work", .replicas = between(2, 6), .on = on}));
    std::atomic<bool> is_over{false};
    std::uint32_t changes = 0, pauses = 0;
    std::thread surgeon([&] {
      while (made.load() == 0 && !is_over.load()) std::this_thread::sleep_for(1ms);
      std::mt19937 random(7);
      while (!is_over.load()) {
        if (t.set_replicas("work", std::uint32_t(1 + random() % 6))) ++changes;
        if (random() % 8 == 0) {
          t.pause();
          ++pauses;
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 120));
          t.resume();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      }
    });
    const auto ran = t.run_to_end();
    is_over.store(true);
    surgeon.join();
    must(ran);
    are_triples(*all, n);
    BOOST_TEST(changes > 0U);
  });
}

BOOST_AUTO_TEST_CASE(a_topology_that_pauses_makes_nothing_until_it_is_to_go_on) {
  troupe::topology t({.threads = 2, .is_quiet = true});
  std::atomic<number> made{0}, arrived{0};
  const auto numbers = source(t, [&]() -> std::optional<number> { return made++; });
  for_each(map(numbers, [](number x) { return x; }, {.replicas = 2}), [&](number) { ++arrived; });
  // The director looks twenty times a second; what is under way arrives meanwhile.
  int phase = 0, quiet = 0;
  number before = -1;
  must(t.run_to_end([&](const troupe::topology& running) {
    auto& me = const_cast<troupe::topology&>(running);
    if (phase == 0 && arrived.load() > 0) {
      me.pause();
      phase = 1;
    } else if (phase == 1) {
      // Also where the machine stands still meanwhile.
      const auto now = made.load();
      quiet = now == std::exchange(before, now) && arrived.load() == now ? quiet + 1 : 0;
      if (quiet < 5) return;
      me.resume();
      phase = 2;
    } else if (phase == 2 && made.load() > before + 1000) {
      me.pause();
      phase = 3;
    } else if (phase == 3) {
      me.stop();  // ends it though it is paused
      phase = 4;
    }
  }));
  BOOST_TEST(phase == 4);
  BOOST_TEST(arrived.load() == made.load());
}

// Its calls sleep: one replica makes 500 a second of the many that wait.
BOOST_AUTO_TEST_CASE(automatic_replicas_of_what_sleeps_become_more) {
  troupe::topology t({.threads = 2, .is_quiet = true});
  std::atomic<number> made{0};
  const auto numbers = source(t, [&]() -> std::optional<number> { return made++; });
  std::vector<number> all;
  for_each(map(numbers,
               [](number x) {
                 std::this_thread::sleep_for(2ms);
                 return x;
               },
               {.name = "fetch", .replicas = automatic, .blocks = true}),
           [&](number x) { all.push_back(x); });
  BOOST_TEST(*t.replicas("fetch") == 1U);
  must(t.run_to_end([&](const troupe::topology& running) {
    if (*running.replicas("fetch") >= 4) const_cast<troupe::topology&>(running).stop();
  }));
  BOOST_TEST(t.chosen().find("fetch: ") == 0U);
  BOOST_TEST(t.chosen().find(" of 16 replicas work: ") != std::string::npos, t.chosen());
  BOOST_TEST(all.size() == std::size_t(made.load()));
  BOOST_TEST(std::ranges::is_sorted(all));
  // Those that were asked for have worked.
  const auto report = to_text(t.report());
  BOOST_TEST(report.find("fetch/1") != std::string::npos, report);
}

BOOST_AUTO_TEST_CASE(replicas_that_have_had_nothing_to_do_are_not_shown) {
  troupe::topology t({.threads = 1, .is_quiet = true});
  std::vector<number> few{1, 2, 3};
  collect(map(from(t, few), plain_triple{}, {.name = "work", .replicas = between(1, 8)}));
  must(t.run_to_end());
  const auto report = to_text(t.report());
  BOOST_TEST(report.find("work/0") != std::string::npos);
  BOOST_TEST(report.find("work/1") == std::string::npos, report);
  BOOST_TEST(t.chosen() == "work: 1 of 8 replicas work: as was asked for\n");
}

BOOST_AUTO_TEST_CASE(what_cannot_be_changed_is_said) {
  troupe::topology t({.threads = 1, .is_quiet = true});
  const auto numbers = from(t, std::vector<number>{1, 2, 3});
  collect(map(numbers, plain_triple{}, {.name = "three", .replicas = 3}));
  collect(map(numbers, plain_triple{}, {.name = "some", .replicas = between(2, 5)}));
  const auto said = [&](std::string_view stage, std::uint32_t n) {
    const auto set = t.set_replicas(stage, n);
    return set ? std::string("done") : set.error().message();
  };
  BOOST_TEST(said("some", 5) == "done");
  BOOST_TEST(*t.replicas("some") == 5U);
  BOOST_TEST(said("some", 6) == "some has from 1 to 5 replicas");
  BOOST_TEST(said("some", 0) == "some has from 1 to 5 replicas");
  BOOST_TEST(said("three", 2) ==
             "three has 3 replicas, whose number stays: it changes where the stage was described "
             "with .replicas = between(1, 8), or automatic on several threads");
  BOOST_TEST(said("nobody", 2) ==
             "there is no stage 'nobody' here; those whose replicas may change: some");
  BOOST_TEST(*t.replicas("three") == 3U);
  BOOST_TEST((t.replicas("nobody").error().code() == error_code::not_found));
  BOOST_TEST(t.explain().find("some x 5..5") != std::string::npos, t.explain());
  // Whatever is in a name, and whatever Troupe adds to one that nobody gave.
  collect(map(numbers, plain_triple{}, {.name = "io/read", .replicas = between(1, 3)}));
  collect(map(numbers, [](number x) { return x; }, {.replicas = between(1, 2)}));
  BOOST_TEST(said("io/read", 2) == "done");
  BOOST_TEST(*t.replicas("io/read") == 2U);
  BOOST_TEST(said("map", 2) == "done");
}

BOOST_AUTO_TEST_CASE(replicas_that_cannot_be_are_refused_before_anything_runs) {
  const auto mistake = [](const auto& describe) {
    flow_graph g;
    describe(g, from(g, std::vector<number>{1, 2}));
    const auto ok = g.check();
    return ok ? std::string() : ok.error().text();
  };
  const auto says = [](const std::string& text, const std::string& part) {
    BOOST_TEST(text.find(part) != std::string::npos, text);
    BOOST_TEST(text.find("topology_control_test.cpp:") != std::string::npos);
  };
  for (const auto n : {replica_count(0), between(0, 3), replica_count(-2)})
    says(mistake([&](auto&, auto f) { collect(map(f, plain_triple{}, {.replicas = n})); }),
         ".replicas is 0");
  says(mistake([](auto&, auto f) { collect(map(f, plain_triple{}, {.replicas = between(3, 2)})); }),
       ".replicas begins with more than its most");
  says(mistake([](auto&, auto f) { collect(map(f, plain_triple{}, {.replicas = 1000})); }),
       ".replicas is more than 256");
  says(mistake([](auto&, auto f) {
         collect(partition_by(f, keys{}, plain_triple{}, {.replicas = automatic}));
       }),
       "its items go to replicas by their keys, whose number stays: say how many");
  says(mistake([](auto&, auto f) { collect(f, {.replicas = automatic}); }),
       "such a stage has no replicas");
  says(mistake([](auto&, auto f) {
         auto alone = std::make_unique<number>(3);
         collect(map(f, [alone = std::move(alone)](number x) { return x * *alone; },
                     {.replicas = automatic}));
       }),
       "its function cannot be copied");
}

// What a tool asks for, as the listing of the topology takes it.
BOOST_AUTO_TEST_CASE(tools_ask_by_words) {
  flow_graph g;
  collect(map(from(g, std::vector<number>{1, 2}), plain_triple{},
              {.name = "work", .replicas = between(1, 4)}));
  BOOST_REQUIRE(g.check());
  const std::shared_ptr<const flow_graph> graph(std::shared_ptr<const void>(), &g);
  const flow_group whole(graph);
  const auto wishes = std::make_shared<topology_wishes>();
  const auto view = view_of(graph, whole);
  view->pulses.push_back(std::make_shared<group_pulse>());
  topology_listing l(view, "shop", 7, [] { return std::int64_t{1'000'000'000}; }, {}, wishes);
  BOOST_TEST(l.obey("pause", "") == "pauses");
  BOOST_TEST(wishes->pause.load());
  view->is_paused.store(true);
  BOOST_TEST(to_string(l.job("n1").state) == "paused");
  BOOST_TEST(l.obey("resume", "") == "resumes");
  BOOST_TEST(!wishes->pause.load());
  BOOST_TEST(l.obey("replicas", "work\t3") == "3 of 4 replicas");
  BOOST_TEST(*replica_controls(g).working("work") == 3U);
  for (const auto wrong : {"work\t9", "work\t", "work", "work\t-1", "work\t0"})
    BOOST_TEST(l.obey("replicas", wrong) == "refused: work has from 1 to 4 replicas");
  BOOST_TEST(l.obey("replicas", "wrk\t3").starts_with("refused: there is no stage 'wrk' here"));
  BOOST_TEST(l.obey("dance", "") == "");
  for (const auto* end : {"stop", "finish", "drain"}) {
    wishes->stop.store(0);
    BOOST_TEST(l.obey(end, "") == "drains");
    BOOST_TEST(wishes->stop.load() == 1U);
  }
  l.end(false, "");
  BOOST_TEST(l.obey("pause", "") == "refused: the topology is over");
  const topology_listing part(view, "shop", 7, [] { return std::int64_t{0}; });
  BOOST_TEST(part.obey("pause", "") == "");
}

BOOST_AUTO_TEST_SUITE_END()
