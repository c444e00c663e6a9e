#include "troupe/devices/host/initial_values.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include "troupe/devices/host/sgd.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

using namespace troupe;

namespace {

constexpr std::size_t n = 203;

// The optimizers of torch.optim, element by element in f64, as its documentation writes them.
struct plain_optimizer {
  optimizer_spec o;
  std::vector<double> w;
  std::map<std::string, std::vector<double>> slots{};

  std::vector<double>& slot(const std::string& name, double initial = 0) {
    return slots.try_emplace(name, n, initial).first->second;
  }

  void step(std::uint64_t t, double factor, const std::vector<std::vector<float>>& gradients) {
    std::vector<double> g(n);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (const auto& x : gradients) g[i] += double(x[i]);
      if (o.clip_value > 0) g[i] = std::min(o.clip_value, std::max(-o.clip_value, g[i]));
      squares += g[i] * g[i];
    }
    const auto norm = std::sqrt(squares);
    for (std::size_t i = 0; i < n; ++i) {
      if (o.clip_norm > 0 && norm > o.clip_norm) g[i] *= o.clip_norm / norm;
      update(i, t, o.learning_rate * factor, g[i]);
    }
  }

  void update(std::size_t i, std::uint64_t t, double rate, double g) {
    if (o.type == "adamw")
      w[i] *= 1 - rate * o.weight_decay;
    else
      g += o.weight_decay * w[i];
    if (o.type == "sgd") {
      auto& b = slot("velocity")[i];
      b = o.momentum * b + g;
      w[i] -= rate * (o.nesterov ? g + o.momentum * b : b);
    } else if (o.type == "adam" || o.type == "adamw") {
      auto &m = slot("first_moment")[i], &v = slot("second_moment")[i];
      m = o.beta1 * m + (1 - o.beta1) * g;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
      const auto m_hat = m / (1 - std::pow(o.beta1, double(t))),
                 v_hat = v / (1 - std::pow(o.beta2, double(t)));
      w[i] -= rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
    } else if (o.type == "rmsprop") {
      auto& v = slot("square_average")[i];
      v = o.alpha * v + (1 - o.alpha) * g * g;
      auto variance = v;
      if (o.centered) {
        auto& mean = slot("gradient_average")[i];
        mean = o.alpha * mean + (1 - o.alpha) * g;
        variance -= mean * mean;
      }
      const auto step = g / (std::sqrt(variance) + o.epsilon);
      if (o.momentum > 0) {
        auto& b = slot("velocity")[i];
        b = o.momentum * b + step;
        w[i] -= rate * b;
      } else {
        w[i] -= rate * step;
      }
    } else {
      auto& sum = slot("square_sum", o.initial_accumulator)[i];
      sum += g * g;
      w[i] -= rate / (1 + double(t - 1) * o.learning_rate_decay) * g / (std::sqrt(sum) + o.epsilon);
    }
  }
};

// What a shard has.
struct kept {
  explicit kept(const optimizer_spec& spec) : o(spec), values(n) {
    uniform_init(values, 1, "w", 2);
    for (const auto& s : slots_of(o)) state.emplace_back(n, s.initial);
  }
  void step(update_count at, const learning_rate_schedule& s,
            const std::vector<std::vector<float>>& gradients) {
    std::vector<const float*> parts;
    for (const auto& g : gradients) parts.push_back(g.data());
    std::vector<stepped> slots;
    for (auto& x : state) slots.push_back({x.data(), x.data()});
    update_shard(o, s, at, {values.data(), values.data()}, slots, parts, n);
  }
  optimizer_spec o;
  std::vector<float> values;
  std::vector<std::vector<float>> state;
};

std::vector<std::vector<float>> gradients_of(std::uint64_t step, std::size_t workers = 2) {
  std::vector<std::vector<float>> all(workers, std::vector<float>(n));
  for (std::size_t k = 0; k < workers; ++k) uniform_init(all[k], 100 * step + k, "gradient", 1);
  return all;
}

std::vector<optimizer_spec> all_optimizers() {
  return {{},
          sgd({}),
          sgd({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true}),
          sgd({.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.1}),
          sgd({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1}),
          adam({}),
          adam({.learning_rate = 0.01, .beta1 = 0.3, .beta2 = 0.9, .weight_decay = 0.1}),
          adam({.beta1 = 0, .beta2 = 0}),
          adamw({}),
          adamw({.learning_rate = 0.01, .weight_decay = 0.5}),
          rmsprop({}),
          rmsprop({.alpha = 0.9, .momentum = 0.9}),
          rmsprop({.alpha = 0.9, .centered = true}),
          rmsprop({.alpha = 0.4, .momentum = 0.5, .centered = true, .weight_decay = 0.01}),
          adagrad({}),
          adagrad({.learning_rate = 0.1,
                   .learning_rate_decay = 0.01,
                   .weight_decay = 0.1,
                   .initial_accumulator = 0.5}),
          sgd({.learning_rate = 0.05, .momentum = 0.9, .clip_value = 0.3}),
          sgd({.learning_rate = 0.05, .momentum = 0.9, .clip_norm = 2}),
          adam({.clip_value = 0.7, .clip_norm = 1})};
}

