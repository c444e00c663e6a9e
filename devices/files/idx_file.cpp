#include "troupe/devices/files/idx_file.hpp"

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/files/whole_file.hpp"
#include "troupe/schema/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

namespace troupe {
namespace {

constexpr std::uint8_t type_u8 = 8;
constexpr std::size_t rank_max = 3;
constexpr std::size_t header_bytes_max = 4 + 4 * rank_max;
// Deflate packs at most 258 bytes into 2 bits (zlib's technical notes say 1032:1).
constexpr std::uint64_t inflate_ratio_max = 1032;
constexpr unpack_limits no_limits{.bytes_max = std::numeric_limits<std::uint64_t>::max()};

error bad(std::string_view name, std::string what) {
  return {error_code::usage, fmt::format("{}: {}", name, what)};
}

struct idx_header {
  std::vector<std::int64_t> sizes;
  std::uint64_t elements = 1;
  std::size_t bytes = 0;  // of the header
};

result<idx_header> parse_header(std::span<const std::byte> bytes, std::size_t rank,
                                std::string_view name) {
  const std::size_t size = 4 + 4 * rank;
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(bytes[i]); };
  if (bytes.size() < 4)
    return bad(name, fmt::format("an IDX file has at least {} bytes, this one {}: it is cut", size,
                                 bytes.size()));
  if (at(0) != 0 || at(1) != 0)
    return bad(
        name,
        fmt::format(
            "an IDX file begins with two zero bytes, this one with {:02x} {:02x}: it is something else",
            at(0), at(1)));
  if (at(2) != type_u8)
    return bad(name,
               fmt::format("expected elements of type u8 (0x08), found type 0x{:02x}", at(2)));
  if (at(3) != rank)
    return bad(name, fmt::format("expected {} ({} dimensions), found {} dimensions",
                                 rank == 3 ? "images" : "labels", rank, at(3)));
  if (bytes.size() < size)
    return bad(name,
               fmt::format("the header has {} bytes, the file {}: it is cut", size, bytes.size()));
  idx_header h{.sizes = {}, .elements = 1, .bytes = size};
  for (std::size_t d = 0; d < rank; ++d) {
    const std::uint64_t n =
        at(4 + 4 * d) << 24U | at(5 + 4 * d) << 16U | at(6 + 4 * d) << 8U | at(7 + 4 * d);
    h.sizes.push_back(static_cast<std::int64_t>(n));
    if (n != 0 && h.elements > idx_bytes_max / n)
      return bad(name,
                 fmt::format("the header declares more than {} bytes of elements", idx_bytes_max));
    h.elements *= n;
  }
  return h;
}

bool is_gzip(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

std::span<std::byte> room_in(std::span<std::uint8_t> elements) {
  return std::as_writable_bytes(elements);
}

result<idx_array> parse_gzip(std::span<const std::byte> bytes, std::size_t rank,
                             std::string_view name) {
  // The sizes in the header are the limit here (IDX-2).
  const auto unpacked = gunzip(read_memory(bytes, std::string(name)), no_limits);
  std::uint8_t beginning[header_bytes_max];
  auto got = read_full(*unpacked, room_in({beginning, 4 + 4 * rank}));
  if (!got) return std::move(got.error());
  auto header = parse_header(std::as_bytes(std::span(beginning, *got)), rank, name);
  if (!header) return std::move(header.error());
  if (header->elements > bytes.size() * inflate_ratio_max)
    return bad(
        name,
        fmt::format(
            "the header declares {} bytes of elements, which {} bytes of gzip cannot hold: the file is cut or wrong",
            header->elements, bytes.size()));
  idx_array array{.sizes = std::move(header->sizes),
                  .elements = std::vector<std::uint8_t>(header->elements)};
  got = read_full(*unpacked, room_in(array.elements));
  if (!got) return std::move(got.error());
  if (*got < array.elements.size())
    return bad(name,
               fmt::format("the header declares {} bytes of elements, the file holds {}: it is cut",
                           array.elements.size(), *got));
  std::uint8_t more = 0;
  got = unpacked->read(room_in({&more, 1}));
  if (!got) return std::move(got.error());
  if (*got != 0)
    return bad(
        name,
        fmt::format("the file holds more than the {} bytes of elements that its header declares",
                    array.elements.size()));
  return array;
}

result<idx_array> parse_plain(std::span<const std::byte> bytes, std::size_t rank,
                              std::string_view name) {
  auto header = parse_header(bytes, rank, name);
  if (!header) return std::move(header.error());
  const auto held = bytes.size() - header->bytes;
  if (held != header->elements)
    return bad(name,
               fmt::format("the header declares {} bytes of elements, the file holds {}: it is {}",
                           header->elements, held, held < header->elements ? "cut" : "too long"));
  idx_array array{.sizes = std::move(header->sizes), .elements = std::vector<std::uint8_t>(held)};
  if (held > 0) std::memcpy(array.elements.data(), bytes.data() + header->bytes, held);
  return array;
}

// The file under its official name, as it is or with ".gz".
result<std::string> find_file(const std::string& folder, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path base(folder);
  if (!fs::is_directory(base, code))
    return error(error_code::not_found,
                 fmt::format("no folder {}: expected one with {} or {}.gz and its companions",
                             folder, name, name));
  for (const auto* ending : {"", ".gz"})
    if (const auto path = base / (name + ending); fs::exists(path, code)) return path.string();
  return error(error_code::not_found,
               fmt::format("the folder {} has neither {} nor {}.gz", folder, name, name));
}

std::string images_name(bool test) {
  return test ? "t10k-images-idx3-ubyte" : "train-images-idx3-ubyte";
}
std::string labels_name(bool test) {
  return test ? "t10k-labels-idx1-ubyte" : "train-labels-idx1-ubyte";
}

result<idx_array> load_file(const std::string& folder, const std::string& file, std::size_t rank) {
  const auto path = find_file(folder, file);
  if (!path) return path.error();
  const auto bytes = host::read_file(*path, idx_bytes_max + header_bytes_max, "IDX file");
  if (!bytes) return bytes.error();
  return parse_idx(*bytes, rank, *path);
}

result<std::vector<std::int64_t>> open_sizes(const std::string& folder, const std::string& file,
                                             std::size_t rank) {
  const auto path = find_file(folder, file);
  if (!path) return path.error();
  // A gzip header may carry a file name; with 4 KiB the first block has begun.
  const auto bytes = host::read_beginning(*path, 4096, "IDX file");
  if (!bytes) return bytes.error();
  return parse_idx_header(*bytes, rank, *path);
}

result<void> check_counts(std::int64_t images, std::int64_t labels, const idx_info& where) {
  if (images == labels) return {};
  return error(
      error_code::usage,
      fmt::format("{}: {} has {} images, but {} has {} labels: they do not belong together",
                  where.path, images_name(where.test), images, labels_name(where.test), labels));
}

}  // namespace

result<idx_array> parse_idx(std::span<const std::byte> bytes, std::size_t rank,
                            std::string_view name) {
  expects(rank >= 1 && rank <= rank_max, "IDX files have rank 1 to 3");
  return is_gzip(bytes) ? parse_gzip(bytes, rank, name) : parse_plain(bytes, rank, name);
}

result<std::vector<std::int64_t>> parse_idx_header(std::span<const std::byte> bytes,
                                                   std::size_t rank, std::string_view name) {
  expects(rank >= 1 && rank <= rank_max, "IDX files have rank 1 to 3");
  std::uint8_t beginning[header_bytes_max];
  if (is_gzip(bytes)) {
    const auto unpacked = gunzip(read_memory(bytes, std::string(name)), no_limits);
    auto got = read_full(*unpacked, room_in({beginning, 4 + 4 * rank}));
    if (!got) return std::move(got.error());
    bytes = std::as_bytes(std::span(beginning, *got));
  }
  auto header = parse_header(bytes, rank, name);
  if (!header) return std::move(header.error());
  return std::move(header->sizes);
}

result<idx_dataset> combine_idx(idx_array images, idx_array labels, const idx_info& where) {
  expects(images.sizes.size() == 3 && labels.sizes.size() == 1,
          "images have rank 3, labels rank 1");
  if (where.classes < 1 || where.classes > 256)
    return error(error_code::usage,
                 fmt::format("{}: {} classes: labels are bytes, expected 1 to 256", where.path,
                             where.classes));
  if (auto ok = check_counts(images.sizes[0], labels.sizes[0], where); !ok)
    return std::move(ok.error());
  const auto wrong = std::find_if(labels.elements.begin(), labels.elements.end(),
                                  [&](std::uint8_t l) { return l >= where.classes; });
  if (wrong != labels.elements.end())
    return error(error_code::usage,
                 fmt::format("{}: label {} in {} is {}, expected 0 to {}", where.path,
                             wrong - labels.elements.begin(), labels_name(where.test), *wrong,
                             where.classes - 1));
  idx_dataset data{
      .info = where, .images = std::move(images.elements), .labels = std::move(labels.elements)};
  data.info.samples = images.sizes[0];
  data.info.rows = images.sizes[1];
  data.info.columns = images.sizes[2];
  return data;
}

result<idx_info> open_idx(const std::string& folder, bool test, std::int64_t classes) {
  const auto images = open_sizes(folder, images_name(test), 3);
  if (!images) return images.error();
  const auto labels = open_sizes(folder, labels_name(test), 1);
  if (!labels) return labels.error();
  const auto& s = *images;
  // Absolute: whoever reads it may run in another folder.
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(folder, failed);
  const idx_info info{.path = failed ? folder : absolute.lexically_normal().string(),
                      .test = test,
                      .samples = s[0],
                      .rows = s[1],
                      .columns = s[2],
                      .classes = classes};
  if (auto ok = check_counts(s[0], (*labels)[0], info); !ok) return std::move(ok.error());
  return info;
}

result<std::shared_ptr<const idx_dataset>> load_idx(const std::string& folder, bool test,
                                                    std::int64_t classes) {
  auto images = load_file(folder, images_name(test), 3);
  if (!images) return std::move(images.error());
  auto labels = load_file(folder, labels_name(test), 1);
  if (!labels) return std::move(labels.error());
  auto data = combine_idx(
      std::move(*images), std::move(*labels),
      {.path = folder, .test = test, .samples = 0, .rows = 0, .columns = 0, .classes = classes});
  if (!data) return std::move(data.error());
  return std::shared_ptr<const idx_dataset>(std::make_shared<idx_dataset>(std::move(*data)));
}

}  // namespace troupe
