#pragma once
// Pictures in PNG and JPEG files as tensors, u8 [height, width, channels], and the two changes that
// nearly every reader makes of them: another size, and a part.
//
// Values are those of the file. Neither gamma nor a colour profile is applied, and a JPEG is not
// turned as its EXIF orientation says: the libraries that models are trained with differ there, and
// a picture that is turned by one reader alone makes no error, but worse predictions. A phone's
// picture may so lie on its side.
//
// Threading: no state; from any thread.
//
// Ownership: results own their memory, and keep nothing of what they were made of.
//
// IM-1  Any bytes are a picture with all of its rows, or an error. A file that is cut off, be it
//       behind its last row, one that fails a checksum, and one that libpng or libjpeg warns of
//       because something is missing or damaged, is an error. What follows a picture's end is
//       ignored, as is what JPEG files have between their segments.
// IM-2  The header's sizes are checked before memory is taken for them. In all, decoding takes at
//       most 64 MiB and 12 bytes a pixel that the header says, 20 if all of them are one row.
//       Texts, profiles and thumbnails take none: they are skipped.
// IM-3  The libraries write nothing to stderr, and end no program.
//
// Errors: one line, "NAME: not an image that can be read: WHY", with the byte that was reached and
// how many rows had come out by then; code usage, or not_found for a file that is not there.

#include "troupe/devices/tensor.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct image_limits {
  std::uint64_t pixels_max = 100'000'000;                   // height times width
  std::uint64_t file_bytes_max = std::uint64_t{256} << 20;  // of load_image() alone
  // 1: grey, 3: RGB, 4: RGBA. 0: as the file has them, with 2 for grey and alpha; CMYK becomes RGB.
  std::uint32_t channels = 3;
};

// PNG or JPEG, by how the bytes begin. `name` is for errors. Throws std::bad_alloc.
//
// PNG: all kinds. 16 bits become 8, the nearest; a colour that the palette does not have is black.
// Where no alpha is wanted it is dropped: pixels keep their colours, however transparent they are,
// and are not laid over a background.
// JPEG: what libjpeg-turbo decodes with its defaults, the exact integer DCT and smooth upsampling.
// CMYK, inverted where an Adobe marker is, becomes RGB as c * k.
// Grey of colours: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), the nearest; of a JPEG, its Y.
// Alpha that a file does not have is 255.
result<tensor> decode_image(std::span<const std::byte> bytes, std::string_view name,
                            const image_limits& limits = {});
result<tensor> load_image(const std::string& path, const image_limits& limits = {});

// `image` is u8 [height, width, channels] on the host, of 1 (grey), 2 (grey and alpha), 3 (RGB) or
// 4 (RGBA) channels. decode_image() with channels = 0 gives it back.
result<std::vector<std::byte>> png_bytes(const tensor& image);
// Whole or not at all: a temporary file beside it, then a new name.
result<void> save_png(const std::string& path, const tensor& image);

// u8 or f32 [height, width, channels] to another height and width, each at least 1, by a triangle
// filter: bilinear where it grows, and where it shrinks the mean of all pixels under a triangle
// that is as much wider, so nothing flickers (P. Heckbert's "zoom" in Graphics Gems III, 1992;
// Pillow's BILINEAR is the same). First along rows, then along columns; of u8 with weights of 22
// bits and rounding in between, which gives the bits of Pillow up to version 11 (version 13 takes
// columns first for some sizes, and differs by at most 1 there). f32 is summed up in f32.
// An error for other shapes and types, and for more than 2^31 elements, counting those of the new
// width and the old height.
result<tensor> resize(const tensor& image, std::int64_t height, std::int64_t width);
// A copy of the box of `height` and `width`, each at least 1, whose first pixel is (top, left). It
// must lie within the image, which may be of any element type.
result<tensor> crop(const tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
                    std::int64_t width);

}  // namespace troupe
