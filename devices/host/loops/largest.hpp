#pragma once
// The largest of n numbers that lie side by side, several at a time.
//
// Written with the vectors that GCC and Clang have for every target: a loop over an array of
// partial maxima is compiled one number at a time.
//
// Threading: a plain function.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace troupe::host {

// -infinity of none; a NaN is passed over.
template <class T>
T largest_of(const T* x, std::int64_t n) noexcept {
  using pack [[gnu::vector_size(32)]] = T;
  constexpr std::int64_t each = sizeof(pack) / sizeof(T), packs = 4;
  T most = -std::numeric_limits<T>::infinity();
  std::int64_t i = 0;
  if (n >= each) {
    pack best[packs];  // std::array would lose the attribute
    for (auto& b : best) b = pack{} - std::numeric_limits<T>::infinity();
    const auto take = [&](pack& b) {
      pack some;
      std::memcpy(&some, x + i, sizeof some);
      b = some > b ? some : b;
      i += each;
    };
    while (i + packs * each <= n)
      for (auto& b : best) take(b);
    while (i + each <= n) take(best[0]);
    for (const auto& b : best) best[0] = b > best[0] ? b : best[0];
    for (std::int64_t k = 0; k < each; ++k) most = std::max(most, T{best[0][k]});
  }
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

}  // namespace troupe::host
