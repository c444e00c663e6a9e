// The asynchronous host device: order, failures, memory.

#include "troupe/devices/async_host/async_host_chip.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <string>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(async_host_chip)

using chip = troupe::async_host_chip;

BOOST_AUTO_TEST_CASE(AH_1_equal_seeds_run_work_in_equal_order_and_others_in_others) {
  const auto order = [](std::uint64_t seed) {
    chip c({.seed = seed});
    const auto gpu = c.make_device("gpu:0");
    auto a = *gpu->make_stream(stream_kind::compute), b = *gpu->make_stream(stream_kind::copy_in);
    std::string ran;
    for (int i = 0; i < 20; ++i) {
      BOOST_REQUIRE(bool(a->enqueue("a", {}, [&]() -> result<void> {
        ran += 'a';
        return {};
      })));
      BOOST_REQUIRE(bool(b->enqueue("b", {}, [&]() -> result<void> {
        ran += 'b';
        return {};
      })));
      c.step_some();
    }
    c.step_all();
    return ran;
  };
  BOOST_TEST(order(1) == order(1));
  BOOST_TEST(order(1) != order(2));
  BOOST_TEST(order(1).size() == 40u);
}

BOOST_AUTO_TEST_CASE(AH_2_and_DV_5_work_that_fails_names_its_op_and_only_host_functions_follow) {
  for (const bool threaded : {false, true}) {
    chip c({.threaded = threaded});
    const auto gpu = c.make_device("gpu:0");
    auto s = *gpu->make_stream(stream_kind::compute),
         other = *gpu->make_stream(stream_kind::copy_out);
    c.fail_work(2);
    std::atomic<int> ran = 0, called = 0;
    auto gate = std::make_shared<std::atomic<bool>>(false);
    // The first piece of work holds the stream until all is enqueued; stepped, nothing runs before
    // anyway.
    BOOST_REQUIRE(bool(s->enqueue("first", {}, [&, gate]() -> result<void> {
      while (threaded && !gate->load()) {
      }
      ++ran;
      return {};
    })));
    BOOST_REQUIRE(bool(s->enqueue("matmul_3", {}, [&]() -> result<void> {
      ++ran;
      return {};
    })));
    BOOST_REQUIRE(bool(s->enqueue("third", {}, [&]() -> result<void> {
      ++ran;
      return {};
    })));
    BOOST_REQUIRE(bool(s->call_host([&] { ++called; })));
    const auto e = *s->record();
    BOOST_TEST(!e.is_done());
    gate->store(true);
    BOOST_REQUIRE(bool(other->wait(e)));
    const auto ended = s->synchronize();
    BOOST_REQUIRE(!ended);
    BOOST_TEST(ended.error().message() ==
               "gpu:0/compute: 'matmul_3' failed: a failure that was injected");
    BOOST_TEST(ran == 1);
    BOOST_TEST(called == 1);
    BOOST_TEST(e.is_done());
    BOOST_TEST(bool(other->synchronize()));
    BOOST_TEST(!s->enqueue("later", {}, []() -> result<void> { return {}; }));
    BOOST_TEST(!s->record());
  }
}

BOOST_AUTO_TEST_CASE(AH_3_states_of_events_are_used_again_once_dropped_and_done) {
  chip c({});
  const auto gpu = c.make_device("gpu:0");
  auto s = *gpu->make_stream(stream_kind::compute);
  auto first = *s->record();
  const auto* state = first.get();
  first = {};
  const auto second = *s->record();  // the first is not done
  BOOST_TEST(second.get() != state);
  c.step_all();
  const auto third = *s->record();
  BOOST_TEST(third.get() == state);
  BOOST_TEST(!third.is_done());
  BOOST_TEST(second.is_done());
}

BOOST_AUTO_TEST_CASE(two_devices_of_a_chip_have_limits_of_their_own_and_share_its_memory) {
  chip c({.memory_bytes = 24u << 20});
  const auto g0 = c.make_device("gpu:0", 16u << 20), g1 = c.make_device("gpu:1", 16u << 20);
  auto s0 = *g0->make_stream(stream_kind::compute), s1 = *g1->make_stream(stream_kind::compute);
  BOOST_TEST(g0->can_reach(*g1));
  BOOST_TEST(!s0->allocate(17u << 20, "too large for gpu:0"));
  const auto m = s0->allocate(16u << 20, "arena");
  BOOST_REQUIRE(bool(m));
  const auto refused = s1->allocate(12u << 20, "arena");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message().find("gpu:1: no memory for 12 MiB of 'arena'") == 0u);
  BOOST_TEST(bool(s1->allocate(8u << 20, "arena")));
  s0->free(*m);
  BOOST_TEST(bool(s0->synchronize()));
  g0->trim();
  BOOST_TEST(g0->memory().cached_bytes == 0u);
}

// The failure may come between any two things that the caller does.
BOOST_AUTO_TEST_CASE(an_allocation_that_a_failure_overtakes_leaves_no_memory_behind) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    chip c({.seed = seed, .threaded = true});
    const auto gpu = c.make_device("gpu:0");
    auto s = *gpu->make_stream(stream_kind::compute);
    c.fail_work(1);
    std::vector<device_memory> all;
    BOOST_REQUIRE(bool(s->enqueue("broken", {}, []() -> result<void> { return {}; })));
    while (all.size() < 10'000) {
      const auto m = s->allocate(64, "x");
      if (!m) break;
      all.push_back(*m);
    }
    BOOST_TEST(!s->synchronize());
    for (const auto& m : all) s->free(m);
    BOOST_TEST(gpu->memory().used_bytes == 0u);
  }
}

BOOST_AUTO_TEST_SUITE_END()
