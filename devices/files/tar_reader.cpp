#include "troupe/devices/files/tar_reader.hpp"

#include "troupe/devices/files/file_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t tar_block_bytes = 512;
// Of names and pax headers: paths have 4 KiB at most.
constexpr std::uint64_t tar_header_bytes_max = std::uint64_t{1} << 20;
// Larger sizes would not be counted with what fills their last block.
constexpr std::uint64_t tar_size_max = std::uint64_t{1} << 62;

using tar_block = std::array<std::byte, tar_block_bytes>;

// A field of text, up to its first zero.
std::string_view tar_text(const tar_block& b, std::size_t at, std::size_t size) {
  const std::string_view field(reinterpret_cast<const char*>(b.data()) + at, size);
  return field.substr(0, field.find('\0'));
}

// Octal digits with spaces around, or base 256 behind a byte 0x80. nullopt: neither, or too large.
std::optional<std::uint64_t> tar_number(const tar_block& b, std::size_t at, std::size_t size) {
  if (b[at] == std::byte{0x80}) {
    std::uint64_t n = 0;
    for (std::size_t i = at + 1; i < at + size; ++i) {
      if (n > tar_size_max >> 8U) return std::nullopt;
      n = n << 8U | std::to_integer<std::uint64_t>(b[i]);
    }
    return n;
  }
  auto digits = tar_text(b, at, size);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  digits = digits.substr(0, digits.find(' '));
  if (digits.empty()) return 0;
  std::uint64_t n = 0;
  const auto [end, why] = std::from_chars(digits.data(), digits.data() + digits.size(), n, 8);
  if (why != std::errc() || end != digits.data() + digits.size() || n > tar_size_max)
    return std::nullopt;
  return n;
}

// Signed, too: some wrote it so.
bool has_tar_checksum(const tar_block& b) {
  constexpr std::size_t at = 148, size = 8;
  std::int64_t plain = 0, with_sign = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const auto byte =
        i >= at && i < at + size ? std::uint8_t{' '} : std::to_integer<std::uint8_t>(b[i]);
    plain += byte;
    with_sign += static_cast<std::int8_t>(byte);
  }
  const auto said = tar_number(b, at, size);
  return said && (static_cast<std::int64_t>(*said) == plain ||
                  static_cast<std::int64_t>(*said) == with_sign);
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

std::uint64_t with_filling(std::uint64_t bytes) {
  return (bytes + tar_block_bytes - 1) / tar_block_bytes * tar_block_bytes;
}

// Why it would lie outside of a folder in which the archive is unpacked; empty: it would not.
std::string_view leads_out(std::string_view name) {
  if (name.empty()) return "has no name";
  if (name.front() == '/') return "has an absolute name";
  if (name.find('\0') != std::string_view::npos) return "has a zero in its name";
  while (!name.empty()) {
    const auto part = name.substr(0, name.find('/'));
    if (part == "..") return "has a name that leads out of its folder";
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return {};
}

std::string_view without_here(std::string_view name) {
  while (name.starts_with("./")) {
    name.remove_prefix(2);
    name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
  }
  return name;
}

// What an entry is that is no file.
std::string kind_of(char type) {
  switch (type) {
    case '1': return "is a hard link";
    case '2': return "is a symbolic link";
    case '3':
    case '4': return "is a device";
    case '6': return "is a pipe";
    default: return fmt::format("is of type {}, which is not read", host::quoted({&type, 1}));
  }
}

}  // namespace

struct tar_reader::header {
  std::uint64_t offset = 0, size = 0;
  std::string name;
  char type = '0';
};

tar_reader::tar_reader(std::unique_ptr<byte_source> source, const tar_options& options)
    : source_(std::move(source)), options_(options), scratch_(std::size_t{1} << 16) {}

error tar_reader::bad(const header& h, std::string_view what) const {
  return {error_code::usage,
          fmt::format("{}: entry {} {}, at byte {}", name(), host::quoted(h.name), what, h.offset)};
}

