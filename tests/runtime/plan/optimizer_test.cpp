#include "troupe/runtime/plan/optimizer.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

using namespace troupe;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::string text_of(const result<void>& r) { return r ? "no error" : r.error().text(); }

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-14 * std::max(1.0, std::abs(b)); }

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer)

BOOST_AUTO_TEST_CASE(defaults_are_those_of_torch) {
  BOOST_TEST(sgd({}).learning_rate == 1e-3);
  BOOST_TEST(sgd({}).momentum == 0);
  for (const auto& o : {adam({}), adamw({})}) {
    BOOST_TEST(o.learning_rate == 1e-3);
    BOOST_TEST(o.beta1 == 0.9);
    BOOST_TEST(o.beta2 == 0.999);
    BOOST_TEST(o.epsilon == 1e-8);
  }
  BOOST_TEST(adam({}).weight_decay == 0);
  BOOST_TEST(adamw({}).weight_decay == 1e-2);
  BOOST_TEST(rmsprop({}).learning_rate == 1e-2);
  BOOST_TEST(rmsprop({}).alpha == 0.99);
  BOOST_TEST(rmsprop({}).epsilon == 1e-8);
  BOOST_TEST(rmsprop({}).momentum == 0);
  BOOST_TEST(adagrad({}).learning_rate == 1e-2);
  BOOST_TEST(adagrad({}).epsilon == 1e-10);
  // Without a word: what jobs had before there was a choice.
  BOOST_TEST((optimizer_spec{} == sgd({.learning_rate = 0.05, .momentum = 0.9})));
}

BOOST_AUTO_TEST_CASE(slots_follow_from_the_optimizer) {
  using names = std::vector<std::string>;
  const std::pair<optimizer_spec, names> cases[] = {
      {{}, {"velocity"}},
      {sgd({}), {"velocity"}},
      {adam({}), {"first_moment", "second_moment"}},
      {adamw({}), {"first_moment", "second_moment"}},
      {rmsprop({}), {"square_average"}},
      {rmsprop({.momentum = 0.5}), {"square_average", "velocity"}},
      {rmsprop({.centered = true}), {"square_average", "gradient_average"}},
      {rmsprop({.momentum = 0.5, .centered = true}),
       {"square_average", "velocity", "gradient_average"}},
      {adagrad({}), {"square_sum"}}};
  for (const auto& [o, expected] : cases) {
    BOOST_TEST((slot_names(o) == expected), o.type);
    BOOST_TEST(slot_count(o) == expected.size());
    BOOST_TEST(slots_of(o).size() == expected.size());
  }
  BOOST_TEST(slots_of(adagrad({.initial_accumulator = 0.5}))[0].initial == 0.5F);
}

BOOST_AUTO_TEST_CASE(numbers_that_cannot_be_are_errors_that_name_the_field_and_the_rule) {
  const std::pair<std::function<void(optimizer_spec&)>, const char*> cases[] = {
      {[](auto& o) { o.type = "lion"; },
       "there is no optimizer 'lion' (there are: sgd, adam, adamw, rmsprop, adagrad)"},
      {[](auto& o) { o.learning_rate = not_a_number; }, "learning rate nan is not a finite number"},
      {[](auto& o) { o.learning_rate = infinity; }, "learning rate inf is not a finite number"},
      {[](auto& o) { o.learning_rate = 1e39; }, "learning rate 1e+39 is not a finite number"},
      {[](auto& o) { o.learning_rate = -0.1; }, "learning rate -0.1 is below 0"},
      {[](auto& o) { o.momentum = 1; }, "momentum 1 is not in [0, 1)"},
      {[](auto& o) { o.momentum = -0.5; }, "momentum -0.5 is not in [0, 1)"},
      {[](auto& o) { o.momentum = not_a_number; }, "momentum nan is not in [0, 1)"},
      {[](auto& o) { o.beta1 = 1; }, "beta1 1 is not in [0, 1)"},
      {[](auto& o) { o.beta2 = 1.5; }, "beta2 1.5 is not in [0, 1)"},
      {[](auto& o) { o.beta2 = not_a_number; }, "beta2 nan is not in [0, 1)"},
      {[](auto& o) { o.alpha = 1; }, "alpha 1 is not in [0, 1)"},
      {[](auto& o) { o.epsilon = -1e-8; }, "epsilon -1e-08 is below 0"},
      {[](auto& o) { o.weight_decay = -1; }, "weight decay -1 is below 0"},
      {[](auto& o) { o.weight_decay = infinity; }, "weight decay inf is not a finite number"},
      {[](auto& o) { o.learning_rate_decay = -1; }, "learning rate decay -1 is below 0"},
      {[](auto& o) { o.initial_accumulator = -1; }, "initial accumulator -1 is below 0"},
      {[](auto& o) { o.clip_value = -1; }, "clip value -1 is below 0"},
      {[](auto& o) { o.clip_norm = not_a_number; }, "clip norm nan is not a finite number"},
      {[](auto& o) { o.nesterov = true; }, "nesterov is for sgd with a momentum above 0"},
      {[](auto& o) { o.centered = true; }, "centered is for rmsprop, not for adam"},
  };
  for (const auto& [spoil, says] : cases) {
    auto o = adam({});
    BOOST_TEST(text_of(check(o)) == "no error");
    spoil(o);
    BOOST_TEST(text_of(check(o)).find(says) != std::string::npos,
               text_of(check(o)) << "\n  should say: " << says);
  }
  BOOST_TEST(text_of(check(sgd({.nesterov = true}))).find("nesterov") != std::string::npos);
  BOOST_TEST(text_of(check(sgd({.momentum = 0.9, .nesterov = true}))) == "no error");
}

