// Clusters of two to five membership machines over a bad network, by seed.
#include "tests/support/cluster_simulation.hpp"
#include "tests/support/repetitions.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;
using troupe::test::cluster_simulation;
using kind = membership_action_kind;

namespace {

constexpr std::int64_t ms = cluster_simulation::ms;
constexpr std::int64_t second = 1000 * ms;

test::network_faults bad_network() {
  test::network_faults f;
  f.delay_max_ns = 60 * ms;
  f.loss = 0.05;
  f.duplicates = 0.1;
  f.tick_jitter_ns = 30 * ms;
  return f;
}

// The first event of that kind about `id` seen by `by`, as a time since `from_ns`; -1: never.
std::int64_t noticed(const cluster_simulation& s, std::size_t by, kind k, node_id id,
                     std::int64_t from_ns) {
  for (const auto& e : s.events)
    if (e.by == by && e.kind == k && e.about == id) return e.at_ns - from_ns;
  return -1;
}

// MB-5: joined first and once, died or left once and last, for every life that a life sees.
void check_order_of_events(const cluster_simulation& s) {
  std::map<std::pair<node_id, node_id>, std::vector<kind>> histories;
  for (const auto& e : s.events) {
    if (e.kind == kind::rejoin || e.kind == kind::conflict) continue;
    auto& h = histories[{e.observer, e.about}];
    const bool is_over = !h.empty() && (h.back() == kind::died || h.back() == kind::left);
    BOOST_REQUIRE(!is_over);
    BOOST_REQUIRE_EQUAL(h.empty(), (e.kind == kind::joined));
    h.push_back(e.kind);
  }
}

struct chaos {
  cluster_simulation& s;
  std::size_t crashes = 0, freezes = 0, cuts = 0, resets = 0, starts = 0;

