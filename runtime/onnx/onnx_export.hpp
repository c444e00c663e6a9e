#pragma once
// Graphs as models in the ONNX format (https://onnx.ai), which other programs run.
//
//   const std::vector<troupe::onnx_value> outputs{{"logits", logits}};
//   auto saved = troupe::save_onnx(g, outputs, "model.onnx", {.variables = weights});
//   if (!saved) return fail(saved.error());
//
// The model has what the outputs follow from, and nothing else: inputs by the names of their ops,
// variables and constants as initializers, a batch with a bound as a dimension that is open.
//
// OE-1  A model gives the numbers of the graph but for rounding, where ONNX says what an op does:
//       not for floats that no whole number fits when they are cast, and not for indices that are
//       outside, which fail a step here. An op that ONNX lacks is written as several.
// OE-2  What cannot be written so (random numbers, readers, gradients, branches and loops, ops of
//       libraries) is an error with its name, its type and the user's line; then no file is
//       written.
// OE-3  The model's file is complete or as it was before; data that do not fit into it are written
//       before.
//
// Threading: the calling thread; the graph must not change meanwhile.
// Ownership: tensors are only read.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// Of the files that are written, and of their format (1.15 of ONNX).
inline constexpr std::int64_t onnx_saved_opset = 20, onnx_saved_format = 9;

struct onnx_save_options {
  // Values of variables, by name: those of a store (actors/session/variable_store.hpp), or what a
  // training ended with. Others than the outputs follow from may be among them.
  std::vector<std::pair<std::string, tensor>> variables{};
  // Names for inputs of the graph, where the model's are to be others than those of their ops: for
  // a model that was loaded, onnx_graph::inputs. They come first, in this order.
  std::vector<onnx_value> inputs{};
  // Where all tensors take more, they are written to FILE.data beside the model. protobuf has no
  // room for more than 2 GiB in one file.
  std::uint64_t file_bytes_max = std::uint64_t{1} << 30;
};

// usage: an output or an input is no value of the graph, two have one name, a variable has no value
// or one that does not fit, an op cannot be written (OE-2), the path is no file's; not_found,
// failed: the file cannot be written.
result<void> save_onnx(const graph& g, std::span<const onnx_value> outputs, const std::string& path,
                       const onnx_save_options& options = {},
                       source_location where = source_location::current());
// Whether a file could be written there now: to be asked before a training. Errors: as save_onnx().
result<void> can_save_onnx(const std::string& path);
// The pure half: the bytes of the model's file. usage: also where all tensors take more than
// file_bytes_max.
result<std::string> write_onnx(const graph& g, std::span<const onnx_value> outputs,
                               const onnx_save_options& options = {},
                               source_location where = source_location::current());

}  // namespace troupe
