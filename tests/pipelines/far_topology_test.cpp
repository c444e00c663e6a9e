// Topologies over nodes of this process, with all threads and actors that real ones have: what
// comes of them, and how they end, at any moment.

#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/flow/stage_host.hpp"
#include "troupe/actors/flow/topology.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct works {
  std::int64_t us = 0;
  static constexpr auto fields = troupe::fields<&works::us>("us");
  std::int64_t operator()(std::int64_t x) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
    while (std::chrono::steady_clock::now() < until) {
    }
    return x;
  }
};
struct twice_each {
  generator<std::int64_t> operator()(std::int64_t x) const {
    co_yield 2 * x;
    co_yield 2 * x + 1;
  }
};
struct fails_at {
  std::int64_t at = -1;
  static constexpr auto fields = troupe::fields<&fails_at::at>("at");
  std::int64_t operator()(std::int64_t x) const {
    if (x == at) throw std::runtime_error("item of doom");
    return x;
  }
};
struct sums {
  std::int64_t sum = 0;
  static constexpr auto fields = troupe::fields<&sums::sum>("sum");
  std::int64_t operator()(std::int64_t x) { return sum += x; }
};

const stage_library& stages() {
  static const stage_library all("far", "1",
                                 {stage_of<works>("works"), stage_of<twice_each>("twice_each"),
                                  stage_of<fails_at>("fails_at"), stage_of<sums>("sums")});
  return all;
}

test::own_node worker(const std::string& name) {
  test::own_node n;
  n.job = "worker";
  n.name = name;
  n.host_work = host_stages({&stages()});
  return n;
}

topology_options over(const std::string& cluster) {
  topology_options o;
  o.name = "far";
  o.threads = 2;
  o.cluster.cluster = cluster;
  o.cluster.lease = 30s;
  o.cluster.timeout = 30s;
  return o;
}

struct counting {
  std::int64_t n = 0, at = 0;
  std::optional<std::int64_t> operator()() { return at < n ? std::optional(at++) : std::nullopt; }
};

std::shared_ptr<std::vector<std::int64_t>> add_stages(flow_graph& t, std::int64_t items,
                                                      std::int64_t us, std::uint32_t replicas) {
  const stage_options far{.replicas = replicas, .on = "/job:worker"};
  const auto made = source(t, counting{items});
  // Work here, too, so that stages are moved between threads while items come and go.
  const auto here = map(made, works{us}, {.name = "here"});
  return collect(map(map(here, works{us}, far), twice_each{}, far));
}
bool are_whole(const std::vector<std::int64_t>& got, std::int64_t items) {
  if (got.size() != std::size_t(2 * items)) return false;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != std::int64_t(i)) return false;
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(far_topology)

BOOST_AUTO_TEST_CASE(stages_run_on_nodes_and_items_come_back_in_order) {
  test::own_nodes nodes("far_order", {worker("n1"), worker("n2")});
  for (const bool fuses : {true, false})
    for (const std::uint32_t replicas : {1U, 3U}) {
      auto o = over("far_order");
      o.fuse = fuses;
      topology t(o);
      t.use(stages());
      const auto got = add_stages(t, 2000, replicas == 1 ? 0 : 30, replicas);
      const auto done = t.run_to_end();
      BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
      BOOST_CHECK(are_whole(*got, 2000));
      BOOST_CHECK_EQUAL(done->of(replicas == 1 ? "works" : "works/1").skipped, 0U);
      std::uint64_t taken = 0;
      for (const auto& s : done->stages)
        if (s.name == "twice_each" || s.name.starts_with("twice_each/"))
          if (s.name.find("deal") == std::string::npos &&
              s.name.find("gather") == std::string::npos)
            taken += s.items_in;
      BOOST_CHECK_EQUAL(taken, 2000U);
    }
}

