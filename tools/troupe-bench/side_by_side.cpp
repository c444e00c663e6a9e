// Ops that take their time on one thread, as readers and ops of users do: how well the planner lets
// them run side by side when nobody has said where they stand.
//
// The baseline is the best possible, by arithmetic. Times are taken where the ops run: from the
// begin of the first one to the end of the last; of steps that follow each other, between the ends
// of their last ops.

#include "tools/troupe-bench/measure.hpp"

#include "troupe/actors/session/session.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/op_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When naps of a run began and ended; kernels of a library know nothing else of their program.
struct nap_times {
  std::mutex mutex;
  std::int64_t first_ns = 0, last_ns = 0;  // 0: none yet
  std::vector<std::int64_t> ends_ns;       // of last ops of steps

  void forget() {
    const std::scoped_lock lock(mutex);
    first_ns = last_ns = 0;
    ends_ns.clear();
  }
  void note(std::int64_t begin, std::int64_t end, bool is_last) {
    const std::scoped_lock lock(mutex);
    if (first_ns == 0 || begin < first_ns) first_ns = begin;
    last_ns = std::max(last_ns, end);
    if (is_last) ends_ns.push_back(end);
  }
  double milliseconds() {
    const std::scoped_lock lock(mutex);
    return static_cast<double>(last_ns - first_ns) / 1e6;
  }
  double milliseconds_a_step() {
    const std::scoped_lock lock(mutex);
    return static_cast<double>(ends_ns.back() - ends_ns.front()) / 1e6 /
           static_cast<double>(ends_ns.size() - 1);
  }
};
nap_times naps;

struct nap final : kernel {
  nap(std::int64_t us, bool last) : microseconds(us), is_last(last) {}
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    const auto begin = now_ns();
    std::this_thread::sleep_for(microseconds);
    std::ranges::fill(out[0].bytes(), std::byte{0});
    naps.note(begin, now_ns(), is_last);
    return {};
  }
  std::chrono::microseconds microseconds;
  bool is_last;
};

result<std::vector<tensor_spec>> four_floats(const attributes&, std::span<const tensor_spec>,
                                             const tag*) {
  return std::vector<tensor_spec>{{dtype::f32, {4}}};
}

void add_naps(op_table& ops, kernel_table& kernels) {
  ops.add("nap", {.inputs = 1, .shapes = four_floats});
  ops.add("nap_and_read", {.inputs = 0, .shapes = four_floats, .is_source = true});
  const auto make = [](const attributes& a, host_device&) -> result<std::unique_ptr<kernel>> {
    return std::unique_ptr<kernel>(
        std::make_unique<nap>(a.integer("us"), a.integer("last", 0) != 0));
  };
  kernels.add("nap", {make});
  kernels.add("nap_and_read", {make});
}
const op_library nap_library{.name = "troupe_bench_naps", .version = "1", .add = add_naps};

// `last`: of its step. `number` tells ops apart that else were one: equal ops are shared.
value nap_of(value x, std::int64_t us, bool last = false, std::int64_t number = 0) {
  const std::array operands{x};
  return x.owner->add("nap", operands, {{"us", us}, {"last", last ? 1 : 0}, {"number", number}},
                      "nap", source_location::current());
}
value reader_of(graph& g, std::int64_t us) {
  return g.add("nap_and_read", {}, {{"us", us}, {"part", 0}, {"parts", 1}, {"global_scale", 0}},
               "read", source_location::current());
}

result<std::unique_ptr<session>> open(std::uint32_t threads) {
  return session::open({.threads = threads, .gpus = "none", .libraries = {&nap_library}});
}

const tensor& fed() {
  static const auto t = tensor::of({1, 2, 3, 4}, {4});
  return t;
}

result<void> two_ops(const bench_options& o, bench_report& report, std::int64_t us) {
  auto s = open(2);
  if (!s) return s.error();
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {4}}, "x");
  auto steps = (*s)->compile(g, std::array{nap_of(x, us) + nap_of(x, us, false, 1)});
  if (!steps) return steps.error();
  const auto step = [&]() -> result<double> {
    naps.forget();
    if (auto ok = (*steps)->feed("x", fed()); !ok) return ok.error();
    if (auto got = (*steps)->fetch(); !got) return got.error();
    return naps.milliseconds();
  };
  auto figures = take_turns(o.runs, {step, [&]() -> result<double> { return double(us) / 1000; }});
  if (!figures) return figures.error();
  report.add({"side_by_side", fmt::format("two ops of {} ms, 2 threads", us / 1000), "ms",
              (*figures)[0], 2, "the best possible", (*figures)[1], bench_ratio::ours_to_baseline,
              "<= 1.1"});
  return {};
}

