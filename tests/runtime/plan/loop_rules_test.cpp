#include "troupe/runtime/plan/loop_rules.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <string>

using namespace troupe;

namespace {

constexpr std::uint16_t condition_level = 1, body_level = 2;

// "a0", "a1": values by frame and iteration; "!2": dead at level 2.
std::string text_of(const tag& t, char value) {
  return fmt::format("{}@{:x}.{}", t.dead != 0 ? fmt::format("!{}", t.dead) : std::string(1, value),
                     t.frame, t.iteration);
}

std::string all_of(loop_stack<char>& s) {
  std::string out;
  while (s.can_give()) {
    const auto i = s.give();
    out += (out.empty() ? "" : " ") + text_of(i.t, i.value);
  }
  return out;
}

tag dead(tag t, std::uint16_t level) {
  t.dead = level;
  return t;
}
tag at(tag outer, std::uint32_t iteration) {
  outer = entered(outer);
  outer.iteration = iteration;
  return outer;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(loop_rules)

BOOST_AUTO_TEST_CASE(LO_2_what_enters_a_loop_leaves_it_with_the_same_tag) {
  tag t{.step = 77};
  BOOST_TEST((left(entered(t)) == t));
  t.iteration = 3;
  t.frame = entered(tag{}).frame;
  BOOST_TEST((left(entered(t)) == t));
  auto deep = tag{.step = 1};
  std::vector<tag> on_the_way;
  for (std::uint32_t depth = 0; depth < loop_depth_max; ++depth) {
    on_the_way.push_back(deep);
    deep = entered(deep);
    deep.iteration = outer_iterations_max;
  }
  for (; !on_the_way.empty(); on_the_way.pop_back())
    BOOST_TEST(((deep = left(deep)) == on_the_way.back()));
}

BOOST_AUTO_TEST_CASE(LO_1_tags_of_an_edge_ascend_through_iterations_runs_and_steps) {
  std::vector<tag> all;
  for (std::uint64_t step = 0; step < 2; ++step)
    for (std::uint32_t outer = 0; outer < 3; ++outer)
      for (std::uint32_t inner = 0; inner < 3; ++inner)
        all.push_back(at(at({.step = step}, outer), inner));
  for (std::size_t i = 1; i < all.size(); ++i) BOOST_TEST((all[i - 1] < all[i]));
}

BOOST_AUTO_TEST_CASE(LO_3_a_run_begins_when_the_dead_token_of_the_one_before_came_back) {
  loop_entry e(condition_level);
  for (std::uint64_t step = 0; step < 3; ++step) {
    BOOST_TEST(e.port() == 0u);
    auto t = e.take({.step = step});
    BOOST_TEST_REQUIRE(t.has_value());
    BOOST_TEST((*t == at({.step = step}, 0)));
    for (std::uint32_t i = 0; i < step; ++i) {
      BOOST_TEST(e.port() == 1u);
      t = e.take(*t);
      BOOST_TEST((*t == at({.step = step}, i + 1)));
      BOOST_TEST(t->dead == 0);
    }
    const auto end = e.take(dead(*t, body_level));
    BOOST_TEST_REQUIRE(end.has_value());
    BOOST_TEST(end->dead == condition_level);
    BOOST_TEST(end->iteration == step + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_loop_that_is_not_begun_sends_one_dead_token_round) {
  loop_entry e(4);
  const auto t = e.take(dead({.step = 5}, 2));
  BOOST_TEST_REQUIRE(t.has_value());
  BOOST_TEST(t->dead == 2);
  BOOST_TEST(!e.take(*t).has_value());
  BOOST_TEST(e.port() == 0u);
}

BOOST_AUTO_TEST_CASE(a_stack_gives_the_values_of_iterations_back_the_last_one_first) {
  loop_stack<char> s({body_level}, false, 8);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const tag outer{.step = step};
    for (std::uint32_t i = 0; i < 3; ++i)
      BOOST_TEST(s.take(at(outer, i), static_cast<char>('a' + i)));
    BOOST_TEST(!s.can_give());
    BOOST_TEST(s.take(dead(at(outer, 3), body_level), 0));
    BOOST_TEST(!s.can_take());
    BOOST_TEST(all_of(s) == "c@1.0 b@1.1 a@1.2 !2@1.3");
    BOOST_TEST(s.can_take());
  }
}

BOOST_AUTO_TEST_CASE(a_stack_of_a_condition_says_when_the_loop_goes_on_and_ends) {
  loop_stack<char> s({body_level}, true, 8);
  BOOST_TEST(s.take(at({}, 0), 'a'));
  BOOST_TEST(s.take(dead(at({}, 1), body_level), 0));
  bool holds = false;
  BOOST_TEST(s.give(&holds).t.dead == 0);
  BOOST_TEST(holds);
  const auto end = s.give(&holds);
  BOOST_TEST((end.t == at({}, 1)));
  BOOST_TEST(!holds);
  const auto last = s.give(&holds);
  BOOST_TEST(last.t.dead == condition_level);
  BOOST_TEST((last.t == at({}, 2)));
  BOOST_TEST(!s.can_give());
}

// Two runs of an inner loop, an outer iteration without any, and (at level 3) one whose branch was
// not taken.
BOOST_AUTO_TEST_CASE(a_stack_gives_the_runs_of_inner_loops_back_in_reverse) {
  loop_stack<char> s({2, 5}, false, 100);
  const auto inner = [](std::uint32_t outer, std::uint32_t i) { return at(at({}, outer), i); };
  BOOST_TEST(s.take(inner(0, 0), 'a'));
  BOOST_TEST(s.take(inner(0, 1), 'b'));
  BOOST_TEST(s.take(dead(inner(0, 2), 5), 0));
  BOOST_TEST(s.take(dead(inner(1, 0), 5), 0));
  BOOST_TEST(s.take(dead(inner(2, 0), 3), 0));
  BOOST_TEST(s.take(inner(3, 0), 'c'));
  BOOST_TEST(s.take(dead(inner(3, 1), 5), 0));
  BOOST_TEST(s.take(dead(inner(4, 0), 2), 0));
  // Frames are 1 of the outer loop and, of the inner one, (1 << 21) + 1 + the outer iteration.
  BOOST_TEST(
      all_of(s) ==
      "c@200001.0 !5@200001.1 !3@200002.0 !5@200003.0 b@200004.0 a@200004.1 !5@200004.2 !2@200005.0");
}

BOOST_AUTO_TEST_CASE(a_branch_in_a_body_that_was_not_taken_keeps_its_place) {
  loop_stack<char> s({2}, false, 100);
  BOOST_TEST(s.take(at({}, 0), 'a'));
  BOOST_TEST(s.take(dead(at({}, 1), 3), 0));
  BOOST_TEST(s.take(at({}, 2), 'c'));
  BOOST_TEST(s.take(dead(at({}, 3), 2), 0));
  BOOST_TEST(all_of(s) == "c@1.0 !3@1.1 a@1.2 !2@1.3");
}

BOOST_AUTO_TEST_CASE(a_stack_takes_no_more_than_it_may_and_the_step_of_a_dead_loop_is_one_token) {
  loop_stack<char> s({3}, false, 2);
  BOOST_TEST(s.take(dead(at({}, 0), 1), 0));
  BOOST_TEST(all_of(s) == "!1@1.0");
  BOOST_TEST(s.take(at({.step = 1}, 0), 'a'));
  BOOST_TEST(s.take(at({.step = 1}, 1), 'b'));
  BOOST_TEST(!s.take(at({.step = 1}, 2), 'c'));
}

BOOST_AUTO_TEST_SUITE_END()
