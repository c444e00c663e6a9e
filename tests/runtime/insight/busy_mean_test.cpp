#include "troupe/runtime/insight/busy_mean.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

constexpr std::uint64_t second = 50;  // of samples

}  // namespace

BOOST_AUTO_TEST_SUITE(busy_mean)

BOOST_AUTO_TEST_CASE(BM_1_it_follows_the_load_within_two_seconds_up_and_down) {
  troupe::busy_mean m;
  std::uint64_t now = 0;
  for (; now < 60 * second; ++now) m.add_busy(now + 1);
  BOOST_TEST(m.ratio(now) > 0.99);
  BOOST_TEST(m.ratio(now + 2 * second) < 0.15);  // a minute of work is forgotten
  BOOST_TEST(m.ratio(now + 10 * second) < 0.001);
  now += 60 * second;
  for (std::uint64_t i = 0; i < 2 * second; ++i) m.add_busy(++now);
  BOOST_TEST(m.ratio(now) > 0.85);
}

BOOST_AUTO_TEST_CASE(BM_1_a_steady_part_is_that_part) {
  troupe::busy_mean m;
  std::uint64_t now = 0;
  while (now < 20 * second)
    if (++now % 4 == 0) m.add_busy(now);
  BOOST_TEST(m.ratio(now) > 0.24);
  BOOST_TEST(m.ratio(now) < 0.26);
}

BOOST_AUTO_TEST_CASE(what_was_never_busy_is_idle) {
  BOOST_TEST(troupe::busy_mean().ratio(0) == 0.0);
  BOOST_TEST(troupe::busy_mean().ratio(1'000'000'000) == 0.0);
}

BOOST_AUTO_TEST_SUITE_END()
