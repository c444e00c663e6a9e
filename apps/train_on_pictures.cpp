// Trains on pictures in files: a folder of each class, read, decoded, resized and turned over by a
// pipeline that feeds the training, here or on other nodes of the cluster. The samples of a step
// are a function of the seed and the step, so a training that goes back after a failure, or begins
// with a checkpoint, sees those that it would have seen, wherever they are decoded.
//
//   build/bin/train_on_pictures pictures --epochs 5          # pictures/cat/1.png, pictures/dog/...
//   build/bin/train_on_pictures pictures --cache 512MiB      # decoded once, not in each epoch
//
//   troupe-node --job data --load build/bin/libpicture_stages.so &
//   build/bin/train_on_pictures pictures --cluster default --decode-on /job:data

#include "apps/picture_stages/picture_stages.hpp"

#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;

namespace {

struct picture_options : training_flags {
  std::string folder, decode_on;
  std::uint64_t epochs = 1, cache_bytes = 0;
  std::uint32_t decoders = 2;
  std::int64_t batch = 32, side = 32;
  bool mirrors = false;
};

// Every file of a folder's folders, which are the classes, in the order of their names.
struct picture_set {
  std::vector<std::string> paths, classes;
  std::vector<std::int32_t> labels;
};

result<picture_set> list_pictures(const std::string& folder) {
  namespace fs = std::filesystem;
  picture_set all;
  std::error_code failed;
  std::vector<fs::path> classes;
  for (const auto& entry : fs::directory_iterator(folder, failed))
    if (entry.is_directory()) classes.push_back(entry.path());
  if (failed) return error(error_code::not_found, folder + ": " + failed.message());
  std::sort(classes.begin(), classes.end());
  for (const auto& c : classes) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(c, failed))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    if (failed) return error(error_code::not_found, c.string() + ": " + failed.message());
    std::sort(files.begin(), files.end());
    for (auto& f : files) {
      all.paths.push_back(std::move(f));
      all.labels.push_back(static_cast<std::int32_t>(all.classes.size()));
    }
    all.classes.push_back(c.filename().string());
  }
  if (all.paths.empty())
    return error(error_code::not_found, folder + ": no files in folders, which are the classes");
  return all;
}

// What the graph takes, by the names of its inputs.
struct labelled {
  tensor pixels;
  std::int32_t labels = 0;
  static constexpr auto fields =
      troupe::fields<&labelled::pixels, &labelled::labels>("pixels", "labels");
};

tensor mirrored(const tensor& t) {
  const auto rows = t.shape().size(0), columns = t.shape().size(1), channels = t.shape().size(2);
  auto out = tensor::make(t.spec());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      std::copy_n(t.data<float>() + (r * columns + columns - 1 - c) * channels, channels,
                  out.data<float>() + (r * columns + c) * channels);
  return out;
}

// The batches of all workers together, from a step on.
flow<std::vector<labelled>> batches(topology& t, const picture_set& all, const picture_options& o,
                                    std::uint64_t step) {
  t.use(picture_stages());
  // Asynchronous: a batch is one worker's.
  const auto in_a_step =
      static_cast<std::uint64_t>(o.batch) * (o.update == update_kind::sync ? o.workers : 1);
  const auto paths = samples(t, all.paths, {.seed = o.seed, .epochs = 0, .from = step * in_a_step});
  const load_picture load{o.side};
  const auto pixels =
      o.cache_bytes > 0
          ? cached(paths, load, {.bytes = o.cache_bytes}, {.replicas = o.decoders})
          : map(paths, load_sample{load}, {.replicas = o.decoders, .on = o.decode_on});
  const auto ready = map(pixels, [&labels = all.labels, mirrors = o.mirrors](sample<tensor> s) {
    const auto turned = mirrors && (s.random & 1) != 0 ? mirrored(s.value) : s.value;
    return labelled{turned, labels[s.index]};
  });
  return batch(ready, {.count = in_a_step});
}

