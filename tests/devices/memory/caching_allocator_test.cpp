// Memory in the order of streams: what is given out, to whom, and what an error says.

#include "troupe/devices/memory/caching_allocator.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

using namespace troupe;

namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;

// Addresses without memory behind them.
class numbered_memory final : public system_memory {
 public:
  explicit numbered_memory(std::size_t capacity_bytes = std::size_t{1} << 50)
      : capacity_bytes_(capacity_bytes) {}
  std::byte* reserve(std::size_t bytes) override {
    if (bytes > capacity_bytes_ - reserved_bytes) return nullptr;
    reserved_bytes += bytes;
    ++segments;
    auto* p = reinterpret_cast<std::byte*>(next_);
    next_ += bytes;  // neighbours, so that joining across segments would show
    return p;
  }
  void release(std::byte*, std::size_t bytes) noexcept override {
    reserved_bytes -= bytes;
    --segments;
  }
  std::size_t reserved_bytes = 0, segments = 0;

 private:
  std::size_t capacity_bytes_;
  std::uintptr_t next_ = mib;
};

struct event_state : device_event::state {
  bool is_done() const noexcept override { return done; }
  bool done = false;
};

// A stream as the allocator knows it: an address, and events that get done in order.
struct fake_stream {
  const device_stream* id() const { return reinterpret_cast<const device_stream*>(this); }
  std::shared_ptr<event_state> record() {
    auto e = std::make_shared<event_state>();
    e->stream = id();
    e->number = ++recorded;
    events.push_back(e);
    return e;
  }
  void finish(std::size_t n) {
    for (; n > 0 && !events.empty(); --n, events.pop_front()) events.front()->done = true;
  }
  std::uint64_t recorded = 0;
  std::deque<std::shared_ptr<event_state>> events;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(caching_allocator)

using allocator = troupe::caching_allocator;

BOOST_AUTO_TEST_CASE(a_size_class_wastes_less_than_512_bytes_or_an_eighth) {
  BOOST_TEST(allocator::size_class(0) == 512u);
  BOOST_TEST(allocator::size_class(513) == 1024u);
  BOOST_TEST(allocator::size_class(4097) == 4608u);
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const auto n = std::size_t{1} + random() % (std::size_t{1} << (random() % 40));
    const auto c = allocator::size_class(n);
    BOOST_REQUIRE(c >= n);
    BOOST_REQUIRE(c % 512 == 0);
    BOOST_REQUIRE(c - n < std::max<std::size_t>(512, (n + 7) / 8));
    BOOST_REQUIRE_EQUAL(allocator::size_class(c), c);
  }
}

BOOST_AUTO_TEST_CASE(CA_3_the_stream_that_freed_takes_again_at_once_and_another_after_the_event) {
  numbered_memory memory;
  fake_stream a, b;
  allocator pool(memory, "gpu:0", 0);
  auto* first = pool.allocate(2 * mib, a.id(), "x")->bytes;
  const auto e = a.record();
  pool.free(first, a.id(), device_event(e));
  auto* of_b = pool.allocate(2 * mib, b.id(), "y")->bytes;
  BOOST_TEST(of_b != first);
  auto again = pool.allocate(2 * mib, a.id(), "x");
  BOOST_TEST(again->bytes == first);
  BOOST_TEST(!again->after);
  pool.free(first, a.id(), device_event(a.record()));
  a.finish(9);
  BOOST_TEST(pool.allocate(2 * mib, b.id(), "y")->bytes == first);
  BOOST_TEST(pool.stats().reuses == 3u);  // b's first was cut from the same segment
}

BOOST_AUTO_TEST_CASE(CA_3_before_it_fails_another_streams_block_is_given_out_with_its_event) {
  numbered_memory memory;
  fake_stream a, b;
  allocator pool(memory, "gpu:0", 4 * mib);
  auto* first = pool.allocate(4 * mib, a.id(), "x")->bytes;
  const auto e = a.record();
  pool.free(first, a.id(), device_event(e));
  const auto taken = pool.allocate(4 * mib, b.id(), "y");
  BOOST_REQUIRE(bool(taken));
  BOOST_TEST(taken->bytes == first);
  BOOST_TEST(taken->after.get() == e.get());
}

