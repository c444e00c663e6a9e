#include "troupe/devices/files/text_file.hpp"

#include "troupe/devices/files/whole_file.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <filesystem>

namespace troupe {

namespace {

constexpr std::uint64_t bytes_max = std::uint64_t{1} << 32;

}  // namespace

result<text_info> open_text(const std::string& path) {
  auto all = host::read_file(path, bytes_max, "text");
  if (!all) return std::move(all.error());
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(path, failed);
  return text_info{failed ? path : absolute.lexically_normal().string(),
                   static_cast<std::int64_t>(all->size()), XXH3_64bits(all->data(), all->size())};
}

result<std::shared_ptr<const std::vector<std::byte>>> load_text(const text_info& info) {
  auto all = host::read_file(info.path, bytes_max, "text");
  if (!all) return std::move(all.error());
  if (static_cast<std::int64_t>(all->size()) != info.bytes ||
      XXH3_64bits(all->data(), all->size()) != info.hash)
    return error(
        error_code::usage,
        fmt::format("{} is another text on this node: every node needs the same file", info.path));
  return std::make_shared<const std::vector<std::byte>>(std::move(*all));
}

// The finalizer of splitmix64 over a sum of odd multiples, then scaled down from 64 bits.
std::uint64_t piece_of_text(std::uint64_t seed, std::uint64_t step, std::uint64_t place,
                            std::uint64_t places) noexcept {
  auto z =
      seed * 0xD1342543DE82EF95U + step * 0x9E3779B97F4A7C15U + (place + 1) * 0xBF58476D1CE4E5B9U;
  for (int round = 0; round < 2; ++round) {
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
  }
  return z % places;
}

}  // namespace troupe
