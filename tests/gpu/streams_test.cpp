// Streams, events, memory, captured steps and faults on a device.

#include "tests/gpu/gpu.hpp"

#include <atomic>
#include <chrono>
#include <thread>

using namespace troupe;
using namespace troupe::test;

namespace {

bool comes_true(const auto& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Work of some milliseconds.
op_case long_work() {
  return {"matmul",
          {},
          {numbers(dtype::f32, {2048, 2048}, 1), numbers(dtype::f32, {2048, 2048}, 2)},
          {{dtype::f32, {2048, 2048}}},
          0,
          0};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(streams)

BOOST_AUTO_TEST_CASE(what_is_copied_in_comes_out_again) {
  gpu machine;
  auto in = machine.stream(stream_kind::copy_in), out = machine.stream(stream_kind::copy_out);
  for (const std::size_t bytes : {1, 7, 4096, 5'000'001}) {
    std::vector<std::byte> from(bytes), to(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7);
    auto m = in->allocate(bytes, "m");
    BOOST_REQUIRE(m);
    TROUPE_FINE(in->copy("in", bytes_of(*m), memory_kind::device, from, memory_kind::pageable));
    auto e = in->record();
    BOOST_REQUIRE(e);
    TROUPE_FINE(out->wait(*e));
    TROUPE_FINE(out->copy("out", to, memory_kind::pageable, bytes_of(*m), memory_kind::device));
    TROUPE_FINE(out->synchronize());
    BOOST_TEST((from == to));
    BOOST_TEST(e->is_done());
    in->free(*m);
  }
}

BOOST_AUTO_TEST_CASE(DV_2_an_event_is_done_when_what_was_before_is_and_stays_so) {
  gpu machine;
  auto s = machine.stream();
  const auto c = long_work();
  placed_op op(c, machine[0], *s);
  BOOST_REQUIRE_MESSAGE(op.problem().empty(), op.problem());
  TROUPE_FINE(s->synchronize());
  for (int i = 0; i < 20; ++i) TROUPE_FINE(op.enqueue());
  auto e = s->record();
  BOOST_REQUIRE(e);
  BOOST_TEST(!e->is_done());  // some ten milliseconds of work, enqueued in less than one
  std::atomic<bool> is_called{false};
  TROUPE_FINE(s->call_host([&] { is_called = true; }));
  BOOST_TEST(!is_called.load());
  BOOST_TEST(comes_true([&] { return is_called.load(); }));
  BOOST_TEST(e->is_done());
  BOOST_TEST(e->is_done());
}

BOOST_AUTO_TEST_CASE(DT_1_to_DT_3_what_ran_is_told_in_order_and_copies_lie_under_kernels) {
  struct sink final : slice_sink {
    std::int64_t now_ns() const override {
      return std::chrono::steady_clock::now().time_since_epoch().count();
    }
    void add(const device_slice& s) override { slices.push_back(s); }
    std::vector<device_slice> slices;
  };
  constexpr std::size_t bytes = std::size_t{64} << 20;
  gpu machine;
  auto s = machine.stream(), in = machine.stream(stream_kind::copy_in);
  const auto c = long_work();
  placed_op op(c, machine[0], *s);
  BOOST_REQUIRE_MESSAGE(op.problem().empty(), op.problem());
  auto there = in->allocate(bytes, "m");
  auto here = machine[0].allocate_pinned(bytes);
  BOOST_REQUIRE((there && here));
  TROUPE_FINE(s->begin_capture());
  for (int i = 0; i < 5; ++i) TROUPE_FINE(op.enqueue());
  auto step = s->end_capture();
  BOOST_REQUIRE(step);
  TROUPE_FINE(s->synchronize());
  TROUPE_FINE(in->synchronize());
  const auto of_s = std::make_shared<sink>(), of_in = std::make_shared<sink>();
  const auto begin = of_s->now_ns();
  s->trace(of_s), in->trace(of_in);
  for (int i = 0; i < 20; ++i) {
    s->label({7, static_cast<std::uint64_t>(i)});
    TROUPE_FINE(i % 2 == 0 ? op.enqueue() : s->replay("segment", **step));
    TROUPE_FINE(in->copy("in", bytes_of(*there), memory_kind::device, bytes_of(*here),
                         memory_kind::pinned));
  }
  TROUPE_FINE(s->synchronize());
  TROUPE_FINE(in->synchronize());
  s->collect(), in->collect();
  const auto end = of_s->now_ns();
  BOOST_REQUIRE_EQUAL(of_s->slices.size(), 20u);
  BOOST_REQUIRE_EQUAL(of_in->slices.size(), 20u);
  for (const auto* all : {&of_s->slices, &of_in->slices})
    for (std::size_t i = 0; i < all->size(); ++i) {
      const auto& one = (*all)[i];
      BOOST_TEST((one.begin_ns >= begin && one.begin_ns < one.end_ns && one.end_ns <= end));
      if (i > 0) BOOST_TEST(one.begin_ns >= (*all)[i - 1].end_ns);
    }
  BOOST_TEST((of_s->slices[1].kind == slice_kind::replay && of_s->slices[1].amount >= 5 &&
              of_s->slices[1].label.step == 1));
  BOOST_TEST((of_in->slices[3].kind == slice_kind::copy && of_in->slices[3].amount == bytes));
  std::size_t overlapping = 0;
  for (const auto& k : of_s->slices)
    for (const auto& m : of_in->slices)
      overlapping += k.begin_ns < m.end_ns && m.begin_ns < k.end_ns;
  BOOST_TEST(overlapping > 0u);
  // Again, from another beginning; and nobody who does not want to know is told.
  s->trace(nullptr), in->trace(nullptr);
  TROUPE_FINE(op.enqueue());
  s->trace(of_s);
  TROUPE_FINE(op.enqueue());
  TROUPE_FINE(s->synchronize());
  s->collect();
  BOOST_TEST(of_s->slices.size() == 21u);
  BOOST_TEST(of_s->slices.back().begin_ns >= end);
  in->free(*there);
  machine[0].free_pinned(*here);
}

BOOST_AUTO_TEST_CASE(DV_1_a_stream_that_waits_for_an_event_sees_what_was_written_before) {
  gpu machine;
  auto a = machine.stream(), b = machine.stream();
  const auto c = long_work();
  placed_op op(c, machine[0], *a);
  auto m = a->allocate(1 << 20, "m");
  auto n = b->allocate(1 << 20, "n");
  BOOST_REQUIRE((m && n));
  std::vector<std::byte> ones(1 << 20, std::byte{1}), got(1 << 20);
  for (int turn = 0; turn < 20; ++turn) {
    TROUPE_FINE(a->fill_zero("zero", bytes_of(*m)));
    TROUPE_FINE(op.enqueue());
    TROUPE_FINE(a->copy("ones", bytes_of(*m), memory_kind::device, ones, memory_kind::pageable));
    auto e = a->record();
    BOOST_REQUIRE(e);
    TROUPE_FINE(b->wait(*e));
    TROUPE_FINE(
        b->copy("copy", bytes_of(*n), memory_kind::device, bytes_of(*m), memory_kind::device));
    auto f = b->record();
    BOOST_REQUIRE(f);
    TROUPE_FINE(a->wait(*f));
    TROUPE_FINE(b->copy("out", got, memory_kind::pageable, bytes_of(*n), memory_kind::device));
    TROUPE_FINE(b->synchronize());
    BOOST_REQUIRE((got == ones));
  }
  a->free(*m);
  b->free(*n);
}

BOOST_AUTO_TEST_CASE(DV_4_devices_that_share_a_chip_have_limits_of_their_own) {
  gpu machine(2, {.limit_bytes = 64 << 20});
  BOOST_TEST(machine.size() >= 2U);
  BOOST_TEST(machine[0].name() == "gpu:0");
  BOOST_TEST(machine[1].name() == "gpu:1");
  BOOST_TEST(machine[0].can_reach(machine[1]));
  auto a = machine.stream(stream_kind::compute, 0), b = machine.stream(stream_kind::compute, 1);
  auto m = a->allocate(48 << 20, "weights");
  BOOST_REQUIRE(m);
  const auto refused = a->allocate(32 << 20, "gradients");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message().starts_with("gpu:0: no memory for 32 MiB of 'gradients'"));
  BOOST_TEST(refused.error().message().find("weights") != std::string::npos);
  auto n = b->allocate(48 << 20, "weights");
  BOOST_TEST(static_cast<bool>(n));
  a->free(*m);
  // And it is given back when the device ends.
  BOOST_TEST(static_cast<bool>(a->allocate(48 << 20, "again")));
  if (n) b->free(*n);
  BOOST_TEST(machine[0].memory().peak_bytes <= (64U << 20));
}

BOOST_AUTO_TEST_CASE(KC_3_an_index_outside_is_named_with_its_op) {
  gpu machine;
  auto s = machine.stream();
  auto bad = indices(dtype::i32, {4}, 1, 0, 5);
  bad.data<std::int32_t>()[2] = 17;
  const op_case c{"gather", {}, {numbers(dtype::f32, {5, 3}, 1), bad}, {{dtype::f32, {4, 3}}},
                  0,        0};
  const auto got = run_on_device(c, machine[0], *s);
  BOOST_REQUIRE(!got);
  BOOST_TEST(got.error().message() == "gpu:0/compute: op gather: element 2 is 17, expected 0 to 4");
  BOOST_TEST(!s->failed());
  std::atomic<bool> is_called{false};
  TROUPE_FINE(s->call_host([&] { is_called = true; }));
  BOOST_TEST(comes_true([&] { return is_called.load(); }));
  auto other = machine.stream();  // the chip works
  BOOST_TEST(static_cast<bool>(run_on_device(
      {"relu", {}, {numbers(dtype::f32, {4}, 1)}, {{dtype::f32, {4}}}, 0, 0}, machine[0], *other)));
}

BOOST_AUTO_TEST_CASE(a_captured_step_replays_and_random_numbers_go_on) {
  gpu machine;
  auto s = machine.stream();
  const op_case mask{"random_uniform",
                     {{"seed", std::int64_t{5}}, {"high", 1.0}},
                     {},
                     {{dtype::f32, {1000}}},
                     0,
                     0};
  const op_case product{"matmul",
                        {},
                        {numbers(dtype::f32, {65, 33}, 1), numbers(dtype::f32, {33, 20}, 2)},
                        {{dtype::f32, {65, 20}}},
                        0,
                        0};
  placed_op first(mask, machine[0], *s), second(product, machine[0], *s);
  BOOST_REQUIRE_MESSAGE(first.problem().empty() && second.problem().empty(),
                        first.problem() << second.problem());
  // Libraries load what they need at their first call, which cannot be captured.
  TROUPE_FINE(second.enqueue());
  TROUPE_FINE(s->synchronize());
  TROUPE_FINE(s->begin_capture());
  BOOST_TEST(!s->record());
  BOOST_TEST(!s->allocate(100, "x"));
  TROUPE_FINE(first.enqueue());
  TROUPE_FINE(second.enqueue());
  auto step = s->end_capture();
  BOOST_REQUIRE_MESSAGE(step, (step ? "" : step.error().text()));
  BOOST_TEST((*step)->nodes() >= 2U);
  for (const std::uint64_t n : {3, 4, 1'000'000}) {
    TROUPE_FINE(s->set_draw(n));
    TROUPE_FINE(s->replay("step", **step));
    auto got = first.results();
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    auto expected = mask;
    expected.step = n;
    BOOST_TEST(largest_error((*got)[0], (*run_on_host(expected))[0]) == 0, "step " << n);
  }
  auto got = second.results();
  BOOST_REQUIRE(got);
  BOOST_TEST(largest_error((*got)[0], (*run_on_host(product))[0]) < 2e-6);
}

BOOST_AUTO_TEST_CASE(DV_6_enqueueing_does_not_wait) {
  gpu machine;
  auto s = machine.stream();
  const auto c = long_work();
  placed_op op(c, machine[0], *s);
  BOOST_REQUIRE(op.problem().empty());
  TROUPE_FINE(op.enqueue());
  TROUPE_FINE(s->synchronize());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) TROUPE_FINE(op.enqueue());
  const auto enqueued = std::chrono::steady_clock::now();
  TROUPE_FINE(s->synchronize());
  const auto ended = std::chrono::steady_clock::now();
  BOOST_TEST((enqueued - begin) * 4 < ended - begin);
}

BOOST_AUTO_TEST_SUITE_END()
