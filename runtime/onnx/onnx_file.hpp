#pragma once
// A model file, read and checked (OI-1, OI-2), with its tensors taken out of protobuf's hands. Only
// runtime/onnx/ includes this.

#include "runtime/onnx/onnx_format.pb.h"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace troupe::onnx {

// The newest one whose changes the rules follow (ops/).
inline constexpr std::int64_t opset_max = 28;

struct file {
  std::string name;                                      // for errors
  std::int64_t opset = 0;                                // 0: the file does not say
  onnx_format::Graph graph;                              // without its initializers
  std::unordered_map<std::string, tensor> initializers;  // those that are needed
  // ONNX's numbers of their types, of those that are i32 here (is_narrow).
  std::unordered_map<std::string, std::int64_t> narrow;
  std::vector<onnx_port> inputs, outputs;
  // What outputs follow from: names, and nodes by number. Nothing else is looked at.
  std::unordered_set<std::string> needed;
  std::vector<bool> is_needed;
};

// What the results of a graph (names that are in `needed`) follow from is added there; the nodes
// that make it are true in the result. A node with graphs of its own needs what they read.
std::vector<bool> find_needed(const onnx_format::Graph& g, std::unordered_set<std::string>& needed);

// ONNX's names and numbers of element types; nullopt: tensors have no such type.
std::optional<dtype> element_of(std::int64_t type) noexcept;
std::string name_of_element(std::int64_t type);
inline constexpr std::int32_t number_of_u16 = 4, number_of_bf16 = 16;
// Whole numbers of few bits, which no tensor of ours has: i32 in a graph, as inputs and outputs,
// too. What is computed with them wraps around at their bits.
struct narrow_type {
  int bits;
  bool is_signed;
  std::int64_t least() const noexcept { return is_signed ? -(std::int64_t{1} << (bits - 1)) : 0; }
  std::int64_t most() const noexcept {
    return (std::int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  }
};
std::optional<narrow_type> narrow_of(std::int64_t type) noexcept;
// By ONNX's name of the type; 0: none of those.
std::int64_t narrow_by_name(std::string_view name);
// Of ONNX itself, not an extension's.
bool is_own(std::string_view domain) noexcept;

// Where a model's external data may lie; empty: nowhere.
struct data_folders {
  std::string named;  // that of the path by which the model was opened
  std::string real;   // that of the file behind its links, canonical
};

// `bytes` are taken out of the message. `what` names the tensor for errors.
// Where `narrow` is given, tensors of narrow types become i32 ones, and it their type's number.
result<tensor> take_tensor(onnx_format::Tensor& from, const std::string& what,
                           const data_folders& folders, std::int64_t* narrow = nullptr);

}  // namespace troupe::onnx