  void step() {
    const auto i = s.pick(s.size());
    switch (s.pick(9)) {
      case 0:
        if (!s.at(i).is_running) break;
        s.crash(i);
        ++crashes;
        break;
      case 1:
      case 2:
        if (s.at(i).is_running) break;
        s.start(i);
        ++starts;
        break;
      case 3:
        s.freeze(i);
        ++freezes;
        break;
      case 4:
      case 5: s.thaw(i); break;
      case 6:
        s.cut(i, static_cast<int>(s.pick(2)));
        ++cuts;
        break;
      case 7:
        s.reset_connection(i, (i + 1 + s.pick(s.size() - 1)) % s.size());
        ++resets;
        break;
      default: break;
    }
    s.run(static_cast<std::int64_t>(s.pick(800)) * ms);
  }
  // All faults end. A crashed process comes back as somebody else.
  void stop() {
    s.faults = {};
    for (std::size_t i = 0; i < s.size(); ++i) {
      s.cut(i, 0);
      s.thaw(i);
      if (!s.at(i).is_running) s.start(i);
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(membership_simulation)

BOOST_AUTO_TEST_CASE(nodes_that_start_at_once_find_each_other_within_half_a_second_for_200_seeds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(2 + seed % 4, seed);
      for (std::size_t i = 0; i < s.size(); ++i) {
        s.start(i);
        s.run(static_cast<std::int64_t>(s.pick(5)) * ms);
      }
      s.run(500 * ms);
      BOOST_REQUIRE(s.all_agree());
      std::size_t oldest = 0;
      for (std::size_t i = 1; i < s.size(); ++i)
        if (std::pair(s.at(i).start, s.id(i)) < std::pair(s.at(oldest).start, s.id(oldest)))
          oldest = i;
      for (std::size_t i = 0; i < s.size(); ++i) {
        BOOST_REQUIRE_EQUAL(s.member(i).nodes(), s.size());
        BOOST_REQUIRE(s.member(i).founder().id == s.id(oldest));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(MB_4_nobody_dies_on_a_bad_network_with_short_pauses_for_200_seeds) {
  std::size_t resets = 0, pauses = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(2 + seed % 4, seed, bad_network());
      for (std::size_t i = 0; i < s.size(); ++i) s.start(i);
      s.run(2 * second);
      for (int k = 0; k < 20; ++k) {
        const auto i = s.pick(s.size());
        if (s.pick(2) == 0) {
          // One is not scheduled, for less than a lease; when it is again, it must not blame the
          // others.
          s.freeze(i);
          s.run(static_cast<std::int64_t>(s.pick(400)) * ms);
          s.thaw(i);
          ++pauses;
        } else {
          s.reset_connection(i, (i + 1) % s.size());
          ++resets;
        }
        s.run(800 * ms);
      }
      BOOST_REQUIRE_EQUAL(s.count(kind::died), 0u);
      BOOST_REQUIRE_EQUAL(s.count(kind::rejoin), 0u);
      s.faults = {};
      s.run(2 * second);
      BOOST_REQUIRE(s.all_agree());
    }
  }
  BOOST_TEST(resets > 1000u);
  BOOST_TEST(pauses > 1000u);
}

BOOST_AUTO_TEST_CASE(MB_4_a_cluster_that_was_paused_as_a_whole_lives_on) {
  cluster_simulation s(4, 1);
  for (std::size_t i = 0; i < s.size(); ++i) s.start(i);
  s.run(second);
  for (std::size_t i = 0; i < s.size(); ++i) s.freeze(i);
  s.run(60 * second);
  for (std::size_t i = 0; i < s.size(); ++i) s.thaw(i);
  s.run(3 * second);
  BOOST_TEST(s.count(kind::died) == 0u);
  BOOST_TEST(s.all_agree());
  BOOST_TEST(s.member(0).pauses() == 1u);
}

BOOST_AUTO_TEST_CASE(
    a_killed_process_is_noticed_within_100_ms_and_a_frozen_one_within_2_s_for_200_seeds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(2 + seed % 4, seed);
      for (std::size_t i = 0; i < s.size(); ++i) s.start(i);
      s.run(second);
      const auto victim = s.pick(s.size());
      const auto id = s.id(victim);
      const auto at = s.now();
      const bool is_killed = seed % 2 == 0;
      if (is_killed)
        s.crash(victim);
      else
        s.freeze(victim);
      s.run(5 * second);
      for (std::size_t i = 0; i < s.size(); ++i) {
        if (i == victim) continue;
        const auto t = noticed(s, i, kind::died, id, at);
        BOOST_REQUIRE_GE(t, 0);
        BOOST_REQUIRE_LE(t, is_killed ? 100 * ms : 2 * second);
        if (!is_killed) BOOST_REQUIRE_LT(noticed(s, i, kind::unreachable, id, at), t);
        BOOST_REQUIRE_EQUAL(s.member(i).nodes(), s.size() - 1);
      }
      if (is_killed) continue;
      // The frozen one comes back as somebody else, and blames nobody.
      s.thaw(victim);
      s.run(2 * second);
      BOOST_REQUIRE(s.all_agree());
      BOOST_REQUIRE_EQUAL(s.count(kind::rejoin), 1u);
      BOOST_REQUIRE_EQUAL(s.member(victim).self().incarnation, 2u);
      BOOST_REQUIRE(s.id(victim) != id);
    }
  }
}

BOOST_AUTO_TEST_CASE(who_leaves_has_left_for_everybody) {
  cluster_simulation s(4, 7);
  for (std::size_t i = 0; i < s.size(); ++i) s.start(i);
  s.run(second);
  const auto id = s.id(2);
  s.leave(2);
  s.run(second);
  BOOST_TEST(s.count(kind::left) == 3u);
  BOOST_TEST(s.count(kind::died) == 0u);
  BOOST_TEST(s.all_agree());
  BOOST_TEST((s.member(0).find(id)->state == member_state::left));
  BOOST_TEST(s.member(0).find(id)->reason == "done");
}

BOOST_AUTO_TEST_CASE(of_two_halves_the_lighter_one_gives_way) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(5, seed);
      for (std::size_t i = 0; i < s.size(); ++i) {
        s.start(i);
        s.run(10 * ms);
      }
      s.run(second);
      s.cut(0, 1);  // the founder with one more
      s.cut(1, 1);
      s.run(5 * second);
      BOOST_REQUIRE_EQUAL(s.count(kind::died), 12u);
      BOOST_REQUIRE_EQUAL(s.member(0).nodes(), 2u);
      BOOST_REQUIRE_EQUAL(s.member(4).nodes(), 3u);
      s.cut(0, 0);
      s.cut(1, 0);
      s.run(10 * second);
      BOOST_REQUIRE(s.all_agree());
      BOOST_REQUIRE_EQUAL(s.count(kind::rejoin), 2u);
      BOOST_REQUIRE_EQUAL(s.member(0).self().incarnation, 2u);
      BOOST_REQUIRE_EQUAL(s.member(3).self().incarnation, 1u);
    }
  }
}

