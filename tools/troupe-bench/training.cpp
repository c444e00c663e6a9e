// A training step of the example's classifier as a real job, beside a hand-written loop that reads
// the same samples with the same reader. Losses of the first steps are compared, so that both are
// known to do the same work.
//
// A step of the job is timed between losses that reach the program: the first steps, which build
// kernels and buffers, do not count.

#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/handwritten_mlp.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/trained_steps.hpp"
#include "troupe/devices/host/initial_values.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/sgd.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>

namespace troupe {

namespace {

constexpr std::uint64_t seed = 1;
constexpr std::uint64_t first_steps = 10;
// Relative, over the first steps: sums are in another order.
constexpr double loss_error_max = 1e-4;

struct training_case {
  idx_info data;
  std::int64_t batch = 128;
  std::uint64_t steps = 100;

  idx_batch_options reading() const { return {.batch = batch, .seed = seed}; }
};

using first_losses = std::array<double, first_steps>;

// Seconds a step.
result<double> train_job(session& s, const training_case& c, bool fuse, first_losses& losses,
                         std::uint64_t& actors) {
  graph g(s.ops());
  const auto loss = perceptron_loss(g, c.data, c.reading());
  training_options options;
  options.seed = seed;
  options.steps = first_steps + c.steps;
  options.compile.name = "bench";
  options.compile.fuse = fuse;
  auto run = s.train(g, loss, options);
  if (!run) return run.error();
  return time_steps(**run, first_steps, c.steps, actors, [&](std::uint64_t step, float value) {
    if (step < first_steps) losses[step] = static_cast<double>(value);
  });
}

// The reader's kernel, called as a function.
class batch_reader {
 public:
  static result<std::unique_ptr<batch_reader>> make(const training_case& c, const op_table& ops,
                                                    host_device& device) {
    graph g(ops);
    const auto values = idx_batch(g, c.data, c.reading());
    auto made =
        make_host_kernels().find("idx_batch")->make(g.node(values.images.node).attrs, device);
    if (!made) return made.error();
    std::unique_ptr<batch_reader> r(new batch_reader);
    r->kernel_ = std::move(*made);
    r->schedule_ = {.samples = static_cast<std::uint64_t>(c.data.samples),
                    .batch = static_cast<std::uint64_t>(c.batch)};
    r->pixels_ = c.data.rows * c.data.columns;
    return r;
  }

  // Samples of the step; images() and labels() are theirs until the next one.
  result<std::int64_t> read(std::uint64_t step) {
    const auto n = static_cast<std::int64_t>(schedule_.range(step).count);
    if (!outputs_[0] || outputs_[1].elements() != n) {
      const std::array<tensor_spec, 3> specs{
          {{dtype::f32, {n, pixels_}}, {dtype::i32, {n}}, {dtype::f32, {}}}};
      if (auto ok = kernel_->prepare({}, specs); !ok) return ok.error();
      for (std::size_t i = 0; i < specs.size(); ++i) outputs_[i] = tensor::make(specs[i]);
    }
    if (auto ok = kernel_->run(tag{.step = step}, {}, outputs_); !ok) return ok.error();
    return n;
  }
  const float* images() const { return outputs_[0].data<float>(); }
  const std::int32_t* labels() const { return outputs_[1].data<std::int32_t>(); }

 private:
  std::unique_ptr<kernel> kernel_;
  idx_schedule schedule_;
  std::int64_t pixels_ = 0;
  std::array<tensor, 3> outputs_;
};

// Seconds a step.
result<double> train_by_hand(const training_case& c, const op_table& ops, host_device& device,
                             first_losses& losses) {
  auto reader = batch_reader::make(c, ops, device);
  if (!reader) return reader.error();
  handwritten_mlp mlp(c.batch);
  for (std::size_t i = 0; i < handwritten_mlp::layers; ++i) {
    const auto limit = 1.0 / std::sqrt(double(handwritten_mlp::widths[i]));
    uniform_init(mlp.weights(i), seed, fmt::format("dense_{}/weights", i + 1), limit);
    uniform_init(mlp.biases(i), seed, fmt::format("dense_{}/bias", i + 1), limit);
  }
  std::chrono::steady_clock::time_point began;
  for (std::uint64_t step = 0; step < first_steps + c.steps; ++step) {
    if (step == first_steps) began = std::chrono::steady_clock::now();
    auto n = (*reader)->read(step);
    if (!n) return n.error();
    const auto loss = mlp.step((*reader)->images(), (*reader)->labels(), *n);
    if (step < first_steps) losses[step] = static_cast<double>(loss);
  }
  return seconds_since(began) / double(c.steps);
}

result<void> compare(const first_losses& ours, const first_losses& theirs) {
  for (std::size_t i = 0; i < first_steps; ++i)
    if (!(std::abs(ours[i] - theirs[i]) <= loss_error_max * std::abs(theirs[i])))
      return error(error_code::failed,
                   fmt::format("step {}: the loss is {}, by hand it is {}", i, ours[i], theirs[i]));
  return {};
}

result<void> measure(const bench_options& o, bench_report& report, session& s,
                     const training_case& c, const std::string& goal) {
  host_device device;
  // Else the loop by hand would load it in every turn.
  const auto held = device.dataset(c.data.path, false);
  if (!held) return held.error();
  first_losses fused{}, unfused{}, by_hand{};
  std::uint64_t actors = 0, actors_unfused = 0;
  const auto in_us = [](result<double> seconds) {
    return seconds ? result<double>(*seconds * 1e6) : seconds;
  };
  auto figures =
      take_turns(o.runs, {[&] { return in_us(train_job(s, c, true, fused, actors)); },
                          [&] { return in_us(train_by_hand(c, s.ops(), device, by_hand)); },
                          [&] { return in_us(train_job(s, c, false, unfused, actors_unfused)); }});
  if (!figures) return figures.error();
  for (const auto* losses : {&fused, &unfused})
    if (auto same = compare(*losses, by_hand); !same) return same;
  const auto row = [&](std::string what, const std::vector<double>& ours, std::uint64_t n) {
    report.add({"training_step", std::move(what), "us", ours, n, "hand-written loop", (*figures)[1],
                bench_ratio::baseline_to_ours, goal});
  };
  row(fmt::format("batch {}", c.batch), (*figures)[0], actors);
  row(fmt::format("batch {}, --fuse off", c.batch), (*figures)[2], actors_unfused);
  return {};
}

}  // namespace

result<void> bench_training(const bench_options& o, bench_report& report) {
  bench_folder folder;
  auto data = o.data;
  if (data.empty()) {
    auto path = folder.path();
    if (!path) return path.error();
    data = *path;
    if (auto written =
            write_synthetic_images(data, {.train = o.is_quick ? 1'000 : 10'000, .test = 10});
        !written)
      return written;
  }
  const auto info = open_idx(data, /*test=*/false);
  if (!info) return info.error();
  auto s = session::open({});
  if (!s) return s.error();
  struct size {
    std::int64_t batch;
    std::uint64_t steps;
    const char* goal;
  };
  for (const auto& z : {size{128, 200, ">= 0.9"}, size{16, 600, ">= 0.8"}, size{1, 1500, ">= 0.6"}})
    if (auto done = measure(o, report, **s, {*info, z.batch, o.is_quick ? 20 : z.steps}, z.goal);
        !done)
      return done;
  return {};
}

}  // namespace troupe
