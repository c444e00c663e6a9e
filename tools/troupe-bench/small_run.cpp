// What a run of a small graph costs beside what it computes, which is one negation of 16 numbers:
// runner::run() beside a step of a stepper of the same graph, from one thread and from four, and
// with the op on a node of another process, beside blocking TCP, which wakes one thread each way.
//
// A run crosses from the program's thread to the service worker, to a stream and back the same way:
// four crossings, where a step has two. Over a link the I/O workers of both processes come to it.

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

namespace troupe {

namespace {

constexpr std::int64_t numbers = 16;
constexpr std::size_t message_bytes = numbers * sizeof(float);

tensor some_numbers() {
  return tensor::of<float>(dtype::f32, {numbers}, std::vector<float>(numbers, 1));
}

value small_graph(graph& g, const std::string& device) {
  const auto x = input(g, {dtype::f32, {numbers}}, "x");
  if (device.empty()) return neg(x);
  const auto there = g.device_scope(device);
  return neg(x);
}

using clock = std::chrono::steady_clock;

// Microseconds a run: around all runs of all threads.
result<double> runs(graph_runner& r, int threads, std::uint64_t each) {
  std::vector<std::optional<error>> failed(static_cast<std::size_t>(threads));
  const auto began = clock::now();
  {
    std::vector<std::jthread> of;
    for (auto& f : failed)
      of.emplace_back([&, x = some_numbers()] {
        for (std::uint64_t i = 0; i < each && !f; ++i)
          if (auto got = r.run({{"x", x}}, {"neg"}); !got) f = got.error();
      });
  }
  const auto seconds = seconds_since(began);
  for (const auto& f : failed)
    if (f) return *f;
  return seconds * 1e6 / double(each * static_cast<std::uint64_t>(threads));
}

result<double> steps(stepper& s, std::uint64_t count) {
  const std::array feeds{std::pair<std::string_view, tensor>("x", some_numbers())};
  const auto began = clock::now();
  for (std::uint64_t i = 0; i < count; ++i)
    if (auto got = s.step(feeds); !got) return got.error();
  return seconds_since(began) * 1e6 / double(count);
}

result<void> here(const bench_options& o, bench_report& report, std::uint64_t count) {
  auto s = session::open({.threads = 4, .gpus = "none"});
  if (!s) return s.error();
  graph g((*s)->ops());
  const auto y = small_graph(g, "");
  auto stepped = (*s)->compile(g, std::array{y});
  if (!stepped) return stepped.error();
  const auto r = (*s)->runner(g);
  auto figures = take_turns(
      o.runs, {[&] { return runs(*r, 1, count); }, [&] { return runs(*r, 4, count / 2); },
               [&] { return steps(**stepped, count); }});
  if (!figures) return figures.error();
  report.add({"small_run", "a run, 1 thread", "us", (*figures)[0], 3, "a step", (*figures)[2],
              bench_ratio::ours_to_baseline, "<= 1.2"});
  report.add({"small_run", "a run, 4 threads at once", "us", (*figures)[1], 3, "of 1 thread",
              (*figures)[0], bench_ratio::ours_to_baseline, "<= 0.33"});
  return {};
}

result<void> there(const bench_options& o, bench_report& report, std::uint64_t count) {
  bench_folder folder;
  auto path = folder.path();
  if (!path) return path.error();
  ::setenv("XDG_RUNTIME_DIR", path->c_str(), 1);
  const auto cluster = fmt::format("bench-{}", ::getpid());
  auto node = peer_process::start({"node", cluster});
  if (!node) return node.error();
  auto end = peer_process::start({"link", "on"});
  if (!end) return end.error();
  unsigned bare_port = 0, link_port = 0;
  if (std::sscanf((*end)->ready().c_str(), "%u %u", &bare_port, &link_port) != 2)
    return error(error_code::failed, "the other process said " + (*end)->ready());
  auto bare = bare_client::connect(static_cast<std::uint16_t>(bare_port));
  if (!bare) return bare.error();
  auto s = session::open({.cluster = cluster, .gpus = "none"});
  if (!s) return s.error();
  graph g((*s)->ops());
  small_graph(g, "/job:worker/task:0");
  const auto r = (*s)->runner(g);
  auto figures = take_turns(
      o.runs, {[&] { return runs(*r, 1, count); }, [&] { return runs(*r, 4, count / 2); },
               [&]() -> result<double> {
                 auto seconds = (*bare)->ping_pong(message_bytes, count);
                 if (!seconds) return seconds;
                 return *seconds * 1e6 / double(count);
               }});
  if (!figures) return figures.error();
  report.add({"small_run", "a run on another process, 1 thread", "us", (*figures)[0], 7,
              "bare blocking TCP", (*figures)[2], bench_ratio::ours_to_baseline, "<= 2.5"});
  report.add({"small_run", "a run on another process, 4 threads at once", "us", (*figures)[1], 7,
              "bare blocking TCP", (*figures)[2], bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace

result<void> bench_small_run(const bench_options& o, bench_report& report) {
  const std::uint64_t count = o.is_quick ? 50 : 2000;
  if (auto ok = here(o, report, count); !ok) return ok;
  return there(o, report, count);
}

}  // namespace troupe
