#include "tests/support/wait.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

// Every field says which number it is of, so that one that was torn shows.
trace_event numbered(std::uint64_t n) {
  return {static_cast<std::int64_t>(n),
          static_cast<std::int64_t>(n + 1),
          n % 2 == 0 ? trace_kind::firing : trace_kind::apply,
          ~n,
          n * 3,
          static_cast<std::uint32_t>(n & 0xffffff),
          static_cast<std::uint32_t>(n),
          0};
}

struct clocked_lane {
  std::int64_t now = 1000;
  trace_lane lane{[this] { return now; }, 64};

  std::vector<trace_event> written() const {
    std::uint64_t cursor = 0;
    std::vector<trace_event> out;
    if (lane.ring() != nullptr) (void)lane.ring()->read(cursor, 64, out);
    return out;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(trace_ring)

BOOST_AUTO_TEST_CASE(events_come_back_as_they_were) {
  troupe::trace_ring ring(4);
  const trace_event transfer{
      5, 9, trace_kind::transfer, 7, 3, trace_event::everywhere, 0, (std::uint64_t{1} << 56) - 1};
  const trace_event firing{
      -3, 1, trace_kind::firing, ~std::uint64_t{0}, 1, trace_event::everywhere, 0xffffffff, 0};
  const trace_event kernel{1, 2, trace_kind::kernel, 9, 4, 17, 0, 0};
  const trace_event copy{
      2, 3, trace_kind::copy, 9, 4, trace_event::everywhere, 0, std::uint64_t{1} << 40};
  for (const auto& e : {transfer, firing, kernel}) ring.write(e);
  std::uint64_t cursor = 0;
  std::vector<trace_event> out;
  BOOST_TEST(ring.read(cursor, 10, out) == 0u);
  BOOST_TEST_REQUIRE(out.size() == 3u);
  BOOST_TEST((out[0] == transfer));
  BOOST_TEST((out[1] == firing));
  BOOST_TEST((out[2] == kernel));
  BOOST_TEST(ring.read(cursor, 10, out) == 0u);
  BOOST_TEST(out.size() == 3u);
  ring.write(copy);
  BOOST_TEST(ring.read(cursor, 10, out) == 0u);
  BOOST_TEST((out.back() == copy));
}

BOOST_AUTO_TEST_CASE(RI_2_what_was_written_over_is_lost_and_counted) {
  for (const std::uint64_t written : {0, 1, 7, 8, 9, 15, 16, 17, 100}) {
    troupe::trace_ring ring(8);
    for (std::uint64_t n = 0; n < written; ++n) ring.write(numbered(n));
    std::uint64_t cursor = 0, lost = 0;
    std::vector<trace_event> out;
    for (int i = 0; i < 100; ++i) lost += ring.read(cursor, 3, out);
    BOOST_TEST(out.size() + lost == written);
    BOOST_TEST(cursor == written);
    // The one in whose place the writer might be counts as lost, too.
    BOOST_TEST(out.size() == std::min<std::uint64_t>(written, 7));
    for (std::size_t i = 0; i < out.size(); ++i) BOOST_TEST((out[i] == numbered(lost + i)));
  }
}

BOOST_AUTO_TEST_CASE(RI_2_every_reader_has_a_cursor_of_its_own) {
  troupe::trace_ring ring(8);
  for (std::uint64_t n = 0; n < 5; ++n) ring.write(numbered(n));
  std::uint64_t first = 0, second = ring.written();
  for (std::uint64_t n = 5; n < 7; ++n) ring.write(numbered(n));
  std::vector<trace_event> of_first, of_second;
  BOOST_TEST(ring.read(first, 100, of_first) == 0u);
  BOOST_TEST(ring.read(second, 100, of_second) == 0u);
  BOOST_TEST(of_first.size() == 7u);
  BOOST_TEST(of_second.size() == 2u);
}

BOOST_AUTO_TEST_CASE(
    RI_1_RI_2_readers_beside_a_writer_get_whole_events_in_order_and_count_the_others) {
  constexpr std::uint64_t events = 400'000;
  troupe::trace_ring ring(256);
  std::atomic<bool> has_ended{false};
  std::atomic<int> readers{0};
  struct outcome {
    std::uint64_t lost = 0, wrong = 0, got = 0;
  };
  const auto read_all = [&](std::size_t at_once, outcome& o) {
    std::uint64_t cursor = 0;
    std::vector<trace_event> out;
    ++readers;
    for (bool is_last = false; !is_last;) {
      is_last = has_ended.load();
      for (std::uint64_t before = cursor + 1; before != cursor;) {
        before = cursor;
        out.clear();
        o.lost += ring.read(cursor, at_once, out);
        for (std::size_t i = 0; i < out.size(); ++i)
          o.wrong += !(out[i] == numbered(cursor - out.size() + i));
        o.got += out.size();
      }
    }
  };
  outcome many, few;
  std::thread slow([&] { read_all(200, many); }), fast([&] { read_all(7, few); });
  const test::waiting_for named("both readers, to begin and to end");
  while (readers < 2) std::this_thread::yield();
  for (std::uint64_t n = 0; n < events; ++n) {
    ring.write(numbered(n));
    if (n % 64 == 0) std::this_thread::yield();
  }
  has_ended = true;
  slow.join();
  fast.join();
  for (const auto& o : {many, few}) {
    BOOST_TEST(o.wrong == 0u);
    BOOST_TEST(o.got + o.lost == events);
    BOOST_TEST(o.got > 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_lane_that_is_off_records_nothing_and_takes_no_memory) {
  clocked_lane l;
  l.lane.slice(trace_kind::firing, 1);
  l.lane.falls_asleep();
  l.lane.wakes();
  l.lane.device_work({1, 2, trace_kind::kernel, 9, 4});
  BOOST_TEST(!l.lane.is_on());
  BOOST_TEST(l.lane.ring() == nullptr);
}

BOOST_AUTO_TEST_CASE(RI_3_slices_begin_where_the_one_before_ended_or_the_thread_woke) {
  clocked_lane l;
  l.lane.switch_on(l.now);
  l.now = 1100;
  l.lane.slice(trace_kind::firing, 1, 5);
  l.now = 1150;
  l.lane.slice(trace_kind::firing, 2, 5, 3, 9);
  l.now = 1200;
  l.lane.falls_asleep();
  BOOST_TEST(l.lane.is_asleep());
  l.now = 1900;
  l.lane.wakes();
  BOOST_TEST(!l.lane.is_asleep());
  l.now = 1950;
  l.lane.slice(trace_kind::emit, 1, 6, 0);
  const auto e = l.written();
  BOOST_TEST_REQUIRE(e.size() == 4u);
  BOOST_TEST(
      (e[0] == trace_event{1000, 1100, trace_kind::firing, 1, 5, trace_event::everywhere, 0, 0}));
  BOOST_TEST((e[1] == trace_event{1100, 1150, trace_kind::firing, 2, 5, 3, 9, 0}));
  BOOST_TEST(
      (e[2] == trace_event{1200, 1900, trace_kind::idle, 0, 0, trace_event::everywhere, 0, 0}));
  BOOST_TEST((e[3] == trace_event{1900, 1950, trace_kind::emit, 1, 6, 0, 0, 0}));
}

BOOST_AUTO_TEST_CASE(RI_3_what_began_before_it_was_switched_on_is_cut_off_there) {
  clocked_lane l;
  l.lane.switch_on(l.now);
  l.now = 1100;
  l.lane.slice(trace_kind::firing, 1);
  l.lane.switch_off();
  l.now = 2000;
  l.lane.slice(trace_kind::firing, 2);
  l.lane.falls_asleep();
  l.now = 3000;
  l.lane.switch_on(l.now);  // while it sleeps
  l.now = 3500;
  l.lane.wakes();
  const auto e = l.written();
  BOOST_TEST_REQUIRE(e.size() == 2u);
  BOOST_TEST(
      (e[1] == trace_event{3000, 3500, trace_kind::idle, 0, 0, trace_event::everywhere, 0, 0}));
}

BOOST_AUTO_TEST_CASE(RI_4_a_lane_is_switched_while_its_thread_writes) {
  std::atomic<std::int64_t> clock{0};
  trace_lane lane([&] { return ++clock; }, 1024);
  std::atomic<bool> has_ended{false};
  std::thread writer([&] {
    for (std::uint64_t n = 0; !has_ended.load(std::memory_order_relaxed); ++n) {
      lane.slice(trace_kind::firing, n, n);
      if (n % 100 == 0) lane.falls_asleep(), lane.wakes();
    }
  });
  const test::waiting_for named("what the other thread writes, or its end");
  std::uint64_t cursor = 0, wrong = 0, seen = 0;
  std::int64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    lane.switch_on(++clock);
    std::vector<trace_event> out;
    while (out.empty()) (void)lane.ring()->read(cursor, 100, out);
    lane.switch_off();
    for (const auto& e : out) {
      wrong += e.begin_ns < last || e.end_ns < e.begin_ns;
      last = e.end_ns;
    }
    seen += out.size();
  }
  has_ended = true;
  writer.join();
  BOOST_TEST(wrong == 0u);
  BOOST_TEST(seen >= 200u);
}

BOOST_AUTO_TEST_SUITE_END()
