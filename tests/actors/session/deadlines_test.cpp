// Deadlines of any size: the longest duration is none, and one below 0 is over at once.

#include "troupe/actors/base/deadline.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <ratio>
#include <string_view>
#include <utility>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr auto longest = std::chrono::milliseconds::max();
constexpr auto shortest = std::chrono::milliseconds::min();
const std::pair<std::string_view, tensor> two_numbers[] = {{"x", tensor::of({1, 2}, {2})}};

struct own_session {
  std::unique_ptr<session> s = std::move(*session::open({.gpus = "none", .timeout = longest}));
  graph g{s->ops()};
  value x = input(g, {dtype::f32, {2}}, "x");
};

}  // namespace

BOOST_AUTO_TEST_SUITE(deadlines)

BOOST_AUTO_TEST_CASE(a_deadline_of_any_duration_is_a_time_that_the_clock_can_tell) {
  BOOST_TEST(!deadline(longest).is_over());
  BOOST_TEST((deadline(longest).left() > wait_max - 1h));
  BOOST_TEST((deadline(longest).left() <= wait_max));
  for (const auto d : {shortest, -1ms, 0ms}) {
    BOOST_TEST(deadline(d).is_over());
    BOOST_TEST((deadline(d).left() == 0ms));
  }
  BOOST_TEST((deadline(1h).left() > 59min));
}

BOOST_AUTO_TEST_CASE(durations_of_stages_are_bounded) {
  static_assert(nanoseconds_of(5ms).ns == 5'000'000);
  static_assert(nanoseconds_of(2h).ns == 7'200'000'000'000);
  static_assert(nanoseconds_of(std::chrono::duration<double>(0.5)).ns == 500'000'000);
  constexpr auto most = nanoseconds_of(longest).ns;
  static_assert(most > 0 && most < std::numeric_limits<std::int64_t>::max() / 2);
  static_assert(nanoseconds_of(std::chrono::hours::max()).ns == most);
  static_assert(nanoseconds_of(shortest).ns == -most);
  BOOST_TEST(most > 0);
}

BOOST_FIXTURE_TEST_CASE(steps_wait_as_long_as_it_takes_or_not_at_all, own_session) {
  auto steps = std::move(*s->compile(g, std::array{relu(x)}));
  BOOST_TEST(bool(steps->step(two_numbers, longest)));
  BOOST_TEST(bool(steps->feed("x", two_numbers[0].second)));
  BOOST_TEST(bool(steps->fetch(longest)));
  const auto late = steps->step(two_numbers, shortest);
  BOOST_TEST((late || late.error().code() == error_code::timed_out));
  BOOST_TEST(bool(steps->step(two_numbers, longest)));
}

BOOST_FIXTURE_TEST_CASE(runs_wait_as_long_as_it_takes_or_not_at_all, own_session) {
  named(relu(x), "y");
  auto runs = s->runner(g);
  const std::array fetches{std::string_view("y")};
  BOOST_TEST(bool(runs->run(two_numbers, fetches, longest)));
  const auto late = runs->run(two_numbers, fetches, shortest);
  BOOST_TEST((late || late.error().code() == error_code::timed_out));
  BOOST_TEST(bool(runs->run(two_numbers, fetches, longest)));
}

BOOST_FIXTURE_TEST_CASE(trainings_and_feeders_wait_as_long_as_it_takes_or_not_at_all, own_session) {
  const auto v = variable(g, {dtype::f32, {2}}, zeros(), "v");
  auto run = std::move(*s->train(g, reduce_sum(square(v + x)), {.steps = 2, .is_fed = true}));
  using enum training_event::kind;
  const auto first = run->next(longest);
  BOOST_TEST_REQUIRE((first && first->type == started));
  BOOST_TEST((run->next(shortest)->type == none));
  auto fed = std::move(*run->make_feeder(0));
  BOOST_TEST(bool(fed->feed(two_numbers, longest)));
  BOOST_TEST((run->next(longest)->type == loss));
  BOOST_TEST(bool(fed->feed(two_numbers, longest)));
  for (auto e = run->next(longest); e; e = run->next(longest)) BOOST_TEST((e->type != none));
}

BOOST_AUTO_TEST_CASE(a_lease_of_any_size_is_refused_in_words) {
  for (const auto lease : {longest, shortest}) {
    const auto refused = session::open({.gpus = "none", .lease = lease});
    BOOST_TEST_REQUIRE(!refused);
    BOOST_TEST(refused.error().text().find("it is from 1 s to 1 h") != std::string::npos,
               refused.error().text());
  }
}

BOOST_AUTO_TEST_SUITE_END()
