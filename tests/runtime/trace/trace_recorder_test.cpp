#include "troupe/runtime/trace/trace_recorder.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::uint64_t part = std::uint64_t{3} << 32;

// A node with a stream and a service worker, whose thread is the test's.
struct node {
  std::int64_t now = 10 * second;
  std::shared_ptr<trace_lane> stream, service;
  std::shared_ptr<std::atomic<std::uint64_t>> current =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::size_t asked = 0;  // for subjects
  trace_recorder recorder;
  std::uint64_t questions = 0;

  explicit node(std::size_t ring = 1024)
      : stream(std::make_shared<trace_lane>([this] { return now; }, ring)),
        service(std::make_shared<trace_lane>([this] { return now; }, ring)),
        recorder({{"cpu:0", true, stream, current}, {"service", false, service}},
                 [this](std::uint64_t s) { return describe(s); }) {}

  std::optional<trace_subject> describe(std::uint64_t subject) {
    ++asked;
    if (subject >> 32 != 3) return std::nullopt;
    trace_subject s;
    s.part = {3, job_id{5}, 1, "mnist", "/job:worker/task:0"};
    s.actor.part = 3;
    s.actor.name = "op" + std::to_string((subject & 0xffff) - 1);
    s.actor.inputs = {1}, s.actor.outputs = {2}, s.actor.ports = {0};
    return s;
  }

