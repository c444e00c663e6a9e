// What it costs that a timeline is recorded: the same work, with and without somebody who fetches
// pages as `troupe timeline` does.
//
// The node that is recorded is in this process, and so is who fetches: what the tool makes of the
// pages is not counted, what the node does for them is.

#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/trained_steps.hpp"

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/runtime/compile/compile.hpp"

#include <caf/scoped_actor.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <stop_token>
#include <thread>

namespace troupe {

namespace {

// Records while it lives.
class recording {
 public:
  explicit recording(process& p)
      : process_(p), thread_([this](const std::stop_token& stop) { run(stop); }) {}

 private:
  void run(const std::stop_token& stop) {
    caf::scoped_actor self{process_.system()};
    for (std::uint64_t n = 1;; ++n) {
      const bool ends = stop.stop_requested();
      tell(nullptr, process_.node(),
           ask_trace{{n, 1, trace_duration_max_ns, ends, "troupe-bench"},
                     caf::actor_cast<caf::actor>(self)});
      bool has_more = false;
      self->receive([&](const send_control& m) {
        has_more = std::get<trace_page>(m.body).has_more;
        (void)encode(m.body);
      });
      if (ends) return;
      if (!has_more) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  process& process_;
  std::jthread thread_;
};

// Of the same work, first alone and then recorded.
template <class Work>
result<std::vector<std::vector<double>>> compare(const bench_options& o, process& p, Work&& work) {
  return take_turns(o.runs, {[&]() -> result<double> {
                               recording r(p);
                               return work();
                             },
                             [&]() -> result<double> { return work(); }});
}

result<void> measure_hop(const bench_options& o, bench_report& report, std::uint64_t in_flight) {
  constexpr std::uint32_t chain_length = 1000;
  auto p = process::start({});
  if (!p) return p.error();
  graph g((*p)->ops());
  auto x = input(g, {dtype::f32, {16}}, "x");
  for (std::uint32_t i = 0; i < chain_length; ++i) x = relu(x);
  auto compiled = compile_steps(
      g, {&x, 1}, {.name = "hop", .fuse = false, .credits = static_cast<std::uint32_t>(in_flight)});
  if (!compiled) return compiled.error();
  auto graph = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
  if (!graph) return graph.error();
  const std::uint64_t steps = o.is_quick ? 20 : 512;
  auto figures = compare(o, **p, [&]() -> result<double> {
    auto seconds = (*graph)->run(steps, in_flight);
    return seconds ? result<double>(*seconds * 1e9 / (double(steps) * chain_length)) : seconds;
  });
  if (!figures) return figures.error();
  report.add({"timeline", fmt::format("a hop, {} in flight, recorded", in_flight), "ns",
              (*figures)[0], (*graph)->actors(), "not recorded", (*figures)[1],
              bench_ratio::ours_to_baseline, ""});
  return {};
}

struct recorded_training {
  idx_info data;
  std::int64_t batch = 128;
  std::uint64_t steps = 100;
  std::string device{};  // none: the host
};

// Seconds a step, over the node.
result<double> train(session& s, const recorded_training& c, std::uint64_t& actors) {
  constexpr std::uint64_t warm_steps = 20;
  graph g(s.ops());
  const auto loss = perceptron_loss(g, c.data, {.batch = c.batch, .seed = 1});
  auto run = s.train(
      g, loss, {.steps = warm_steps + c.steps, .compile = {.name = "bench", .device = c.device}});
  if (!run) return run.error();
  return time_steps(**run, warm_steps, c.steps, actors, [](std::uint64_t, float) {});
}

result<void> measure_training(const bench_options& o, bench_report& report) {
  bench_folder folder;
  const auto path = folder.path();
  if (!path) return path.error();
  if (auto written =
          write_synthetic_images(*path, {.train = o.is_quick ? 1'000 : 10'000, .test = 10});
      !written)
    return written;
  const auto info = open_idx(*path, /*test=*/false);
  if (!info) return info.error();
  ::setenv("XDG_RUNTIME_DIR", path->c_str(), 1);  // where the cluster's token is made, too
  process_options node;
  node.cluster = fmt::format("bench-{}", ::getpid());
  node.gpus = "host:1";
  auto p = process::start(node);
  if (!p) return p.error();
  auto s = session::open({.cluster = node.cluster});
  if (!s) return s.error();
  struct row {
    std::int64_t batch;
    std::uint64_t steps;
    std::string device;
  };
  for (const auto& [batch, steps, device] : {row{128, 400, ""}, row{16, 1500, ""}, row{1, 4000, ""},
                                             row{128, 400, "/gpu:0"}, row{1, 4000, "/gpu:0"}}) {
    std::uint64_t actors = 0;
    auto figures = compare(o, **p, [&]() -> result<double> {
      auto seconds = train(**s, {*info, batch, o.is_quick ? 20 : steps, device}, actors);
      return seconds ? result<double>(*seconds * 1e6) : seconds;
    });
    if (!figures) return figures.error();
    report.add({"timeline",
                fmt::format("a training step{}, batch {}, recorded",
                            device.empty() ? "" : " on an asynchronous host device", batch),
                "us", (*figures)[0], actors, "not recorded", (*figures)[1],
                bench_ratio::ours_to_baseline, "<= 1.03"});
  }
  return {};
}

}  // namespace

result<void> bench_timeline(const bench_options& o, bench_report& report) {
  if (auto done = measure_training(o, report); !done) return done;
  for (const std::uint64_t in_flight : {1, 8})
    if (auto done = measure_hop(o, report, in_flight); !done) return done;
  return {};
}

}  // namespace troupe
