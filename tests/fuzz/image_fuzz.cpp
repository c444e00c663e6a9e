// libFuzzer over pictures: whatever the bytes, a picture within its limits or an error.
//
// The first byte chooses what the rest is: raw bytes; the chunks of a PNG, whose checksums are made
// right, with pixels that are compressed; a genuine JPEG with pieces replaced; or an image that is
// written, resized and cropped. A property that does not hold aborts; memory and undefined
// behaviour are the sanitizers' part, and memory in proportion to the limits is -rss_limit_mb's.

#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/devices/images/image_file.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <zlib.h>

using namespace troupe;

namespace {

constexpr std::uint64_t pixels_max = std::uint64_t{1} << 16;

using test::check;

void check_message(const error& e) {
  check(e.message().starts_with("file: ") && e.message().find('\n') == std::string::npos);
}

void decode(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto rgba = decode_image(bytes, "file", {.pixels_max = pixels_max, .channels = 4});
  if (!rgba) {
    check_message(rgba.error());
    return;
  }
  const auto& s = rgba->shape();
  check(rgba->type() == dtype::u8 && s.rank() == 3 && s.size(2) == 4);
  check(s.size(0) > 0 && s.size(1) > 0);
  const auto pixels = s.size(0) * s.size(1);
  check(static_cast<std::uint64_t>(pixels) <= pixels_max);
  // The same colours without alpha: none comes of memory that nobody wrote.
  const auto rgb = decode_image(bytes, "file", {.pixels_max = pixels_max});
  check(bool(rgb) && (rgb->shape() == shape{s.size(0), s.size(1), 3}));
  for (std::int64_t i = 0; i < pixels; ++i)
    for (std::int64_t c = 0; c < 3; ++c)
      check(rgb->data<std::uint8_t>()[3 * i + c] == rgba->data<std::uint8_t>()[4 * i + c]);
  const auto grey = decode_image(bytes, "file", {.pixels_max = pixels_max, .channels = 1});
  check(bool(grey) && (grey->shape() == shape{s.size(0), s.size(1), 1}));
  const auto own = decode_image(bytes, "file", {.pixels_max = pixels_max, .channels = 0});
  check(bool(own) && own->shape().size(0) == s.size(0) && own->shape().size(1) == s.size(1));
}

std::uint8_t take(std::string& in) {
  if (in.empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(in[0]);
  in.erase(0, 1);
  return byte;
}
std::string take(std::string& in, std::size_t count) {
  auto out = in.substr(0, count);
  in.erase(0, count);
  return out;
}

std::string big_endian(std::uint32_t n) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(n >> unsigned(shift));
  return out;
}
std::string chunk(const std::string& type, const std::string& data) {
  const auto all = type + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(all.data()), uInt(all.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + all +
         big_endian(static_cast<std::uint32_t>(sum));
}

void decode_chunks(std::string in) {
  static const std::array<std::string, 6> others{"tEXt", "iCCP", "gAMA", "sBIT", "PLTE", "tRNS"};
  std::string text = "\x89PNG\r\n\x1a\n";
  const std::uint32_t width = 1 + take(in) % 40U, height = 1 + take(in) % 40U;
  const auto depth = static_cast<char>(1U << (take(in) % 5U));
  std::string header = big_endian(width) + big_endian(height) + depth;
  header += static_cast<char>(take(in) % 7U);
  header += std::string(2, '\0');
  header += static_cast<char>(take(in) % 2U);
  text += chunk("IHDR", header);
  for (auto n = take(in) % 4U; n > 0; --n) {
    const auto& type = others[take(in) % others.size()];
    const std::size_t size = take(in);
    text += chunk(type, take(in, size));
  }
  // Pixels: what is left, as often as fills the image.
  const std::size_t cut = take(in), wanted = take(in) % 8U == 0 ? cut : (width * 8U + 2U) * height;
  std::string pixels;
  while (pixels.size() < wanted && !in.empty()) pixels += in.substr(0, 512);
  uLongf size = compressBound(pixels.size());
  std::string data(size, '\0');
  compress2(reinterpret_cast<Bytef*>(data.data()), &size,
            reinterpret_cast<const Bytef*>(pixels.data()), pixels.size(), 1);
  data.resize(size);
  const auto half = data.size() / 2;
  text += chunk("IDAT", data.substr(0, half)) + chunk("IDAT", data.substr(half));
  if (cut != 255) text += chunk("IEND", "");
  decode(text);
}

std::string jpeg_of(J_COLOR_SPACE space, int channels, bool is_progressive) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = info.image_height = 24;
  info.input_components = channels;
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  info.restart_interval = 2;
  if (is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    std::array<JSAMPLE, 24 * 4> row{};
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<JSAMPLE>(i * 7 + info.next_scanline * 11);
    JSAMPROW at = row.data();
    jpeg_write_scanlines(&info, &at, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string out(reinterpret_cast<const char*>(memory), size);
  std::free(memory);
  return out;
}

// Four bytes each: where, how many are taken away, how many of the input come instead.
void replaced_pieces(std::string in) {
  static const std::array<std::string, 4> samples{
      jpeg_of(JCS_RGB, 3, false), jpeg_of(JCS_RGB, 3, true), jpeg_of(JCS_GRAYSCALE, 1, true),
      jpeg_of(JCS_CMYK, 4, false)};
  auto text = samples[take(in) % samples.size()];
  for (int i = 0; i < 6 && in.size() >= 4; ++i) {
    const auto at = (take(in) | std::size_t{take(in)} << 8U) % (text.size() + 1);
    const std::size_t taken = take(in) % 16U, put = take(in) % 16U;
    text.replace(at, taken, take(in, put));
  }
  decode(text);
}

void change(std::string in) {
  const std::int64_t height = 1 + take(in) % 20, width = 1 + take(in) % 20;
  const std::int64_t channels = 1 + take(in) % 4;
  const std::int64_t to_height = take(in), to_width = take(in), top = take(in) - 4,
                     left = take(in) - 4;
  auto t = tensor::make({dtype::u8, {height, width, channels}});
  for (auto& b : t.bytes()) b = std::byte{take(in)};
  const auto png = png_bytes(t);
  check(bool(png));
  const auto back = decode_image(*png, "file", {.channels = 0});
  check(bool(back) && back->spec() == t.spec() && std::ranges::equal(back->bytes(), t.bytes()));
  const auto other = resize(t, to_height, to_width);
  check(bool(other) == (to_height > 0 && to_width > 0));
  if (other && channels == 1) {
    const auto [low, high] = std::ranges::minmax(t.bytes());
    for (const auto b : other->bytes()) check(b >= low && b <= high);
  }
  const auto box = crop(t, top, left, to_height, to_width);
  check(bool(box) == (top >= 0 && left >= 0 && to_height > 0 && to_width > 0 &&
                      top + to_height <= height && left + to_width <= width));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string in(reinterpret_cast<const char*>(data), size);
  switch (take(in) % 5) {
    case 0: decode(in); break;
    case 1:
    case 2: decode_chunks(in); break;
    case 3: replaced_pieces(in); break;
    default: change(in); break;
  }
  return 0;
}
