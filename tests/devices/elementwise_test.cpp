#include "tests/devices/kernel_harness.hpp"

#include <cmath>
#include <functional>
#include <limits>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

struct unary_case {
  const char* op;
  std::function<double(double)> expected;
};
struct binary_case {
  const char* op;
  std::function<float(float, float)> expected;
};

const std::vector<binary_case> binary_cases = {
    {"add", [](float a, float b) { return a + b; }},
    {"sub", [](float a, float b) { return a - b; }},
    {"mul", [](float a, float b) { return a * b; }},
    {"maximum", [](float a, float b) { return a > b ? a : b; }},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(elementwise)

BOOST_AUTO_TEST_CASE(binary_ops_take_an_equal_shape_a_bias_or_a_scalar) {
  kernel_harness host;
  const auto a = random_tensor({7, 13}, 1), same = random_tensor({7, 13}, 2), bias = random_tensor({13}, 3),
             scalar = random_tensor({}, 4);
  for (const auto& c : binary_cases) {
    const auto full = host.one(c.op, {a, same}, a.spec()), row = host.one(c.op, {a, bias}, a.spec()),
               one = host.one(c.op, {a, scalar}, a.spec());
    for (std::int64_t i = 0; i < a.elements(); ++i) {
      const float x = a.data<float>()[i];
      BOOST_TEST(full.data<float>()[i] == c.expected(x, same.data<float>()[i]));
      BOOST_TEST(row.data<float>()[i] == c.expected(x, bias.data<float>()[i % 13]));
      BOOST_TEST(one.data<float>()[i] == c.expected(x, scalar.data<float>()[0]));
    }
  }
}

BOOST_AUTO_TEST_CASE(unary_ops_agree_with_the_standard_library) {
  kernel_harness host;
  const std::vector<unary_case> cases = {{"neg", [](double x) { return -x; }},
                                         {"relu", [](double x) { return x > 0 ? x : 0; }},
                                         {"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
                                         {"tanh", [](double x) { return std::tanh(x); }}};
  const auto x = random_tensor({1000}, 5, -20, 20);
  for (const auto& c : cases) {
    const auto y = host.one(c.op, {x}, x.spec());
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const double expected = c.expected(static_cast<double>(x.data<float>()[i]));
      BOOST_TEST(std::abs(static_cast<double>(y.data<float>()[i]) - expected) <= std::abs(expected) * 4e-7);
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_follow_from_the_result) {
  kernel_harness host;
  const auto dy = tensor::of({3, 5, 7}, {3}), y = tensor::of({0, 0.5F, -1}, {3});
  BOOST_TEST(values_of(host.one("relu_grad", {dy, y}, dy.spec())) == (std::vector<float>{0, 5, 0}));
  BOOST_TEST(values_of(host.one("sigmoid_grad", {dy, y}, dy.spec())) == (std::vector<float>{0, 1.25F, -14}));
  BOOST_TEST(values_of(host.one("tanh_grad", {dy, y}, dy.spec())) == (std::vector<float>{3, 3.75F, 0}));
}

BOOST_AUTO_TEST_CASE(the_gradient_of_maximum_goes_to_a_where_elements_are_equal) {
  kernel_harness host;
  const auto dy = tensor::of({1, 2, 3, 4}, {2, 2}), a = tensor::of({1, 2, 3, 4}, {2, 2}), b = tensor::of({2, 2}, {2});
  BOOST_TEST(values_of(host.one("maximum_grad", {dy, a, b}, dy.spec(), {{"side", std::int64_t{0}}})) ==
             (std::vector<float>{0, 2, 3, 4}));
  BOOST_TEST(values_of(host.one("maximum_grad", {dy, a, b}, dy.spec(), {{"side", std::int64_t{1}}})) ==
             (std::vector<float>{1, 0, 0, 0}));
}

BOOST_AUTO_TEST_CASE(not_a_number_stays_visible) {
  kernel_harness host;
  const auto x = tensor::of({nan_value, 1}, {2}), y = tensor::of({1, nan_value}, {2});
  for (const auto& result : {host.one("maximum", {x, y}, x.spec()), host.one("add", {x, y}, x.spec())}) {
    BOOST_TEST(std::isnan(result.data<float>()[0]));
    BOOST_TEST(std::isnan(result.data<float>()[1]));
  }
  for (const auto* op : {"relu", "sigmoid", "tanh"})
    BOOST_TEST(std::isnan(host.one(op, {x}, x.spec()).data<float>()[0]), op);
}

BOOST_AUTO_TEST_CASE(f64_is_taken_as_well) {
  kernel_harness host;
  const auto x = tensor_of<double>({-1, 0.25}, {2}, dtype::f64), half = tensor_of<double>({0.5}, {}, dtype::f64);
  BOOST_TEST(values_of<double>(host.one("mul", {x, half}, x.spec())) == (std::vector<double>{-0.5, 0.125}));
  BOOST_TEST(values_of<double>(host.one("tanh", {x}, x.spec())) ==
             (std::vector<double>{std::tanh(-1.0), std::tanh(0.25)}));
}

BOOST_AUTO_TEST_CASE(K_1_in_place_gives_the_same_bits) {
  kernel_harness host;
  const auto a = random_tensor({37, 11}, 6), b = random_tensor({37, 11}, 7), bias = random_tensor({11}, 8);
  const std::vector<std::pair<const char*, std::vector<tensor>>> cases = {
      {"add", {a, b}},       {"mul", {a, bias}},       {"maximum", {a, b}},   {"sub", {a, a}},
      {"relu", {a}},         {"sigmoid", {a}},         {"tanh", {a}},         {"neg", {a}},
      {"relu_grad", {a, b}}, {"sigmoid_grad", {a, b}}, {"tanh_grad", {a, b}}, {"maximum_grad", {a, b, bias}}};
  for (const auto& [op, operands] : cases) {
    const auto expected = host.one(op, operands, a.spec());
    auto k = host.make(op);
    std::vector<tensor_spec> specs;
    for (const auto& t : operands) specs.push_back(t.spec());
    BOOST_REQUIRE((*k)->prepare(specs, std::vector{a.spec()}));
    auto shared =
        tensor::of<float>(dtype::f32, a.shape(), std::span(a.data<float>(), static_cast<std::size_t>(a.elements())));
    auto inputs = operands;
    for (auto& t : inputs)
      if (equal_bits(t, a)) t = shared;
    std::vector<tensor> outputs{shared};
    BOOST_REQUIRE((*k)->run(tag{}, inputs, outputs));
    BOOST_TEST(equal_bits(shared, expected), op);
  }
}

BOOST_AUTO_TEST_CASE(K_2_an_element_has_the_same_bits_in_a_vector_and_alone) {
  kernel_harness host;
  const auto x = random_tensor({61}, 9, -9, 9), y = random_tensor({61}, 10, -1, 1);
  for (const auto* op :
       {"sigmoid", "tanh", "relu", "neg", "sigmoid_grad", "tanh_grad", "relu_grad", "add", "sub", "mul", "maximum"}) {
    const bool is_unary = std::string_view(op) == "sigmoid" || std::string_view(op) == "tanh" ||
                          std::string_view(op) == "relu" || std::string_view(op) == "neg";
    const auto whole = host.one(op, is_unary ? std::vector{x} : std::vector{x, y}, x.spec());
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const auto xi = tensor::of({x.data<float>()[i]}, {1}), yi = tensor::of({y.data<float>()[i]}, {1});
      const auto alone = host.one(op, is_unary ? std::vector{xi} : std::vector{xi, yi}, xi.spec());
      BOOST_TEST(std::memcmp(alone.data<float>(), whole.data<float>() + i, sizeof(float)) == 0, op << " element " << i);
    }
  }
}

BOOST_AUTO_TEST_CASE(K_3_tensors_without_elements_are_legal) {
  kernel_harness host;
  const auto none = random_tensor({0, 5}, 1), bias = random_tensor({5}, 2), scalar = random_tensor({}, 3),
             narrow = random_tensor({4, 0}, 4), no_bias = random_tensor({0}, 5);
  BOOST_TEST(host.one("add", {none, none}, none.spec()).elements() == 0);
  BOOST_TEST(host.one("add", {none, bias}, none.spec()).elements() == 0);
  BOOST_TEST(host.one("add", {none, scalar}, none.spec()).elements() == 0);
  BOOST_TEST(host.one("mul", {narrow, no_bias}, narrow.spec()).elements() == 0);
  BOOST_TEST(host.one("relu", {none}, none.spec()).elements() == 0);
}

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_an_error_with_their_shapes) {
  kernel_harness host;
  const auto a = random_tensor({2, 3}, 1), b = random_tensor({2}, 2);
  const auto wrong = host.run("add", {a, b}, {a.spec()});
  BOOST_REQUIRE(!wrong);
  BOOST_TEST(wrong.error().message().find("f32[2, 3], f32[2]") != std::string::npos, wrong.error().message());
  BOOST_TEST(!host.run("add", {a}, {a.spec()}));
  BOOST_TEST(!host.run("relu_grad", {a, random_tensor({3}, 3)}, {a.spec()}));
  BOOST_TEST(!host.run("add", {a, tensor_of<std::int32_t>({1}, {}, dtype::i32)}, {a.spec()}));
  const auto whole = tensor_of<std::int32_t>({1}, {1}, dtype::i32);
  BOOST_TEST(!host.run("neg", {whole}, {whole.spec()}));
}

BOOST_AUTO_TEST_SUITE_END()
