#pragma once
// Random numbers as a function of where they stand: Philox4x32-10 (Salmon, Moraes, Dror, Shaw:
// Parallel Random Numbers: As Easy as 1, 2, 3, 2011). A counter of 128 bits and a key of 64 give
// four words of 32 bits; there is no state, so that any part of a tensor can be made anywhere, in
// any order, by any device.

#include <array>
#include <cstdint>

namespace troupe::host {

struct philox {
  std::uint32_t key_low, key_high;

  constexpr std::array<std::uint32_t, 4> operator()(std::uint64_t low,
                                                    std::uint64_t high) const noexcept {
    std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32U);
    std::uint32_t c2 = static_cast<std::uint32_t>(high),
                  c3 = static_cast<std::uint32_t>(high >> 32U);
    std::uint32_t k0 = key_low, k1 = key_high;
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0, b = std::uint64_t{0xCD9E8D57U} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32U) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32U) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(a);
    }
    return {c0, c1, c2, c3};
  }
};

}  // namespace troupe::host
