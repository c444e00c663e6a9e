#include "troupe/devices/images/image_file.hpp"

#include "tests/devices/temporary_folder.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

using namespace troupe;

namespace {

using bytes = std::vector<std::byte>;
using numbers = std::vector<int>;

void append(bytes& to, const void* from, std::size_t count) {
  const auto* begin = static_cast<const std::byte*>(from);
  to.insert(to.end(), begin, begin + count);
}

// What a PNG of a test is made of. `rows` are packed as its kind and depth say.
struct png_kind {
  png_uint_32 width = 1, height = 1;
  int depth = 8, kind = PNG_COLOR_TYPE_GRAY;
  bool is_interlaced = false;
  std::vector<std::vector<unsigned char>> rows{};
  std::vector<png_color> palette{};
  std::vector<png_byte> alphas{};             // of the palette
  const png_color_16* see_through = nullptr;  // the one colour, without a palette
};

bytes png_of(const png_kind& k) {
  bytes out;
  auto* png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  auto* info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep from, std::size_t count) {
        append(*static_cast<bytes*>(png_get_io_ptr(p)), from, count);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, k.width, k.height, k.depth, k.kind,
               k.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!k.palette.empty())
    png_set_PLTE(png, info, k.palette.data(), static_cast<int>(k.palette.size()));
  if (!k.alphas.empty() || k.see_through != nullptr)
    png_set_tRNS(png, info, k.alphas.data(), static_cast<int>(k.alphas.size()), k.see_through);
  png_set_check_for_invalid_index(png, -1);
  png_write_info(png, info);
  std::vector<png_bytep> rows;
  for (const auto& row : k.rows) rows.push_back(const_cast<png_bytep>(row.data()));
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

struct jpeg_kind {
  JDIMENSION width = 16, height = 16;
  J_COLOR_SPACE given = JCS_RGB, stored = JCS_YCbCr;
  bool is_progressive = false, has_adobe = false;
  std::vector<unsigned char> pixels{};
  std::vector<jpeg_scan_info> scans{};  // empty: as usual
};

bytes jpeg_of(const jpeg_kind& k) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = k.width;
  info.image_height = k.height;
  info.input_components = k.given == JCS_GRAYSCALE ? 1 : k.given == JCS_CMYK ? 4 : 3;
  info.in_color_space = k.given;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, k.stored);
  jpeg_set_quality(&info, 100, TRUE);
  info.write_Adobe_marker = k.has_adobe ? TRUE : FALSE;
  if (k.is_progressive) jpeg_simple_progression(&info);
  if (!k.scans.empty()) {
    info.scan_info = k.scans.data();
    info.num_scans = static_cast<int>(k.scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  const auto row_bytes = std::size_t{k.width} * static_cast<std::size_t>(info.input_components);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(k.pixels.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  bytes out;
  append(out, memory, size);
  std::free(memory);
  return out;
}

// Slow waves, which a JPEG keeps nearly as they are.
jpeg_kind waves(JDIMENSION width, JDIMENSION height, J_COLOR_SPACE given, J_COLOR_SPACE stored) {
  jpeg_kind k{.width = width, .height = height, .given = given, .stored = stored};
  const unsigned channels = given == JCS_GRAYSCALE ? 1 : given == JCS_CMYK ? 4 : 3;
  for (unsigned y = 0; y < height; ++y)
    for (unsigned x = 0; x < width; ++x)
      for (unsigned c = 0; c < channels; ++c)
        k.pixels.push_back(static_cast<unsigned char>(60 + 2 * x + y + 20 * c));
  return k;
}

numbers pixels_of(const tensor& t) {
  return {t.data<std::uint8_t>(), t.data<std::uint8_t>() + t.elements()};
}

tensor image_of(const shape& s, const numbers& values) {
  std::vector<std::uint8_t> v(values.begin(), values.end());
  return tensor::of<std::uint8_t>(dtype::u8, s, v);
}

tensor decoded(std::span<const std::byte> b, std::uint32_t channels) {
  const auto t = decode_image(b, "a", {.channels = channels});
  BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
  return *t;
}

void check_pixels(const bytes& b, std::uint32_t channels, const shape& s, const numbers& wanted) {
  const auto t = decoded(b, channels);
  BOOST_TEST((t.spec() == tensor_spec{dtype::u8, s}), "it is " << to_string(t.spec()));
  BOOST_TEST(pixels_of(t) == wanted, boost::test_tools::per_element());
}

void check_error(std::span<const std::byte> b, std::string_view why, const image_limits& l = {}) {
  const auto t = decode_image(b, "a.png", l);
  BOOST_TEST_REQUIRE(!t, why);
  BOOST_TEST((t.error().code() == error_code::usage));
  const auto& m = t.error().message();
  BOOST_TEST(m.starts_with("a.png: "), m);
  BOOST_TEST(m.find('\n') == std::string::npos, m);
  BOOST_TEST(m.find(why) != std::string::npos, m << " lacks " << why);
}

void put_number(bytes& b, std::size_t at, std::uint32_t n) {
  for (std::size_t i = 0; i < 4; ++i) b[at + i] = static_cast<std::byte>(n >> (24U - 8U * i));
}

// A chunk with its checksum.
bytes chunk(const char* type, const bytes& data) {
  bytes out(4);
  put_number(out, 0, static_cast<std::uint32_t>(data.size()));
  append(out, type, 4);
  append(out, data.data(), data.size());
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(out.data() + 4), static_cast<uInt>(out.size() - 4));
  out.resize(out.size() + 4);
  put_number(out, out.size() - 4, static_cast<std::uint32_t>(sum));
  return out;
}

bytes with_chunk(const bytes& png, const bytes& c) {  // behind the header
  bytes out(png.begin(), png.begin() + 33);
  append(out, c.data(), c.size());
  append(out, png.data() + 33, png.size() - 33);
  return out;
}

bytes deflated(const bytes& data) {
  uLongf size = compressBound(data.size());
  bytes out(size);
  compress2(reinterpret_cast<Bytef*>(out.data()), &size,
            reinterpret_cast<const Bytef*>(data.data()), data.size(), 9);
  out.resize(size);
  return out;
}

bytes noise_png(png_uint_32 side, bool is_interlaced = false) {
  png_kind k{.width = side, .height = side, .is_interlaced = is_interlaced};
  std::mt19937 bits(1);
  for (png_uint_32 y = 0; y < side; ++y) {
    auto& row = k.rows.emplace_back(side);
    for (auto& v : row) v = static_cast<unsigned char>(bits());
  }
  return png_of(k);
}

constexpr std::array<unsigned char, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

}  // namespace

