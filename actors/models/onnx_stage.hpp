#pragma once
// A model in an ONNX file as a stage: of tensors, or of batches of them, which it computes at once.
//
//   auto scored = map(batch(images, {.count = 32, .within = 5ms}), model("resnet.onnx"),
//                     {.replicas = 2, .on = "/job:worker"});
//
// An item is one row of the model's input, without the batch's dimension, or a tensor with as many
// dimensions as the input, whose first one counts rows. What comes out has the same form. A batch
// has the rows that it has; the model is compiled for up to `batch_max` of them, and for each shape
// of a row once. A file that says how many rows there are is run with so many at a time.
//
// The file is read where the stage runs, so nodes need it under the same path; troupe-node has this
// stage, and the program needs no use(). A stage of one's own may have a model as a member, and
// call it (apps/classify_images.cpp).
//
// Threading: replicas of a process share what was compiled; runs of several threads go on at once.
// Ownership: what was compiled is of the stages that use it.
// Errors: before anything runs: not_found, usage: the file, an input or output by its name, an op
// that Troupe lacks; with an item: a shape or type that is not the input's.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/runtime/flow/value_traits.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct model_options {
  std::uint64_t batch_max = 64;
  std::string input{};   // its name; empty: there is only one
  std::string output{};  // empty: the first one
  std::string device{};  // "/gpu:0"; empty: the host
  static constexpr auto fields =
      troupe::fields<&model_options::batch_max, &model_options::input, &model_options::output,
                     &model_options::device>("batch_max", "input", "output", "device");
};

class model {
 public:
  model() = default;
  explicit model(std::string path, model_options options = {});
  // Called before the first item (function_stage.hpp), or by who has a model as a member.
  result<void> open();
  result<tensor> operator()(const tensor& x) const;
  result<std::vector<tensor>> operator()(const std::vector<tensor>& batch) const;

  static const stage_library& library();

 private:
  std::string path_;
  model_options options_;
  class loaded;
  std::shared_ptr<loaded> loaded_;

 public:
  static constexpr auto fields = troupe::fields<&model::path_, &model::options_>("path", "options");
};

}  // namespace troupe
