#pragma once
// What a port carries: element type and shape.

#include "schema/dtype.hpp"
#include "schema/shape.hpp"

#include <cstddef>
#include <string>

namespace troupe {

struct tensor_spec {
  dtype type = dtype::f32;
  troupe::shape shape;

  // Bytes of a dense tensor of this spec (of its bound, for symbolic shapes).
  std::size_t size_bytes() const noexcept { return static_cast<std::size_t>(shape.elements()) * size_of(type); }
  friend bool operator==(const tensor_spec&, const tensor_spec&) noexcept = default;
};

// "f32[128?, 784]"
inline std::string to_string(const tensor_spec& s) { return std::string(to_string(s.type)) + to_string(s.shape); }

}  // namespace troupe
