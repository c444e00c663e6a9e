// Rows of an IDX file, one after the other (idx_file.hpp).

#include "troupe/devices/files/idx_file.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {
constexpr std::size_t idx_buffer_bytes = std::size_t{1} << 16;
}  // namespace

result<std::span<const std::int64_t>> idx_reader::sizes() {
  if (auto ok = begin(); !ok) return std::move(ok.error());
  return std::span<const std::int64_t>(sizes_);
}

result<std::optional<std::span<const std::byte>>> idx_reader::next() {
  if (auto ok = begin(); !ok) return std::move(ok.error());
  if (at_ == end_) {
    const auto more = fill();
    if (!more) return more.error();
    if (!*more) return std::optional<std::span<const std::byte>>();
  }
  const auto row = std::span<const std::byte>(buffer_).subspan(at_, row_bytes_);
  at_ += row_bytes_;
  ++row_;
  return std::optional(row);
}

result<void> idx_reader::begin() {
  if (failed_) return *failed_;
  if (std::exchange(has_begun_, true)) return {};
  std::vector<std::byte> head(4 + 4 * rank_);
  const auto got = read_full(*source_, head);
  if (!got) {
    failed_ = got.error();
    return *failed_;
  }
  auto sizes =
      parse_idx_header(std::span<const std::byte>(head).first(*got), rank_, source_->name());
  if (!sizes) {
    failed_ = sizes.error();
    return *failed_;
  }
  // Their product is below idx_bytes_max where none is 0.
  std::uint64_t row_bytes = 1;
  const bool has_elements = std::ranges::find(*sizes, 0) == sizes->end();
  for (std::size_t d = 1; d < sizes->size() && has_elements; ++d)
    row_bytes *= static_cast<std::uint64_t>((*sizes)[d]);
  rows_ = static_cast<std::uint64_t>(sizes->front());
  if (!has_elements && rows_ > 0) return fail("its images have no pixels");
  if (row_bytes > idx_row_bytes_max)
    return fail(
        fmt::format("an image of {} bytes is larger than {}", row_bytes, idx_row_bytes_max));
  sizes_ = std::move(*sizes);
  row_bytes_ = static_cast<std::size_t>(row_bytes);
  buffer_.resize(std::max<std::size_t>(1, idx_buffer_bytes / row_bytes_) * row_bytes_);
  return {};
}

// False: there are no more rows, and nothing else.
result<bool> idx_reader::fill() {
  const auto rows = std::min<std::uint64_t>(rows_ - row_, buffer_.size() / row_bytes_);
  const auto wanted = rows > 0 ? static_cast<std::size_t>(rows) * row_bytes_ : 1;
  const auto got = read_full(*source_, std::span(buffer_).first(wanted));
  if (!got) {
    failed_ = got.error();
    return *failed_;
  }
  if (rows == 0 && *got == 0) return false;
  if (rows == 0) return fail(fmt::format("bytes follow the last of its {} rows", rows_));
  at_ = 0;
  end_ = *got / row_bytes_ * row_bytes_;
  if (end_ == 0)
    return fail(fmt::format("row {} of {} is missing or cut, the file ends at byte {}", row_, rows_,
                            source_->position()));
  // Rows in front of a cut are given before it is told.
  return true;
}

error idx_reader::fail(std::string_view what) {
  failed_.emplace(error_code::usage, fmt::format("{}: {}", source_->name(), what));
  return *failed_;
}

}  // namespace troupe
