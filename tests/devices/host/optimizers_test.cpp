#include "troupe/devices/host/initial_values.hpp"
#include "troupe/devices/host/optimizers.hpp"

#include "troupe/devices/host/sgd.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace troupe;

namespace {

std::vector<float> numbers(std::size_t n, unsigned seed) {
  std::vector<float> v(n);
  uniform_init(v, seed, "numbers", 2);
  return v;
}

constexpr std::size_t tensors = 4;  // values and up to three slots

// One step of some optimizer: w, then its slots.
struct optimizer_case {
  std::string name;
  std::size_t slots;
  std::function<void(const std::vector<stepped>&, const gradient_sum&, std::size_t)> step;
};

std::vector<optimizer_case> all_cases() {
  std::vector<optimizer_case> all;
  for (const bool nesterov : {false, true})
    all.push_back(
        {nesterov ? "nesterov" : "sgd", 1, [nesterov](const auto& t, const auto& g, std::size_t n) {
           sgd_step(t[0], t[1], g, n,
                    {.learning_rate = 0.05F,
                     .momentum = 0.9F,
                     .weight_decay = 0.01F,
                     .nesterov = nesterov});
         }});
  for (const float new_first : {0.1F, 0.75F})
    all.push_back({"adam", 2, [new_first](const auto& t, const auto& g, std::size_t n) {
                     adam_step(t[0], t[1], t[2], g, n,
                               {.step_size = 0.01F,
                                .root_correction = 0.3F,
                                .new_first = new_first,
                                .beta2 = 0.99F,
                                .new_second = 0.01F,
                                .epsilon = 1e-8F,
                                .weight_decay = 0.01F,
                                .keep = 0.999F});
                   }});
  for (const bool is_centered : {false, true})
    for (const bool has_velocity : {false, true})
      all.push_back({"rmsprop", 3, [=](const auto& t, const auto& g, std::size_t n) {
                       rmsprop_step(t[0], t[1], has_velocity ? t[2] : stepped{},
                                    is_centered ? t[3] : stepped{}, g, n,
                                    {.learning_rate = 0.01F,
                                     .momentum = 0.9F,
                                     .alpha = 0.9F,
                                     .new_square = 0.1F,
                                     .epsilon = 1e-8F,
                                     .weight_decay = 0.01F});
                     }});
  all.push_back({"adagrad", 1, [](const auto& t, const auto& g, std::size_t n) {
                   adagrad_step(t[0], t[1], g, n,
                                {.learning_rate = 0.01F, .epsilon = 1e-10F, .weight_decay = 0.01F});
                 }});
  return all;
}

using memory = std::vector<std::vector<float>>;

// Slots are not negative, as sums of squares.
memory initial(std::size_t n) {
  memory m;
  for (unsigned t = 0; t < tensors; ++t) {
    m.push_back(numbers(n, t));
    if (t > 0)
      for (auto& x : m.back()) x = std::abs(x);
  }
  return m;
}

std::vector<stepped> pointers(const memory& in, memory& out, std::size_t first = 0) {
  std::vector<stepped> p;
  for (std::size_t t = 0; t < tensors; ++t)
    p.push_back({in[t].data() + first, out[t].data() + first});
  return p;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizers)

BOOST_AUTO_TEST_CASE(K_2_a_part_of_a_variable_is_updated_as_in_the_whole_at_any_alignment) {
  const std::size_t n = 2100;  // more than two pieces
  const auto g = numbers(n, 10), h = numbers(n, 11);
  for (const auto& c : all_cases())
    for (const float limit : {std::numeric_limits<float>::infinity(), 1.0F})
      for (const std::size_t parts : {1U, 2U}) {
        const auto before = initial(n);
        auto whole = before, cut = before;
        const auto sum_at = [&](std::size_t first) {
          return std::vector{g.data() + first, h.data() + first};
        };
        const auto all = sum_at(0);
        c.step(pointers(before, whole), {std::span(all).first(parts), limit, 0.5F}, n);
        for (std::size_t first = 0; first < n; first += 37) {
          const auto some = sum_at(first);
          c.step(pointers(before, cut, first), {std::span(some).first(parts), limit, 0.5F},
                 std::min<std::size_t>(37, n - first));
        }
        for (std::size_t t = 0; t < tensors; ++t)
          BOOST_TEST(std::memcmp(whole[t].data(), cut[t].data(), n * sizeof(float)) == 0, c.name);
        BOOST_TEST(whole[0] != before[0]);
        BOOST_TEST(whole[1] != before[1]);
      }
}

BOOST_AUTO_TEST_CASE(a_step_in_place_gives_the_same_bits) {
  const std::size_t n = 1001;
  const auto g = numbers(n, 10);
  const std::vector<const float*> parts{g.data()};
  for (const auto& c : all_cases()) {
    const auto before = initial(n);
    auto out = before, in_place = before;
    c.step(pointers(before, out), {parts}, n);
    c.step(pointers(in_place, in_place), {parts}, n);
    for (std::size_t t = 0; t < tensors; ++t)
      BOOST_TEST(std::memcmp(out[t].data(), in_place[t].data(), n * sizeof(float)) == 0, c.name);
  }
}

BOOST_AUTO_TEST_CASE(gradients_are_added_in_their_order_and_their_sum_alone_gives_the_same_bits) {
  const std::size_t n = 1500;
  std::vector<std::vector<float>> gradients;
  for (unsigned k = 0; k < 6; ++k) gradients.push_back(numbers(n, 20 + k));
  for (std::size_t workers = 0; workers <= gradients.size(); ++workers) {
    std::vector<const float*> parts;
    for (std::size_t k = 0; k < workers; ++k) parts.push_back(gradients[k].data());
    std::vector<float> sum(n);
    sum_gradients(sum.data(), parts, n);
    const std::vector<const float*> alone{sum.data()};
    for (const auto& c : all_cases())
      for (const float scale : {1.0F, 0.3F}) {
        const auto before = initial(n);
        auto of_all = before, of_sum = before;
        c.step(pointers(before, of_all), {parts, 1.5F, scale}, n);
        c.step(pointers(before, of_sum), {alone, 1.5F, scale}, n);
        for (std::size_t t = 0; t < tensors; ++t)
          BOOST_TEST(std::memcmp(of_all[t].data(), of_sum[t].data(), n * sizeof(float)) == 0,
                     c.name);
      }
  }
}

BOOST_AUTO_TEST_CASE(without_decay_and_clipping_sgd_is_sgd_with_momentum) {
  const std::size_t n = 1003;
  const auto w = numbers(n, 1), v = numbers(n, 2), g = numbers(n, 3), h = numbers(n, 4);
  const std::vector<const float*> parts{g.data(), h.data()};
  std::vector<float> w1(n), v1(n), w2(n), v2(n);
  sgd_momentum(w.data(), w1.data(), v.data(), v1.data(), parts, n, 0.05F, 0.9F);
  sgd_step({w.data(), w2.data()}, {v.data(), v2.data()}, {parts}, n,
           {.learning_rate = 0.05F, .momentum = 0.9F});
  BOOST_TEST(w1 == w2);
  BOOST_TEST(v1 == v2);
}

BOOST_AUTO_TEST_CASE(a_gradient_is_limited_then_scaled_and_NaN_stays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> g{-3, -1, 0, 0.5F, 2, nan, std::numeric_limits<float>::infinity()},
      zeros(g.size());
  const std::vector<const float*> parts{g.data()};
  std::vector<float> w(g.size()), v(g.size());
  sgd_step({zeros.data(), w.data()}, {zeros.data(), v.data()}, {parts, 1, 0.25F}, g.size(),
           {.learning_rate = 1});
  const std::vector<float> expected{-0.25F, -0.25F, 0, 0.125F, 0.25F, nan, 0.25F};
  for (std::size_t i = 0; i < g.size(); ++i)
    BOOST_TEST((v[i] == expected[i] || (std::isnan(v[i]) && std::isnan(expected[i]))));
}

BOOST_AUTO_TEST_CASE(a_norm_is_that_of_the_limited_sum_for_any_size) {
  for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 1023U, 1024U, 1025U, 5000U}) {
    const auto g = numbers(n, 1), h = numbers(n, 2);
    const std::vector<const float*> parts{g.data(), h.data()};
    double squares = 0, limited = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float x = g[i] + h[i], y = std::min(1.0F, std::max(-1.0F, x));
      squares += double(x) * double(x);
      limited += double(y) * double(y);
    }
    BOOST_TEST(std::abs(norm_of({parts}, n) - std::sqrt(squares)) <= 1e-12 * std::sqrt(squares));
    BOOST_TEST(std::abs(norm_of({parts, 1.0F}, n) - std::sqrt(limited)) <=
               1e-12 * std::sqrt(limited));
  }
}

