// What streams say of the work that they ran, on the asynchronous host device: in which order, and
// over which time.

#include "tests/support/wait.hpp"
#include "troupe/devices/async_host/async_host_chip.hpp"
#include "troupe/devices/device/device_trace.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

using chip = async_host_chip;

struct sink final : slice_sink {
  std::int64_t now_ns() const override {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }
  void add(const device_slice& s) override { slices.push_back(s); }
  std::string ops() const {
    std::string all;
    for (const auto& s : slices) all += std::string(s.op) + " ";
    return all;
  }
  std::vector<device_slice> slices;
};

result<void> nothing() { return {}; }

bool are_in_order(const std::vector<device_slice>& all) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].end_ns < all[i].begin_ns || (i > 0 && all[i].begin_ns < all[i - 1].end_ns))
      return false;
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_trace)

BOOST_AUTO_TEST_CASE(DT_1_each_piece_of_work_gives_a_slice_with_what_it_was_and_whose) {
  for (const bool threaded : {false, true}) {
    chip c({.threaded = threaded});
    const auto gpu = c.make_device("gpu:0");
    auto s = *gpu->make_stream(stream_kind::compute);
    const auto seen = std::make_shared<sink>();
    std::array<std::byte, 64> from{}, to{};
    BOOST_REQUIRE(bool(s->enqueue("before", {}, nothing)));
    s->trace(seen);
    s->label({7, 1, 0});
    BOOST_REQUIRE(bool(s->enqueue("matmul", {}, nothing)));
    s->label({8, 2});
    BOOST_REQUIRE(bool(s->copy("copy", to, memory_kind::device, from, memory_kind::pageable)));
    BOOST_REQUIRE(bool(s->fill_zero("zero", to)));
    BOOST_REQUIRE(bool(s->set_draw(5)));  // of none of the program's
    BOOST_REQUIRE(bool(s->begin_capture()));
    for (int i = 0; i < 3; ++i) BOOST_REQUIRE(bool(s->enqueue("captured", {}, nothing)));
    const auto step = *s->end_capture();
    s->label({9, 3});
    BOOST_REQUIRE(bool(s->replay("segment", *step)));
    BOOST_REQUIRE(bool(s->replay("segment", *step)));
    s->trace(nullptr);
    BOOST_REQUIRE(bool(s->enqueue("after", {}, nothing)));
    BOOST_REQUIRE(bool(s->synchronize()));
    s->collect();
    BOOST_TEST(seen->ops() == "matmul copy zero segment segment ");
    BOOST_REQUIRE(seen->slices.size() == 5u);
    BOOST_TEST((seen->slices[0].kind == slice_kind::kernel &&
                seen->slices[1].kind == slice_kind::copy &&
                seen->slices[3].kind == slice_kind::replay));
    BOOST_TEST((seen->slices[0].label.subject == 7u && seen->slices[0].label.kernel == 0u &&
                seen->slices[0].label.step == 1u));
    BOOST_TEST((seen->slices[1].label.subject == 8u &&
                seen->slices[1].label.kernel == slice_label::whole &&
                seen->slices[1].amount == 64u));
    BOOST_TEST((seen->slices[4].label.subject == 9u && seen->slices[4].amount == 3u));
    BOOST_TEST(are_in_order(seen->slices));
    s->collect();
    BOOST_TEST(seen->slices.size() == 5u);  // each once
  }
}

BOOST_AUTO_TEST_CASE(DT_1_what_fails_or_never_comes_to_run_gives_none) {
  chip c({});
  const auto gpu = c.make_device("gpu:0");
  auto s = *gpu->make_stream(stream_kind::compute);
  const auto seen = std::make_shared<sink>();
  s->trace(seen);
  c.fail_work(2);
  for (const char* op : {"first", "second", "third"})
    BOOST_REQUIRE(bool(s->enqueue(op, {}, nothing)));
  c.step_all();
  s->collect();
  BOOST_TEST(seen->ops() == "first ");
}

