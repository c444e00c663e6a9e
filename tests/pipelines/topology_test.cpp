// Topologies on threads: the same results as in one thread, however they are placed.

#include "troupe/actors/flow/topology.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// Takes the thread for so long.
std::uint64_t spin(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::uint64_t n = 0;
  while (std::chrono::steady_clock::now() < end) ++n;
  return n;
}

std::vector<int> numbers(int n) {
  std::vector<int> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void must(const result<flow_totals>& r) {
  if (!r) BOOST_FAIL(r.error().text());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(topology)

BOOST_AUTO_TEST_CASE(replicas_on_two_threads_keep_the_order) {
  troupe::topology t({.threads = 2});
  auto slow = map(from(t, numbers(2000)), [](int x) { return spin(20us), x * 3; }, {.replicas = 4});
  const auto all = collect(slow);
  must(t.run_to_end());
  BOOST_REQUIRE_EQUAL(all->size(), 2000U);
  for (std::size_t i = 0; i < all->size(); ++i) BOOST_REQUIRE_EQUAL((*all)[i], int(i) * 3);
}

BOOST_AUTO_TEST_CASE(placements_change_under_way_and_lose_nothing) {
  troupe::topology t({.threads = 3});
  struct counting {
    int state = 0;
    int operator()(int x) { return spin(10us), ++state, x + state; }
  };
  // The load moves from the first stage to the second one.
  auto a = map(from(t, numbers(30'000)), [](int x) { return spin(x < 15'000 ? 20us : 1us), x; });
  auto b = map(a, [](int x) { return spin(x < 15'000 ? 1us : 20us), x; });
  const auto all = collect(map(b, counting{}));
  must(t.run_to_end());
  BOOST_REQUIRE_EQUAL(all->size(), 30'000U);
  for (std::size_t i = 0; i < all->size(); ++i) BOOST_REQUIRE_EQUAL((*all)[i], int(2 * i) + 1);
}

BOOST_AUTO_TEST_CASE(a_slow_end_holds_a_fast_source_back) {
  troupe::topology t({.threads = 2, .budget_bytes = 1 << 20});
  std::atomic<std::int64_t> made{0}, taken{0}, most{0};
  auto blocks = source(t, [&, n = 0]() mutable -> std::optional<std::vector<std::byte>> {
    if (n++ == 400) return std::nullopt;
    const auto ahead = ++made - taken;
    if (ahead > most) most = ahead;
    return std::vector<std::byte>(100'000);
  });
  for_each(map(blocks, [](std::vector<std::byte> b) { return b; }), [&](std::vector<std::byte>) {
    spin(200us);
    ++taken;
  });
  must(t.run_to_end());
  BOOST_CHECK_EQUAL(taken.load(), 400);
  // A MiB in two edges holds ten of them, and each stage has one in hand.
  BOOST_CHECK_LE(most.load(), 16);
}

BOOST_AUTO_TEST_CASE(a_failure_ends_it_with_one_line) {
  troupe::topology t({.threads = 2});
  auto f = map(from(t, numbers(100'000)),
               [](int x) -> result<int> {
                 if (x == 777) return error(error_code::failed, "does not like it");
                 return x;
               },
               {.name = "picky", .replicas = 2});
  collect(f);
  const auto r = t.run_to_end();
  BOOST_REQUIRE(!r);
  BOOST_TEST(r.error().message().find("picky/") == 0U);
  BOOST_TEST(r.error().message().find("item 777 of source: does not like it") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(stop_drains_what_is_under_way) {
  troupe::topology t({.threads = 2});
  std::atomic<std::uint64_t> made{0};
  auto endless = source(t, [&]() -> std::optional<std::uint64_t> { return made++; });
  const auto all = collect(map(endless, [](std::uint64_t x) { return spin(1us), x; }));
  must(t.run_to_end(
      [](const troupe::topology& running) { const_cast<troupe::topology&>(running).stop(); }));
  // Everything that was made has arrived.
  BOOST_CHECK_EQUAL(all->size(), made.load());
  BOOST_CHECK_GT(made.load(), 0U);
}

BOOST_AUTO_TEST_CASE(a_batch_leaves_in_time_though_it_is_not_full) {
  troupe::topology t({.threads = 1});
  bool first = true;
  auto slow = source(t,
                     [&, n = 0]() mutable -> std::optional<int> {
                       if (!std::exchange(first, false)) std::this_thread::sleep_for(60ms);
                       return n < 3 ? std::optional(n++) : std::nullopt;
                     },
                     {.blocks = true});
  const auto all = collect(batch(slow, {.count = 100, .within = 1ms}));
  must(t.run_to_end());
  BOOST_CHECK_EQUAL(all->size(), 3U);
}

BOOST_AUTO_TEST_CASE(the_report_adds_up) {
  troupe::topology t({.threads = 2});
  auto busy = map(from(t, numbers(3000)), [](int x) { return spin(50us), x; }, {.name = "busy"});
  for_each(busy, [](int) {}, {.name = "end"});
  must(t.run_to_end());
  double most = 0;
  std::string who;
  for (const auto& s : t.report()) {
    BOOST_CHECK_CLOSE(s.busy + s.starved + s.blocked, 1.0, 0.001);
    if (s.busy > most) most = s.busy, who = s.name;
  }
  BOOST_TEST(who == "busy");
  BOOST_TEST(to_text(t.report()).find("busy") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_group_for_each_stage_makes_the_same) {
  for (std::uint32_t run = 0; run < 10; ++run) {
    const auto threads = 1 + run % 2;
    troupe::topology t({.threads = threads, .fuse = false});
    auto thrice = map(from(t, numbers(5000)), [](int x) { return x * 3; }, {.replicas = 2});
    auto round = feedback<int>(t);
    auto [again, done] = split(map(merge(thrice, round), [](int x) { return x + 10'000; }),
                               [](const int& x) { return x < 20'000; });
    close(round, again);
    const auto all = collect(done);
    must(t.run_to_end());
    BOOST_REQUIRE_EQUAL(all->size(), 5000U);
    auto sorted = *all;
    std::ranges::sort(sorted);
    BOOST_CHECK_EQUAL(sorted.front(), 20'000);
    BOOST_CHECK_EQUAL(sorted.back(), 29'999);
  }
}

BOOST_AUTO_TEST_CASE(sources_on_other_threads_end_when_nobody_needs_them) {
  troupe::topology t({.threads = 2});
  auto endless =
      source(t, [n = 0]() mutable -> std::optional<int> { return n++; }, {.blocks = true});
  auto all = collect(first(map(endless, [](int x) { return x; }, {.blocks = true}), 10));
  must(t.run_to_end());
  BOOST_CHECK_EQUAL(all->size(), 10U);
}

BOOST_AUTO_TEST_CASE(it_runs_once) {
  troupe::topology t({.threads = 1});
  collect(from(t, numbers(3)));
  must(t.run_to_end());
  BOOST_CHECK(t.run_to_end().error().code() == error_code::usage);
}

BOOST_AUTO_TEST_SUITE_END()
