#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cmath>
#include <thread>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
  eager e{ops, kernels, device};

  std::vector<float> numbers(value v) {
    const auto t = e.read(v);
    BOOST_TEST_REQUIRE(static_cast<bool>(t), (t ? "" : t.error().text()));
    return {t->data<float>(), t->data<float>() + t->elements()};
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(eager)

BOOST_AUTO_TEST_CASE(functions_compute_at_once) {
  fixture f;
  const auto x = f.e.value_of(tensor::of({1, -2, 3, -4}, {2, 2})),
             w = f.e.value_of(tensor::of({1, 0, 0, 2}, {2, 2}));
  const auto y = relu(matmul(x, w)) + 1;
  BOOST_TEST(f.numbers(y) == (std::vector<float>{2, 1, 4, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_arithmetic_of_the_thread_stays_as_it_was) {
  fixture f;
  std::fesetenv(FE_DFL_ENV);               // whatever tests before have left
  const volatile float small = 0x1p-130F;  // kernels take it for 0
  BOOST_TEST_REQUIRE(small * 2 != 0);
  BOOST_TEST((f.numbers(neg(f.e.value_of(tensor::of({1}, {1})))) == std::vector<float>{-1}));
  BOOST_TEST(small * 2 != 0);
}

BOOST_AUTO_TEST_CASE(gradients_are_values_too_and_have_gradients) {
  fixture f;
  const auto x = f.e.value_of(tensor::of({1, 2, 3}, {3}));
  const auto once = gradients(f.e, reduce_sum(x * x * x), std::array{x});
  BOOST_TEST(f.numbers(once[0]) == (std::vector<float>{3, 12, 27}),
             boost::test_tools::per_element());
  const auto twice = gradients(f.e, reduce_sum(once[0]), std::array{x});
  BOOST_TEST(f.numbers(twice[0]) == (std::vector<float>{6, 12, 18}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(operators_name_the_line_of_the_expression) {
  fixture f;
  const auto a = f.e.value_of(tensor::of({1, 2}, {2})),
             b = f.e.value_of(tensor::of({1, 2, 3}, {3}));
  const auto line = source_location::current().line() + 1;
  const auto y = 2 * a + b / 3;
  BOOST_TEST(!y.is_valid());
  BOOST_TEST_REQUIRE(f.e.first_error().has_value());
  const auto text = f.e.first_error()->text();
  BOOST_TEST(text.find("eager_test.cpp:" + std::to_string(line)) != std::string::npos, text);
  BOOST_TEST(text.find("a f32[2], b f32[3]") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(an_error_stays_until_it_is_taken_and_then_all_goes_on) {
  fixture f;
  const auto x = f.e.value_of(tensor::of({1, 2}, {2}));
  const std::int32_t places[] = {5};
  const auto at = f.e.value_of(tensor::of<std::int32_t>(dtype::i32, {1}, places));
  const auto y = gather(x, at);
  BOOST_TEST(!y.is_valid());
  BOOST_TEST(!f.e.read(relu(y)));
  const auto error = f.e.take_error();
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST(error->text().find("gather: index 0 is 5, expected 0 to 1") != std::string::npos,
             error->text());
  BOOST_TEST(!f.e.first_error().has_value());
  BOOST_TEST(f.numbers(relu(x)) == (std::vector<float>{1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_not_given_and_what_is_not_there_are_errors) {
  fixture f;
  BOOST_TEST(!input(f.e, {dtype::f32, {2}}, "x").is_valid());
  BOOST_TEST(f.e.take_error()->text().find("an input has no value here: use value_of()") !=
             std::string::npos);
  BOOST_TEST(!f.e.value_of(tensor()).is_valid());
  BOOST_TEST(f.e.take_error()->text().find("there is no tensor") != std::string::npos);
  BOOST_TEST(!f.e.read(value{}));
  value gone;
  {
    const troupe::eager::tape tape(f.e);
    gone = f.e.value_of(tensor::of({1}, {1}));
  }
  BOOST_TEST(!f.e.read(gone));
  const auto huge = pad(f.e.value_of(tensor::of({1}, {1})), {std::int64_t{1} << 50}, {0});
  BOOST_TEST(!huge.is_valid());
  BOOST_TEST(f.e.take_error()->text().find("there is no memory for f32[1125899906842625]") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_tape_takes_away_what_was_made_on_it_and_names_begin_anew) {
  fixture f;
  const auto x = f.e.value_of(tensor::of({1, 2, 3, 4, 5, 6, 7, 8}, {8}));
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    const troupe::eager::tape tape(f.e);
    f.e.set_step(7);
    const auto y = f.numbers(dropout(x, 0.5));
    if (i == 0) first = y;
    BOOST_TEST(y == first, boost::test_tools::per_element());
  }
  BOOST_TEST(f.e.nodes().size() == 1u);
  f.e.set_step(8);
  BOOST_TEST((f.numbers(dropout(x, 0.5)) != first));
}

// Of a batch in parts each worker draws what the whole batch would have there.
BOOST_AUTO_TEST_CASE(random_numbers_of_a_part_are_those_of_the_whole) {
  for (const auto type : {dtype::f32, dtype::f64})
    for (const std::string op : {"random_uniform_like", "random_normal_like", "dropout_mask"}) {
      fixture f;
      const auto draw = [&](std::int64_t rows, std::int64_t part) {
        const auto like = f.e.value_of(tensor::make({type, {rows, 7}}));
        const auto y =
            f.e.add(op, std::array{like},
                    {{"seed", std::int64_t{3}}, {"rows", rows}, {"part", part}, {"rate", 0.5}}, "y",
                    source_location::current());
        const auto bytes = f.e.read(y)->bytes();
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      };
      const auto all = draw(6, 0);
      std::vector<std::byte> joined;
      for (std::int64_t part = 0; part < 3; ++part) {
        const auto some = draw(2, part);
        joined.insert(joined.end(), some.begin(), some.end());
      }
      BOOST_TEST((all == joined), op);
    }
}

BOOST_AUTO_TEST_CASE(random_numbers_have_the_mean_and_deviation_that_they_should) {
  fixture f;
  const tensor_spec many{dtype::f32, {100'000}};
  const auto moments = [&](value v) {
    const auto x = f.numbers(v);
    double sum = 0, squares = 0;
    for (const auto n : x)
      sum += static_cast<double>(n), squares += static_cast<double>(n) * static_cast<double>(n);
    const auto mean = sum / static_cast<double>(x.size());
    return std::pair(mean, std::sqrt(squares / static_cast<double>(x.size()) - mean * mean));
  };
  const auto uniform = random_uniform(f.e, many, -1, 3), normal = random_normal(f.e, many, 2, 0.5);
  BOOST_TEST(moments(uniform).first == 1.0, boost::test_tools::tolerance(0.02));
  BOOST_TEST(moments(uniform).second == 4 / std::sqrt(12.0), boost::test_tools::tolerance(0.02));
  BOOST_TEST(moments(normal).first == 2.0, boost::test_tools::tolerance(0.02));
  BOOST_TEST(moments(normal).second == 0.5, boost::test_tools::tolerance(0.02));
  const auto all = f.numbers(uniform);
  BOOST_TEST(*std::min_element(all.begin(), all.end()) >= -1);
  BOOST_TEST(*std::max_element(all.begin(), all.end()) < 3);
  const auto kept = f.numbers(dropout(
      f.e.value_of(tensor::of<float>(dtype::f32, {100'000}, std::vector<float>(100'000, 1))),
      0.25));
  const auto zeros = std::count(kept.begin(), kept.end(), 0.0F);
  BOOST_TEST(static_cast<double>(zeros) / 1e5 == 0.25, boost::test_tools::tolerance(0.02));
  BOOST_TEST(std::count(kept.begin(), kept.end(), static_cast<float>(1 / 0.75)) == 100'000 - zeros);
  // Two ops with one seed draw differently.
  BOOST_TEST((f.numbers(random_uniform(f.e, many)) != f.numbers(random_uniform(f.e, many))));
}

// Where denormal numbers are not zero, gelu of a large negative number would be one, times that.
BOOST_AUTO_TEST_CASE(a_thread_that_computed_nothing_yet_gives_the_bits_of_any_other) {
  std::vector<float> fresh;
  std::thread([&] {
    fixture f;
    fresh = f.numbers(gelu(
        f.e.value_of(tensor::of<float>(dtype::f32, {3}, std::vector<float>{-3e38F, -20, 1e-40F}))));
  }).join();
  for (const auto x : fresh) BOOST_TEST(x == 0.0F);
}

BOOST_AUTO_TEST_SUITE_END()
