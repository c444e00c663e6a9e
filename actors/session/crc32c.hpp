#pragma once
// CRC-32C (Castagnoli), as RFC 3720 (12.1, B.4) has it: the reflected polynomial 0x82f63b78, begun
// with ones and inverted at the end.

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe {

inline constexpr auto crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    auto r = byte;
    for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = r;
  }
  return table;
}();

// A byte at a time: of records of some fifty bytes.
constexpr std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t r = ~0U;
  for (const char c : bytes)
    r = (r >> 8) ^ crc32c_table[(r ^ static_cast<unsigned char>(c)) & 0xff];
  return ~r;
}

}  // namespace troupe
