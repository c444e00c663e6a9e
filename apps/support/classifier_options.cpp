#include "apps/support/classifier_options.hpp"

#include <troupe/data.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace troupe {

void image_options::parse(int argc, char** argv, const std::string& description,
                          const std::function<void(CLI::App&)>& own) {
  training_flags::parse(argc, argv, description, "sgd", [&](CLI::App& app) {
    app.add_option(
        "--data", data,
        "Folder with train-images-idx3-ubyte[.gz] and its three siblings, under the same path on every "
        "worker's node. Without it: a small set that the program makes itself, which is no benchmark");
    own(app);
    app.add_option("--epochs", epochs, "Times that every sample is used")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    app.add_option("--steps", steps,
                   "End after so many steps of each worker, in the middle of an epoch if need be")
        ->check(CLI::Range(1, 1'000'000'000));
    app.add_option("--batch", batch, "Samples per step of one worker")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
  });
  if (!data.empty()) return;
  auto folder = scratch_folder::make("troupe-images");
  if (!folder) usage_error(folder.error().text());
  made_data = std::move(*folder);
  data = made_data->path();
  if (auto written = write_synthetic_images(data); !written) usage_error(written.error().text());
}

classifier_options classifier_options::parse(int argc, char** argv) {
  classifier_options o;
  o.program = "train_classifier";
  o.name = "classifier";
  o.image_options::parse(
      argc, argv,
      "Trains a classifier on images in IDX files, here or over the nodes of a cluster.",
      [&](CLI::App& app) {
        app.add_option(
               "--model", o.model,
               "perceptron: 784-256-128-10; cnn: two convolutions with pooling, and two dense layers")
            ->check(CLI::IsMember({"perceptron", "cnn"}))
            ->capture_default_str();
        app.add_option("--save-onnx", o.save_onnx,
                       "Write the trained model, from images to logits, to this ONNX file");
      });
  if (!o.save_onnx.empty() && !o.save_graph.empty())
    o.usage_error("--save-graph trains nothing, so there is nothing to write for --save-onnx");
  return o;
}

training_report::extent image_options::extent(const idx_info& images,
                                              std::uint64_t steps_of_epoch) const {
  const auto all = epochs * steps_of_epoch;
  const auto made = steps == 0 ? all : std::min(steps, all);
  return {.samples = double(images.samples) * double(made) / double(steps_of_epoch),
          .steps = made,
          .epochs = (made + steps_of_epoch - 1) / steps_of_epoch,
          .unit = "images"};
}

result<void> image_options::check(const idx_info& images, const idx_info& test_images) const {
  if (test_images.samples == 0)
    return error(error_code::usage, fmt::format("there are no test images in {}", data));
  if (test_images.rows != images.rows || test_images.columns != images.columns)
    return error(error_code::usage,
                 fmt::format("the test images in {} have {}x{} pixels, the others {}x{}", data,
                             test_images.rows, test_images.columns, images.rows, images.columns));
  return {};
}

}  // namespace troupe
