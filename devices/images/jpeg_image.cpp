// JPEG (ITU-T T.81, T.871), by libjpeg-turbo.

#include "troupe/devices/images/formats.hpp"
#include "troupe/devices/images/library_call.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>

#ifndef JCS_ALPHA_EXTENSIONS
#error "Troupe needs libjpeg-turbo (Debian's libjpeg62-turbo-dev)"
#endif

namespace troupe::images {
namespace {

// A progressive file describes every pixel anew in each scan, in a few bytes where it says nothing:
// without a limit a small file computes for hours. Encoders make about ten.
constexpr int scans_max = 100;
// Of the coefficients of a progressive file, IM-2: two bytes each, of up to four channels; and what
// rounding up to blocks of 32 pixels adds to an image that is one pixel wide.
constexpr long bytes_max_of_pixel = 8, bytes_max_besides = 48L << 20;
// libjpeg-turbo writes rows that begin aligned past the caches, which takes it a tenth longer, and
// whoever reads the picture next misses all of it. A tensor's rows often are aligned. So rows are
// written behind each other where none is, as many as come at once, and copied from there.
constexpr std::size_t rows_at_once = 4, alignment_of_stores = 32, lines_offset = 8;

// What libjpeg calls, its memory, and how far it came.
struct jpeg_reader {
  explicit jpeg_reader(std::span<const std::byte> b) : bytes(b) {}
  jpeg_reader(const jpeg_reader&) = delete;
  jpeg_reader& operator=(const jpeg_reader&) = delete;
  ~jpeg_reader() { jpeg_destroy_decompress(&info); }

  std::size_t at() const { return bytes.size() - source.bytes_in_buffer; }

  library_failure failure;
  std::span<const std::byte> bytes;
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  JDIMENSION rows = 0;
  bool has_header = false, is_started = false;
};

jpeg_reader& reader_of(j_common_ptr info) { return *static_cast<jpeg_reader*>(info->client_data); }

[[noreturn]] void fail(jpeg_reader& r, const char* why) {
  std::snprintf(r.failure.text.data(), r.failure.text.size(), "%s", why);
  std::longjmp(r.failure.jump, 1);
}
[[noreturn]] void on_error(j_common_ptr info) {
  std::array<char, JMSG_LENGTH_MAX> text{};
  info->err->format_message(info, text.data());
  fail(reader_of(info), text.data());
}
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // not a warning
  const int code = info->err->msg_code;
  // Bytes between segments, and versions of markers that need not be known: nothing is missing.
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM) return;
  on_error(info);
}
void print_nothing(j_common_ptr) {}
void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > scans_max)
    fail(reader_of(info), "it has more scans than the 100 that an image may have");
}

void begin_source(j_decompress_ptr) {}
boolean on_end_of_bytes(j_decompress_ptr info) {
  auto& r = reader_of(reinterpret_cast<j_common_ptr>(info));
  r.source.bytes_in_buffer = 0;
  fail(r, "it is cut off");
}
void skip_bytes(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  auto& source = *info->src;
  if (static_cast<std::size_t>(count) > source.bytes_in_buffer) on_end_of_bytes(info);
  source.next_input_byte += count;
  source.bytes_in_buffer -= static_cast<std::size_t>(count);
}

void read_header(jpeg_reader& r) {
  r.info.err = jpeg_std_error(&r.errors);
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  r.errors.output_message = print_nothing;
  r.info.client_data = &r;
  jpeg_create_decompress(&r.info);
  r.source.next_input_byte = reinterpret_cast<const JOCTET*>(r.bytes.data());
  r.source.bytes_in_buffer = r.bytes.size();
  r.source.init_source = begin_source;
  r.source.fill_input_buffer = on_end_of_bytes;
  r.source.skip_input_data = skip_bytes;
  r.source.resync_to_restart = jpeg_resync_to_restart;
  r.source.term_source = begin_source;
  r.info.src = &r.source;
  r.progress.progress_monitor = on_progress;
  r.info.progress = &r.progress;
  jpeg_read_header(&r.info, TRUE);
  r.has_header = true;
}

std::size_t line_bytes(const jpeg_decompress_struct& info) {
  const auto bytes =
      std::size_t{info.output_width} * static_cast<std::size_t>(info.output_components);
  return (bytes + alignment_of_stores - 1) / alignment_of_stores * alignment_of_stores;
}

