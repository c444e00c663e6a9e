#pragma once
// Waits of tests, which end: with what they waited for, and where.

#include <boost/test/unit_test.hpp>

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace troupe::test {

// A limit against hangs, far beyond what any wait takes on a busy machine: it decides nothing else.
constexpr std::chrono::seconds hang{60};

inline std::string place_of(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

// For as long as it lives, its thread waits for `what`, "the end of the second recording", in a way
// that takes no limit of its own, such as a join. Where the test case does not end, its watch tells
// this (case_watch.cpp).
// Threading: each belongs to a thread; all() is of all of them.
class [[nodiscard]] waiting_for {
 public:
  explicit waiting_for(const std::string& what,
                       const std::source_location& where = std::source_location::current())
      : waiting_for("for", what, where) {}
  // `how` to go on: "for", "until".
  waiting_for(const std::string& how, const std::string& what, const std::source_location& where)
      : text_(how + " " + what + " (" + place_of(where) + ")") {
    const std::scoped_lock lock(list().mutex);
    list().waits.push_back(this);
  }
  ~waiting_for() {
    const std::scoped_lock lock(list().mutex);
    std::erase(list().waits, this);
  }
  waiting_for(const waiting_for&) = delete;
  waiting_for& operator=(const waiting_for&) = delete;

  // What the threads of this process wait for now, "for ..." or "until ...", with the places.
  static std::vector<std::string> all() {
    const std::scoped_lock lock(list().mutex);
    std::vector<std::string> texts;
    for (const auto* w : list().waits) texts.push_back(w->text_);
    return texts;
  }

 private:
  struct of_all_threads {
    std::mutex mutex;
    std::vector<const waiting_for*> waits;
  };
  static of_all_threads& list() {
    static of_all_threads all;
    return all;
  }

  std::string text_;
};

// Ends the test case: `what`, "the next event of the training", has not come.
[[noreturn]] inline void fail_waiting(std::string_view how, const std::string& what,
                                      std::chrono::seconds limit,
                                      const std::source_location& where) {
  BOOST_FAIL(place_of(where) << ": waited " << limit.count() << " s " << how << " " << what);
  std::abort();  // not reached: BOOST_FAIL throws
}

// Asks `is_so` every few milliseconds until it is; after `limit` the test case fails with `what`,
// "the client is linked to both nodes".
template <class Predicate>
void wait_until(const std::string& what, Predicate&& is_so, std::chrono::seconds limit = hang,
                const std::source_location& where = std::source_location::current()) {
  const waiting_for named("until", what, where);  // the question itself may not come back
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= end) fail_waiting("until", what, limit, where);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Until there is something to read, or to accept, or nobody who will write any more.
inline void wait_readable(int fd, const std::string& what,
                          const std::source_location& where = std::source_location::current()) {
  constexpr int limit_ms = std::chrono::milliseconds(hang).count();
  pollfd asked{fd, POLLIN, 0};
  int n = 0;
  do {
    n = ::poll(&asked, 1, limit_ms);
  } while (n < 0 && errno == EINTR);
  if (n == 0) fail_waiting("until", what, hang, where);
}

}  // namespace troupe::test
