#include "tools/troupe-tool/near_names.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(near_names)

BOOST_AUTO_TEST_CASE(the_nearest_comes_first_and_far_ones_not_at_all) {
  const std::vector<std::string> names{"worker/1/matmul", "worker/0/matmul", "shard/0/w",
                                       "worker/0/matmul"};
  BOOST_TEST((troupe::near_names("worker/0/matmull", names) ==
              std::vector<std::string>{"worker/0/matmul", "worker/1/matmul"}));
  BOOST_TEST(troupe::near_names("banana", names).empty());
  BOOST_TEST(troupe::near_names("", names).empty());
}

BOOST_AUTO_TEST_CASE(a_part_of_a_name_finds_it) {
  const std::vector<std::string> names{"worker/0/dense_1/matmul", "worker/0/dense_2/matmul"};
  BOOST_TEST(troupe::near_names("dense_2", names).size() == 1u);
  BOOST_TEST(troupe::near_names("dense", names, 1).size() == 1u);
}

BOOST_AUTO_TEST_CASE(the_question_lists_what_is_near) {
  const std::vector<std::string> names{"n1", "n2", "n10"};
  BOOST_TEST(did_you_mean("n3", names) == "; did you mean n1 or n2?");
  BOOST_TEST(did_you_mean("x", names) == "");
}

BOOST_AUTO_TEST_SUITE_END()
