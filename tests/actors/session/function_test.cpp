#include "troupe/actors/session/function.hpp"

#include <boost/test/unit_test.hpp>

#include <array>

using namespace troupe;

namespace {

std::vector<float> floats_of(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(function)

BOOST_AUTO_TEST_CASE(a_lambda_is_traced_once_for_each_combination_of_shapes) {
  auto s = session::open({});
  BOOST_TEST_REQUIRE(static_cast<bool>(s));
  int calls = 0;
  troupe::function f(**s, [&](value x, value w) {
    ++calls;
    return relu(matmul(x, w)) * 2;
  });
  const auto w = tensor::of({1, 0, 0, -1}, {2, 2});
  for (int i = 0; i < 3; ++i) {
    const auto y = f({tensor::of({1, 2}, {1, 2}), w});
    BOOST_TEST_REQUIRE(static_cast<bool>(y), (y ? "" : y.error().text()));
    BOOST_TEST(floats_of(y->at(0)) == (std::vector<float>{2, 0}), boost::test_tools::per_element());
  }
  BOOST_TEST(calls == 1);
  const auto two_rows = f({tensor::of({1, 2, 3, -4}, {2, 2}), w});
  BOOST_TEST_REQUIRE(static_cast<bool>(two_rows));
  BOOST_TEST(floats_of(two_rows->at(0)) == (std::vector<float>{2, 0, 6, 8}),
             boost::test_tools::per_element());
  BOOST_TEST(calls == 2);
  BOOST_TEST(f.traces() == 2u);
}

BOOST_AUTO_TEST_CASE(several_results_gradients_and_operands_that_nobody_needs) {
  auto s = session::open({});
  troupe::function f(**s, [](value x, value) {
    const auto y = reduce_sum(x * x);
    return std::vector{y, gradients(*x.owner, y, std::array{x})[0]};
  });
  const auto y = f({tensor::of({1, 2, 3}, {3}), tensor::of({9}, {1})});
  BOOST_TEST_REQUIRE(static_cast<bool>(y), (y ? "" : y.error().text()));
  BOOST_TEST(y->at(0).data<float>()[0] == 14);
  BOOST_TEST(floats_of(y->at(1)) == (std::vector<float>{2, 4, 6}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_call_on_values_adds_its_ops_to_their_graph) {
  auto s = session::open({});
  troupe::function twice(**s, [](value x) { return x + x; });
  const auto e = (*s)->eager();
  const auto x = e->value_of(tensor::of({1, 2}, {2}));
  const auto y = twice(std::array{x});
  BOOST_TEST(floats_of(*e->read(y[0])) == (std::vector<float>{2, 4}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(mistakes_are_errors_with_the_line_and_the_function_goes_on) {
  auto s = session::open({});
  troupe::function f(**s, [](value x, value w) { return matmul(x, w); });
  const auto x = tensor::of({1, 2}, {1, 2});
  const auto few = f({x});
  BOOST_TEST_REQUIRE(!few);
  BOOST_TEST(
      few.error().text().find("function 'function' takes 2 operands, not 1") != std::string::npos,
      few.error().text());
  BOOST_TEST(few.error().text().find("function_test.cpp:") != std::string::npos,
             few.error().text());
  const auto e = (*s)->eager();
  const auto invalid = f(std::array{e->value_of(x)});
  BOOST_TEST((invalid.size() == 1 && !invalid[0].is_valid()));
  BOOST_TEST(e->first_error()->text().find("takes 2 operands, not 1") != std::string::npos);
  const auto misfit = f({x, x});
  BOOST_TEST_REQUIRE(!misfit);
  BOOST_TEST(misfit.error().text().find("a f32[1, 2], b f32[1, 2]") != std::string::npos,
             misfit.error().text());
  const auto y = f({x, tensor::of({1, 2}, {2, 1})});
  BOOST_TEST_REQUIRE(static_cast<bool>(y));
  BOOST_TEST(y->at(0).data<float>()[0] == 5);
  troupe::function own(**s, [](value v) { return v + variable(*v.owner, v.spec(), {}, "w"); });
  const auto made = own({x});
  BOOST_TEST_REQUIRE(!made);
  BOOST_TEST(made.error().text().find("makes variable 'w' of its own: pass it as an operand") !=
                 std::string::npos,
             made.error().text());
  const auto says = [](const auto& done, std::string_view text) {
    BOOST_TEST_REQUIRE(!done);
    BOOST_TEST((done.error().code() == error_code::usage));
    BOOST_TEST(done.error().text().find(text) != std::string::npos, done.error().text());
    BOOST_TEST(done.error().text().find("function_test.cpp:") != std::string::npos);
  };
  says(f({x, tensor()}), "function 'function': an operand is not a tensor");
  troupe::function none(**s, [](value) { return std::vector<value>(); });
  says(none({x}), "function 'function' returns nothing");
  graph other((*s)->ops());
  const auto elsewhere = constant(other, 1.0F);
  troupe::function strange(**s, [=](value) { return elsewhere; });
  says(strange({x}), "function 'function' returns a value that it did not make from its operands");
}

BOOST_AUTO_TEST_SUITE_END()
