#include "troupe/runtime/layers/clipping.hpp"

#include "tests/support/reference.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

using namespace troupe;

namespace {

struct clipped_values {
  op_table ops = make_op_table();
  graph g{ops};
  std::vector<value> x;
  reference::feeds fed;

  value feed(const char* name, std::vector<double> values, dtype type = dtype::f64) {
    const tensor_spec spec{type, shape{static_cast<std::int64_t>(values.size())}};
    fed[name] = reference::make(spec, [&](std::size_t i) { return values[i]; });
    x.push_back(input(g, spec, name));
    return x.back();
  }
  std::vector<double> of(value v) {
    BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
    BOOST_TEST_REQUIRE(v.is_valid());
    return reference::evaluate(g, v, fed).at;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(clipping)

BOOST_AUTO_TEST_CASE(elements_are_moved_into_their_range) {
  clipped_values c;
  const auto y = c.of(clip_by_value(c.feed("x", {-3, -0.5, 0, 1, 7}), 1));
  BOOST_TEST(y == (std::vector<double>{-1, -0.5, 0, 1, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_value_is_scaled_to_its_norm_and_left_alone_below) {
  clipped_values c;
  const auto x = c.feed("x", {3, 4});
  BOOST_TEST(c.of(clip_by_norm(x, 5)) == (std::vector<double>{3, 4}),
             boost::test_tools::per_element());
  BOOST_TEST(c.of(clip_by_norm(x, 1e30)) == (std::vector<double>{3, 4}),
             boost::test_tools::per_element());
  const auto y = c.of(clip_by_norm(x, 1));
  BOOST_TEST(std::abs(y[0] - 0.6) < 1e-15);
  BOOST_TEST(std::abs(y[1] - 0.8) < 1e-15);
}

BOOST_AUTO_TEST_CASE(several_values_have_one_norm) {
  clipped_values c;
  c.feed("a", {2, 0});
  c.feed("b", {1, 2, 4});
  BOOST_TEST(c.of(global_norm(c.x)).at(0) == 5);
  const auto clipped = clip_by_global_norm(c.x, 2.5);
  BOOST_TEST(c.of(clipped[0]) == (std::vector<double>{1, 0}), boost::test_tools::per_element());
  BOOST_TEST(c.of(clipped[1]) == (std::vector<double>{0.5, 1, 2}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(values_that_are_not_there_are_passed_over) {
  clipped_values c;
  const std::vector<value> some{value{}, c.feed("a", {3, 4}), value{}};
  const auto clipped = clip_by_global_norm(some, 1);
  BOOST_TEST(!clipped[0].is_valid());
  BOOST_TEST(!clipped[2].is_valid());
  BOOST_TEST(std::abs(c.of(clipped[1])[0] - 0.6) < 1e-15);
  BOOST_TEST(!global_norm({}).is_valid());
}

BOOST_AUTO_TEST_CASE(zeros_stay_zeros_and_have_a_gradient) {
  clipped_values c;
  const auto x = c.feed("x", {0, 0, 0});
  const auto y = clip_by_norm(x, 1);
  BOOST_TEST(c.of(y) == (std::vector<double>{0, 0, 0}), boost::test_tools::per_element());
  const auto dx = gradients(c.g, reduce_sum(y), {&x, 1});
  BOOST_TEST(c.of(dx[0]) == (std::vector<double>{1, 1, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_gradient_of_a_clipped_value_agrees_with_finite_differences) {
  const std::vector<double> at{0.5, -1, 2}, weights{1, -2, 0.5};
  const auto loss_at = [&](const std::vector<double>& p) {
    clipped_values c;
    c.feed("x", p);
    c.feed("k", weights);
    return c.of(reduce_sum(mul(clip_by_norm(c.x[0], 1), c.x[1]))).at(0);
  };
  clipped_values c;
  c.feed("x", at);
  c.feed("k", weights);
  const auto dx =
      c.of(gradients(c.g, reduce_sum(mul(clip_by_norm(c.x[0], 1), c.x[1])), {c.x.data(), 1})[0]);
  for (std::size_t i = 0; i < at.size(); ++i) {
    auto low = at, high = at;
    low[i] -= 1e-6;
    high[i] += 1e-6;
    BOOST_TEST(std::abs((loss_at(high) - loss_at(low)) / 2e-6 - dx[i]) < 1e-8);
  }
}

BOOST_AUTO_TEST_CASE(a_bound_that_is_none_is_an_error_at_the_users_line) {
  for (const double most : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity()}) {
    clipped_values by_value, by_norm, by_all;
    BOOST_TEST(!clip_by_value(by_value.feed("x", {1}), most).is_valid());
    BOOST_TEST(!clip_by_norm(by_norm.feed("x", {1}), most).is_valid());
    by_all.feed("x", {1});
    BOOST_TEST(!clip_by_global_norm(by_all.x, most)[0].is_valid());
    for (auto* c : {&by_value, &by_norm, &by_all}) {
      BOOST_TEST_REQUIRE(c->g.first_error().has_value());
      BOOST_TEST(c->g.first_error()->text().find("is not a finite number above 0") !=
                 std::string::npos);
      BOOST_TEST(c->g.first_error()->text().find("clipping_test.cpp") != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(values_of_different_types_have_no_common_norm) {
  clipped_values c;
  c.feed("a", {1}, dtype::f32);
  c.feed("b", {1}, dtype::f64);
  (void)clip_by_global_norm(c.x, 1);
  BOOST_TEST(c.g.first_error().has_value());
}

BOOST_AUTO_TEST_SUITE_END()
