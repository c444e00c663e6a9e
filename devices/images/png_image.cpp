// PNG (https://www.w3.org/TR/png-3/), by libpng.

#include "troupe/devices/images/formats.hpp"
#include "troupe/devices/images/library_call.hpp"

#include <fmt/format.h>
#include <png.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace troupe {
namespace images {
namespace {

constexpr std::array<unsigned char, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
// The signature; then the first chunk, which is the header: length, type, 13 bytes and a checksum.
constexpr std::size_t type_at = 12, width_at = 16, height_at = 20, header_end = 33;
// What one chunk may take of memory: the largest that is kept is a palette.
constexpr png_alloc_size_t chunk_bytes_max = std::size_t{1} << 20;
// libpng asks for as much of compressed pixels at a time, and makes nothing of less: so much may a
// file that is cut off have of rows that its error does not count.
constexpr std::size_t read_bytes_at_once = 1024;

std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < 4; ++i) n = n << 8U | std::to_integer<std::uint64_t>(bytes[at + i]);
  return n;
}

[[noreturn]] void fail(library_failure& failure, const char* why) {
  std::snprintf(failure.text.data(), failure.text.size(), "%s", why);
  std::longjmp(failure.jump, 1);
}
[[noreturn]] void on_error(png_structp png, png_const_charp why) {
  fail(*static_cast<library_failure*>(png_get_error_ptr(png)), why);
}
// Warnings that matter are errors already (png_set_benign_errors).
void on_warning(png_structp, png_const_charp) {}

// libpng's memory, its input, and how far it came.
struct png_reader {
  explicit png_reader(std::span<const std::byte> b) : bytes(b) {}
  png_reader(const png_reader&) = delete;
  png_reader& operator=(const png_reader&) = delete;
  ~png_reader() { png_destroy_read_struct(&png, &info, nullptr); }

  library_failure failure;
  std::span<const std::byte> bytes;
  std::size_t at = 0;
  png_structp png = nullptr;
  png_infop info = nullptr;
  png_uint_32 width = 0, height = 0;
  int passes = 1, pass = 0;
  png_uint_32 rows = 0;  // whole ones, of this pass
};

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto& r = *static_cast<png_reader*>(png_get_io_ptr(png));
  if (count > r.bytes.size() - r.at) {
    r.at = r.bytes.size();
    fail(r.failure, "it is cut off");
  }
  std::memcpy(to, r.bytes.data() + r.at, count);
  r.at += count;
}

