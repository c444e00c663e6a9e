#include "troupe/devices/host/loops/combine.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace troupe;

namespace {

template <class T>
std::vector<T> combined(combine_kind kind, dtype type, const std::vector<std::vector<T>>& all,
                        std::size_t in_place = 99) {
  auto copies = all;
  std::vector<T> fresh(all[0].size());
  auto& out = in_place < copies.size() ? copies[in_place] : fresh;
  std::vector<const std::byte*> operands;
  for (const auto& c : copies) operands.push_back(reinterpret_cast<const std::byte*>(c.data()));
  combine(kind, type, reinterpret_cast<std::byte*>(out.data()), operands, out.size());
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(combining)

BOOST_AUTO_TEST_CASE(CB_1_CB_2_adds_from_left_to_right_also_in_place) {
  std::minstd_rand random(3);
  for (std::size_t count = 1; count <= 6; ++count)
    for (const std::size_t n : {0UL, 1UL, 7UL, 511UL, 512UL, 513UL, 3001UL}) {
      std::vector<std::vector<float>> all(count, std::vector<float>(n));
      for (auto& a : all)
        for (auto& x : a) x = static_cast<float>(random()) / 1e7F - 100;
      std::vector<float> wanted = all[0];
      for (std::size_t k = 1; k < count; ++k)
        for (std::size_t i = 0; i < n; ++i) wanted[i] = wanted[i] + all[k][i];
      for (std::size_t in_place = 0; in_place <= count; ++in_place) {
        const auto got = combined(combine_kind::sum, dtype::f32, all, in_place);
        for (std::size_t i = 0; i < n; ++i)
          BOOST_REQUIRE_EQUAL(std::bit_cast<std::uint32_t>(got[i]),
                              std::bit_cast<std::uint32_t>(wanted[i]));
      }
    }
}

BOOST_AUTO_TEST_CASE(CB_1_whole_numbers_wrap_around) {
  const auto most = std::numeric_limits<std::int32_t>::max();
  BOOST_TEST((combined<std::int32_t>(combine_kind::sum, dtype::i32, {{most, 5}, {1, 6}}) ==
              std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), 11}));
  BOOST_TEST((combined<std::int64_t>(combine_kind::max, dtype::i64, {{1, 9}, {4, 6}, {2, 2}}) ==
              std::vector<std::int64_t>{4, 9}));
}

BOOST_AUTO_TEST_CASE(CB_3_the_least_and_the_greatest_are_NaN_where_one_is) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto kind : {combine_kind::min, combine_kind::max})
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<std::vector<double>> all{{1}, {2}, {3}};
      all[at][0] = nan;
      BOOST_TEST(std::isnan(combined(kind, dtype::f64, all)[0]));
    }
  BOOST_TEST(combined<double>(combine_kind::min, dtype::f64, {{3, -1}, {2, 0}}) ==
                 (std::vector<double>{2, -1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(can_divide_floats) {
  std::array<float, 3> v{2, 4, 6};
  divide(dtype::f32, reinterpret_cast<std::byte*>(v.data()), v.size(), 2);
  BOOST_TEST(v == (std::array<float, 3>{1, 2, 3}), boost::test_tools::per_element());
  BOOST_TEST(can_combine(dtype::i64));
  BOOST_TEST(!can_combine(dtype::bf16));
}

BOOST_AUTO_TEST_SUITE_END()