BOOST_AUTO_TEST_CASE(CA_5_out_of_memory_names_the_largest_holders_and_leaves_the_allocator_usable) {
  numbered_memory memory;
  fake_stream a;
  allocator pool(memory, "gpu:0", 64 * mib);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 3; ++i)
    blocks.push_back(pool.allocate(16 * mib, a.id(), "arena of step 7")->bytes);
  blocks.push_back(pool.allocate(3 * mib, a.id(), "conv1")->bytes);
  const auto refused = pool.allocate(32 * mib, a.id(), "matmul_3");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(
      refused.error().message() ==
      "gpu:0: no memory for 32 MiB of 'matmul_3': 51 MiB in use of a limit of 64 MiB; 13 MiB cached, in pieces of at most 13 MiB; the largest holders: 'arena of step 7' 48 MiB in 3, "
      "'conv1' 3 MiB. Take a smaller batch, fewer steps in flight, or a higher limit");
  BOOST_TEST(bool(pool.allocate(8 * mib, a.id(), "small enough")));
  for (auto* p : blocks) pool.free(p, a.id(), {});
  BOOST_TEST(bool(pool.allocate(32 * mib, a.id(), "matmul_3")));
}

BOOST_AUTO_TEST_CASE(CA_5_what_the_system_refuses_is_said_to_be_the_systems) {
  numbered_memory memory(8 * mib);
  fake_stream a;
  allocator pool(memory, "gpu:1", 0);
  // The segment of 32 MiB is refused, what is needed is not.
  BOOST_TEST(bool(pool.allocate(6 * mib, a.id(), "x")));
  const auto refused = pool.allocate(6 * mib, a.id(), "y");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message().find("and the system has no more") != std::string::npos);
  BOOST_TEST(!pool.allocate(~std::size_t{0}, a.id(), "nonsense"));
}

BOOST_AUTO_TEST_CASE(cached_segments_go_back_before_a_request_fails) {
  numbered_memory memory;
  fake_stream a;
  allocator pool(memory, "gpu:0", 40 * mib);
  auto* p = pool.allocate(mib / 2, a.id(), "small")->bytes;
  auto* q = pool.allocate(12 * mib, a.id(), "middle")->bytes;
  pool.free(p, a.id(), {});
  pool.free(q, a.id(), {});
  BOOST_TEST(bool(pool.allocate(40 * mib, a.id(), "all of it")));
  BOOST_TEST(memory.segments == 1u);
}

BOOST_AUTO_TEST_CASE(
    a_stream_joins_what_is_its_own_with_what_is_everybodys_before_it_asks_the_system) {
  numbered_memory memory;
  fake_stream a;
  allocator pool(memory, "gpu:0", 0);
  auto* p = pool.allocate(16 * mib, a.id(), "left")->bytes;
  auto* q = pool.allocate(16 * mib, a.id(), "right")->bytes;
  pool.free(p, a.id(), {});
  pool.free(q, a.id(), device_event(a.record()));
  BOOST_TEST(pool.allocate(17 * mib, a.id(), "both")->bytes == p);
  BOOST_TEST(memory.segments == 1u);
}

BOOST_AUTO_TEST_CASE(an_ended_streams_blocks_wait_for_their_events_alone) {
  numbered_memory memory;
  fake_stream a;
  allocator pool(memory, "gpu:0", 0);
  auto* p = pool.allocate(4 * mib, a.id(), "x")->bytes;
  const auto e = a.record();
  pool.free(p, a.id(), device_event(e));
  pool.forget(a.id());
  BOOST_TEST(pool.allocate(4 * mib, a.id(), "a later stream at that address")->bytes != p);
  e->done = true;
  BOOST_TEST(pool.allocate(4 * mib, a.id(), "x")->bytes == p);
}

BOOST_AUTO_TEST_CASE(freeing_twice_or_what_is_not_ours_breaks_an_invariant) {
  numbered_memory memory;
  fake_stream a;
  allocator pool(memory, "gpu:0", 0);
  auto* p = pool.allocate(100, a.id(), "x")->bytes;
  BOOST_CHECK_THROW(pool.free(p + 512, a.id(), {}), broken_invariant);
  pool.free(p, a.id(), {});
  BOOST_CHECK_THROW(pool.free(p, a.id(), {}), broken_invariant);
}

