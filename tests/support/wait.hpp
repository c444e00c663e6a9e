#pragma once
// Waits of tests, which end: with what they waited for, and where.

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <source_location>
#include <string>
#include <thread>

namespace troupe::test {

// A limit against hangs, far beyond what any wait takes on a busy machine: it decides nothing else.
constexpr std::chrono::seconds hang{60};

// Asks `is_so` every few milliseconds until it is; after `limit` the test case fails with `what`, "the client is linked to both nodes".
template <class Predicate>
void wait_until(const std::string& what, Predicate&& is_so, std::chrono::seconds limit = hang, const std::source_location& where = std::source_location::current()) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= end)
      BOOST_FAIL(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": waited " + std::to_string(limit.count()) + " s until " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace troupe::test