BOOST_AUTO_TEST_CASE(schedules_that_cannot_be_are_errors) {
  const std::pair<std::function<void(learning_rate_schedule&)>, const char*> cases[] = {
      {[](auto& s) { s.type = static_cast<learning_rate_schedule::kind>(6); },
       "there is no schedule 6"},
      {[](auto& s) { s.steps = 5; },
       "schedule cosine: steps 5 are not more than the 5 of its warmup"},
      {[](auto& s) { s.minimum = -0.1; }, "minimum -0.1 is not in [0, 1]"},
      {[](auto& s) { s.minimum = not_a_number; }, "minimum nan is not in [0, 1]"},
      {[](auto& s) { s.decay = 0; }, "decay 0 is not in (0, 1]"},
      {[](auto& s) { s.decay = not_a_number; }, "decay nan is not in (0, 1]"},
      {[](auto& s) { s.decay = 1.1; }, "decay 1.1 is not in (0, 1]"},
      {[](auto& s) { s.every = 0; }, "every 0 steps is not possible"},
      {[](auto& s) { s.warmup = s.steps = ~std::uint64_t{0}; }, "is above 2^48"},
      {[](auto& s) { s.timescale = ~std::uint64_t{0}; }, "is above 2^48"},
  };
  for (const auto& [spoil, says] : cases) {
    auto s = cosine({.steps = 100, .warmup = 5});
    BOOST_TEST(text_of(check(s)) == "no error");
    spoil(s);
    BOOST_TEST(text_of(check(s)).find(says) != std::string::npos,
               text_of(check(s)) << "\n  should say: " << says);
  }
}

BOOST_AUTO_TEST_CASE(factors_are_those_of_their_formulas) {
  for (const std::uint64_t warmup : {0U, 1U, 7U}) {
    const auto constant = warm_up(warmup),
               steps = step_decay({.every = 10, .decay = 0.5, .warmup = warmup}),
               powers = exponential({.decay = 0.97, .warmup = warmup}),
               wave = cosine({.steps = 60, .minimum = 0.1, .warmup = warmup}),
               line = linear({.steps = 60, .minimum = 0.1, .warmup = warmup}),
               root = inverse_square_root({.timescale = 16, .warmup = warmup});
    for (std::uint64_t t = 0; t < 100; ++t) {
      for (const auto& s : {constant, steps, powers, wave, line, root}) {
        BOOST_REQUIRE(check(s));
        if (t < warmup) BOOST_TEST(learning_rate_factor(s, t) == double(t + 1) / double(warmup));
      }
      if (t < warmup) continue;
      const auto s = double(t - warmup), at = std::min(1.0, s / double(60 - warmup));
      BOOST_TEST(learning_rate_factor(constant, t) == 1);
      BOOST_TEST(is_near(learning_rate_factor(steps, t), std::pow(0.5, std::floor(s / 10))));
      BOOST_TEST(is_near(learning_rate_factor(powers, t), std::pow(0.97, s)));
      BOOST_TEST(is_near(learning_rate_factor(wave, t),
                         0.1 + 0.9 * (1 + std::cos(std::numbers::pi * at)) / 2));
      BOOST_TEST(is_near(learning_rate_factor(line, t), 1 - 0.9 * at));
      BOOST_TEST(is_near(learning_rate_factor(root, t), std::sqrt(16 / (16 + s))));
    }
  }
  // Without a timescale that of the warm-up, so that the factor is sqrt(warmup / step) (Vaswani et
  // al. 2017).
  BOOST_TEST(is_near(learning_rate_factor(inverse_square_root({.warmup = 400}), 1600), 0.5));
  BOOST_TEST(learning_rate_factor(inverse_square_root({}), 0) == 1);
  BOOST_TEST(is_near(learning_rate_factor(inverse_square_root({}), 3), 0.5));
}