BOOST_AUTO_TEST_SUITE(image_file)

BOOST_AUTO_TEST_CASE(a_png_of_every_grey_depth_has_the_values_that_its_depth_says) {
  check_pixels(png_of({.width = 3, .height = 2, .depth = 1, .rows = {{0xa0}, {0x40}}}), 0,
               {2, 3, 1}, {255, 0, 255, 0, 255, 0});
  check_pixels(png_of({.width = 4, .height = 1, .depth = 2, .rows = {{0x1b}}}), 1, {1, 4, 1},
               {0, 85, 170, 255});
  check_pixels(png_of({.width = 2, .height = 1, .depth = 4, .rows = {{0x3f}}}), 3, {1, 2, 3},
               {51, 51, 51, 255, 255, 255});
  check_pixels(png_of({.width = 2, .height = 1, .rows = {{7, 200}}}), 4, {1, 2, 4},
               {7, 7, 7, 255, 200, 200, 200, 255});
  // 16 bits: 0x0180 is 1.494 of 257 each, 0x0181 is 1.498, 0x0182 is 1.502.
  check_pixels(png_of({.width = 4,
                       .height = 1,
                       .depth = 16,
                       .rows = {{0x01, 0x80, 0x01, 0x82, 0xff, 0xff, 0x00, 0x7f}}}),
               0, {1, 4, 1}, {1, 2, 255, 0});
}

