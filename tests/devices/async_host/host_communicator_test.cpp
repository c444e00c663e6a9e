// Collectives of asynchronous host devices: beside plain loops, and what goes wrong with them.

#include "troupe/devices/async_host/host_communicator.hpp"

#include "tests/support/wait.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

// Changes that a communicator tells of, which a test waits for.
class changes {
 public:
  communicator_changed teller() {
    return [this] {
      const std::lock_guard hold(lock_);
      ++count_;
      changed_.notify_all();
    };
  }
  void await(int count) {
    std::unique_lock hold(lock_);
    const test::waiting_for named("change " + std::to_string(count) + " of a communicator");
    changed_.wait(hold, [&] { return count_ >= count; });
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int count_ = 0;
};

// One device with its rank: chips of their own, so that nothing but the sockets joins them.
struct rank_here {
  explicit rank_here(std::uint64_t seed)
      : chip(std::make_shared<async_host_chip>(async_host_options{
            .seed = seed, .threaded = true, .delay_max_us = 50, .checker = &checker})),
        backend(make_async_host_backend("gpu:0", chip, kernels)) {
    stream = std::move(*backend->device().make_stream(stream_kind::collective));
  }
  ~rank_here() {
    communicator.reset();  // or the stream waits for ever
    stream.reset();
    BOOST_TEST(checker.found() == 0u);
  }
  void begin(const communicator_id& id, int rank, int ranks) {
    auto made = backend->begin_communicator(id, rank, ranks, told.teller());
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    communicator = std::move(*made);
  }
  std::span<std::byte> memory(std::size_t bytes) {
    auto m = stream->allocate(bytes, "test");
    BOOST_REQUIRE(m);
    return {m->bytes, bytes};
  }

  kernel_table kernels = make_host_kernels();
  order_checker checker;
  std::shared_ptr<async_host_chip> chip;
  std::shared_ptr<device_backend> backend;
  std::unique_ptr<device_stream> stream;
  changes told;
  std::unique_ptr<device_communicator> communicator;
};

struct group {
  explicit group(int ranks, std::uint64_t seed = 0) {
    for (int r = 0; r < ranks; ++r)
      all.push_back(std::make_unique<rank_here>(seed * 10 + static_cast<std::uint64_t>(r) + 1));
    auto made = all[0]->backend->make_communicator_id();
    BOOST_REQUIRE(made);
    id = *made;
  }
  ~group() {  // all at once, as none waits for others in its end
    for (auto& r : all)
      if (r->communicator) r->communicator->abort();
  }
  void meet() {
    for (int r = 0; r < size(); ++r) all[static_cast<std::size_t>(r)]->begin(id, r, size());
    for (auto& r : all) {
      r->told.await(1);
      const auto ready = r->communicator->is_ready();
      BOOST_REQUIRE_MESSAGE(ready, (ready ? "" : ready.error().text()));
      BOOST_TEST(*ready);
    }
  }
  int size() const { return static_cast<int>(all.size()); }
  rank_here& operator[](int r) { return *all[static_cast<std::size_t>(r)]; }

