#include "tests/devices/kernel_harness.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

using namespace troupe;
using namespace troupe::test;

namespace {

attributes over(std::vector<std::int64_t> axes) { return {{"axes", std::move(axes)}}; }

}  // namespace

BOOST_AUTO_TEST_SUITE(reductions)

BOOST_AUTO_TEST_CASE(rows_are_summed_one_after_the_other_for_any_width) {
  kernel_harness host;
  for (const std::int64_t columns : {2L, 10L, 63L, 64L, 65L, 128L, 200L}) {
    const auto x = random_tensor({37, columns}, static_cast<unsigned>(columns));
    std::vector<float> expected(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < 37; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        expected[static_cast<std::size_t>(c)] += x.data<float>()[r * columns + c];
    BOOST_TEST(values_of(host.one("reduce_sum", {x}, f32({columns}), over({0}))) == expected);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_over_everything_is_close_to_that_in_double_precision) {
  kernel_harness host;
  for (const std::int64_t n : {1L, 15L, 16L, 17L, 1000L}) {
    const auto x = random_tensor({n}, static_cast<unsigned>(n), 0, 1);
    double expected = 0;
    for (const float v : values_of(x)) expected += static_cast<double>(v);
    BOOST_TEST(std::abs(static_cast<double>(host.one("reduce_sum", {x}, f32({})).data<float>()[0]) -
                        expected) < 1e-6 * expected + 1e-7);
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
  BOOST_TEST(values_of(host.one("broadcast_like", {tensor::of({1, 2, 3}, {3}), like},
                                like.spec())) == (std::vector<float>{1, 2, 3, 1, 2, 3}));
  BOOST_TEST(equal_bits(host.one("broadcast_like", {like, like}, like.spec()), like));
  BOOST_TEST(!host.run("broadcast_like", {tensor::of({1, 2}, {2}), like}, {like.spec()}));
}

// Whole numbers below 2^24 add up exactly in any order.
BOOST_AUTO_TEST_CASE(any_axes_of_any_shape_agree_with_a_plain_loop) {
  kernel_harness host;
  std::mt19937 bits(23);
  for (int trial = 0; trial < 300; ++trial) {
    const auto rank = bits() % 6;
    std::array<dim, shape::rank_max> dims{}, kept{};
    std::vector<std::int64_t> axes;
    std::size_t kept_rank = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      dims[i] = {static_cast<std::int64_t>(trial % 50 == 0 && i == 0   ? 5000
                                           : trial % 50 == 1 && i == 0 ? 0
                                                                       : bits() % 5 + 1),
                 0};
      if (bits() % 2 == 0)
        axes.push_back(bits() % 2 == 0
                           ? static_cast<std::int64_t>(i)
                           : static_cast<std::int64_t>(i) - static_cast<std::int64_t>(rank));
      else
        kept[kept_rank++] = dims[i];
    }
    if (axes.empty()) kept_rank = 0;  // all
    const auto x_shape = *shape::from(std::span(dims).first(rank)),
               out_shape = *shape::from(std::span(kept).first(kept_rank));
    auto x = tensor::make({dtype::f32, x_shape});
    for (std::int64_t i = 0; i < x.elements(); ++i)
      x.data<float>()[i] = static_cast<float>(bits() % 100) - 50;
    std::vector<float> sums(static_cast<std::size_t>(out_shape.elements())),
        largest(sums.size(), -INFINITY), least(sums.size(), INFINITY);
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      std::int64_t rest = i, step = 1;
      std::size_t at = 0;
      for (std::size_t d = rank; d-- > 0;) {
        const auto position = rest % x_shape.size(d);
        rest /= x_shape.size(d);
        const auto signed_axis = static_cast<std::int64_t>(d);
        const bool is_reduced =
            axes.empty() || std::find(axes.begin(), axes.end(), signed_axis) != axes.end() ||
            std::find(axes.begin(), axes.end(), signed_axis - static_cast<std::int64_t>(rank)) !=
                axes.end();
        if (is_reduced) continue;
        at += static_cast<std::size_t>(position * step);
        step *= x_shape.size(d);
      }
      const float v = x.data<float>()[i];
      sums[at] += v;
      largest[at] = std::max(largest[at], v);
      least[at] = std::min(least[at], v);
    }
    const attributes attrs = axes.empty() ? attributes{} : over(axes);
    BOOST_TEST_CONTEXT(to_string(x_shape) << " to " << to_string(out_shape)) {
      BOOST_TEST(values_of(host.one("reduce_sum", {x}, {dtype::f32, out_shape}, attrs)) == sums);
      BOOST_TEST(values_of(host.one("reduce_max", {x}, {dtype::f32, out_shape}, attrs)) == largest);
      BOOST_TEST(values_of(host.one("reduce_min", {x}, {dtype::f32, out_shape}, attrs)) == least);
    }
  }
}

// All errors in one direction: those of 256 additions remain.
BOOST_AUTO_TEST_CASE(a_long_sum_keeps_its_last_digits) {
  kernel_harness host;
  for (const bool by_rows : {false, true}) {
    auto x = tensor::make(by_rows ? f32({1'000'000, 1}) : f32({1'000'000}));
    std::fill_n(x.data<float>(), x.elements(), 0.1F);
    const auto sum = static_cast<double>(host.one("reduce_sum", {x}, f32({})).data<float>()[0]);
    BOOST_TEST(std::abs(sum - 100'000.001490116) < 0.3);
  }
  auto x = tensor::make(f32({1'000'000, 2}));
  std::fill_n(x.data<float>(), x.elements(), 0.1F);
  for (const float sum : values_of(host.one("reduce_sum", {x}, f32({2}), over({0}))))
    BOOST_TEST(std::abs(static_cast<double>(sum) - 100'000.001490116) < 0.3);
}

BOOST_AUTO_TEST_CASE(a_NaN_is_the_largest_and_the_smallest) {
  kernel_harness host;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto* op : {"reduce_max", "reduce_min", "reduce_sum"})
    for (std::size_t at = 0; at < 40; ++at) {
      auto x = random_tensor({40}, 3);
      x.data<float>()[at] = nan;
      BOOST_TEST(std::isnan(host.one(op, {x}, f32({})).data<float>()[0]),
                 op << " with NaN at " << at);
    }
}

BOOST_AUTO_TEST_CASE(truth_values_are_joined_by_any_and_all) {
  kernel_harness host;
  const auto x = tensor_of<std::uint8_t>({0, 1, 0, 1, 0, 0}, {2, 3}, dtype::boolean);
  using bytes = std::vector<std::uint8_t>;
  BOOST_TEST(values_of<std::uint8_t>(host.one("reduce_any", {x}, {dtype::boolean, {3}},
                                              over({0}))) == (bytes{1, 1, 0}));
  BOOST_TEST(values_of<std::uint8_t>(
                 host.one("reduce_all", {x}, {dtype::boolean, {2}}, over({1}))) == (bytes{0, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("reduce_all", {tensor::make({dtype::boolean, {0}})},
                                              {dtype::boolean, {}})) == bytes{1});
}

BOOST_AUTO_TEST_CASE(argmax_and_argmin_go_along_any_axis) {
  kernel_harness host;
  const auto x = tensor::of({1, 5, 3, 4, 2, 6}, {2, 3});
  using ints = std::vector<std::int32_t>;
  const auto along = [](std::int64_t axis) { return attributes{{"axis", axis}}; };
  BOOST_TEST(values_of<std::int32_t>(host.one("argmax", {x}, {dtype::i32, {3}}, along(0))) ==
             (ints{1, 0, 1}));
  BOOST_TEST(values_of<std::int32_t>(host.one("argmin", {x}, {dtype::i32, {2}}, along(-1))) ==
             (ints{0, 1}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(values_of<std::int32_t>(host.one("argmax", {tensor::of({nan, 1, 2}, {1, 3})},
                                              {dtype::i32, {1}})) == ints{2});
}

BOOST_AUTO_TEST_CASE(argmax_takes_the_first_of_equals) {
  kernel_harness host;
  const auto x = tensor::of({1, 3, 3, -1, -2, -1}, {2, 3});
  BOOST_TEST(values_of<std::int32_t>(host.one("argmax", {x}, {dtype::i32, {2}})) ==
             (std::vector<std::int32_t>{1, 0}));
}

BOOST_AUTO_TEST_CASE(rows_whose_largest_logit_is_the_label_are_counted) {
  kernel_harness host;
  const auto x = tensor::of({1, 3, 0, 9, -2, -1, 0, 0, 5}, {3, 3});
  const auto labels = tensor_of<std::int32_t>({1, 2, 2}, {3}, dtype::i32);
  BOOST_TEST(host.one("count_correct", {x, labels}, {dtype::i64, {}}).data<std::int64_t>()[0] == 2);
}

BOOST_AUTO_TEST_CASE(a_constant_fills_its_output) {
  kernel_harness host;
  BOOST_TEST(values_of(host.one("constant", {}, f32({}), {{"value", 0.5}})) ==
             std::vector<float>{0.5F});
}

BOOST_AUTO_TEST_CASE(K_3_nothing_sums_to_zero) {
  kernel_harness host;
  BOOST_TEST(values_of(host.one("reduce_sum", {random_tensor({0, 3}, 1)}, f32({3}), over({0}))) ==
             std::vector<float>(3, 0.0F));
  BOOST_TEST(host.one("reduce_sum", {random_tensor({3, 0}, 1)}, f32({0}), over({0})).elements() ==
             0);
  BOOST_TEST(host.one("reduce_sum", {random_tensor({0, 3}, 1)}, f32({})).data<float>()[0] == 0.0F);
  BOOST_TEST(host.one("argmax", {random_tensor({0, 3}, 1)}, {dtype::i32, {0}}).elements() == 0);
  const auto none = tensor::make({dtype::i32, {0}});
  BOOST_TEST(host.one("count_correct", {random_tensor({0, 3}, 1), none}, {dtype::i64, {}})
                 .data<std::int64_t>()[0] == 0);
}

BOOST_AUTO_TEST_CASE(shapes_that_no_reduction_takes_are_errors) {
  kernel_harness host;
  BOOST_TEST(!host.run("reduce_sum", {random_tensor({2, 3}, 1)}, {f32({2})}, over({0})));
  BOOST_TEST(!host.run("reduce_sum", {random_tensor({2, 3}, 1)}, {f32({2})}));
  BOOST_TEST(!host.run("reduce_sum", {tensor::make({dtype::u8, {3}})}, {{dtype::u8, {}}}));
  BOOST_TEST(!host.run("argmax", {random_tensor({2, 0}, 1)}, {{dtype::i32, {2}}}));
  BOOST_TEST(!host.run("argmax", {random_tensor({2, 3}, 1)}, {{dtype::i64, {2}}}));
  BOOST_TEST(!host.run("count_correct", {random_tensor({2, 3}, 1), random_tensor({2}, 1)},
                       {{dtype::i64, {}}}));
}

BOOST_AUTO_TEST_SUITE_END()
