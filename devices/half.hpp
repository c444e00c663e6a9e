#pragma once
// The storage types behind f16, bf16 and bool, and their conversions. Nothing computes in them:
// they are widened to f32 first, products too.
//
// Conversions from f32 round to nearest, ties to even; NaN stays NaN (its payload may change).

#include "troupe/devices/device_code.hpp"
#include "troupe/schema/dtype.hpp"

#include <bit>
#include <cstdint>

namespace troupe {

struct f16 {
  std::uint16_t bits = 0;
};
struct bf16 {
  std::uint16_t bits = 0;
};
// One byte that counts as true unless it is 0: what others sent may be any byte.
struct boolean {
  std::uint8_t byte = 0;
  constexpr boolean() = default;
  TROUPE_DEVICE constexpr boolean(bool b) noexcept : byte(b ? 1 : 0) {}
  TROUPE_DEVICE constexpr operator bool() const noexcept { return byte != 0; }
};

TROUPE_DEVICE inline float to_f32(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16U);
}
TROUPE_DEVICE inline bf16 to_bf16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U)};
}

TROUPE_DEVICE inline float to_f32(f16 x) noexcept {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16U, rest = x.bits & 0x7fffU;
  if (rest >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (rest & 0x3ffU) << 13U);
  // The exponent counts from 112 less; a multiplication does it for subnormal numbers, too: 2^112
  // is exact.
  const float size = std::bit_cast<float>(rest << 13U) * 0x1p112F;
  // A thread that takes denormals for zero would lose the subnormal ones of f16, whose pattern is
  // denormal before the multiplication.
  const float exact = rest < 0x400U ? static_cast<float>(rest) * 0x1p-24F : size;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(exact) | sign);
}
TROUPE_DEVICE inline f16 to_f16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t size = bits & 0x7fffffffU;
  std::uint32_t rest = 0;
  if (size > 0x7f800000U) {
    rest = 0x7e00U;  // NaN
  } else if (size >= 0x477ff000U) {
    rest = 0x7c00U;  // 65520 and more round to infinity
  } else if (size >= 0x38800000U) {
    rest = (size - 0x38000000U + 0xfffU + ((size >> 13U) & 1U)) >> 13U;
  } else {
    // Subnormal: whole multiples of 2^-24, rounded by adding 2^23 to their number.
    const float multiples = std::bit_cast<float>(size) * 0x1p24F;
    rest =
        std::bit_cast<std::uint32_t>(multiples + 0x1p23F) - std::bit_cast<std::uint32_t>(0x1p23F);
  }
  return {static_cast<std::uint16_t>(sign | rest)};
}

// The dtype that a C++ type stores.
template <class T>
inline constexpr dtype dtype_of = [] {
  static_assert(sizeof(T) == 0, "no tensor has elements of this type");
  return dtype::f32;
}();
template <>
inline constexpr dtype dtype_of<float> = dtype::f32;
template <>
inline constexpr dtype dtype_of<double> = dtype::f64;
template <>
inline constexpr dtype dtype_of<std::int32_t> = dtype::i32;
template <>
inline constexpr dtype dtype_of<std::int64_t> = dtype::i64;
template <>
inline constexpr dtype dtype_of<std::uint8_t> = dtype::u8;
template <>
inline constexpr dtype dtype_of<f16> = dtype::f16;
template <>
inline constexpr dtype dtype_of<bf16> = dtype::bf16;
template <>
inline constexpr dtype dtype_of<boolean> = dtype::boolean;

}  // namespace troupe
