// Trains an image classifier: in this process, or over the nodes of a cluster. The whole program is
// here; reading flags, drawing the progress bar and writing files are in apps/support/.

#include "apps/support/classifier_options.hpp"

#include <troupe/onnx.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

using namespace troupe;

// Functions from images to logits. Training and testing build the same ones.

// 784-256-128-10.
static value perceptron(value images) {
  auto hidden = relu(dense(images, 256, "dense_1"));
  hidden = relu(dense(hidden, 128, "dense_2"));
  return dense(hidden, 10, "dense_3");
}

// Two convolutions of 5 x 5, each with pooling of 2 x 2, and two dense layers.
static value cnn(value images, const idx_info& size) {
  auto x = reshape(images, {0, 1, size.rows, size.columns});
  x = max_pool2d(relu(conv2d(x, 32, {5, 5}, "conv_1", {.same = true})));
  x = max_pool2d(relu(conv2d(x, 64, {5, 5}, "conv_2", {.same = true})));
  const auto features = x.spec().shape.size(1) * x.spec().shape.size(2) * x.spec().shape.size(3);
  x = relu(dense(reshape(x, {0, features}), 512, "dense_1"));
  return dense(x, 10, "dense_2");
}

static value classifier(value images, const idx_info& size, const classifier_options& o) {
  return o.model == "cnn" ? cnn(images, size) : perceptron(images);
}

// Trains on all nodes of the session; the variables at the end are in the report.
static result<void> train(session& s, const idx_info& images, const classifier_options& o,
                          training_report& report) {
  graph g(s.ops());
  const idx_batch_options reading{.batch = o.batch, .seed = o.seed, .parts = o.workers};
  auto batch = idx_batch(g, images, reading);
  auto loss = softmax_cross_entropy(classifier(batch.images, images, o), batch.labels, batch.scale);

  const auto extent = o.extent(images, steps_per_epoch(images, reading));
  if (!o.save_graph.empty()) return report.save_graph(g, loss, o.training(extent.steps));
  auto run = s.train(g, loss,
                     {.workers = o.workers,
                      .shards = o.shards,
                      .update = o.update,
                      .all_reduce = o.all_reduce,
                      .optimizer = o.optimizer,
                      .schedule = o.schedule_over(extent.steps),
                      .clip_global_norm = o.clip_global_norm,
                      .seed = o.seed,
                      .steps = extent.steps,
                      .on_failure = o.on_failure,
                      .outlives_program = o.outlive,
                      .replicas = o.replicas,
                      .checkpoints = o.checkpoints,
                      .compile = o.compiling()});
  if (!run) return run.error();
  report.begin(extent);
  while (auto event = (*run)->next(report.refresh())) {
    report.heed_signals(**run);
    report.show(*event);
  }
  return report.outcome();
}

// Counts right answers on the test images, in this process, with the variables that training gave.
static result<double> test(session& s, const idx_info& images, const classifier_options& o,
                           training_report& report) {
  graph g(s.ops());
  auto batch = idx_batch(g, images, {.batch = 1000, .shuffle = false});
  const value correct = count_correct(classifier(batch.images, images, o), batch.labels);
  auto run = s.compile(g, {&correct, 1}, {.name = o.name + "-test"});
  if (!run) return run.error();

  std::int64_t right = 0;
  for (std::int64_t done = 0; done < images.samples; done += 1000) {
    if (report.is_interrupted()) return report.interrupted_while("testing");
    auto values = (*run)->step(report.variables());
    if (!values) return values.error();
    right += *values->front().data<std::int64_t>();
  }
  return double(right) / double(images.samples);
}

// The trained model for other programs: from a batch of images of any size to their logits.
static result<void> save_model(session& s, const idx_info& size, const classifier_options& o,
                               const training_report& report) {
  graph g(s.ops());
  const auto pixels = std::int64_t{size.rows} * size.columns;
  const auto images = input(g, {dtype::f32, batch_of(1000, {pixels})}, "images");
  const std::vector<onnx_value> outputs{{"logits", classifier(images, size, o)}};
  onnx_save_options how;
  for (const auto& [name, value] : report.variables())
    how.variables.emplace_back(std::string(name), value);
  auto saved = save_onnx(g, outputs, o.save_onnx, how);
  if (!saved) return error(saved.error()).while_doing("--save-onnx");
  return saved;
}

int main(int argc, char** argv) {
  const auto o = classifier_options::parse(argc, argv);
  training_report report(o);
  auto images = open_idx(o.data, /*test=*/false), test_images = open_idx(o.data, /*test=*/true);
  if (!images) return report.fail(images.error());
  if (!test_images) return report.fail(test_images.error());
  if (auto fits = o.check(*images, *test_images); !fits) return report.fail(fits.error());
  if (!o.save_onnx.empty())
    if (auto ok = can_save_onnx(o.save_onnx); !ok)
      return report.fail(error(ok.error()).while_doing("--save-onnx"));
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());

  auto s = session::open(o.session([&] { return report.is_interrupted(); }));
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, *images, o, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  if (!o.save_onnx.empty())
    if (auto saved = save_model(**s, *images, o, report); !saved) return report.fail(saved.error());
  auto accuracy = test(**s, *test_images, o, report);
  if (!accuracy) return report.fail(accuracy.error());
  return report.finish("test_accuracy", *accuracy, fmt::format("test accuracy {:.4f}", *accuracy));
}
