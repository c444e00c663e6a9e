// What bounds a running topology, seen by looks at it as a tool takes them; and whether the mend
// gives what was said. Stages sleep, so that the cores of the machine bound nothing.

#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/runtime/insight/slow.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct counting {
  std::int64_t at = 0;
  std::optional<std::int64_t> operator()() { return at++; }
};
struct sleeps {
  std::int64_t us = 0;
  std::int64_t operator()(std::int64_t x) const {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    return x;
  }
};

struct stage_times {
  std::int64_t first_us = 0, second_us = 0, third_us = 0;
};

// Looks while it runs, with so many replicas of the second stage.
slow_answer look_at(const std::string& cluster, const stage_times& times, std::uint32_t replicas) {
  topology_options o;
  o.name = "pipe";
  o.threads = 6;
  o.cluster.cluster = cluster;
  o.cluster.lease = 30s;
  o.cluster.timeout = 30s;
  troupe::topology t(o);
  auto x = source(t, counting{}, {.name = "numbers"});
  x = map(x, sleeps{times.first_us}, {.name = "first"});
  x = map(x, sleeps{times.second_us}, {.name = "second", .replicas = replicas});
  x = map(x, sleeps{times.third_us}, {.name = "third"});
  std::atomic<std::int64_t> arrived{0};
  for_each(x, [&](std::int64_t) { ++arrived; });
  std::jthread running([&] { (void)t.run_to_end(); });
  struct ended {
    troupe::topology& t;
    ~ended() { t.stop(); }
  } const at_the_end{t};
  ask_options ask;
  ask.cluster = cluster;
  ask.timeout_ns = 60'000'000'000;
  ask.parts = ask_part::actors | ask_part::jobs;
  std::vector<cluster_snapshot> looks;
  test::wait_until("it runs steadily", [&] { return arrived > 10; });
  while (looks.size() < 100) {
    auto look = ask_cluster(ask);
    BOOST_TEST_REQUIRE(bool(look), (look ? "" : look.error().text()));
    looks.push_back(std::move(*look));
    std::this_thread::sleep_for(15ms);
  }
  auto a = explain_slow(looks, "pipe");
  BOOST_TEST_REQUIRE(bool(a), (a ? "" : a.error().text()));
  BOOST_TEST_MESSAGE(a->text());
  return std::move(*a);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(slow_topology)

// What was said of a second replica stands beside what it gave in the log (--log_level=message): a
// machine that does something else meanwhile changes both, so neither decides.
BOOST_AUTO_TEST_CASE(the_busiest_stage_is_named_and_a_replica_of_it_is_the_mend) {
  test::own_nodes nodes("slow_stages", {{.name = "n1"}});
  const stage_times times{500, 20'000, 500};
  const auto one = look_at("slow_stages", times, 1);
  BOOST_TEST(one.actor == "second", one.text());
  if (one.kind == bound_kind::thread)
    BOOST_TEST(one.mend == "2 replicas instead of 1, on a thread of its own");
  for (const auto& s : one.shares)
    BOOST_TEST(std::abs(s.busy + s.starved + s.blocked + s.ready - 1) < 1e-9);
  const auto two = look_at("slow_stages", times, 2);
  BOOST_TEST_MESSAGE("said +" << one.gain * 100 << " %, came +" << (two.rate / one.rate - 1) * 100);
  BOOST_TEST(std::ranges::any_of(
      two.shares, [](const auto& s) { return s.name == "second" && s.replicas == 2; }));
}

BOOST_AUTO_TEST_SUITE_END()
