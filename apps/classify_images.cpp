// Pictures to labels: files, decoded and resized by several threads, in batches through a graph, to
// a CSV file. One that is damaged is left out, and stands in a file of its own with the reason.
//
// The graph here tells which of three colours a picture has most of. With --model an ONNX file
// takes its place, which is given pictures of 32 x 32 x 3 (f32, 0 to 1) and gives a score for each
// class; with --on it runs on nodes of the cluster.
//
//   build/bin/classify_images 'incoming/*.png' --labels labels.csv --failures failures.csv
//   build/bin/classify_images 'incoming/*.png' --labels labels.csv --watch     # until Ctrl-C
//   build/bin/classify_images 'incoming/*.png' --model model.onnx --cluster lab --on /job:worker

#include <troupe/images.hpp>
#include <troupe/models.hpp>
#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t side = 32, batch_size = 16;

struct picture {
  std::string path;
  tensor pixels;  // [side, side, 3], from 0 to 1
  static constexpr auto fields = troupe::fields<&picture::path, &picture::pixels>("path", "pixels");
};

struct labelled {
  std::string path, label;
  static constexpr auto fields = troupe::fields<&labelled::path, &labelled::label>("path", "label");
};

result<picture> decode(file_bytes file) {
  auto image = decode_image(file.bytes, file.path);
  if (!image) return std::move(image.error());
  auto small = resize(*image, side, side);
  if (!small) return std::move(small.error());
  auto pixels = tensor::make({dtype::f32, {side, side, 3}});
  for (std::int64_t i = 0; i < pixels.elements(); ++i)
    pixels.data<float>()[i] = static_cast<float>(small->data<std::uint8_t>()[i]) / 255;
  return picture{std::move(file.path), std::move(pixels)};
}

// The colour that a batch of pictures has most of: "x" to "class".
void build_model(graph& g) {
  const auto x = input(g, {dtype::f32, batch_of(batch_size, {side, side, 3})}, "x");
  named(argmax(reduce_mean(x, {1, 2}), -1), "class");
}

// A stage of one's own round the graph: pictures come with their paths, and only their pixels go
// through.
struct classify {
  graph_stage model;
  result<std::vector<labelled>> operator()(std::vector<picture> pictures) const {
    std::vector<tensor> pixels;
    for (const auto& p : pictures) pixels.push_back(p.pixels);
    const auto classes = model(std::move(pixels));
    if (!classes) return classes.error();
    static constexpr const char* names[] = {"red", "green", "blue"};
    std::vector<labelled> all;
    for (std::size_t i = 0; i < pictures.size(); ++i)
      all.push_back({pictures[i].path, names[(*classes)[i].data<std::int32_t>()[0]]});
    return all;
  }
};

// Pixels go to the model, which may be elsewhere, and their paths wait here for what comes back.
flow<std::vector<labelled>> classify_by(const flow<std::vector<picture>>& batches,
                                        const std::string& file, const std::string& on) {
  auto pixels = map(batches, [](std::vector<picture> pictures) {
    std::vector<tensor> all;
    for (auto& p : pictures) all.push_back(std::move(p.pixels));
    return all;
  });
  auto scores = map(pixels, model(file, {.batch_max = batch_size}), {.on = on});
  return map(zip(batches, scores),
             [](const std::tuple<std::vector<picture>, std::vector<tensor>>& both) {
               const auto& [pictures, of_each] = both;
               std::vector<labelled> all;
               for (std::size_t i = 0; i < pictures.size(); ++i) {
                 if (of_each[i].type() != dtype::f32)
                   throw std::runtime_error("the model gives scores that are no f32");
                 const auto* s = of_each[i].data<float>();
                 const auto best = std::max_element(s, s + of_each[i].elements()) - s;
                 all.push_back({pictures[i].path, fmt::format("class {}", best)});
               }
               return all;
             });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Tells which colour pictures have most of.", "classify_images"};
  topology_flags flags;
  flags.topology.name = "classify_images";
  std::string pattern, labels = "labels.csv", failures = "failures.csv", file, on;
  std::uint32_t replicas = 2;
  bool watches = false;
  app.add_option("pictures", pattern, "A path, with * and ? in its last part")->required();
  app.add_option("--labels", labels, "The CSV file that is made")->capture_default_str();
  app.add_option("--failures", failures, "A CSV file of pictures that were left out, and why")
      ->capture_default_str();
  app.add_option("--replicas", replicas, "Threads that decode")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--model", file, "An ONNX file that takes the place of the graph");
  app.add_option("--on", on, "Nodes that run it, such as /job:worker (with --cluster)");
  app.add_flag("--watch", watches, "Wait for more, until Ctrl-C");
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  if (file.empty() && !on.empty()) {
    say_error("classify_images: --on is for --model: the graph of this program runs here");
    return 2;
  }
  auto opened = session::open({});
  if (!opened) {
    say_error("classify_images: " + opened.error().text());
    return static_cast<int>(opened.error().code());
  }
  graph g((*opened)->ops());
  build_model(g);

  topology t(flags.options());
  auto lost = dead_letters(t);
  auto paths = watches ? watch(t, pattern) : files(t, pattern);
  auto bytes = map(paths, read_file{}, {.on_error = skip(), .dead_letters = lost});
  auto pictures =
      map(bytes, decode,
          {.name = "decode", .replicas = replicas, .on_error = skip(), .dead_letters = lost});
  auto batches = batch(pictures, {.count = batch_size, .within = 20ms});
  auto classified = file.empty() ? map(batches, classify{graph_stage(**opened, g, "x", "class")})
                                 : classify_by(batches, file, on);
  write_csv(unbatch(classified), labels);
  write_csv(lost, failures);
  return t.run();
}
