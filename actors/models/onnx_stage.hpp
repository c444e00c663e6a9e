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
// ops need the number, is run with so many, or a power of two, at a time, and rows of zeros fill it
// up. Whether that changes what comes of the others, as with a mean over the batch, is looked at
// the first times: such a model is run with exactly those that there are, if its file allows that;
// one that fixes their number needs batches of so many.
//
// A model of several inputs or outputs takes and makes structs of tensors, whose fields are called
// as those are (actors/flow/tensor_fields.hpp):
//
//   auto answers = map(batch(questions, {.count = 16}), model_of<question, answer>("bert.onnx"));
//
// Each tensor of an item is one row of its input, or all of them have the batch's dimension; all
// inputs have as many rows. To run on nodes it stands in a library of the program's,
// stage_of<model_of<question, answer>, question>("answers"). The file is read
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

#include "troupe/actors/flow/tensor_fields.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/runtime/flow/value_traits.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

class onnx_ports;
// What models are made of. Empty names: the only input, the first output.
result<std::shared_ptr<onnx_ports>> open_onnx(const std::string& path, const model_options& o,
                                              const std::vector<std::string>& inputs,
                                              const std::vector<std::string>& outputs);
result<std::vector<tensor>> run_onnx(const std::shared_ptr<onnx_ports>& model,
                                     const std::string& path, std::vector<tensor> item);
result<std::vector<std::vector<tensor>>> run_onnx(const std::shared_ptr<onnx_ports>& model,
                                                  const std::string& path,
                                                  const std::vector<std::vector<tensor>>& batch);

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
  std::shared_ptr<onnx_ports> loaded_;

 public:
  static constexpr auto fields = troupe::fields<&model::path_, &model::options_>("path", "options");
};

// `options.output` counts for nothing: Out names the outputs.
template <class In, class Out>
  requires tensor_structs<In, Out>
class model_of {
 public:
  model_of() = default;
  explicit model_of(std::string path, model_options options = {})
      : path_(std::move(path)), options_(std::move(options)) {}
  result<void> open() {
    auto l = open_onnx(path_, options_, names_of_tensors<In>(), names_of_tensors<Out>());
    if (!l) return std::move(l.error());
    loaded_ = std::move(*l);
    return {};
  }
  result<Out> operator()(const In& x) const {
    auto out = run_onnx(loaded_, path_, tensors_of(x));
    if (!out) return std::move(out.error());
    return with_tensors<Out>(x, std::move(*out));
  }
  result<std::vector<Out>> operator()(const std::vector<In>& batch) const {
    auto out = run_onnx(loaded_, path_, tensors_of_each(batch));
    if (!out) return std::move(out.error());
    return with_tensors_of_each<Out>(batch, std::move(*out));
  }

 private:
  std::string path_;
  model_options options_;
  std::shared_ptr<onnx_ports> loaded_;

 public:
  static constexpr auto fields =
      troupe::fields<&model_of::path_, &model_of::options_>("path", "options");
};

}  // namespace troupe
