// Test cases that do not end, in several ways, for the watch of test cases, which ends them
// (tests/case_watch.py); and some that do.

#include "tests/support/wait.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

using namespace troupe;

namespace {

std::atomic<bool> is_said{false};  // never

void wait_for_a_word() {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return is_said.load(); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hangs)

BOOST_AUTO_TEST_CASE(ends) { BOOST_TEST(!is_said); }

BOOST_AUTO_TEST_CASE(spins) {
  while (!is_said) {
  }
}

// The test waits for its own thread, and that for what nobody says; what it printed has not reached
// anyone yet.
BOOST_AUTO_TEST_CASE(joins) {
  std::thread other([] {
    const test::waiting_for named("a word that nobody says");
    wait_for_a_word();
  });
  std::printf("this was printed before");
  const test::waiting_for named("the end of the other thread");
  other.join();
}

BOOST_AUTO_TEST_CASE(polls) {
  test::wait_until("it is said", [] { return is_said.load(); });
}

// As `polls`, with a limit of its own, which ends it.
BOOST_AUTO_TEST_CASE(polls_for_a_second) {
  test::wait_until("it is said", [] { return is_said.load(); }, std::chrono::seconds(1));
}

BOOST_AUTO_TEST_SUITE_END()
