// Trains an image classifier in towers: one graph splits each batch over the devices /cpu:0,
// /cpu:1, .. or /gpu:0, /gpu:1, .. of its worker, and each of them runs the same perceptron on its
// slice, with the same variables. Losses are added up, so that the gradients are those of the whole
// batch; logits are joined again, and tell how many answers are right.

#include "apps/support/classifier_options.hpp"

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <numeric>

using namespace troupe;

struct tower_options : image_options {
  std::int64_t towers = 2;
  std::string on = "cpu";
};

// 784-256-128-10, from images to logits.
static value perceptron(value images) {
  auto hidden = relu(dense(images, 256, "dense_1"));
  hidden = relu(dense(hidden, 128, "dense_2"));
  return dense(hidden, 10, "dense_3");
}

// The rows of a batch that a tower computes. There are always equally many, while a batch has a
// bound: the last one of an epoch may be smaller. Behind its end the slice goes on with its last
// row, which counts 0.
struct batch_slice {
  value images, labels;
  value weights;  // of its rows, in the loss: the batch's scale, or 0
};

static batch_slice rows_of(const idx_batch_values& batch, std::int64_t first, std::int64_t end) {
  auto& g = *batch.images.owner;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(end - first));
  std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(first));
  const auto row =
      constant(g, tensor::of<std::int32_t>(dtype::i32, {end - first}, numbers), "rows");
  const auto rows = element_count(batch.labels);  // of this step
  const auto there = minimum(row, rows - 1);
  return {gather(batch.images, there), gather(batch.labels, there),
          where(less(row, rows), batch.scale, constant(g, 0.0F))};
}

struct tower_values {
  value loss;    // the mean over the batch
  value logits;  // [batch?, 10]
};

// A tower on each device. Variables are shared: the first tower makes them, the others find them.
static tower_values towers(const idx_batch_values& batch, std::int64_t count,
                           const std::string& kind) {
  if (!batch.images.is_valid()) return {};  // the graph knows why
  auto& g = *batch.images.owner;
  const auto size = batch.images.spec().shape.size(0);
  value loss;
  std::vector<value> logits;
  for (std::int64_t t = 0; t < count; ++t) {
    const auto on = g.device_scope(fmt::format("/{}:{}", kind, t));
    const auto in = g.name_scope(fmt::format("tower_{}", t));
    const auto slice = rows_of(batch, size * t / count, size * (t + 1) / count);
    const auto shared = g.share_variables();
    logits.push_back(perceptron(slice.images));
    const auto part = reduce_sum(cross_entropy(logits.back(), slice.labels) * slice.weights);
    loss = t == 0 ? part : loss + part;
  }
  // Joined they have the rows of a whole batch: those that this one has are its logits.
  const auto position = cumulative_sum(broadcast_like(constant(g, 1, dtype::i32), batch.labels), 0,
                                       /*exclusive=*/true);
  return {loss, gather(concat(logits), position)};
}

// Trains on all nodes of the session; the variables at the end are in the report.
static result<void> train(session& s, const idx_info& images, const tower_options& o,
                          training_report& report) {
  graph g(s.ops());
  const idx_batch_options reading{.batch = o.batch, .seed = o.seed, .parts = o.workers};
  const auto loss = towers(idx_batch(g, images, reading), o.towers, o.on).loss;

  const auto extent = o.extent(images, steps_per_epoch(images, reading));
  if (!o.save_graph.empty()) return report.save_graph(g, loss, o.training(extent.steps));
  auto run = s.train(g, loss, o.training(extent.steps));
  if (!run) return run.error();
  report.begin(extent);
  return report.follow(**run);
}

// Counts right answers on the test images, with the same towers, in this process.
static result<double> test(session& s, const idx_info& images, const tower_options& o,
                           training_report& report) {
  const std::int64_t size = 1000;
  graph g(s.ops());
  auto batch = idx_batch(g, images, {.batch = size, .shuffle = false});
  const value correct = count_correct(towers(batch, o.towers, o.on).logits, batch.labels);
  auto run = s.compile(g, {&correct, 1}, {.name = o.name + "-test"});
  if (!run) return run.error();

  std::int64_t right = 0;
  for (std::int64_t done = 0; done < images.samples; done += size) {
    if (report.is_interrupted()) return report.interrupted_while("testing");
    auto values = (*run)->step(report.variables());
    if (!values) return values.error();
    right += *values->front().data<std::int64_t>();
  }
  return double(right) / double(images.samples);
}

// Every tower has a row of each whole batch, and every worker one of the last, smaller batch of an
// epoch.
static result<void> check(const tower_options& o, const idx_info& images) {
  if (o.towers > o.batch)
    return error(
        error_code::usage,
        fmt::format(
            "--towers {} with --batch {}: there are towers without an image: give {} towers at most, or a larger batch",
            o.towers, o.batch, o.batch));
  const auto last = images.samples % (o.batch * o.workers);
  if (last != 0 && last < o.workers)
    return error(
        error_code::usage,
        fmt::format(
            "--workers {} with --batch {}: the last batch of an epoch has {} of the {} images of {}, so that a worker has none for its towers: "
            "give another --batch, or fewer --workers",
            o.workers, o.batch, last, images.samples, o.data));
  return {};
}

int main(int argc, char** argv) {
  tower_options o;
  o.program = "train_towers";
  o.name = "towers";
  o.parse(
      argc, argv,
      "Trains a perceptron on images in IDX files, each batch split over the devices of its worker.",
      [&](CLI::App& app) {
        app.add_option(
               "--towers", o.towers,
               "Slices of a batch, on the streams cpu:0, cpu:1, .. of the worker's process, modulo "
               "the number of its streams")
            ->check(CLI::Range(1, 1000))
            ->capture_default_str();
        app.add_option(
               "--on", o.on,
               "Where towers run: cpu, or gpu, a device for each (those of --gpus, in a cluster "
               "those of the node)")
            ->check(CLI::IsMember({"cpu", "gpu"}))
            ->capture_default_str();
      });
  training_report report(o);
  auto images = open_idx(o.data, /*test=*/false), test_images = open_idx(o.data, /*test=*/true);
  if (!images) return report.fail(images.error());
  if (!test_images) return report.fail(test_images.error());
  if (auto fits = o.check(*images, *test_images); !fits) return report.fail(fits.error());
  if (auto fits = check(o, *images); !fits) return report.fail(fits.error());
  if (o.on == "cpu" && o.cluster.empty() && o.save_graph.empty() && o.towers > o.threads)
    fmt::print(
        stderr,
        "{}: {} towers take turns on {} (cpu:N is taken modulo --threads): with --threads {} each has one\n",
        o.program, o.towers, o.threads == 1 ? "one thread" : fmt::format("{} threads", o.threads),
        o.towers);
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());

  auto s = session::open(o.session([&] { return report.is_interrupted(); }));
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, *images, o, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  auto accuracy = test(**s, *test_images, o, report);
  if (!accuracy) return report.fail(accuracy.error());
  return report.finish("test_accuracy", *accuracy, fmt::format("test accuracy {:.4f}", *accuracy));
}
