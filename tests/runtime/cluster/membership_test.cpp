#include "troupe/runtime/cluster/membership.hpp"

#include "troupe/schema/error.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <set>

using namespace troupe;
using kind = membership_action_kind;

BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::node_id)
BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::member_state)

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr auto me = node_id{10};

member_info member_at(std::uint64_t id, const std::string& address = "",
                      const std::string& host = "h") {
  member_info m;
  m.id = node_id{id};
  m.start_time_ns = id;
  m.name = member_name(m.id);
  m.address = address.empty() ? "10.0.0.1:" + std::to_string(id) : address;
  m.host = host;
  m.pid = static_cast<std::uint32_t>(id);
  return m;
}

std::size_t count(const std::vector<membership_action>& actions, kind k, node_id n = {}) {
  return static_cast<std::size_t>(std::count_if(actions.begin(), actions.end(), [&](const auto& a) {
    return a.kind == k && (raw(n) == 0 || a.node == n);
  }));
}

const membership_action& only(const std::vector<membership_action>& actions, kind k) {
  BOOST_REQUIRE_EQUAL(count(actions, k), 1u);
  return *std::find_if(actions.begin(), actions.end(), [&](const auto& a) { return a.kind == k; });
}

// `me` with linked members of these ids, at time 0.
membership with_members(std::initializer_list<std::uint64_t> ids) {
  membership m(member_at(raw(me)), {}, 0);
  for (auto id : ids) {
    m.linked(node_id{id}, member_kind::node, 0);
    const std::vector<member_info> view{member_at(id)};
    m.on_view(node_id{id}, view, 0);
  }
  m.take_actions();
  return m;
}

// Ticks every 50 ms up to `to_ms`, while `heard` gives signs of life.
std::vector<membership_action> tick_until(membership& m, std::int64_t from_ms, std::int64_t to_ms,
                                          std::vector<node_id> heard = {}) {
  std::vector<membership_action> out;
  for (auto t = from_ms; t <= to_ms; t += 50) {
    for (auto n : heard) m.heard(n, t * ms);
    m.tick(t * ms);
    for (auto& a : m.take_actions()) out.push_back(std::move(a));
  }
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(membership)

BOOST_AUTO_TEST_CASE(a_name_is_short_readable_and_made_of_the_id) {
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto name = member_name(node_id{i});
    BOOST_REQUIRE_EQUAL(name.size(), 6u);
    BOOST_REQUIRE_EQUAL(name.find_first_of("ilo01"), std::string::npos);
    BOOST_REQUIRE_EQUAL(name, member_name(node_id{i}));
    names.insert(name);
  }
  BOOST_TEST(names.size() >= 998u);
}

BOOST_AUTO_TEST_CASE(MB_2_uniting_records_is_idempotent_commutative_and_associative) {
  std::mt19937 engine(7);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  const auto any = [&] {
    auto m = member_at(5);
    m.state = static_cast<member_state>(random() % 4);
    m.revision = random() % 3;
    m.jobs = random() % 2;
    m.reason = std::string(1, static_cast<char>('a' + random() % 3));
    return m;
  };
  for (int i = 0; i < 5000; ++i) {
    const auto a = any(), b = any(), c = any();
    BOOST_REQUIRE(united(united(a, a), a) == united(a, a));
    BOOST_REQUIRE(united(a, b) == united(b, a));
    BOOST_REQUIRE(united(united(a, b), c) == united(a, united(b, c)));
    const bool is_over = a.state >= member_state::dead || b.state >= member_state::dead;
    BOOST_REQUIRE_EQUAL(united(a, b).state >= member_state::dead, is_over);
    BOOST_REQUIRE(united(a, b).state != member_state::unreachable);
  }
  BOOST_CHECK_THROW(united(member_at(1), member_at(2)), broken_invariant);
}