BOOST_AUTO_TEST_CASE(AH_7_stepped_the_times_are_steps_and_the_same_for_the_same_seed) {
  const auto run = [](std::uint64_t seed) {
    chip c({.seed = seed});
    const auto gpu = c.make_device("gpu:0");
    auto a = *gpu->make_stream(stream_kind::compute), b = *gpu->make_stream(stream_kind::copy_in);
    const auto of_a = std::make_shared<sink>(), of_b = std::make_shared<sink>();
    a->trace(of_a), b->trace(of_b);
    for (int i = 0; i < 10; ++i) {
      BOOST_REQUIRE(bool(a->enqueue("a", {}, nothing)));
      BOOST_REQUIRE(bool(b->enqueue("b", {}, nothing)));
      const auto e = *b->record();
      BOOST_REQUIRE(bool(a->wait(e)));  // a waits, and its gap is where b runs
      c.step_some();
    }
    c.step_all();
    a->collect(), b->collect();
    BOOST_TEST(of_a->slices.size() == 10u);
    BOOST_TEST(are_in_order(of_a->slices));
    std::vector<std::int64_t> times;
    for (const auto* all : {&of_a->slices, &of_b->slices})
      for (const auto& s : *all) {
        BOOST_TEST(s.end_ns - s.begin_ns == 1000);
        times.push_back(s.begin_ns);
      }
    // One thread: no two of them at once. And what waited for b's k-th began behind it.
    for (std::size_t i = 1; i < 10; ++i) BOOST_TEST(times[i] > times[10 + i - 1]);
    auto sorted = times;
    std::sort(sorted.begin(), sorted.end());
    BOOST_TEST((std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()));
    return times;
  };
  BOOST_TEST(run(3) == run(3));
  BOOST_TEST(run(3) != run(4));
}

// Each copy is done only while a kernel runs, and each kernel only ends once its copy has: their
// times have to overlap, however threads are scheduled.
BOOST_AUTO_TEST_CASE(DT_3_a_copy_that_ran_while_a_kernel_did_lies_within_it) {
  chip c({.threaded = true, .delay_max_us = 50});
  const auto gpu = c.make_device("gpu:0");
  auto compute = *gpu->make_stream(stream_kind::compute),
       copies = *gpu->make_stream(stream_kind::copy_in);
  const auto of_compute = std::make_shared<sink>(), of_copies = std::make_shared<sink>();
  compute->trace(of_compute), copies->trace(of_copies);
  constexpr int rounds = 50;
  std::atomic<int> begun = 0, copied = 0;
  for (int i = 1; i <= rounds; ++i) {
    BOOST_REQUIRE(bool(compute->enqueue("kernel", {}, [&, i]() -> result<void> {
      begun = i;
      while (copied < i) std::this_thread::yield();
      return {};
    })));
    BOOST_REQUIRE(bool(copies->enqueue("gate", {}, [&, i]() -> result<void> {
      while (begun < i) std::this_thread::yield();
      return {};
    })));
    BOOST_REQUIRE(bool(copies->enqueue("copy", {}, nothing)));
    BOOST_REQUIRE(bool(copies->call_host([&, i] { copied = i; })));
  }
  const test::waiting_for named("kernels and copies, which wait for each other");
  BOOST_REQUIRE(bool(compute->synchronize()));
  BOOST_REQUIRE(bool(copies->synchronize()));
  compute->collect(), copies->collect();
  BOOST_REQUIRE(of_compute->slices.size() == std::size_t{rounds});
  BOOST_REQUIRE(of_copies->slices.size() == std::size_t{2 * rounds});
  BOOST_TEST(are_in_order(of_compute->slices));
  BOOST_TEST(are_in_order(of_copies->slices));
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto &kernel = of_compute->slices[i], &copy = of_copies->slices[2 * i + 1];
    BOOST_TEST((kernel.begin_ns <= copy.begin_ns && copy.end_ns <= kernel.end_ns));
  }
}

BOOST_AUTO_TEST_CASE(DT_5_what_is_done_is_given_out_at_once_and_what_is_under_way_is_not) {
  chip c({});
  const auto gpu = c.make_device("gpu:0");
  auto s = *gpu->make_stream(stream_kind::compute);
  const auto seen = std::make_shared<sink>();
  s->trace(seen);
  for (std::size_t i = 0; i < 100; ++i) {
    BOOST_REQUIRE(bool(s->enqueue("a", {}, nothing)));
    s->collect();
    BOOST_TEST(seen->slices.size() == i);  // all that was done, and not what is under way
    c.step_all();
  }
}

BOOST_AUTO_TEST_CASE(CLK_1_CLK_2_a_clock_comes_nearer_with_every_piece_that_met_an_idle_device) {
  device_clock c;
  constexpr std::int64_t ahead = 5'000'000;  // what is to be found
  // Enqueued 400 us before it began, since the device was busy; then less; then right then.
  c.hear(100'000, 100'000 + ahead - 400'000);
  BOOST_TEST(c.host_ns(100'000) == 100'000 + ahead - 400'000);
  std::int64_t last = c.host_ns(150'000);
  for (const std::int64_t late : {300'000, 500'000, 8'000, 20'000}) {
    c.hear(200'000, 200'000 + ahead - late);
    BOOST_TEST(c.host_ns(150'000) >= last);
    last = c.host_ns(150'000);
  }
  BOOST_TEST(last == 150'000 + ahead - 8'000);
}

BOOST_AUTO_TEST_SUITE_END()
