#include "troupe/runtime/layers/layers.hpp"

#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
  eager e{ops, kernels, device};
  graph g{ops};

  value of(std::vector<float> numbers, const shape& s) {
    return e.value_of(tensor::of<float>(dtype::f32, s, numbers));
  }
  std::vector<float> numbers(value v) {
    const auto t = e.read(v);
    BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
    return {t->data<float>(), t->data<float>() + t->elements()};
  }
  std::vector<std::string> variables(graph& of) {
    std::vector<std::string> all;
    for (const auto& v : of.variables())
      all.push_back(of.node(v.node).name + " " + to_string(v.spec()));
    return all;
  }
};

std::vector<float> counting(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(std::sin(static_cast<double>(i) * 1.7));
  return x;
}

using names = std::vector<std::string>;
constexpr auto each = boost::test_tools::per_element();

}  // namespace

BOOST_AUTO_TEST_SUITE(layers)

BOOST_AUTO_TEST_CASE(layers_make_variables_in_a_scope_of_their_own_and_keep_a_bound) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, *shape::from(std::array{batch_of(32), dim{6, 0}})}, "x");
  BOOST_TEST(to_string(dense(x, 4, "d").spec()) == "f32[32?, 4]");
  BOOST_TEST(to_string(layer_norm(x, "n").spec()) == "f32[32?, 6]");
  const auto image = reshape(x, {0, 1, 2, 3});
  BOOST_TEST(to_string(conv2d(image, 5, {2, 2}, "c").spec()) == "f32[32?, 5, 1, 2]");
  BOOST_TEST(to_string(batch_norm(image, "b").spec()) == "f32[32?, 1, 2, 3]");
  const auto words = reshape(x, {0, 3, 2});
  BOOST_TEST(to_string(self_attention(words, {.heads = 2, .causal = true}, "a").spec()) ==
             "f32[32?, 3, 2]");
  const auto ids =
      input(f.g, {dtype::i32, *shape::from(std::array{batch_of(32), dim{3, 0}})}, "ids");
  BOOST_TEST(to_string(embedding(ids, 10, 4, "e").spec()) == "f32[32?, 3, 4]");
  BOOST_TEST(!f.g.first_error().has_value(), (f.g.first_error() ? f.g.first_error()->text() : ""));
  BOOST_TEST(
      f.variables(f.g) ==
          (names{"d/weights f32[6, 4]", "d/bias f32[4]", "n/scale f32[6]", "n/shift f32[6]",
                 "c/weights f32[5, 1, 2, 2]", "c/bias f32[5]", "b/scale f32[1]", "b/shift f32[1]",
                 "b/mean f32[1]", "b/variance f32[1]", "a/projection/weights f32[2, 6]",
                 "a/projection/bias f32[6]", "a/output/weights f32[2, 2]", "a/output/bias f32[2]",
                 "e/table f32[10, 4]"}),
      each);
}

BOOST_AUTO_TEST_CASE(every_layer_shares_its_variables_where_that_is_asked_for) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, batch_of(32, {3, 8})}, "x");
  const auto model = [&] {
    return batch_norm(layer_norm(self_attention(dense(x, 8, "d"), {.heads = 2}, "a"), "n"), "b",
                      {.is_training = false});
  };
  const auto first = model();
  const auto made = f.variables(f.g).size();
  {
    const auto tower = f.g.name_scope("tower");
    const auto shared = f.g.share_variables();
    BOOST_TEST(model().is_valid());
  }
  BOOST_TEST(first.is_valid());
  BOOST_TEST(f.variables(f.g).size() == made);
  BOOST_TEST(!f.g.first_error().has_value(), (f.g.first_error() ? f.g.first_error()->text() : ""));
  BOOST_TEST(f.g.averages().size() == 2U);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_an_error_with_the_users_line) {
  using build = std::function<value(value)>;
  const std::pair<build, const char*> cases[] = {
      {[](value x) { return dense(x, 0, "d"); },
       "dense 'd': x f32[2, 3, 4]: 0 units, but at least 1 is needed"},
      {[](value x) { return dense(reduce_sum(x), 1, "d"); }, "must have rank 2 or more"},
      {[](value x) { return dense(cast(x, dtype::f64), 1, "d"); }, "the element type must be f32"},
      {[](value x) { return dense(x, std::int64_t{1} << 62, "d"); }, "elements is too large"},
      {[](value x) { return conv2d(x, 1, {1, 1}, "c"); },
       "conv2d 'c': x f32[2, 3, 4]: must have rank 4"},
      {[](value x) { return conv2d(expand_dims(x, {0}), 1, {0, 1}, "c"); }, "kernels of 0 x 1"},
      {[](value x) { return conv2d(expand_dims(x, {0}), 2, {1, 1}, "c", {.groups = 3}); },
       "2 channels are no multiple of 3 groups"},
      {[](value x) { return batch_norm(reduce_sum(x), "b"); },
       "must have channels as its second dimension"},
      {[](value x) { return layer_norm(reduce_sum(x), "n"); }, "at least one dimension"},
      {[](value x) { return self_attention(x, {.heads = 3}, "a"); },
       "4 features are no multiple of 3 heads"},
      {[](value x) { return self_attention(reduce_sum(x, {0}), {}, "a"); }, "must have rank 3"},
      {[](value x) { return embedding(cast(x, dtype::i32), 0, 4, "e"); }, "0 rows of 4"},
      {[](value x) { return embedding(x, 5, 4, "e"); }, "indices must be i32 or i64"},
      {[](value x) { return dense(x, 3, "two words"); }, "name 'two words'"}};
  for (const auto& [make, says] : cases) {
    fixture f;
    const auto x = input(f.g, {dtype::f32, {2, 3, 4}}, "x");
    make(x);
    BOOST_TEST_REQUIRE(f.g.first_error().has_value(), says);
    const auto text = f.g.first_error()->text();
    BOOST_TEST(text.find(says) != std::string::npos, text);
    BOOST_TEST(text.find("layers_test.cpp:") != std::string::npos, text);
  }
}