BOOST_AUTO_TEST_CASE(a_lone_node_is_its_founder_and_dials_what_it_is_told) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  BOOST_TEST(m.nodes() == 1u);
  BOOST_TEST((m.founder().id == me));
  m.add_seed("10.0.0.1:10", true, 0);  // ourselves
  BOOST_TEST(m.take_actions().empty());
  m.add_seed("10.0.0.1:20", true, 0);
  const auto first = m.take_actions();
  BOOST_TEST(only(first, kind::connect).text == "10.0.0.1:20");
  m.dial_failed({}, "10.0.0.1:20", dial_failure::refused, ms);
  BOOST_TEST(count(tick_until(m, 50, 450), kind::connect) == 0u);
  // After 0.5, 1.5, 3.5 and 7.5 s.
  BOOST_TEST(count(tick_until(m, 500, 10'000), kind::connect) == 4u);
}

BOOST_AUTO_TEST_CASE(a_seed_of_discovery_is_dropped_when_refused_and_a_seed_of_join_is_not) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.add_seed("10.0.0.1:20", false, 0);
  m.take_actions();
  m.dial_failed({}, "10.0.0.1:20", dial_failure::refused, ms);
  BOOST_TEST(count(tick_until(m, 50, 10'000), kind::connect) == 0u);
}

BOOST_AUTO_TEST_CASE(MB_5_a_view_brings_members_that_join_once_and_are_dialled_by_the_smaller_id) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{5}, member_kind::node, 0, "");
  BOOST_TEST(count(m.take_actions(), kind::send_view, node_id{5}) == 1u);
  BOOST_TEST(m.members().empty());  // its view has not come
  const std::vector<member_info> view{member_at(5), member_at(20), member_at(7)};
  m.on_view(node_id{5}, view, 0);
  m.on_view(node_id{5}, view, 0);
  const auto actions = m.take_actions();
  BOOST_TEST(count(actions, kind::joined) == 3u);
  BOOST_TEST(count(actions, kind::connect, node_id{20}) == 1u);  // 7 < 10: it dials us
  BOOST_TEST(m.nodes() == 4u);
  BOOST_TEST((m.founder().id == node_id{5}));
  const auto later = tick_until(m, 50, 350, {node_id{5}});
  BOOST_TEST(count(later, kind::connect, node_id{7}) == 1u);  // it did not
  BOOST_TEST(count(later, kind::joined) == 0u);
}

BOOST_AUTO_TEST_CASE(heartbeats_go_to_every_link_every_100_ms) {
  auto m = with_members({20, 30});
  const auto actions = tick_until(m, 50, 1000, {node_id{20}, node_id{30}});
  BOOST_TEST(count(actions, kind::send_heartbeat, node_id{20}) == 10u);
  BOOST_TEST(count(actions, kind::send_heartbeat, node_id{30}) == 10u);
  m.link_lost(node_id{30}, 1000 * ms);
  BOOST_TEST(count(tick_until(m, 1050, 1200, {node_id{20}}), kind::send_heartbeat, node_id{30}) ==
             0u);
}

BOOST_AUTO_TEST_CASE(
    MB_3_refused_on_the_same_host_another_life_or_a_process_that_is_gone_is_dead_at_once) {
  auto m = with_members({20, 30, 40, 50});
  for (std::uint64_t id : {20, 30, 40, 50}) m.link_lost(node_id{id}, ms);
  const auto asked = m.take_actions();
  BOOST_TEST(count(asked, kind::check_process) == 4u);
  BOOST_TEST(count(asked, kind::died) == 0u);
  m.dial_failed(node_id{20}, "10.0.0.1:20", dial_failure::refused, 2 * ms);
  m.dial_failed(node_id{30}, "10.0.0.1:30", dial_failure::other_life, 2 * ms);
  m.process_gone(node_id{40}, 2 * ms);
  m.dial_failed(node_id{50}, "10.0.0.1:50", dial_failure::other, 2 * ms);
  const auto ends = m.take_actions();
  BOOST_TEST(count(ends, kind::died) == 3u);
  BOOST_TEST(count(ends, kind::close) == 3u);
  BOOST_TEST(m.find(node_id{20})->reason == "connection refused at 10.0.0.1:20");
  BOOST_TEST(m.find(node_id{30})->reason == "another process answers at 10.0.0.1:30");
  BOOST_TEST(m.find(node_id{40})->reason == "process 40 is gone");
  BOOST_TEST(only(ends, kind::unreachable).about.reason == "no connection to 10.0.0.1:50");
  BOOST_TEST(m.nodes() == 2u);
  BOOST_TEST(count(tick_until(m, 50, 950), kind::died) == 0u);
  BOOST_TEST(count(tick_until(m, 1000, 1000), kind::died, node_id{50}) == 1u);
}

// Somebody else has told its address, and it may be wrong from here (--announce of a port that is
// mapped elsewhere).
BOOST_AUTO_TEST_CASE(MB_3_who_was_never_linked_is_asked_for_by_its_process_where_nobody_answers) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  m.on_view(node_id{20}, std::vector<member_info>{member_at(20), member_at(30)}, 0);
  m.take_actions();
  m.dial_failed(node_id{30}, "10.0.0.1:30", dial_failure::refused, ms);
  const auto asked = m.take_actions();
  BOOST_TEST(count(asked, kind::check_process, node_id{30}) == 1u);
  BOOST_TEST(count(asked, kind::died) == 0u);
  m.process_gone(node_id{30}, 2 * ms);
  BOOST_TEST(count(m.take_actions(), kind::died, node_id{30}) == 1u);
}

BOOST_AUTO_TEST_CASE(MB_3_refused_on_another_host_waits_for_the_lease) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  const std::vector<member_info> view{member_at(20, "10.0.0.2:20", "elsewhere")};
  m.on_view(node_id{20}, view, 0);
  m.take_actions();
  m.link_lost(node_id{20}, ms);
  m.dial_failed(node_id{20}, "10.0.0.2:20", dial_failure::refused, 2 * ms);
  const auto actions = m.take_actions();
  BOOST_TEST(count(actions, kind::check_process) == 0u);
  BOOST_TEST(count(actions, kind::unreachable) == 1u);
  m.linked(node_id{20}, member_kind::node, 3 * ms);
  BOOST_TEST(count(m.take_actions(), kind::reachable) == 1u);
}

