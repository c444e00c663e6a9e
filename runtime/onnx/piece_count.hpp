#pragma once
// Whether the bytes of a file become more pieces than they should, seen before protobuf makes one:
// an empty message takes two bytes in the file and up to 200 in memory, a dimension 140, a text 60.
// Only runtime/onnx/ includes this.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::onnx {

// What a file may repeat, and what that lies in.
enum class piece : std::uint8_t {
  model,
  operator_set,
  graph,
  node,
  attribute,
  tensor,
  entry,
  sparse_tensor,
  port,
  type,
  tensor_type,
  shape,
  dimension,
  text
};

inline constexpr std::string_view damaged = "its bytes end early or are damaged";

// Of bytes that are a `whole`. nullopt: protobuf may have them. Else why not: which pieces, and how
// many; or `damaged`.
std::optional<std::string> too_many_pieces(std::string_view bytes, piece whole);

}  // namespace troupe::onnx