BOOST_AUTO_TEST_CASE(a_position_of_causal_attention_does_not_see_those_behind_it) {
  const auto attend = [](std::vector<float> numbers, bool causal) {
    fixture f;
    return f.numbers(
        self_attention(f.of(std::move(numbers), {1, 5, 4}), {.heads = 2, .causal = causal}, "a"));
  };
  const auto x = counting(20);
  for (const bool causal : {false, true}) {
    const auto before = attend(x, causal);
    auto changed = x;
    changed[3 * 4 + 1] += 1;  // of position 3
    const auto after = attend(changed, causal);
    for (std::size_t i = 0; i < 20; ++i)
      BOOST_TEST((before[i] == after[i]) == (causal && i / 4 < 3), "element " << i);
  }
}

BOOST_AUTO_TEST_CASE(attention_is_the_mean_of_values_weighed_by_softmax) {
  fixture f;
  const auto x = counting(12);  // 3 positions of 4, one head
  const auto y = f.numbers(self_attention(f.of(x, {1, 3, 4}), {}, "a"));
  std::map<std::string, std::vector<float>> w;
  for (const auto& v : f.e.variables()) w[f.e.node(v.node).name] = f.numbers(v);
  const auto product = [](const std::vector<double>& a, std::size_t rows,
                          const std::vector<float>& b, const std::vector<float>& bias) {
    const auto columns = bias.size(), inner = b.size() / columns;
    std::vector<double> c(rows * columns);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        c[i * columns + j] = static_cast<double>(bias[j]);
        for (std::size_t k = 0; k < inner; ++k)
          c[i * columns + j] += a[i * inner + k] * static_cast<double>(b[k * columns + j]);
      }
    return c;
  };
  const auto p =
      product({x.begin(), x.end()}, 3, w.at("a/projection/weights"), w.at("a/projection/bias"));
  std::vector<double> mixed(12);
  for (std::size_t q = 0; q < 3; ++q) {
    double weights[3], sum = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      double score = 0;
      for (std::size_t i = 0; i < 4; ++i) score += p[q * 12 + i] * p[k * 12 + 4 + i];
      sum += weights[k] = std::exp(score / 2);
    }
    for (std::size_t k = 0; k < 3; ++k)
      for (std::size_t i = 0; i < 4; ++i) mixed[q * 4 + i] += weights[k] / sum * p[k * 12 + 8 + i];
  }
  const auto expected = product(mixed, 3, w.at("a/output/weights"), w.at("a/output/bias"));
  for (std::size_t i = 0; i < 12; ++i)
    BOOST_TEST(std::abs(static_cast<double>(y[i]) - expected[i]) < 1e-6, "element " << i);
}

BOOST_AUTO_TEST_CASE(
    normalisations_have_mean_0_and_variance_1_and_their_variables_begin_so_that_they_stay) {
  fixture f;
  const auto x = f.of(counting(48), {2, 3, 2, 4});
  const auto moments = [](const std::vector<float>& y,
                          const std::function<bool(std::size_t)>& is_in) {
    double n = 0, sum = 0, squares = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      if (is_in(i))
        n += 1, sum += static_cast<double>(y[i]),
            squares += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    return std::pair(sum / n, squares / n);
  };
  const auto by_row = f.numbers(layer_norm(x, "n"));
  for (std::size_t row = 0; row < 12; ++row) {
    const auto [mean, variance] = moments(by_row, [&](std::size_t i) { return i / 4 == row; });
    BOOST_TEST(std::abs(mean) < 1e-6);
    BOOST_TEST(std::abs(variance - 1) < 1e-3);
  }
  const auto by_channel = f.numbers(batch_norm(x, "b"));
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto [mean, variance] =
        moments(by_channel, [&](std::size_t i) { return i / 8 % 3 == channel; });
    BOOST_TEST(std::abs(mean) < 1e-6);
    BOOST_TEST(std::abs(variance - 1) < 1e-3);
  }
  // With the mean and variance that it gave, the other form computes the same.
  const auto one = f.of({1, 1, 1}, {3}), none = f.of({0, 0, 0}, {3});
  const auto trained = batch_norm(x, one, none);
  const auto known = f.numbers(batch_norm(x, one, none, trained.mean, trained.variance));
  for (std::size_t i = 0; i < known.size(); ++i)
    BOOST_TEST(std::abs(known[i] - by_channel[i]) < 1e-5F);
}

