// Page-locked buffers on the host: those that frames land in, and those that a device copies to. On
// the asynchronous host device, which counts them.

#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/memory/landing_pool.hpp"
#include "troupe/devices/memory/pinned_pool.hpp"

#include <boost/test/unit_test.hpp>

#include <memory>
#include <vector>

using namespace troupe;

namespace {

struct fixture {
  std::shared_ptr<async_host_chip> chip = std::make_shared<async_host_chip>(async_host_options{});
  kernel_table kernels = make_host_kernels();
  std::shared_ptr<device_backend> backend = make_async_host_backend("gpu:0", chip, kernels);
  std::uint64_t pinned() const { return backend->device().memory().pinned_bytes; }
};

const tensor_spec large{dtype::f32, {25}}, small{dtype::f32, {5}};  // 100 and 20 bytes

}  // namespace

BOOST_AUTO_TEST_SUITE(landing_pool)

BOOST_FIXTURE_TEST_CASE(LP_1_it_has_no_more_buffers_than_its_size_and_gives_none_out_twice,
                        fixture) {
  troupe::landing_pool pool(100, 3);
  BOOST_TEST(!pool.take(small));  // nobody made it grow
  for (int i = 0; i < 3; ++i) BOOST_TEST(pool.grow(backend));
  BOOST_TEST(!pool.grow(backend));
  BOOST_TEST(pool.buffers() == 3u);
  BOOST_TEST(pinned() == 300u);
  std::vector<tensor> out;
  for (int i = 0; i < 3; ++i) {
    out.push_back(pool.take(i == 1 ? small : large));
    BOOST_REQUIRE(bool(out.back()));
    BOOST_TEST(out.back().is_pinned());
    for (int k = 0; k < i; ++k) BOOST_TEST(out[i].bytes().data() != out[k].bytes().data());
  }
  BOOST_TEST((out[1].spec() == small));
  BOOST_TEST(!pool.take(small));
  const auto* second = out[1].bytes().data();
  out.erase(out.begin() + 1);
  const auto again = pool.take(large);
  BOOST_TEST(again.bytes().data() == second);
  BOOST_TEST((again.spec() == large));
  BOOST_TEST(!pool.take(tensor_spec{dtype::f32, {26}}));  // larger than they are
}

BOOST_FIXTURE_TEST_CASE(LP_2_memory_goes_back_when_nobody_holds_it_any_more_also_after_the_pool,
                        fixture) {
  tensor held;
  {
    troupe::landing_pool pool(100, 3);
    for (int i = 0; i < 3; ++i) BOOST_TEST(pool.grow(backend));
    held = pool.take(large);
  }
  BOOST_TEST(pinned() == 100u);
  held = {};
  BOOST_TEST(pinned() == 0u);
}

BOOST_AUTO_TEST_CASE(a_device_that_gives_no_more_page_locked_memory_ends_its_growth) {
  const auto chip = std::make_shared<async_host_chip>(async_host_options{.memory_bytes = 250});
  const auto kernels = make_host_kernels();
  const auto backend = make_async_host_backend("gpu:0", chip, kernels);
  troupe::landing_pool pool(100, 3);
  BOOST_TEST(pool.grow(backend));
  BOOST_TEST(pool.grow(backend));
  BOOST_TEST(!pool.grow(backend));
  BOOST_TEST(pool.buffers() == 2u);
}

BOOST_FIXTURE_TEST_CASE(PI_1_what_a_device_copies_to_is_page_locked_up_to_the_pools_size, fixture) {
  pinned_pool pool(100, 2, backend);
  auto a = pool.take(large), b = pool.take(large), c = pool.take(large);
  BOOST_TEST((a.is_pinned() && b.is_pinned() && !c.is_pinned()));
  BOOST_TEST(pinned() == 200u);
  b = {};
  BOOST_TEST(pool.take(small).is_pinned());
  BOOST_TEST(pinned() == 200u);
}

BOOST_FIXTURE_TEST_CASE(copies_from_and_to_ordinary_memory_are_counted_as_staged, fixture) {
  // Outlives the stream, which copies from it until its end.
  auto ordinary = tensor::make({dtype::u8, {64}});
  auto s = *backend->device().make_stream(stream_kind::copy_in);
  const auto m = *s->allocate(64, "x");
  const std::span<std::byte> there(m.bytes, 64);
  BOOST_REQUIRE(bool(s->copy("in", there, memory_kind::device, std::as_const(ordinary).bytes(),
                             memory_kind::pinned)));
  BOOST_TEST(backend->device().memory().staged_copies == 0u);
  BOOST_REQUIRE(bool(s->copy("in", there, memory_kind::device, std::as_const(ordinary).bytes(),
                             memory_kind::pageable)));
  BOOST_REQUIRE(
      bool(s->copy("out", ordinary.bytes(), memory_kind::pageable, there, memory_kind::device)));
  BOOST_TEST(backend->device().memory().staged_copies == 2u);
  BOOST_TEST(backend->device().memory().staged_bytes == 128u);
  s->free(m);
}

BOOST_AUTO_TEST_SUITE_END()
