#include "troupe/devices/files/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace troupe {
namespace {

constexpr std::size_t csv_buffer_bytes = std::size_t{1} << 18;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

template <class Number>
std::string shortest(Number x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

// Where the first separator, line end or quote is; the length where there is none. Eight bytes at
// once: a byte of `x` that is zero sets its highest bit, and the lowest one set is right.
std::size_t find_special(const char* text, std::size_t length, char separator) noexcept {
  constexpr std::uint64_t ones = 0x0101010101010101, highest = 0x8080808080808080;
  const auto zeros = [](std::uint64_t x) { return (x - ones) & ~x & highest; };
  const std::uint64_t separators = ones * static_cast<unsigned char>(separator);
  std::size_t at = 0;
  for (; std::endian::native == std::endian::little && at + 8 <= length; at += 8) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, text + at, 8);
    const auto found =
        zeros(bytes ^ separators) | zeros(bytes ^ ones * '\n') | zeros(bytes ^ ones * '"');
    if (found != 0) return at + static_cast<std::size_t>(std::countr_zero(found)) / 8;
  }
  while (at < length && text[at] != separator && text[at] != '\n' && text[at] != '"') ++at;
  return at;
}

bool is_separator(char c) noexcept { return c != '"' && c != '\n' && c != '\r' && c != '\0'; }

}  // namespace

csv_reader::csv_reader(std::unique_ptr<byte_source> source, const csv_options& options)
    : source_(std::move(source)), options_(options), buffer_(csv_buffer_bytes) {
  expects(is_separator(options.separator), "a separator is no quote and no line end");
}

// More bytes behind those that are there; false: there are none.
result<bool> csv_reader::fill() {
  if (is_over_) return false;
  if (end_ == buffer_.size()) {
    const auto kept = end_ - begin_;
    if (kept > buffer_.size() / 2) {
      std::vector<char> larger(buffer_.size() * 2);
      std::memcpy(larger.data(), buffer_.data() + begin_, kept);
      buffer_ = std::move(larger);
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, kept);
    }
    at_ -= begin_;
    end_ = kept;
    begin_ = 0;
  }
  auto got = source_->read(std::as_writable_bytes(std::span(buffer_)).subspan(end_));
  if (!got) return got.error();
  end_ += *got;
  is_over_ = *got == 0;
  return !is_over_;
}

bool csv_reader::refuse(std::string_view what) {
  const bool is_header = options_.has_header && !has_header_;
  failed_ = error(error_code::usage,
                  fmt::format("{}: {}, {} at line {}", name(), what,
                              is_header ? "header" : fmt::format("row {}", row_ + 1), row_line_));
  return false;
}

// `end` counts from the beginning of the row.
bool csv_reader::close_field(std::size_t end) {
  if (fields_.size() == options_.fields_max)
    return refuse(fmt::format("more than {} fields", options_.fields_max));
  open_.end = end;
  fields_.push_back(open_);
  state_ = state::at_field;
  return true;
}

// Looks at what is there, from at_ on. A row: begin_ and the fields are of it, at_ is behind it.
csv_reader::step csv_reader::scan() {
  const char* const data = buffer_.data();
  const char separator = options_.separator;
  while (at_ < end_) {
    switch (state_) {
      case state::at_field:
        open_ = {at_ - begin_, 0, false};
        state_ = state::in_plain;
        if (data[at_] == '"') {
          state_ = state::in_quotes;
          quote_line_ = line_;
          open_.begin = ++at_ - begin_;
          break;
        }
        [[fallthrough]];
      case state::in_plain: {
        const auto p = at_ + find_special(data + at_, end_ - at_, separator);
        at_ = p;
        if (p == end_) break;
        if (data[p] == '"') {
          refuse(fmt::format("a quote in field {}, which does not begin with one",
                             fields_.size() + 1));
          return step::wrong;
        }
        const bool is_end = data[p] == '\n';
        const bool has_return = is_end && p > begin_ + open_.begin && data[p - 1] == '\r';
        if (!close_field(p - begin_ - (has_return ? 1 : 0))) return step::wrong;
        ++at_;
        if (!is_end) break;
        ++line_;
        return step::row;
      }
      case state::in_quotes: {
        const auto* const found =
            static_cast<const char*>(std::memchr(data + at_, '"', end_ - at_));
        const auto p = found != nullptr ? static_cast<std::size_t>(found - data) : end_;
        line_ += static_cast<std::uint64_t>(std::count(data + at_, data + p, '\n'));
        at_ = p;
        if (found == nullptr) break;
        state_ = state::behind_quote;
        ++at_;
        break;
      }
      case state::behind_quote: {
        const char c = data[at_];
        const auto end = at_ - begin_ - 1;  // where the quote is
        if (c == '"') {
          open_.has_doubled = true;
          state_ = state::in_quotes;
          ++at_;
          break;
        }
        if (c == '\r' && at_ + 1 == end_ && !is_over_) return step::more;
        const bool has_return = c == '\r' && at_ + 1 < end_ && data[at_ + 1] == '\n';
        if (c != separator && c != '\n' && !has_return) {
          refuse(fmt::format("field {} goes on behind its closing quote", fields_.size() + 1));
          return step::wrong;
        }
        if (!close_field(end)) return step::wrong;
        at_ += has_return ? 2 : 1;
        if (c == separator) break;
        ++line_;
        return step::row;
      }
    }
  }
  return step::more;
}

