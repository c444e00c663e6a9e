#include "troupe/devices/files/npz_file.hpp"

#include "troupe/devices/files/file_text.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/files/whole_file.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>

namespace troupe {
namespace {

constexpr std::uint64_t npz_bytes_max = std::uint64_t{1} << 36;
constexpr std::string_view npy_ending = ".npy";
// Deflate packs at most 258 bytes into 2 bits (zlib's technical notes say 1032:1).
constexpr std::uint64_t deflate_ratio_max = 1032;
constexpr std::uint64_t all_16 = 0xffff, all_32 = 0xffffffff;  // "see the zip64 field"
constexpr std::size_t directory_end_bytes = 22, wide_end_bytes = 56, locator_bytes = 20,
                      entry_bytes = 46, local_bytes = 30;
constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                        wide_end_mark = 0x06064b50, locator_mark = 0x07064b50;

// Little-endian numbers; whoever calls knows that they are there.
std::uint64_t number_at(std::span<const std::byte> bytes, std::uint64_t at, std::size_t size) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < size; ++i)
    n |= std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(at) + i]) << 8 * i;
  return n;
}

std::uint32_t checksum(std::uint32_t before, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

struct zip_entry {
  std::string name;
  std::uint64_t method = 0, flags = 0, checksum = 0, packed = 0, size = 0;
  std::uint64_t header = 0;          // where its own header begins
  std::uint64_t begin = 0, end = 0;  // of its packed bytes
};

std::string method_of(std::uint64_t method) {
  switch (method) {
    case 9: return "deflate64";
    case 12: return "bzip2";
    case 14: return "lzma";
    case 93: return "zstd";
    case 95: return "xz";
    default: return fmt::format("method {}", method);
  }
}

class zip_reader {
 public:
  zip_reader(std::span<const std::byte> bytes, std::string_view name)
      : bytes_(bytes), name_(name) {}

  // In the order of the directory, all checked (NZ-1).
  result<std::vector<zip_entry>> entries() {
    if (auto ok = find_directory(); !ok) return std::move(ok.error());
    std::vector<zip_entry> all;
    auto at = directory_;
    while (at < directory_end_) {
      auto e = read_entry(at);
      if (!e) return std::move(e.error());
      all.push_back(std::move(*e));
    }
    if (all.size() != count_)
      return bad(fmt::format("the directory says {} entries and has {}", count_, all.size()),
                 directory_);
    std::vector<const zip_entry*> order;
    for (auto& e : all) {
      if (auto ok = find_data(e); !ok) return std::move(ok.error());
      order.push_back(&e);
    }
    std::ranges::sort(order, {}, &zip_entry::header);
    for (std::size_t i = 1; i < order.size(); ++i)
      if (order[i]->header < order[i - 1]->end)
        return bad(fmt::format("entries {} and {} overlap", host::quoted(order[i - 1]->name),
                               host::quoted(order[i]->name)),
                   order[i]->header);
    return all;
  }

 private:
  error bad(std::string_view what, std::uint64_t at) const {
    return {error_code::usage,
            fmt::format("{}: not a .npz file that can be read: {}, at byte {}", name_, what, at)};
  }
  error bad_entry(const zip_entry& e, std::string_view what, std::uint64_t at) const {
    return bad(fmt::format("entry {} {}", host::quoted(e.name), what), at);
  }
  bool has(std::uint64_t at, std::uint64_t size) const {
    return at <= bytes_.size() && size <= bytes_.size() - at;
  }

  // At the end of the file, with a comment behind it that has the length that it says.
  std::optional<std::uint64_t> find_end() const {
    if (bytes_.size() < directory_end_bytes) return std::nullopt;
    const auto last = bytes_.size() - directory_end_bytes;
    for (auto at = last;; --at) {
      if (number_at(bytes_, at, 4) == end_mark && number_at(bytes_, at + 20, 2) == last - at)
        return at;
      if (at == 0 || last - at == all_16) return std::nullopt;
    }
  }

  result<void> find_directory() {
    const auto end = find_end();
    if (!end)
      return bad("no zip archive ends here: the file is cut, or something else", bytes_.size());
    auto disks = number_at(bytes_, *end + 4, 4), on_this = number_at(bytes_, *end + 8, 2),
         size = number_at(bytes_, *end + 12, 4);
    count_ = number_at(bytes_, *end + 10, 2);
    directory_ = number_at(bytes_, *end + 16, 4);
    directory_end_ = *end;
    if (*end >= locator_bytes && number_at(bytes_, *end - locator_bytes, 4) == locator_mark) {
      const auto at = number_at(bytes_, *end - locator_bytes + 8, 8);
      if (!has(at, wide_end_bytes) || at > *end - locator_bytes ||
          number_at(bytes_, at, 4) != wide_end_mark)
        return bad("its zip64 end is not where it says", *end - locator_bytes);
      disks = number_at(bytes_, at + 16, 8);
      on_this = number_at(bytes_, at + 24, 8);
      count_ = number_at(bytes_, at + 32, 8);
      size = number_at(bytes_, at + 40, 8);
      directory_ = number_at(bytes_, at + 48, 8);
      directory_end_ = at;
    }
    if (disks != 0 || on_this != count_) return bad("it is one of several volumes", *end);
    if (directory_ > directory_end_ || size != directory_end_ - directory_)
      return bad("its directory is not where it says: something stands in front, or is cut", *end);
    return {};
  }

  result<zip_entry> read_entry(std::uint64_t& at) const {
    zip_entry e;
    if (directory_end_ - at < entry_bytes || number_at(bytes_, at, 4) != entry_mark)
      return bad("the directory is damaged", at);
    e.flags = number_at(bytes_, at + 8, 2);
    e.method = number_at(bytes_, at + 10, 2);
    e.checksum = number_at(bytes_, at + 16, 4);
    e.packed = number_at(bytes_, at + 20, 4);
    e.size = number_at(bytes_, at + 24, 4);
    e.header = number_at(bytes_, at + 42, 4);
    const auto name_size = number_at(bytes_, at + 28, 2), extra = number_at(bytes_, at + 30, 2),
               comment = number_at(bytes_, at + 32, 2);
    if (name_size + extra + comment > directory_end_ - at - entry_bytes)
      return bad("the directory is damaged", at);
    e.name = text_at(at + entry_bytes, name_size);
    if (auto ok = read_wide_sizes(e, at + entry_bytes + name_size, extra); !ok)
      return std::move(ok.error());
    at += entry_bytes + name_size + extra + comment;
    return e;
  }

  std::string text_at(std::uint64_t at, std::uint64_t size) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(size)};
  }

  // The zip64 field has those of the three that were too large, in this order.
  result<void> read_wide_sizes(zip_entry& e, std::uint64_t at, std::uint64_t bytes) const {
    const auto end = at + bytes;
    std::vector<std::uint64_t*> wide;
    for (auto* n : {&e.size, &e.packed, &e.header})
      if (*n == all_32) wide.push_back(n);
    if (wide.empty()) return {};
    while (end - at >= 4) {
      const auto id = number_at(bytes_, at, 2), size = number_at(bytes_, at + 2, 2);
      if (size > end - at - 4) break;
      if (id == 1) {
        if (size < 8 * wide.size()) break;
        for (std::size_t i = 0; i < wide.size(); ++i)
          *wide[i] = number_at(bytes_, at + 4 + 8 * i, 8);
        return {};
      }
      at += 4 + size;
    }
    return bad_entry(e, "says no sizes", at);
  }

  result<void> find_data(zip_entry& e) const {
    if (e.header > directory_ || directory_ - e.header < local_bytes ||
        number_at(bytes_, e.header, 4) != local_mark)
      return bad_entry(e, "is not where the directory says", e.header);
    const auto name_size = number_at(bytes_, e.header + 26, 2),
               extra = number_at(bytes_, e.header + 28, 2);
    const auto room = directory_ - e.header - local_bytes;
    if (name_size + extra > room || e.packed > room - name_size - extra)
      return bad_entry(e, "is cut", e.header);
    if (text_at(e.header + local_bytes, name_size) != e.name)
      return bad_entry(e, "has another name at its data", e.header);
    e.begin = e.header + local_bytes + name_size + extra;
    e.end = e.begin + e.packed;
    return {};
  }

  std::span<const std::byte> bytes_;
  std::string_view name_;
  std::uint64_t directory_ = 0, directory_end_ = 0, count_ = 0;
};

