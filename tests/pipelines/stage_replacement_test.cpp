// Functions that come into the place of others while the topology runs.

#include "troupe/runtime/flow/stage_replacement.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using number = std::int64_t;

struct made {
  number item = 0, version = 0, calls = 0;
};
// Of each version; `state` says how many items all versions before it have seen, too.
struct versioned {
  number version = 1;
  std::function<void(number)> before{};  // each item
  number state = 0;
  made operator()(number x) {
    if (before) before(x);
    return {x, version, ++state};
  }
};
struct without_state {
  made operator()(number x) const { return {x, 9, 0}; }
};

// Numbers until the topology is told to stop, more slowly than they could be.
template <class Body>
std::vector<made> run_with(const stage_options& o, const versioned& first, Body surgeon,
                           result<flow_totals>* ended = nullptr) {
  topology t({.threads = 2, .is_quiet = true});
  number next = 0;
  const auto numbers = source(t,
                              [&next]() -> std::optional<number> {
                                if (next % 16 == 0) std::this_thread::sleep_for(50us);
                                return next++;
                              },
                              {.blocks = true});
  std::vector<made> all;
  std::atomic<number> arrived{0};
  for_each(map(numbers, first, o), [&](const made& m) {
    all.push_back(m);
    arrived.fetch_add(1);
  });
  std::thread other([&] {
    const auto wait_for = [&](number more) {
      const auto wanted = arrived.load() + more;
      test::wait_until("items have arrived", [&] { return arrived.load() >= wanted; });
    };
    wait_for(1);
    surgeon(t, wait_for);
    t.stop();
  });
  auto ran = t.run_to_end();
  other.join();
  if (ended != nullptr)
    *ended = std::move(ran);
  else if (!ran)
    BOOST_FAIL(ran.error().text());
  return all;
}

void are_all_there(const std::vector<made>& all) {
  BOOST_REQUIRE(!all.empty());
  for (std::size_t i = 0; i < all.size(); ++i) BOOST_REQUIRE_EQUAL(all[i].item, number(i));
}

