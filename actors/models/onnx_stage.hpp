#pragma once
// A model in an ONNX file as a stage: of tensors, or of batches of them, which it computes at once.
//
//   auto scored = map(batch(images, {.count = 32, .within = 5ms}), model("resnet.onnx"),
//                     {.replicas = 2, .on = "/job:worker"});
//
// An item is one row of the model's input, without the batch's dimension, or a tensor with as many
// dimensions as the input, whose first one counts rows; an item of a batch is one row. What comes
// out has the same form. A batch has the rows that it has: the model is compiled for up to
// `batch_max` of them, for each shape of a row. A file that says how many rows there are, or whose
// ops need the number, is run with so many, or a power of two, at a time.
//
// The model has one input; others are for a graph_runner in a stage of one's own. The file is read
// where the stage runs, so nodes, and the program, which takes over for them, need it under the
// same path; a relative one is of the folder where the process was started. troupe-node has this
// stage, and the program needs no use(). A struct that has a model as a member calls its open() in
// its own.
//
// Threading: replicas of a process share what was compiled; runs of several threads go on at once.
// Ownership: what was compiled is of the stages that use it.
// Errors: before anything runs: not_found, usage: the file, the output by its name, and, where the
// file says all dimensions of a row, an op that Troupe lacks; with an item: a shape or type that is
// not the input's, an output without rows, a device that is not there.

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
  std::string output{};  // its name; empty: the first one
  std::string device{};  // "/gpu:0"; empty: the host
  static constexpr auto fields =
      troupe::fields<&model_options::batch_max, &model_options::output, &model_options::device>(
          "batch_max", "output", "device");
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