value classify(const value& pixels, const picture_options& o, std::int64_t classes) {
  auto x = reshape(pixels, {o.batch, o.side * o.side * 3});
  x = relu(dense(x, 128, "hidden_1"));
  x = relu(dense(x, 64, "hidden_2"));
  return dense(x, classes, "out");
}

result<void> train(session& s, const picture_options& o, const picture_set& all,
                   training_report& report) {
  graph g(s.ops());
  const auto pixels = input(g, {dtype::f32, {o.batch, o.side, o.side, 3}}, "pixels");
  const auto labels = input(g, {dtype::i32, {o.batch}}, "labels");
  const double in_a_step = double(o.batch) * double(o.update == update_kind::sync ? o.workers : 1);
  const auto told = classify(pixels, o, static_cast<std::int64_t>(all.classes.size()));
  const auto loss = reduce_sum(cross_entropy(told, labels)) * (1 / in_a_step);

  const auto steps = std::max<std::uint64_t>(
      1, o.epochs * all.paths.size() / static_cast<std::uint64_t>(o.batch * o.workers));
  auto how = o.training(steps);
  how.is_fed = true;
  if (!o.save_graph.empty()) return report.save_graph(g, loss, how);
  auto run = s.train(g, loss, how);
  if (!run) return run.error();
  report.begin(
      {.samples = double(o.batch * o.workers) * double(steps), .steps = steps, .unit = "pictures"});
  const auto end = feed(
      **run, [&](topology& t, std::uint64_t step) { return batches(t, all, o, step); },
      [&](const training_event& event) {
        report.heed_signals(**run);
        report.show(event);
      },
      {.topology = {.name = o.name + "/pictures",
                    .is_quiet = true,
                    .cluster = {.timeout = o.session({}).timeout},
                    .member = &s}});
  if (!end) return end.error();
  return report.outcome();
}

}  // namespace

int main(int argc, char** argv) {
  picture_options o;
  o.program = "train_on_pictures";
  o.name = "pictures";
  o.parse(
      argc, argv,
      "Trains on the pictures (PNG, JPEG) of a folder that has a folder for each class, decoded by "
      "a pipeline here or on nodes of a cluster.",
      "adam", [&](CLI::App& app) {
        app.add_option("folder", o.folder,
                       "The folder of the classes' folders; nodes that decode "
                       "reach it under the same path")
            ->required();
        app.add_option("--epochs", o.epochs, "Passes over all pictures")
            ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 30))
            ->capture_default_str();
        app.add_option("--batch", o.batch, "Pictures per step of one worker")
            ->check(CLI::Range(1, 65'536))
            ->capture_default_str();
        app.add_option("--side", o.side, "Rows and columns that pictures are resized to")
            ->check(CLI::Range(8, 1024))
            ->capture_default_str();
        app.add_option("--decoders", o.decoders, "How many pictures are decoded at once")
            ->check(CLI::Range(1, 1024))
            ->capture_default_str();
        app.add_option("--cache", o.cache_bytes,
                       "Decoded pictures are kept in so much memory, such as 512MiB")
            ->transform(CLI::AsSizeValue(false));
        app.add_option("--decode-on", o.decode_on,
                       "Nodes that decode, such as /job:data, which have loaded "
                       "libpicture_stages.so; not with --cache");
        app.add_flag("--mirror", o.mirrors, "Half of the pictures, by chance, left for right");
      });
  if (o.cache_bytes > 0 && !o.decode_on.empty())
    o.usage_error("--cache keeps pictures in the program: leave --decode-on out");
  training_report report(o);
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());
  const auto all = list_pictures(o.folder);
  if (!all) return report.fail(all.error());
  auto s = session::open(o.session([&] { return report.is_interrupted(); }));
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, o, *all, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  return report.finish(
      "classes", double(all->classes.size()),
      fmt::format("{} pictures of {} classes", all->paths.size(), all->classes.size()));
}
