#pragma once
// The two formats, each behind a function, and what they have in common. devices/images/ only.

#include "troupe/devices/images/image_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::images {

bool is_png(std::span<const std::byte> bytes) noexcept;
bool is_jpeg(std::span<const std::byte> bytes) noexcept;
// Of bytes that are one by their beginning. `limits.channels` is one of those that there are.
result<tensor> decode_png(std::span<const std::byte> bytes, std::string_view name,
                          const image_limits& limits);
result<tensor> decode_jpeg(std::span<const std::byte> bytes, std::string_view name,
                           const image_limits& limits);

error not_readable(std::string_view name, std::string_view why);
// IM-2: an error where a header says more than the limits allow.
result<void> check_sizes(std::string_view name, std::uint64_t width, std::uint64_t height,
                         const image_limits& limits);
tensor make_image(std::uint64_t height, std::uint64_t width, std::uint64_t channels);
// u8 [height, width, 3] as [height, width, 1].
tensor grey_of(const tensor& rgb);

}  // namespace troupe::images