  communicator_id id;
  std::vector<std::unique_ptr<rank_here>> all;
};

constexpr std::string_view op = "worker/0/sum";

template <class F>
void fill(std::span<std::byte> to, F f) {
  auto* p = reinterpret_cast<float*>(to.data());
  for (std::size_t i = 0; i < to.size() / sizeof(float); ++i) p[i] = f(i);
}
std::vector<float> floats(std::span<const std::byte> from) {
  std::vector<float> out(from.size() / sizeof(float));
  std::memcpy(out.data(), from.data(), from.size());
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_communicator)

BOOST_AUTO_TEST_CASE(each_collective_gives_what_plain_loops_give_in_place_or_not) {
  for (const int ranks : {1, 2, 3, 4})
    for (const std::size_t n : {0, 1, 12, 5000}) {
      BOOST_TEST_CONTEXT(ranks << " ranks, " << n << " elements of each") {
        group g(ranks);
        g.meet();
        const auto all = static_cast<std::size_t>(ranks);
        // Whole numbers, so that sums have no order.
        const auto value = [](std::size_t i, int rank) {
          return static_cast<float>(i % 100) + 100 * static_cast<float>(rank);
        };
        struct buffers {
          std::span<std::byte> own, sum, most, mean, gathered, scattered, sent;
        };
        std::vector<buffers> b(all);
        for (int r = 0; r < ranks; ++r) {
          auto& m = b[static_cast<std::size_t>(r)];
          auto& rank = g[r];
          m.own = rank.memory(n * all * 4), m.sum = rank.memory(n * all * 4),
          m.most = rank.memory(n * all * 4), m.mean = rank.memory(n * all * 4),
          m.gathered = rank.memory(n * all * 4), m.scattered = rank.memory(n * 4),
          m.sent = rank.memory(n * 4);
          fill(m.own, [&](std::size_t i) { return value(i, r); });
          fill(m.sum, [&](std::size_t i) { return value(i, r); });
          fill(m.gathered, [&](std::size_t) { return -1.0F; });
          fill(m.gathered.subspan(n * 4 * static_cast<std::size_t>(r), n * 4),
               [&](std::size_t i) { return value(i, r); });
          auto& c = *rank.communicator;
          auto& s = *rank.stream;
          // In place.
          BOOST_REQUIRE(c.all_reduce(s, op, m.sum, m.sum, dtype::f32, device_reduction::sum));
          BOOST_REQUIRE(c.all_reduce(s, op, m.own, m.most, dtype::f32, device_reduction::max));
          BOOST_REQUIRE(c.all_reduce(s, op, m.own, m.mean, dtype::f32, device_reduction::mean));
          // In place.
          BOOST_REQUIRE(c.all_gather(s, op,
                                     m.gathered.subspan(n * 4 * static_cast<std::size_t>(r), n * 4),
                                     m.gathered, dtype::f32));
          BOOST_REQUIRE(
              c.reduce_scatter(s, op, m.own, m.scattered, dtype::f32, device_reduction::sum));
          BOOST_REQUIRE(c.broadcast(s, op, m.own.first(n * 4), m.sent, dtype::f32, ranks - 1));
        }
        for (auto& r : g.all) BOOST_REQUIRE(r->stream->synchronize());
        std::vector<float> sum(n * all), most(n * all), mean(n * all), gathered, sent;
        for (std::size_t i = 0; i < n * all; ++i) {
          for (int r = 0; r < ranks; ++r) sum[i] += value(i, r);
          most[i] = value(i, ranks - 1);
          mean[i] = sum[i] / static_cast<float>(ranks);
        }
        for (int r = 0; r < ranks; ++r)
          for (std::size_t i = 0; i < n; ++i) gathered.push_back(value(i, r));
        for (std::size_t i = 0; i < n; ++i) sent.push_back(value(i, ranks - 1));
        for (int r = 0; r < ranks; ++r) {
          const auto& m = b[static_cast<std::size_t>(r)];
          BOOST_TEST(floats(m.sum) == sum, boost::test_tools::per_element());
          BOOST_TEST(floats(m.most) == most, boost::test_tools::per_element());
          BOOST_TEST(floats(m.mean) == mean, boost::test_tools::per_element());
          BOOST_TEST(floats(m.gathered) == gathered, boost::test_tools::per_element());
          BOOST_TEST(floats(m.sent) == sent, boost::test_tools::per_element());
          const std::vector<float> own(
              sum.begin() + static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(r)),
              sum.begin() + static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(r + 1)));
          BOOST_TEST(floats(m.scattered) == own, boost::test_tools::per_element());
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(HC_3_sums_of_three_have_an_order_of_their_own_and_all_ranks_its_bits) {
  group g(3);
  g.meet();
  const std::array parts{1.0F, 1e8F, -1e8F};
  std::vector<std::span<std::byte>> to;
  for (int r = 0; r < 3; ++r) {
    const auto from = g[r].memory(12);
    fill(from, [&](std::size_t) { return parts[static_cast<std::size_t>(r)]; });
    to.push_back(g[r].memory(12));
    BOOST_REQUIRE(g[r].communicator->all_reduce(*g[r].stream, op, from, to.back(), dtype::f32,
                                                device_reduction::sum));
  }
  for (auto& r : g.all) BOOST_REQUIRE(r->stream->synchronize());
  BOOST_TEST((floats(to[0]) != std::vector<float>(3, parts[0] + parts[1] + parts[2])));
  BOOST_TEST((floats(to[1]) == floats(to[0])));
  BOOST_TEST((floats(to[2]) == floats(to[0])));
}

BOOST_AUTO_TEST_CASE(DC_3_abort_ends_what_waits_for_a_rank_that_never_calls) {
  group g(3);
  g.meet();
  for (const int r : {0, 1}) {
    const auto m = g[r].memory(4096);
    fill(m, [](std::size_t) { return 1.0F; });
    BOOST_REQUIRE(
        g[r].communicator->all_reduce(*g[r].stream, op, m, m, dtype::f32, device_reduction::sum));
  }
  for (const int r : {0, 1}) {
    g[r].communicator->abort();
    const auto ended = g[r].stream->synchronize();
    BOOST_REQUIRE(!ended);
    // The other one may see the first one's end before its own.
    const auto text = ended.error().text();
    BOOST_TEST((text.find("the communicator is aborted") != std::string::npos ||
                (r == 1 && text.find("rank 0 is gone") != std::string::npos)),
               text);
    BOOST_TEST(ended.error().text().find(op) != std::string::npos, ended.error().text());
    BOOST_TEST(!bool(g[r].communicator->is_ready()));
    BOOST_TEST(!bool(g[r].communicator->all_reduce(*g[r].stream, op, {}, {}, dtype::f32,
                                                   device_reduction::sum)));
  }
}

BOOST_AUTO_TEST_CASE(HC_2_a_rank_that_ends_is_named_to_who_reads_from_it_and_changed_is_told) {
  group g(3);
  g.meet();
  const auto m = g[0].memory(64);
  fill(m, [](std::size_t) { return 1.0F; });
  BOOST_REQUIRE(
      g[0].communicator->all_reduce(*g[0].stream, op, m, m, dtype::f32, device_reduction::sum));
  g[1].communicator.reset();
  g[0].told.await(2);
  const auto ready = g[0].communicator->is_ready();
  BOOST_REQUIRE(!ready);
  BOOST_TEST(ready.error().message() == "gpu:0: rank 0 of 3: rank 1 is gone");
  BOOST_TEST(!bool(g[0].stream->synchronize()));
}

// A rank that is a mere connection, so that a test knows what it has said when it vanishes.
class rank_by_hand {
 public:
  rank_by_hand(const communicator_id& id, std::int32_t rank, std::int32_t ranks)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::uint16_t port = 0;
    std::memcpy(&port, id.bytes.data() + 8, sizeof port);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(port), at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    BOOST_REQUIRE(::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    std::array<std::byte, 40> hello{};  // secret, rank, ranks
    std::memcpy(hello.data(), id.bytes.data() + 10, 32);
    std::memcpy(hello.data() + 32, &rank, 4), std::memcpy(hello.data() + 36, &ranks, 4);
    say(hello);
  }
  ~rank_by_hand() { vanish(); }
  void say(std::span<const std::byte> bytes) const {
    BOOST_REQUIRE(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(bytes.size()));
  }
  void hear_welcome() const {
    char c = 0;
    test::wait_readable(fd_, "the welcome has come");
    BOOST_REQUIRE(::recv(fd_, &c, 1, 0) == 1);
  }
  void say_goodbye() const {
    std::array<std::byte, 96> header{};
    header[0] = std::byte{4};  // the kind of call
    say(header);
  }
  void vanish() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

void is_done(rank_here& r) {
  r.told.await(2);
  const auto ready = r.communicator->is_ready();
  BOOST_TEST(bool(ready), (ready ? "" : ready.error().text()));
  BOOST_TEST((ready && *ready));
}
void has_failed(rank_here& r, std::string_view message) {
  r.told.await(2);
  const auto ready = r.communicator->is_ready();
  BOOST_REQUIRE(!ready);
  BOOST_TEST(ready.error().message() == message);
  BOOST_TEST(bool(r.stream->failed()));
}

BOOST_AUTO_TEST_CASE(
    DC_6_all_ranks_finish_behind_what_is_still_in_their_queues_and_none_before_the_last) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto ranks = 1 + static_cast<int>(seed % 4);
    BOOST_TEST_CONTEXT("seed " << seed) {
      group g(ranks, seed);
      g.meet();
      std::vector<std::span<std::byte>> m;
      for (auto& r : g.all) {
        m.push_back(r->memory(64));
        fill(m.back(), [](std::size_t) { return 1.0F; });
      }
      const auto last = static_cast<int>(seed / 4 % static_cast<std::uint64_t>(ranks));
      const auto calls = [&](int r) {
        auto& c = *g[r].communicator;
        for (int i = 0; i < 3; ++i)
          BOOST_REQUIRE(c.all_reduce(*g[r].stream, op, m[static_cast<std::size_t>(r)],
                                     m[static_cast<std::size_t>(r)], dtype::f32,
                                     device_reduction::sum));
        if (r != last) BOOST_REQUIRE(c.finish());
      };
      for (int r = 0; r < ranks; ++r) calls(r);
      for (int r = 0; r < ranks; ++r) {
        const auto ready = g[r].communicator->is_ready();
        BOOST_TEST((ready && *ready == (r == last)));  // the last one has not begun
      }
      BOOST_REQUIRE(g[last].communicator->finish());
      for (int r = 0; r < ranks; ++r) {
        is_done(g[r]);
        BOOST_REQUIRE(g[r].stream->synchronize());
        BOOST_TEST((floats(m[static_cast<std::size_t>(r)]) ==
                    std::vector<float>(16, static_cast<float>(ranks * ranks * ranks))));
      }
      for (auto& r : g.all) {
        const auto late = r->communicator->all_reduce(*r->stream, op, {}, {}, dtype::f32,
                                                      device_reduction::sum),
                   again = r->communicator->finish();
        BOOST_REQUIRE((!late && !again));
        BOOST_TEST((late.error().code() == error_code::usage &&
                    again.error().code() == error_code::usage));
        BOOST_TEST(late.error().message().find("op worker/0/sum: the communicator has been "
                                               "finished") != std::string::npos,
                   late.error().text());
        BOOST_TEST(bool(r->stream->failed()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(DC_6_a_rank_that_goes_before_its_end_is_named_to_all_others_as_they_finish) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto gone = static_cast<int>(seed % 3);
    const bool is_aborted = seed / 3 % 2 == 0, is_first = seed / 6 % 2 == 0;
    BOOST_TEST_CONTEXT("seed " << seed << ": rank " << gone
                               << (is_aborted ? " is aborted" : " ends")) {
      group g(3, seed);
      g.meet();
      const auto go = [&] {
        is_aborted ? g[gone].communicator->abort() : g[gone].communicator.reset();
      };
      if (is_first) go();
      for (int r = 0; r < 3; ++r)
        if (r != gone) BOOST_REQUIRE(g[r].communicator->finish());
      if (!is_first) go();
      for (int r = 0; r < 3; ++r)
        if (r != gone)
          has_failed(g[r], "gpu:0: rank " + std::to_string(r) + " of 3: rank " +
                               std::to_string(gone) + " is gone");
    }
  }
}

BOOST_AUTO_TEST_CASE(DC_6_whoever_has_finished_goes_at_once_and_harms_nobody) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    group g(3, seed);
    g.meet();
    std::vector<std::thread> threads;
    std::vector<std::string> failures(3);
    for (int r = 0; r < 3; ++r) {
      const auto m = g[r].memory(4096);
      fill(m, [](std::size_t) { return 1.0F; });
      threads.emplace_back([&, r, m] {
        auto& c = g[r].communicator;
        auto& failure = failures[static_cast<std::size_t>(r)];
        if (auto ok = c->all_reduce(*g[r].stream, op, m, m, dtype::f32, device_reduction::sum); !ok)
          failure = ok.error().text();
        if (auto ok = c->finish(); !ok) failure = ok.error().text();
        g[r].told.await(2);
        if (auto ready = c->is_ready(); !ready || !*ready)
          failure = ready ? "not ready" : ready.error().text();
        c.reset();
      });
    }
    const test::waiting_for named("the end of all ranks' threads");
    for (auto& t : threads) t.join();
    for (const auto& f : failures) BOOST_TEST(f == "");
    for (auto& r : g.all) BOOST_TEST(bool(r->stream->synchronize()));
  }
}

BOOST_AUTO_TEST_CASE(
    HC_4_a_goodbye_counts_when_its_rank_vanishes_before_the_others_have_said_theirs) {
  for (const bool says_it : {true, false}) {
    group g(2);
    g[0].begin(g.id, 0, 3), g[1].begin(g.id, 1, 3);
    rank_by_hand third(g.id, 2, 3);
    third.hear_welcome();
    for (auto& r : g.all) r->told.await(1);
    if (says_it) third.say_goodbye();
    third.vanish();
    for (auto& r : g.all) BOOST_REQUIRE(r->communicator->finish());
    for (int r = 0; r < 2; ++r) {
      if (says_it)
        is_done(g[r]);
      else
        has_failed(g[r], "gpu:0: rank " + std::to_string(r) + " of 3: rank 2 is gone");
    }
  }
}

BOOST_AUTO_TEST_CASE(HC_4_one_who_is_late_does_not_hide_one_who_is_gone) {
  group g(3);
  g.meet();
  BOOST_REQUIRE(g[0].communicator->finish());
  g[2].communicator.reset();
  has_failed(g[0], "gpu:0: rank 0 of 3: rank 2 is gone");
  BOOST_REQUIRE(g[1].communicator->finish());
  has_failed(g[1], "gpu:0: rank 1 of 3: rank 2 is gone");
}

BOOST_AUTO_TEST_CASE(HC_1_an_end_beside_a_collective_is_refused_to_both) {
  for (const int finishing : {0, 1}) {
    group g(2);
    g.meet();
    auto& other = g[1 - finishing];
    const auto m = other.memory(8 << 20);  // more than a socket keeps
    fill(m, [](std::size_t) { return 1.0F; });
    BOOST_REQUIRE(g[finishing].communicator->finish());
    BOOST_REQUIRE(
        other.communicator->all_reduce(*other.stream, op, m, m, dtype::f32, device_reduction::sum));
    const auto ended = other.stream->synchronize();
    BOOST_REQUIRE(!ended);
    const std::string call = " all_reduce of 8388608 bytes of f32 (sum) for 'worker/0/sum'",
                      end = " finish";
    const auto what = "ranks call different collectives: rank 0" + (finishing == 0 ? end : call) +
                      ", rank 1" + (finishing == 0 ? call : end);
    BOOST_TEST(ended.error().message().find(what) != std::string::npos, ended.error().text());
    has_failed(g[finishing], "gpu:0: rank " + std::to_string(finishing) + " of 2: " + what);
  }
}

BOOST_AUTO_TEST_CASE(DC_6_an_end_that_never_comes_is_broken_off_by_the_abort_or_the_destructor) {
  group g(3);
  g.meet();
  // Rank 1 calls nothing, so both wait for ever: with a collective in the queue, which the end
  // stands behind.
  for (const int r : {0, 2}) {
    const auto m = g[r].memory(64);
    fill(m, [](std::size_t) { return 1.0F; });
    BOOST_REQUIRE(
        g[r].communicator->all_reduce(*g[r].stream, op, m, m, dtype::f32, device_reduction::sum));
    BOOST_REQUIRE(g[r].communicator->finish());
    const auto ready = g[r].communicator->is_ready();
    BOOST_TEST((ready && !*ready));
  }
  g[0].communicator->abort();
  BOOST_TEST(!bool(g[0].communicator->is_ready()));
  g[2].communicator.reset();
}

BOOST_AUTO_TEST_CASE(DC_6_a_rank_whose_stream_failed_before_its_collective_does_not_end_well) {
  group g(2);
  g.meet();
  auto& r = g[1];
  r.chip->fail_work(1);
  const auto m = r.memory(64);
  BOOST_REQUIRE(r.stream->fill_zero(op, m));
  // The stream may know by now.
  (void)r.communicator->all_reduce(*r.stream, op, m, m, dtype::f32, device_reduction::sum);
  (void)r.communicator->finish();
  r.told.await(2);
  const auto ready = r.communicator->is_ready();
  BOOST_REQUIRE(!ready);
  BOOST_TEST(ready.error().message() ==
             "gpu:0: rank 1 of 2: a collective has not run, since its stream has failed");
}

BOOST_AUTO_TEST_CASE(
    a_rank_that_never_comes_is_waited_for_without_a_thread_of_ours_until_the_abort) {
  group g(3);
  g[0].begin(g.id, 0, 3);
  g[1].begin(g.id, 1, 3);
  for (const int r : {0, 1}) {
    const auto ready = g[r].communicator->is_ready();
    BOOST_REQUIRE(ready);
    BOOST_TEST(!*ready);
    const auto early =
        g[r].communicator->all_reduce(*g[r].stream, op, {}, {}, dtype::f32, device_reduction::sum);
    BOOST_REQUIRE(!early);
    BOOST_TEST(early.error().message().find("before all ranks are there") != std::string::npos,
               early.error().text());
    BOOST_TEST(!bool(g[r].communicator->finish()));
  }
  for (const int r : {0, 1}) {
    g[r].communicator->abort();
    g[r].told.await(1);
    BOOST_TEST(!bool(g[r].communicator->is_ready()));
  }
}

BOOST_AUTO_TEST_CASE(HC_1_ranks_that_call_different_collectives_are_told_which) {
  const auto refusal = [](auto first, auto second) {
    group g(2);
    g.meet();
    first(g[0]), second(g[1]);
    const auto a = g[0].stream->synchronize(), b = g[1].stream->synchronize();
    BOOST_REQUIRE((!a && !b));
    BOOST_TEST(b.error().message().find("ranks call different collectives") != std::string::npos,
               b.error().text());
    return a.error().message();
  };
  const auto reduces = [](std::size_t bytes, dtype type, device_reduction how) {
    return [=](rank_here& r) {
      BOOST_REQUIRE(
          r.communicator->all_reduce(*r.stream, op, r.memory(bytes), r.memory(bytes), type, how));
    };
  };
  const auto gathers = [](rank_here& r) {
    BOOST_REQUIRE(
        r.communicator->all_gather(*r.stream, op, r.memory(64), r.memory(128), dtype::f32));
  };
  BOOST_TEST(
      refusal(reduces(64, dtype::f32, device_reduction::sum), gathers)
          .find(
              "rank 0 all_reduce of 64 bytes of f32 (sum) for 'worker/0/sum', rank 1 all_gather of 64 bytes of f32") !=
      std::string::npos);
  refusal(reduces(64, dtype::f32, device_reduction::sum),
          reduces(128, dtype::f32, device_reduction::sum));
  refusal(reduces(64, dtype::f32, device_reduction::sum),
          reduces(64, dtype::i32, device_reduction::sum));
  refusal(reduces(64, dtype::f32, device_reduction::sum),
          reduces(64, dtype::f32, device_reduction::max));
}

// HC-1.
BOOST_AUTO_TEST_CASE(who_does_not_know_the_id_is_not_let_in) {
  group g(2);
  g[0].begin(g.id, 0, 2);
  std::uint16_t port = 0;
  std::memcpy(&port, g.id.bytes.data() + 8, sizeof port);
  std::vector<int> strangers;
  for (const std::string what :
       {"", "x", "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything that there is\r\n\r\n"}) {
    const auto fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(port), at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    BOOST_REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    BOOST_REQUIRE(::send(fd, what.data(), what.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(what.size()));
    ::shutdown(fd, SHUT_WR);
    strangers.push_back(fd);
  }
  g[1].begin(g.id, 1, 2);
  for (auto& r : g.all) {
    r->told.await(1);
    const auto ready = r->communicator->is_ready();
    BOOST_TEST((ready && *ready));
  }
  for (const auto fd : strangers) ::close(fd);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_is_an_error_of_the_call) {
  group g(2);
  auto& b = *g[0].backend;
  const auto text = [](const auto& r) { return r ? std::string() : r.error().message(); };
  BOOST_TEST(text(b.begin_communicator(g.id, 2, 2, {})) == "gpu:0: there is no rank 2 of 2");
  BOOST_TEST(
      text(b.begin_communicator({}, 0, 2, {})).find("is not one of asynchronous host devices") !=
      std::string::npos);
  BOOST_TEST(
      text(g[1].backend->begin_communicator(g.id, 0, 2, {})).find("rank 0 must begin, once") !=
      std::string::npos);
  g.meet();
  auto& s = *g[0].stream;
  const auto m = g[0].memory(64);
  BOOST_TEST(
      text(g[0].communicator->all_reduce(s, op, m, m.first(32), dtype::f32, device_reduction::sum))
          .find("64 bytes of f32 (sum) for 'worker/0/sum' into 32 bytes") != std::string::npos);
  BOOST_TEST(text(g[0].communicator->all_reduce(s, op, m, m, dtype::bf16, device_reduction::sum))
                 .find("can be reduced") != std::string::npos);
  BOOST_TEST(
      text(g[0].communicator->broadcast(s, op, m, m, dtype::f32, 2)).find("there is no rank 2") !=
      std::string::npos);
  BOOST_TEST(bool(s.failed()));  // the stream is none the worse

  const auto kernels = make_host_kernels();
  const auto stepped = make_async_host_backend(
      "gpu:0", std::make_shared<async_host_chip>(async_host_options{}), kernels);
  BOOST_TEST(text(stepped->make_communicator_id()).find("use a threaded chip") !=
             std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
