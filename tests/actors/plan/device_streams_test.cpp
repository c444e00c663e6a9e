// The streams of a device when one of them fails: who gets new ones, and what of the memory of the
// old ones stays until nobody uses it. An asynchronous host device that is stepped.

#include "troupe/actors/plan/device_streams.hpp"

#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/device/order_checker.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <array>

using namespace troupe;

namespace {

const tensor_spec spec{dtype::f32, {64}};

struct stepped_device {
  stepped_device() { BOOST_REQUIRE(streams->open(1)); }
  ~stepped_device() {
    streams->end_actors();
    chip->step_all();
    streams.reset();
    for (const auto& r : checker.reports()) BOOST_TEST_MESSAGE(r.text());
  }

  std::shared_ptr<device_lane> lane(stream_kind k) { return streams->lane(k); }
  void fail(stream_kind k) {
    chip->step_all();
    chip->fail_work(1);
    BOOST_REQUIRE(lane(k)->stream().enqueue("broken", {}, [] { return result<void>(); }));
    chip->step_all();
    chip->fail_work(0);
    BOOST_REQUIRE(!lane(k)->stream().failed());
  }
  // `k` reads it, and has not come to it yet.
  void read(stream_kind k, std::span<const tensor> all) {
    auto& stream = lane(k)->stream();
    for (const auto& t : all) {
      const auto bytes = t.bytes();
      BOOST_REQUIRE(lane(k)->wait(t.on_device()->written()));
      BOOST_REQUIRE(stream.enqueue("reader", {{&bytes, 1}, {}}, [] { return result<void>(); }));
    }
    const auto done = stream.record();
    BOOST_REQUIRE(done);
    for (const auto& t : all) t.on_device()->read_until(*done);
  }
  tensor write(device_buffer_pool& pool, stream_kind k) {
    newest_events waits;
    auto t = pool.take(spec, waits);
    BOOST_REQUIRE(t);
    BOOST_REQUIRE(lane(k)->wait(waits));
    auto& stream = lane(k)->stream();
    BOOST_REQUIRE(stream.fill_zero("writer", t->bytes()));
    auto done = stream.record();
    BOOST_REQUIRE(done);
    t->on_device()->written(*done);
    return std::move(*t);
  }
  std::uint64_t used() { return streams->backend().device().memory().used_bytes; }

  order_checker checker;
  kernel_table kernels = make_host_kernels();
  std::shared_ptr<async_host_chip> chip =
      std::make_shared<async_host_chip>(async_host_options{.seed = 7, .checker = &checker});
  caf::actor_system_config config;
  caf::actor_system system{config};
  coarse_clock clock;
  std::shared_ptr<device_streams> streams = std::make_shared<device_streams>(
      system, nullptr, "gpu:0", "asynchronous host",
      [this]() -> result<std::shared_ptr<device_backend>> {
        return make_async_host_backend("gpu:0", chip, kernels);
      },
      clock, [] { return std::int64_t{0}; });
};

}  // namespace

BOOST_AUTO_TEST_SUITE(device_streams)

BOOST_FIXTURE_TEST_CASE(DS_7_a_part_that_still_opens_gets_the_failure_and_no_new_stream,
                        stepped_device) {
  const auto old = lane(stream_kind::compute);
  fail(stream_kind::compute);
  const auto late = streams->open(1);
  BOOST_REQUIRE(!late);
  BOOST_TEST(late.error().text().find("a failure that was injected") != std::string::npos,
             late.error().text());
  BOOST_TEST(lane(stream_kind::compute) == old);

  const auto copies = lane(stream_kind::copy_in);
  BOOST_REQUIRE(streams->open(2));  // DS-4
  BOOST_TEST(lane(stream_kind::compute) != old);
  BOOST_TEST(lane(stream_kind::copy_in) == copies);
  const auto later = streams->open(1);
  BOOST_REQUIRE(!later);
  BOOST_TEST(later.error().text().find("another job has replaced it") != std::string::npos,
             later.error().text());
  BOOST_TEST(bool(streams->open(2)));
}

BOOST_FIXTURE_TEST_CASE(DS_7_nor_where_a_collective_was_aborted, stepped_device) {
  const auto old = lane(stream_kind::collective);
  old->give_up();
  BOOST_TEST(!streams->open(1));
  BOOST_REQUIRE(streams->open(2));
  BOOST_TEST(lane(stream_kind::collective) != old);
  BOOST_TEST(!streams->open(1));
}

// Both were read by one piece of work, so the second has nothing newer to wait for.
BOOST_FIXTURE_TEST_CASE(DS_5_buffers_of_a_failed_stream_stay_until_all_who_read_them_are_done,
                        stepped_device) {
  const auto copies = lane(stream_kind::copy_in);
  {
    device_buffer_pool pool(spec.size_bytes(), 2, copies->stream(), copies, "test");
    const std::array buffers{write(pool, stream_kind::copy_in), write(pool, stream_kind::copy_in)};
    fail(stream_kind::copy_in);
    read(stream_kind::compute, buffers);
  }
  copies->settle();
  BOOST_TEST(used() > 0U);
  chip->step_all();
  copies->settle();
  BOOST_TEST(used() == 0U);
  BOOST_TEST(checker.found() == 0U);
}

BOOST_FIXTURE_TEST_CASE(
    DS_5_so_does_a_buffer_that_was_to_be_written_anew_when_the_stream_had_failed, stepped_device) {
  const auto copies = lane(stream_kind::copy_in);
  {
    device_buffer_pool pool(spec.size_bytes(), 1, copies->stream(), copies, "test");
    {
      const std::array buffers{write(pool, stream_kind::copy_in)};
      fail(stream_kind::copy_in);
      read(stream_kind::compute, buffers);
    }
    newest_events waits;
    BOOST_REQUIRE(pool.take(spec, waits));
    BOOST_TEST(!copies->wait(waits));
  }
  copies->settle();
  BOOST_TEST(used() > 0U);
  chip->step_all();
  copies->settle();
  BOOST_TEST(used() == 0U);
  BOOST_TEST(checker.found() == 0U);
}

BOOST_FIXTURE_TEST_CASE(DS_5_scratch_memory_of_a_failed_stream_comes_back, stepped_device) {
  for (std::uint32_t part = 2; part < 5; ++part) {
    const auto scratch = streams->scratch(1 << 16);
    BOOST_REQUIRE(scratch);
    const std::span<std::byte> all = *scratch;
    fail(stream_kind::compute);
    BOOST_TEST(used() >= all.size());
    BOOST_REQUIRE(streams->open(part));
    chip->step_all();
    BOOST_REQUIRE(streams->open(part));  // settles
    BOOST_TEST(used() == 0U);
  }
  BOOST_TEST(checker.found() == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
