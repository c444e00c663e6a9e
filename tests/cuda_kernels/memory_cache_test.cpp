#include "devices/cuda/memory_cache.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <random>
#include <set>

using namespace troupe;
using namespace troupe::cuda;

namespace {

struct step_state final : device_event::state {
  bool done = false;
  bool is_done() const noexcept override { return done; }
};

// Memory that exists as addresses alone.
struct chip_memory {
  std::uintptr_t next = 1 << 20;
  std::map<std::byte*, std::size_t> out;
  std::size_t room = std::size_t{1} << 40, held = 0;
  int allocations = 0;

  memory_cache::source source() {
    return {[this](std::size_t bytes) -> std::byte* {
              if (held + bytes > room) return nullptr;
              ++allocations;
              held += bytes;
              auto* at = reinterpret_cast<std::byte*>(next);
              next += bytes;
              out[at] = bytes;
              return at;
            },
            [this](std::byte* at) {
              held -= out.at(at);
              out.erase(at);
            }};
  }
};

const int streams[3] = {};

}  // namespace

BOOST_AUTO_TEST_SUITE(memory_cache)

BOOST_AUTO_TEST_CASE(sizes_have_four_classes_to_each_doubling) {
  BOOST_TEST(rounded_size(0) == 512U);
  BOOST_TEST(rounded_size(512) == 512U);
  BOOST_TEST(rounded_size(513) == 640U);
  BOOST_TEST(rounded_size(1024) == 1024U);
  BOOST_TEST(rounded_size(1025) == 1280U);
  for (std::size_t n = 513; n < 5'000'000; n = n * 9 / 8 + 1) {
    BOOST_TEST(rounded_size(n) >= n);
    BOOST_TEST(rounded_size(n) <= n + n / 4);
    BOOST_TEST(rounded_size(rounded_size(n)) == rounded_size(n));
    BOOST_TEST(rounded_size(n) % 128 == 0U);
  }
}

BOOST_AUTO_TEST_CASE(MC_2_the_same_stream_has_it_back_at_once_and_others_when_it_is_done) {
  chip_memory chip;
  cuda::memory_cache c("gpu:0", 0, chip.source());
  const auto first = c.allocate(&streams[0], 1000, "a");
  BOOST_REQUIRE(first);
  auto e = std::make_shared<step_state>();
  c.free(&streams[0], *first, device_event(e));
  const auto of_other = c.allocate(&streams[1], 1000, "b");
  BOOST_TEST(of_other->bytes != first->bytes);
  const auto again = c.allocate(&streams[0], 900, "a");
  BOOST_TEST(again->bytes == first->bytes);
  c.free(&streams[0], *again, device_event(e));
  e->done = true;
  BOOST_TEST(c.allocate(&streams[1], 1000, "b")->bytes == first->bytes);
  BOOST_TEST(c.stats().allocations == 4U);
  BOOST_TEST(c.stats().reuses == 2U);
}

BOOST_AUTO_TEST_CASE(MC_2_what_a_stream_that_is_gone_gave_back_waits_for_its_event) {
  chip_memory chip;
  cuda::memory_cache c("gpu:0", 0, chip.source());
  auto e = std::make_shared<step_state>();
  const auto m = c.allocate(&streams[0], 1000, "a");
  c.free(&streams[0], *m, device_event(e));
  c.forget(&streams[0]);
  BOOST_TEST(c.allocate(&streams[0], 1000, "a")->bytes != m->bytes);  // another one at the same address
  e->done = true;
  BOOST_TEST(c.allocate(&streams[0], 1000, "a")->bytes == m->bytes);
}

BOOST_AUTO_TEST_CASE(MC_3_MC_4_the_limit_holds_and_the_error_names_who_has_most) {
  chip_memory chip;
  cuda::memory_cache c("gpu:1", 4096, chip.source());
  const auto a = c.allocate(&streams[0], 2048, "layer1/matmul"), b = c.allocate(&streams[0], 1024, "loss");
  BOOST_REQUIRE((a && b));
  const auto refused = c.allocate(&streams[0], 1500, "layer2/matmul");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message() ==
             "gpu:1: out of memory: layer2/matmul asks for 1500 bytes, 3072 are in use, the limit is 4096; most have: layer1/matmul 2048, loss 1024");
  BOOST_TEST(c.stats().used_bytes == 3072U);
  BOOST_TEST(static_cast<bool>(c.allocate(&streams[0], 1024, "x")));  // and goes on
}

BOOST_AUTO_TEST_CASE(what_is_free_makes_room_before_there_is_no_more) {
  chip_memory chip;
  chip.room = 4096;
  cuda::memory_cache c("gpu:0", 0, chip.source());
  const auto a = c.allocate(&streams[0], 2048, "a");
  c.free(&streams[0], *a, {});
  const auto b = c.allocate(&streams[0], 4096, "b");
  BOOST_REQUIRE(b);
  BOOST_TEST(c.stats().cached_bytes == 0U);
  const auto none = c.allocate(&streams[0], 512, "c");
  BOOST_REQUIRE(!none);
  BOOST_TEST(none.error().message() == "gpu:0: out of memory: c asks for 512 bytes, 4096 are in use, the device has no more; most have: b 4096");
  BOOST_TEST(!c.allocate(&streams[0], ~std::size_t{0}, "c"));
}

BOOST_AUTO_TEST_CASE(MC_1_nothing_overlaps_in_random_use) {
  chip_memory chip;
  chip.room = 1 << 20;
  {
    cuda::memory_cache c("gpu:0", 700'000, chip.source());
    std::mt19937 bits(7);
    struct given {
      device_memory m;
      const void* stream;
    };
    std::vector<given> out;
    std::vector<std::shared_ptr<step_state>> events;
    std::map<std::byte*, std::shared_ptr<step_state>> pending;  // by address: freed and not done
    std::map<std::byte*, const void*> freed_by;
    for (int i = 0; i < 20'000; ++i) {
      const void* s = &streams[bits() % 3];
      if (bits() % 2 == 0 || out.empty()) {
        const auto m = c.allocate(s, bits() % 30'000, "x");
        if (!m) continue;
        for (const auto& o : out) BOOST_REQUIRE((o.m.bytes + o.m.size_bytes <= m->bytes || m->bytes + m->size_bytes <= o.m.bytes || m->size_bytes == 0 || o.m.size_bytes == 0));
        if (const auto at = pending.find(m->bytes); at != pending.end()) BOOST_REQUIRE((at->second->done || freed_by[m->bytes] == s));
        out.push_back({*m, s});
      } else {
        const auto k = bits() % out.size();
        auto e = std::make_shared<step_state>();
        events.push_back(e);
        pending[out[k].m.bytes] = e;
        freed_by[out[k].m.bytes] = out[k].stream;
        c.free(out[k].stream, out[k].m, device_event(e));
        out[k] = out.back();
        out.pop_back();
      }
      if (!events.empty() && bits() % 3 == 0) events[bits() % events.size()]->done = true;
      BOOST_REQUIRE(c.stats().used_bytes <= 700'000U);
    }
    BOOST_TEST(c.stats().reuses > 1000U);
    for (const auto& o : out) c.free(o.stream, o.m, {});
    BOOST_TEST(c.stats().used_bytes == 0U);
  }
  BOOST_TEST(chip.held == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
