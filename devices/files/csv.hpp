#pragma once
// Rows of comma-separated values (RFC 4180), from a byte_source and into texts.
//
// A row ends with "\n" or "\r\n", the last one may do without; a field that begins with a quote
// ends with one, may hold separators, line ends and doubled quotes, and nothing else follows it.
// Lines without a character are no rows; a row of one empty field is written as "". A byte-order
// mark of UTF-8 at the very beginning is dropped. Spaces belong to fields.
//
// Threading: one caller at a time.
//
// CSV-1  What csv_row() writes is read again as the same fields.
// CSV-2  Rows are the same however the source cuts its bytes into pieces.
// CSV-3  Memory is a buffer of 256 KiB, or up to four times the longest row where that is more;
//        rows over the limits are errors.
//
// Errors are one line: the source's, or the name, what is wrong, the row (from 1, the header is
// none) and the line (from 1; fields may have several). They stay.

#include "troupe/devices/files/byte_source.hpp"

#include <concepts>
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

struct csv_options {
  char separator = ',';     // no quote and no line end
  bool has_header = false;  // the first row has the names of the fields
  // Rows may have more or fewer fields than the first one (the header, where there is one).
  bool is_ragged = false;
  std::size_t fields_max = 65'536;                    // of a row
  std::size_t row_bytes_max = std::size_t{16} << 20;  // with quotes and separators
};

class csv_reader {
 public:
  explicit csv_reader(std::unique_ptr<byte_source> source, const csv_options& options = {});

  // The names of the fields; none without has_header. A file without any row has no header, which
  // is an error. May be asked first or later.
  result<std::span<const std::string>> header();
  // The next row's fields, valid until the next call; nullopt: the end.
  result<std::optional<std::span<const std::string_view>>> next();
  // Of the row that was given last: its number, and the line at which it begins.
  std::uint64_t row() const noexcept { return row_; }
  std::uint64_t line() const noexcept { return row_line_; }
  std::string_view name() const noexcept { return source_->name(); }

 private:
  enum class state : std::uint8_t {
    at_field,     // nothing of it was seen
    in_plain,     // in a field without quotes
    in_quotes,    // behind the quote that opened it
    behind_quote  // the end of the field, or the first of two quotes
  };
  enum class step : std::uint8_t { row, more, wrong };
  // Where a field lies, from the beginning of the row on.
  struct field {
    std::size_t begin = 0, end = 0;
    bool has_doubled = false;
  };

  result<bool> next_row();
  result<bool> fill();
  step scan();
  bool close_field(std::size_t end);
  bool refuse(std::string_view what);
  void unquote(field& f);

  std::unique_ptr<byte_source> source_;
  csv_options options_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, at_ = 0, end_ = 0;  // the row, what was looked at, what is there
  state state_ = state::at_field;
  field open_;
  std::vector<field> fields_;
  std::vector<std::string_view> views_;
  std::vector<std::string> header_;
  std::optional<std::size_t> width_;  // fields of the first row
  std::uint64_t row_ = 0, line_ = 1, row_line_ = 1, quote_line_ = 1;
  bool has_begun_ = false, has_header_ = false, is_over_ = false;
  std::optional<error> failed_;
};

// One row with its line end, "\n". What must be quoted is: separators, quotes, line ends, a
// byte-order mark at the front, and the empty field of a row of one.
std::string csv_row(std::span<const std::string_view> fields, char separator = ',');

// The shortest text that is read as the same number.
std::string csv_number(float x);
std::string csv_number(double x);
std::string csv_number(std::int64_t x);
std::string csv_number(std::uint64_t x);
template <std::integral T>
std::string csv_number(T x) {
  if constexpr (std::signed_integral<T>)
    return csv_number(static_cast<std::int64_t>(x));
  else
    return csv_number(static_cast<std::uint64_t>(x));
}

}  // namespace troupe
