#pragma once
// IDX files for tests: valid ones, in memory and on disk.

#include "tests/devices/temporary_folder.hpp"

#include <zlib.h>

#include <cstdint>
#include <initializer_list>

namespace troupe::test {

using byte_vector = std::vector<std::byte>;

inline byte_vector idx_bytes(std::initializer_list<std::uint32_t> sizes,
                             std::span<const std::uint8_t> elements) {
  byte_vector bytes = {std::byte{0}, std::byte{0}, std::byte{8},
                       static_cast<std::byte>(sizes.size())};
  for (const auto n : sizes)
    for (const unsigned bits : {24U, 16U, 8U, 0U})
      bytes.push_back(static_cast<std::byte>(n >> bits));
  for (const auto e : elements) bytes.push_back(static_cast<std::byte>(e));
  return bytes;
}

inline byte_vector gzip(std::span<const std::byte> bytes) {
  z_stream stream{};
  BOOST_REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  byte_vector out(bytes.size() + bytes.size() / 1000 + 200);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  BOOST_REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

// `samples` images of 2x3 pixels: pixel p of image i is i * 6 + p (modulo 256), its label i
// modulo 10.
struct small_set {
  byte_vector images, labels;
};
inline small_set make_small_set(std::uint32_t samples) {
  std::vector<std::uint8_t> pixels, labels;
  for (std::uint32_t i = 0; i < samples * 6; ++i) pixels.push_back(static_cast<std::uint8_t>(i));
  for (std::uint32_t i = 0; i < samples; ++i) labels.push_back(static_cast<std::uint8_t>(i % 10));
  return {idx_bytes({samples, 2, 3}, pixels), idx_bytes({samples}, labels)};
}

inline void write_small_set(const temporary_folder& folder, std::uint32_t samples,
                            const std::string& set = "train") {
  const auto files = make_small_set(samples);
  write_file(folder.file(set + "-images-idx3-ubyte"), files.images);
  write_file(folder.file(set + "-labels-idx1-ubyte.gz"), gzip(files.labels));
}

}  // namespace troupe::test
