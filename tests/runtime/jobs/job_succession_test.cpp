#include "troupe/runtime/jobs/job_succession.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

constexpr node_id n1{1}, n2{2}, n3{3};
constexpr std::int64_t s = 1'000'000'000;

troupe::job_succession on(std::uint64_t losses = 0) {
  loss_history before;
  for (std::uint64_t t = 0; t < losses; ++t) before.add({t, 0, 0});
  return {job_id{7}, std::make_shared<const std::vector<std::byte>>(8), before};
}

job_journal state() {
  job_journal j;
  j.roles = {{n1}, {n1}};
  j.first_steps = j.next_losses = {0};
  j.closed.resize(1);
  return j;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_succession)

BOOST_AUTO_TEST_CASE(JU_1_a_loss_is_given_back_when_every_successor_has_it) {
  auto x = on();
  x.choose({n1, n2, n3});
  BOOST_TEST((x.successors() == std::vector{n1, n2}));
  auto first = x.take(state(), 0);
  BOOST_TEST_REQUIRE(first.size() == 2U);
  BOOST_TEST(!first[0].second.recipe.empty());
  x.on_loss({0, 0, 1}, true);
  x.on_loss({1, 0, 1}, true);
  BOOST_TEST(x.take(state(), 0).empty());  // one is on its way
  BOOST_TEST(x.take_credits() == 0U);
  x.on_kept(n1, 1);
  x.on_kept(n2, 1);
  const auto second = x.take(state(), 0);
  BOOST_TEST_REQUIRE(second.size() == 2U);
  BOOST_TEST(second[0].second.recipe.empty());
  BOOST_TEST(second[0].second.number == 2U);
  BOOST_TEST(decode_journal(second[0].second.journal)->losses.size() == 2U);
  x.on_kept(n1, 2);
  BOOST_TEST(x.take_credits() == 0U);
  x.on_kept(n2, 1);  // an old answer
  BOOST_TEST(x.take_credits() == 0U);
  x.on_kept(n2, 2);
  BOOST_TEST(x.take_credits() == 2U);
  BOOST_TEST(x.take_credits() == 0U);
}

BOOST_AUTO_TEST_CASE(JU_1_without_successors_or_recipe_a_loss_is_given_back_at_once) {
  auto x = on();
  x.on_loss({0, 0, 1}, true);
  BOOST_TEST(x.take(state(), 0).empty());
  BOOST_TEST(x.take_credits() == 1U);
  troupe::job_succession off(job_id{7}, nullptr, {});
  off.choose({n1});
  off.on_loss({0, 0, 1}, true);
  BOOST_TEST(off.successors().empty());
  BOOST_TEST(off.take(state(), 0).empty());
}

BOOST_AUTO_TEST_CASE(JU_1_a_successor_that_is_gone_holds_no_loss_up) {
  auto x = on();
  x.choose({n1, n2});
  x.on_loss({0, 0, 1}, true);
  (void)x.take(state(), 0);
  x.on_kept(n1, 1);
  BOOST_TEST(x.take_credits() == 0U);
  x.choose({n1});
  BOOST_TEST(x.take_credits() == 1U);
}

BOOST_AUTO_TEST_CASE(JU_2_a_new_successor_gets_the_recipe_and_all_losses) {
  auto x = on(3);
  x.choose({n1});
  x.on_loss({3, 0, 1}, true);
  (void)x.take(state(), 0);
  x.on_kept(n1, 1);
  x.choose({n1, n2});
  x.on_loss({4, 0, 1}, true);
  const auto sent = x.take(state(), 0);
  BOOST_TEST_REQUIRE(sent.size() == 2U);
  BOOST_TEST((sent[0].first == n1));
  BOOST_TEST(sent[0].second.recipe.empty());
  BOOST_TEST(decode_journal(sent[0].second.journal)->losses.size() == 1U);
  BOOST_TEST(!sent[1].second.recipe.empty());
  const auto all = decode_journal(sent[1].second.journal);
  BOOST_TEST(all->losses.size() == 5U);
  BOOST_TEST((all->successors == std::vector{n1, n2}));
}

// One that an epoch makes again is no news, but its credit goes back.
BOOST_AUTO_TEST_CASE(JU_1_a_loss_that_was_made_again_is_not_kept_twice) {
  auto x = on(2);
  x.choose({n1});
  x.on_loss({1, 0, 1}, false);
  const auto sent = x.take(state(), 0);
  BOOST_TEST(decode_journal(sent.at(0).second.journal)->losses.size() == 2U);
  x.on_kept(n1, 1);
  BOOST_TEST(x.take_credits() == 1U);
}

BOOST_AUTO_TEST_CASE(who_has_the_recipe_stays_a_successor_and_who_goes_is_told) {
  auto x = on();
  x.choose({n2});
  (void)x.take(state(), 0);
  x.on_kept(n2, 1);
  x.choose({n1, n2, n3});  // by age
  BOOST_TEST((x.successors() == std::vector{n2, n1}));
  (void)x.take(state(), 0);
  x.on_kept(n2, 2), x.on_kept(n1, 2);
  x.choose({n1});
  const auto sent = x.take(state(), 0);
  BOOST_TEST_REQUIRE(sent.size() == 2U);
  BOOST_TEST((sent[0].first == n2));
  BOOST_TEST(sent[0].second.recipe.empty());
  BOOST_TEST(sent[0].second.journal.empty());
  const auto last = x.dismiss(3);
  BOOST_TEST_REQUIRE(last.size() == 1U);
  BOOST_TEST((last[0].first == n1));
}

BOOST_AUTO_TEST_CASE(a_successor_that_does_not_answer_is_mute_after_a_while) {
  auto x = on();
  x.choose({n1, n2});
  (void)x.take(state(), 1 * s);
  x.on_kept(n2, 1);
  BOOST_TEST(x.mute(2 * s).empty());
  BOOST_TEST((x.mute(7 * s) == std::vector{n1}));
}

BOOST_AUTO_TEST_CASE(who_the_job_goes_to_has_all_when_nothing_is_new) {
  auto x = on();
  x.choose({n1}, n3);
  x.choose({n1}, n3);  // nothing new
  BOOST_TEST(!x.has_all(n3));
  BOOST_TEST(x.take(state(), 0).size() == 2U);
  BOOST_TEST(!x.has_all(n3));
  x.on_kept(n3, 1);
  BOOST_TEST(x.has_all(n3));
  x.on_loss({0, 0, 1}, true);
  BOOST_TEST(!x.has_all(n3));
}

BOOST_AUTO_TEST_SUITE_END()
