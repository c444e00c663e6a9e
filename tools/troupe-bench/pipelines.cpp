// Pipelines: ten light stages fused, on threads and with a message between any two, beside oneTBB's
// parallel_pipeline and Taskflow's pipeline with the same functions, and a chain of bare CAF
// actors; and a map that computes for some 20 us an item.

#include "tools/troupe-bench/chain.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/process/process.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#ifdef TROUPE_HAS_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>
#endif
#ifdef TROUPE_HAS_TASKFLOW
#include <taskflow/algorithm/pipeline.hpp>
#include <taskflow/taskflow.hpp>
#endif

namespace troupe {

namespace {

constexpr std::uint32_t light_stages = 10;

struct numbers {
  std::uint64_t count, at = 0;
  std::optional<std::uint64_t> operator()() {
    return at < count ? std::optional(at++) : std::nullopt;
  }
};

// What a compiler cannot shorten: a chain of multiplications, of some 20 us.
std::uint64_t compute(std::uint64_t x) {
  for (int i = 0; i < 13'000; ++i) x = x * 6364136223846793005U + 1442695040888963407U;
  return x;
}

// What a run makes of its items has to be the same everywhere.
result<double> rate_of(std::uint64_t count, std::chrono::steady_clock::time_point began,
                       std::uint64_t sum, std::uint64_t wanted) {
  const auto seconds = seconds_since(began);
  if (sum != wanted) return error(error_code::failed, "the sum of the items is another one");
  return double(count) / seconds;
}

std::uint64_t light_sum(std::uint64_t count) {
  return count * (count - 1) / 2 + count * light_stages;
}
std::uint64_t heavy_sum(std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += compute(i);
  return sum;
}

void add_light(flow_graph& g, std::uint64_t count, std::uint64_t& sum) {
  auto f = source(g, numbers{count});
  for (std::uint32_t i = 0; i < light_stages; ++i)
    f = map(f, [](std::uint64_t x) { return x + 1; });
  for_each(f, [&sum](std::uint64_t x) { sum += x; });
}

contender light_drained(std::uint64_t count) {
  return [=]() -> result<double> {
    flow_graph g;
    std::uint64_t sum = 0;
    add_light(g, count, sum);
    const auto began = std::chrono::steady_clock::now();
    if (auto done = drain(g); !done) return done.error();
    return rate_of(count, began, sum, light_sum(count));
  };
}

contender light_on(std::uint64_t count, std::uint32_t threads, bool fuse) {
  return [=]() -> result<double> {
    topology t({.threads = threads, .fuse = fuse});
    std::uint64_t sum = 0;
    add_light(t, count, sum);
    const auto began = std::chrono::steady_clock::now();
    if (auto done = t.run_to_end(); !done) return done.error();
    return rate_of(count, began, sum, light_sum(count));
  };
}

contender heavy_on(std::uint64_t count, std::uint32_t replicas, std::uint64_t wanted) {
  return [=]() -> result<double> {
    topology t({.threads = replicas});
    std::uint64_t sum = 0;
    auto f = map(source(t, numbers{count}), [](std::uint64_t x) { return compute(x); },
                 {.replicas = replicas});
    for_each(f, [&sum](std::uint64_t x) { sum += x; });
    const auto began = std::chrono::steady_clock::now();
    if (auto done = t.run_to_end(); !done) return done.error();
    return rate_of(count, began, sum, wanted);
  };
}

// The least that a stage of unknown type can cost: a virtual call.
struct virtual_stage {
  virtual ~virtual_stage() = default;
  virtual std::uint64_t of(std::uint64_t x) = 0;
};
struct adds_one final : virtual_stage {
  [[gnu::noipa]] std::uint64_t of(std::uint64_t x) override { return x + 1; }
};

contender light_called(std::uint64_t count) {
  return [=]() -> result<double> {
    std::vector<std::unique_ptr<virtual_stage>> stages;
    for (std::uint32_t i = 0; i < light_stages; ++i) stages.push_back(std::make_unique<adds_one>());
    std::uint64_t sum = 0;
    const auto began = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < count; ++i) {
      auto x = i;
      for (const auto& s : stages) x = s->of(x);
      sum += x;
    }
    return rate_of(count, began, sum, light_sum(count));
  };
}

constexpr std::size_t tokens = 64;  // as many as leave for another thread at once

// Typed CAF actors on one thread, one for each stage: the least that a message each can cost.
contender light_in_caf(bare_chain& chain, std::uint64_t count) {
  return [&chain, count]() -> result<double> { return double(count) / chain.run(count, tokens); };
}

#ifdef TROUPE_HAS_TASKFLOW

// Values of items stand beside the pipeline, one for each line, as its documentation shows.
contender in_taskflow(std::uint64_t count, std::uint32_t threads, std::uint32_t stages,
                      tf::PipeType type, std::uint64_t (*f)(std::uint64_t), std::uint64_t wanted) {
  return [=]() -> result<double> {
    tf::Executor executor(threads);
    tf::Taskflow flow;
    std::vector<std::uint64_t> values(tokens);
    std::uint64_t sum = 0, at = 0;
    std::vector<tf::Pipe<std::function<void(tf::Pipeflow&)>>> pipes;
    pipes.emplace_back(tf::PipeType::SERIAL, [&](tf::Pipeflow& p) {
      if (at == count)
        p.stop();
      else
        values[p.line()] = at++;
    });
    for (std::uint32_t i = 0; i < stages; ++i)
      pipes.emplace_back(type,
                         [&values, f](tf::Pipeflow& p) { values[p.line()] = f(values[p.line()]); });
    pipes.emplace_back(tf::PipeType::SERIAL, [&](tf::Pipeflow& p) { sum += values[p.line()]; });
    tf::ScalablePipeline all(tokens, pipes.begin(), pipes.end());
    flow.composed_of(all);
    const auto began = std::chrono::steady_clock::now();
    executor.run(flow).wait();
    return rate_of(count, began, sum, wanted);
  };
}
std::uint64_t plus_one(std::uint64_t x) { return x + 1; }

#endif

#ifdef TROUPE_HAS_TBB

tbb::filter<void, std::uint64_t> tbb_source(std::uint64_t& at, std::uint64_t count) {
  return tbb::make_filter<void, std::uint64_t>(tbb::filter_mode::serial_in_order,
                                               [&at, count](tbb::flow_control& control) {
                                                 if (at == count) control.stop();
                                                 return at < count ? at++ : at;
                                               });
}
tbb::filter<std::uint64_t, void> tbb_end(std::uint64_t& sum) {
  return tbb::make_filter<std::uint64_t, void>(tbb::filter_mode::serial_in_order,
                                               [&sum](std::uint64_t x) { sum += x; });
}

contender light_in_tbb(std::uint64_t count, std::uint32_t threads, tbb::filter_mode mode) {
  return [=]() -> result<double> {
    tbb::global_control control(tbb::global_control::max_allowed_parallelism, threads);
    std::uint64_t sum = 0, at = 0;
    auto chain = tbb_source(at, count);
    for (std::uint32_t i = 0; i < light_stages; ++i)
      chain = chain & tbb::make_filter<std::uint64_t, std::uint64_t>(
                          mode, [](std::uint64_t x) { return x + 1; });
    const auto began = std::chrono::steady_clock::now();
    tbb::parallel_pipeline(tokens, chain & tbb_end(sum));
    return rate_of(count, began, sum, light_sum(count));
  };
}

contender heavy_in_tbb(std::uint64_t count, std::uint32_t threads, std::uint64_t wanted) {
  return [=]() -> result<double> {
    tbb::global_control control(tbb::global_control::max_allowed_parallelism, threads);
    std::uint64_t sum = 0, at = 0;
    const auto began = std::chrono::steady_clock::now();
    tbb::parallel_pipeline(tokens, tbb_source(at, count) &
                                       tbb::make_filter<std::uint64_t, std::uint64_t>(
                                           tbb::filter_mode::parallel, &compute) &
                                       tbb_end(sum));
    return rate_of(count, began, sum, wanted);
  };
}

#endif

}  // namespace

result<void> bench_pipelines(const bench_options& o, bench_report& report) {
  const std::uint64_t count = o.is_quick ? 1000 : 500'000;
  const std::uint64_t heavy = o.is_quick ? 20 : 10'000;
  const auto wanted = heavy_sum(heavy);
  std::vector<contender> all{light_drained(count),       light_on(count, 1, true),
                             light_on(count, 2, true),   light_on(count, 1, false),
                             light_on(count, 2, false),  heavy_on(heavy, 1, wanted),
                             heavy_on(heavy, 2, wanted), light_called(count)};
#ifdef TROUPE_HAS_TBB
  for (const std::uint32_t threads : {1, 2}) {
    all.push_back(light_in_tbb(count, threads, tbb::filter_mode::serial_in_order));
    all.push_back(light_in_tbb(count, threads, tbb::filter_mode::parallel));
    all.push_back(heavy_in_tbb(heavy, threads, wanted));
  }
#else
  std::fputs("pipelines: built without TBB (libtbb-dev): no lines beside it\n", stderr);
#endif
#ifndef TROUPE_HAS_TASKFLOW
  std::fputs("pipelines: built without Taskflow (taskflow/taskflow.hpp): no lines beside it\n",
             stderr);
#endif
  [[maybe_unused]] const auto first_of_taskflow = all.size();
#ifdef TROUPE_HAS_TASKFLOW
  for (const std::uint32_t threads : {1, 2}) {
    all.push_back(in_taskflow(count, threads, light_stages, tf::PipeType::SERIAL, &plus_one,
                              light_sum(count)));
    all.push_back(in_taskflow(count, threads, light_stages, tf::PipeType::PARALLEL, &plus_one,
                              light_sum(count)));
    all.push_back(in_taskflow(heavy, threads, 1, tf::PipeType::PARALLEL, &compute, wanted));
  }
#endif
  auto host = process::start({});
  if (!host) return host.error();
  auto* stream = static_cast<pinned_scheduler&>((*host)->system().scheduler()).stream(0);
  bare_chain bare((*host)->system(), light_stages + 1, false,
                  [stream](std::uint32_t) { return stream; });
  const auto caf = all.size();
  all.push_back(light_in_caf(bare, count));
  auto figures = take_turns(o.runs, all);
  if (!figures) return figures.error();
  const auto& f = *figures;
  const auto add = [&](std::string what, std::size_t ours, std::string baseline, std::size_t theirs,
                       const char* goal) {
    report.add({"pipelines", std::move(what), "1/s", f[ours], light_stages + 2, std::move(baseline),
                f[theirs], bench_ratio::ours_to_baseline, goal});
  };
  add("ten light stages, drained", 0, "virtual calls", 7, "");
  add("ten light stages, 1 thread", 1, "drained", 0, "");
  add("ten light stages, 2 threads", 2, "1 thread", 1, "");
  add("ten light stages, messages, 1 thread", 3, "calls", 1, "");
  add("ten light stages, messages, 2 threads in turn", 4, "1 thread", 3, "");
  add("a map of 20 us, 2 replicas, 2 threads", 6, "1 thread", 5, "");
  add("ten light stages, 1 thread", 1, "bare CAF messages", caf, "");
  add("ten light stages, messages, 1 thread", 3, "bare CAF messages", caf, "");
  [[maybe_unused]] const auto add_beside = [&](const std::string& whose, std::size_t next) {
    for (const std::uint32_t threads : {1, 2}) {
      const auto on = fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
      add("ten light stages, " + on, threads, whose + ", in order", next++, ">= 0.9");
      add("ten light stages, " + on, threads, whose + ", parallel", next++, ">= 0.9");
      add("a map of 20 us, " + on, 4 + threads, whose, next++, ">= 0.9");
    }
  };
#ifdef TROUPE_HAS_TBB
  add_beside("TBB", 8);
#endif
#ifdef TROUPE_HAS_TASKFLOW
  add_beside("Taskflow", first_of_taskflow);
#endif
  return {};
}

}  // namespace troupe