result<void> reader_and_op(const bench_options& o, bench_report& report, std::int64_t us) {
  auto s = open(2);
  if (!s) return s.error();
  graph g((*s)->ops());
  auto steps = (*s)->compile(g, std::array{nap_of(reader_of(g, us), us, true)});
  if (!steps) return steps.error();
  const std::uint64_t count = o.is_quick ? 3 : 20;
  const auto run = [&]() -> result<double> {
    naps.forget();
    for (std::uint64_t n = 0; n < count; ++n)
      if (auto got = (*steps)->fetch(); !got) return got.error();
    return naps.milliseconds_a_step();
  };
  auto figures = take_turns(o.runs, {run, [&]() -> result<double> { return double(us) / 1000; }});
  if (!figures) return figures.error();
  report.add({"side_by_side",
              fmt::format("a reader and an op of {} ms each, 2 threads, a step", us / 1000), "ms",
              (*figures)[0], 2, "the best possible", (*figures)[1], bench_ratio::ours_to_baseline,
              "<= 1.1"});
  return {};
}

result<void> runs_from_threads(const bench_options& o, bench_report& report, std::int64_t us) {
  auto s = open(4);
  if (!s) return s.error();
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {4}}, "x");
  nap_of(x, us);
  const auto r = (*s)->runner(g);
  constexpr int runs_each = 5;
  const auto run = [&]() -> result<double> {
    naps.forget();
    std::array<std::optional<error>, 4> failed;
    {
      std::vector<std::jthread> threads;
      for (auto& f : failed)
        threads.emplace_back([&] {
          for (int i = 0; i < runs_each; ++i)
            if (auto got = r->run({{"x", fed()}}, {"nap"}); !got) f = got.error();
        });
    }
    for (const auto& f : failed)
      if (f) return *f;
    return naps.milliseconds();
  };
  auto figures =
      take_turns(o.runs, {run, [&]() -> result<double> { return runs_each * double(us) / 1000; }});
  if (!figures) return figures.error();
  report.add({"side_by_side", fmt::format("20 runs of {} ms from 4 threads, 4 streams", us / 1000),
              "ms", (*figures)[0], 4, "the best possible", (*figures)[1],
              bench_ratio::ours_to_baseline, "<= 1.15"});
  return {};
}

result<void> async_training(const bench_options& o, bench_report& report, std::int64_t us) {
  auto s = open(4);
  if (!s) return s.error();
  const std::uint64_t steps = o.is_quick ? 4 : 30;
  const auto run = [&]() -> result<double> {
    graph g((*s)->ops());
    auto data = reader_of(g, us);
    for (int stage = 0; stage < 3; ++stage) data = nap_of(data, us, stage == 2);
    const auto w = variable(g, {dtype::f32, {4}}, {}, "w");
    naps.forget();
    auto job = (*s)->train(g, reduce_sum(data * w), {.update = update_kind::async, .steps = steps});
    if (!job) return job.error();
    while (auto event = (*job)->next())
      if (event->type == training_event::kind::failed)
        return error(error_code::failed, event->text);
    return naps.milliseconds_a_step();
  };
  auto figures = take_turns(o.runs, {run, [&]() -> result<double> { return double(us) / 1000; }});
  if (!figures) return figures.error();
  report.add(
      {"side_by_side",
       fmt::format("asynchronous training, a reader and 3 stages of {} ms, 4 threads, a step",
                   us / 1000),
       "ms", (*figures)[0], 4, "the best possible", (*figures)[1], bench_ratio::ours_to_baseline,
       "<= 1.2"});
  return {};
}

}  // namespace

result<void> bench_side_by_side(const bench_options& o, bench_report& report) {
  const std::int64_t unit = o.is_quick ? 1000 : 10'000;
  if (auto ok = two_ops(o, report, 10 * unit); !ok) return ok;
  if (auto ok = reader_and_op(o, report, 3 * unit); !ok) return ok;
  if (auto ok = runs_from_threads(o, report, 5 * unit); !ok) return ok;
  return async_training(o, report, 2 * unit);
}

}  // namespace troupe
