#include "tools/troupe-tool/look_taker.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t hang_ns = 60'000'000'000;

void wait_for(const std::string& what, const std::function<bool()>& is_so) {
  const auto end = steady_now_ns() + hang_ns;
  while (!is_so()) {
    BOOST_TEST_REQUIRE(steady_now_ns() < end, "waited 60 s until " << what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(look_taker)

BOOST_AUTO_TEST_CASE(SE_7_many_who_look_share_one_question_at_a_time) {
  std::atomic<int> under_way{0}, most{0}, asked{0}, told{0};
  troupe::look_taker taker(
      [&]() -> result<cluster_snapshot> {
        most = std::max(most.load(), ++under_way);
        ++asked;
        cluster_snapshot c;
        c.cluster = std::to_string(asked.load());
        --under_way;
        return c;
      },
      [&] { ++told; });
  BOOST_TEST(taker.last() == nullptr);
  BOOST_TEST(asked.load() == 0);
  std::vector<std::thread> lookers;
  std::atomic<bool> is_over{false};
  for (int i = 0; i < 4; ++i)
    lookers.emplace_back([&] {
      while (!is_over) {
        taker.want();
        (void)taker.last();
        (void)taker.before();
        std::this_thread::yield();
      }
    });
  wait_for("there are three looks", [&] {
    const auto last = taker.last();
    return last != nullptr && last->number >= 3;
  });
  is_over = true;
  for (auto& t : lookers) t.join();
  BOOST_TEST(most.load() == 1);
  const auto last = taker.last(), before = taker.before();
  BOOST_TEST(last->number > before->number);
  BOOST_TEST(last->began_ns - before->began_ns >= 1'000'000'000);
  BOOST_TEST(std::stoi(last->snapshot->cluster) == static_cast<int>(last->number));
  wait_for("everybody was told", [&] { return told.load() >= asked.load(); });
}

BOOST_AUTO_TEST_CASE(a_look_that_fails_says_why_and_the_last_good_one_is_kept) {
  std::atomic<int> asked{0};
  troupe::look_taker taker(
      [&]() -> result<cluster_snapshot> {
        const int n = ++asked;
        if (n == 2) return error(error_code::unreachable, "nobody is there");
        if (n == 3) throw std::bad_alloc();
        return cluster_snapshot{};
      },
      [] {});
  const auto wait_for_look = [&](std::uint64_t n) {
    wait_for("there is a look " + std::to_string(n), [&] {
      taker.want();
      const auto last = taker.last();
      return last != nullptr && last->number >= n;
    });
    return taker.last();
  };
  BOOST_TEST(wait_for_look(1)->snapshot.has_value());
  BOOST_TEST(taker.before() == nullptr);
  const auto second = wait_for_look(2);
  if (second->number == 2) {
    BOOST_TEST(second->failure->message() == "nobody is there");
    BOOST_TEST(second->failed == 1U);
    BOOST_TEST(taker.before()->number == 1U);
  }
  const auto fourth = wait_for_look(4);
  BOOST_TEST(fourth->failed == 2U);
  BOOST_TEST(fourth->snapshot.has_value());
  BOOST_TEST(!taker.before()->failure.has_value());
}

BOOST_AUTO_TEST_CASE(the_end_waits_for_the_question_under_way) {
  std::atomic<bool> is_asking{false}, may_go_on{false}, has_answered{false};
  {
    troupe::look_taker taker(
        [&]() -> result<cluster_snapshot> {
          is_asking = true;
          wait_for("it may go on", [&] { return may_go_on.load(); });
          has_answered = true;
          return cluster_snapshot{};
        },
        [] {});
    taker.want();
    wait_for("it asks", [&] { return is_asking.load(); });
    BOOST_TEST(!taker.stop());
    may_go_on = true;
  }
  BOOST_TEST(has_answered.load());
}

BOOST_AUTO_TEST_SUITE_END()