// CA-1 to CA-4 over random traffic of four streams, whose events get done at random times.
BOOST_AUTO_TEST_CASE(CA_1_to_CA_4_hold_for_random_traffic_by_seed) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const std::uint64_t limit = below(2) == 0 ? 0 : (1 + below(100)) * mib + below(mib);
    numbered_memory memory(limit == 0 ? 80 * mib : std::size_t{1} << 50);
    fake_stream streams[4];
    allocator pool(memory, "gpu:0", limit);
    struct live {
      std::byte* begin;
      std::size_t bytes;
    };
    struct past {
      std::byte *begin, *end;
      std::shared_ptr<event_state> freed;
    };
    std::vector<live> alive;
    std::vector<past> freed;
    std::uint64_t failures = 0, with_event = 0;
    for (int i = 0; i < 600; ++i) {
      auto& s = streams[below(4)];
      switch (below(5)) {
        case 0:
        case 1: {
          const auto bytes = std::size_t{1} + below(std::size_t{1} << below(25));
          const auto before = pool.stats();
          const auto taken = pool.allocate(bytes, s.id(), "x");
          if (!taken) {
            ++failures;
            BOOST_REQUIRE_EQUAL(pool.stats().used_bytes, before.used_bytes);
            break;
          }
          auto* end = taken->bytes + bytes;
          with_event += taken->after ? 1 : 0;
          for (const auto& o : alive)
            BOOST_REQUIRE_MESSAGE(end <= o.begin || o.begin + o.bytes <= taken->bytes,
                                  "CA-1: overlap, seed " << seed);
          for (const auto& o : freed)
            if (o.begin < end && taken->bytes < o.end && !o.freed->done &&
                o.freed->stream != s.id())
              BOOST_REQUIRE_MESSAGE(taken->after.stream() == o.freed->stream &&
                                        taken->after.get()->number >= o.freed->number,
                                    "CA-3: too early, seed " << seed);
          // From here on the taker is in order after it, and whoever frees it after the taker.
          auto* taken_end = taken->bytes + allocator::size_class(bytes);
          std::vector<past> left;
          for (const auto& o : freed) {
            if (o.freed->done) continue;
            if (o.begin < taken->bytes)
              left.push_back({o.begin, std::min(o.end, taken->bytes), o.freed});
            if (o.end > taken_end) left.push_back({std::max(o.begin, taken_end), o.end, o.freed});
          }
          freed = std::move(left);
          alive.push_back({taken->bytes, bytes});
          break;
        }
        case 2:
        case 3: {
          if (alive.empty()) break;
          std::swap(alive[below(alive.size())], alive.back());
          const auto e = s.record();
          pool.free(alive.back().begin, s.id(), device_event(e));
          freed.push_back({alive.back().begin,
                           alive.back().begin + allocator::size_class(alive.back().bytes), e});
          alive.pop_back();
          break;
        }
        case 4:
          s.finish(below(4));
          if (below(20) == 0) pool.trim();
          break;
      }
      const auto now = pool.stats();
      if (limit != 0)
        BOOST_REQUIRE_MESSAGE(now.used_bytes + now.cached_bytes <= limit,
                              "CA-2: above the limit, seed " << seed);
      BOOST_REQUIRE_EQUAL(now.used_bytes + now.cached_bytes, memory.reserved_bytes);
    }
    for (const auto& o : alive)
      pool.free(o.begin, streams[0].id(), device_event(streams[0].record()));
    for (auto& s : streams) s.finish(1000);
    pool.trim();
    BOOST_REQUIRE_MESSAGE(memory.segments == 0,
                          "CA-4: a segment did not become whole, seed " << seed);
    BOOST_REQUIRE_EQUAL(pool.stats().used_bytes, 0u);
    BOOST_REQUIRE_EQUAL(pool.stats().cached_bytes, 0u);
  }
}

BOOST_AUTO_TEST_SUITE_END()
