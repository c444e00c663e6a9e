#include "tests/devices/kernel_harness.hpp"

#include <array>
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
  const auto a = random_tensor({7, 13}, 1), same = random_tensor({7, 13}, 2),
             bias = random_tensor({13}, 3), scalar = random_tensor({}, 4);
  for (const auto& c : binary_cases) {
    const auto full = host.one(c.op, {a, same}, a.spec()),
               row = host.one(c.op, {a, bias}, a.spec()),
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
  const std::vector<unary_case> cases = {
      {"neg", [](double x) { return -x; }},
      {"relu", [](double x) { return x > 0 ? x : 0; }},
      {"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"tanh", [](double x) { return std::tanh(x); }}};
  const auto x = random_tensor({1000}, 5, -20, 20);
  for (const auto& c : cases) {
    const auto y = host.one(c.op, {x}, x.spec());
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const double expected = c.expected(static_cast<double>(x.data<float>()[i]));
      BOOST_TEST(std::abs(static_cast<double>(y.data<float>()[i]) - expected) <=
                 std::abs(expected) * 4e-7);
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_follow_from_the_result) {
  kernel_harness host;
  const auto dy = tensor::of({3, 5, 7}, {3}), y = tensor::of({0, 0.5F, -1}, {3});
  BOOST_TEST(values_of(host.one("relu_grad", {dy, y}, dy.spec())) == (std::vector<float>{0, 5, 0}));
  BOOST_TEST(values_of(host.one("sigmoid_grad", {dy, y}, dy.spec())) ==
             (std::vector<float>{0, 1.25F, -14}));
  BOOST_TEST(values_of(host.one("tanh_grad", {dy, y}, dy.spec())) ==
             (std::vector<float>{3, 3.75F, 0}));
}

// Every op of the family on random shapes that are broadcast to each other, against a plain loop.
BOOST_AUTO_TEST_CASE(EW_1_operands_are_broadcast_by_the_rules_of_NumPy) {
  kernel_harness host;
  std::mt19937 bits(17);
  for (int trial = 0; trial < 300; ++trial) {
    const auto rank = bits() % 6;
    std::array<dim, shape::rank_max> out{}, a{}, b{}, c{};
    for (std::size_t i = 0; i < rank; ++i) {
      out[i] = {static_cast<std::int64_t>(
                    bits() % 8 == 0 ? bits() % 20 : bits() % 4 + (bits() % 16 == 0 ? 0 : 1)),
                0};
      // At least one has the size of the result.
      const auto who = bits() % 7 + 1;
      a[i] = (who & 1U) != 0 ? out[i] : dim{1, 0};
      b[i] = (who & 2U) != 0 ? out[i] : dim{1, 0};
      c[i] = (who & 4U) != 0 ? out[i] : dim{1, 0};
    }
    // Leading ones may be left out.
    const auto made = [&](const auto& dims) {
      std::size_t skip = 0;
      while (skip < rank && dims[skip].size == 1 && bits() % 2 == 0) ++skip;
      return *shape::from(std::span(dims).subspan(skip, rank - skip));
    };
    const auto result = *shape::from(std::span(out).first(rank));
    const auto drawn = [&](const shape& s) {
      auto t = tensor::make({dtype::f32, s});
      for (std::int64_t i = 0; i < t.elements(); ++i)
        t.data<float>()[i] = static_cast<float>(bits() % 1000);
      return t;
    };
    const std::vector<tensor> operands{drawn(made(a)), drawn(made(b)), drawn(made(c))};
    const auto got = host.one("fused_multiply_add", operands, {dtype::f32, result});
    for (std::int64_t i = 0; i < got.elements(); ++i) {
      std::array<float, 3> x{};
      for (std::size_t k = 0; k < 3; ++k) {
        const auto& s = operands[k].shape();
        std::int64_t rest = i, at = 0, step = 1;
        for (std::size_t from_end = 1; from_end <= rank; ++from_end) {
          const auto size = result.size(rank - from_end), position = rest % size;
          rest /= size;
          if (from_end > s.rank()) continue;
          const auto own = s.size(s.rank() - from_end);
          at += own == 1 ? 0 : position * step;
          step *= own;
        }
        x[k] = operands[k].data<float>()[at];
      }
      BOOST_TEST_REQUIRE(got.data<float>()[i] == std::fma(x[0], x[1], x[2]));
    }
  }
}

BOOST_AUTO_TEST_CASE(whole_numbers_wrap_around) {
  kernel_harness host;
  constexpr auto most = std::numeric_limits<std::int32_t>::max(),
                 least = std::numeric_limits<std::int32_t>::min();
  const auto a = tensor_of<std::int32_t>({most, least, -7}, {3}, dtype::i32),
             b = tensor_of<std::int32_t>({1, -1, 2}, {3}, dtype::i32);
  using ints = std::vector<std::int32_t>;
  BOOST_TEST(values_of<std::int32_t>(host.one("add", {a, b}, a.spec())) == (ints{least, most, -5}));
  BOOST_TEST(values_of<std::int32_t>(host.one("mul", {a, b}, a.spec())) ==
             (ints{most, least, -14}));
  BOOST_TEST(values_of<std::int32_t>(host.one("neg", {a}, a.spec())) == (ints{-most, least, 7}));
  BOOST_TEST(values_of<std::int32_t>(host.one("abs", {a}, a.spec())) == (ints{most, least, 7}));
  BOOST_TEST(values_of<std::int32_t>(host.one("maximum", {a, b}, a.spec())) == (ints{most, -1, 2}));
}

BOOST_AUTO_TEST_CASE(comparisons_give_truth_values_and_where_chooses_by_them) {
  kernel_harness host;
  const auto a = tensor::of({1, 2, 3, nan_value}, {4}), b = tensor::of({2, 2, 2, 2}, {4});
  const tensor_spec truth{dtype::boolean, {4}};
  using bytes = std::vector<std::uint8_t>;
  BOOST_TEST(values_of<std::uint8_t>(host.one("less", {a, b}, truth)) == (bytes{1, 0, 0, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("less_equal", {a, b}, truth)) == (bytes{1, 1, 0, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("greater", {a, b}, truth)) == (bytes{0, 0, 1, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("greater_equal", {a, b}, truth)) ==
             (bytes{0, 1, 1, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("equal", {a, b}, truth)) == (bytes{0, 1, 0, 0}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("not_equal", {a, b}, truth)) == (bytes{1, 0, 1, 1}));
  BOOST_TEST(values_of<std::uint8_t>(host.one("is_nan", {a}, truth)) == (bytes{0, 0, 0, 1}));
  // What others sent may be any byte.
  const auto c = tensor_of<std::uint8_t>({1, 0, 255, 0}, {4}, dtype::boolean);
  BOOST_TEST(values_of<std::uint8_t>(host.one("logical_not", {c}, truth)) == (bytes{0, 1, 0, 1}));
  BOOST_TEST(values_of(host.one("where", {c, b, tensor::of({9}, {})}, b.spec())) ==
             (std::vector<float>{2, 9, 2, 9}));
}

BOOST_AUTO_TEST_CASE(conversions_to_whole_numbers_cut_off_and_stop_at_the_ends) {
  kernel_harness host;
  const auto x = tensor::of({1.9F, -1.9F, 3e9F, -3e9F, nan_value, INFINITY}, {6});
  const auto to = [&](dtype t) {
    return host.one("cast", {x}, {t, {6}}, {{"to", std::int64_t{static_cast<std::uint8_t>(t)}}});
  };
  BOOST_TEST(values_of<std::int32_t>(to(dtype::i32)) ==
             (std::vector<std::int32_t>{1, -1, 0x7fffffff, -0x7fffffff - 1, 0, 0x7fffffff}));
  BOOST_TEST(values_of<std::uint8_t>(to(dtype::u8)) ==
             (std::vector<std::uint8_t>{1, 0, 255, 0, 0, 255}));
  BOOST_TEST(values_of<std::uint8_t>(to(dtype::boolean)) ==
             (std::vector<std::uint8_t>{1, 1, 1, 1, 1, 1}));
  BOOST_TEST(values_of<std::int64_t>(to(dtype::i64)) ==
             (std::vector<std::int64_t>{1, -1, 3'000'000'000, -3'000'000'000, 0,
                                        std::numeric_limits<std::int64_t>::max()}));
}

BOOST_AUTO_TEST_CASE(every_number_of_16_bits_survives_the_way_to_f32_and_back) {
  kernel_harness host;
  for (const auto type : {dtype::f16, dtype::bf16}) {
    auto all = tensor::make({type, {65536}});
    for (std::int64_t i = 0; i < 65536; ++i)
      all.data<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    const auto wide = host.one("cast", {all}, {dtype::f32, {65536}});
    const auto back = host.one("cast", {wide}, {type, {65536}});
    for (std::int64_t i = 0; i < 65536; ++i) {
      const float x = wide.data<float>()[i];
      const bool is_negative = i >= 0x8000;
      BOOST_TEST_REQUIRE(std::signbit(x) == is_negative);
      if (std::isnan(x))
        BOOST_TEST_REQUIRE(
            std::isnan(host.one("cast", {back}, {dtype::f32, {65536}}).data<float>()[i]));
      else
        BOOST_TEST_REQUIRE(back.data<std::uint16_t>()[i] == static_cast<std::uint16_t>(i));
    }
  }
}

BOOST_AUTO_TEST_CASE(conversions_to_16_bits_round_to_nearest_and_ties_to_even) {
  kernel_harness host;
  const auto x =
      tensor::of({1, 1 + 0x1p-11F, 1 + 0x3p-11F, 65519, 65520, 0x1p-25F, 0x1.8p-24F, -2}, {8});
  BOOST_TEST(values_of<std::uint16_t>(host.one("cast", {x}, {dtype::f16, {8}})) ==
             (std::vector<std::uint16_t>{0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 2, 0xc000}));
  const auto y = tensor::of({1, 1 + 0x1p-8F, 1 + 0x3p-8F, 3.4e38F, 3.3961776e38F, -2}, {6});
  BOOST_TEST(values_of<std::uint16_t>(host.one("cast", {y}, {dtype::bf16, {6}})) ==
             (std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x7f80, 0xc000}));
}

BOOST_AUTO_TEST_CASE(not_a_number_stays_visible) {
  kernel_harness host;
  const auto x = tensor::of({nan_value, 1}, {2}), y = tensor::of({1, nan_value}, {2});
  for (const auto& result :
       {host.one("maximum", {x, y}, x.spec()), host.one("add", {x, y}, x.spec())}) {
    BOOST_TEST(std::isnan(result.data<float>()[0]));
    BOOST_TEST(std::isnan(result.data<float>()[1]));
  }
  for (const auto* op : {"relu", "sigmoid", "tanh"})
    BOOST_TEST(std::isnan(host.one(op, {x}, x.spec()).data<float>()[0]), op);
}

BOOST_AUTO_TEST_CASE(f64_is_taken_as_well) {
  kernel_harness host;
  const auto x = tensor_of<double>({-1, 0.25}, {2}, dtype::f64),
             half = tensor_of<double>({0.5}, {}, dtype::f64);
  BOOST_TEST(values_of<double>(host.one("mul", {x, half}, x.spec())) ==
             (std::vector<double>{-0.5, 0.125}));
  BOOST_TEST(values_of<double>(host.one("tanh", {x}, x.spec())) ==
             (std::vector<double>{std::tanh(-1.0), std::tanh(0.25)}));
}

BOOST_AUTO_TEST_CASE(K_1_in_place_gives_the_same_bits) {
  kernel_harness host;
  const auto a = random_tensor({37, 11}, 6), b = random_tensor({37, 11}, 7),
             bias = random_tensor({11}, 8);
  const std::vector<std::pair<const char*, std::vector<tensor>>> cases = {
      {"add", {a, b}},       {"mul", {a, bias}},
      {"maximum", {a, b}},   {"sub", {a, a}},
      {"relu", {a}},         {"sigmoid", {a}},
      {"tanh", {a}},         {"neg", {a}},
      {"relu_grad", {a, b}}, {"sigmoid_grad", {a, b}},
      {"tanh_grad", {a, b}}, {"clip", {a, b, bias}}};
  for (const auto& [op, operands] : cases) {
    const auto expected = host.one(op, operands, a.spec());
    auto k = host.make(op);
    std::vector<tensor_spec> specs;
    for (const auto& t : operands) specs.push_back(t.spec());
    BOOST_REQUIRE((*k)->prepare(specs, std::vector{a.spec()}));
    auto shared = tensor::of<float>(
        dtype::f32, a.shape(), std::span(a.data<float>(), static_cast<std::size_t>(a.elements())));
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
  for (const auto* op : {"sigmoid", "tanh", "relu", "neg", "sigmoid_grad", "tanh_grad", "relu_grad",
                         "add", "sub", "mul", "maximum"}) {
    const bool is_unary = std::string_view(op) == "sigmoid" || std::string_view(op) == "tanh" ||
                          std::string_view(op) == "relu" || std::string_view(op) == "neg";
    const auto whole = host.one(op, is_unary ? std::vector{x} : std::vector{x, y}, x.spec());
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const auto xi = tensor::of({x.data<float>()[i]}, {1}),
                 yi = tensor::of({y.data<float>()[i]}, {1});
      const auto alone = host.one(op, is_unary ? std::vector{xi} : std::vector{xi, yi}, xi.spec());
      BOOST_TEST(std::memcmp(alone.data<float>(), whole.data<float>() + i, sizeof(float)) == 0,
                 op << " element " << i);
    }
  }
}

BOOST_AUTO_TEST_CASE(K_3_tensors_without_elements_are_legal) {
  kernel_harness host;
  const auto none = random_tensor({0, 5}, 1), bias = random_tensor({5}, 2),
             scalar = random_tensor({}, 3), narrow = random_tensor({4, 0}, 4),
             no_bias = random_tensor({0}, 5);
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
  BOOST_TEST(wrong.error().message().find("f32[2, 3], f32[2]") != std::string::npos,
             wrong.error().message());
  BOOST_TEST(!host.run("add", {a}, {a.spec()}));
  BOOST_TEST(!host.run("relu_grad", {a, random_tensor({4}, 3)}, {a.spec()}));
  BOOST_TEST(!host.run("add", {a, tensor_of<std::int32_t>({1}, {}, dtype::i32)}, {a.spec()}));
  const auto bytes = tensor_of<std::uint8_t>({1}, {1}, dtype::u8);
  BOOST_TEST(!host.run("neg", {bytes}, {bytes.spec()}));
  const auto one = random_tensor({1}, 4);
  BOOST_TEST(!host.run("add", {one, one}, {f32({3})}));  // larger than all its operands
}

BOOST_AUTO_TEST_SUITE_END()