// Exactly e.size bytes of raw deflate; nullopt: it is none, or more, or fewer.
std::optional<std::vector<std::byte>> inflate_entry(std::span<const std::byte> packed,
                                                    std::size_t size) {
  z_stream stream{};
  if (inflateInit2(&stream, -15) != Z_OK) return std::nullopt;
  std::vector<std::byte> out;
  constexpr std::size_t piece = std::size_t{1} << 30;  // zlib counts in 32 bits
  std::size_t used = 0, made = 0;
  int code = Z_OK;
  while (code == Z_OK && made <= size) {
    // Memory grows with what comes (NZ-2); one byte more than is said, to see whether there is
    // more.
    if (made == out.size())
      out.resize(std::min(size + 1, std::max(std::size_t{1} << 16, 2 * made)));
    const auto in = std::min(packed.size() - used, piece),
               room = std::min(out.size() - made, piece);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + used));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = static_cast<uInt>(room);
    code = inflate(&stream, Z_NO_FLUSH);
    used += in - stream.avail_in;
    made += room - stream.avail_out;
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END || made != size || used != packed.size()) return std::nullopt;
  out.resize(size);
  return out;
}

result<tensor> read_array(std::span<const std::byte> bytes, const zip_entry& e,
                          std::string_view name) {
  const auto bad = [&](std::string_view what) {
    return error(error_code::usage, fmt::format("{}: entry {} {}, at byte {}", name,
                                                host::quoted(e.name), what, e.header));
  };
  const auto packed =
      bytes.subspan(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.packed));
  const bool is_deflated = e.method == 8;
  std::vector<std::byte> inflated;
  if (is_deflated) {
    auto all = inflate_entry(packed, static_cast<std::size_t>(e.size));
    if (!all) return bad(fmt::format("is damaged: its deflated data are not {} bytes", e.size));
    inflated = std::move(*all);
  }
  const auto data = is_deflated ? std::span<const std::byte>(inflated) : packed;
  if (checksum(0, data) != e.checksum) return bad("is damaged: its checksum is wrong");
  auto t = parse_npy(data,
                     fmt::format("{}: entry {}, at byte {}", name, host::quoted(e.name), e.header));
  return t;
}