BOOST_AUTO_TEST_CASE(a_png_with_alpha_keeps_it_or_loses_it_and_keeps_its_colours) {
  const auto grey = png_of(
      {.width = 2, .height = 1, .kind = PNG_COLOR_TYPE_GRAY_ALPHA, .rows = {{9, 0, 100, 50}}});
  check_pixels(grey, 0, {1, 2, 2}, {9, 0, 100, 50});
  check_pixels(grey, 1, {1, 2, 1}, {9, 100});
  check_pixels(grey, 3, {1, 2, 3}, {9, 9, 9, 100, 100, 100});
  check_pixels(grey, 4, {1, 2, 4}, {9, 9, 9, 0, 100, 100, 100, 50});
  const auto colours = png_of({.width = 1,
                               .height = 2,
                               .kind = PNG_COLOR_TYPE_RGB_ALPHA,
                               .rows = {{1, 2, 3, 0}, {4, 5, 6, 7}}});
  check_pixels(colours, 0, {2, 1, 4}, {1, 2, 3, 0, 4, 5, 6, 7});
  check_pixels(colours, 3, {2, 1, 3}, {1, 2, 3, 4, 5, 6});
  check_pixels(colours, 1, {2, 1, 1}, {2, 5});
  const auto deep = png_of({.width = 1,
                            .height = 1,
                            .depth = 16,
                            .kind = PNG_COLOR_TYPE_RGB_ALPHA,
                            .rows = {{0x10, 0x10, 0x20, 0x20, 0x30, 0x30, 0x40, 0x40}}});
  check_pixels(deep, 0, {1, 1, 4}, {0x10, 0x20, 0x30, 0x40});
}

BOOST_AUTO_TEST_CASE(grey_of_colours_is_the_nearest_to_their_luma) {
  check_pixels(png_of({.width = 5,
                       .height = 1,
                       .kind = PNG_COLOR_TYPE_RGB,
                       .rows = {{255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 10, 20, 30}}}),
               1, {1, 5, 1}, {76, 150, 29, 255, 18});
}

BOOST_AUTO_TEST_CASE(a_png_with_a_palette_has_its_colours_at_every_depth) {
  const std::vector<png_color> two{{1, 2, 3}, {200, 100, 50}};
  const numbers expected{200, 100, 50, 1, 2, 3, 200, 100, 50};
  for (const auto& [depth, row] : {std::pair<int, std::vector<unsigned char>>{1, {0xa0}},
                                   {2, {0x44}},
                                   {4, {0x10, 0x10}},
                                   {8, {1, 0, 1}}}) {
    png_kind k{.width = 3,
               .height = 1,
               .depth = depth,
               .kind = PNG_COLOR_TYPE_PALETTE,
               .rows = {row},
               .palette = two};
    check_pixels(png_of(k), 3, {1, 3, 3}, expected);
    check_pixels(png_of(k), 0, {1, 3, 3}, expected);
    k.alphas = {128};
    check_pixels(png_of(k), 3, {1, 3, 3}, expected);
    check_pixels(png_of(k), 0, {1, 3, 4}, {200, 100, 50, 255, 1, 2, 3, 128, 200, 100, 50, 255});
  }
}

BOOST_AUTO_TEST_CASE(a_colour_that_a_palette_does_not_have_is_black) {
  check_pixels(png_of({.width = 2,
                       .height = 1,
                       .kind = PNG_COLOR_TYPE_PALETTE,
                       .rows = {{0, 2}},
                       .palette = {{1, 2, 3}, {4, 5, 6}}}),
               3, {1, 2, 3}, {1, 2, 3, 0, 0, 0});
}

