#include "troupe/devices/host/initial_values.hpp"

#include "troupe/devices/host/loops/vector_math.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

std::uint64_t key_of(std::uint64_t seed, std::string_view variable) noexcept {
  return XXH3_64bits_withSeed(variable.data(), variable.size(), seed);
}
std::uint64_t bits_of(std::uint64_t key, std::uint64_t index) noexcept {
  return mix(key + (index + 1) * 0x9E3779B97F4A7C15U);
}

}  // namespace

void uniform_init(std::span<float> out, std::uint64_t seed, std::string_view variable, double limit,
                  std::uint64_t first) noexcept {
  const auto key = key_of(seed, variable);
  const auto scale = static_cast<float>(limit);
  // 24 bits as an exact number in [-1, 1), so that the product is rounded once.
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = (static_cast<float>(bits_of(key, first + i) >> 40U) * 0x1p-23F - 1.0F) * scale;
}

void normal_init(std::span<float> out, std::uint64_t seed, std::string_view variable,
                 double deviation, std::uint64_t first) noexcept {
  const auto key = key_of(seed, variable);
  const auto scale = static_cast<float>(deviation);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bits = bits_of(key, first + i);
    const float length =
        std::sqrt(-2.0F * vector_math::log(static_cast<float>((bits >> 40U) + 1) * 0x1p-24F));
    const float angle = 6.28318531F * (static_cast<float>(bits >> 16U & 0xffffffU) * 0x1p-24F);
    out[i] = length * vector_math::cos_near(angle) * scale;
  }
}

void zeros_init(std::span<float> out) noexcept { std::fill(out.begin(), out.end(), 0.0F); }

}  // namespace troupe
