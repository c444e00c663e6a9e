#include "troupe/runtime/firing/shared_buffer.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

const tensor_spec four{dtype::f32, {4}};
constexpr auto nobody = std::nullopt;

}  // namespace

BOOST_AUTO_TEST_SUITE(shared_buffer)

BOOST_AUTO_TEST_CASE(SB_1_uses_take_turns_when_all_readers_are_done) {
  troupe::shared_buffer b(16, 1);
  const auto first = b.add_use(10, false), second = b.add_use(20, false);
  BOOST_TEST(!b.try_begin(second, 0));
  BOOST_TEST(b.try_begin(first, 0));
  auto value = b.begin(first, 0, 2, four);
  const auto* where = value.bytes().data();
  BOOST_TEST(!b.try_begin(second, 0));
  BOOST_CHECK(b.release(0) == nobody);
  value = tensor();
  BOOST_CHECK(b.release(0) == std::optional(20u));  // it had asked
  BOOST_TEST(b.try_begin(second, 0));
  value = b.begin(second, 0, 1, four);
  BOOST_TEST(value.bytes().data() == where);
  BOOST_TEST(!b.try_begin(first, 1));
  value = tensor();
  BOOST_CHECK(b.release(0) == std::optional(10u));
  BOOST_TEST(b.try_begin(first, 1));
  BOOST_TEST(b.bytes_taken() == 16u);
}

BOOST_AUTO_TEST_CASE(each_step_in_flight_has_a_copy) {
  troupe::shared_buffer b(16, 2);
  const auto use = b.add_use(1, false);
  const auto even = b.begin(use, 4, 1, four);
  BOOST_TEST(b.try_begin(use, 5));
  const auto odd = b.begin(use, 5, 1, four);
  BOOST_TEST(even.bytes().data() != odd.bytes().data());
  BOOST_TEST(!b.try_begin(use, 6));
  BOOST_CHECK(b.release(4) == std::optional(1u));
}

BOOST_AUTO_TEST_CASE(one_that_writes_over_what_it_takes_waits_for_the_other_readers) {
  troupe::shared_buffer b(16, 1);
  const auto first = b.add_use(1, false), over = b.add_use(2, true), last = b.add_use(3, false);
  const auto value = b.begin(first, 0, 2, four);
  BOOST_TEST(!b.try_begin(over, 0));
  BOOST_CHECK(b.release(0) == std::optional(2u));  // the other reader is done
  BOOST_TEST(b.try_begin(over, 0));
  auto made = b.begin(over, 0, 1, four);
  BOOST_TEST(made.bytes().data() == value.bytes().data());
  BOOST_TEST(!b.try_begin(last, 0));
  BOOST_CHECK(b.release(0) == std::optional(3u));
}

BOOST_AUTO_TEST_CASE(what_is_handed_on_has_more_readers) {
  troupe::shared_buffer b(16, 1);
  const auto first = b.add_use(1, false), second = b.add_use(2, false);
  b.begin(first, 0, 1, four);
  b.add_readers(0, 2);  // by the only reader, which hands it on to two
  BOOST_CHECK(b.release(0) == nobody);
  BOOST_CHECK(b.release(0) == nobody);
  BOOST_TEST(!b.try_begin(second, 0));
  BOOST_CHECK(b.release(0) == std::optional(2u));
}

BOOST_AUTO_TEST_CASE(SB_2_who_asked_is_woken_once_and_nobody_else) {
  troupe::shared_buffer b(16, 1);
  const auto first = b.add_use(1, false), second = b.add_use(2, false);
  b.begin(first, 0, 1, four);
  BOOST_CHECK(b.release(0) == nobody);  // the second has not asked
  b.begin(second, 0, 0, four);
  BOOST_TEST(!b.try_begin(first, 1));
  BOOST_TEST(!b.try_begin(first, 1));
  BOOST_CHECK(b.end_turn(0) == std::optional(1u));
  b.begin(first, 1, 1, four);
  BOOST_CHECK(b.release(1) == nobody);
}

BOOST_AUTO_TEST_CASE(a_reader_that_keeps_what_it_took_costs_fresh_memory) {
  troupe::shared_buffer b(16, 1);
  const auto use = b.add_use(1, false);
  auto kept = b.begin(use, 0, 1, four);
  kept.data<float>()[0] = 7;
  b.release(0);
  auto next = b.begin(use, 1, 1, four);
  next.data<float>()[0] = 8;
  BOOST_TEST(kept.data<float>()[0] == 7);
}

BOOST_AUTO_TEST_CASE(smaller_tensors_and_other_shapes_fit_into_it) {
  troupe::shared_buffer b(64, 1);
  const auto first = b.add_use(1, false), second = b.add_use(2, false);
  const auto* where = b.begin(first, 0, 1, {dtype::f64, {8}}).bytes().data();
  b.release(0);
  const auto small = b.begin(second, 0, 1, {dtype::i32, {2, 3}});
  BOOST_TEST(small.bytes().data() == where);
  BOOST_TEST((small.spec() == tensor_spec{dtype::i32, {2, 3}}));
}

BOOST_AUTO_TEST_SUITE_END()
