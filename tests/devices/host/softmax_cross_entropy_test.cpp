#include "tests/devices/kernel_harness.hpp"

#include <cmath>

using namespace troupe;
using namespace troupe::test;

namespace {

tensor some_labels(std::int64_t rows, std::int64_t classes) {
  auto t = tensor::make({dtype::i32, {rows}});
  for (std::int64_t r = 0; r < rows; ++r)
    t.data<std::int32_t>()[r] = static_cast<std::int32_t>(r * 7 % classes);
  return t;
}

std::vector<tensor> loss_of(kernel_harness& host, const tensor& x, const tensor& labels,
                            float scale) {
  auto r =
      host.run("softmax_cross_entropy", {x, labels, tensor::of({scale}, {})}, {f32({}), x.spec()});
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  return std::move(*r);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(softmax_cross_entropy)

BOOST_AUTO_TEST_CASE(loss_and_gradient_agree_with_double_precision) {
  kernel_harness host;
  for (const auto& [rows, classes] :
       {std::pair{1L, 10L}, {128L, 10L}, {96L, 3L}, {65L, 1L}, {64L, 1000L}}) {
    const auto x = random_tensor({rows, classes}, 1, -30, 30);
    const auto labels = some_labels(rows, classes);
    const auto out = loss_of(host, x, labels, 0.125F);
    double loss = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      const auto at = [&](std::int64_t c) {
        return static_cast<double>(x.data<float>()[r * classes + c]);
      };
      for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(at(c));
      const auto label = labels.data<std::int32_t>()[r];
      loss += 0.125 * (std::log(sum) - at(label));
      for (std::int64_t c = 0; c < classes; ++c) {
        const double expected = 0.125 * (std::exp(at(c)) / sum - (c == label ? 1 : 0));
        BOOST_TEST(std::abs(static_cast<double>(out[1].data<float>()[r * classes + c]) - expected) <
                   1e-7);
      }
    }
    BOOST_TEST(std::abs(static_cast<double>(out[0].data<float>()[0]) - loss) <= 1e-6 * loss + 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(huge_logits_overflow_nothing) {
  kernel_harness host;
  const auto out = loss_of(host, tensor::of({1e30F, 0, -1e30F}, {1, 3}),
                           tensor_of<std::int32_t>({0}, {1}, dtype::i32), 1);
  BOOST_TEST(out[0].data<float>()[0] == 0.0F);
  BOOST_TEST(values_of(out[1]) == (std::vector<float>{0, 0, 0}));
}

BOOST_AUTO_TEST_CASE(K_2_a_row_has_the_same_gradient_wherever_it_stands) {
  kernel_harness host;
  const auto x = random_tensor({150, 10}, 3);
  const auto labels = some_labels(150, 10);
  const auto whole = loss_of(host, x, labels, 0.01F);
  for (std::int64_t r = 0; r < 150; ++r) {
    const auto row =
        tensor::of<float>(dtype::f32, {1, 10}, std::span(x.data<float>() + r * 10, 10));
    const auto alone =
        loss_of(host, row,
                tensor_of<std::int32_t>({labels.data<std::int32_t>()[r]}, {1}, dtype::i32), 0.01F);
    BOOST_TEST(std::memcmp(alone[1].data<float>(), whole[1].data<float>() + r * 10, 40) == 0,
               "row " << r);
  }
}

BOOST_AUTO_TEST_CASE(K_3_no_rows_have_no_loss) {
  kernel_harness host;
  const auto out = loss_of(host, random_tensor({0, 10}, 1), some_labels(0, 10), 0);
  BOOST_TEST(out[0].data<float>()[0] == 0.0F);
}

BOOST_AUTO_TEST_CASE(a_label_out_of_range_is_an_error_naming_row_and_label) {
  kernel_harness host;
  for (const std::int32_t label : {10, -1}) {
    const auto labels = tensor_of<std::int32_t>({3, label}, {2}, dtype::i32);
    const auto r =
        host.run("softmax_cross_entropy", {random_tensor({2, 10}, 1), labels, tensor::of({1}, {})},
                 {f32({}), f32({2, 10})});
    BOOST_REQUIRE(!r);
    BOOST_TEST(r.error().message() == "softmax_cross_entropy: the label of row 1 is " +
                                          std::to_string(label) + ", expected 0 to 9");
  }
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_errors) {
  kernel_harness host;
  const auto x = random_tensor({2, 10}, 1), scale = tensor::of({1}, {});
  const auto op = "softmax_cross_entropy";
  BOOST_TEST(!host.run(op, {x, some_labels(3, 10), scale}, {f32({}), x.spec()}));
  BOOST_TEST(!host.run(op, {x, random_tensor({2}, 1), scale}, {f32({}), x.spec()}));
  BOOST_TEST(!host.run(op, {x, some_labels(2, 10), tensor::of({1}, {1})}, {f32({}), x.spec()}));
  BOOST_TEST(!host.run(op, {x, some_labels(2, 10), scale}, {f32({}), f32({2, 9})}));
  BOOST_TEST(
      !host.run(op, {random_tensor({2, 0}, 1), some_labels(2, 1), scale}, {f32({}), f32({2, 0})}));
}

BOOST_AUTO_TEST_SUITE_END()