bool is_cmyk(const jpeg_reader& r) {
  return r.info.jpeg_color_space == JCS_CMYK || r.info.jpeg_color_space == JCS_YCCK;
}

// How many channels `info` makes of pixels (4 of CMYK, which stays so).
void start(jpeg_reader& r, std::uint32_t wanted) {
  auto& info = r.info;
  if (info.jpeg_color_space == JCS_UNKNOWN) fail(r, "its channels are of no known colour space");
  if (is_cmyk(r))
    info.out_color_space = JCS_CMYK;
  else if (wanted == 1 || (wanted == 0 && info.jpeg_color_space == JCS_GRAYSCALE))
    info.out_color_space = JCS_GRAYSCALE;
  else
    info.out_color_space = wanted == 4 ? JCS_EXT_RGBA : JCS_RGB;
  const auto pixels = std::uint64_t{info.image_width} * info.image_height;
  info.mem->max_memory_to_use = static_cast<long>(pixels) * bytes_max_of_pixel + bytes_max_besides;
  jpeg_start_decompress(&info);
  r.is_started = true;
}

// A row of CMYK as colours, each times black. Adobe's programs write all four inverted.
void convert_cmyk(const std::uint8_t* in, std::uint8_t* out, std::size_t width,
                  std::size_t channels, bool is_inverted) {
  const unsigned flip = is_inverted ? 0 : 255;
  for (std::size_t x = 0; x < width; ++x, in += 4, out += channels) {
    const unsigned black = in[3] ^ flip;
    for (std::size_t c = 0; c < 3; ++c)
      out[c] = static_cast<std::uint8_t>(((in[c] ^ flip) * black + 127) / 255);
    if (channels == 4) out[3] = 255;
  }
}

// `lines` has room for rows_at_once rows, line_bytes(info) each, and lines_offset more.
void read_rows(jpeg_reader& r, std::uint8_t* to, std::size_t channels, std::uint8_t* lines) {
  auto& info = r.info;
  const auto row_bytes = std::size_t{info.output_width} * channels;
  std::array<JSAMPROW, rows_at_once> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = lines + lines_offset + i * line_bytes(info);
  while (info.output_scanline < info.output_height) {
    const auto count = jpeg_read_scanlines(&info, rows.data(), rows.size());
    for (std::size_t i = 0; i < count; ++i, to += row_bytes)
      if (is_cmyk(r))
        convert_cmyk(rows[i], to, info.output_width, channels, info.saw_Adobe_marker != 0);
      else
        std::memcpy(to, rows[i], row_bytes);
    r.rows = info.output_scanline;
  }
  jpeg_finish_decompress(&info);
}

error error_of(const jpeg_reader& r, std::string_view name) {
  std::string where = " before its pixels";
  if (r.is_started)
    where = fmt::format(" after {} of {} rows", r.rows, r.info.output_height);
  else if (r.has_header)  // of a progressive file all scans are read before the first row
    where = fmt::format(" in scan {}, after 0 of {} rows", r.info.input_scan_number,
                        r.info.image_height);
  return not_readable(name, fmt::format("{}{} (at byte {} of {})", r.failure.text.data(), where,
                                        r.at(), r.bytes.size()));
}

}  // namespace

bool is_jpeg(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 3 && bytes[0] == std::byte{0xff} && bytes[1] == std::byte{0xd8} &&
         bytes[2] == std::byte{0xff};
}

result<tensor> decode_jpeg(std::span<const std::byte> bytes, std::string_view name,
                           const image_limits& limits) {
  jpeg_reader r(bytes);
  if (!attempt(r.failure, [&] { read_header(r); })) return error_of(r, name);
  if (auto ok = check_sizes(name, r.info.image_width, r.info.image_height, limits); !ok)
    return ok.error();
  if (!attempt(r.failure, [&] { start(r, limits.channels); })) return error_of(r, name);
  std::size_t channels = static_cast<std::size_t>(r.info.output_components);
  if (is_cmyk(r)) channels = limits.channels == 4 ? 4 : 3;
  std::vector<std::uint8_t> lines(lines_offset + rows_at_once * line_bytes(r.info));
  auto image = make_image(r.info.output_height, r.info.output_width, channels);
  auto* to = image.data<std::uint8_t>();
  if (!attempt(r.failure, [&] { read_rows(r, to, channels, lines.data()); }))
    return error_of(r, name);
  return limits.channels == 1 && channels == 3 ? grey_of(image) : std::move(image);
}

}  // namespace troupe::images
