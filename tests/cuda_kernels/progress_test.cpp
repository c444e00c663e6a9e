#include "troupe/devices/cuda/progress.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe::cuda;

BOOST_AUTO_TEST_SUITE(progress)

BOOST_AUTO_TEST_CASE(PR_1_one_op_is_named_and_of_several_the_first_and_the_last) {
  troupe::cuda::progress p;
  BOOST_TEST(p.in_question().empty());
  const auto a = p.begin("a");
  BOOST_TEST(p.in_question() == "op a");
  const auto b = p.begin("b");
  p.begin("c");
  BOOST_TEST(p.in_question() == "one of 3 ops, from a to c");
  BOOST_TEST(p.in_question(true) == "op a");
  p.done(a);
  BOOST_TEST(p.in_question() == "one of 2 ops, from b to c");
  p.done(b);
  p.done(a);  // news may come late
  BOOST_TEST(p.in_question() == "op c");
  p.done(p.last());
  BOOST_TEST(p.in_question().empty());
}

BOOST_AUTO_TEST_CASE(names_that_are_long_gone_are_not_made_up) {
  troupe::cuda::progress p;
  p.begin("first");
  for (int i = 0; i < 5000; ++i) p.begin("later");
  BOOST_TEST(p.in_question() == "one of 5001 ops, from later to later");
}

BOOST_AUTO_TEST_SUITE_END()
