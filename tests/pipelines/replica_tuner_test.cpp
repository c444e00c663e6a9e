// How many replicas Troupe chooses: pipelines by seed in a time of their own, whose stages take so
// long an item.

#include "troupe/runtime/flow/replica_tuner.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t look_ns = 50'000'000, second_ns = 1'000'000'000;

struct modelled_stage {
  double item_s = 0.001;  // one replica takes so long
  std::uint32_t most = 16;
  bool sleeps = true;
  // Something outside gives no more, whoever asks: calls take longer then.
  double items_max = std::numeric_limits<double>::infinity();
  std::uint32_t working = 1;
  double busy_ns = 0, done = 0;
};

// Stages behind each other, with enough items between them. Those that compute share `threads`.
struct modelled_pipeline {
  std::vector<modelled_stage> stages;
  double source = 1e9;  // items a second
  double threads = 2;
  std::int64_t now_ns = 0;
  std::uint32_t changes = 0;
  troupe::replica_tuner tuner;
  explicit modelled_pipeline(std::vector<modelled_stage> all)
      : stages(std::move(all)), tuner(stages.size()) {}

  double rate_with(const std::vector<std::uint32_t>& working) const {
    auto rate = source;
    double core = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& s = stages[i];
      rate = std::min({rate, working[i] / s.item_s, s.items_max});
      core += s.sleeps ? 0 : s.item_s;
    }
    return core > 0 ? std::min(rate, threads / core) : rate;
  }
  double rate() const {
    std::vector<std::uint32_t> now;
    for (const auto& s : stages) now.push_back(s.working);
    return rate_with(now);
  }
  double bound() const {
    std::vector<std::uint32_t> all;
    for (const auto& s : stages) all.push_back(s.most);
    return rate_with(all);
  }
  void look() {
    const auto r = rate();
    const auto seconds = double(look_ns) * 1e-9;
    double computes = 0;
    std::vector<tuned_stage> seen;
    for (auto& s : stages) {
      // Whoever waits for what is outside is busy meanwhile.
      const auto taken =
          r >= s.items_max * 0.999 ? s.working : std::min(double(s.working), r * s.item_s);
      s.busy_ns += taken * double(look_ns);
      s.done += r * seconds;
      if (!s.sleeps) computes += taken;
      seen.push_back({.working = s.working,
                      .most = s.most,
                      .sleeps = s.sleeps,
                      .busy_ns = s.busy_ns,
                      .done = static_cast<std::uint64_t>(s.done)});
    }
    now_ns += look_ns;
    const auto wanted = tuner.look(now_ns, seen, std::max(0.0, threads - computes));
    if (!wanted) return;
    auto& s = stages[wanted->stage];
    BOOST_REQUIRE(wanted->working >= 1 && wanted->working <= s.most);  // RPT-1
    BOOST_REQUIRE(wanted->working != s.working);
    s.working = wanted->working;
    ++changes;
  }
  void run_for(std::int64_t ns) {
    for (const auto end = now_ns + ns; now_ns < end;) look();
  }
  std::string text() const {
    std::string all;
    for (const auto& s : stages)
      all += fmt::format("{:.2f} ms x {} of {}{}; ", s.item_s * 1e3, s.working, s.most,
                         s.sleeps ? "" : " (computes)");
    return all;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(replica_tuner)

BOOST_AUTO_TEST_CASE(random_pipelines_come_to_the_bound_of_their_bottleneck_within_3_s) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](double a, double b) {
      return std::uniform_real_distribution<double>(a, b)(random);
    };
    std::vector<modelled_stage> stages;
    const auto n = 2 + random() % 4;
    for (std::size_t i = 0; i < n; ++i) {
      modelled_stage s;
      s.item_s = std::pow(10.0, pick(-3.3, -1.7));  // 0.5 to 20 ms
      s.most = 1 + static_cast<std::uint32_t>(random() % 16);
      stages.push_back(s);
    }
    modelled_pipeline p(std::move(stages));
    p.source = pick(50, 3000);
    p.run_for(3 * second_ns);
    BOOST_TEST(p.rate() >= p.bound() * 0.95,
               "seed " << seed << ": " << p.rate() << " of " << p.bound() << ": " << p.text());
  }
}

