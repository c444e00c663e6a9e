#pragma once
// Looks for numbers that are none: NaN and infinities.

#include "troupe/devices/tensor.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace troupe {

// The first element that is not finite; none in tensors of whole numbers and truth values. As fast
// as memory where there is none.
std::optional<std::int64_t> first_not_finite(const tensor& t) noexcept;
// The first element that is NaN, of those types.
std::optional<std::int64_t> first_nan(const tensor& t) noexcept;
// "nan", "inf" or "-inf": what stands there.
std::string not_finite_text(const tensor& t, std::int64_t element);

}  // namespace troupe
