#pragma once
// Element types of tensors. The numbers are on the wire (schema/plan.capnp) and never change.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe {

enum class dtype : std::uint8_t { f32 = 0, f64 = 1, i32 = 2, i64 = 3, u8 = 4 };
inline constexpr std::uint8_t dtype_count = 5;

// Bytes of one element.
constexpr std::size_t size_of(dtype t) noexcept {
  constexpr std::size_t sizes[dtype_count] = {4, 8, 4, 8, 1};
  return sizes[static_cast<std::uint8_t>(t)];
}

constexpr std::string_view to_string(dtype t) noexcept {
  constexpr std::string_view names[dtype_count] = {"f32", "f64", "i32", "i64", "u8"};
  return names[static_cast<std::uint8_t>(t)];
}

}  // namespace troupe