BOOST_AUTO_TEST_CASE(a_stage_moves_from_node_to_node_while_it_runs) {
  test::own_nodes nodes("far_moves", {worker("n1"), worker("n2")});
  topology t(over("far_moves"));
  t.use(stages());
  std::atomic<std::int64_t> made{0};
  const auto numbers = source(t, [&]() -> std::optional<std::int64_t> { return made++; });
  const auto all = collect(
      map(numbers, works{20}, {.name = "work", .replicas = between(1, 2), .on = "/job:worker"}));
  const auto said = [](const result<void>& r) { return r ? "" : r.error().message(); };
  BOOST_TEST(said(t.move("work", "n2")) == "work: the topology has not begun");
  const auto taken = [](const topology& running, const std::string& replica) {
    for (const auto& s : running.report())
      if (s.name == replica) return s.items_in;
    return std::uint64_t{0};
  };
  int moves = 0;
  std::uint64_t wanted = 1;
  const auto done = t.run_to_end([&](const topology& running) {
    auto& me = const_cast<topology&>(running);
    const bool is_on_first = moves % 2 == 0;
    const auto here = taken(running, is_on_first ? "work/0" : "work/1");
    if (here < wanted) return;
    if (moves == 6) return me.stop();
    BOOST_TEST(said(me.move("work", is_on_first ? "n2" : "n1")) == "");
    ++moves;
    wanted = taken(running, is_on_first ? "work/1" : "work/0") + 100;
    BOOST_TEST(said(me.move("work", is_on_first ? "n2" : "n1")) == "");  // it is there
    BOOST_TEST(said(me.move("work", "n9")) == "work has no replica on n9");
    BOOST_TEST(said(me.move("wrk", "n1")).starts_with("there is no stage 'wrk' here"));
  });
  BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
  BOOST_TEST(moves == 6);
  BOOST_REQUIRE_EQUAL(all->size(), std::size_t(made.load()));
  for (std::size_t i = 0; i < all->size(); ++i) BOOST_REQUIRE_EQUAL((*all)[i], std::int64_t(i));
}

// While their number changes, and they move, one of the nodes leaves.
BOOST_AUTO_TEST_CASE(replicas_on_nodes_come_and_go_and_a_node_is_lost_meanwhile) {
  for (const bool leaves : {false, true}) {
    test::own_nodes nodes("far_live", {worker("n1"), worker("n2")});
    topology t(over("far_live"));
    t.use(stages());
    const stage_options far{.replicas = between(1, 4), .on = "/job:worker"};
    std::atomic<std::int64_t> made{0};
    const auto numbers = source(t, [&]() -> std::optional<std::int64_t> { return made++; });
    const auto got = collect(map(map(numbers, works{30}, far), twice_each{}, far));
    std::atomic<int> looks{0};
    std::string lost;
    std::thread surgeon([&] {
      test::wait_until("it runs", [&] { return looks > 2; });
      std::mt19937 random(5);
      for (int turn = 0; turn < 60; ++turn) {
        for (const auto* stage : {"works", "twice_each"}) {
          (void)t.set_replicas(stage, std::uint32_t(1 + random() % 4));
          (void)t.move(stage, random() % 2 == 0 ? "n1" : "n2");
        }
        if (leaves && turn == 20) nodes.leave(0);
        std::this_thread::sleep_for(2ms);
      }
      if (leaves) {  // nobody moves to who is gone
        test::wait_until("its loss is known", [&] {
          const auto moved = t.move("works", "n1");
          lost = moved ? "" : moved.error().message();
          return !lost.empty();
        });
      }
      t.stop();
    });
    const auto done = t.run_to_end([&](const topology&) { ++looks; });
    looks = 3;
    surgeon.join();
    BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
    BOOST_CHECK(are_whole(*got, made.load()));
    if (leaves) BOOST_TEST(lost == "works has no replica on n1");
  }
}

BOOST_AUTO_TEST_CASE(a_node_that_leaves_leaves_its_items_to_others) {
  for (const int leaves : {1, 2}) {
    test::own_nodes nodes("far_leaves", {worker("n1"), worker("n2")});
    topology t(over("far_leaves"));
    t.use(stages());
    const auto got = add_stages(t, 3000, 50, 3);
    std::atomic<int> looks{0};
    std::thread leaver([&] {
      test::wait_until("it runs", [&] { return looks > 2; });
      for (int i = 0; i < leaves; ++i) nodes.leave(0);
    });
    const auto done = t.run_to_end([&](const topology&) { ++looks; });
    looks = 3;
    leaver.join();
    BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
    BOOST_CHECK(are_whole(*got, 3000));
  }
}

