#include "troupe/devices/host/initial_values.hpp"
#include "troupe/devices/host/sgd.hpp"

#include "troupe/devices/host/host_device.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <vector>

using namespace troupe;

namespace {

std::vector<float> numbers(std::size_t n, unsigned seed) {
  std::vector<float> v(n);
  uniform_init(v, seed, "numbers", 2);
  return v;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sgd)

BOOST_AUTO_TEST_CASE(a_step_is_that_of_its_formula_for_any_number_of_gradients) {
  for (const std::size_t n : {1U, 7U, 8U, 1023U, 1024U, 3000U})
    for (const std::size_t workers : {0U, 1U, 2U, 3U, 4U, 5U, 9U}) {
      const auto w = numbers(n, 1), v = numbers(n, 2);
      std::vector<std::vector<float>> gradients;
      std::vector<const float*> pointers;
      for (std::size_t k = 0; k < workers; ++k)
        gradients.push_back(numbers(n, static_cast<unsigned>(10 + k)));
      for (const auto& g : gradients) pointers.push_back(g.data());
      auto velocity = v;
      std::vector<float> out(n);
      sgd_momentum(w.data(), out.data(), velocity.data(), pointers, n, 0.05F, 0.9F);
      for (std::size_t i = 0; i < n; ++i) {
        float g = workers > 0 ? gradients[0][i] : 0.0F;
        for (std::size_t k = 1; k < workers; ++k) g = g + gradients[k][i];
        const float expected = 0.9F * v[i] + g;
        BOOST_REQUIRE_EQUAL(velocity[i], expected);
        BOOST_REQUIRE_EQUAL(out[i], w[i] - 0.05F * expected);
      }
    }
}

BOOST_AUTO_TEST_CASE(a_step_in_place_gives_the_same_bits) {
  const auto w = numbers(1001, 1), v = numbers(1001, 2), g = numbers(1001, 3);
  const std::vector<const float*> gradients{g.data()};
  auto in_place = w, velocity = v, velocity_too = v;
  std::vector<float> out(w.size());
  sgd_momentum(w.data(), out.data(), velocity.data(), gradients, w.size(), 0.05F, 0.9F);
  sgd_momentum(in_place.data(), in_place.data(), velocity_too.data(), gradients, w.size(), 0.05F,
               0.9F);
  BOOST_TEST(in_place == out);
  BOOST_TEST(velocity == velocity_too);
}

BOOST_AUTO_TEST_CASE(the_momentum_of_a_dead_unit_becomes_zero) {
  set_up_kernel_thread();
  const std::size_t n = 37;  // vector body and tail
  std::vector<float> w(n, 1.0F), v(n, 1e-37F), g(n, 0.0F), out(n);
  const std::vector<const float*> pointers{g.data()};
  for (int step = 0; step < 40; ++step)
    sgd_momentum(w.data(), out.data(), v.data(), pointers, n, 0.05F, 0.9F);
  for (const auto x : v) BOOST_REQUIRE_EQUAL(std::signbit(x) ? 1.0F : x, 0.0F);
}

BOOST_AUTO_TEST_CASE(K_2_a_part_of_a_variable_is_updated_as_in_the_whole) {
  const auto w = numbers(100, 1), v = numbers(100, 2), g = numbers(100, 3), h = numbers(100, 4);
  auto velocity = v, velocity_too = v;
  std::vector<float> whole(100), parts(100);
  sgd_momentum(w.data(), whole.data(), velocity.data(), std::vector{g.data(), h.data()}, 100, 0.05F,
               0.9F);
  for (std::size_t i = 0; i < 100; i += 7)
    sgd_momentum(w.data() + i, parts.data() + i, velocity_too.data() + i,
                 std::vector{g.data() + i, h.data() + i}, std::min<std::size_t>(7, 100 - i), 0.05F,
                 0.9F);
  BOOST_TEST(whole == parts);
  BOOST_TEST(velocity == velocity_too);
}

BOOST_AUTO_TEST_CASE(initial_values_are_a_pure_function_of_seed_name_and_element) {
  std::vector<float> whole(1000), again(1000), part(100), other(1000), renamed(1000);
  uniform_init(whole, 1, "dense/w", 0.25);
  uniform_init(again, 1, "dense/w", 0.25);
  uniform_init(part, 1, "dense/w", 0.25, 437);
  uniform_init(other, 2, "dense/w", 0.25);
  uniform_init(renamed, 1, "dense/b", 0.25);
  BOOST_TEST(whole == again);
  BOOST_TEST(std::memcmp(part.data(), whole.data() + 437, 400) == 0);
  BOOST_TEST(whole != other);
  BOOST_TEST(whole != renamed);
}

BOOST_AUTO_TEST_CASE(initial_values_are_uniform_within_their_limit) {
  std::vector<float> x(1'000'000);
  uniform_init(x, 7, "x", 0.5);
  double sum = 0, squares = 0;
  std::vector<int> tenths(10);
  for (const float v : x) {
    BOOST_REQUIRE(v >= -0.5F);
    BOOST_REQUIRE(v < 0.5F);
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
    ++tenths[static_cast<std::size_t>((v + 0.5F) * 10.0F)];
  }
  BOOST_TEST(std::abs(sum / 1e6) < 1.2e-3);  // four standard deviations
  BOOST_TEST(std::abs(squares / 1e6 - 1.0 / 12) < 4e-4);
  for (const int n : tenths) BOOST_TEST(std::abs(n - 100'000) < 1300);
}

BOOST_AUTO_TEST_CASE(zeros_are_zeros) {
  std::vector<float> x(10, 1.0F);
  zeros_init(x);
  BOOST_TEST(x == std::vector<float>(10, 0.0F));
}

BOOST_AUTO_TEST_SUITE_END()
