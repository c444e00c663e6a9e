#include "troupe/runtime/firing/ports.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

struct fixture {
  edge_credit in0{2}, in1{2}, out0{2}, out1{1};
  port_set<int> ports;

  fixture() {
    for (auto* c : {&in0, &in1}) ports.in.push_back({item_queue(2), c, 0, 0, false});
    for (auto* c : {&out0, &out1}) ports.out.push_back({c, 0, 0, 0, false, false});
  }
  void arrive(std::uint32_t port, std::uint64_t step) {
    BOOST_TEST_REQUIRE((port == 0 ? in0 : in1).take());
    ports.arrive(port, {tag{.step = step}, tensor::of({float(step)}, {})});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(ports)

BOOST_FIXTURE_TEST_CASE(a_firing_needs_every_input_and_a_credit_on_every_output, fixture) {
  BOOST_TEST((ports.next_wait().kind == wait_kind::input));
  arrive(1, 0);
  BOOST_TEST((ports.next_wait().kind == wait_kind::input));
  BOOST_TEST(ports.next_wait().index == 0);
  arrive(0, 0);
  BOOST_TEST((ports.next_wait().kind == wait_kind::none));
}

BOOST_FIXTURE_TEST_CASE(PO_3_no_credit_is_taken_before_the_inputs_are_here, fixture) {
  arrive(0, 0);
  BOOST_TEST((ports.next_wait().kind == wait_kind::input));
  BOOST_TEST(out0.free() == 2);
  BOOST_TEST(out1.free() == 1);
}

BOOST_FIXTURE_TEST_CASE(a_full_edge_promises_its_next_credit_to_the_producer_that_waits, fixture) {
  BOOST_TEST_REQUIRE(out1.take());  // the one buffer is with the consumer
  arrive(0, 0);
  arrive(1, 0);
  const auto w = ports.next_wait();
  BOOST_TEST((w.kind == wait_kind::credit));
  BOOST_TEST(w.index == 1);
  BOOST_TEST(out1.is_waiting());
  BOOST_TEST((ports.next_wait().kind == wait_kind::credit));  // asking again takes nothing more
  // The consumer must send the credit as a message.
  BOOST_TEST(out1.give());
  ports.grant(1);
  BOOST_TEST((ports.next_wait().kind == wait_kind::none));
  BOOST_TEST(ports.out[0].is_held);
  BOOST_TEST(ports.out[1].is_held);
}

BOOST_FIXTURE_TEST_CASE(PO_1_more_items_than_credits_break_an_invariant, fixture) {
  ports.arrive(0, {});
  ports.arrive(0, {});
  BOOST_CHECK_THROW(ports.arrive(0, {}), broken_invariant);
  BOOST_CHECK_THROW(ports.arrive(2, {}), broken_invariant);
  BOOST_CHECK_THROW(ports.grant(0), broken_invariant);  // nobody waited for it
}

BOOST_AUTO_TEST_CASE(a_queue_keeps_its_order_around_the_end_of_its_ring) {
  item_queue q(3);
  std::uint64_t next_in = 0, next_out = 0;
  for (int round = 0; round < 20; ++round) {
    while (q.size() < 3) q.push({tag{.step = next_in++}, {}});
    for (int i = 0; i < 1 + round % 3; ++i) BOOST_TEST(q.pop().t.step == next_out++);
  }
  q.clear();
  BOOST_TEST(q.is_empty());
}

BOOST_AUTO_TEST_SUITE_END()