BOOST_AUTO_TEST_CASE(a_stage_that_keeps_state_ends_with_its_node) {
  test::own_nodes nodes("far_state", {worker("n1")});
  topology t(over("far_state"));
  t.use(stages());
  const auto got =
      collect(map(map(source(t, counting{1'000'000}), works{50}), sums{}, {.on = "/node:n1"}));
  std::atomic<int> looks{0};
  std::thread leaver([&] {
    test::wait_until("it runs", [&] { return looks > 2; });
    nodes.leave(0);
  });
  const auto done = t.run_to_end([&](const topology&) { ++looks; });
  leaver.join();
  BOOST_REQUIRE(!done);
  BOOST_CHECK_MESSAGE(done.error().text().find("n1 was lost") != std::string::npos,
                      done.error().text());
  for (std::size_t i = 0; i < got->size(); ++i)
    BOOST_REQUIRE_EQUAL((*got)[i], std::int64_t(i * (i + 1) / 2));
}

BOOST_AUTO_TEST_CASE(a_failure_on_a_node_names_stage_item_and_node) {
  test::own_nodes nodes("far_fails", {worker("n1")});
  topology t(over("far_fails"));
  t.use(stages());
  collect(map(source(t, counting{100'000}), fails_at{777}, {.on = "/job:worker"}));
  const auto done = t.run_to_end();
  BOOST_REQUIRE(!done);
  const auto text = done.error().text();
  BOOST_CHECK_MESSAGE(text.find("fails_at (far_topology_test.cpp:") != std::string::npos, text);
  BOOST_CHECK_MESSAGE(text.find("item 777 of source: item of doom; on n1") != std::string::npos,
                      text);
}

BOOST_AUTO_TEST_CASE(an_endless_source_ends_when_nobody_needs_what_nodes_make_of_it) {
  test::own_nodes nodes("far_first", {worker("n1")});
  topology t(over("far_first"));
  t.use(stages());
  const auto endless = source(t, [n = std::int64_t{0}]() mutable { return std::optional(n++); });
  // Neither of them is replicated, so that edges lead from process to process as they are.
  const auto got = collect(first(map(endless, sums{}, {.on = "/job:worker"}), 10));
  const auto done = t.run_to_end();
  BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
  BOOST_REQUIRE_EQUAL(got->size(), 10U);
  for (std::size_t i = 0; i < got->size(); ++i)
    BOOST_CHECK_EQUAL((*got)[i], std::int64_t(i * (i + 1) / 2));
}

BOOST_AUTO_TEST_CASE(two_topologies_run_over_the_same_nodes_at_once) {
  test::own_nodes nodes("far_two", {worker("n1"), worker("n2")});
  std::vector<std::thread> threads;
  std::array<bool, 2> whole{};
  for (std::size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      topology t(over("far_two"));
      t.use(stages());
      const auto got = add_stages(t, 1000, 20, 2);
      whole[i] = bool(t.run_to_end()) && are_whole(*got, 1000);
    });
  for (auto& t : threads) t.join();
  BOOST_CHECK(whole[0] && whole[1]);
}

// In good order or at once, before it has begun or while it runs: it ends, and what came is whole
// up to there.
BOOST_AUTO_TEST_CASE(it_may_be_stopped_at_any_moment) {
  test::own_nodes nodes("far_stop", {worker("n1"), worker("n2")});
  std::mt19937_64 random(7);
  for (int round = 0; round < 12; ++round) {
    topology t(over("far_stop"));
    t.use(stages());
    const auto got = add_stages(t, 1'000'000, 20, 2);
    const bool at_once = round % 3 == 2;
    std::thread stopper([&, delay = std::chrono::milliseconds(random() % 200)] {
      std::this_thread::sleep_for(delay);
      at_once ? t.kill() : t.stop();
    });
    const auto done = t.run_to_end();
    stopper.join();
    if (at_once) BOOST_CHECK(!done);
    for (std::size_t i = 0; i < got->size(); ++i) BOOST_REQUIRE_EQUAL((*got)[i], std::int64_t(i));
    if (done) BOOST_CHECK_EQUAL(got->size() % 2, 0U);
  }
}

BOOST_AUTO_TEST_SUITE_END()
