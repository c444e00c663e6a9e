#pragma once
// What variables begin with. Element i of `out` is a pure function of (seed, variable, first + i),
// so that any part of a variable can be made anywhere. Plain functions over memory, for f32.
//
// The generator is splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014) as a counter: mix(key + (index + 1) * 0x9E3779B97F4A7C15), with key = XXH3-64(variable,
// seed).

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

// In [-limit, limit), from the upper 24 bits.
void uniform_init(std::span<float> out, std::uint64_t seed, std::string_view variable, double limit,
                  std::uint64_t first = 0) noexcept;
// Mean 0, by Box and Muller: the length from the upper 24 bits, the angle from the 24 below.
void normal_init(std::span<float> out, std::uint64_t seed, std::string_view variable,
                 double deviation, std::uint64_t first = 0) noexcept;
void zeros_init(std::span<float> out) noexcept;

}  // namespace troupe