// Up to the pixels; nothing but palette and transparency is read of what precedes them.
void read_header(png_reader& r) {
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r.failure, on_error, on_warning);
  if (r.png == nullptr) fail(r.failure, "libpng has no memory, or is of another version");
  r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) fail(r.failure, "libpng has no memory");
  png_set_read_fn(r.png, &r, read_bytes);
  png_set_benign_errors(r.png, 0);
  png_set_crc_action(r.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_keep_unknown_chunks(r.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_chunk_malloc_max(r.png, chunk_bytes_max);
  png_set_compression_buffer_size(r.png, read_bytes_at_once);
  // How many pixels there may be has been checked.
  png_set_user_limits(r.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(r.png, r.info);
  r.width = png_get_image_width(r.png, r.info);
  r.height = png_get_image_height(r.png, r.info);
}

// Sets what libpng makes of pixels, and returns how many channels come of it: those wanted, or 3
// where grey is wanted of colours.
std::uint32_t choose_channels(png_reader& r, std::uint32_t wanted) {
  const auto kind = png_get_color_type(r.png, r.info);
  const bool has_colour = (kind & PNG_COLOR_MASK_COLOR) != 0;
  const bool has_alpha =
      (kind & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(r.png, r.info, PNG_INFO_tRNS) != 0;
  const bool wants_colour = wanted == 0 ? has_colour : wanted >= 3;
  const bool wants_alpha = wanted == 0 ? has_alpha : wanted == 4;
  png_set_expand(r.png);
  png_set_scale_16(r.png);
  if (wants_colour && !has_colour) png_set_gray_to_rgb(r.png);
  if (!wants_alpha) png_set_strip_alpha(r.png);
  if (wants_alpha && !has_alpha) png_set_add_alpha(r.png, 0xff, PNG_FILLER_AFTER);
  r.passes = png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return png_get_channels(r.png, r.info);
}

void read_rows(png_reader& r, std::uint8_t* to, std::size_t row_bytes) {
  for (r.pass = 0; r.pass < r.passes; ++r.pass)
    for (r.rows = 0; r.rows < r.height; ++r.rows)
      png_read_row(r.png, to + r.rows * row_bytes, nullptr);
  png_read_end(r.png, nullptr);
}

error error_of(const png_reader& r, std::string_view name) {
  std::string where;
  if (r.height == 0)
    where = " before its pixels";
  else if (r.pass >= r.passes)
    where = fmt::format(" after {} of {} rows", r.height, r.height);
  else if (r.passes > 1)
    where = fmt::format(" after {} of {} rows of pass {} of {}", r.rows, r.height, r.pass + 1,
                        r.passes);
  else
    where = fmt::format(" after {} of {} rows", r.rows, r.height);
  return not_readable(name, fmt::format("{}{} (at byte {} of {})", r.failure.text.data(), where,
                                        r.at, r.bytes.size()));
}

struct png_writer {
  png_writer() = default;
  png_writer(const png_writer&) = delete;
  png_writer& operator=(const png_writer&) = delete;
  ~png_writer() { png_destroy_write_struct(&png, &info); }

  library_failure failure;
  std::vector<std::byte> bytes;
  png_structp png = nullptr;
  png_infop info = nullptr;
};

void write_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto& w = *static_cast<png_writer*>(png_get_io_ptr(png));
  bool has_memory = true;
  try {
    const auto* begin = reinterpret_cast<const std::byte*>(from);
    w.bytes.insert(w.bytes.end(), begin, begin + count);
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  if (!has_memory) fail(w.failure, "there is no memory for the file");
}
void flush_bytes(png_structp) {}

void write_png(png_writer& w, const std::uint8_t* from, png_uint_32 height, png_uint_32 width,
               std::size_t channels) {
  constexpr std::array kinds{PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                             PNG_COLOR_TYPE_RGB_ALPHA};
  w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w.failure, on_error, on_warning);
  if (w.png == nullptr) fail(w.failure, "libpng has no memory, or is of another version");
  w.info = png_create_info_struct(w.png);
  if (w.info == nullptr) fail(w.failure, "libpng has no memory");
  png_set_write_fn(w.png, &w, write_bytes, flush_bytes);
  png_set_user_limits(w.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_IHDR(w.png, w.info, width, height, 8, kinds[channels - 1], PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(w.png, w.info);
  for (png_uint_32 y = 0; y < height; ++y)
    png_write_row(w.png, from + std::size_t{y} * width * channels);
  png_write_end(w.png, nullptr);
}

}  // namespace

bool is_png(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= signature.size() &&
         std::memcmp(bytes.data(), signature.data(), signature.size()) == 0;
}

result<tensor> decode_png(std::span<const std::byte> bytes, std::string_view name,
                          const image_limits& limits) {
  if (bytes.size() < header_end)
    return not_readable(name, fmt::format("it is cut off in its header (at byte {} of {})",
                                          bytes.size(), bytes.size()));
  if (std::memcmp(bytes.data() + type_at, "IHDR", 4) != 0)
    return not_readable(name, "it does not begin with a header");
  if (auto ok = check_sizes(name, number_at(bytes, width_at), number_at(bytes, height_at), limits);
      !ok)
    return ok.error();
  png_reader r(bytes);
  std::uint32_t channels = 0;
  if (!attempt(r.failure, [&] {
        read_header(r);
        channels = choose_channels(r, limits.channels);
      }))
    return error_of(r, name);
  // A second header would have been an error: these are the sizes that were checked.
  auto image = make_image(r.height, r.width, channels);
  auto* to = image.data<std::uint8_t>();
  const auto row_bytes = std::size_t{r.width} * channels;
  if (!attempt(r.failure, [&] { read_rows(r, to, row_bytes); })) return error_of(r, name);
  return limits.channels == 1 && channels == 3 ? grey_of(image) : std::move(image);
}

}  // namespace images

result<std::vector<std::byte>> png_bytes(const tensor& image) {
  const auto refuse = [](std::string_view why) {
    return error(error_code::usage, fmt::format("cannot be written as PNG: {}", why));
  };
  if (!image) return refuse("there is no tensor");
  const auto& s = image.shape();
  const auto side_max = std::numeric_limits<std::int32_t>::max();
  if (image.on_device() != nullptr) return refuse("it lies on a device");
  if (image.type() != dtype::u8 || s.rank() != 3 || s.size(2) < 1 || s.size(2) > 4 ||
      s.size(0) < 1 || s.size(1) < 1 || s.size(0) > side_max || s.size(1) > side_max)
    return refuse(
        fmt::format("it is {}, not u8[height, width, channels] with pixels of 1 to 4 "
                    "channels",
                    to_string(image.spec())));
  images::png_writer w;
  const auto* from = image.data<std::uint8_t>();
  const auto height = static_cast<png_uint_32>(s.size(0));
  const auto width = static_cast<png_uint_32>(s.size(1));
  const auto channels = static_cast<std::size_t>(s.size(2));
  if (!images::attempt(w.failure, [&] { images::write_png(w, from, height, width, channels); }))
    return refuse(w.failure.text.data());
  return std::move(w.bytes);
}

}  // namespace troupe
