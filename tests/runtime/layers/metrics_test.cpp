// What people look at beside a loss.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/layers/metrics.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <random>
#include <vector>

using namespace troupe;

namespace {

struct here {
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
  eager e{ops, kernels, device};

  value f(const std::vector<float>& x, const shape& s) {
    return e.value_of(tensor::of<float>(dtype::f32, s, x));
  }
  value i(const std::vector<std::int32_t>& x) {
    return e.value_of(
        tensor::of<std::int32_t>(dtype::i32, {static_cast<std::int64_t>(x.size())}, x));
  }
  std::vector<float> numbers_of(value v) {
    BOOST_TEST_REQUIRE(!e.first_error(), (e.first_error() ? e.first_error()->text() : ""));
    const auto t = *e.read(v);
    return {t.data<float>(), t.data<float>() + t.elements()};
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(metrics)

BOOST_AUTO_TEST_CASE(rows_are_counted_by_label_and_class) {
  here h;
  const auto logits = h.f({3, 1, 0,  //
                           0, 2, 1,  //
                           0, 0, 1,  //
                           5, 6, 4},
                          {4, 3});
  const auto labels = h.i({0, 1, 1, 1});
  BOOST_TEST(h.numbers_of(accuracy(logits, labels)) == std::vector<float>{0.75F});
  BOOST_TEST(h.numbers_of(confusion(logits, labels)) ==
             (std::vector<float>{1, 0, 0, 0, 2, 1, 0, 0, 0}));
  // Of equal logits: as many as there are classes.
  const auto p = h.numbers_of(perplexity(h.f({1, 1, 1, 2, 2, 2}, {2, 3}), h.i({0, 2})));
  BOOST_TEST(std::abs(p[0] - 3) < 1e-5F);
}

BOOST_AUTO_TEST_CASE(the_area_under_the_curve_is_the_share_of_pairs_in_order) {
  here h;
  const auto area = [&](const std::vector<float>& scores, const std::vector<float>& labels) {
    const auto n = static_cast<std::int64_t>(scores.size());
    return h.numbers_of(area_under_curve(h.f(scores, {n}), h.f(labels, {n})))[0];
  };
  BOOST_TEST(area({1, 2, 3, 4}, {0, 0, 1, 1}) == 1.0F);
  BOOST_TEST(area({1, 2, 3, 4}, {1, 1, 0, 0}) == 0.0F);
  BOOST_TEST(area({1, 1, 1, 1}, {0, 1, 0, 1}) == 0.5F);
  BOOST_TEST(area({0.1F, 0.4F, 0.35F, 0.8F}, {0, 0, 1, 1}) == 0.75F);
  BOOST_TEST(std::isnan(area({1, 2}, {1, 1})));
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> scores, labels;
    for (int i = 0; i < 40; ++i) {
      scores.push_back(static_cast<float>(random() % 10));
      labels.push_back(static_cast<float>(random() % 2));
    }
    double won = 0, pairs = 0;
    for (std::size_t a = 0; a < scores.size(); ++a)
      for (std::size_t b = 0; b < scores.size(); ++b) {
        if (labels[a] != 1 || labels[b] != 0) continue;
        pairs += 1;
        won += scores[a] > scores[b] ? 1 : scores[a] == scores[b] ? 0.5 : 0;
      }
    BOOST_TEST(area(scores, labels) == static_cast<float>(won) / static_cast<float>(pairs));
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_an_error_of_the_graph) {
  here h;
  confusion(h.f({1, 2}, {2}), h.i({0, 1}));
  BOOST_TEST(h.e.take_error().has_value());
  area_under_curve(h.f({1, 2}, {2}), h.f({1, 0, 1}, {3}));
  BOOST_TEST(h.e.take_error().has_value());
}

BOOST_AUTO_TEST_SUITE_END()
