// A hop: one message between two op actors of one stream, with credits, counters and registry on,
// every op an actor of its own.
//
// Per step the driver adds a feed, a fetch and four messages to the chain's 1,000; they are counted
// in, so the figure is 0.4 % too high, for the bare chain 0.1 %. Nothing crosses threads: the
// driver is on the stream too.

#include "tools/troupe-bench/chain.hpp"
#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>

namespace troupe {

namespace {

constexpr std::uint32_t chain_length = 1000;
constexpr std::int64_t elements = 16;

// The same ops as virtual calls, each into memory of its own.
class called_op {
 public:
  virtual ~called_op() = default;
  virtual const float* run(const float* x, const float* operand) noexcept = 0;

 protected:
  std::array<float, elements> out_{};
};

class called_relu final : public called_op {
  const float* run(const float* x, const float*) noexcept override {
    for (std::size_t i = 0; i < elements; ++i) out_[i] = x[i] < 0 ? 0 : x[i];
    return out_.data();
  }
};

class called_add final : public called_op {
  const float* run(const float* x, const float* operand) noexcept override {
    for (std::size_t i = 0; i < elements; ++i) out_[i] = x[i] + operand[i];
    return out_.data();
  }
};

class call_chain {
 public:
  explicit call_chain(bool has_operand) {
    for (std::uint32_t i = 0; i < chain_length; ++i)
      ops_.push_back(has_operand ? std::unique_ptr<called_op>(std::make_unique<called_add>())
                                 : std::make_unique<called_relu>());
  }
  double run(std::uint64_t steps) {
    const std::array<float, elements> x{}, operand{};
    const auto began = std::chrono::steady_clock::now();
    for (std::uint64_t s = 0; s < steps; ++s) {
      const float* value = x.data();
      for (auto& op : ops_) value = op->run(value, operand.data());
      last_ = value[0];
    }
    return seconds_since(began);
  }

 private:
  std::vector<std::unique_ptr<called_op>> ops_;
  volatile float last_ = 0;
};

result<plan> chain_plan(const op_table& ops, bool has_operand, std::uint32_t credits) {
  graph g(ops);
  const tensor_spec spec{dtype::f32, {elements}};
  auto x = input(g, spec, "x");
  const auto operand = has_operand ? input(g, spec, "operand") : value{};
  for (std::uint32_t i = 0; i < chain_length; ++i) x = has_operand ? add(x, operand) : relu(x);
  return compile_steps(g, {&x, 1}, {.name = "hop", .fuse = false, .credits = credits});
}

result<void> measure(const bench_options& o, bench_report& report, bool has_operand,
                     std::uint64_t in_flight) {
  auto p = process::start({});
  if (!p) return p.error();
  // Credits enough that none is waited for: as many as items are in flight.
  auto compiled = chain_plan((*p)->ops(), has_operand, static_cast<std::uint32_t>(in_flight));
  if (!compiled) return compiled.error();
  auto graph = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
  if (!graph) return graph.error();
  auto* stream = static_cast<pinned_scheduler&>((*p)->system().scheduler()).stream(0);
  bare_chain bare((*p)->system(), chain_length, has_operand,
                  [stream](std::uint32_t) { return stream; });
  call_chain calls(has_operand);

  const std::uint64_t steps = std::max<std::uint64_t>(in_flight, o.is_quick    ? 20
                                                                 : has_operand ? 256
                                                                               : 512);
  const auto per_hop = 1e9 / (double(steps) * chain_length);
  auto figures = take_turns(
      o.runs, {[&]() -> result<double> {
                 auto seconds = (*graph)->run(steps, in_flight);
                 return seconds ? result<double>(*seconds * per_hop) : seconds;
               },
               [&]() -> result<double> { return bare.run(steps, in_flight) * per_hop; },
               [&]() -> result<double> { return calls.run(steps * 16) * per_hop / 16; }});
  if (!figures) return figures.error();
  const auto what = fmt::format("{} x {}, {} in flight", chain_length,
                                has_operand ? "add (fed operand)" : "relu", in_flight);
  const std::string bare_name =
      has_operand ? "two bare typed CAF messages" : "bare typed CAF message";
  report.add({"hop", what, "ns", (*figures)[0], (*graph)->actors(), bare_name, (*figures)[1],
              bench_ratio::ours_to_baseline, "<= 1.25"});
  report.add({"hop", what, "ns", (*figures)[0], (*graph)->actors(), "plain virtual call",
              (*figures)[2], bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace

result<void> bench_hop(const bench_options& o, bench_report& report) {
  for (const bool has_operand : {false, true})
    for (const std::uint64_t in_flight : {1, 8, 64})
      if (auto done = measure(o, report, has_operand, in_flight); !done) return done;
  return {};
}

}  // namespace troupe
