#include "troupe/devices/half.hpp"
#include "troupe/devices/tensor_text.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(tensor_text)

BOOST_AUTO_TEST_CASE(elements_are_nested_as_dimensions_are) {
  BOOST_TEST(to_string(tensor::of({1, 2, 3, 4, 5, -6.5F}, {2, 3})) ==
             "f32[2, 3] [[1, 2, 3], [4, 5, -6.5]]");
  BOOST_TEST(to_string(tensor::of({0.1F}, {})) == "f32[] 0.1");
  BOOST_TEST(to_string(tensor::of({NAN, INFINITY}, {1, 2, 1})) == "f32[1, 2, 1] [[[nan], [inf]]]");
  BOOST_TEST(to_string(tensor::make({dtype::i64, {2, 0}})) == "i64[2, 0] [[], []]");
  BOOST_TEST(to_string(tensor()) == "nothing");
  BOOST_TEST(
      to_string(tensor::of<boolean>(dtype::boolean, {2}, std::array<boolean, 2>{true, false})) ==
      "bool[2] [true, false]");
  BOOST_TEST(to_string(tensor::of<f16>(dtype::f16, {1}, std::array{to_f16(1.5F)})) ==
             "f16[1] [1.5]");
}

BOOST_AUTO_TEST_CASE(of_long_dimensions_the_ends_are_shown) {
  std::vector<std::int32_t> n(100);
  std::iota(n.begin(), n.end(), 0);
  const auto t = tensor::of<std::int32_t>(dtype::i32, {100}, n);
  BOOST_TEST(to_string(t) == "i32[100] [0, 1, 2, ..., 97, 98, 99]");
  BOOST_TEST(to_string(t, 1) == "i32[100] [0, ..., 99]");
  BOOST_TEST(to_string(t, 0) == "i32[100] [...]");
  BOOST_TEST(to_string(t, 50).find("...") == std::string::npos);
  BOOST_TEST(to_string(tensor::of<std::int32_t>(dtype::i32, {50, 2}, n), 1) ==
             "i32[50, 2] [[0, 1], ..., [98, 99]]");
}

BOOST_AUTO_TEST_SUITE_END()
