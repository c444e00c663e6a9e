#pragma once
// Models in the ONNX format (https://onnx.ai), opsets 1 to 28, as graphs.
//
//   auto model = troupe::load_onnx("model.onnx");
//   if (!model) return fail(model.error());
//   auto built = model->build(g);                       // built->inputs, built->outputs: by name
//
// A file is anybody's: whatever it holds, loading and building give a graph or an error value that
// names the file, the node or tensor, and the rule. Memory is taken in proportion to the file,
// and up to 256 MiB for masks, indices and weights that a graph needs and the file does not hold.
//
// OI-1  Every text that is used is UTF-8; every tensor has as many bytes as its shape and type say;
//       external data lie in the model's folder, or are links that end beside the file to which the
//       model's own path leads.
// OI-2  A node's inputs are made by the graph's inputs, its initializers or nodes before it;
//       nothing is made twice.
// OI-3  What has no counterpart in runtime/graph/ops.hpp (an op, an attribute, an element type) is
//       an error that says so: nothing that outputs follow from is skipped.
//
// Threading: a model is never changed and may be built by any number of threads, each into a graph
// of its own.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct onnx_dim {
  std::optional<std::int64_t> size;
  std::string symbol;  // "N": the file leaves the size to whoever runs it
};

struct onnx_port {
  std::string name;
  // As we call it ("f32"), or as ONNX does where tensors do not have it ("uint16", "sequence")
  std::string type;
  // Of what is fed or fetched: i32 for int8, int16, uint16, int4 and uint4; none: not supported.
  std::optional<dtype> element{};
  std::optional<std::vector<onnx_dim>> dims{};  // none: not even the rank is said
};

struct onnx_build_options {
  // Of inputs: what is fed, where the file leaves sizes open, or where others are wanted. The first
  // dimension may be batch_of(bound).
  std::vector<std::pair<std::string, tensor_spec>> shapes{};
  // Of inputs: what they will be fed with. Where a shape, an axis, a size or a branch follows from
  // one of them (which ONNX allows, and a graph does not), this value is taken; such inputs are
  // named in onnx_graph::fixed. They also give shapes, as above.
  std::vector<std::pair<std::string, tensor>> values{};
  std::size_t result_bytes_max = std::size_t{1} << 31;  // of each op
  // The model's weights, its f32 initializers that are no scalars (nor the mean and variance of a
  // BatchNormalization), become variables instead of constants, which a program trains:
  // onnx_graph::weights has their values, for a store (actors/session/variable_store.hpp).
  bool weights_are_variables = false;
};

struct onnx_value {
  std::string name;
  value at;
};
struct onnx_graph {
  // Those that outputs depend on; fed by the name of their op, at.owner->node(at.node).name.
  std::vector<onnx_value> inputs;
  std::vector<onnx_value> outputs;  // in the model's order
  // Inputs, and with weights_are_variables weights, whose values are part of the graph now.
  std::vector<std::string> fixed;
  // With weights_are_variables: by the names of the variables, which are those of the file where
  // these are names of a graph.
  std::vector<std::pair<std::string, tensor>> weights;
};

namespace onnx {
struct file;
}

class onnx_model {
 public:
  explicit onnx_model(std::shared_ptr<const onnx::file> f);

  // Those that are to be fed: not the ones that the file gives values for.
  const std::vector<onnx_port>& inputs() const noexcept;
  const std::vector<onnx_port>& outputs() const noexcept;

  // Adds the model's ops to a graph. usage: an op, an attribute or an element type that Troupe
  // lacks, or that does not fit; `missing`, where given, is then the type of the node's op. After
  // an error the graph is of no use.
  result<onnx_graph> build(graph& g, const onnx_build_options& options = {},
                           std::string* missing = nullptr,
                           source_location where = source_location::current()) const;

 private:
  std::shared_ptr<const onnx::file> file_;
};

result<onnx_model> load_onnx(const std::string& path);
// Its pure half: `name` is for errors, external data are looked for in `folder`; an empty one:
// nowhere.
result<onnx_model> parse_onnx(std::span<const std::byte> bytes, const std::string& name,
                              const std::string& folder);
// A file with nothing but a tensor, as the format's own tests have them; of int8, int16, uint16,
// int4 and uint4 as i32. Those tests write the bits of
// bf16 as uint16: where `bits_are_bf16`, such a tensor is bf16.
result<tensor> load_onnx_tensor(const std::string& path, bool bits_are_bf16 = false);
result<tensor> parse_onnx_tensor(std::span<const std::byte> bytes, const std::string& name,
                                 bool bits_are_bf16 = false);

}  // namespace troupe
