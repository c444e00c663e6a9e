#include "troupe/devices/host/loops/vector_math.hpp"

#include <boost/test/unit_test.hpp>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace math = troupe::vector_math;

namespace {

// Distance from the exact value in units of the last place of a float of that size.
double ulps(float got, double exact) {
  if (std::isinf(got) && exact > static_cast<double>(std::numeric_limits<float>::max())) return 0;
  const double size =
      std::max(std::abs(exact), static_cast<double>(std::numeric_limits<float>::min()));
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::ilogb(size) - 23);
}

// The worst error over floats of one sign, every `stride`th of all there are.
template <class F, class E>
double worst_ulps(float from, float to, std::uint32_t stride, F f, E exact) {
  double worst = 0;
  const auto last = std::bit_cast<std::uint32_t>(to);
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(from); bits <= last; bits += stride) {
    const float x = std::bit_cast<float>(bits);
    worst = std::max(worst, ulps(f(x), exact(static_cast<double>(x))));
  }
  return worst;
}

}  // namespace

// Other suites of this binary make their thread one of kernels, on which denormal results are zero.
struct plain_arithmetic {
  plain_arithmetic() { std::fesetenv(FE_DFL_ENV); }
};

BOOST_FIXTURE_TEST_SUITE(vector_math, plain_arithmetic)

BOOST_AUTO_TEST_CASE(exp_is_within_two_units_of_the_last_place) {
  BOOST_TEST(worst_ulps(0.0F, 100.0F, 499, math::exp, [](double x) { return std::exp(x); }) <= 2.0);
  BOOST_TEST(worst_ulps(-0.0F, -110.0F, 499, math::exp, [](double x) { return std::exp(x); }) <=
             2.0);
}

BOOST_AUTO_TEST_CASE(log_is_within_two_units_of_the_last_place) {
  BOOST_TEST(worst_ulps(1e-37F, 3e38F, 997, math::log, [](double x) { return std::log(x); }) <=
             2.0);
}

BOOST_AUTO_TEST_CASE(tanh_and_the_logistic_function_are_within_three_units_of_the_last_place) {
  for (const float sign : {1.0F, -1.0F}) {
    BOOST_TEST(worst_ulps(sign * 0.0F, sign * 30.0F, 997, math::tanh,
                          [](double x) { return std::tanh(x); }) <= 3.0);
    BOOST_TEST(worst_ulps(sign * 0.0F, sign * 80.0F, 997, math::sigmoid,
                          [](double x) { return 1 / (1 + std::exp(-x)); }) <= 3.0);
  }
}

BOOST_AUTO_TEST_CASE(the_ends_of_the_range_are_right) {
  constexpr float infinity = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(math::exp(0.0F) == 1.0F);
  BOOST_TEST(math::exp(infinity) == infinity);
  BOOST_TEST(math::exp(-infinity) == 0.0F);
  BOOST_TEST(math::exp(88.72F) < infinity);
  BOOST_TEST(std::isnan(math::exp(nan)));
  BOOST_TEST(math::log(1.0F) == 0.0F);
  BOOST_TEST(math::tanh(infinity) == 1.0F);
  BOOST_TEST(math::tanh(-infinity) == -1.0F);
  BOOST_TEST(std::isnan(math::tanh(nan)));
  BOOST_TEST(math::sigmoid(-infinity) == 0.0F);
}

BOOST_AUTO_TEST_CASE(K_2_a_vectorised_loop_gives_the_bits_of_a_single_call) {
  std::vector<float> x(1003), y(x.size()), z(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<float>(i) - 500.0F) * 0.213F;
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = math::exp(x[i]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    volatile float one = x[i];
    z[i] = math::exp(one);
  }
  BOOST_TEST(std::memcmp(y.data(), z.data(), y.size() * sizeof(float)) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