std::string said(const result<void>& r) { return r ? "done" : r.error().message(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(stage_replacement)

BOOST_AUTO_TEST_CASE(SRP_1_another_version_takes_over_with_what_was_learnt) {
  number changes = 0;
  const auto all = run_with({.name = "work"}, {}, [&](topology& t, auto& wait_for) {
    for (number version = 2; version <= 30; ++version) {
      BOOST_TEST(said(t.replace<number>("work", versioned{version})) == "done");
      ++changes;
      if (version % 3 == 0) wait_for(50);
    }
  });
  are_all_there(all);
  number version = 1;
  for (const auto& m : all) {
    BOOST_REQUIRE_EQUAL(m.calls, m.item + 1);  // whoever has made it
    BOOST_REQUIRE(m.version >= version);
    version = m.version;
  }
  BOOST_TEST(version == 30);
}

BOOST_AUTO_TEST_CASE(replicas_get_it_all_and_lose_nothing) {
  const auto all =
      run_with({.name = "work", .replicas = between(3, 4)}, {}, [&](topology& t, auto& wait_for) {
        std::mt19937 random(3);
        for (number version = 2; version <= 20; ++version) {
          BOOST_TEST(said(t.replace<number>("work", versioned{version})) == "done");
          BOOST_TEST(bool(t.set_replicas("work", std::uint32_t(1 + random() % 4))));
          wait_for(20);
        }
      });
  are_all_there(all);
  BOOST_TEST(all.back().version == 20);
}

// The seventh of its items is one that it cannot work on: the one before does, and stays.
BOOST_AUTO_TEST_CASE(SRP_2_on_trial_the_first_failure_brings_the_one_before_back) {
  for (const std::uint32_t replicas : {1U, 3U})
    for (const bool throws : {true, false}) {
      std::atomic<number> tried{0};
      const auto fails = [&tried](number) {
        if (tried.fetch_add(1) == 6) throw std::runtime_error("a new fault");
      };
      struct returns_errors {
        std::function<void(number)> before;
        number state = 0;
        result<made> operator()(number x) {
          ++state;
          try {
            before(x);
          } catch (const std::exception& e) {
            return error(error_code::failed, e.what());
          }
          return made{x, 2, state};
        }
      };
      const auto all =
          run_with({.name = "work", .replicas = replicas}, {}, [&](topology& t, auto& wait_for) {
            BOOST_TEST(said(throws
                                ? t.replace<number>("work", versioned{2, fails}, 100)
                                : t.replace<number>("work", returns_errors{fails}, 100)) == "done");
            wait_for(500);
          });
      are_all_there(all);
      BOOST_TEST(all.back().version == 1);
      BOOST_TEST(std::ranges::count(all, number{2}, &made::version) >= 6);
      // Others go back with the next item after that, whenever they come to it.
      if (replicas > 1) continue;
      BOOST_TEST(std::ranges::count(all, number{2}, &made::version) == 6);
      for (const auto& m : all) BOOST_REQUIRE_EQUAL(m.calls, m.item + 1);
    }
}

BOOST_AUTO_TEST_CASE(behind_its_trial_a_failure_is_one_as_any) {
  std::atomic<number> tried{0};
  result<flow_totals> ended = error(error_code::failed, "");
  const auto all = run_with(
      {.name = "work"}, {},
      [&](topology& t, auto&) {
        const auto fails = [&tried](number) {
          if (tried.fetch_add(1) == 60) throw std::runtime_error("a new fault");
        };
        BOOST_TEST(said(t.replace<number>("work", versioned{2, fails}, 50)) == "done");
        test::wait_until("it has failed", [&] { return tried.load() > 60; });
      },
      &ended);
  BOOST_REQUIRE(!ended);
  BOOST_TEST(ended.error().text().find("a new fault") != std::string::npos);
  BOOST_TEST(all.back().version == 2);
}

// A function that makes several of one has put some before it fails: they are not made again.
BOOST_AUTO_TEST_CASE(an_item_of_which_something_has_left_is_not_made_again) {
  struct several {
    bool fails = false;
    std::atomic<number>* seen = nullptr;
    generator<number> operator()(number x) {
      co_yield x;
      if (fails && seen->fetch_add(1) == 3) throw std::runtime_error("half through");
      co_yield x;
    }
  };
  topology t({.threads = 2, .is_quiet = true});
  std::atomic<number> seen{0};
  std::atomic<std::size_t> arrived{0};
  number next = 0;
  std::vector<number> all;
  const auto numbers = source(t,
                              [&]() -> std::optional<number> {
                                if (next % 16 == 0) std::this_thread::sleep_for(50us);
                                return next++;
                              },
                              {.blocks = true});
  for_each(map(numbers, several{}, {.name = "work", .on_error = skip()}),
           [&](number x) { all.push_back(x), arrived.store(all.size()); });
  std::thread other([&] {
    test::wait_until("it runs", [&] { return arrived.load() > 10; });
    BOOST_TEST(said(t.replace<number>("work", several{true, &seen}, 1000)) == "done");
    const auto wanted = arrived.load() + 500;
    test::wait_until("it goes on", [&] { return arrived.load() > wanted; });
    t.stop();
  });
  const auto ran = t.run_to_end();
  other.join();
  BOOST_REQUIRE(bool(ran));
  // Each twice, but the one that failed behind its first.
  BOOST_TEST(all.size() == std::size_t(next) * 2 - 1);
  BOOST_TEST(std::ranges::is_sorted(all));
  BOOST_TEST(ran->of("work").skipped == 1U);
}

// It fails before anything of its item has left: the one before works on that.
BOOST_AUTO_TEST_CASE(SRP_1_a_generator_that_fails_before_its_first_goes_back) {
  struct several {
    bool fails = false;
    number state = 0;
    generator<made> operator()(number x) {
      ++state;
      if (fails && state % 5 == 0) throw std::runtime_error("before its first");
      co_yield made{x, fails ? 2 : 1, state};
      co_yield made{x, fails ? 2 : 1, state};
    }
  };
  topology t({.threads = 2, .is_quiet = true});
  number next = 0;
  std::atomic<std::size_t> arrived{0};
  std::vector<made> all;
  const auto numbers = source(t,
                              [&]() -> std::optional<number> {
                                if (next % 16 == 0) std::this_thread::sleep_for(50us);
                                return next++;
                              },
                              {.blocks = true});
  for_each(map(numbers, several{}, {.name = "work"}),
           [&](const made& m) { all.push_back(m), arrived.store(all.size()); });
  std::string text;
  std::thread other([&] {
    test::wait_until("it runs", [&] { return arrived.load() > 10; });
    text = said(t.replace<number>("work", several{true}, 1000));
    const auto wanted = arrived.load() + 500;
    test::wait_until("it goes on", [&] { return arrived.load() > wanted; });
    t.stop();
  });
  const auto ran = t.run_to_end();
  other.join();
  BOOST_REQUIRE_MESSAGE(ran, (ran ? "" : ran.error().text()));
  BOOST_TEST(text == "done");
  BOOST_REQUIRE_EQUAL(all.size(), std::size_t(next) * 2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    BOOST_REQUIRE_EQUAL(all[i].item, number(i / 2));
    BOOST_REQUIRE_EQUAL(all[i].calls, all[i].item + 1);  // each has called one of both once
  }
  BOOST_TEST(all.back().version == 1);
}

// Behind a trial that failed a restart makes what works now, and not what was there at first.
BOOST_AUTO_TEST_CASE(a_stage_that_begins_anew_is_the_one_that_works) {
  struct fragile {
    number version = 1;
    std::atomic<number>* fails = nullptr;
    made operator()(number x) {
      if (fails != nullptr && fails->exchange(0) == 1) throw std::runtime_error("now");
      return {x, version, 0};
    }
  };
  std::atomic<number> second{0}, third{1};
  topology t({.threads = 2, .is_quiet = true});
  number next = 0;
  std::atomic<std::size_t> arrived{0};
  std::vector<made> all;
  const auto numbers = source(t,
                              [&]() -> std::optional<number> {
                                if (next % 16 == 0) std::this_thread::sleep_for(50us);
                                return next++;
                              },
                              {.blocks = true});
  for_each(map(numbers, fragile{}, {.name = "work", .on_error = restart()}),
           [&](const made& m) { all.push_back(m), arrived.store(all.size()); });
  std::vector<std::string> texts;
  std::thread other([&] {
    const auto goes_on = [&] {
      const auto wanted = arrived.load() + 50;
      test::wait_until("it goes on", [&] { return arrived.load() > wanted; });
    };
    goes_on();
    texts.push_back(said(t.replace<number>("work", fragile{2, &second})));
    goes_on();
    texts.push_back(said(t.replace<number>("work", fragile{3, &third}, 100)));
    goes_on();
    second.store(1);
    goes_on();
    t.stop();
  });
  const auto ran = t.run_to_end();
  other.join();
  BOOST_REQUIRE_MESSAGE(ran, (ran ? "" : ran.error().text()));
  BOOST_TEST(texts == std::vector<std::string>(2, "done"), boost::test_tools::per_element());
  BOOST_TEST(all.back().version == 2);
  BOOST_TEST(all.size() + 1 == std::size_t(next));
  BOOST_TEST(ran->of("work").restarts == 1U);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_and_changes_nothing) {
  std::vector<std::string> errors;
  const auto all = run_with({.name = "work"}, {}, [&](topology& t, auto& wait_for) {
    errors.push_back(said(t.replace<number>("wrk", versioned{2})));
    errors.push_back(said(t.replace<int>("work", [](int) { return made{}; })));
    errors.push_back(said(t.replace<number>("work", [](number x) { return x; })));
    errors.push_back(said(
        t.replace<number>("work", [](number) -> std::optional<made> { return std::nullopt; })));
    errors.push_back(said(t.replace<number>("work", without_state{})));
    struct cannot_open {
      number state = 0;
      result<void> open() { return error(error_code::not_found, "no weights"); }
      made operator()(number) { return {}; }
    };
    errors.push_back(said(t.replace<number>("work", cannot_open{})));
    errors.push_back(said(t.replace<number>("source", versioned{2})));
    wait_for(10);
  });
  are_all_there(all);
  for (const auto& m : all) BOOST_REQUIRE_EQUAL(m.version, 1);
  const std::vector<std::string> wanted{
      "there is no stage 'wrk' here",
      "work: the new function takes other items",
      "work: the new function makes other items",
      "work: the new function may make more or fewer items than it is given, and the one before "
      "makes one of each",
      "work: the new function keeps nothing in its state, and the one before i64",
      "work: it cannot begin: no weights",
      "source: the function of a source stays"};
  BOOST_TEST(errors == wanted, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_a_topology_cannot_have_is_refused) {
  topology t({.threads = 1, .is_quiet = true});
  struct at_end {
    number sum = 0;
    void operator()(number x) { sum += x; }
    number finish() { return sum; }
  };
  struct alone {
    std::unique_ptr<number> value;
    std::unique_ptr<number> operator()(std::unique_ptr<number> x) { return x; }
  };
  number next = 0;
  const auto numbers = source(t, [&]() -> std::optional<number> { return next++; });
  collect(map(numbers, at_end{}, {.name = "sum", .replicas = 2}));
  const auto twin = [](number x) { return x; };
  for_each(map(map(numbers, twin, {.replicas = 2}), twin, {.replicas = 2}), [](number) {});
  for_each(map(map(numbers, [](number x) { return std::make_unique<number>(x); }), alone{},
               {.name = "alone"}),
           [](const std::unique_ptr<number>&) {});
  for_each(map(numbers, twin, {.name = "anew", .on_error = restart()}), [](number) {});
  std::vector<std::string> errors;
  bool is_first = true;
  const auto ran = t.run_to_end([&](const topology& running) {
    auto& me = const_cast<topology&>(running);
    if (!std::exchange(is_first, false)) return;
    errors.push_back(said(me.replace<number>("sum", twin)));
    errors.push_back(said(me.replace<number>("map", twin)));
    errors.push_back(said(me.replace<std::unique_ptr<number>>("alone", alone{}, 5)));
    auto only = std::make_unique<number>(1);
    errors.push_back(said(me.replace<number>(
        "anew", [only = std::move(only)](number x) -> number { return x * *only; })));
    me.stop();
  });
  BOOST_REQUIRE_MESSAGE(ran, (ran ? "" : ran.error().text()));
  const std::vector<std::string> wanted{
      "sum: the new function makes something of each item, and the one before at its end alone",
      "map: several stages are called so; give them names (.name)",
      "alone: its items cannot be copied, so there is no trial: leave it out",
      "anew: the new function cannot be copied, so there are neither replicas of it nor restarts"};
  BOOST_TEST(errors == wanted, boost::test_tools::per_element());
}

// Its thread would wait for itself, and the topology with it.
BOOST_AUTO_TEST_CASE(a_stage_of_the_topology_cannot_ask_for_it) {
  topology t({.threads = 1, .is_quiet = true});
  std::string text;
  for_each(map(from(t, std::vector<number>(50)), versioned{}, {.name = "work"}),
           [&](const made& m) {
             if (m.calls == 20) text = said(t.replace<number>("work", versioned{2}));
           });
  BOOST_REQUIRE(bool(t.run_to_end()));
  BOOST_TEST(text ==
             "work: a stage of the topology asks for that, whose thread would wait for itself: ask "
             "from another one");
}

BOOST_AUTO_TEST_CASE(before_and_after_a_run_there_is_nobody_to_ask) {
  topology t({.threads = 1, .is_quiet = true});
  collect(map(from(t, std::vector<number>{1, 2, 3}), versioned{}, {.name = "work"}));
  BOOST_TEST(said(t.replace<number>("work", versioned{2})) == "work: the topology has not begun");
  BOOST_REQUIRE(bool(t.run_to_end()));
  BOOST_TEST(said(t.replace<number>("work", versioned{2})) == "work: the topology is over");
}

// Who waits for it while the topology ends is told so.
BOOST_AUTO_TEST_CASE(a_topology_that_ends_meanwhile_leaves_nobody_waiting) {
  for (int turn = 0; turn < 20; ++turn) {
    topology t({.threads = 1, .is_quiet = true});
    std::vector<number> some(20'000);
    collect(map(from(t, some), versioned{}, {.name = "work"}));
    std::atomic<bool> is_over{false};
    std::set<std::string> texts;  // Boost.Test's macros are for one thread
    std::thread other([&] {
      while (!is_over.load()) texts.insert(said(t.replace<number>("work", versioned{2})));
    });
    BOOST_REQUIRE(bool(t.run_to_end()));
    is_over.store(true);
    other.join();
    for (const auto& text : texts)
      BOOST_TEST((text == "done" || text == "work: the topology is over" ||
                  text == "work: the topology has not begun" ||
                  text == "work: it is over, and works on nothing more"),
                 text);
  }
}

BOOST_AUTO_TEST_SUITE_END()
