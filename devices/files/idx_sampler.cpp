#include "troupe/devices/files/idx_sampler.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

__extension__ using uint128 = unsigned __int128;

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, SplitMix64's step

// The finaliser of SplitMix64 (Stafford's variant 13 of MurmurHash3's).
constexpr std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace

std::uint64_t idx_schedule::steps_per_epoch() const noexcept {
  const auto global = batch * parts;
  return samples / global + (samples % global != 0 ? 1 : 0);
}

idx_range idx_schedule::range(std::uint64_t step) const noexcept {
  const auto per_epoch = steps_per_epoch();
  const auto start = step % per_epoch * (batch * parts);
  const auto global = std::min(batch * parts, samples - start);
  // global < 2^48 and parts <= 2^16, so the products fit.
  const auto begin = global * part / parts;
  const auto end = global * (part + 1) / parts;
  return {.epoch = step / per_epoch,
          .first = start + begin,
          .count = end - begin,
          .global_count = global};
}

std::vector<std::uint32_t> permutation(std::uint64_t seed, std::uint64_t epoch,
                                       std::uint32_t samples) {
  std::vector<std::uint32_t> order(samples);
  std::iota(order.begin(), order.end(), 0U);
  const auto key = mix(mix(seed + golden) ^ (epoch * golden + 1));
  for (std::uint64_t i = samples; i > 1; --i) {
    const auto draw = mix(key + (samples - i + 1) * golden);
    const auto j = static_cast<std::uint64_t>((static_cast<uint128>(draw) * i) >> 64U);
    std::swap(order[i - 1], order[j]);
  }
  return order;
}

}  // namespace troupe