// nullopt: a block of zeros, where the archive ends.
result<std::optional<tar_reader::header>> tar_reader::read_header() {
  const auto offset = source_->position();
  const auto refuse = [&](std::string_view what) {
    return error(error_code::usage, fmt::format("{}: {}, at byte {}", name(), what, offset));
  };
  tar_block b;
  const auto got = read_full(*source_, b);
  if (!got) return got.error();
  if (*got < b.size())
    return refuse(*got == 0 && offset > 0
                      ? "the archive has no end: the file is cut"
                      : "a header ends early: the file is cut, or no tar archive");
  if (is_zero(b)) return std::optional<header>();
  if (!has_tar_checksum(b))
    return refuse("a header's checksum is wrong: the file is damaged, or no tar archive");
  header h{.offset = offset, .size = 0, .name = {}, .type = static_cast<char>(b[156])};
  h.name = tar_text(b, 0, 100);
  // Between the name and its folder POSIX has a slash; GNU keeps other things there.
  if (tar_text(b, 257, 6) == "ustar")
    if (const auto folder = tar_text(b, 345, 155); !folder.empty())
      h.name = fmt::format("{}/{}", folder, h.name);
  const auto size = tar_number(b, 124, 12);
  if (!size) return bad(h, "has a size that is no number, or too large");
  h.size = *size;
  return std::optional(std::move(h));
}

result<void> tar_reader::skip(const header& h, std::uint64_t bytes) {
  while (bytes > 0) {
    const auto got = source_->read(std::span(scratch_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes, scratch_.size()))));
    if (!got) return got.error();
    if (*got == 0) return bad(h, "is cut");
    bytes -= *got;
  }
  return {};
}

result<std::vector<std::byte>> tar_reader::read_data(const header& h, std::uint64_t bytes_max) {
  if (h.size > bytes_max)
    return bad(h, fmt::format("has {} bytes, and {} are allowed", h.size, bytes_max));
  std::vector<std::byte> bytes;
  const auto size = static_cast<std::size_t>(h.size);
  // Twice as many at a time as were there (TAR-3).
  for (std::size_t have = 0; have < size;) {
    bytes.resize(std::min(size, std::max(std::size_t{1} << 16, 2 * have)));
    const auto got = read_full(*source_, std::span(bytes).subspan(have));
    if (!got) return got.error();
    have += *got;
    if (have < bytes.size())
      return bad(h, fmt::format("has {} bytes, and {} are there: it is cut", size, have));
  }
  if (auto ok = skip(h, with_filling(h.size) - h.size); !ok) return std::move(ok.error());
  return bytes;
}

// Records "length key=value\n"; the length counts itself.
result<void> tar_reader::take_pax(const header& h, said& out) {
  const auto data = read_data(h, tar_header_bytes_max);
  if (!data) return data.error();
  std::string_view rest(reinterpret_cast<const char*>(data->data()), data->size());
  const auto malformed = [&] { return bad(h, "is a pax header that is malformed"); };
  while (!rest.empty()) {
    std::size_t length = 0;
    const auto [behind, why] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(behind - rest.data());
    if (why != std::errc() || length > rest.size() || length < digits + 3 || *behind != ' ' ||
        rest[length - 1] != '\n')
      return malformed();
    const auto record = rest.substr(digits + 1, length - digits - 2);
    rest.remove_prefix(length);
    const auto equals = record.find('=');
    if (equals == std::string_view::npos) return malformed();
    const auto key = record.substr(0, equals), value = record.substr(equals + 1);
    out.is_sparse = out.is_sparse || key.starts_with("GNU.sparse.");
    if (h.type == 'g' && (key == "path" || key == "size"))
      return bad(h, fmt::format("is a pax header that sets the {} of all entries", key));
    if (key == "path") out.name = value;
    if (key != "size") continue;
    std::uint64_t size = 0;
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (code != std::errc() || end != value.data() + value.size() || size > tar_size_max)
      return bad(h, "is a pax header with a size that is no number, or too large");
    out.size = size;
  }
  return {};
}

// Reads to the source's end, so that it checks what it has to check there (BS-3).
result<void> tar_reader::check_end() {
  for (;;) {
    const auto at = source_->position();
    const auto got = source_->read(scratch_);
    if (!got) return got.error();
    if (*got == 0) return {};
    const auto bytes = std::span<const std::byte>(scratch_).first(*got);
    if (const auto other =
            std::ranges::find_if(bytes, [](std::byte b) { return b != std::byte{}; });
        other != bytes.end())
      return error(error_code::usage,
                   fmt::format("{}: the archive ends, and something follows, at byte {}", name(),
                               at + static_cast<std::uint64_t>(other - bytes.begin())));
  }
}