BOOST_AUTO_TEST_CASE(one_colour_that_is_see_through_is_alpha) {
  png_color_16 grey{}, colour{};
  grey.gray = 7;
  colour.red = 1, colour.green = 2, colour.blue = 3;
  const auto g = png_of({.width = 2, .height = 1, .rows = {{7, 8}}, .see_through = &grey});
  check_pixels(g, 0, {1, 2, 2}, {7, 0, 8, 255});
  check_pixels(g, 1, {1, 2, 1}, {7, 8});
  const auto c = png_of({.width = 2,
                         .height = 1,
                         .kind = PNG_COLOR_TYPE_RGB,
                         .rows = {{1, 2, 3, 1, 2, 4}},
                         .see_through = &colour});
  check_pixels(c, 4, {1, 2, 4}, {1, 2, 3, 0, 1, 2, 4, 255});
  check_pixels(c, 3, {1, 2, 3}, {1, 2, 3, 1, 2, 4});
  // All 16 bits decide, and not the 8 that are left of them.
  grey.gray = 0x0700;
  const auto deep =
      png_of({.width = 2, .height = 1, .depth = 16, .rows = {{7, 0, 7, 1}}, .see_through = &grey});
  check_pixels(deep, 0, {1, 2, 2}, {7, 0, 7, 255});
}

BOOST_AUTO_TEST_CASE(an_interlaced_png_has_the_pixels_of_one_that_is_not) {
  for (const png_uint_32 side : {1U, 2U, 5U, 8U, 13U})
    for (const std::uint32_t channels : {0U, 1U, 3U, 4U})
      BOOST_TEST(pixels_of(decoded(noise_png(side, true), channels)) ==
                 pixels_of(decoded(noise_png(side, false), channels)));
  const std::vector<std::vector<unsigned char>> rows{{0x1b}, {0xe4}, {0x1b}};
  const png_kind k{.width = 4, .height = 3, .depth = 2, .is_interlaced = true, .rows = rows};
  check_pixels(png_of(k), 0, {3, 4, 1}, {0, 85, 170, 255, 255, 170, 85, 0, 0, 85, 170, 255});
}

BOOST_AUTO_TEST_CASE(what_is_written_as_png_is_read_again_for_every_number_of_channels) {
  test::temporary_folder folder;
  std::mt19937 bits(1);
  for (const std::int64_t channels : {1, 2, 3, 4})
    for (const std::int64_t side : {1, 7, 100}) {
      auto t = tensor::make({dtype::u8, {side, side + 1, channels}});
      for (auto& b : t.bytes()) b = static_cast<std::byte>(bits());
      const auto path = folder.file("t.png");
      const auto saved = save_png(path, t);
      BOOST_TEST_REQUIRE(bool(saved), (saved ? "" : saved.error().text()));
      const auto back = load_image(path, {.channels = 0});
      BOOST_TEST_REQUIRE(bool(back), (back ? "" : back.error().text()));
      BOOST_TEST((back->spec() == t.spec()));
      BOOST_TEST(std::ranges::equal(back->bytes(), t.bytes()));
    }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_a_png_is_not_written) {
  test::temporary_folder folder;
  const std::pair<tensor, std::string_view> cases[] = {
      {tensor{}, "no tensor"},
      {tensor::of({1}, {1, 1, 1}), "f32[1, 1, 1], not u8"},
      {image_of({2, 2}, {1, 2, 3, 4}), "u8[2, 2], not u8"},
      {image_of({1, 1, 5}, {1, 2, 3, 4, 5}), "1 to 4"},
      {image_of({0, 4, 3}, {}), "with pixels"}};
  for (const auto& [t, why] : cases) {
    const auto b = png_bytes(t);
    BOOST_TEST_REQUIRE(!b);
    BOOST_TEST(b.error().message().find(why) != std::string::npos, b.error().message());
    const auto saved = save_png(folder.file("none.png"), t);
    BOOST_TEST_REQUIRE(!saved);
    BOOST_TEST(saved.error().message().starts_with(folder.file("none.png: ")),
               saved.error().message());
  }
  BOOST_TEST(!save_png("/nowhere/a.png", image_of({1, 1, 1}, {1})));
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
}