BOOST_AUTO_TEST_CASE(a_norm_does_not_depend_on_alignment_and_does_not_overflow) {
  const std::size_t n = 3001;
  const auto g = numbers(n, 1);
  const std::vector<const float*> aligned{g.data()};
  for (std::size_t offset = 1; offset < 9; ++offset) {
    std::vector<float> moved(n + offset);
    std::copy(g.begin(), g.end(), moved.begin() + static_cast<std::ptrdiff_t>(offset));
    const std::vector<const float*> parts{moved.data() + offset};
    BOOST_TEST(norm_of({parts}, n) == norm_of({aligned}, n));
  }
  const std::vector<float> large(100, 3e38F);
  const std::vector<const float*> parts{large.data()};
  BOOST_TEST(norm_of({parts}, 100) == 10 * double(3e38F));
}

BOOST_AUTO_TEST_CASE(a_variance_that_rounding_makes_negative_counts_as_zero) {
  // s = m^2 rounded down: 0.9 s + 0.1 g^2 - (m + 0.1 (g - m))^2 with g = m.
  for (unsigned i = 0; i < 1000; ++i) {
    const float m = 1.0F + static_cast<float>(i) * 1e-4F, s = std::nextafter(m * m, 0.0F);
    const std::vector<float> g{m};
    const std::vector<const float*> parts{g.data()};
    float w = 1, square = s, mean = m;
    rmsprop_step({&w, &w}, {&square, &square}, {}, {&mean, &mean}, {parts}, 1,
                 {.learning_rate = 0.01F, .alpha = 0.9F, .new_square = 0.1F, .epsilon = 1e-8F});
    BOOST_REQUIRE(!std::isnan(w));
  }
}

BOOST_AUTO_TEST_SUITE_END()
