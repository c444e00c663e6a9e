#pragma once
// What variables begin with: how a program asks for it, and how it is made.

#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

inline constexpr initializer_spec zeros() { return {}; }
inline constexpr initializer_spec filled_with(double number) {
  return {initializer_spec::kind::constant, number};
}
// And zeros behind it.
inline constexpr initializer_spec beginning_with(double number) {
  return {initializer_spec::kind::first, number};
}
inline constexpr initializer_spec uniform(double limit) {
  return {initializer_spec::kind::uniform, limit};
}
inline constexpr initializer_spec normal(double deviation) {
  return {initializer_spec::kind::normal, deviation};
}
// Of weights between so many units: uniform in +-sqrt(6 / (in + out)) (Glorot, Bengio:
// Understanding the difficulty of training deep feedforward neural networks, 2010), and normal with
// sqrt(2 / in), before relu (He, Zhang, Ren, Sun: Delving deep into rectifiers, 2015).
initializer_spec glorot_uniform(std::int64_t in, std::int64_t out);
initializer_spec he_normal(std::int64_t in);

// All elements of a variable: a pure function of the arguments.
void initialize(std::span<float> out, const initializer_spec& spec, std::uint64_t seed,
                std::string_view variable);

}  // namespace troupe
