// A pipeline over three processes: a source here, a stage on each of two nodes, and an end here
// again; beside bare blocking TCP through two processes that relay. How long an item takes when it
// is alone, and how many pass in a second when there are always more.
//
// Clocks start when the first item is made, and end when the last one has arrived.

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/bench_stages.hpp"
#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace troupe {

namespace {

using bench_clock = std::chrono::steady_clock;

constexpr std::size_t small_bytes = sizeof(small_item), large_bytes = 64 << 10;
constexpr std::uint64_t actors = 6;  // a group, a director and a gate here, a group each there

struct three_processes {
  std::unique_ptr<peer_process> first, second;
  std::unique_ptr<session> member;
};
result<three_processes> open_processes(const std::string& folder) {
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  const auto cluster = fmt::format("bench-{}", ::getpid());
  three_processes p;
  for (auto* peer : {&p.first, &p.second}) {
    auto started = peer_process::start({"stages", cluster, peer == &p.first ? "first" : "second"});
    if (!started) return started.error();
    *peer = std::move(*started);
  }
  auto opened = session::open({.cluster = cluster, .gpus = "none"});
  if (!opened) return opened.error();
  p.member = std::move(*opened);
  return p;
}

// What one run sees. Written by the threads of the source and of the end.
struct seen {
  std::atomic<std::uint64_t> arrived{0};
  std::counting_semaphore<> next{0};
  bench_clock::time_point began, made, ended;
  std::vector<double> alone;  // of each item, in seconds
};

// `make(i)`: item i. One at a time, or as many as there is room for.
template <class Stage, class Make>
result<void> run(session& member, std::uint64_t count, bool is_alone, Make make, seen& s) {
  topology t({.is_quiet = true, .member = &member});
  t.use(bench_stages());
  s.alone.reserve(count);
  auto items = source(t,
                      [&, i = std::uint64_t{0}]() mutable {
                        using item = decltype(make(i));
                        // Whoever waits longer has lost a process.
                        if (is_alone && i > 0 && !s.next.try_acquire_for(std::chrono::seconds(10)))
                          return std::optional<item>();
                        s.made = bench_clock::now();
                        if (i == 0) s.began = s.made;
                        return i == count ? std::optional<item>() : std::optional<item>(make(i++));
                      },
                      {.blocks = is_alone});
  auto there = map(map(items, Stage{}, {.on = "/node:first"}), Stage{}, {.on = "/node:second"});
  for_each(there, [&](const auto&) {
    s.ended = bench_clock::now();
    if (is_alone) s.alone.push_back(std::chrono::duration<double>(s.ended - s.made).count());
    s.arrived.fetch_add(1);
    if (is_alone) s.next.release();
  });
  if (auto done = t.run_to_end(); !done) return done.error();
  if (s.arrived != count)
    return error(error_code::failed,
                 fmt::format("{} of {} items have arrived", s.arrived.load(), count));
  return {};
}

small_item small(std::uint64_t i) {
  small_item x{};
  x[0] = i;
  return x;
}

double quantile(std::vector<double> all, double part) {
  std::ranges::sort(all);
  return all[static_cast<std::size_t>(part * double(all.size() - 1))];
}

contender latency(session& member, std::uint64_t count, double part) {
  return [=, &member]() -> result<double> {
    seen s;
    if (auto ran = run<small_stage>(member, count, true, &small, s); !ran) return ran.error();
    return quantile(s.alone, part) * 1e6;
  };
}
template <class Stage, class Make>
contender rate(session& member, std::uint64_t count, Make make) {
  return [=, &member]() -> result<double> {
    seen s;
    if (auto ran = run<Stage>(member, count, false, make, s); !ran) return ran.error();
    return double(count) / std::chrono::duration<double>(s.ended - s.began).count();
  };
}

}  // namespace

result<void> bench_far_pipelines(const bench_options& o, bench_report& report) {
  bench_folder folder;
  auto path = folder.path();
  if (!path) return path.error();
  auto p = open_processes(*path);
  if (!p) return p.error();
  auto bare = bare_ring::start();
  if (!bare) return bare.error();
  auto& b = **bare;
  auto& member = *p->member;

  const std::uint64_t few = o.is_quick ? 20 : 3000, many = o.is_quick ? 200 : 300'000,
                      large = o.is_quick ? 20 : 20'000;
  const auto payload = tensor::make({dtype::u8, {std::int64_t{large_bytes}}});
  const auto bare_latency = [&](double part) -> contender {
    return [&b, few, part]() -> result<double> {
      auto all = b.alone(small_bytes, few);
      return all ? result<double>(quantile(std::move(*all), part) * 1e6) : all.error();
    };
  };
  const auto bare_rate = [&](std::size_t bytes, std::uint64_t count,
                             std::size_t at_once) -> contender {
    return [&b, bytes, count, at_once]() -> result<double> {
      auto seconds = b.stream(bytes, count, at_once);
      return seconds ? result<double>(double(count) / *seconds) : seconds.error();
    };
  };
  auto figures = take_turns(
      o.runs, {latency(member, few, 0.5), bare_latency(0.5), latency(member, few, 0.99),
               bare_latency(0.99), rate<small_stage>(member, many, &small),
               bare_rate(small_bytes, many, 1), bare_rate(small_bytes, many, 64),
               rate<large_stage>(member, large, [payload](std::uint64_t) { return payload; }),
               bare_rate(large_bytes, large, 1)});
  if (!figures) return figures.error();
  const auto& f = *figures;
  const auto row = [&](std::string what, const char* unit, std::size_t ours, std::string beside,
                       std::size_t theirs) {
    report.add({"far_pipelines", std::move(what), unit, f[ours], actors, std::move(beside),
                f[theirs], bench_ratio::ours_to_baseline, ""});
  };
  row("64 B, one item at a time, median", "us", 0, "bare TCP", 1);
  row("64 B, one item at a time, 99 %", "us", 2, "bare TCP", 3);
  row("64 B, items", "1/s", 4, "bare TCP, a call each", 5);
  row("64 B, items", "1/s", 4, "bare TCP, 64 a call", 6);
  row("64 KiB, items", "1/s", 7, "bare TCP, a call each", 8);
  return {};
}

}  // namespace troupe
