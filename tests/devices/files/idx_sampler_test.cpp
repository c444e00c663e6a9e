#include "troupe/devices/files/idx_sampler.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(idx_sampler)

BOOST_AUTO_TEST_CASE(IS_1_the_parts_cover_every_position_of_an_epoch_once) {
  for (std::uint64_t samples : {1U, 5U, 127U, 128U, 129U, 1000U})
    for (std::uint64_t batch : {1U, 7U, 64U, 128U})
      for (std::uint64_t parts : {1U, 2U, 3U, 5U}) {
        std::vector<int> seen(samples);
        const auto steps = idx_schedule{samples, batch, parts, 0}.steps_per_epoch();
        for (std::uint64_t step = 0; step < steps; ++step) {
          std::uint64_t together = 0;
          for (std::uint64_t part = 0; part < parts; ++part) {
            const auto r = idx_schedule{samples, batch, parts, part}.range(step + 3 * steps);
            BOOST_TEST_REQUIRE(r.epoch == 3U);
            BOOST_TEST_REQUIRE(r.count <= batch);  // IS-2
            for (auto i = r.first; i < r.first + r.count; ++i) ++seen.at(i);
            together += r.count;
            if (part + 1 == parts) BOOST_TEST_REQUIRE(together == r.global_count);
          }
        }
        BOOST_TEST_REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      }
}

BOOST_AUTO_TEST_CASE(one_part_of_128_reads_what_two_parts_of_64_read) {
  const auto whole = idx_schedule{1000, 128, 1, 0}.range(2);
  const auto left = idx_schedule{1000, 64, 2, 0}.range(2);
  const auto right = idx_schedule{1000, 64, 2, 1}.range(2);
  BOOST_TEST(left.first == whole.first);
  BOOST_TEST(right.first == left.first + left.count);
  BOOST_TEST(left.count + right.count == whole.count);
  BOOST_TEST(left.global_count == whole.global_count);
}

BOOST_AUTO_TEST_CASE(the_last_batch_is_smaller_and_may_leave_a_part_empty) {
  BOOST_TEST((idx_schedule{129, 128, 1, 0}.range(1) == idx_range{0, 128, 1, 1}));
  BOOST_TEST((idx_schedule{257, 128, 2, 0}.range(1) == idx_range{0, 256, 0, 1}));
  BOOST_TEST((idx_schedule{257, 128, 2, 1}.range(1) == idx_range{0, 256, 1, 1}));
}

BOOST_AUTO_TEST_CASE(IS_3_a_permutation_is_a_pure_function_with_known_values) {
  const auto order = permutation(1, 0, 60'000);
  BOOST_TEST((order == permutation(1, 0, 60'000)));
  BOOST_TEST((order != permutation(1, 1, 60'000)));
  BOOST_TEST((order != permutation(2, 0, 60'000)));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint32_t> all(60'000);
  std::iota(all.begin(), all.end(), 0U);
  BOOST_TEST((sorted == all));
  // Written down once: a change would change every training run's bits.
  const std::vector<std::uint32_t> known{7, 3, 0, 5, 2, 1, 4, 8, 9, 6};
  BOOST_TEST(permutation(7, 3, 10) == known, boost::test_tools::per_element());
  BOOST_TEST(permutation(1, 0, 0).empty());
  BOOST_TEST(permutation(1, 0, 1) == std::vector<std::uint32_t>{0},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(permutations_are_uniform) {
  // All 24 orders of 4 samples over 24,000 epochs: chi-square with 23 degrees of freedom stays
  // below 49.7 (p = 0.001).
  std::map<std::vector<std::uint32_t>, double> counts;
  for (std::uint64_t epoch = 0; epoch < 24'000; ++epoch) ++counts[permutation(5, epoch, 4)];
  BOOST_TEST(counts.size() == 24U);
  double chi_square = 0;
  for (const auto& [order, n] : counts) chi_square += (n - 1000) * (n - 1000) / 1000;
  BOOST_TEST(chi_square < 49.7);
}

BOOST_AUTO_TEST_SUITE_END()