BOOST_AUTO_TEST_CASE(a_jpeg_of_every_colour_space_becomes_what_is_wanted) {
  const auto near = [](const tensor& t, const shape& s, auto value) {
    BOOST_TEST((t.spec() == tensor_spec{dtype::u8, s}), "it is " << to_string(t.spec()));
    int worst = 0;
    for (std::int64_t y = 0, i = 0; y < s.size(0); ++y)
      for (std::int64_t x = 0; x < s.size(1); ++x)
        for (std::int64_t c = 0; c < s.size(2); ++c, ++i)
          worst = std::max(worst, std::abs(t.data<std::uint8_t>()[i] -
                                           static_cast<int>(value(int(y), int(x), int(c)))));
    BOOST_TEST(worst <= 3);
  };
  const auto wave = [](int y, int x, int c) { return 60 + 2 * x + y + 20 * c; };
  for (const bool is_progressive : {false, true}) {
    auto grey = waves(20, 17, JCS_GRAYSCALE, JCS_GRAYSCALE);
    grey.is_progressive = is_progressive;
    const auto g = jpeg_of(grey);
    for (const std::uint32_t n : {0U, 1U}) near(decoded(g, n), {17, 20, 1}, wave);
    near(decoded(g, 3), {17, 20, 3}, [&](int y, int x, int) { return wave(y, x, 0); });
    for (const auto stored : {JCS_YCbCr, JCS_RGB}) {
      auto colours = waves(20, 17, JCS_RGB, stored);
      colours.is_progressive = is_progressive;
      const auto c = jpeg_of(colours);
      near(decoded(c, 0), {17, 20, 3}, wave);
      near(decoded(c, 3), {17, 20, 3}, wave);
      near(decoded(c, 4), {17, 20, 4},
           [&](int y, int x, int n) { return n == 3 ? 255 : wave(y, x, n); });
      near(decoded(c, 1), {17, 20, 1}, [&](int y, int x, int) {
        return 0.299 * wave(y, x, 0) + 0.587 * wave(y, x, 1) + 0.114 * wave(y, x, 2);
      });
    }
    for (const auto stored : {JCS_CMYK, JCS_YCCK})
      for (const bool has_adobe : {true, false}) {
        if (stored == JCS_YCCK && !has_adobe) continue;  // only the marker says so
        auto inks = waves(20, 17, JCS_CMYK, stored);
        inks.is_progressive = is_progressive;
        inks.has_adobe = has_adobe;
        const auto c = jpeg_of(inks);
        const auto expected = [&](int y, int x, int n) {
          const auto light = [&](int ch) {
            return has_adobe ? wave(y, x, ch) : 255 - wave(y, x, ch);
          };
          return light(n) * light(3) / 255.0;
        };
        near(decoded(c, 0), {17, 20, 3}, expected);
        near(decoded(c, 4), {17, 20, 4},
             [&](int y, int x, int n) { return n == 3 ? 255 : expected(y, x, n); });
        near(decoded(c, 1), {17, 20, 1}, [&](int y, int x, int) {
          return 0.299 * expected(y, x, 0) + 0.587 * expected(y, x, 1) + 0.114 * expected(y, x, 2);
        });
      }
  }
}

BOOST_AUTO_TEST_CASE(a_jpeg_is_not_turned_as_its_exif_orientation_says) {
  auto b = jpeg_of(waves(20, 10, JCS_RGB, JCS_YCbCr));
  // Little-endian TIFF with one entry: orientation (0x112), one short, 6: a quarter turn.
  const std::string exif("Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
                         32);
  bytes marker{std::byte{0xff}, std::byte{0xe1}, std::byte{0},
               static_cast<std::byte>(exif.size() + 2)};
  append(marker, exif.data(), exif.size());
  b.insert(b.begin() + 2, marker.begin(), marker.end());
  BOOST_TEST((decoded(b, 3).shape() == shape{10, 20, 3}));
}

