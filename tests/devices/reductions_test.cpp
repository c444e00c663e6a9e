#include "tests/devices/kernel_harness.hpp"

#include <cmath>
#include <limits>

using namespace troupe;
using namespace troupe::test;

BOOST_AUTO_TEST_SUITE(reductions)

BOOST_AUTO_TEST_CASE(rows_are_summed_one_after_the_other_for_any_width) {
  kernel_harness host;
  for (const std::int64_t columns : {1L, 10L, 63L, 64L, 65L, 128L, 200L}) {
    const auto x = random_tensor({37, columns}, static_cast<unsigned>(columns));
    std::vector<float> expected(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < 37; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        expected[static_cast<std::size_t>(c)] += x.data<float>()[r * columns + c];
    BOOST_TEST(values_of(host.one("reduce_sum_rows", {x}, f32({columns}))) == expected);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_over_everything_is_close_to_that_in_double_precision) {
  kernel_harness host;
  for (const std::int64_t n : {1L, 15L, 16L, 17L, 1000L}) {
    const auto x = random_tensor({n}, static_cast<unsigned>(n), 0, 1);
    double expected = 0;
    for (const float v : values_of(x)) expected += static_cast<double>(v);
    BOOST_TEST(std::abs(static_cast<double>(host.one("reduce_sum", {x}, f32({})).data<float>()[0]) - expected) <
               1e-6 * expected + 1e-7);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_over_everything_has_the_order_that_the_header_tells) {
  kernel_harness host;
  const auto x = random_tensor({53}, 11, -1e6, 1e6);
  float sums[16] = {};
  for (std::int64_t i = 0; i < 53; ++i) sums[i % 16] += x.data<float>()[i];
  for (const std::size_t half : {8U, 4U, 2U, 1U})
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  BOOST_TEST(host.one("reduce_sum", {x}, f32({})).data<float>()[0] == sums[0]);
}

BOOST_AUTO_TEST_CASE(a_scalar_and_a_row_are_spread_over_the_shape_of_another) {
  kernel_harness host;
  const auto like = random_tensor({2, 3}, 1);
  BOOST_TEST(values_of(host.one("broadcast_like", {tensor::of({7}, {}), like}, like.spec())) ==
             std::vector<float>(6, 7.0F));
  BOOST_TEST(values_of(host.one("broadcast_like", {tensor::of({1, 2, 3}, {3}), like}, like.spec())) ==
             (std::vector<float>{1, 2, 3, 1, 2, 3}));
  BOOST_TEST(equal_bits(host.one("broadcast_like", {like, like}, like.spec()), like));
  BOOST_TEST(!host.run("broadcast_like", {tensor::of({1, 2}, {2}), like}, {like.spec()}));
}

BOOST_AUTO_TEST_CASE(argmax_takes_the_first_of_equals) {
  kernel_harness host;
  const auto x = tensor::of({1, 3, 3, -1, -2, -1}, {2, 3});
  BOOST_TEST(values_of<std::int32_t>(host.one("argmax", {x}, {dtype::i32, {2}})) == (std::vector<std::int32_t>{1, 0}));
}

BOOST_AUTO_TEST_CASE(rows_whose_largest_logit_is_the_label_are_counted) {
  kernel_harness host;
  const auto x = tensor::of({1, 3, 0, 9, -2, -1, 0, 0, 5}, {3, 3});
  const auto labels = tensor_of<std::int32_t>({1, 2, 2}, {3}, dtype::i32);
  BOOST_TEST(host.one("count_correct", {x, labels}, {dtype::i64, {}}).data<std::int64_t>()[0] == 2);
}

BOOST_AUTO_TEST_CASE(a_constant_fills_its_output) {
  kernel_harness host;
  BOOST_TEST(values_of(host.one("constant", {}, f32({}), {{"value", 0.5}})) == std::vector<float>{0.5F});
}

BOOST_AUTO_TEST_CASE(K_3_nothing_sums_to_zero) {
  kernel_harness host;
  BOOST_TEST(values_of(host.one("reduce_sum_rows", {random_tensor({0, 3}, 1)}, f32({3}))) ==
             std::vector<float>(3, 0.0F));
  BOOST_TEST(host.one("reduce_sum_rows", {random_tensor({3, 0}, 1)}, f32({0})).elements() == 0);
  BOOST_TEST(host.one("reduce_sum", {random_tensor({0, 3}, 1)}, f32({})).data<float>()[0] == 0.0F);
  BOOST_TEST(host.one("argmax", {random_tensor({0, 3}, 1)}, {dtype::i32, {0}}).elements() == 0);
  const auto none = tensor::make({dtype::i32, {0}});
  BOOST_TEST(host.one("count_correct", {random_tensor({0, 3}, 1), none}, {dtype::i64, {}}).data<std::int64_t>()[0] ==
             0);
}

BOOST_AUTO_TEST_CASE(shapes_that_no_reduction_takes_are_errors) {
  kernel_harness host;
  BOOST_TEST(!host.run("reduce_sum_rows", {random_tensor({3}, 1)}, {f32({3})}));
  BOOST_TEST(!host.run("reduce_sum_rows", {random_tensor({2, 3}, 1)}, {f32({2})}));
  BOOST_TEST(!host.run("reduce_sum", {random_tensor({2, 3}, 1)}, {f32({1})}));
  BOOST_TEST(!host.run("argmax", {random_tensor({2, 0}, 1)}, {{dtype::i32, {2}}}));
  BOOST_TEST(!host.run("argmax", {random_tensor({2, 3}, 1)}, {{dtype::i64, {2}}}));
  BOOST_TEST(!host.run("count_correct", {random_tensor({2, 3}, 1), random_tensor({2}, 1)}, {{dtype::i64, {}}}));
  BOOST_TEST(!host.run("constant", {}, {{dtype::f64, {}}}));
}

BOOST_AUTO_TEST_SUITE_END()
