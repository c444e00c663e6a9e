// The teams of the device (devices/cuda/code/device_team.cuh) with a thread of the host for each of
// theirs: lanes of a warp exchange words at a barrier of 32, a block meets at one of 256.

#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct emulated_warp {
  std::barrier<> meet{32};
  unsigned int words[32] = {};
};
struct emulated_block {
  explicit emulated_block(int threads)
      : meet(threads), warps(static_cast<std::size_t>(threads / 32)) {
    for (auto& w : warps) w = std::make_unique<emulated_warp>();
  }
  std::barrier<> meet;
  std::vector<std::unique_ptr<emulated_warp>> warps;
};
struct index_of_thread {
  unsigned int x = 0;
};
thread_local index_of_thread threadIdx;
emulated_block* block = nullptr;

// All lanes take part, as the full mask says.
unsigned int exchanged(unsigned int x, int from) {
  auto& w = *block->warps[threadIdx.x / 32];
  w.words[threadIdx.x % 32] = x;
  w.meet.arrive_and_wait();
  const auto got = from >= 0 && from < 32 ? w.words[from] : x;
  w.meet.arrive_and_wait();
  return got;
}
unsigned int __shfl_xor_sync(unsigned int, unsigned int x, int mask) {
  return exchanged(x, static_cast<int>(threadIdx.x % 32) ^ mask);
}
// Below lane 0: its own.
unsigned int __shfl_up_sync(unsigned int, unsigned int x, int distance) {
  return exchanged(x, static_cast<int>(threadIdx.x % 32) - distance);
}
unsigned int __shfl_sync(unsigned int, unsigned int x, int lane) { return exchanged(x, lane); }
void __syncthreads() { block->meet.arrive_and_wait(); }

}  // namespace

#define __device__
#include "troupe/devices/cuda/code/device_team.cuh"
#undef __device__

#include "tests/support/wait.hpp"
#include "troupe/devices/cuda/code/rows.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

using namespace troupe::cuda::code;

namespace {

// run(thread) on as many threads as a block or a warp has.
void on_threads(int threads, const std::function<void()>& run) {
  emulated_block own(threads);
  block = &own;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([&run, i] {
      threadIdx.x = static_cast<unsigned int>(i);
      run();
    });
  const troupe::test::waiting_for named("the threads of a block, which meet");
  for (auto& t : all) t.join();
  block = nullptr;
}

// The same test for both teams. make(): a team for a thread.
template <class Make>
void joins_and_scans(int threads, Make make) {
  std::vector<double> sums(static_cast<std::size_t>(threads)), totals = sums, lower = sums;
  std::vector<std::int64_t> best(static_cast<std::size_t>(threads)), whole = best;
  on_threads(threads, [&] {
    auto team = make();
    const auto i = static_cast<std::size_t>(team.rank());
    if (team.size() != threads) return;     // and the sums are wrong
    for (int turn = 0; turn < 3; ++turn) {  // slots are written again
      sums[i] = team.join(std::sqrt(static_cast<double>(i + 1)), plus_op{});
      whole[i] = team.join(static_cast<std::int64_t>(i) << 33, plus_op{});
      best[i] = team.join(candidate<double>{static_cast<double>((i * 37) %
                                                                static_cast<std::size_t>(threads)),
                                            static_cast<std::int64_t>(i)},
                          better<true, double>{})
                    .at;
      lower[i] = team.scan(static_cast<double>(i + 1), totals[i]);
    }
  });
  double expected = 0;
  std::int64_t expected_whole = 0;
  for (int i = 0; i < threads; ++i) {
    expected += std::sqrt(static_cast<double>(i + 1));
    expected_whole += static_cast<std::int64_t>(i) << 33;
  }
  for (int i = 0; i < threads; ++i) {
    const auto k = static_cast<std::size_t>(i);
    BOOST_TEST(sums[k] == sums[0]);  // the same bits for all
    BOOST_TEST(std::abs(sums[k] - expected) < 1e-10);
    BOOST_TEST(whole[k] == expected_whole);
    BOOST_TEST((best[k] * 37) % threads == threads - 1);
    BOOST_TEST(totals[k] == static_cast<double>(threads) * (threads + 1) / 2);
    BOOST_TEST(lower[k] == static_cast<double>(i) * (i + 1) / 2);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_team)

BOOST_AUTO_TEST_CASE(a_warp_joins_and_scans) {
  joins_and_scans(warp_threads, [] { return warp_team{}; });
}

BOOST_AUTO_TEST_CASE(a_block_joins_and_scans) {
  alignas(16) static unsigned char shared[block_warps * 16];
  joins_and_scans(block_threads, [] { return block_team{shared}; });
}

BOOST_AUTO_TEST_CASE(kernels_of_rows_run_on_them) {
  alignas(16) static unsigned char shared[block_warps * 16];
  constexpr std::int64_t n = 700;
  std::vector<double> x(n), y(n), sums(n);
  for (std::int64_t i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = std::sin(static_cast<double>(i));
  const softmax<double> f{x.data(), y.data(), {1, n, 1}, false};
  const cumulative_sum<double> g{x.data(), sums.data(), {1, n, 1}, false, false};
  std::vector<double> values(5);
  std::vector<std::int32_t> places(5);
  const top_k<double> h{x.data(), values.data(), places.data(), n, 5};
  on_threads(block_threads, [&] {
    block_team team{shared};
    f(team, 0);
    g(team, 0);
    h(team, 0);
  });
  double all = 0;
  for (const auto v : x) all += std::exp(v);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    BOOST_TEST(std::abs(y[i] - std::exp(x[i]) / all) < 1e-15);
    sum += x[i];
    BOOST_TEST(std::abs(sums[i] - sum) < 1e-11);
  }
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < 5; ++i) BOOST_TEST(places[i] == order[i]);
}

BOOST_AUTO_TEST_SUITE_END()
