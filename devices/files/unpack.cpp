// zstd, and the choice by the first bytes: a file of its own, so that who unpacks gzip alone links
// no zstd.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/files/unpacking_source.hpp"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

namespace troupe {
namespace {

// What was taken from a source to look at it, then the rest of it.
class looked_at_source final : public byte_source {
 public:
  looked_at_source(std::vector<std::byte> seen, std::unique_ptr<byte_source> rest)
      : seen_(std::move(seen)), rest_(std::move(rest)) {}

  result<std::size_t> read(std::span<std::byte> into) override {
    if (given_ == seen_.size()) return rest_->read(into);
    const auto n = std::min(into.size(), seen_.size() - given_);
    std::copy_n(seen_.begin() + static_cast<std::ptrdiff_t>(given_), n, into.begin());
    given_ += n;
    return n;
  }
  std::uint64_t position() const noexcept override {
    return given_ < seen_.size() ? given_ : rest_->position();
  }
  std::string_view name() const noexcept override { return rest_->name(); }

 private:
  std::vector<std::byte> seen_;
  std::unique_ptr<byte_source> rest_;
  std::size_t given_ = 0;
};

class zstd_source final : public host::unpacking_source {
 public:
  zstd_source(std::unique_ptr<byte_source> packed, const unpack_limits& limits)
      : unpacking_source(std::move(packed), limits), context_(ZSTD_createDCtx()) {
    const auto window = static_cast<int>(std::bit_width(limits.window_bytes_max)) - 1;
    // zstd itself takes 2^10 to 2^31.
    if (context_ != nullptr)
      ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, std::clamp(window, 10, 31));
  }
  ~zstd_source() override { ZSTD_freeDCtx(context_); }
  zstd_source(const zstd_source&) = delete;
  zstd_source& operator=(const zstd_source&) = delete;

 private:
  result<std::size_t> more(std::span<std::byte> into) override {
    if (context_ == nullptr)
      return error(error_code::failed, fmt::format("{}: zstd has no memory", name()));
    const auto has_bytes = fill();
    if (!has_bytes) return has_bytes.error();
    if (!*has_bytes && !is_in_frame_) {
      if (!has_begun_) return bad("the zstd data ends early: the file is cut");
      end();
      return std::size_t{0};
    }
    const auto packed = rest();
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    const auto left = ZSTD_decompressStream(context_, &out, &in);
    consume(in.pos);
    if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
      return bad("a zstd frame refers further back than window_bytes_max allows");
    if (ZSTD_isError(left))
      return bad(fmt::format("the zstd data is damaged ({})", ZSTD_getErrorName(left)));
    has_begun_ = true;
    is_in_frame_ = left != 0;
    if (out.pos == 0 && !*has_bytes && is_in_frame_)
      return bad("the zstd data ends early: the file is cut");
    return out.pos;
  }

  ZSTD_DCtx* context_;
  bool has_begun_ = false, is_in_frame_ = false;
};

// The first bytes of files that are packed.
struct packing {
  std::string_view magic;
  std::string_view by;
};
constexpr std::string_view gzip_magic = "\x1f\x8b", zstd_magic = "\x28\xb5\x2f\xfd",
                           skippable_magic = "\x2a\x4d\x18";  // behind 0x50 to 0x5f
constexpr std::array<packing, 3> others{
    {{{"\xfd\x37zXZ\0", 6}, "xz"}, {"BZh", "bzip2"}, {"\x04\x22\x4d\x18", "lz4"}}};
constexpr std::size_t magic_bytes = 10;

bool is_bzip2(std::string_view seen) noexcept {
  return seen.size() == magic_bytes && seen.starts_with("BZh") && seen[3] >= '1' &&
         seen[3] <= '9' && seen.substr(4) == "\x31\x41\x59\x26\x53\x59";
}

}  // namespace

std::unique_ptr<byte_source> unzstd(std::unique_ptr<byte_source> packed,
                                    const unpack_limits& limits) {
  expects(limits.ratio_max > 0, "what is unpacked may be as large as what is packed");
  return std::make_unique<zstd_source>(std::move(packed), limits);
}

result<std::unique_ptr<byte_source>> unpack(std::unique_ptr<byte_source> source,
                                            const unpack_limits& limits) {
  std::vector<std::byte> beginning(magic_bytes);
  const auto got = read_full(*source, beginning);
  if (!got) return got.error();
  beginning.resize(*got);
  const std::string seen(reinterpret_cast<const char*>(beginning.data()), *got);
  for (const auto& o : others)
    if (o.by == "bzip2" ? is_bzip2(seen) : seen.starts_with(o.magic))
      return error(error_code::usage,
                   fmt::format("{}: {} packed it, which is not unpacked here (gzip and zstd are), "
                               "at byte 0",
                               source->name(), o.by));
  std::unique_ptr<byte_source> whole =
      std::make_unique<looked_at_source>(std::move(beginning), std::move(source));
  if (seen.starts_with(gzip_magic)) return gunzip(std::move(whole), limits);
  if (seen.starts_with(zstd_magic) ||
      (seen.size() >= 4 && (seen[0] & '\xf0') == '\x50' && seen.substr(1, 3) == skippable_magic))
    return unzstd(std::move(whole), limits);
  return whole;
}

result<std::unique_ptr<byte_source>> open_any(const std::string& path,
                                              const unpack_limits& limits) {
  auto file = open_file(path);
  if (!file) return file;
  return unpack(std::move(*file), limits);
}

}  // namespace troupe
