// Topologies that change while they run: how long nothing arrives, and how many replicas Troupe
// chooses of what sleeps.

#include "tools/troupe-bench/measure.hpp"
#include "troupe/actors/flow/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;

// Some 10 us.
struct computes {
  std::uint64_t version = 1;
  std::uint64_t state = 0;
  std::uint64_t operator()(std::uint64_t x) {
    auto y = x;
    for (int i = 0; i < 6'000; ++i) y = y * 6364136223846793005U + 1442695040888963407U;
    state += (y & 1) | 1;
    return x;
  }
};

// The longest time, in ms, in which nothing arrived, of a topology that is changed so often.
contender longest_gap(std::uint32_t changes, std::uint32_t turns) {
  return [=]() -> result<double> {
    topology t({.threads = 2});
    std::uint64_t made = 0, wanted = 0, wrong = 0;
    auto numbers = source(t, [&made]() -> std::optional<std::uint64_t> { return made++; });
    std::atomic<double> worst{0};
    auto last = clock::now();
    for_each(
        map(numbers, computes{}, {.name = "work", .replicas = between(1, 4)}),
        [&](std::uint64_t x) {
          wrong += x != wanted++ ? 1 : 0;
          const auto now = clock::now();
          if (wanted > 10'000)  // from when it has its threads
            worst.store(std::max(worst.load(), std::chrono::duration<double>(now - last).count()));
          last = now;
        });
    std::string failed;
    std::thread surgeon([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      for (std::uint32_t i = 0; i < turns; ++i) {
        if (i < changes) {
          result<void> done;
          switch (i % 4) {
            case 0: done = t.replace<std::uint64_t>("work", computes{i}, i % 8); break;
            case 1: done = t.set_replicas("work", 4); break;
            case 2: done = t.replace<std::uint64_t>("work", computes{i}); break;
            default: done = t.set_replicas("work", i % 8 == 3 ? 2 : 1); break;
          }
          if (!done && failed.empty()) failed = done.error().text();
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(25));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      t.stop();
    });
    const auto ran = t.run_to_end();
    surgeon.join();
    if (!ran) return ran.error();
    if (!failed.empty()) return error(error_code::failed, failed);
    if (wrong > 0 || wanted != made)
      return error(error_code::failed,
                   fmt::format("{} items were made, {} arrived, {} of them not in their turn", made,
                               wanted, wrong));
    return worst.load() * 1e3;
  };
}

// A pipeline of stages that sleep, by its seed: items a second from `from` on.
contender unbalanced(std::uint64_t seed, bool is_automatic, std::chrono::milliseconds from,
                     std::chrono::milliseconds window) {
  return [=]() -> result<double> {
    std::mt19937_64 random(seed);
    const auto pick = [&](double a, double b) {
      return std::uniform_real_distribution<double>(a, b)(random);
    };
    topology t({.threads = 2});
    std::atomic<std::uint64_t> arrived{0};
    // No more than two cores can bring there, and a few stages of very different lengths.
    const auto rate = pick(100, 1500);
    auto due = clock::now();
    const auto step =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(1 / rate));
    std::uint64_t made = 0;
    auto f = source(t,
                    [&]() -> std::optional<std::uint64_t> {
                      due = std::max(due + step, clock::now() - std::chrono::milliseconds(20));
                      std::this_thread::sleep_until(due);
                      return made++;
                    },
                    {.blocks = true});
    const auto stages = 2 + random() % 3;
    for (std::size_t i = 0; i < stages; ++i) {
      const std::chrono::microseconds time(
          static_cast<std::int64_t>(std::pow(10.0, pick(2.7, 4.2))));  // 0.5 to 16 ms
      f = map(f, [time](std::uint64_t x) { return std::this_thread::sleep_for(time), x; },
              {.replicas = is_automatic ? automatic : replica_count(16), .blocks = true});
    }
    for_each(f, [&](std::uint64_t) { arrived.fetch_add(1); });
    double got = 0;
    std::thread watch([&] {
      std::this_thread::sleep_for(from);
      const auto before = arrived.load();
      const auto began = clock::now();
      std::this_thread::sleep_for(window);
      const auto now = arrived.load();
      got = double(now - before) / seconds_since(began);
      t.stop();
    });
    const auto ran = t.run_to_end();
    watch.join();
    if (!ran) return ran.error();
    return got;
  };
}

}  // namespace

result<void> bench_live(const bench_options& options, bench_report& report) {
  const std::uint32_t turns = options.is_quick ? 8 : 100;
  auto gaps = take_turns(options.runs, {longest_gap(turns, turns), longest_gap(0, turns)});
  if (!gaps) return gaps.error();
  bench_row gap;
  gap.bench = "live";
  gap.what = fmt::format("{} changes of a running stage, the longest gap", turns);
  gap.unit = "ms";
  gap.ours = (*gaps)[0];
  gap.actors = 5;
  gap.baseline = "without changes";
  gap.theirs = (*gaps)[1];
  report.add(gap);
  const std::uint64_t pipelines = options.is_quick ? 1 : 20;
  const std::chrono::milliseconds from(options.is_quick ? 300 : 3000),
      window(options.is_quick ? 200 : 2000);
  bench_row row;
  row.bench = "live";
  row.what = fmt::format("automatic replicas, {} pipelines, after 3 s", pipelines);
  row.unit = "1/s";
  row.actors = 40;
  row.baseline = "16 replicas each";
  row.goal = ">= 0.95";
  auto least = row;
  least.what = fmt::format("automatic replicas, the least of {} pipelines", pipelines);
  double worst = 1e9;
  for (std::uint64_t seed = 1; seed <= pipelines; ++seed) {
    const auto ours = unbalanced(seed, true, from, window)();
    if (!ours) return ours.error();
    const auto theirs =
        unbalanced(seed, false, std::min(from, std::chrono::milliseconds(1000)), window)();
    if (!theirs) return theirs.error();
    row.ours.push_back(*ours);
    row.theirs.push_back(*theirs);
    if (*ours / std::max(1.0, *theirs) < worst) {
      worst = *ours / std::max(1.0, *theirs);
      least.ours = {*ours};
      least.theirs = {*theirs};
    }
  }
  report.add(row);
  report.add(least);
  return {};
}

}  // namespace troupe
