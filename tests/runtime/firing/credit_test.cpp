#include "tests/support/wait.hpp"
#include "troupe/runtime/firing/credit.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

// Producer, consumer and their mailboxes as a model, driven one step at a time over the real class.
struct edge_model {
  explicit edge_model(std::int32_t n) : credit(n) {}

  edge_credit credit;
  int to_send = 0;
  bool waits = false;  // the producer's take() failed and no message came yet
  int items_on_way = 0;
  int messages_on_way = 0;
  int held = 0;  // credits in the producer's hands
  int received = 0;

  bool can_produce() const { return !waits && to_send > 0; }
  bool can_consume() const { return items_on_way > 0; }
  bool can_deliver() const { return messages_on_way > 0; }

  void produce() {
    if (credit.take())
      send();
    else
      waits = true;
  }
  void deliver() {
    BOOST_REQUIRE(waits);
    --messages_on_way;
    waits = false;
    send();
  }
  void consume() {
    --items_on_way;
    ++received;
    if (credit.give()) ++messages_on_way;
  }
  void send() {
    --to_send;
    ++items_on_way;
  }

  void check() const {
    BOOST_REQUIRE_EQUAL(credit.free() + items_on_way + messages_on_way, credit.initial());  // CR-1
    BOOST_REQUIRE_LE(messages_on_way, 1);                                                   // CR-2
    // CR-2, CR-3.
    BOOST_REQUIRE_EQUAL(credit.is_waiting(), waits && messages_on_way == 0);
  }
};

// Runs a schedule, of choices among the steps that are possible; returns how many are possible
// after it.
int run_schedule(const std::vector<int>& choices, int credits, int items) {
  edge_model m(credits);
  m.to_send = items;
  const auto possible = [&] {
    return int(m.can_produce()) + int(m.can_consume()) + int(m.can_deliver());
  };
  for (int choice : choices) {
    if (m.can_produce() && choice-- == 0)
      m.produce();
    else if (m.can_consume() && choice-- == 0)
      m.consume();
    else
      m.deliver();
    m.check();
  }
  if (possible() == 0) BOOST_REQUIRE_EQUAL(m.received, items);  // nobody is stuck (CR-3)
  return possible();
}

std::uint64_t run_all(std::vector<int>& choices, int credits, int items) {
  const int possible = run_schedule(choices, credits, items);
  if (possible == 0) return 1;
  std::uint64_t schedules = 0;
  for (int c = 0; c < possible; ++c) {
    choices.push_back(c);
    schedules += run_all(choices, credits, items);
    choices.pop_back();
  }
  return schedules;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(credit)

BOOST_AUTO_TEST_CASE(a_failed_take_is_answered_by_the_next_give) {
  edge_credit c(2);
  BOOST_TEST(c.take());
  BOOST_TEST(c.take());
  BOOST_TEST(c.free() == 0);
  BOOST_TEST(!c.take());
  BOOST_TEST(c.is_waiting());
  BOOST_TEST(c.give());  // the producer holds this credit now
  BOOST_TEST(c.free() == 0);
  BOOST_TEST(!c.give());
  BOOST_TEST(c.free() == 1);
  BOOST_TEST(!c.give());
  BOOST_TEST(c.free() == 2);
}

BOOST_AUTO_TEST_CASE(CR_2_a_second_waiter_and_a_credit_from_nowhere_are_bugs) {
  edge_credit c(1);
  BOOST_CHECK_THROW((void)c.give(), broken_invariant);
  edge_credit d(1);
  BOOST_TEST(d.take());
  BOOST_TEST(!d.take());
  BOOST_CHECK_THROW((void)d.take(), broken_invariant);
  BOOST_CHECK_THROW(edge_credit(0), broken_invariant);
}

BOOST_AUTO_TEST_CASE(CR_1_CR_2_CR_3_hold_in_every_interleaving) {
  for (int credits = 1; credits <= 3; ++credits)
    for (int items = 1; items <= 9; ++items) {
      std::vector<int> choices;
      const auto schedules = run_all(choices, credits, items);
      BOOST_TEST(schedules >= 1);
      if (credits == 3 && items == 9) BOOST_TEST(schedules > 1000);  // the model does branch
    }
}

BOOST_AUTO_TEST_CASE(CR_4_two_threads_pass_a_million_items_through_plain_buffers) {
  constexpr std::uint64_t items = 1'000'000;
  constexpr std::size_t buffers = 3;
  edge_credit credit(buffers);
  // Not atomic: the thread sanitizer sees a missing order.
  std::array<std::uint64_t, buffers> memory{};
  std::atomic<std::uint64_t> sent{0};  // the item mailbox
  std::atomic<int> messages{0};        // the credit mailbox
  std::uint64_t waits = 0, told = 0, wrong = 0;

  std::thread consumer([&] {
    for (std::uint64_t i = 0; i < items; ++i) {
      while (sent.load(std::memory_order_acquire) <= i) std::this_thread::yield();
      if (memory[i % buffers] != i) ++wrong;
      if (credit.give()) {
        ++told;
        messages.fetch_add(1, std::memory_order_release);
      }
    }
  });
  const test::waiting_for named("credits, or the end of the consumer, which waits for items");
  for (std::uint64_t i = 0; i < items; ++i) {
    if (!credit.take()) {
      ++waits;
      while (messages.load(std::memory_order_acquire) == 0) std::this_thread::yield();
      messages.fetch_sub(1, std::memory_order_relaxed);
    }
    memory[i % buffers] = i;
    sent.store(i + 1, std::memory_order_release);
  }
  consumer.join();
  BOOST_TEST(wrong == 0u);
  BOOST_TEST(waits == told);
  BOOST_TEST(credit.free() == static_cast<std::int32_t>(buffers));
}

BOOST_AUTO_TEST_SUITE_END()