// What can be said of all entries before one is unpacked.
result<void> check_entries(const std::vector<zip_entry>& entries, std::string_view name,
                           const unpack_limits& limits) {
  std::uint64_t size = 0, packed = 0;
  std::unordered_set<std::string_view> names;
  for (const auto& e : entries) {
    const auto bad = [&](std::string_view what) {
      return error(error_code::usage, fmt::format("{}: entry {} {}, at byte {}", name,
                                                  host::quoted(e.name), what, e.header));
    };
    if ((e.flags & 1U) != 0) return bad("is encrypted");
    if (e.method != 0 && e.method != 8)
      return bad(
          fmt::format("is packed by {}, which is not read (deflate is)", method_of(e.method)));
    if (!std::string_view(e.name).ends_with(npy_ending)) return bad("is no .npy file");
    if (!names.insert(e.name).second) return bad("is there twice");
    if (e.method == 0 ? e.size != e.packed : e.size / deflate_ratio_max > e.packed)
      return bad(fmt::format("says {} bytes, which its {} cannot hold", e.size, e.packed));
    size += e.size;
    packed += e.packed;
  }
  if (size > limits.bytes_max && size / limits.ratio_max > packed)
    return error(error_code::usage,
                 fmt::format("{}: unpacks to {} bytes from {}, as bombs do (at most {} times the "
                             "size, or {} bytes), at byte 0",
                             name, size, packed, limits.ratio_max, limits.bytes_max));
  return {};
}

class zip_text {
 public:
  zip_text& add(std::uint64_t n, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) text_ += static_cast<char>(n >> 8 * i & 0xffU);
    return *this;
  }
  zip_text& add(std::string_view s) {
    text_ += s;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// An archive as it will be written, piece by piece: heads_ of entries between elements_.
struct laid_out_npz {
  std::vector<std::string> heads;
  std::vector<tensor> elements;
  std::string directory;

  std::vector<std::span<const std::byte>> pieces() const {
    std::vector<std::span<const std::byte>> all;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      all.push_back(std::as_bytes(std::span(heads[i])));
      all.push_back(elements[i].bytes());
    }
    all.push_back(std::as_bytes(std::span(directory)));
    return all;
  }
};

// The fields that both headers of an entry share, up to the length of its name. The date is the
// first one that the format knows, so that equal tensors are equal bytes.
void add_common(zip_text& to, std::uint64_t version, bool is_ascii, std::uint64_t checksum,
                std::uint64_t size, std::uint64_t name_size) {
  const auto shown = std::min(size, all_32);
  to.add(version, 2).add(is_ascii ? 0 : 0x800, 2).add(0, 2);  // 0x800: the name is UTF-8
  to.add(0, 2).add(0x21, 2).add(checksum, 4).add(shown, 4).add(shown, 4).add(name_size, 2);
}