BOOST_AUTO_TEST_CASE(a_silent_member_is_unreachable_after_half_a_second_and_dead_after_one) {
  auto m = with_members({20, 30});
  const auto first = tick_until(m, 50, 450, {node_id{30}});
  BOOST_TEST(count(first, kind::unreachable) == 0u);
  const auto second = tick_until(m, 500, 950, {node_id{30}});
  BOOST_TEST(only(second, kind::unreachable).node == node_id{20});
  BOOST_TEST(m.nodes() == 3u);  // it may come back
  const auto third = tick_until(m, 1000, 1000, {node_id{30}});
  BOOST_TEST(only(third, kind::died).about.reason == "no sign of life for 1.0 s");
  BOOST_TEST(count(third, kind::close, node_id{20}) == 1u);
  BOOST_TEST(m.nodes() == 2u);
}

BOOST_AUTO_TEST_CASE(MB_3_a_member_that_asks_for_a_longer_lease_is_waited_for) {
  auto patient = member_at(20);
  patient.lease_ns = 60'000 * ms;
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  m.on_view(node_id{20}, std::vector{patient}, 0);
  m.take_actions();
  const auto first = tick_until(m, 50, 59'900);
  BOOST_TEST(only(first, kind::unreachable).node == node_id{20});
  BOOST_TEST(count(first, kind::died) == 0u);
  BOOST_TEST(count(tick_until(m, 59'950, 60'050), kind::died) == 1u);
}

BOOST_AUTO_TEST_CASE(MB_4_a_detector_that_was_not_scheduled_extends_every_lease_by_as_much) {
  auto m = with_members({20});
  tick_until(m, 50, 400);
  m.tick(60'000 * ms);
  BOOST_TEST(count(m.take_actions(), kind::died) == 0u);
  BOOST_TEST(m.pauses() == 1u);
  // 400 ms of silence were before, 50 ms of the pause are an ordinary tick.
  BOOST_TEST(count(tick_until(m, 60'050, 60'500), kind::died) == 0u);
  BOOST_TEST(count(tick_until(m, 60'550, 60'600), kind::died) == 1u);
}

BOOST_AUTO_TEST_CASE(MB_1_a_dead_peer_that_speaks_again_is_fenced_with_the_weight_of_our_side) {
  auto m = with_members({20, 30});
  m.set_jobs(3);
  tick_until(m, 50, 1000, {node_id{30}});
  BOOST_REQUIRE(m.find(node_id{20})->state == member_state::dead);
  const std::vector<member_info> view{member_at(20)};
  m.on_view(node_id{20}, view, 1010 * ms);
  m.heard(node_id{20}, 1010 * ms);
  BOOST_TEST(m.take_actions().empty());  // no link: nothing to answer on
  m.linked(node_id{20}, member_kind::node, 1020 * ms);
  const auto actions = m.take_actions();
  const auto& f = only(actions, kind::send_fence);
  BOOST_TEST(f.node == node_id{20});
  BOOST_TEST((f.claim.nodes == 2 && f.claim.jobs == 3 && f.claim.founder == me));
  BOOST_TEST(f.claim.reason == member_name(me) + " holds " + member_name(node_id{20}) +
                                   " dead: no sign of life for 1.0 s");
  BOOST_TEST(count(actions, kind::send_view) == 0u);
  BOOST_TEST(m.find(node_id{20})->state == member_state::dead);
  const auto later = tick_until(m, 1050, 1300, {node_id{30}});
  BOOST_TEST(count(later, kind::close, node_id{20}) == 1u);
  BOOST_TEST(count(later, kind::send_heartbeat, node_id{20}) == 0u);
}

BOOST_AUTO_TEST_CASE(who_is_fenced_by_a_living_peer_gives_way_and_is_reborn) {
  auto m = with_members({20, 30});
  m.set_jobs(1);
  m.add_seed("10.0.0.9:1", true, 0);
  m.take_actions();
  m.on_fenced(node_id{20}, {"n20 holds us dead", 1, 0, 99, node_id{99}}, ms);
  const auto actions = m.take_actions();
  BOOST_TEST(only(actions, kind::rejoin).text == "n20 holds us dead");
  BOOST_TEST(m.has_ended());
  m.linked(node_id{40}, member_kind::node, ms);  // MB-6
  BOOST_TEST(tick_until(m, 50, 2000).empty());

  auto next = m.reborn(node_id{11}, 77, 3000 * ms);
  BOOST_TEST((next.self().id == node_id{11} && next.self().incarnation == 2 &&
              next.self().start_time_ns == 77));
  BOOST_TEST(next.self().jobs == 0u);
  BOOST_TEST(next.self().name == member_name(node_id{11}));
  BOOST_TEST(count(next.take_actions(), kind::connect) == 3u);
}

BOOST_AUTO_TEST_CASE(of_two_that_hold_each_other_dead_exactly_one_gives_way) {
  const auto claims = std::vector<fenced>{{"", 2, 0, 5, node_id{5}},
                                          {"", 3, 0, 7, node_id{7}},
                                          {"", 1, 1, 9, node_id{9}},
                                          {"", 2, 0, 10, node_id{10}}};
  for (const auto& theirs : claims) {
    auto m = with_members({20, 30});
    tick_until(m, 50, 1000, {node_id{30}});  // 20 is dead; we are two, our founder started at 10
    m.linked(node_id{20}, member_kind::node, 1000 * ms);
    m.take_actions();
    m.on_fenced(node_id{20}, theirs, 1000 * ms);
    const bool is_heavier = theirs.jobs > 0 || theirs.nodes > 2 ||
                            (theirs.nodes == 2 && theirs.founder_start_time_ns < 10);
    BOOST_TEST(m.has_ended() == is_heavier);
  }
}

BOOST_AUTO_TEST_CASE(a_death_by_hearsay_does_not_count_against_a_link_and_a_leave_does) {
  auto m = with_members({20, 30, 40});
  auto dead = member_at(30), left = member_at(40);
  dead.state = member_state::dead;
  left.state = member_state::left;
  auto never_seen = member_at(50);
  never_seen.state = member_state::dead;
  const std::vector<member_info> view{member_at(20), dead, left, never_seen};
  m.on_view(node_id{20}, view, ms);
  const auto actions = m.take_actions();
  BOOST_TEST(count(actions, kind::died) == 0u);
  BOOST_TEST(only(actions, kind::left).node == node_id{40});
  BOOST_TEST((m.find(node_id{50}) == nullptr));
}

BOOST_AUTO_TEST_CASE(the_younger_of_two_lives_at_one_address_is_the_living_one) {
  auto m = with_members({20, 30});
  auto again = member_at(31, "10.0.0.1:30");
  again.incarnation = 2;
  again.pid = 30;
  const std::vector<member_info> view{member_at(20), again};
  m.on_view(node_id{20}, view, ms);
  const auto actions = m.take_actions();
  BOOST_TEST(only(actions, kind::died).node == node_id{30});
  BOOST_TEST(only(actions, kind::joined).node == node_id{31});
}

// As where two announce one translated address: signs of life count more.
BOOST_AUTO_TEST_CASE(another_process_that_announces_the_address_of_a_linked_member_ends_it_not) {
  auto m = with_members({20, 30});
  const std::vector<member_info> view{member_at(20), member_at(31, "10.0.0.1:30")};
  m.on_view(node_id{20}, view, ms);
  auto actions = m.take_actions();
  BOOST_TEST(count(actions, kind::died) == 0u);
  BOOST_TEST(only(actions, kind::joined).node == node_id{31});
  // Once its link is gone, a process that is not there any more is dead as ever.
  m.link_lost(node_id{30}, 2 * ms);
  m.dial_failed(node_id{30}, "10.0.0.1:30", dial_failure::other_life, 3 * ms);
  actions = m.take_actions();
  BOOST_TEST(only(actions, kind::died).node == node_id{30});
}

BOOST_AUTO_TEST_CASE(who_died_by_its_lease_is_looked_for_until_nobody_is_there) {
  auto m = with_members({20, 30});
  m.link_lost(node_id{30}, ms);
  m.process_gone(node_id{30}, ms);
  const auto actions = tick_until(m, 50, 3000);
  BOOST_REQUIRE(m.find(node_id{20})->state == member_state::dead);
  BOOST_TEST(count(actions, kind::connect) > 1u);
  for (const auto& a : actions)
    if (a.kind == kind::connect) BOOST_TEST((a.text == "10.0.0.1:20" && raw(a.node) == 0));
  m.dial_failed({}, "10.0.0.1:20", dial_failure::refused, 3000 * ms);
  BOOST_TEST(count(tick_until(m, 3050, 10'000), kind::connect) == 0u);
}

BOOST_AUTO_TEST_CASE(one_peer_in_turn_gets_the_view_although_nothing_changed) {
  auto m = with_members({20, 30, 40});
  const std::vector<node_id> all{node_id{20}, node_id{30}, node_id{40}};
  tick_until(m, 50, 50, all);
  const auto actions = tick_until(m, 100, 3000, all);
  for (auto n : all) BOOST_TEST(count(actions, kind::send_view, n) == 2u);
}

BOOST_AUTO_TEST_CASE(a_linked_stranger_gets_the_view_again) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  BOOST_TEST(count(m.take_actions(), kind::send_view) == 1u);
  BOOST_TEST(count(tick_until(m, 50, 1000, {node_id{20}}), kind::send_view, node_id{20}) == 2u);
}

BOOST_AUTO_TEST_CASE(MB_7_tools_are_nobody_and_clients_are_not_counted) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::tool, 0);
  const std::vector<member_info> from_tool{member_at(20), member_at(21)};
  m.on_view(node_id{20}, from_tool, 0);
  m.heard(node_id{20}, 0);
  m.link_lost(node_id{20}, 0);
  BOOST_TEST(m.take_actions().empty());
  m.linked(node_id{5}, member_kind::client, 0);
  auto client = member_at(5);
  client.kind = member_kind::client;
  const std::vector<member_info> view{client};
  m.on_view(node_id{5}, view, 0);
  BOOST_TEST(m.nodes() == 1u);
  BOOST_TEST(m.members().size() == 1u);
  BOOST_TEST((m.founder().id == me));
}

BOOST_AUTO_TEST_CASE(who_leaves_says_so_to_every_link_and_then_nothing) {
  auto m = with_members({20, 30});
  m.link_lost(node_id{30}, ms);
  m.take_actions();
  m.leave("bye");
  const auto actions = m.take_actions();
  BOOST_TEST(actions.size() == 1u);
  BOOST_TEST(only(actions, kind::send_leave).text == "bye");
  BOOST_TEST(tick_until(m, 50, 3000).empty());
}

BOOST_AUTO_TEST_CASE(a_stranger_that_sends_no_view_is_closed) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  m.take_actions();
  BOOST_TEST(count(tick_until(m, 50, 4950), kind::close) == 0u);
  BOOST_TEST(count(tick_until(m, 5000, 5000), kind::close, node_id{20}) == 1u);
  BOOST_TEST(count(tick_until(m, 5050, 9000), kind::send_heartbeat) == 0u);
}

// It may hold us for a member, and use the link, before its first view is here.
BOOST_AUTO_TEST_CASE(a_stranger_whose_connection_broke_keeps_its_link_until_it_is_silent_for_long) {
  troupe::membership m(member_at(raw(me)), {}, 0);
  m.linked(node_id{20}, member_kind::node, 0);
  m.take_actions();
  m.link_lost(node_id{20}, ms);
  BOOST_TEST(count(tick_until(m, 50, 1000), kind::close) == 0u);
  m.linked(node_id{20}, member_kind::node, 1000 * ms);
  const std::vector view{member_at(20)};
  m.on_view(node_id{20}, view, 1000 * ms);
  BOOST_REQUIRE(m.find(node_id{20}) != nullptr);
  BOOST_TEST(m.find(node_id{20})->state == member_state::alive);

  m.linked(node_id{30}, member_kind::node, 2000 * ms);
  m.link_lost(node_id{30}, 2000 * ms);
  m.take_actions();
  BOOST_TEST(count(tick_until(m, 2050, 8000, {node_id{20}}), kind::close, node_id{30}) == 1u);
  m.linked(node_id{40}, member_kind::node, 8000 * ms);
  m.link_given_up(node_id{40}, 8000 * ms);
  m.take_actions();
  BOOST_TEST(count(tick_until(m, 8050, 14'000, {node_id{20}}), kind::close, node_id{40}) == 0u);
}

BOOST_AUTO_TEST_CASE(MB_8_members_and_the_dead_are_limited) {
  membership_options o;
  o.members_max = 10;
  o.dead_kept = 3;
  troupe::membership m(member_at(raw(me)), o, 0);
  m.linked(node_id{1000}, member_kind::node, 0);
  std::vector<member_info> view{member_at(1000)};
  for (std::uint64_t id = 1001; id < 1050; ++id) view.push_back(member_at(id));
  view.back().name = std::string(100'000, 'x');
  m.on_view(node_id{1000}, view, 0);
  BOOST_TEST(m.nodes() == 11u);
  for (std::uint64_t id = 1001; id < 1010; ++id) m.process_gone(node_id{id}, ms);
  BOOST_TEST(m.nodes() == 2u);
  BOOST_TEST(m.members().size() == 4u);
  m.on_view(node_id{1000}, view, 0);
  BOOST_TEST((m.find(node_id{1001}) == nullptr));  // forgotten, and still dead
  for (const auto& member : m.members()) BOOST_TEST(member.name.size() <= 64u);
}

BOOST_AUTO_TEST_CASE(the_number_of_jobs_reaches_the_peers_by_a_newer_record) {
  auto m = with_members({20, 30});
  m.set_jobs(2);
  const auto actions = tick_until(m, 50, 50);
  BOOST_TEST(count(actions, kind::send_view) == 2u);
  BOOST_TEST((m.view().front().jobs == 2 && m.view().front().revision == 1));
  auto newer = member_at(20);
  newer.jobs = 5;
  newer.revision = 2;
  const std::vector<member_info> news{newer};
  m.on_view(node_id{20}, news, ms);
  const std::vector<member_info> old{member_at(30), member_at(20)};
  m.on_view(node_id{30}, old, ms);
  BOOST_TEST(m.find(node_id{20})->jobs == 5u);
}

BOOST_AUTO_TEST_SUITE_END()
