#pragma once
// Element types of tensors. The numbers are on the wire (schema/plan.capnp) and never change.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe {

// f16 is IEEE 754 binary16, bf16 the upper half of an f32; both are for storage and conversion. A
// boolean is one byte, 0 or 1.
enum class dtype : std::uint8_t {
  f32 = 0,
  f64 = 1,
  i32 = 2,
  i64 = 3,
  u8 = 4,
  f16 = 5,
  bf16 = 6,
  boolean = 7
};
inline constexpr std::uint8_t dtype_count = 8;

// Bytes of one element.
constexpr std::size_t size_of(dtype t) noexcept {
  constexpr std::size_t sizes[dtype_count] = {4, 8, 4, 8, 1, 2, 2, 1};
  return sizes[static_cast<std::uint8_t>(t)];
}

constexpr std::string_view to_string(dtype t) noexcept {
  constexpr std::string_view names[dtype_count] = {"f32", "f64", "i32",  "i64",
                                                   "u8",  "f16", "bf16", "bool"};
  return names[static_cast<std::uint8_t>(t)];
}

}  // namespace troupe