BOOST_AUTO_TEST_CASE(RPT_3_what_computes_gets_more_while_threads_have_time_left) {
  modelled_pipeline p({{.item_s = 0.004, .most = 4, .sleeps = false},
                       {.item_s = 0.0005, .most = 4, .sleeps = false}});
  p.threads = 1;
  p.run_for(3 * second_ns);
  BOOST_TEST(p.stages[0].working == 1U);
  BOOST_TEST((p.tuner.reason(0) == replica_reason::no_thread));
  p.threads = 4;
  p.run_for(3 * second_ns);
  BOOST_TEST(p.stages[0].working == 4U);
  BOOST_TEST(p.stages[1].working == 1U);
  BOOST_TEST((p.tuner.reason(0) == replica_reason::all));
  BOOST_TEST((p.tuner.reason(1) == replica_reason::suffices));
}

// More connections to a database that gives no more: they are taken back, and tried ever more
// seldom.
BOOST_AUTO_TEST_CASE(RPT_2_what_does_not_help_is_taken_back) {
  modelled_pipeline p({{.item_s = 0.010, .most = 16, .items_max = 300}});
  p.run_for(3 * second_ns);
  BOOST_TEST(p.stages[0].working == 4U);
  BOOST_TEST((p.tuner.reason(0) == replica_reason::no_help));
  p.run_for(60 * second_ns);
  const auto first = p.changes;
  p.run_for(120 * second_ns);
  BOOST_TEST(p.changes - first <= 6U);
  BOOST_TEST(p.stages[0].working <= 16U);
}

BOOST_AUTO_TEST_CASE(what_has_little_to_do_gives_its_replicas_back) {
  modelled_pipeline p({{.item_s = 0.010, .most = 16}});
  p.source = 1000;
  p.run_for(3 * second_ns);
  BOOST_TEST(p.stages[0].working >= 10U);
  p.source = 50;  // half of one
  p.run_for(120 * second_ns);
  BOOST_TEST(p.stages[0].working == 1U);
  BOOST_TEST((p.tuner.reason(0) == replica_reason::suffices));
}

// Nothing is known while its first calls are under way: it stays as it is.
BOOST_AUTO_TEST_CASE(RPT_2_windows_without_an_end_of_a_call_say_nothing) {
  troupe::replica_tuner t(1);
  tuned_stage s{.working = 4, .most = 16, .sleeps = true};
  for (std::int64_t look = 1; look < 200; ++look) BOOST_TEST(!t.look(look * look_ns, {&s, 1}, 2));
  s.busy_ns = 4.0 * 200 * look_ns;
  s.done = 4;
  for (std::int64_t look = 200; look < 220; ++look) {
    s.busy_ns += 4.0 * look_ns;
    if (const auto wanted = t.look(look * look_ns, {&s, 1}, 2)) s.working = wanted->working;
  }
  BOOST_TEST(s.working == 16U);
  // On trial until one of them has ended.
  for (std::int64_t look = 220; look < 400; ++look) {
    s.busy_ns += 16.0 * look_ns;
    BOOST_TEST(!t.look(look * look_ns, {&s, 1}, 2));
  }
}

BOOST_AUTO_TEST_CASE(replicas_that_somebody_has_set_stay) {
  troupe::replica_tuner t(1);
  tuned_stage s{.working = 3, .most = 16, .is_tuned = false, .sleeps = true};
  for (std::int64_t look = 1; look < 400; ++look) {
    s.busy_ns = look < 200 ? double(look * look_ns) * 3 : s.busy_ns;
    s.done += 100;
    BOOST_TEST(!t.look(look * look_ns, {&s, 1}, 2));
  }
}

BOOST_AUTO_TEST_SUITE_END()
