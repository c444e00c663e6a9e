#pragma once
// What a port carries: element type and shape.

#include "troupe/schema/dtype.hpp"
#include "troupe/schema/shape.hpp"

#include <cstddef>
#include <limits>
#include <string>

namespace troupe {

struct tensor_spec {
  dtype type = dtype::f32;
  troupe::shape shape;

  // Bytes of a dense tensor of this spec (of its bound, for symbolic shapes); the largest number
  // where they are more than that.
  std::size_t size_bytes() const noexcept {
    std::size_t bytes = 0;
    const bool is_more =
        __builtin_mul_overflow(static_cast<std::size_t>(shape.elements()), size_of(type), &bytes);
    return is_more ? std::numeric_limits<std::size_t>::max() : bytes;
  }
  friend bool operator==(const tensor_spec&, const tensor_spec&) noexcept = default;
};

// "f32[128?, 784]"
inline std::string to_string(const tensor_spec& s) {
  return std::string(to_string(s.type)) + to_string(s.shape);
}

}  // namespace troupe