BOOST_AUTO_TEST_CASE(IM_1_a_png_that_is_cut_off_anywhere_is_an_error_that_says_where) {
  for (const bool is_interlaced : {false, true}) {
    const auto whole = noise_png(40, is_interlaced);
    for (std::size_t n = 8; n < whole.size(); ++n)
      check_error(std::span(whole).first(n), "cut off");
  }
  const auto whole = noise_png(100);  // noise of 10,000 bytes is not made smaller
  check_error(std::span(whole).first(20), "cut off in its header (at byte 20 of 20)");
  check_error(std::span(whole).first(40), "cut off before its pixels (at byte 40 of 40)");
  const auto half = decode_image(std::span(whole).first(whole.size() / 2), "a.png");
  BOOST_TEST_REQUIRE(!half);
  int rows = 0;
  const auto& m = half.error().message();
  const auto at = m.find("cut off after ");
  BOOST_TEST_REQUIRE(at != std::string::npos, m);
  BOOST_TEST(std::sscanf(m.c_str() + at, "cut off after %d of 100 rows", &rows) == 1, m);
  BOOST_TEST((rows >= 35 && rows <= 55), m);  // it is read by 1,024 bytes
  check_error(std::span(whole).first(whole.size() - 1), "cut off after 100 of 100 rows");
  const auto interlaced = noise_png(100, true);
  check_error(std::span(interlaced).first(interlaced.size() / 2), "of 100 rows of pass ");
}

BOOST_AUTO_TEST_CASE(IM_1_a_jpeg_that_is_cut_off_anywhere_is_an_error_that_says_where) {
  for (const bool is_progressive : {false, true}) {
    auto k = waves(64, 64, JCS_RGB, JCS_YCbCr);
    k.is_progressive = is_progressive;
    const auto whole = jpeg_of(k);
    for (std::size_t n = 3; n < whole.size(); ++n) {
      const auto t = decode_image(std::span(whole).first(n), "a.jpg");
      BOOST_TEST_REQUIRE(!t, n << " of " << whole.size() << " bytes");
      BOOST_TEST(t.error().message().starts_with("a.jpg: not an image that can be read: "));
    }
    check_error(std::span(whole).first(100), "cut off before its pixels (at byte 100 of 100)");
    check_error(std::span(whole).first(whole.size() - 200),
                is_progressive ? ", after 0 of 64 rows" : " of 64 rows (at byte");
    // An end marker in the middle: the library would fill up with grey, and warn.
    bytes ended(whole.begin(), whole.end() - 200);
    append(ended, "\xff\xd9", 2);
    check_error(ended, is_progressive ? "after 0 of 64 rows" : "premature end of data segment");
  }
}

BOOST_AUTO_TEST_CASE(IM_1_what_fails_a_checksum_is_an_error_that_says_which_and_where) {
  const auto whole = noise_png(40);
  const auto flipped = [&](std::size_t at) {
    auto b = whole;
    b[at] ^= std::byte{1};
    return b;
  };
  check_error(flipped(29), "IHDR: CRC error before its pixels");
  check_error(flipped(whole.size() - 30), "rows (at byte");
  check_error(flipped(whole.size() - 1), "IEND: CRC error after 40 of 40 rows");
  auto text = with_chunk(whole, chunk("tEXt", bytes(20, std::byte{'a'})));
  BOOST_TEST(bool(decode_image(text, "a")));
  text[50] ^= std::byte{1};
  check_error(text, "tEXt: CRC error before its pixels");
  // Every single bit counts: behind the signature, all of a PNG is under some checksum.
  std::size_t accepted = 0;
  for (std::size_t at = 8; at < whole.size(); ++at)
    accepted += bool(decode_image(flipped(at), "a"));
  BOOST_TEST(accepted == 0U);
}

