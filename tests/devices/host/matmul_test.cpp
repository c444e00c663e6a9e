#include "tests/devices/kernel_harness.hpp"

#include <cmath>

using namespace troupe;
using namespace troupe::test;

namespace {

attributes transposed(bool a, bool b) {
  return {{"transpose_a", std::int64_t{a}}, {"transpose_b", std::int64_t{b}}};
}

// op(a) [m, k] * op(b) [k, n] in f64.
std::vector<double> product(const tensor& a, const tensor& b, bool ta, bool tb, std::int64_t m,
                            std::int64_t n, std::int64_t k) {
  std::vector<double> c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            static_cast<double>(a.data<float>()[ta ? l * m + i : i * k + l]) *
            static_cast<double>(b.data<float>()[tb ? j * k + l : l * n + j]);
  return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(matmul)

BOOST_AUTO_TEST_CASE(products_agree_with_a_plain_loop_for_both_transpositions) {
  kernel_harness host;
  for (const auto& [m, n, k] :
       {std::tuple{1L, 10L, 128L}, {33L, 10L, 17L}, {16L, 64L, 100L}, {5L, 1L, 3L}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const auto a = ta ? random_tensor({k, m}, 1) : random_tensor({m, k}, 1);
        const auto b = tb ? random_tensor({n, k}, 2) : random_tensor({k, n}, 2);
        const auto c = host.one("matmul", {a, b}, f32({m, n}), transposed(ta, tb));
        const auto expected = product(a, b, ta, tb, m, n, k);
        for (std::int64_t i = 0; i < c.elements(); ++i)
          BOOST_TEST(std::abs(static_cast<double>(c.data<float>()[i]) -
                              expected[static_cast<std::size_t>(i)]) < 1e-4);
      }
}

BOOST_AUTO_TEST_CASE(one_kernel_may_alternate_between_batch_sizes) {
  kernel_harness host;
  auto k = host.make("matmul");
  const auto w = random_tensor({20, 7}, 3);
  for (const std::int64_t batch : {128L, 96L, 128L, 1L, 0L, 128L}) {
    const auto x = random_tensor({batch, 20}, 4);
    const auto y = kernel_harness::run(**k, {x, w}, {f32({batch, 7})});
    BOOST_REQUIRE(y);
    BOOST_TEST(equal_bits((*y)[0], host.one("matmul", {x, w}, f32({batch, 7}))));
  }
}

BOOST_AUTO_TEST_CASE(K_3_a_sum_over_nothing_is_zero) {
  kernel_harness host;
  BOOST_TEST(host.one("matmul", {random_tensor({0, 3}, 1), random_tensor({3, 4}, 2)}, f32({0, 4}))
                 .elements() == 0);
  const auto c =
      host.one("matmul", {random_tensor({2, 0}, 1), random_tensor({0, 2}, 2)}, f32({2, 2}));
  BOOST_TEST(values_of(c) == (std::vector<float>{0, 0, 0, 0}));
  // The gradient of the weights for an empty last batch.
  const auto dw = host.one("matmul", {random_tensor({0, 3}, 1), random_tensor({0, 2}, 2)},
                           f32({3, 2}), transposed(true, false));
  BOOST_TEST(values_of(dw) == std::vector<float>(6, 0.0F));
}

BOOST_AUTO_TEST_CASE(inner_dimensions_that_differ_are_an_error) {
  kernel_harness host;
  BOOST_TEST(
      !host.run("matmul", {random_tensor({2, 3}, 1), random_tensor({4, 5}, 2)}, {f32({2, 5})}));
  BOOST_TEST(
      !host.run("matmul", {random_tensor({2, 3}, 1), random_tensor({3, 5}, 2)}, {f32({2, 4})}));
  BOOST_TEST(!host.run("matmul", {random_tensor({3}, 1), random_tensor({3, 5}, 2)}, {f32({2, 5})}));
  BOOST_TEST(!host.run("matmul", {random_tensor({2, 3}, 1)}, {f32({2, 5})}));
}

BOOST_AUTO_TEST_SUITE_END()
