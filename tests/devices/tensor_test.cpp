// The handle: who may write, and when memory goes.

#include "tests/support/wait.hpp"
#include "troupe/devices/tensor.hpp"

#include <boost/test/unit_test.hpp>

#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(tensor)

BOOST_AUTO_TEST_CASE(a_tensor_is_unique_to_its_only_handle) {
  auto a = troupe::tensor::of({1, 2, 3}, {3});
  BOOST_TEST(a.is_unique());
  {
    const auto b = a;
    BOOST_TEST(!a.is_unique());
    BOOST_TEST(std::as_const(a).data<float>() == b.data<float>());
  }
  BOOST_TEST(a.is_unique());
  const auto c = std::move(a);
  BOOST_TEST(c.is_unique());
  BOOST_TEST(!troupe::tensor().is_unique());
}

BOOST_AUTO_TEST_CASE(a_count_of_its_own_shares_the_bytes_and_is_unique_only_when_alone) {
  auto a = troupe::tensor::of({1, 2, 3}, {3});
  auto b = a.with_own_count();
  BOOST_TEST(std::as_const(b).data<float>() == std::as_const(a).data<float>());
  BOOST_TEST((b.spec() == a.spec()));
  BOOST_TEST(b.capacity_bytes() == a.capacity_bytes());
  BOOST_TEST(!a.is_unique());
  BOOST_TEST(!b.is_unique());
  {
    const auto c = b;  // counted by b's count
    a = troupe::tensor();
    BOOST_TEST(!b.is_unique());
  }
  BOOST_TEST(b.is_unique());  // it alone holds the bytes
  b.data<float>()[0] = 7;
  b.reshape({dtype::f32, {1, 3}});
  BOOST_TEST((b.shape() == shape{1, 3}));
  const auto of_both = b.with_own_count();  // of one that has one itself
  BOOST_TEST(!b.is_unique());
  b = troupe::tensor();
  BOOST_TEST(of_both.data<float>()[0] == 7.0F);
  BOOST_TEST(of_both.is_unique());
}

BOOST_AUTO_TEST_CASE(a_part_lies_in_the_tensor_and_keeps_its_bytes) {
  auto a = troupe::tensor::make({dtype::f32, {64}});
  for (std::size_t i = 0; i < 64; ++i) a.data<float>()[i] = static_cast<float>(i);
  auto p = a.part(128, {dtype::f32, {2, 5}});
  BOOST_TEST(std::as_const(p).data<float>() == std::as_const(a).data<float>() + 32);
  BOOST_TEST(!a.is_unique());
  auto of_part = p.part(0, {dtype::f32, {3}});
  p = troupe::tensor();
  a = troupe::tensor();
  BOOST_TEST(of_part.data<float>()[2] == 34.0F);
  BOOST_TEST(of_part.is_unique());
  BOOST_CHECK_THROW((void)of_part.part(4, {dtype::f32, {1}}), broken_invariant);
  BOOST_CHECK_THROW((void)of_part.part(0, {dtype::f32, {4}}), broken_invariant);
}

BOOST_AUTO_TEST_CASE(a_count_made_of_one_that_is_gone_knows_of_the_first_tensor) {
  const auto a = troupe::tensor::of({1}, {1});
  auto b = a.with_own_count();
  const auto c = b.with_own_count();
  b = troupe::tensor();
  BOOST_TEST(!c.is_unique());
  BOOST_TEST(!a.is_unique());
}

BOOST_AUTO_TEST_CASE(the_first_one_is_unique_again_when_the_other_is_gone) {
  auto a = troupe::tensor::of({5}, {1});
  {
    const auto b = a.with_own_count(), c = b;
  }
  BOOST_TEST(a.is_unique());
  auto d = a.with_own_count();
  d = troupe::tensor::of({6}, {1});
  BOOST_TEST(a.is_unique());
}

// Under ThreadSanitizer and AddressSanitizer: each thread its own count, the bytes go with the
// last.
BOOST_AUTO_TEST_CASE(handles_of_several_counts_come_and_go_on_several_threads) {
  auto a = troupe::tensor::of({1, 2, 3, 4}, {4});
  std::vector<float> sums(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < sums.size(); ++t)
    threads.emplace_back([own = a.with_own_count(), &out = sums[t]]() mutable {
      float sum = 0;
      for (int i = 0; i < 1000; ++i) {
        const auto copy = own;
        sum += copy.data<float>()[i % 4];
      }
      own = troupe::tensor();
      out = sum;
    });
  a = troupe::tensor();
  const test::waiting_for named("the end of all threads");
  for (auto& t : threads) t.join();
  for (const auto sum : sums) BOOST_TEST(sum == 2500.0F);
}

BOOST_AUTO_TEST_SUITE_END()