BOOST_AUTO_TEST_CASE(
    jobs_weigh_more_than_nodes_and_two_halves_with_jobs_stay_apart_until_one_has_none) {
  cluster_simulation s(5, 3);
  for (std::size_t i = 0; i < s.size(); ++i) {
    s.start(i);
    s.run(10 * ms);
  }
  s.run(second);
  s.cut(0, 1);
  s.cut(1, 1);
  s.run(5 * second);
  s.member(1).set_jobs(1);
  s.member(3).set_jobs(2);
  s.run(second);
  s.cut(0, 0);
  s.cut(1, 0);
  s.run(10 * second);
  BOOST_TEST(s.count(kind::rejoin) == 0u);
  BOOST_TEST(s.count(kind::conflict) > 0u);
  BOOST_TEST(s.member(0).nodes() == 2u);
  BOOST_TEST(s.member(4).nodes() == 3u);
  s.member(3).set_jobs(0);
  s.run(10 * second);
  BOOST_TEST(s.all_agree());
  BOOST_TEST(s.count(kind::rejoin) == 3u);
  BOOST_TEST(s.member(1).self().incarnation == 1u);
}

BOOST_AUTO_TEST_CASE(two_clusters_with_jobs_do_not_merge_and_say_so_once) {
  cluster_simulation s(4, 5);
  s.cut(2, 1);
  s.cut(3, 1);
  for (std::size_t i = 0; i < s.size(); ++i) s.start(i);
  s.run(second);
  BOOST_TEST(s.member(0).nodes() == 2u);
  s.member(0).set_jobs(1);
  s.member(3).set_jobs(1);
  s.run(second);
  s.cut(2, 0);
  s.cut(3, 0);
  s.run(20 * second);
  BOOST_TEST(s.member(0).nodes() == 2u);
  BOOST_TEST(s.member(3).nodes() == 2u);
  const auto said = s.count(kind::conflict);
  BOOST_TEST(said > 0u);
  BOOST_TEST(said <= 8u);  // at most once about each stranger
  BOOST_TEST(s.events.back().text.find("jobs run on both sides") != std::string::npos);
  s.member(0).set_jobs(0);
  s.run(20 * second);
  BOOST_TEST(s.all_agree());
  BOOST_TEST(s.count(kind::rejoin) == 0u);  // nobody was dead: the views are united
}

BOOST_AUTO_TEST_CASE(after_all_faults_stop_all_who_live_agree_for_1000_seeds) {
  std::size_t rejoins = 0, deaths = 0;
  for (std::uint64_t seed = 1; seed <= repetitions(1000); ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(2 + seed % 4, seed, bad_network());
      for (std::size_t i = 0; i < s.size(); ++i)
        if (i == 0 || s.pick(2) == 0) s.start(i);
      chaos c{s};
      for (int k = 0; k < 40; ++k) c.step();
      c.stop();
      s.run(20 * second);
      BOOST_REQUIRE(s.all_agree());
      check_order_of_events(s);
      rejoins += s.count(kind::rejoin);
      deaths += s.count(kind::died);
    }
  }
  BOOST_TEST(rejoins > repetitions(500));
  BOOST_TEST(deaths > repetitions(2000));
}