BOOST_AUTO_TEST_CASE(IM_1_what_follows_the_end_is_ignored) {
  for (auto b : {noise_png(8), jpeg_of(waves(16, 16, JCS_RGB, JCS_YCbCr))}) {
    const auto before = pixels_of(decoded(b, 3));
    append(b, "anything", 8);
    BOOST_TEST(pixels_of(decoded(b, 3)) == before);
  }
}

BOOST_AUTO_TEST_CASE(IM_1_bytes_between_the_segments_of_a_jpeg_are_ignored) {
  auto b = jpeg_of(waves(16, 16, JCS_RGB, JCS_YCbCr));
  const auto before = pixels_of(decoded(b, 3));
  b.insert(b.begin() + 20, 3, std::byte{0});  // behind JFIF's segment
  BOOST_TEST(pixels_of(decoded(b, 3)) == before);
}

BOOST_AUTO_TEST_CASE(IM_1_files_that_are_no_pictures_are_errors) {
  const auto text = [](const char* t) { return std::as_bytes(std::span(t, std::strlen(t))); };
  check_error({}, "it is empty");
  check_error(text("GIF89a"), "begins as neither PNG nor JPEG");
  check_error(text("\xff\xd8"), "begins as neither");
  check_error(text("\xff\xd8\xff\xd9"), "before its pixels");
  bytes only;
  append(only, signature.data(), signature.size());
  check_error(only, "cut off in its header");
  // A picture without pixels, of no colour type that there is, and one that has none of its data.
  auto b = noise_png(4);
  put_number(b, 16, 0);
  check_error(b, "0 x 4 pixels");
  const bytes header{std::byte{}, std::byte{}, std::byte{},  std::byte{4}, std::byte{},
                     std::byte{}, std::byte{}, std::byte{4}, std::byte{8}, std::byte{5},
                     std::byte{}, std::byte{}, std::byte{}};
  auto no_header = noise_png(4);
  no_header[12] = std::byte{'J'};
  check_error(no_header, "does not begin with a header");
  bytes odd = only;
  const auto c = chunk("IHDR", header);
  append(odd, c.data(), c.size());
  check_error(odd, "before its pixels");
}

