#include "troupe/devices/files/byte_source.hpp"

#include "troupe/devices/files/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t packed_buffer_bytes = std::size_t{1} << 17;

class descriptor_source final : public byte_source {
 public:
  descriptor_source(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}

  result<std::size_t> read(std::span<std::byte> into) override {
    for (;;) {
      // Linux reads 2 GiB at most.
      const auto got =
          ::read(fd_, into.data(), std::min<std::size_t>(into.size(), std::size_t{1} << 30));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        return error(error_code::failed, fmt::format("{}: cannot read on at byte {}: {}", name_,
                                                     position_, std::strerror(errno)));
      position_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    }
  }
  std::uint64_t position() const noexcept override { return position_; }
  std::string_view name() const noexcept override { return name_; }

 private:
  int fd_;
  std::string name_;
  std::uint64_t position_ = 0;
};

class opened_file final : public byte_source {
 public:
  opened_file(host::descriptor file, const std::string& path)
      : file_(std::move(file)), source_(file_.get(), path) {}
  result<std::size_t> read(std::span<std::byte> into) override { return source_.read(into); }
  std::uint64_t position() const noexcept override { return source_.position(); }
  std::string_view name() const noexcept override { return source_.name(); }

 private:
  host::descriptor file_;
  descriptor_source source_;
};

class memory_source final : public byte_source {
 public:
  memory_source(std::span<const std::byte> bytes, std::string name, std::size_t piece_bytes_max)
      : rest_(bytes), name_(std::move(name)), piece_bytes_max_(piece_bytes_max) {}

  result<std::size_t> read(std::span<std::byte> into) override {
    const auto n = std::min({into.size(), rest_.size(), piece_bytes_max_});
    std::copy_n(rest_.begin(), n, into.begin());
    rest_ = rest_.subspan(n);
    position_ += n;
    return n;
  }
  std::uint64_t position() const noexcept override { return position_; }
  std::string_view name() const noexcept override { return name_; }

 private:
  std::span<const std::byte> rest_;
  std::string name_;
  std::size_t piece_bytes_max_;
  std::uint64_t position_ = 0;
};

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

// What both formats have in common: a buffer of packed bytes, limits, and an error that stays.
class unpacking_source : public byte_source {
 public:
  unpacking_source(std::unique_ptr<byte_source> packed, const unpack_limits& limits)
      : packed_(std::move(packed)), limits_(limits), buffer_(packed_buffer_bytes) {}

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

class gzip_source final : public unpacking_source {
 public:
  gzip_source(std::unique_ptr<byte_source> packed, const unpack_limits& limits)
      : unpacking_source(std::move(packed), limits) {
    is_ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;  // 16: gzip only
  }
  ~gzip_source() override { inflateEnd(&stream_); }
  gzip_source(const gzip_source&) = delete;
  gzip_source& operator=(const gzip_source&) = delete;

 private:
  enum class place : std::uint8_t { at_start, in_member, behind_member };

  result<std::size_t> more(std::span<std::byte> into) override {
    if (!is_ready_) return error(error_code::failed, fmt::format("{}: zlib has no memory", name()));
    const auto has_bytes = fill();
    if (!has_bytes) return has_bytes.error();
    if (!*has_bytes) {
      if (place_ == place::behind_member) {
        end();
        return std::size_t{0};
      }
      // Of what zlib has taken in, something may be left.
      const auto last = inflate_some(into);
      if (!last || *last > 0) return last;
      return bad("the gzip data ends early: the file is cut");
    }
    if (place_ == place::behind_member) {
      const auto packed = rest();
      const auto padding =
          std::ranges::find_if(packed, [](std::byte b) { return b != std::byte{}; });
      consume(static_cast<std::size_t>(padding - packed.begin()));
      if (padding == packed.end()) return std::size_t{0};
      if (*padding != std::byte{0x1f})
        return bad("neither zeros nor another member follow the gzip data");
      if (inflateReset(&stream_) != Z_OK) return bad("zlib does not begin anew");
    }
    place_ = place::in_member;
    return inflate_some(into);
  }

  result<std::size_t> inflate_some(std::span<std::byte> into) {
    const auto packed = rest();
    const auto room = std::min(into.size(), std::size_t{1} << 30);  // zlib counts in 32 bits
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    consume(packed.size() - stream_.avail_in);
    const auto made = room - stream_.avail_out;
    if (code == Z_STREAM_END)
      place_ = place::behind_member;
    else if (code != Z_OK && code != Z_BUF_ERROR && made == 0)
      return bad(fmt::format("the gzip data is damaged ({})",
                             stream_.msg != nullptr ? stream_.msg : "zlib error"));
    // What was made before the damage is given first: zlib says the same again at the next call.
    return made;
  }

  z_stream stream_{};
  bool is_ready_ = false;
  place place_ = place::at_start;
};

class zstd_source final : public unpacking_source {
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

result<std::unique_ptr<byte_source>> open_file(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for somebody to write.
  host::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0)
    return error(errno == ENOENT ? error_code::not_found : error_code::usage,
                 fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  if (!S_ISREG(info.st_mode))
    return error(error_code::usage, fmt::format("{} is not a regular file", path));
  return std::unique_ptr<byte_source>(std::make_unique<opened_file>(std::move(file), path));
}

std::unique_ptr<byte_source> read_descriptor(int fd, std::string name) {
  return std::make_unique<descriptor_source>(fd, std::move(name));
}

std::unique_ptr<byte_source> read_memory(std::span<const std::byte> bytes, std::string name,
                                         std::size_t piece_bytes_max) {
  expects(piece_bytes_max > 0, "a piece has a byte");
  return std::make_unique<memory_source>(bytes, std::move(name), piece_bytes_max);
}

std::unique_ptr<byte_source> gunzip(std::unique_ptr<byte_source> packed,
                                    const unpack_limits& limits) {
  expects(limits.ratio_max > 0, "what is unpacked may be as large as what is packed");
  return std::make_unique<gzip_source>(std::move(packed), limits);
}

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

result<std::size_t> read_full(byte_source& source, std::span<std::byte> into) {
  std::size_t have = 0;
  while (have < into.size()) {
    auto got = source.read(into.subspan(have));
    if (!got) return got;
    if (*got == 0) break;
    have += *got;
  }
  return have;
}

result<std::vector<std::byte>> read_all(byte_source& source, std::uint64_t bytes_max) {
  constexpr std::size_t piece_bytes = std::size_t{1} << 16;
  std::vector<std::byte> all;
  for (;;) {
    const auto have = all.size();
    // One byte more than is allowed, to see it.
    all.resize(have + static_cast<std::size_t>(std::min<std::uint64_t>(
                          std::max(piece_bytes, have / 2), bytes_max - have + 1)));
    const auto got = read_full(source, std::span(all).subspan(have));
    if (!got) return got.error();
    const bool is_end = have + *got < all.size();
    all.resize(have + *got);
    if (all.size() > bytes_max)
      return error(error_code::usage, fmt::format("{}: more than {} bytes, at byte {}",
                                                  source.name(), bytes_max, source.position()));
    if (is_end) return all;
  }
}

}  // namespace troupe