BOOST_AUTO_TEST_CASE(MB_9_nodes_at_wildcards_that_join_one_become_one_cluster_for_200_seeds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      cluster_simulation s(3 + seed % 3, seed);
      for (std::size_t i = 0; i < s.size(); ++i) {
        s.at(i).is_wildcard = true;
        s.start(i, i == 0 ? std::vector<std::size_t>{} : std::vector<std::size_t>{0});
        s.run(static_cast<std::int64_t>(s.pick(300)) * ms);
      }
      s.run(2 * second);
      BOOST_REQUIRE(s.all_agree());
      BOOST_REQUIRE_EQUAL(s.count(kind::unreachable), 0u);
      for (std::size_t i = 0; i < s.size(); ++i) {
        BOOST_REQUIRE_EQUAL(s.member(i).self().address, s.at(i).address);
        for (std::size_t j = 0; j < s.size(); ++j)
          BOOST_REQUIRE_EQUAL(s.member(i).find(s.id(j))->address, s.at(j).address);
      }
      // Links are made anew by the addresses that were settled.
      s.reset_connection(0, 1 + s.pick(s.size() - 1));
      s.reset_connection(1, 2);
      s.run(2 * second);
      BOOST_REQUIRE(s.all_agree());
      BOOST_REQUIRE_EQUAL(s.count(kind::died), 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(MB_9_an_address_at_which_a_node_meets_itself_is_dialled_once) {
  cluster_simulation s(3, 5);
  const std::string everybody = "10.9.9.9:7000";  // as behind one translated address
  s.leads_to_itself.insert(everybody);
  for (std::size_t i = 0; i < s.size(); ++i) s.at(i).announces = i == 0 ? "" : everybody;
  s.start(0, {});
  for (std::size_t i = 1; i < s.size(); ++i) s.start(i, {0});
  s.member(0).add_seed(everybody, true, s.now());
  s.run(30 * second);
  for (std::size_t i = 0; i < s.size(); ++i)
    BOOST_TEST((s.dials[{i, everybody}]) <= 1u, "node " << i);
  // Each has the first one, and says why it has not the other.
  for (std::size_t i = 1; i < s.size(); ++i) {
    const auto* other = s.member(i).find(s.id(3 - i));
    BOOST_REQUIRE(other != nullptr);
    BOOST_TEST((other->state == member_state::dead));
    BOOST_TEST(other->reason.find("it announces 10.9.9.9:7000, as this node does") !=
               std::string::npos);
    BOOST_TEST(s.member(0).find(s.id(i))->reason == "");
  }
}

BOOST_AUTO_TEST_CASE(MB_10_members_that_cannot_reach_each_other_say_so_within_three_seconds) {
  cluster_simulation s(3, 6);
  s.at(1).cannot_reach = {2};
  s.at(2).cannot_reach = {1};
  const auto began = s.now();
  s.start(0, {});
  s.start(1, {0});
  s.start(2, {0});
  s.run(3 * second);
  for (const std::size_t i : {1u, 2u}) {
    const auto about = s.id(3 - i);
    BOOST_TEST(noticed(s, i, kind::unreachable, about, began) >= 2 * second);
    const auto* m = s.member(i).find(about);
    BOOST_REQUIRE(m != nullptr);
    BOOST_TEST(m->reason == "no connection to " + s.at(3 - i).address +
                                ": no route to host, nor has it connected: give it an address "
                                "that others reach, by --listen or --announce HOST:PORT");
  }
  BOOST_TEST(s.member(0).nodes() == 3u);
  // One way is enough.
  cluster_simulation half(3, 7);
  half.at(1).cannot_reach = {2};
  half.start(0, {});
  half.start(1, {0});
  half.start(2, {0});
  half.run(3 * second);
  BOOST_TEST(half.all_agree());
  BOOST_TEST(half.count(kind::unreachable) == 0u);
}

BOOST_AUTO_TEST_CASE(a_peer_is_dialled_again_where_it_was_reached_and_not_where_it_says_it_is) {
  cluster_simulation s(2, 8);
  s.at(0).announces = "192.168.7.7:7000";  // of a network of its own
  s.start(0, {});
  s.start(1, {0});
  s.run(second);
  for (int k = 0; k < 5; ++k) {
    s.reset_connection(0, 1);
    s.run(second);
    BOOST_REQUIRE(s.all_agree());
  }
  BOOST_TEST(s.count(kind::died) == 0u);
  BOOST_TEST((s.dials[{1, "192.168.7.7:7000"}]) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
