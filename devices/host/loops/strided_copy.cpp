#include "troupe/devices/host/loops/strided_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace troupe::host {

std::vector<std::int64_t> dense_steps(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> steps(sizes.size(), 1);
  for (auto i = sizes.size(); i-- > 1;) steps[i - 1] = steps[i] * sizes[i];
  return steps;
}

strided_copy::strided_copy(std::vector<loop> loops, std::size_t element_bytes)
    : element_bytes_(element_bytes) {
  const bool is_empty =
      std::any_of(loops.begin(), loops.end(), [](const loop& l) { return l.size == 0; });
  std::erase_if(loops, [](const loop& l) { return l.size == 1; });
  // Neighbours that both sides walk through without a jump are one.
  std::vector<loop> merged;
  for (const auto& l : loops) {
    if (!merged.empty() && merged.back().to == l.to * l.size &&
        merged.back().from == l.from * l.size)
      merged.back() = {merged.back().size * l.size, l.to, l.from};
    else
      merged.push_back(l);
  }
  if (is_empty) merged = {{0, 1, 1}};
  const auto take = [&](auto at) {
    const auto l = at != merged.end() ? *at : loop{};
    if (at != merged.end()) merged.erase(at);
    return l;
  };
  const auto shorter = [](std::int64_t loop::* step) {
    return [step](const loop& a, const loop& b) { return std::abs(a.*step) < std::abs(b.*step); };
  };
  // Writes go through memory in order, and where reads do not, the loop in whose order they would
  // go is the next one out.
  columns_ = take(std::min_element(merged.begin(), merged.end(), shorter(&loop::to)));
  rows_ = take(columns_.from == 1
                   ? (merged.empty() ? merged.end() : std::prev(merged.end()))
                   : std::min_element(merged.begin(), merged.end(), shorter(&loop::from)));
  around_ = std::move(merged);
}

template <class T>
void strided_copy::run_as(T* to, const T* from) const noexcept {
  // Of a transposition: 32 lines of 32 elements stay in the cache.
  constexpr std::int64_t tile = 32;
  std::vector<std::int64_t> at(around_.size());
  for (;;) {
    if (columns_.to == 1 && columns_.from == 1) {
      for (std::int64_t r = 0; r < rows_.size; ++r)
        std::memcpy(to + r * rows_.to, from + r * rows_.from,
                    static_cast<std::size_t>(columns_.size) * sizeof(T));
    } else {
      for (std::int64_t r0 = 0; r0 < rows_.size; r0 += tile)
        for (std::int64_t c0 = 0; c0 < columns_.size; c0 += tile)
          for (std::int64_t r = r0; r < std::min(rows_.size, r0 + tile); ++r)
            for (std::int64_t c = c0; c < std::min(columns_.size, c0 + tile); ++c)
              to[r * rows_.to + c * columns_.to] = from[r * rows_.from + c * columns_.from];
    }
    auto i = around_.size();
    for (; i-- > 0;) {
      const auto& l = around_[i];
      to += l.to;
      from += l.from;
      if (++at[i] < l.size) break;
      to -= l.to * l.size;
      from -= l.from * l.size;
      at[i] = 0;
    }
    if (i == static_cast<std::size_t>(-1)) return;
  }
}

void strided_copy::run(std::byte* to, const std::byte* from) const noexcept {
  if (rows_.size == 0 || columns_.size == 0) return;
  switch (element_bytes_) {
    case 1:
      return run_as(reinterpret_cast<std::uint8_t*>(to),
                    reinterpret_cast<const std::uint8_t*>(from));
    case 2:
      return run_as(reinterpret_cast<std::uint16_t*>(to),
                    reinterpret_cast<const std::uint16_t*>(from));
    case 4:
      return run_as(reinterpret_cast<std::uint32_t*>(to),
                    reinterpret_cast<const std::uint32_t*>(from));
    default:
      return run_as(reinterpret_cast<std::uint64_t*>(to),
                    reinterpret_cast<const std::uint64_t*>(from));
  }
}

}  // namespace troupe::host