result<std::optional<tar_entry>> tar_reader::find_next() {
  said in_front;
  std::optional<header> said_by;  // the header in front of an entry that is to come
  for (;;) {
    auto got = read_header();
    if (!got) return std::move(got.error());
    if (!*got) {
      if (said_by) return bad(*said_by, "is a header for an entry that does not follow");
      is_over_ = true;
      if (auto ok = check_end(); !ok) return std::move(ok.error());
      return std::optional<tar_entry>();
    }
    auto& h = **got;
    if (h.type == 'x' || h.type == 'g') {
      if (auto ok = take_pax(h, in_front); !ok) return std::move(ok.error());
      if (h.type == 'x') said_by = h;
      continue;
    }
    if (h.type == 'L' || h.type == 'K') {
      const auto data = read_data(h, tar_header_bytes_max);
      if (!data) return data.error();
      const std::string_view text(reinterpret_cast<const char*>(data->data()), data->size());
      if (h.type == 'L') in_front.name = text.substr(0, text.find('\0'));
      said_by = h;
      continue;
    }
    const auto now = std::exchange(in_front, {});
    said_by.reset();
    h.name = without_here(now.name ? *now.name : h.name);
    if (now.size) h.size = *now.size;
    if (h.type == 'S' || now.is_sparse) return bad(h, "is a sparse file, which is not read");
    if (h.type == 'M' || h.type == 'V')
      return bad(h, "belongs to an archive of several volumes, which is not read");
    const bool is_file = h.type == '0' || h.type == '\0' || h.type == '7';
    // Folders and what has no contents say sizes that mean something else.
    const auto filled = h.type >= '1' && h.type <= '6' ? 0 : with_filling(h.size);
    const bool is_folder =
        h.type == '5' || h.type == 'D' || (h.type == '\0' && h.name.ends_with('/'));
    const std::string refused = is_folder ? ""
                                : is_file ? std::string(leads_out(h.name))
                                          : kind_of(h.type);
    if (!refused.empty() && !options_.skips_others) return bad(h, refused);
    if (is_folder || !refused.empty()) {
      if (auto ok = skip(h, filled); !ok) return std::move(ok.error());
      continue;
    }
    auto bytes = read_data(h, options_.entry_bytes_max);
    if (!bytes) return std::move(bytes.error());
    return std::optional(tar_entry{
        .name = std::move(h.name), .size = h.size, .offset = h.offset, .bytes = std::move(*bytes)});
  }
}

result<std::optional<tar_entry>> tar_reader::next() {
  if (failed_) return *failed_;
  if (is_over_) return std::optional<tar_entry>();
  auto got = find_next();
  if (!got) failed_ = got.error();
  return got;
}

tar_sample_reader::tar_sample_reader(tar_reader files, const tar_sample_limits& limits)
    : files_(std::move(files)), limits_(limits) {}

result<std::optional<tar_sample>> tar_sample_reader::next() {
  if (failed_) return *failed_;
  const auto fail = [&](error e) {
    failed_ = std::move(e);
    return *failed_;
  };
  std::optional<tar_sample> sample;
  std::uint64_t bytes = 0;
  for (;;) {
    if (!ahead_) {
      auto got = files_.next();
      if (!got) return fail(std::move(got.error()));
      if (!*got) return sample;
      ahead_ = std::move(*got);
    }
    const std::string_view name = ahead_->name;
    const auto slash = name.rfind('/');
    const auto base = slash == std::string_view::npos ? 0 : slash + 1;
    const auto dot = name.find('.', base);
    if (dot == std::string_view::npos || dot == base) {
      ahead_.reset();
      continue;
    }
    const auto key = name.substr(0, dot), part = name.substr(dot + 1);
    if (sample && sample->key != key) return sample;
    if (!sample) sample = tar_sample{.key = std::string(key), .parts = {}};
    const auto refuse = [&](std::string_view what) {
      return fail(
          error(error_code::usage, fmt::format("{}: sample {} {}, at byte {}", files_.name(),
                                               host::quoted(key), what, ahead_->offset)));
    };
    if (std::ranges::any_of(sample->parts, [&](const auto& p) { return p.first == part; }))
      return refuse(fmt::format("has a part {} twice", host::quoted(part)));
    if (sample->parts.size() == limits_.parts_max)
      return refuse(fmt::format("has more than {} parts", limits_.parts_max));
    bytes += ahead_->size;
    if (bytes > limits_.sample_bytes_max)
      return refuse(fmt::format("has more than {} bytes", limits_.sample_bytes_max));
    sample->parts.emplace_back(part, std::move(ahead_->bytes));
    ahead_.reset();
  }
}

}  // namespace troupe
