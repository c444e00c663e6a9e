#pragma once
// exp, log, tanh and the logistic function for f32, written so that GCC vectorises a loop over them.
//
// Plain IEEE arithmetic without branches, calls or contraction: an element has the same bits in a vector body, in a
// tail and alone, with every instruction set (K-2). GCC needs -fno-trapping-math to vectorise the selects (cmake target
// troupe_loops). Polynomials: S. Moshier, Cephes (expf.c, logf.c, tanhf.c).

#include <bit>
#include <cstdint>

namespace troupe::vector_math {

// Within 2 ulp of e^x for every x; overflows to infinity, underflows over the subnormals to 0; NaN stays NaN.
inline float exp(float x) noexcept {
  constexpr float shift = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
  x = x < -104.0F ? -104.0F : x;        // e^-104 < 2^-150 rounds to 0
  x = x > 89.0F ? 89.0F : x;            // e^89 > 2^128
  const float shifted = x * 1.44269504F + shift;
  const float n = shifted - shift;
  const std::uint32_t k = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift);
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts; the first product is exact
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float y = p * (r * r) + r + 1.0F;
  // 2^k in two factors, since k = -150 and k = 128 have none of their own.
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(k) >> 1);
  const float low = std::bit_cast<float>((half + 127U) << 23U);
  const float high = std::bit_cast<float>((k - half + 127U) << 23U);
  return y * low * high;
}

// Within 2 ulp of ln x, for normal positive x.
inline float log(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  // m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const std::uint32_t e = (bits - 0x3f3504f3U) >> 23U;
  const float m = std::bit_cast<float>(bits - (e << 23U)) - 1.0F;
  const float n = static_cast<float>(static_cast<std::int32_t>(e << 23U) >> 23);
  const float z = m * m;
  float p = 7.0376836292e-2F;
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  const float y = p * m * z + n * -2.12194440e-4F - 0.5F * z;
  return (m + y) + n * 0.693359375F;
}

inline float sigmoid(float x) noexcept { return 1.0F / (1.0F + exp(-x)); }

inline float tanh(float x) noexcept {
  const float size = x < 0.0F ? -x : x;
  const float z = x * x;
  float p = -5.70498872745e-3F;
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const float near = p * z * x + x;
  const float far = 1.0F - 2.0F / (exp(size + size) + 1.0F);
  const float signed_far = x < 0.0F ? -far : far;
  return size < 0.625F ? near : signed_far;
}

}  // namespace troupe::vector_math
