// Credits with events: what a firing waits for, on the asynchronous host device under the order checker.

#include "runtime/device_credit.hpp"

#include "devices/async_host/async_host_chip.hpp"

#include <boost/test/unit_test.hpp>

#include <deque>
#include <random>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(device_credit)

using credit = troupe::device_credit;

BOOST_AUTO_TEST_CASE(a_consumer_on_the_same_stream_needs_nothing_another_stream_an_event_and_the_host_a_completion) {
  async_host_chip chip({});
  const auto gpu = chip.make_device("gpu:0");
  auto a = *gpu->make_stream(stream_kind::compute), b = *gpu->make_stream(stream_kind::copy_out);
  BOOST_CHECK(hand_over_to(a.get(), a.get()) == hand_over::nothing);
  BOOST_CHECK(hand_over_to(a.get(), b.get()) == hand_over::event);
  BOOST_CHECK(hand_over_to(a.get(), nullptr) == hand_over::completion);
}

BOOST_AUTO_TEST_CASE(DC_1_and_DC_5_a_buffer_is_free_after_all_its_consumers_and_given_back_once_by_each) {
  credit c(2, 2);
  const auto first = c.take(), second = c.take();
  BOOST_REQUIRE(first && second);
  BOOST_TEST(!c.take());
  BOOST_CHECK_THROW(c.give_back(first->buffer, {}), broken_invariant);
  c.sent(first->buffer, {});
  BOOST_CHECK_THROW(c.sent(first->buffer, {}), broken_invariant);
  c.give_back(first->buffer, {});
  BOOST_TEST(!c.take());
  c.give_back(first->buffer, {});
  BOOST_TEST(c.free() == 1u);
  BOOST_CHECK_THROW(c.give_back(first->buffer, {}), broken_invariant);
}

BOOST_AUTO_TEST_CASE(DC_3_and_DC_4_of_a_stream_only_the_newest_event_is_waited_for_and_only_once) {
  async_host_chip chip({});
  const auto gpu = chip.make_device("gpu:0");
  auto a = *gpu->make_stream(stream_kind::compute), b = *gpu->make_stream(stream_kind::copy_out), c = *gpu->make_stream(stream_kind::copy_in);
  const auto b1 = *b->record(), b2 = *b->record(), a1 = *a->record(), c1 = *c->record();
  newest_events n;
  for (const auto& e : {b2, a1, b1, b2, device_event{}, c1}) n.add(e);
  BOOST_REQUIRE_EQUAL(n.events().size(), 3u);
  waited_for w(a.get());
  const auto waits = w.add(n);
  BOOST_REQUIRE_EQUAL(waits.size(), 2u);
  BOOST_TEST(waits[0].get() == b2.get());
  BOOST_TEST(waits[1].get() == c1.get());
  newest_events older;
  older.add(b1);
  BOOST_TEST(w.add(older).empty());
}

// A producer and 1 to 3 consumers on streams that are drawn, some of them the producer's own; credits come back in any order and late. `forgets`: one consumer's event is left out.
std::uint64_t reports_of(std::uint64_t seed, bool forgets, std::size_t& wrong) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  order_checker checker;
  async_host_chip chip({.seed = seed, .checker = &checker});
  const auto gpu = chip.make_device("gpu:0");
  std::vector<std::unique_ptr<device_stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(*gpu->make_stream(stream_kind::compute));
  std::vector<waited_for> waited;
  for (const auto& s : streams) waited.emplace_back(s.get());
  const std::uint32_t consumers = 1 + static_cast<std::uint32_t>(below(3)), buffers = 1 + static_cast<std::uint32_t>(below(3));
  std::vector<std::size_t> at;  // streams of the consumers; the last is never the producer's
  for (std::uint32_t i = 0; i < consumers; ++i) at.push_back(i + 1 == consumers ? 1 + below(2) : below(3));
  credit c(buffers, consumers);
  std::vector<std::uint64_t> memory(buffers, 0);
  std::vector<std::vector<std::uint64_t>> seen(consumers);
  struct back {
    std::uint32_t buffer;
    device_event e;
  };
  std::deque<back> on_their_way;
  const auto wait = [&](std::size_t s, const newest_events& n) {
    for (const auto& e : waited[s].add(n)) BOOST_REQUIRE(bool(streams[s]->wait(e)));
  };
  constexpr std::uint64_t items = 20;
  for (std::uint64_t i = 0; i < items;) {
    chip.step_some();
    if (const auto t = below(2) == 0 ? c.take() : std::nullopt) {
      wait(0, t->waits);
      auto* number = &memory[t->buffer];
      const std::span<std::byte> write = std::as_writable_bytes(std::span(number, 1));
      const std::span<const std::byte> read = write;
      BOOST_REQUIRE(bool(streams[0]->enqueue("write", {{}, {&write, 1}}, [number, i]() -> result<void> { *number = i; return {}; })));
      const auto done = *streams[0]->record();
      c.sent(t->buffer, done);
      for (std::uint32_t k = 0; k < consumers; ++k) {
        newest_events needed;
        if (hand_over_to(streams[0].get(), streams[at[k]].get()) == hand_over::event) needed.add(done);
        wait(at[k], needed);
        BOOST_REQUIRE(bool(streams[at[k]]->enqueue("read", {{&read, 1}, {}}, [number, &into = seen[k]]() -> result<void> { into.push_back(*number); return {}; })));
        on_their_way.push_back({t->buffer, forgets && k + 1 == consumers ? device_event{} : *streams[at[k]]->record()});
      }
      ++i;
    } else if (!on_their_way.empty()) {
      std::swap(on_their_way[below(on_their_way.size())], on_their_way.front());
      c.give_back(on_their_way.front().buffer, on_their_way.front().e);
      on_their_way.pop_front();
    }
  }
  for (const auto& s : streams) BOOST_REQUIRE(bool(s->synchronize()));
  for (const auto& v : seen)
    for (std::uint64_t i = 0; i < items; ++i) wrong += v.at(i) != i ? 1 : 0;
  return checker.found();
}

BOOST_AUTO_TEST_CASE(DC_2_the_waits_of_a_firing_are_enough_under_200_seeds) {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) BOOST_REQUIRE_MESSAGE(reports_of(seed, false, wrong) == 0 && wrong == 0, "seed " << seed);
}

BOOST_AUTO_TEST_CASE(DC_2_without_a_consumers_event_they_are_not) {
  std::size_t wrong = 0;
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) found += reports_of(seed, true, wrong) != 0 ? 1 : 0;
  BOOST_TEST_MESSAGE("found under " << found << " of 200 seeds, " << wrong << " wrong numbers");
  BOOST_TEST(found > 150u);
  BOOST_TEST(wrong > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
