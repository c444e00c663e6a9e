#pragma once
// Several arrays into one, element by element: what reducing collectives are made of.
//
// Threading: pure functions.
//
// CB-1  Operands are combined from left to right, in their own type: the bits are those of ((a + b)
//       + c) + ...; whole numbers wrap around.
// CB-2  `out` may be any one of the operands; otherwise nothing overlaps.
// CB-3  The least and the greatest of numbers, one of which is NaN, is NaN.

#include "troupe/schema/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

enum class combine_kind : std::uint8_t { sum, min, max };

// Whether arrays of this type can be combined: f32, f64, i32 and i64.
bool can_combine(dtype type) noexcept;
// `operands`: one or more arrays of n elements of `type`, aligned to them.
void combine(combine_kind kind, dtype type, std::byte* out,
             std::span<const std::byte* const> operands, std::size_t n) noexcept;
// Of f32 and f64: divides each element.
void divide(dtype type, std::byte* values, std::size_t n, double by) noexcept;

}  // namespace troupe