result<laid_out_npz> lay_out_npz(std::span<const named_array> arrays, std::string_view file) {
  constexpr std::size_t name_bytes_max = 60'000;
  laid_out_npz out;
  zip_text directory;
  std::unordered_set<std::string_view> names;
  std::uint64_t at = 0;
  for (const auto& [given, t] : arrays) {
    if (given.empty() || given.size() > name_bytes_max || given.find('\0') != std::string::npos)
      return error(error_code::usage,
                   fmt::format("{}: an array cannot be called {}", file, host::quoted(given)));
    if (!names.insert(given).second)
      return error(error_code::usage,
                   fmt::format("{}: two arrays are called {}", file, host::quoted(given)));
    auto parts = npy_parts_of(t);
    const auto head = std::as_bytes(std::span(parts.head));
    const auto sum = checksum(checksum(0, head), parts.elements.bytes());
    const std::uint64_t size = parts.head.size() + parts.elements.size_bytes();
    const auto name = given + std::string(npy_ending);
    const bool is_ascii = std::ranges::all_of(name, [](char c) { return (c & 0x80) == 0; });
    const bool is_wide = size >= all_32, is_far = at >= all_32;
    zip_text local;
    local.add(local_mark, 4);
    add_common(local, is_wide ? 45 : 20, is_ascii, sum, size, name.size());
    local.add(is_wide ? 20 : 0, 2).add(name);
    if (is_wide) local.add(1, 2).add(16, 2).add(size, 8).add(size, 8);
    directory.add(entry_mark, 4).add(45, 2);
    add_common(directory, is_wide || is_far ? 45 : 20, is_ascii, sum, size, name.size());
    const auto wide_bytes = (is_wide ? 16U : 0U) + (is_far ? 8U : 0U);
    directory.add(wide_bytes == 0 ? 0 : wide_bytes + 4, 2).add(0, 2).add(0, 2).add(0, 2).add(0, 4);
    directory.add(std::min(at, all_32), 4).add(name);
    if (wide_bytes > 0) directory.add(1, 2).add(wide_bytes, 2);
    if (is_wide) directory.add(size, 8).add(size, 8);
    if (is_far) directory.add(at, 8);
    out.heads.push_back(local.take() + parts.head);
    at += out.heads.back().size() + parts.elements.size_bytes();
    out.elements.push_back(std::move(parts.elements));
  }
  out.directory = directory.take();
  const auto size = out.directory.size();
  zip_text end;
  if (arrays.size() >= all_16 || at >= all_32 || size >= all_32) {
    end.add(wide_end_mark, 4).add(wide_end_bytes - 12, 8).add(45, 2).add(45, 2).add(0, 8);
    end.add(arrays.size(), 8).add(arrays.size(), 8).add(size, 8).add(at, 8);
    end.add(locator_mark, 4).add(0, 4).add(at + size, 8).add(1, 4);
  }
  const auto count = std::min<std::uint64_t>(arrays.size(), all_16);
  end.add(end_mark, 4).add(0, 4).add(count, 2).add(count, 2);
  end.add(std::min<std::uint64_t>(size, all_32), 4).add(std::min(at, all_32), 4).add(0, 2);
  out.directory += end.take();
  return out;
}

}  // namespace

result<std::vector<named_array>> parse_npz(std::span<const std::byte> bytes, std::string_view name,
                                           const unpack_limits& limits) {
  auto entries = zip_reader(bytes, name).entries();
  if (!entries) return std::move(entries.error());
  if (auto ok = check_entries(*entries, name, limits); !ok) return std::move(ok.error());
  std::vector<named_array> arrays;
  for (auto& e : *entries) {
    auto t = read_array(bytes, e, name);
    if (!t) return std::move(t.error());
    e.name.resize(e.name.size() - npy_ending.size());
    arrays.emplace_back(std::move(e.name), std::move(*t));
  }
  return arrays;
}

result<std::vector<std::byte>> npz_bytes(std::span<const named_array> arrays,
                                         std::string_view name) {
  const auto laid_out = lay_out_npz(arrays, name);
  if (!laid_out) return laid_out.error();
  std::vector<std::byte> all;
  for (const auto piece : laid_out->pieces()) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

result<std::vector<named_array>> load_npz(const std::string& path, const unpack_limits& limits) {
  const auto bytes = host::read_file(path, npz_bytes_max, "arrays");
  if (!bytes) return bytes.error();
  return parse_npz(*bytes, path, limits);
}

result<void> save_npz(const std::string& path, std::span<const named_array> arrays) {
  const auto laid_out = lay_out_npz(arrays, path);
  if (!laid_out) return laid_out.error();
  return host::replace_file(path, laid_out->pieces());
}

}  // namespace troupe