BOOST_AUTO_TEST_CASE(the_half_wave_is_that_of_the_cosine_everywhere) {
  const auto wave = cosine({.steps = 100'000});
  for (std::uint64_t t = 0; t <= 100'000; t += 7) {
    const auto expected = (1 + std::cos(std::numbers::pi * double(t) / 100'000)) / 2;
    BOOST_REQUIRE(std::abs(learning_rate_factor(wave, t) - expected) < 1e-15);
  }
}

BOOST_AUTO_TEST_CASE(powers_are_powers) {
  for (const double base : {0.0, 0.5, 0.9, 0.999, 1.0})
    for (const std::uint64_t n : {0U, 1U, 2U, 3U, 17U, 1000U, 1'000'000U}) {
      const auto expected = std::pow(base, double(n));
      BOOST_TEST(std::abs(power_of(base, n) - expected) <= expected * 2.3e-16 * 2 * double(n + 1));
    }
}

// Checkpoints of earlier versions name these three and no others; with another list they could not
// be gone on from.
BOOST_AUTO_TEST_CASE(what_was_there_before_is_told_as_before) {
  const std::vector<std::pair<std::string, std::string>> before{
      {"optimizer", "sgd"}, {"learning rate", "0.05"}, {"momentum", "0.9"}};
  BOOST_TEST((numbers_of({}, {}) == before));
}

BOOST_AUTO_TEST_CASE(every_number_that_counts_is_told) {
  const auto base = numbers_of(rmsprop({}), {});
  const optimizer_spec others[] = {rmsprop({.learning_rate = 0.5}), rmsprop({.alpha = 0.5}),
                                   rmsprop({.epsilon = 0.5}),       rmsprop({.momentum = 0.5}),
                                   rmsprop({.centered = true}),     rmsprop({.weight_decay = 1}),
                                   rmsprop({.clip_value = 0.5}),    rmsprop({.clip_norm = 0.5})};
  for (const auto& o : others) BOOST_TEST((numbers_of(o, {}) != base));
  BOOST_TEST((numbers_of(adam({.beta1 = 0.5}), {}) != numbers_of(adam({}), {})));
  BOOST_TEST((numbers_of(adam({.beta2 = 0.5}), {}) != numbers_of(adam({}), {})));
  BOOST_TEST(
      (numbers_of(adagrad({.learning_rate_decay = 0.5}), {}) != numbers_of(adagrad({}), {})));
  BOOST_TEST(
      (numbers_of(adagrad({.initial_accumulator = 0.5}), {}) != numbers_of(adagrad({}), {})));
  BOOST_TEST((numbers_of(sgd({.momentum = 0.5, .nesterov = true}), {}) !=
              numbers_of(sgd({.momentum = 0.5}), {})));
  const learning_rate_schedule schedules[] = {{},
                                              warm_up(3),
                                              step_decay({}),
                                              step_decay({.every = 2}),
                                              step_decay({.decay = 0.2}),
                                              exponential({.decay = 0.5}),
                                              cosine({.steps = 9}),
                                              cosine({.steps = 9, .minimum = 0.5}),
                                              linear({.steps = 9}),
                                              linear({.steps = 8}),
                                              inverse_square_root({}),
                                              inverse_square_root({.timescale = 5}),
                                              inverse_square_root({.warmup = 5})};
  for (std::size_t i = 0; i < std::size(schedules); ++i)
    for (std::size_t k = 0; k < i; ++k)
      BOOST_TEST((numbers_of({}, schedules[i]) != numbers_of({}, schedules[k])));
}

BOOST_AUTO_TEST_SUITE_END()