BOOST_AUTO_TEST_CASE(batch_norm_outside_of_training_computes_with_its_averages) {
  fixture f;
  const auto x = f.of(counting(24), {2, 3, 4});
  // They begin with mean 0 and variance 1.
  const auto y = f.numbers(batch_norm(x, "b", {.is_training = false, .epsilon = 0}));
  BOOST_TEST(y == counting(24), each);
  fixture g;
  const auto images = input(g.g, {dtype::f32, {2, 3, 4}}, "x");
  batch_norm(images, "b");
  const names all{"b/scale f32[3]", "b/shift f32[3]", "b/mean f32[3]", "b/variance f32[3]"};
  BOOST_TEST(g.variables(g.g) == all, each);
  fixture h;
  batch_norm(input(h.g, {dtype::f32, {2, 3, 4}}, "x"), "b", {.is_training = false});
  BOOST_TEST(h.variables(h.g) == all, each);
}

BOOST_AUTO_TEST_CASE(moving_averages_that_cannot_be_are_errors_with_the_users_line) {
  using build = std::function<void(graph&)>;
  const auto sample = [](graph& g) { return input(g, {dtype::f32, {3}}, "x"); };
  const std::pair<build, const char*> cases[] = {
      {[&](graph& g) { moving_average(sample(g), "a", {.rate = 1.5}); },
       "moving_average 'a' of f32[3]: its rate is 1.5, but must be from 0 to 1"},
      {[&](graph& g) { moving_average(sample(g), "a", {.rate = std::nan("")}); },
       "its rate is nan"},
      {[&](graph& g) { moving_average(cast(sample(g), dtype::f64), "a"); },
       "f32 and have exact sizes"},
      {[&](graph& g) {
         moving_average(input(g, {dtype::f32, *shape::from(std::array{batch_of(4)})}, "x"), "a");
       },
       "exact sizes"},
      {[&](graph& g) { moving_average(sample(g), "a", {.initial = std::nan("")}); },
       "not a finite number"},
      {[&](graph& g) {
         graph other(g.ops());
         moving_average(sample(g), "a", {.beside = sample(other)});
       },
       "another graph"},
  };
  for (const auto& [make, text] : cases) {
    fixture f;
    make(f.g);
    BOOST_TEST_REQUIRE(bool(f.g.first_error()));
    BOOST_TEST(f.g.first_error()->text().find(text) != std::string::npos,
               f.g.first_error()->text());
    BOOST_TEST(f.g.first_error()->text().find("layers_test.cpp:") != std::string::npos,
               f.g.first_error()->text());
  }
}

BOOST_AUTO_TEST_CASE(initializers_fill_with_what_they_say) {
  std::vector<float> x(100'000);
  const auto deviation = [&] {
    double squares = 0;
    for (const auto n : x) squares += static_cast<double>(n) * static_cast<double>(n);
    return std::sqrt(squares / static_cast<double>(x.size()));
  };
  initialize(x, filled_with(-2.5), 1, "w");
  BOOST_TEST(std::count(x.begin(), x.end(), -2.5F) == 100'000);
  initialize(x, zeros(), 1, "w");
  BOOST_TEST(std::count(x.begin(), x.end(), 0.0F) == 100'000);
  initialize(x, he_normal(8), 1, "w");
  BOOST_TEST(deviation() == 0.5, boost::test_tools::tolerance(0.01));
  initialize(x, glorot_uniform(100, 50), 1, "w");
  BOOST_TEST(deviation() == std::sqrt(6.0 / 150 / 3), boost::test_tools::tolerance(0.01));
  BOOST_TEST(*std::max_element(x.begin(), x.end()) < 0.2001F);
  fixture f;
  variable(f.g, {dtype::f32, {2}}, normal(-1), "w");
  BOOST_TEST_REQUIRE(f.g.first_error().has_value());
  BOOST_TEST(
      f.g.first_error()->text().find(
          "variable 'w': the deviation -1 of its initial values is not a finite number >= 0") !=
      std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