// False: the end. The row's fields are in fields_, from begin_ on.
result<bool> csv_reader::next_row() {
  if (failed_) return *failed_;
  const auto fail = [&](const error& e) {
    failed_ = e;
    return e;
  };
  while (!has_begun_) {
    const std::string_view beginning(buffer_.data(), std::min(end_, byte_order_mark.size()));
    has_begun_ =
        beginning.size() == byte_order_mark.size() || !byte_order_mark.starts_with(beginning);
    if (beginning == byte_order_mark) at_ = byte_order_mark.size();
    if (has_begun_) break;
    const auto more = fill();
    if (!more) return fail(more.error());
    has_begun_ = !*more;
  }
  for (;;) {
    begin_ = at_;
    fields_.clear();
    state_ = state::at_field;
    row_line_ = line_;
    for (auto is_more = true; is_more;) {
      const auto got = scan();
      if (got == step::wrong) return *failed_;
      if (at_ - begin_ > options_.row_bytes_max) {
        refuse(fmt::format("more than {} bytes", options_.row_bytes_max));
        return *failed_;
      }
      if (got == step::row) break;
      const auto filled = fill();
      if (!filled) return fail(filled.error());
      if (*filled) continue;
      // The end: of the file, and of a row without a line end.
      if (begin_ == end_) return false;
      if (state_ == state::in_quotes) {
        refuse(fmt::format("the quote that line {} opens is never closed", quote_line_));
        return *failed_;
      }
      if (state_ == state::behind_quote && at_ < end_) continue;  // a last "\r", which it refuses
      if (state_ == state::at_field) open_ = {end_ - begin_, 0, false};
      if (!close_field(end_ - begin_ - (state_ == state::behind_quote ? 1 : 0))) return *failed_;
      is_more = false;
    }
    // A line without a character: a row of one field, which has no quotes.
    const bool is_blank =
        fields_.size() == 1 && fields_[0].end == fields_[0].begin && fields_[0].begin == 0;
    if (!is_blank) break;
  }
  if (!width_) width_ = fields_.size();
  if (!options_.is_ragged && fields_.size() != *width_) {
    refuse(fmt::format("{} fields, and the first row has {}", fields_.size(), *width_));
    return *failed_;
  }
  views_.clear();
  for (auto& f : fields_) {
    if (f.has_doubled) unquote(f);
    views_.emplace_back(buffer_.data() + begin_ + f.begin, f.end - f.begin);
  }
  return true;
}

// Of two quotes one is left, in place.
void csv_reader::unquote(field& f) {
  char* const row = buffer_.data() + begin_;
  auto to = f.begin;
  for (auto from = f.begin; from < f.end; ++from) {
    row[to++] = row[from];
    if (row[from] == '"') ++from;
  }
  f.end = to;
}

result<std::span<const std::string>> csv_reader::header() {
  if (options_.has_header && !has_header_) {
    const auto got = next_row();
    if (!got) return got.error();
    if (!*got) {
      failed_ = error(
          error_code::usage,
          fmt::format("{}: a header is expected, and there is no row, at line {}", name(), line_));
      return *failed_;
    }
    header_.assign(views_.begin(), views_.end());
    has_header_ = true;
  }
  return std::span<const std::string>(header_);
}

result<std::optional<std::span<const std::string_view>>> csv_reader::next() {
  if (const auto names = header(); !names) return names.error();
  const auto got = next_row();
  if (!got) return got.error();
  if (!*got) return std::optional<std::span<const std::string_view>>();
  ++row_;
  return std::optional(std::span<const std::string_view>(views_));
}

std::string csv_row(std::span<const std::string_view> fields, char separator) {
  expects(is_separator(separator), "a separator is no quote and no line end");
  const char special[] = {separator, '"', '\n', '\r'};
  std::string row;
  bool is_first = true;
  for (const auto field : fields) {
    if (!std::exchange(is_first, false)) row += separator;
    if (field.find_first_of({special, sizeof special}) == std::string_view::npos &&
        !field.starts_with(byte_order_mark) && !(field.empty() && fields.size() == 1)) {
      row += field;
      continue;
    }
    row += '"';
    for (const char c : field) {
      if (c == '"') row += c;
      row += c;
    }
    row += '"';
  }
  return row + '\n';
}

std::string csv_number(float x) { return shortest(x); }
std::string csv_number(double x) { return shortest(x); }
std::string csv_number(std::int64_t x) { return shortest(x); }
std::string csv_number(std::uint64_t x) { return shortest(x); }

}  // namespace troupe
