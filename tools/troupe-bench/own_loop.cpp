// A training step of a program's own loop, beside one of train(): the same perceptron, reader and
// optimizer, in this process and with the model on a node of another one. The loop waits for each
// step, as a program does that looks at its loss; its weights are in the program, and cross to the
// node and back in each step.
//
// Clocks: around whole loops, the first steps left out; train()'s from loss to loss, in the thread
// that takes its events.

#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"
#include "tools/troupe-bench/trained_steps.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

namespace troupe {

namespace {

constexpr std::uint64_t first_steps = 5;
const optimizer_spec how = sgd({.learning_rate = 0.05, .momentum = 0.9});

struct loop_case {
  idx_info data;
  std::int64_t batch = 128;
  std::uint64_t steps = 100;
  std::string device{};  // of the model
  bool is_fed = false;   // by the program, else the graph reads
  idx_batch_options reading() const { return {.batch = batch, .seed = 1}; }
};

// Microseconds a step.
result<double> trained(session& s, const loop_case& c) {
  graph g(s.ops());
  const auto loss = perceptron_loss(g, c.data, c.reading());
  auto run = s.train(g, loss, {.optimizer = how, .steps = first_steps + c.steps});
  if (!run) return run.error();
  std::uint64_t actors = 0;
  auto seconds = time_steps(**run, first_steps, c.steps, actors, [](std::uint64_t, float) {});
  return seconds ? result<double>(*seconds * 1e6) : seconds;
}

struct own_loop {
  std::unique_ptr<graph> g;
  std::unique_ptr<variable_store> store;
  std::unique_ptr<graph_runner> runner;
  tensor images{}, labels{};  // where it is fed

  static result<own_loop> make(session& s, const loop_case& c) {
    own_loop out{std::make_unique<graph>(s.ops()), s.make_store(), nullptr, {}, {}};
    auto& g = *out.g;
    const auto build = [&] {
      if (!c.is_fed) return perceptron_loss(g, c.data, c.reading());
      out.images = tensor::make({dtype::f32, {c.batch, 784}});
      out.labels = tensor::make({dtype::i32, {c.batch}});
      for (auto* t : {&out.images, &out.labels}) std::ranges::fill(t->bytes(), std::byte{0});
      return perceptron_loss({input(g, out.images.spec(), "images"),
                              input(g, out.labels.spec(), "labels"),
                              constant(g, 1.0 / double(c.batch), dtype::f32)});
    };
    value loss;
    if (c.device.empty()) {
      loss = build();
    } else {
      const auto stands = g.device_scope(c.device);
      loss = build();
    }
    minimize(loss, how);
    if (g.first_error()) return *g.first_error();
    g.node(loss.node).name = "loss";
    if (auto ready = out.store->initialize(g); !ready) return ready.error();
    out.runner = s.runner(g, *out.store);
    return out;
  }

  result<void> step(update_kind update = update_kind::sync) {
    const step_options options{.update = update};
    auto out = images ? runner->step({{"images", images}, {"labels", labels}}, {"loss"}, {"train"},
                                     options)
                      : runner->step({}, {"loss"}, {"train"}, options);
    return out ? result<void>() : out.error();
  }

  result<double> time(std::uint64_t steps) {
    std::chrono::steady_clock::time_point began;
    for (std::uint64_t i = 0; i < first_steps + steps; ++i) {
      if (i == first_steps) began = std::chrono::steady_clock::now();
      if (auto ok = step(); !ok) return ok.error();
    }
    return seconds_since(began) * 1e6 / double(steps);
  }

  // Steps a second of so many threads, which share one train op.
  result<double> rate(int threads, std::uint64_t each) {
    std::vector<std::optional<error>> failed(static_cast<std::size_t>(threads));
    const auto began = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> of;
      for (auto& f : failed)
        of.emplace_back([&] {
          for (std::uint64_t i = 0; i < each && !f; ++i)
            if (auto ok = step(update_kind::async); !ok) f = ok.error();
        });
    }
    const auto seconds = seconds_since(began);
    for (const auto& f : failed)
      if (f) return *f;
    return double(threads) * double(each) / seconds;
  }
};

result<void> over_a_node(const bench_options& o, bench_report& report, loop_case c) {
  bench_folder folder;
  auto path = folder.path();
  if (!path) return path.error();
  ::setenv("XDG_RUNTIME_DIR", path->c_str(), 1);
  const auto cluster = fmt::format("bench-{}", ::getpid());
  auto node = peer_process::start({"node", cluster});
  if (!node) return node.error();
  auto there = session::open({.cluster = cluster, .gpus = "none"});
  if (!there) return there.error();
  auto here = session::open({.gpus = "none"});
  if (!here) return here.error();
  auto alone = own_loop::make(**here, c);
  if (!alone) return alone.error();
  c.device = "/job:worker/task:0";
  auto loop = own_loop::make(**there, c);
  if (!loop) return loop.error();
  auto figures = take_turns(
      o.runs, {[&] { return loop->time(c.steps); }, [&] { return alone->time(c.steps); }});
  if (!figures) return figures.error();
  report.add({"own_loop", fmt::format("batch {}, on another process", c.batch), "us", (*figures)[0],
              0, "in this process", (*figures)[1], bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace

result<void> bench_own_loop(const bench_options& o, bench_report& report) {
  bench_folder folder;
  auto data = o.data;
  if (data.empty()) {
    auto path = folder.path();
    if (!path) return path.error();
    data = *path;
    if (auto made =
            write_synthetic_images(data, {.train = o.is_quick ? 1'000 : 10'000, .test = 10});
        !made)
      return made.error();
  }
  const auto info = open_idx(data, /*test=*/false);
  if (!info) return info.error();
  auto s = session::open({.gpus = "none"});
  if (!s) return s.error();
  for (const auto batch : {128, 16, 1}) {
    loop_case c{.data = *info, .batch = batch};
    c.steps = o.is_quick ? 5 : batch == 128 ? 200 : 1000;
    auto loop = own_loop::make(**s, c);
    if (!loop) return loop.error();
    auto figures =
        take_turns(o.runs, {[&] { return loop->time(c.steps); }, [&] { return trained(**s, c); }});
    if (!figures) return figures.error();
    report.add({"own_loop", fmt::format("batch {}", batch), "us", (*figures)[0], 0, "train()",
                (*figures)[1], bench_ratio::ours_to_baseline, "<= 1.03"});
  }
  auto many = session::open({.threads = 2, .gpus = "none"});
  if (!many) return many.error();
  loop_case c{.data = *info, .batch = 16, .steps = o.is_quick ? 8U : 1600U};
  c.is_fed = true;
  auto loop = own_loop::make(**many, c);
  if (!loop) return loop.error();
  std::vector<contender> turns;
  for (const auto threads : {1, 2, 4, 8})
    turns.emplace_back([&, threads] {
      return loop->rate(threads, c.steps / static_cast<std::uint64_t>(threads));
    });
  auto figures = take_turns(o.runs, turns);
  if (!figures) return figures.error();
  for (std::size_t i = 1; i < 4; ++i)
    report.add({"own_loop", fmt::format("asynchronous, batch 16, {} threads", 1 << i), "steps/s",
                (*figures)[i], 0, "1 thread", (*figures)[0], bench_ratio::ours_to_baseline, ""});
  c.steps = o.is_quick ? 5 : 200;
  c.batch = 128;
  c.is_fed = false;
  return over_a_node(o, report, c);
}

}  // namespace troupe
