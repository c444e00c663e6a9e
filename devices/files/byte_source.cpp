#include "troupe/devices/files/byte_source.hpp"

#include "troupe/devices/files/unpacking_source.hpp"
#include "troupe/devices/files/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace troupe {
namespace {

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

class gzip_source final : public host::unpacking_source {
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
    const auto step = std::max(piece_bytes, have / 2);
    all.resize(have +
               static_cast<std::size_t>(std::min<std::uint64_t>(step - 1, bytes_max - have) + 1));
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
