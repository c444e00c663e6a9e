#pragma once
// What sources that unpack have in common: a buffer of packed bytes, limits, and an error that
// stays. devices/files/ only.

#include "troupe/devices/files/byte_source.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::host {

class unpacking_source : public byte_source {
 public:
  unpacking_source(std::unique_ptr<byte_source> packed, const unpack_limits& limits)
      : packed_(std::move(packed)), limits_(limits), buffer_(std::size_t{1} << 17) {}

  result<std::size_t> read(std::span<std::byte> into) final {
    expects(!into.empty(), "there is room for a byte");
    if (failed_) return *failed_;
    std::size_t have = 0;
    while (have == 0 && !is_over_) {
      auto got = more(into);
      if (!got) {
        failed_ = got.error();
        return std::move(got.error());
      }
      have = *got;
    }
    position_ += have;
    if (position_ > limits_.bytes_max && position_ / limits_.ratio_max > consumed()) {
      failed_ = bad(
          fmt::format("unpacks to more than {} times its size and more than {} bytes, as bombs do",
                      limits_.ratio_max, limits_.bytes_max));
      return *failed_;
    }
    return have;
  }
  std::uint64_t position() const noexcept final { return position_; }
  std::string_view name() const noexcept final { return packed_->name(); }

 protected:
  // Some bytes more; 0: call it again, unless end() was called.
  virtual result<std::size_t> more(std::span<std::byte> into) = 0;

  void end() noexcept { is_over_ = true; }
  std::span<const std::byte> rest() const noexcept {
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }
  void consume(std::size_t n) noexcept { begin_ += n; }
  std::uint64_t consumed() const noexcept { return packed_->position() - (end_ - begin_); }
  // Packed bytes where there are none; false: the source has no more.
  result<bool> fill() {
    if (begin_ < end_) return true;
    auto got = packed_->read(buffer_);
    if (!got) return std::move(got.error());
    begin_ = 0;
    end_ = *got;
    return end_ > 0;
  }
  error bad(std::string_view what) const {
    return {error_code::usage, fmt::format("{}: {}, at byte {}", name(), what, consumed())};
  }

 private:
  std::unique_ptr<byte_source> packed_;
  unpack_limits limits_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t position_ = 0;
  bool is_over_ = false;
  std::optional<error> failed_;
};

}  // namespace troupe::host