BOOST_AUTO_TEST_CASE(IM_1_a_damaged_jpeg_is_an_error_or_has_all_rows) {
  const auto whole = jpeg_of(waves(48, 48, JCS_RGB, JCS_YCbCr));
  std::mt19937 bits(1);
  int errors = 0;
  for (int n = 0; n < 2000; ++n) {
    auto b = whole;
    for (auto k = 1 + bits() % 4; k > 0; --k) b[2 + bits() % (b.size() - 2)] = std::byte(bits());
    const auto t = decode_image(b, "a.jpg", {.pixels_max = 100'000});
    if (t) continue;
    ++errors;
    BOOST_TEST(t.error().message().starts_with("a.jpg: not an image that can be read: "));
    BOOST_TEST(t.error().message().find('\n') == std::string::npos);
  }
  BOOST_TEST(errors > 100);
}

BOOST_AUTO_TEST_CASE(IM_2_sizes_above_the_limit_are_refused_before_memory_is_taken) {
  auto png = noise_png(4);
  put_number(png, 16, 0x7fffffff);
  put_number(png, 20, 0x7fffffff);
  check_error(png, "2147483647 x 2147483647 pixels, more than the 100000000");
  check_error(noise_png(4), "4 x 4 pixels, more than the 15 ", {.pixels_max = 15});
  BOOST_TEST(bool(decode_image(noise_png(4), "a", {.pixels_max = 16})));

  auto jpeg = jpeg_of(waves(16, 8, JCS_RGB, JCS_YCbCr));
  check_error(jpeg, "16 x 8 pixels, more than the 127 ", {.pixels_max = 127});
  BOOST_TEST(bool(decode_image(jpeg, "a", {.pixels_max = 128})));
  // The frame header: marker, length, precision, height, width.
  const std::array frame{std::byte{0xff}, std::byte{0xc0}};
  const auto at = std::ranges::search(jpeg, frame).begin();
  for (int i = 5; i < 9; i += 2) at[i] = std::byte{0xfe};
  check_error(jpeg, "65040 x 65032 pixels, more than");
}

BOOST_AUTO_TEST_CASE(IM_2_texts_and_profiles_take_no_memory_however_large_they_say_they_are) {
  // 64 MiB of zeros, some 64 KiB compressed: libpng would make them as large again.
  const auto bomb = deflated(bytes(std::size_t{64} << 20));
  for (const char* type : {"iCCP", "zTXt", "iTXt"}) {
    bytes data;
    append(data, "name\0\0", 6);
    if (std::string_view(type) == "iTXt") data = {}, append(data, "name\0\1\0\0\0", 9);
    append(data, bomb.data(), bomb.size());
    BOOST_TEST(bool(decode_image(with_chunk(noise_png(4), chunk(type, data)), "a")), type);
  }
}

BOOST_AUTO_TEST_CASE(IM_2_a_progressive_jpeg_has_a_limit_of_scans) {
  auto k = waves(16, 16, JCS_GRAYSCALE, JCS_GRAYSCALE);
  // Each coefficient in a scan of its own: 64. With the last bit of each in another one: 127.
  k.scans = {{1, {0}, 0, 0, 0, 0}};
  for (int c = 1; c < 64; ++c) k.scans.push_back({1, {0}, c, c, 0, 0});
  BOOST_TEST(bool(decode_image(jpeg_of(k), "a")));
  for (std::size_t c = 1; c < 64; ++c) k.scans[c].Al = 1;
  for (int c = 1; c < 64; ++c) k.scans.push_back({1, {0}, c, c, 1, 0});
  check_error(jpeg_of(k), "more scans than the 100 that an image may have");
}

BOOST_AUTO_TEST_CASE(IM_3_nothing_is_written_to_stderr) {
  test::temporary_folder folder;
  auto damaged = jpeg_of(waves(48, 48, JCS_RGB, JCS_YCbCr));
  damaged[damaged.size() - 100] = std::byte{0xff};
  damaged[damaged.size() - 99] = std::byte{0xd9};
  auto flipped = noise_png(40);
  flipped[200] ^= std::byte{1};
  std::fflush(stderr);
  const int before = ::dup(2);
  auto* file = std::freopen(folder.file("stderr").c_str(), "w", stderr);
  const bool all_failed = !decode_image(damaged, "a") && !decode_image(flipped, "a");
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  BOOST_TEST(file != nullptr);
  BOOST_TEST(all_failed);
  BOOST_TEST(test::read_file(folder.file("stderr")).empty());
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_opened_or_are_too_large_are_errors) {
  test::temporary_folder folder;
  const auto none = load_image(folder.file("none.png"));
  BOOST_TEST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::not_found));
  test::write_file(folder.file("a.png"), noise_png(4));
  BOOST_TEST(bool(load_image(folder.file("a.png"))));
  const auto large = load_image(folder.file("a.png"), {.file_bytes_max = 10});
  BOOST_TEST_REQUIRE(!large);
  BOOST_TEST(large.error().message().find("expected at most 10") != std::string::npos);
  BOOST_TEST(!load_image(folder.path()));
  for (const std::uint32_t channels : {2U, 5U}) {
    const auto t = decode_image(noise_png(4), "a.png", {.channels = channels});
    BOOST_TEST_REQUIRE(!t);
    BOOST_TEST(t.error().message().find("channels was asked for") != std::string::npos);
  }
}

BOOST_AUTO_TEST_SUITE_END()
