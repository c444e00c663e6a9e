// Pictures of files in memory as tensors, beside bare loops of the same calls of libpng and
// libjpeg-turbo into one buffer: what checks, errors as values and a tensor for each picture cost.

#include "tools/troupe-bench/measure.hpp"
#include "troupe/devices/images/image_file.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <jpeglib.h>
#include <png.h>

namespace troupe {

namespace {

using file_bytes = std::vector<std::byte>;

// Slow waves with a little noise, as photographs have.
tensor picture(std::int64_t side) {
  auto t = tensor::make({dtype::u8, {side, side, 3}});
  std::mt19937 bits(1);
  auto* out = t.data<std::uint8_t>();
  for (std::int64_t y = 0; y < side; ++y)
    for (std::int64_t x = 0; x < side; ++x)
      for (std::int64_t c = 0; c < 3; ++c)
        *out++ = static_cast<std::uint8_t>((x * (c + 1) + 2 * y) / 4 % 200 + bits() % 16);
  return t;
}

file_bytes jpeg_of(const tensor& image) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(image.shape().size(0));
  info.image_width = static_cast<JDIMENSION>(image.shape().size(1));
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(image.data<std::uint8_t>() +
                                     std::size_t{info.next_scanline} * info.image_width * 3);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  file_bytes out(begin, begin + size);
  std::free(memory);
  return out;
}

void read_png_barely(const file_bytes& from, std::uint8_t* to) {
  std::span<const std::byte> rest(from);
  auto* png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  auto* info = png_create_info_struct(png);
  png_set_read_fn(png, &rest, [](png_structp p, png_bytep at, std::size_t count) {
    auto& left = *static_cast<std::span<const std::byte>*>(png_get_io_ptr(p));
    if (count > left.size()) png_error(p, "cut off");
    std::memcpy(at, left.data(), count);
    left = left.subspan(count);
  });
  png_read_info(png, info);
  png_set_expand(png);
  png_set_scale_16(png);
  png_set_strip_alpha(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const auto height = png_get_image_height(png, info);
  const auto row = png_get_rowbytes(png, info);
  for (int pass = 0; pass < passes; ++pass)
    for (png_uint_32 y = 0; y < height; ++y) png_read_row(png, to + y * row, nullptr);
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
}

void read_jpeg_barely(const file_bytes& from, std::uint8_t* to) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(from.data()),
               static_cast<unsigned long>(from.size()));
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    constexpr JDIMENSION at_once = 16;
    JSAMPROW rows[at_once];
    for (JDIMENSION i = 0; i < at_once; ++i)
      rows[i] = to + std::size_t{info.output_scanline + i} * info.output_width * 3;
    jpeg_read_scanlines(&info, rows, at_once);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
}

result<void> bench_format(const bench_options& o, bench_report& report, const char* what,
                          const file_bytes& file, const tensor& image, int pictures,
                          void (*read_barely)(const file_bytes&, std::uint8_t*)) {
  // 16 rows more: it says where rows would go before it knows how many there are.
  std::vector<std::uint8_t> buffer(image.size_bytes() +
                                   16 * static_cast<std::size_t>(image.shape().size(1)) * 3);
  const auto ours = [&]() -> result<double> {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < pictures; ++i)
      if (auto t = decode_image(file, what); !t) return t.error();
    return pictures / seconds_since(began);
  };
  const auto theirs = [&]() -> result<double> {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < pictures; ++i) read_barely(file, buffer.data());
    return pictures / seconds_since(began);
  };
  auto figures = take_turns(o.runs, {ours, theirs});
  if (!figures) return figures.error();
  const auto t = decode_image(file, what);
  if (!t) return t.error();
  if (std::memcmp(t->bytes().data(), buffer.data(), t->size_bytes()) != 0)
    return error(error_code::failed, fmt::format("{}: the pixels differ", what));
  report.add({"images", what, "1/s", (*figures)[0], 0, "the library alone", (*figures)[1],
              bench_ratio::ours_to_baseline, ">= 0.95"});
  return {};
}

}  // namespace

result<void> bench_images(const bench_options& o, bench_report& report) {
  const auto small = picture(64), large = picture(256);
  const auto png = png_bytes(small);
  if (!png) return png.error();
  if (auto ok = bench_format(o, report, "PNG, 64 x 64", *png, small, o.is_quick ? 10 : 2000,
                             read_png_barely);
      !ok)
    return ok;
  return bench_format(o, report, "JPEG, 256 x 256", jpeg_of(large), large, o.is_quick ? 10 : 300,
                      read_jpeg_barely);
}

}  // namespace troupe