double relative_difference(const std::vector<float>& got, const std::vector<double>& wanted) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    difference = std::max(difference, std::abs(double(got[i]) - wanted[i]));
    size = std::max(size, std::abs(wanted[i]));
  }
  return difference / size;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_update)

BOOST_AUTO_TEST_CASE(a_hundred_steps_are_those_of_the_formulas) {
  const learning_rate_schedule schedules[] = {{},
                                              cosine({.steps = 80, .minimum = 0.1, .warmup = 10})};
  for (const auto& o : all_optimizers())
    for (const auto& s : schedules) {
      kept shard(o);
      plain_optimizer plain{o, {shard.values.begin(), shard.values.end()}};
      const auto before = plain.w;
      for (std::uint64_t t = 0; t < 100; ++t) {
        shard.step({t + 1, t}, s, gradients_of(t));
        plain.step(t + 1, learning_rate_factor(s, t), gradients_of(t));
      }
      const auto label = o.type + (o.nesterov ? " nesterov" : "") + (o.centered ? " centered" : "");
      BOOST_TEST(relative_difference(shard.values, plain.w) < 1e-5, label);
      BOOST_TEST(relative_difference(shard.values, before) > 1e-3, label);
      const auto slots = slots_of(o);
      for (std::size_t k = 0; k < slots.size(); ++k)
        BOOST_TEST(
            relative_difference(shard.state[k], plain.slot(std::string(slots[k].name))) < 1e-5,
            label << ", " << slots[k].name);
    }
}

BOOST_AUTO_TEST_CASE(UP_2_the_sum_of_the_gradients_gives_the_bits_of_all_of_them) {
  for (const auto& o : all_optimizers()) {
    kept all(o), alone(o);
    for (std::uint64_t t = 0; t < 10; ++t) {
      const auto gradients = gradients_of(t, 5);
      std::vector<const float*> parts;
      for (const auto& g : gradients) parts.push_back(g.data());
      std::vector<float> sum(n);
      sum_gradients(sum.data(), parts, n);
      all.step({t + 1, t}, {}, gradients);
      alone.step({t + 1, t}, {}, {sum});
    }
    BOOST_TEST(std::memcmp(all.values.data(), alone.values.data(), n * sizeof(float)) == 0, o.type);
    for (std::size_t k = 0; k < all.state.size(); ++k)
      BOOST_TEST(std::memcmp(all.state[k].data(), alone.state[k].data(), n * sizeof(float)) == 0,
                 o.type);
  }
}

BOOST_AUTO_TEST_CASE(sgd_with_momentum_has_the_bits_that_it_always_had) {
  kept shard({});
  auto w = shard.values;
  std::vector<float> v(n);
  for (std::uint64_t t = 0; t < 10; ++t) {
    const auto g = gradients_of(t);
    const std::vector<const float*> parts{g[0].data(), g[1].data()};
    shard.step({t + 1, t}, {}, g);
    sgd_momentum(w.data(), w.data(), v.data(), parts, n, 0.05F, 0.9F);
  }
  BOOST_TEST(w == shard.values);
  BOOST_TEST(v == shard.state[0]);
}

BOOST_AUTO_TEST_CASE(a_gradient_within_its_bounds_is_not_changed) {
  kept plain(adam({})), bounded(adam({.clip_value = 100, .clip_norm = 1000}));
  for (std::uint64_t t = 0; t < 10; ++t) {
    plain.step({t + 1, t}, {}, gradients_of(t));
    bounded.step({t + 1, t}, {}, gradients_of(t));
  }
  BOOST_TEST(plain.values == bounded.values);
}

BOOST_AUTO_TEST_CASE(updates_count_versions_or_gradients_and_steps_count_those_of_a_worker) {
  shard_spec s;
  s.steps = {10, 10, 10};
  for (std::uint64_t v = 1; v < 30; ++v) {
    s.update = update_kind::sync;
    BOOST_TEST(count_of(s, v).updates == v);
    BOOST_TEST(count_of(s, v).step == v - 1);
    s.update = update_kind::async;
    BOOST_TEST(count_of(s, v).updates == v);
    BOOST_TEST(count_of(s, v).step == (v - 1) / 3);
  }
}

BOOST_AUTO_TEST_SUITE_END()
