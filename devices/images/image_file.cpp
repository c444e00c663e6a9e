#include "troupe/devices/images/image_file.hpp"

#include "troupe/devices/files/whole_file.hpp"
#include "troupe/devices/images/formats.hpp"

#include <fmt/format.h>

namespace troupe {
namespace images {

error not_readable(std::string_view name, std::string_view why) {
  return {error_code::usage, fmt::format("{}: not an image that can be read: {}", name, why)};
}

result<void> check_sizes(std::string_view name, std::uint64_t width, std::uint64_t height,
                         const image_limits& limits) {
  if (width == 0 || height == 0)
    return not_readable(name, fmt::format("its header says {} x {} pixels", width, height));
  // Both formats have at most 32 bits for each.
  if (width * height > limits.pixels_max)
    return not_readable(name, fmt::format("its header says {} x {} pixels, more than the {} that "
                                          "image_limits::pixels_max allows",
                                          width, height, limits.pixels_max));
  return {};
}

tensor make_image(std::uint64_t height, std::uint64_t width, std::uint64_t channels) {
  return tensor::make({dtype::u8,
                       {static_cast<std::int64_t>(height), static_cast<std::int64_t>(width),
                        static_cast<std::int64_t>(channels)}});
}

tensor grey_of(const tensor& rgb) {
  const auto height = rgb.shape().size(0), width = rgb.shape().size(1);
  auto grey = tensor::make({dtype::u8, {height, width, 1}});
  const auto* in = rgb.data<std::uint8_t>();
  auto* out = grey.data<std::uint8_t>();
  // 0.299, 0.587 and 0.114 of 2^16, which is their sum.
  for (std::int64_t i = 0; i < height * width; ++i)
    out[i] = static_cast<std::uint8_t>(
        (19595U * in[3 * i] + 38470U * in[3 * i + 1] + 7471U * in[3 * i + 2] + 32768U) >> 16U);
  return grey;
}

}  // namespace images

result<tensor> decode_image(std::span<const std::byte> bytes, std::string_view name,
                            const image_limits& limits) {
  if (limits.channels > 4 || limits.channels == 2)
    return error(error_code::usage,
                 fmt::format("{}: an image of {} channels was asked for, and there are 1 (grey), 3 "
                             "(RGB), 4 (RGBA) and 0 (as the file has them)",
                             name, limits.channels));
  if (images::is_png(bytes)) return images::decode_png(bytes, name, limits);
  if (images::is_jpeg(bytes)) return images::decode_jpeg(bytes, name, limits);
  return images::not_readable(
      name, bytes.empty() ? "it is empty" : "it begins as neither PNG nor JPEG does");
}

result<tensor> load_image(const std::string& path, const image_limits& limits) {
  const auto bytes = host::read_file(path, limits.file_bytes_max, "image");
  if (!bytes) return bytes.error();
  return decode_image(*bytes, path, limits);
}

result<void> save_png(const std::string& path, const tensor& image) {
  const auto bytes = png_bytes(image);
  if (!bytes) return error(bytes.error()).while_doing(path);
  const std::span<const std::byte> pieces[] = {*bytes};
  return host::replace_file(path, pieces);
}

}  // namespace troupe
