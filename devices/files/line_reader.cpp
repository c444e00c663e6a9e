#include "troupe/devices/files/line_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

namespace {
constexpr std::size_t line_buffer_bytes = std::size_t{1} << 18;
constexpr std::string_view mark = "\xef\xbb\xbf";
}  // namespace

line_reader::line_reader(std::unique_ptr<byte_source> source, std::size_t bytes_max)
    : source_(std::move(source)), bytes_max_(bytes_max), buffer_(line_buffer_bytes) {}

// More bytes behind those that are there; false: there are none.
result<bool> line_reader::fill() {
  if (is_over_) return false;
  if (end_ == buffer_.size()) {
    // The rest of a line moves to the front, and where it is most of the buffer that grows.
    if (end_ - begin_ > buffer_.size() / 2) {
      std::vector<char> larger(buffer_.size() * 2);
      std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.end(),
                larger.begin());
      buffer_ = std::move(larger);
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    }
    searched_ -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  auto got = source_->read(std::as_writable_bytes(std::span(buffer_)).subspan(end_));
  if (!got) {
    failed_ = got.error();
    return std::move(got.error());
  }
  end_ += *got;
  is_over_ = *got == 0;
  return !is_over_;
}

result<void> line_reader::drop_mark() {
  const auto beginning = [&] {
    return std::string_view(buffer_.data(), std::min(end_, mark.size()));
  };
  while (end_ < mark.size() && mark.starts_with(beginning())) {
    const auto more = fill();
    if (!more) return more.error();
    if (!*more) return {};
  }
  if (beginning() == mark) begin_ = searched_ = mark.size();
  return {};
}

std::string_view line_reader::give(std::size_t bytes, std::size_t with_end) noexcept {
  const std::string_view line(buffer_.data() + begin_, bytes);
  ++line_;
  offset_ = source_->position() - (end_ - begin_);
  begin_ += with_end;
  searched_ = begin_;
  return line;
}

result<std::optional<std::string_view>> line_reader::next() {
  if (failed_) return *failed_;
  if (!has_begun_) {
    has_begun_ = true;
    if (auto ok = drop_mark(); !ok) return std::move(ok.error());
  }
  for (;;) {
    const auto* const found =
        static_cast<const char*>(std::memchr(buffer_.data() + searched_, '\n', end_ - searched_));
    auto bytes =
        (found != nullptr ? static_cast<std::size_t>(found - buffer_.data()) : end_) - begin_;
    const auto with_end = bytes + (found != nullptr ? 1 : 0);
    if (found != nullptr && bytes > 0 && found[-1] == '\r') --bytes;
    // Of a line without an end the last byte may belong to that.
    if (bytes > bytes_max_ && (found != nullptr || bytes > bytes_max_ + 1 || is_over_)) {
      failed_ =
          error(error_code::usage,
                fmt::format("{}: line {} has more than {} bytes; it begins at byte {}", name(),
                            line_ + 1, bytes_max_, source_->position() - (end_ - begin_)));
      return *failed_;
    }
    if (found != nullptr) return std::optional(give(bytes, with_end));
    searched_ = end_;
    const auto more = fill();
    if (!more) return more.error();
    if (*more) continue;
    if (begin_ == end_) return std::optional<std::string_view>();
    if (end_ - begin_ > bytes_max_) continue;  // is_over_ now: the limit speaks
    return std::optional(give(end_ - begin_, end_ - begin_));
  }
}

}  // namespace troupe