  trace_page ask(std::uint64_t recording, std::int64_t duration = 0, bool ends = false,
                 std::string owner = "process 1") {
    auto page = recorder.answer({++questions, recording, duration, ends, std::move(owner)}, now);
    BOOST_TEST(page.id == questions);
    BOOST_TEST(page.recording == recording);
    BOOST_TEST(page.now_ns == now);
    return page;
  }
  void fire(std::uint64_t actor, std::uint64_t step, std::int64_t takes = 1000) {
    now += takes;
    stream->slice(trace_kind::firing, part | (actor + 1), step);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(trace_recorder)

BOOST_AUTO_TEST_CASE(a_recording_begins_goes_on_and_ends_and_each_event_is_given_once) {
  node n;
  n.fire(0, 1);  // before
  auto page = n.ask(7, second);
  BOOST_TEST(page.error == "");
  BOOST_TEST(page.began_ns == n.now);
  BOOST_TEST(page.ended_ns == 0);
  BOOST_TEST(!page.is_last);
  BOOST_TEST_REQUIRE(page.lanes.size() == 2u);
  BOOST_TEST(page.lanes[0].events.empty());
  n.fire(0, 2);
  n.fire(1, 2);
  page = n.ask(7);
  BOOST_TEST(page.lanes[0].name == "cpu:0");
  BOOST_TEST(page.lanes[0].is_stream);
  BOOST_TEST_REQUIRE(page.lanes[0].events.size() == 2u);
  BOOST_TEST_REQUIRE(page.actors.size() == 2u);
  BOOST_TEST(page.actors[0].name == "op0");
  BOOST_TEST(page.actors[0].number == page.lanes[0].events[0].actor);
  BOOST_TEST(page.parts.size() == 1u);
  n.fire(0, 3);
  page = n.ask(7);
  BOOST_TEST(page.lanes[0].events.size() == 1u);
  BOOST_TEST(page.actors.empty());  // known by now
  BOOST_TEST(page.parts.empty());
  BOOST_TEST(n.asked == 2u);
  n.now += second;
  page = n.ask(7);
  BOOST_TEST(page.is_last);
  BOOST_TEST(page.ended_ns == page.began_ns + second);
  BOOST_TEST(!n.stream->is_on());
  (void)n.ask(7, 0, true);
  BOOST_TEST(n.recorder.recordings() == 0u);
}

BOOST_AUTO_TEST_CASE(RE_1_two_recordings_see_the_same_events) {
  node n;
  (void)n.ask(1, second);
  n.fire(0, 1);
  (void)n.ask(2, second);
  n.fire(1, 1);
  const auto first = n.ask(1), second_one = n.ask(2);
  BOOST_TEST(first.lanes[0].events.size() == 2u);
  BOOST_TEST_REQUIRE(second_one.lanes[0].events.size() == 1u);
  BOOST_TEST(second_one.actors.at(0).name == "op1");
  (void)n.ask(1, 0, true);
  BOOST_TEST(n.stream->is_on());
  n.fire(2, 2);
  BOOST_TEST(n.ask(2).lanes[0].events.size() == 1u);
  BOOST_TEST(n.ask(1).error.find("not known") != std::string::npos);
  (void)n.ask(2, 0, true);
  BOOST_TEST(!n.stream->is_on());
}

BOOST_AUTO_TEST_CASE(RE_1_one_too_many_hears_who_was_first) {
  node n;
  for (std::uint64_t i = 0; i < trace_recordings_max; ++i) {
    n.now += 1000;
    BOOST_TEST(n.ask(100 - i, second, false, "process " + std::to_string(i)).error == "");
  }
  const auto page = n.ask(200, second);
  BOOST_TEST(page.error == "8 recordings already run on this node, the first by process 0");
  BOOST_TEST(page.is_last);
  BOOST_TEST(n.ask(100).error == "");
  BOOST_TEST(n.ask(300, trace_duration_max_ns + 1).error.find("at most") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(RE_2_what_a_tool_leaves_behind_is_switched_off_and_forgotten) {
  node n;
  (void)n.ask(1, 10 * second);
  for (int i = 0; i < 6; ++i) {
    BOOST_TEST(n.stream->is_on());
    n.now += second;
    n.recorder.tick(n.now);
  }
  BOOST_TEST(!n.stream->is_on());
  BOOST_TEST(n.recorder.recordings() == 0u);
  // One that was over, and whose pages nobody fetched.
  (void)n.ask(2, second);
  n.now += 2 * second;
  n.recorder.tick(n.now);
  BOOST_TEST(!n.stream->is_on());
  BOOST_TEST(n.recorder.recordings() == 1u);
  n.now += trace_lease_ns;
  n.recorder.tick(n.now);
  BOOST_TEST(n.recorder.recordings() == 0u);
}

BOOST_AUTO_TEST_CASE(
    RE_3_events_are_cut_off_at_both_ends_and_what_runs_or_sleeps_at_the_end_is_told) {
  node n;
  (void)n.ask(1, 10 * second);  // so that the lane is on before
  n.now += 1000;
  const auto began = n.ask(2, second).began_ns;
  n.fire(0, 1, 5000);  // began before
  n.service->falls_asleep();
  n.current->store(part | 2);
  n.now += 2 * second;
  auto page = n.ask(2);
  BOOST_TEST_REQUIRE(page.lanes[0].events.size() == 1u);
  BOOST_TEST(page.lanes[0].events[0].begin_ns == began);
  BOOST_TEST(page.is_last);
  BOOST_TEST(page.lanes[1].is_asleep);
  const auto running = std::ranges::find(page.actors, page.lanes[0].running, &traced_actor::number);
  BOOST_TEST_REQUIRE((running != page.actors.end()));
  BOOST_TEST(running->name == "op1");
  // A slice that ends behind the end is cut off, what begins there is left out.
  node m;
  const auto start = m.ask(3, second).began_ns;
  m.fire(0, 1, second / 2);
  m.fire(0, 2, second);
  m.fire(0, 3, second);
  page = m.ask(3);
  BOOST_TEST_REQUIRE(page.lanes[0].events.size() == 2u);
  BOOST_TEST(page.lanes[0].events[1].end_ns == start + second);
}

BOOST_AUTO_TEST_CASE(RE_3_what_was_written_over_is_counted) {
  node n(64);
  (void)n.ask(1, second);
  for (std::uint64_t i = 0; i < 200; ++i) n.fire(0, i);
  const auto page = n.ask(1);
  BOOST_TEST(page.lanes[0].lost + page.lanes[0].events.size() == 200u);
  BOOST_TEST(page.lanes[0].events.size() == 63u);
  BOOST_TEST(page.lanes[1].lost == 0u);
  n.fire(0, 200);
  BOOST_TEST(n.ask(1).lanes[0].lost == 0u);
}

BOOST_AUTO_TEST_CASE(RE_4_what_does_not_fit_into_a_page_comes_with_the_next_ones) {
  node n(std::size_t{1} << 17);
  (void)n.ask(1, second);
  constexpr std::size_t events = 60'000;
  for (std::uint64_t i = 0; i < events; ++i) n.fire(i, i, 10);
  for (std::uint64_t i = 0; i < 100; ++i)
    n.service->slice(trace_kind::turn,
                     reinterpret_cast<std::uintptr_t>(i % 2 == 0 ? "node" : "link"));
  n.now += 2 * second;
  std::size_t got = 0, of_service = 0, pages = 0;
  std::vector<traced_actor> actors;
  for (bool is_last = false; !is_last; ++pages) {
    auto page = n.ask(1);
    std::size_t here = 0;
    for (const auto& l : page.lanes) here += l.events.size();
    BOOST_TEST(here <= trace_page_events_max);
    got += page.lanes[0].events.size();
    of_service += page.lanes[1].events.size();
    actors.insert(actors.end(), page.actors.begin(), page.actors.end());
    is_last = page.is_last;
    BOOST_TEST(page.has_more == !is_last);
    BOOST_TEST_REQUIRE(pages < 100u);
  }
  BOOST_TEST(got == events);
  BOOST_TEST(of_service == 100u);
  BOOST_TEST(pages >= events / (trace_page_events_max / 2));
  BOOST_TEST(actors.size() == events + 2);
  BOOST_TEST(std::ranges::count(actors, std::string("link"), &traced_actor::name) == 1);
}

namespace {

// A node with a device, whose stream's lane is told of things later.
struct node_with_device {
  std::int64_t now = 10 * second;
  std::shared_ptr<trace_lane> worker = std::make_shared<trace_lane>([this] { return now; }, 64),
                              stream = std::make_shared<trace_lane>([this] { return now; }, 64);
  troupe::trace_recorder recorder{
      {{"gpu:0", true, worker}, {.name = "gpu:0/compute", .lane = stream, .is_told_later = true}},
      [](std::uint64_t) { return std::nullopt; }};

  trace_page ask(std::uint64_t recording, std::int64_t duration = 0) {
    return recorder.answer({1, recording, duration, false, "process 1"}, now);
  }
  void ran(std::int64_t begin, std::int64_t end) {
    stream->device_work({begin, end, trace_kind::kernel, part | 1, 4});
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(RE_5_what_a_device_ran_before_the_end_is_in_it_though_the_lane_hears_later) {
  node_with_device n;
  const auto began = n.ask(1, second).began_ns;
  n.ran(began + 100, began + 200);
  BOOST_TEST(n.ask(1).lanes[1].events.size() == 1u);
  n.now = began + second + 1000;
  auto page = n.ask(1);
  BOOST_TEST(page.ended_ns == began + second);
  BOOST_TEST(!page.is_last);
  BOOST_TEST(!n.worker->is_on());  // RE-2
  BOOST_TEST(n.stream->is_on());
  n.stream->knows_until(began + second - 1);
  BOOST_TEST(!n.ask(1).is_last);
  n.ran(began + 300, began + 400);
  n.ran(began + 500, began + 2 * second);         // cut off
  n.ran(began + second + 1, began + 2 * second);  // of another time
  n.stream->knows_until(began + second);
  page = n.ask(1);
  BOOST_TEST(page.is_last);
  BOOST_REQUIRE(page.lanes[1].events.size() == 2u);
  BOOST_TEST(page.lanes[1].events[1].end_ns == began + second);
  BOOST_TEST(!n.stream->is_on());
}

BOOST_AUTO_TEST_CASE(RE_5_a_lane_that_hears_of_nothing_holds_no_recording_for_longer_than_that) {
  node_with_device n;
  const auto began = n.ask(1, second).began_ns;
  (void)n.ask(2, 5 * second);
  n.now = began + second + trace_settle_ns - 1;
  BOOST_TEST(!n.ask(1).is_last);
  n.now += 1;
  BOOST_TEST(n.ask(1).is_last);
  BOOST_TEST(n.stream->is_on());  // for the other
  n.ran(began + 2 * second, began + 2 * second + 1);
  BOOST_TEST(n.ask(1).lanes[1].events.empty());
  BOOST_TEST(n.ask(2).lanes[1].events.size() == 1u);
  // And one that nobody asks for any more.
  n.now = began + 5 * second + trace_settle_ns;
  n.recorder.tick(n.now);
  BOOST_TEST(!n.stream->is_on());
  n.now += trace_lease_ns;
  n.recorder.tick(n.now);
  BOOST_TEST(n.recorder.recordings() == 0u);
}

BOOST_AUTO_TEST_CASE(RE_4_names_of_kernels_count_and_those_beyond_the_limit_are_left_out) {
  std::int64_t now = second;
  const auto lane = std::make_shared<trace_lane>([&] { return now; }, 64);
  constexpr std::size_t kernels = 3000, name_bytes = 1000;  // 3 MB
  troupe::trace_recorder recorder({{.name = "gpu:0/compute", .lane = lane, .is_told_later = true}},
                                  [](std::uint64_t) {
                                    trace_subject s;
                                    s.actor.name = "segment";
                                    s.actor.kernels.assign(kernels, std::string(name_bytes, 'k'));
                                    return std::optional(s);
                                  });
  (void)recorder.answer({1, 1, second, false, "process 1"}, now);
  for (std::uint64_t i = 1; i <= 12; ++i)
    lane->device_work({now, now, trace_kind::kernel, i, 1, 0});
  std::size_t actors = 0, pages = 0;
  for (bool has_more = true; has_more; ++pages) {
    const auto page = recorder.answer({1, 1, 0, false, ""}, now);
    std::size_t bytes = 0;
    for (const auto& a : page.actors) {
      BOOST_TEST(a.kernels.size() == trace_kernel_bytes_max / (name_bytes + 16));
      for (const auto& k : a.kernels) bytes += k.size();
    }
    BOOST_TEST(bytes <= trace_page_described_max + trace_kernel_bytes_max);
    actors += page.actors.size();
    has_more = page.has_more;
    BOOST_REQUIRE(pages < 20u);
  }
  BOOST_TEST(actors == 12u);
  BOOST_TEST(pages > 2u);
}

BOOST_AUTO_TEST_CASE(who_is_not_known_any_more_has_a_number_and_no_name) {
  node n;
  (void)n.ask(1, second);
  n.now += 10;
  n.stream->slice(trace_kind::firing, (std::uint64_t{9} << 32) | 1, 4);
  const auto page = n.ask(1);
  BOOST_TEST_REQUIRE(page.actors.size() == 1u);
  BOOST_TEST(page.actors[0].number == page.lanes[0].events.at(0).actor);
  BOOST_TEST(page.actors[0].name == "");
  BOOST_TEST(page.parts.empty());
}

BOOST_AUTO_TEST_CASE(a_query_of_no_recording_tells_the_time) {
  node n;
  const auto page = n.ask(0, second);
  BOOST_TEST(page.error == "");
  BOOST_TEST(page.lanes.empty());
  BOOST_TEST(n.recorder.recordings() == 0u);
}

BOOST_AUTO_TEST_CASE(TP_2_a_recording_has_no_more_events_than_there_is_room_for) {
  node n;
  (void)n.ask(1, second);
  for (std::uint64_t i = 0; i < 10; ++i) n.fire(0, i);
  node_recording r;
  r.add(n.ask(1), 6);
  BOOST_TEST(r.events() == 6u);
  BOOST_TEST(r.left_out == 4u);
  for (std::uint64_t i = 0; i < 10; ++i) n.fire(0, i);
  r.add(n.ask(1), 8);
  BOOST_TEST(r.events() == 8u);
  BOOST_TEST(r.lost() == 12u);
}

BOOST_AUTO_TEST_CASE(a_clock_is_known_by_the_quickest_answer_and_may_be_our_own) {
  trace_clock c;
  c.hear(1000, 501'000, 3000);
  BOOST_TEST(c.ahead_ns == 499'000);
  BOOST_TEST(c.error_ns == 1000);
  c.hear(10'000, 520'000, 20'000);  // slower
  BOOST_TEST(c.ahead_ns == 499'000);
  c.hear(30'000, 529'150, 30'200);
  BOOST_TEST(c.ahead_ns == 499'050);
  BOOST_TEST(c.error_ns == 100);
  trace_clock own;
  own.hear(1000, 1200, 3000);
  BOOST_TEST(own.ahead_ns == 0);
}

BOOST_AUTO_TEST_SUITE_END()
