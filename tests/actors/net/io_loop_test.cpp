#include "troupe/actors/net/io_loop.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/net/tcp_socket.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

using namespace troupe;

namespace {

constexpr std::int64_t ms = 1'000'000;

struct counter final : io_loop::fd_handler {
  void on_ready(bool readable, bool writable) override {
    ++calls;
    reads += readable;
    writes += writable;
    if (then) then();
  }
  int calls = 0, reads = 0, writes = 0;
  std::function<void()> then;
};

unique_fd signalled() { return unique_fd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

BOOST_AUTO_TEST_SUITE(io_loop)

BOOST_AUTO_TEST_CASE(IO_1_wake_ends_a_wait_and_what_was_done_before_is_seen) {
  class io_loop loop;
  for (int round = 0; round < 2000; ++round) {
    int value = 0;
    std::thread other([&] {
      if (round % 3 == 0) std::this_thread::yield();
      value = round;
      loop.wake();
    });
    const auto before = loop.now_ns();
    loop.poll(10'000);
    BOOST_REQUIRE_EQUAL(value, round);
    BOOST_REQUIRE_LT(loop.now_ns() - before, 5'000 * ms);
    const test::waiting_for named("the end of the thread that wakes the loop");
    other.join();
    loop.poll(0);
  }
}

BOOST_AUTO_TEST_CASE(IO_1_a_wake_before_the_wait_ends_it_and_only_once) {
  class io_loop loop;
  loop.wake();
  loop.wake();
  auto before = loop.now_ns();
  loop.poll(10'000);
  BOOST_TEST(loop.now_ns() - before < 5'000 * ms);
  before = loop.now_ns();
  loop.poll(30);
  BOOST_TEST(loop.now_ns() - before >= 29 * ms);
}

BOOST_AUTO_TEST_CASE(IO_1_no_wake_is_lost_between_two_threads_that_pass_a_value_to_and_fro) {
  class io_loop here, there;
  std::atomic<int> turn{0};
  constexpr int rounds = 20'000;
  std::thread other([&] {
    for (int i = 1; i < rounds; i += 2) {
      while (turn.load(std::memory_order_relaxed) != i) there.poll(10'000);
      turn.store(i + 1, std::memory_order_relaxed);
      here.wake();
    }
  });
  const test::waiting_for named("its turn, or the end of the other thread");
  const auto before = here.now_ns();
  for (int i = 0; i < rounds; i += 2) {
    turn.store(i + 1, std::memory_order_relaxed);
    there.wake();
    while (turn.load(std::memory_order_relaxed) != i + 2) here.poll(10'000);
  }
  other.join();
  BOOST_TEST(here.now_ns() - before < 9'000 * ms);  // one lost wake alone would cost 10 s
}

BOOST_AUTO_TEST_CASE(IO_2_a_removed_handler_is_not_called_although_its_event_was_fetched) {
  class io_loop loop;
  const auto a = signalled(), b = signalled();
  auto first = std::make_shared<counter>(), second = std::make_shared<counter>();
  // Whichever comes first removes the other, and puts a new handler on the same descriptor.
  auto third = std::make_shared<counter>();
  auto replace = [&](const unique_fd& own, const unique_fd& other) {
    loop.remove(own.get());
    loop.remove(other.get());
    loop.add(other.get(), third, true, false);
  };
  first->then = [&] { replace(a, b); };
  second->then = [&] { replace(b, a); };
  loop.add(a.get(), first, true, false);
  loop.add(b.get(), second, true, false);
  BOOST_TEST(loop.poll(1000) == 1);
  BOOST_TEST(first->calls + second->calls == 1);
  BOOST_TEST(third->calls == 0);
  loop.poll(1000);
  BOOST_TEST(third->calls == 1);
}

BOOST_AUTO_TEST_CASE(interest_can_be_changed) {
  class io_loop loop;
  const auto fd = signalled();
  auto h = std::make_shared<counter>();
  loop.add(fd.get(), h, false, false);
  loop.poll(0);
  BOOST_TEST(h->calls == 0);
  loop.change(fd.get(), true, true);
  loop.poll(0);
  BOOST_TEST((h->reads == 1 && h->writes == 1));
  loop.change(fd.get(), false, true);
  loop.poll(0);
  BOOST_TEST((h->reads == 1 && h->writes == 2));
}

BOOST_AUTO_TEST_CASE(IO_3_timers_fire_in_order_and_never_early) {
  class io_loop loop;
  std::vector<int> order;
  const auto start = loop.now_ns();
  bool is_early = false;
  for (const int delay : {30, 10, 20, 10, 0})
    loop.after(delay * ms, [&, delay] {
      is_early = is_early || loop.now_ns() - start < delay * ms;
      order.push_back(delay);
    });
  const test::waiting_for named("timers, which end a wait without a limit");
  while (order.size() < 5) loop.poll(-1);
  BOOST_TEST((order == std::vector<int>{0, 10, 10, 20, 30}));
  BOOST_TEST(!is_early);
}

BOOST_AUTO_TEST_CASE(
    IO_4_a_cancelled_timer_does_not_fire_also_when_cancelled_by_another_that_is_due) {
  class io_loop loop;
  int fired = 0;
  timer_id second{};
  loop.after(0, [&] {
    ++fired;
    loop.cancel(second);
    loop.cancel(second);
  });
  second = loop.after(0, [&] { fired += 100; });
  const auto third = loop.after(0, [&] { fired += 1000; });
  loop.cancel(third);
  loop.cancel(timer_id{12345});
  loop.poll(10);
  loop.poll(10);
  BOOST_TEST(fired == 1);
}

BOOST_AUTO_TEST_CASE(a_timer_that_starts_itself_again_does_not_hold_the_loop_up) {
  class io_loop loop;
  int fired = 0;
  std::function<void()> again = [&] {
    ++fired;
    loop.after(0, again);
  };
  loop.after(0, again);
  const test::waiting_for named("the timer");
  for (int i = 0; i < 5; ++i) loop.poll(-1);
  BOOST_TEST(fired == 5);
}

BOOST_AUTO_TEST_CASE(what_is_deferred_runs_when_the_handler_has_returned_or_before_the_next_wait) {
  class io_loop loop;
  std::string log;
  loop.defer([&] { log += 'a'; });
  loop.after(0, [&] {
    loop.defer([&] { log += 'c'; });
    log += 'b';
  });
  loop.after(0, [&] { log += 'd'; });
  const test::waiting_for named("the timer");
  loop.poll(-1);
  BOOST_TEST(log == "abcd");
  loop.defer([&] { loop.defer([&] { log += 'e'; }); });
  loop.poll(5'000);  // does not wait with something deferred
  loop.poll(0);
  BOOST_TEST(log == "abcde");
}

BOOST_AUTO_TEST_CASE(a_loop_that_ends_lets_go_of_handlers_and_timers) {
  auto h = std::make_shared<counter>();
  const auto fd = signalled();
  {
    class io_loop loop;
    loop.add(fd.get(), h, true, false);
    loop.after(1000 * ms, [h] {});
    loop.defer([h] {});
    BOOST_TEST(h.use_count() == 4);
  }
  BOOST_TEST(h.use_count() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
