// Resources that stages borrow: a unit is with one call at a time, whoever waits is not busy, and
// tools say who has it.

#include "troupe/runtime/flow/resource.hpp"

#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/flow/topology_listing.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

// Notices two users at once.
struct connection {
  std::uint32_t number = 0;
  std::shared_ptr<std::atomic<int>> users = std::make_shared<std::atomic<int>>(0);
  int calls = 0;

  int use(int x) {
    if (users->fetch_add(1) != 0) throw std::runtime_error("two have it at once");
    ++calls;
    std::this_thread::yield();
    users->fetch_sub(1);
    return x;
  }
};
connection connect(std::uint32_t i) { return {i}; }

int negated(int x, connection& c) { return -c.use(x); }

struct counts_up final {
  int next = 0;
  std::optional<int> operator()(connection& c) {
    return next < 3 ? std::optional(c.use(next++)) : std::nullopt;
  }
};
struct asks_all {
  int operator()(int x, connection&) const { return x; }
};

std::vector<int> first_numbers(int n) {
  std::vector<int> all(std::size_t(n), 0);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(resource)

BOOST_AUTO_TEST_CASE(LND_1_a_unit_is_with_one_borrower_at_a_time) {
  lender l("db", 2);
  BOOST_TEST(l.holder() == 0U);
  const auto a = l.try_take(7), b = l.try_take(8);
  BOOST_TEST_REQUIRE((a && b));
  BOOST_TEST(*a != *b);
  BOOST_TEST(!l.try_take(9).has_value());
  BOOST_TEST(l.lent() == 2U);
  BOOST_TEST(l.holder() == 7U);  // who has had one longest
  l.give_back(*a);
  BOOST_TEST(l.holder() == 8U);
  BOOST_TEST(l.try_take(9).value() == *a);
  l.give_back(*a);
  l.give_back(*b);
  BOOST_TEST(l.lent() == 0U);
}

BOOST_AUTO_TEST_CASE(LND_2_who_has_waited_longest_gets_the_next_one) {
  lender l("db", 1);
  const auto unit = l.take(1);
  std::vector<std::uint64_t> order;
  std::vector<std::jthread> all;
  for (std::uint64_t who = 2; who < 6; ++who) {
    all.emplace_back([&l, &order, who] {
      const auto mine = l.take(who);
      order.push_back(who);  // one at a time: they have the unit
      l.give_back(mine);
    });
    while (l.waiting() < who - 1) std::this_thread::yield();
  }
  BOOST_TEST(!l.try_take(6).has_value());
  l.give_back(unit);
  all.clear();
  BOOST_TEST(order == (std::vector<std::uint64_t>{2, 3, 4, 5}), boost::test_tools::per_element());
  BOOST_TEST(l.waiting() == 0U);
  BOOST_TEST(l.try_take(6).has_value());
}

BOOST_AUTO_TEST_CASE(functions_of_each_kind_borrow) {
  troupe::resource<connection> db(2, &connect, "db");
  flow_graph g;
  const auto numbers = source(g, with(db, [n = 0](connection& c) mutable -> std::optional<int> {
                                return n < 100 ? std::optional(c.use(n++)) : std::nullopt;
                              }));
  struct summing {
    int state = 0;
    int operator()(int x, connection& c) { return state += c.use(x); }
    int finish() { return -1; }
  };
  const auto even =
      filter(numbers, with(db, [](const int& x, connection& c) { return c.use(x) % 2 == 0; }));
  const auto sums = collect(map(even, with(db, summing{})));
  int seen = 0;
  for_each(map(even, with(db, &negated)),
           with(db, [&seen](int x, connection& c) { seen += c.use(x); }));
  const auto failing = collect(map(even,
                                   with(db,
                                        [](int x, connection&) -> troupe::result<int> {
                                          if (x == 4)
                                            return error(error_code::failed, "not this one");
                                          return x;
                                        }),
                                   {.on_error = skip()}));
  const auto counted = collect(source(g, with(db, counts_up{})));
  BOOST_TEST(db.lent() == 0U);
  const auto done = drain(g);
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST(sums->size() == 51U);
  BOOST_TEST(sums->at(49) == 2450);
  BOOST_TEST(sums->back() == -1);
  BOOST_TEST(seen == -2450);
  BOOST_TEST(failing->size() == 49U);
  BOOST_TEST(*counted == (std::vector{0, 1, 2}), boost::test_tools::per_element());
  BOOST_TEST(db.lent() == 0U);
}

BOOST_AUTO_TEST_CASE(RES_1_a_unit_is_with_one_call_at_a_time_on_threads) {
  troupe::resource<connection> db(2, &connect, "db");
  topology t({.threads = 2, .is_quiet = true});
  const auto made = map(from(t, first_numbers(2000)), with(db, &negated), {.replicas = 4});
  const auto all = collect(map(made, with(db, [](int x, connection& c) { return -c.use(x); })));
  const auto done = t.run_to_end();
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST((*all == first_numbers(2000)));
  BOOST_TEST(db.lent() == 0U);
}

// Each waits for the other's items while it has none of the units.
BOOST_AUTO_TEST_CASE(RES_2_one_unit_and_full_edges_make_no_deadlock) {
  troupe::resource<connection> one(1, &connect, "one");
  topology t({.threads = 2, .budget_bytes = 1, .is_quiet = true});
  auto f = from(t, first_numbers(500));
  for (int i = 0; i < 4; ++i) f = map(f, with(one, &negated), {.replicas = 2});
  const auto all = collect(f);
  const auto done = t.run_to_end();
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST((*all == first_numbers(500)));
}

BOOST_AUTO_TEST_CASE(a_unit_that_cannot_be_made_is_told_before_anything_runs) {
  int made = 0;
  bool works = false;
  troupe::resource<connection> db(
      3,
      [&](std::uint32_t i) -> troupe::result<connection> {
        if (i == 1 && !works) return error(error_code::unreachable, "db.example refuses");
        ++made;
        return connection{i};
      },
      "db");
  const auto run = [&] {
    flow_graph g;
    int items = 0;
    for_each(map(source(g,
                        [&, n = 0]() mutable {
                          return ++items, n < 5 ? std::optional(n++) : std::nullopt;
                        }),
                 with(db, &negated), {.name = "asks"}),
             [](int) {});
    const auto done = drain(g);
    BOOST_TEST((done || items == 0));
    return done ? std::string() : done.error().text();
  };
  const auto said = run();
  BOOST_TEST(said.find("asks (") != std::string::npos, said);
  BOOST_TEST(said.find("resource db: unit 1: db.example refuses") != std::string::npos, said);
  works = true;  // the next topology tries again
  BOOST_TEST(run() == "");
  BOOST_TEST(made == 4);
  BOOST_TEST(run() == "");  // and one after that has them
  BOOST_TEST(made == 4);
}

BOOST_AUTO_TEST_CASE(a_make_that_throws_anything_is_told_each_time) {
  troupe::resource<connection> db(1, [](std::uint32_t) -> connection { throw 7; }, "db");
  for (int i = 0; i < 2; ++i) {
    const auto ok = db.open();
    BOOST_TEST_REQUIRE(!ok);
    BOOST_TEST(ok.error().text() == "resource db: unit 0: it threw something that is no exception");
  }
}

// With the resource that the stage has: others wait where nobody looks.
BOOST_AUTO_TEST_CASE(a_function_that_borrows_is_replaced_by_one_that_borrows_the_same) {
  troupe::resource<connection> db(1, &connect, "db"), other(1, &connect, "other");
  topology t({.threads = 1, .is_quiet = true});
  std::atomic<bool> is_in{false}, may_go{false};
  const auto made = collect(map(from(t, {1, 2, 3}),
                                with(db,
                                     [&](int x, connection&) {
                                       is_in = true;
                                       while (!may_go) std::this_thread::yield();
                                       return x;
                                     }),
                                {.name = "asks"}));
  std::string same, another;
  std::jthread asks([&] {
    while (!is_in) std::this_thread::yield();
    const auto wrong = t.replace<int>("asks", with(other, &negated));
    another = wrong ? "" : wrong.error().text();
    may_go = true;
    const auto right = t.replace<int>("asks", with(db, &negated));
    same = right ? "" : right.error().text();
  });
  const auto done = t.run_to_end();
  asks.join();
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST(another ==
             "asks: the new function borrows other, and the one before from another resource");
  // It may have come when all was over.
  BOOST_TEST((same.empty() || same.find("over") != std::string::npos), same);
  BOOST_TEST(made->size() == 3U);
}

BOOST_AUTO_TEST_CASE(what_throws_gives_its_unit_back) {
  troupe::resource<connection> db(1, &connect);
  flow_graph g;
  const auto all = collect(map(from(g, {1, 2, 3}),
                               with(db,
                                    [](int x, connection&) {
                                      if (x == 2) throw std::runtime_error("bad");
                                      return x;
                                    }),
                               {.on_error = skip()}));
  BOOST_TEST(bool(drain(g)));
  BOOST_TEST(*all == (std::vector{1, 3}), boost::test_tools::per_element());
  BOOST_TEST(db.lent() == 0U);
}

// The wait of one is as long as the call of the other.
BOOST_AUTO_TEST_CASE(a_wait_is_blocked_and_not_busy) {
  troupe::resource<connection> db(1, &connect, "db");
  topology t({.threads = 2, .is_quiet = true});
  std::atomic<bool> is_in{false};
  const auto numbers = from(t, {1});
  for_each(numbers,
           with(db,
                [&](int, connection&) {
                  is_in = true;
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                }),
           {.name = "has"});
  const auto late = map(numbers,
                        [&](int x) {
                          while (!is_in) std::this_thread::yield();
                          return x;
                        },
                        {.blocks = true});
  for_each(late, with(db, [](int, connection&) {}), {.name = "waits"});
  const auto done = t.run_to_end();
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  for (const auto& s : t.report()) {
    if (s.name == "waits") BOOST_TEST(s.blocked > s.busy);
    if (s.name == "has") BOOST_TEST(s.busy > s.blocked);
  }
}

BOOST_AUTO_TEST_CASE(tools_see_who_has_it) {
  troupe::resource<connection> db(1, &connect, "db");
  const auto graph = std::make_shared<flow_graph>();
  const auto numbers = from(*graph, {1});
  for_each(numbers, with(db, [](int, connection&) {}), {.name = "has"});
  for_each(numbers, with(db, [](int, connection&) {}), {.name = "waits"});
  BOOST_TEST_REQUIRE(bool(graph->check()));
  const flow_group whole(graph);
  const auto view = view_of(graph, whole);
  for (int i = 0; i < 2; ++i) view->pulses.push_back(std::make_shared<group_pulse>());
  const auto index = [&](std::string_view name) {
    return std::uint32_t(std::ranges::find(graph->stages(), name, &flow_stage_info::name) -
                         graph->stages().begin());
  };
  std::int64_t now = 20'000'000'000;
  const topology_listing listing(view, "lines", 0xabcU, [&] { return now; });
  const auto unit = db.who_has().take(graph->mark_of(index("has")));
  view->places[index("waits")] = 1;
  view->pulses[1]->running = index("waits");
  view->pulses[1]->since_ticks = 1800;  // 18 s
  view->stages[index("waits")]->last_ticks = 1800;
  view->stages[index("waits")]->is_borrowing = true;
  const auto seen = [&] {
    for (auto& a : listing.actors("here"))
      if (a.name == "waits") return a;
    return actor_snapshot{};
  };
  const auto a = seen();
  BOOST_TEST((a.state == actor_state::waiting_for_resource));
  const auto port = std::ranges::find(a.ports, "resource db", &port_snapshot::name);
  BOOST_TEST_REQUIRE((port != a.ports.end()));
  BOOST_TEST(port->peer == "has");
  BOOST_TEST(port->since_seconds == 2.0);
  BOOST_TEST(what_is_waited_for(*port) == "a resource");
  db.who_has().give_back(unit);
  // Nobody has it, and the stage that waits has not seen that yet: it does not wait for anybody.
  const auto between = seen();
  BOOST_TEST((between.state == actor_state::running));
  BOOST_TEST(std::ranges::count(between.ports, "resource db", &port_snapshot::name) == 0);
  // It has gone to another topology's.
  const auto other = db.who_has().take(12345);
  const auto b = seen();
  BOOST_TEST(std::ranges::find(b.ports, "resource db", &port_snapshot::name)->peer == "");
  db.who_has().give_back(other);
}

BOOST_AUTO_TEST_CASE(it_stands_in_explain) {
  troupe::resource<connection> db(3, &connect, "db");
  flow_graph g;
  collect(map(from(g, {1}), with(db, &negated), {.name = "asks"}));
  collect(map(from(g, {1}), with(db, asks_all{})));
  BOOST_TEST_REQUIRE(bool(g.check()));
  BOOST_TEST(std::ranges::count(g.stages(), std::string("asks_all"), &flow_stage_info::name) == 1);
  const auto text = explain(g);
  BOOST_TEST(text.find("; borrows db, of which there are 3") != std::string::npos, text);
}

BOOST_AUTO_TEST_SUITE_END()
