#pragma once
// Image datasets in the IDX format (the four files of MNIST and Fashion-MNIST), plain or gzip.
//
// A file is: two zero bytes, the element type (8: u8), the rank, then one big-endian u32 per
// dimension, then the elements, row-major. Images have rank 3 (samples, rows, columns), labels
// rank 1. In a folder they have their official names, "train-" for training and "t10k-" for
// testing, each with or without ".gz": train-images-idx3-ubyte, train-labels-idx1-ubyte.
//
// Parsing is a pure function of bytes, and takes any bytes.
//
// IDX-1  Every error names the file, what was expected and what was found.
// IDX-2  Nothing is allocated beyond what the header declares, and never more than idx_bytes_max or
//        than the file can inflate to: neither a lying header nor a zip bomb takes memory.
// IDX-3  A dataset that was loaded has as many labels as images, and every label is below its
//        number of classes.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

inline constexpr std::uint64_t idx_bytes_max = std::uint64_t{4} << 30;  // elements of one file

// What a graph must know of a dataset before it runs.
struct idx_info {
  std::string path;   // the folder
  bool test = false;  // t10k-* instead of train-*
  std::int64_t samples = 0, rows = 0, columns = 0, classes = 10;

  friend bool operator==(const idx_info&, const idx_info&) = default;
};

struct idx_dataset {
  idx_info info;
  std::vector<std::uint8_t> images;  // samples * rows * columns
  std::vector<std::uint8_t> labels;  // samples
};

// One file's elements and the sizes of its dimensions.
struct idx_array {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// `bytes` are a whole file, plain or gzip; `name` is for errors; `rank` is the one expected.
result<idx_array> parse_idx(std::span<const std::byte> bytes, std::size_t rank,
                            std::string_view name);
// The sizes alone; `bytes` may be just the beginning of the file (64 bytes will do).
result<std::vector<std::int64_t>> parse_idx_header(std::span<const std::byte> bytes,
                                                   std::size_t rank, std::string_view name);
// Both files of a dataset, checked against each other (IDX-3).
result<idx_dataset> combine_idx(idx_array images, idx_array labels, const idx_info& where);

// The rows of a file: of images (rank 3) one image each, of labels (rank 1) one label. Memory is
// one row, or 64 KiB of smaller ones; one of more than idx_row_bytes_max is an error, as is one
// without an element. One caller at a time; errors stay, and name the row (from 0) and the byte.
inline constexpr std::uint64_t idx_row_bytes_max = std::uint64_t{64} << 20;
class idx_reader {
 public:
  // `source` gives what is in the file, unpacked (open_any()).
  idx_reader(std::unique_ptr<byte_source> source, std::size_t rank)
      : source_(std::move(source)), rank_(rank) {}
  // How many rows there are, and so on: of the header.
  result<std::span<const std::int64_t>> sizes();
  // The next row's elements, valid until the next call; nullopt: the end, behind which nothing was
  // found.
  result<std::optional<std::span<const std::byte>>> next();

 private:
  result<void> begin();
  result<bool> fill();
  error fail(std::string_view what);
  std::unique_ptr<byte_source> source_;
  std::size_t rank_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::byte> buffer_;
  std::size_t row_bytes_ = 0, at_ = 0, end_ = 0;  // of the buffer
  std::uint64_t row_ = 0, rows_ = 0;
  bool has_begun_ = false;
  std::optional<error> failed_;
};

// Reads the headers of both files only; files may still turn out to be cut when they are loaded.
result<idx_info> open_idx(const std::string& folder, bool test, std::int64_t classes = 10);
result<std::shared_ptr<const idx_dataset>> load_idx(const std::string& folder, bool test,
                                                    std::int64_t classes = 10);

}  // namespace troupe
