#pragma once
// A line_reader gives the lines of a byte_source, as views into its own buffer.
//
// A line ends with "\n" or "\r\n", which are no part of it; the last one may do without. A "\r"
// alone is a character like any other. A byte-order mark of UTF-8 at the very beginning is dropped;
// whether the rest is UTF-8 is not asked.
//
// Threading: one caller at a time.
//
// LR-1  Memory is a buffer of 256 KiB, or up to four times the longest line where that is more; a
//       line of more than the limit is an error.
// LR-2  Lines are the same however the source cuts its bytes into pieces, and a line is given
//       without asking the source for what follows it.
//
// Errors are one line: the source's, or the name with the line and the byte at which it begins.
// They stay.

#include "troupe/devices/files/byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe {

class line_reader {
 public:
  static constexpr std::size_t line_bytes_max = std::size_t{16} << 20;

  explicit line_reader(std::unique_ptr<byte_source> source, std::size_t bytes_max = line_bytes_max);

  // The next line, valid until the next call; nullopt: the end.
  result<std::optional<std::string_view>> next();
  // Of the line that was given last: its number, from 1, and the byte of the source at which it
  // begins.
  std::uint64_t line() const noexcept { return line_; }
  std::uint64_t offset() const noexcept { return offset_; }
  std::string_view name() const noexcept { return source_->name(); }

 private:
  result<bool> fill();
  result<void> drop_mark();
  std::string_view give(std::size_t bytes, std::size_t with_end) noexcept;

  std::unique_ptr<byte_source> source_;
  std::size_t bytes_max_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, searched_ = 0, end_ = 0;  // in the buffer; up to searched_ no line ends
  std::uint64_t line_ = 0, offset_ = 0;
  bool has_begun_ = false, is_over_ = false;
  std::optional<error> failed_;
};

}  // namespace troupe
