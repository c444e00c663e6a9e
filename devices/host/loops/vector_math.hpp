#pragma once
// exp, log, pow, erf, the trigonometric and hyperbolic functions and their inverses, gelu, softplus
// and the logistic function for f32, written so that GCC vectorises a loop over them.
//
// Errors hold over all numbers that are not denormal, which are zero on threads of kernels: checked
// against multiple precision (tests/runtime/graph/precision_test.cpp, from which the table of
// runtime/graph/ops/ has its figures).
//
// Plain IEEE arithmetic without branches, calls or contraction: an element has the same bits in a
// vector body, in a tail and alone (K-2), with every instruction set that has fused multiply-adds,
// on which exp() and normal() are built. GCC needs -fno-trapping-math to vectorise the selects
// (cmake target troupe_loops). Polynomials: S. Moshier, Cephes (expf.c, logf.c, tanhf.c), where
// nothing else is said.

#include "troupe/devices/device_code.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe::vector_math {

// a b + c, rounded once where the instruction set can (all that is built for by default), so that
// bits there are equal, too.
TROUPE_DEVICE inline float fused(float a, float b, float c) noexcept {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

TROUPE_DEVICE inline double fused(double a, double b, double c) noexcept {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Within 2 ulp of e^x for every x; overflows to infinity, underflows over the subnormals to 0; NaN
// stays NaN.
TROUPE_DEVICE inline float exp(float x) noexcept {
  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits.
  constexpr float shift = 12582912.0F;
  const bool is_nan = x != x;
  // As numbers, bits of negative floats are larger the less they are, and larger than those of all
  // others without a sign: one minimum keeps x from -104 on (e^-104 < 2^-150 rounds to 0), another
  // up to 89 (e^89 > 2^128). Comparisons of floats would take twice as long.
  const auto from_below =
      std::bit_cast<std::uint32_t>(x) < 0xC2D00000U ? std::bit_cast<std::uint32_t>(x) : 0xC2D00000U;
  const auto kept = static_cast<std::int32_t>(from_below) < 0x42B20000
                        ? static_cast<std::int32_t>(from_below)
                        : 0x42B20000;
  x = std::bit_cast<float>(kept);
  const float shifted = fused(x, 1.44269504F, shift);
  const float n = shifted - shift;
  const std::uint32_t k =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift);
  // Ln 2 in two parts; the first product is exact.
  const float r = fused(n, 2.12194440e-4F, fused(n, -0.693359375F, x));
  float p = 1.9875691500e-4F;
  p = fused(p, r, 1.3981999507e-3F);
  p = fused(p, r, 8.3334519073e-3F);
  p = fused(p, r, 4.1665795894e-2F);
  p = fused(p, r, 1.6666665459e-1F);
  p = fused(p, r, 5.0000001201e-1F);
  const float y = fused(p, r * r, r) + 1.0F;
  // 2^k in two factors, since k = -150 and k = 128 have none of their own.
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(k) >> 1);
  const float low = std::bit_cast<float>((half + 127U) << 23U);
  const float high = std::bit_cast<float>((k - half + 127U) << 23U);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y * low * high) |
                              (is_nan ? 0xFFFFFFFFU : 0U));
}

// Within 2 ulp of ln x, for normal positive x.
TROUPE_DEVICE inline float log(float x) noexcept {
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

// Within 2 ulp of ln x for every x: -infinity of 0, NaN of negative numbers.
TROUPE_DEVICE inline float log_of_any(float x) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float y = log(x);
  const float of_edges =
      x > 0.0F ? x : (x == 0.0F ? -infinity : std::numeric_limits<float>::quiet_NaN());
  return x > 0.0F && x < infinity ? y : of_edges;
}

// Within 4 ulp of erfc x for 1 <= x <= 9.2, 0 beyond: t exp(P(t) - x^2) with t = 1 / (1 + x/2),
// where P interpolates at Chebyshev's nodes to 4e-9. x^2 is taken apart so that its rounding, which
// exp would magnify, is not lost.
TROUPE_DEVICE inline float erfc_from_1(float x) noexcept {
  x = x > 10.0F ? 10.0F : x;
  // Its square is exact.
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xfffff000U);
  const float low = (x - high) * (x + high);
  const float t = 1.0F / (1.0F + 0.5F * x);
  float p = -2.4997221423e-1F;
  p = p * t + 6.7687310295e-1F;
  p = p * t - 4.9716988222e-1F;
  p = p * t - 2.8016265581e-2F;
  p = p * t - 9.1343552798e-2F;
  p = p * t + 7.7246900986e-2F;
  p = p * t + 3.7680052591e-1F;
  p = p * t + 9.9978736270e-1F;
  p = p * t - 1.2655026171F;
  return t * exp(-high * high) * exp(p - low);
}

// Within 2 ulp of erf x for |x| <= 1: an odd polynomial that interpolates at Chebyshev's nodes to
// 1.3e-9.
TROUPE_DEVICE inline float erf_to_1(float x) noexcept {
  const float z = x * x;
  float p = 7.8758750627e-5F;
  p = p * z - 8.0168642872e-4F;
  p = p * z + 5.1890874234e-3F;
  p = p * z - 2.6854212011e-2F;
  p = p * z + 1.1283594715e-1F;
  p = p * z - 3.7612626667e-1F;
  p = p * z + 1.2837916580e-1F;  // 2 / sqrt(pi) without its 1
  // The product of a number near the least normal one would be denormal, so nothing.
  return z > 0x1p-100F ? x + x * p : x * 1.1283792F;
}

TROUPE_DEVICE inline float erf(float x) noexcept {
  const float size = x < 0.0F ? -x : x;
  const float far = 1.0F - erfc_from_1(size);
  const float signed_far = x < 0.0F ? -far : far;
  const float near = erf_to_1(x);
  return size < 1.0F || x != x ? near : signed_far;
}

// Within 6 ulp of the normal distribution function, also where it is small: for t = |x| it is
// e^(-t^2/2) w P(w) on the left, where w = 1 / (1 + 0.34 t) and P is fitted to 3e-8 on 0 <= t
// <= 14. t^2 is taken apart so that its rounding, which exp would magnify, is not lost.
struct normal_of {
  float cdf;
  float bell;  // e^(-x^2/2), within 2 ulp for |x| <= 13, beyond that of 13
};
TROUPE_DEVICE inline normal_of normal(float x) noexcept {
  constexpr float shift = 12582912.0F;  // as in exp
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto size = static_cast<std::int32_t>(bits & 0x7FFFFFFFU);
  // Up to 13: below e^-84 nothing is left. So it is 13 of a NaN, by which callers multiply.
  const float t = std::bit_cast<float>(size < 0x41500000 ? size : 0x41500000);
  // Its square is exact.
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(t) & 0xfffff000U);
  const float a = -0.5F * (high * high), b = -0.5F * ((t - high) * (t + high));
  const float shifted = fused(a + b, 1.44269504F, shift);
  const float n = shifted - shift;
  const std::uint32_t k =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift);
  const float r = fused(n, 2.12194440e-4F, fused(n, -0.693359375F, a)) + b;
  float p = 1.9875691500e-4F;
  p = fused(p, r, 1.3981999507e-3F);
  p = fused(p, r, 8.3334519073e-3F);
  p = fused(p, r, 4.1665795894e-2F);
  p = fused(p, r, 1.6666665459e-1F);
  p = fused(p, r, 5.0000001201e-1F);
  const float bell = (fused(p, r * r, r) + 1.0F) * std::bit_cast<float>((k + 127U) << 23U);
  const float w = 1.0F / fused(t, 0.34F, 1.0F);
  float q = -2.6121011517e-2F;
  q = fused(q, w, 1.3950184495e-1F);
  q = fused(q, w, -2.7313708309e-1F);
  q = fused(q, w, 2.0218704831e-1F);
  q = fused(q, w, -4.4721081347e-2F);
  q = fused(q, w, 1.1536012349e-1F);
  q = fused(q, w, 1.1519745099e-1F);
  q = fused(q, w, 1.3611222097e-1F);
  q = fused(q, w, 1.3562050229e-1F);
  const float tail = bell * (w * q);
  // 0 + tail where x has a sign, else 1 - tail.
  const std::uint32_t has_sign = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31);
  const float side = std::bit_cast<float>(~has_sign & 0x3F800000U);
  return {
      side + std::bit_cast<float>(std::bit_cast<std::uint32_t>(tail) ^ (~has_sign & 0x80000000U)),
      bell};
}
TROUPE_DEVICE inline float normal_cdf(float x) noexcept { return normal(x).cdf; }

// --- in f64, for f32 results: exact to some 1e-13, so that an f32 rounds once ---

// Without its sign, which -0 has, too.
TROUPE_DEVICE inline double size_of(double x) noexcept {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & 0x7FFFFFFFFFFFFFFFU);
}
// With the sign of `sign`, which an odd function of -0 has; NaN where that is one.
TROUPE_DEVICE inline float signed_as(float size, float sign) noexcept {
  const std::uint32_t bits = (std::bit_cast<std::uint32_t>(size) & 0x7FFFFFFFU) |
                             (std::bit_cast<std::uint32_t>(sign) & 0x80000000U);
  return sign != sign ? sign : std::bit_cast<float>(bits);
}

// ln x of a positive, normal number that is finite: by the series of atanh.
TROUPE_DEVICE inline double wide_log(double x) noexcept {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  // Of sqrt(1/2): m is in [sqrt(1/2), sqrt(2))
  const std::uint64_t shift = ((bits - 0x3fe6a09e667f3bcdU) >> 52U) << 52U;
  const double m = std::bit_cast<double>(bits - shift);
  // The exponent as a number: its 12 bits, signed, in the mantissa of 1.5 * 2^52.
  const double n =
      std::bit_cast<double>(((shift >> 52U) ^ 0x800U) + 0x4338000000000000U - 0x800U) - 0x1.8p52;
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double l = 1.0 / 15;
  l = l * z + 1.0 / 13;
  l = l * z + 1.0 / 11;
  l = l * z + 1.0 / 9;
  l = l * z + 1.0 / 7;
  l = l * z + 1.0 / 5;
  l = l * z + 1.0 / 3;
  l = l * z + 1.0;
  return n * 0.69314718055994530942 + 2.0 * s * l;
}
// Of any: -infinity of 0, NaN of negative numbers.
TROUPE_DEVICE inline double wide_log_of_any(double x) noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double y = wide_log(x);
  const double of_edges =
      x > 0.0 ? x : (x == 0.0 ? -infinity : std::numeric_limits<double>::quiet_NaN());
  return x > 0.0 && x < infinity ? y : of_edges;
}

// e^y for -110 <= y <= 90, beyond that of these limits: less than any f32, more than any.
TROUPE_DEVICE inline double wide_exp(double y) noexcept {
  y = y < -110.0 ? -110.0 : y;
  y = y > 90.0 ? 90.0 : y;
  const double shifted = y * 1.44269504088896340736 + 0x1.8p52;
  const double k = shifted - 0x1.8p52;
  const double r = y - k * 0.69314718055994530942;
  double e = 1.0 / 39916800;
  e = e * r + 1.0 / 3628800;
  e = e * r + 1.0 / 362880;
  e = e * r + 1.0 / 40320;
  e = e * r + 1.0 / 5040;
  e = e * r + 1.0 / 720;
  e = e * r + 1.0 / 120;
  e = e * r + 1.0 / 24;
  e = e * r + 1.0 / 6;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  const auto power = static_cast<std::uint64_t>(std::bit_cast<std::uint64_t>(shifted) << 52U);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(e) + power);
}

// atan x of x >= 0, infinity among them: 1/x above 1, the difference to pi/4 above tan(pi/8), then
// its series.
TROUPE_DEVICE inline double wide_atan(double x) noexcept {
  const bool is_far = x > 1.0;
  const double in = is_far ? 1.0 / x : x;
  const bool is_high = in > 0.41421356237309504880;
  const double t = is_high ? (in - 1.0) / (in + 1.0) : in;
  const double z = t * t;
  double p = -1.0 / 27;
  p = p * z + 1.0 / 25;
  p = p * z - 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z - 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z - 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z - 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z - 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z - 1.0 / 3;
  const double low = t + t * z * p;
  const double y = is_high ? 0.78539816339744830962 + low : low;
  return is_far ? 1.57079632679489661923 - y : y;
}

TROUPE_DEVICE inline float narrowed(double size, float sign) noexcept {
  return signed_as(static_cast<float>(size), sign);
}

// Within 1 ulp of a^b, and its special values as C's pow has them. In f64, since exp magnifies
// errors of its argument.
TROUPE_DEVICE inline float pow(float a, float b) noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double base = a < 0.0F ? -static_cast<double>(a) : static_cast<double>(a);
  const double exponent = static_cast<double>(b);
  double log_base = wide_log(base);
  log_base = base == 0.0 ? -infinity : log_base;
  log_base = base == infinity ? infinity : log_base;
  const auto result = static_cast<float>(wide_exp(exponent * log_base));
  // Whether b is whole, and odd: adding 2^52 rounds to whole numbers; larger ones are even.
  const double size = exponent < 0.0 ? -exponent : exponent;
  const double whole = size < 0x1p31 ? (size + 0x1p52) - 0x1p52 : size;
  const double halved = size < 0x1p31 ? (size * 0.5 + 0x1p52) - 0x1p52 : size * 0.5;
  const bool is_whole = whole == size, is_odd = is_whole && halved * 2.0 != size && size < 0x1p31;
  const bool is_negative = std::bit_cast<std::uint32_t>(a) >> 31U != 0;
  const float with_sign = is_negative && is_odd ? -result : result;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const bool is_real = !(a < 0.0F) || is_whole || base == infinity;
  const float of_numbers = a != a || b != b || !is_real ? nan : with_sign;
  return b == 0.0F || a == 1.0F || (a == -1.0F && size == infinity) ? 1.0F : of_numbers;
}

// e^x - 1 and ln(1 + x), also where they are small: within 1 ulp. Series below.
TROUPE_DEVICE inline float expm1(float x) noexcept {
  const double wide = static_cast<double>(x), size = size_of(wide);
  double p = 1.0 / 720;
  p = p * wide + 1.0 / 120;
  p = p * wide + 1.0 / 24;
  p = p * wide + 1.0 / 6;
  p = p * wide + 0.5;
  const double near = wide + wide * wide * p;
  return narrowed(size < 0x1p-6 ? near : wide_exp(wide) - 1.0, x);
}
TROUPE_DEVICE inline float log1p(float x) noexcept {
  const double wide = static_cast<double>(x), size = size_of(wide);
  double p = 1.0 / 5;
  p = p * wide - 1.0 / 4;
  p = p * wide + 1.0 / 3;
  p = p * wide - 1.0 / 2;
  const double near = wide + wide * wide * p;
  const auto y = static_cast<float>(size < 0x1p-9 ? near : wide_log_of_any(1.0 + wide));
  return x != x ? x : y;
}

// Within 1 ulp, as all that follow in f64.
TROUPE_DEVICE inline float sinh(float x) noexcept {
  const double wide = static_cast<double>(x), size = size_of(wide), z = size * size;
  const double e = wide_exp(size);
  double p = 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z + 1.0 / 6;
  return narrowed(size < 0.125 ? size + size * z * p : 0.5 * (e - 1.0 / e), x);
}
TROUPE_DEVICE inline float cosh(float x) noexcept {
  const double wide = static_cast<double>(x);
  const double e = wide_exp(size_of(wide));
  const auto y = static_cast<float>(0.5 * (e + 1.0 / e));
  return x != x ? x : y;
}
TROUPE_DEVICE inline float asinh(float x) noexcept {
  const double wide = static_cast<double>(x), size = size_of(wide), z = size * size;
  double p = -15.0 / 336;
  p = p * z + 3.0 / 40;
  p = p * z - 1.0 / 6;
  const double far = wide_log_of_any(size + std::sqrt(z + 1.0));
  return narrowed(size < 0x1p-5 ? size + size * z * p : far, x);
}
TROUPE_DEVICE inline float acosh(float x) noexcept {  // NaN below 1
  const double wide = static_cast<double>(x);
  const double in = wide < 1.0 ? 1.0 : wide;
  const auto y = static_cast<float>(wide_log_of_any(in + std::sqrt(in * in - 1.0)));
  return x < 1.0F ? std::numeric_limits<float>::quiet_NaN() : y;
}
TROUPE_DEVICE inline float atanh(float x) noexcept {  // NaN beyond 1
  const double wide = static_cast<double>(x), size = size_of(wide), z = size * size;
  double p = 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double far = 0.5 * wide_log_of_any((1.0 + size) / (1.0 - size));
  return narrowed(size < 0x1p-6 ? size + size * z * p : far, x);
}
TROUPE_DEVICE inline float atan(float x) noexcept {
  const double wide = static_cast<double>(x);
  return narrowed(wide_atan(size_of(wide)), x);
}
TROUPE_DEVICE inline float asin(float x) noexcept {  // NaN beyond 1
  const double wide = static_cast<double>(x), size = size_of(wide);
  const double y = wide_atan(size / std::sqrt((1.0 - size) * (1.0 + size)));
  return size > 1.0 ? std::numeric_limits<float>::quiet_NaN() : narrowed(y, x);
}
TROUPE_DEVICE inline float acos(float x) noexcept {  // NaN beyond 1
  const double wide = static_cast<double>(x);
  const auto y = static_cast<float>(2.0 * wide_atan(std::sqrt((1.0 - wide) / (1.0 + wide))));
  return wide > 1.0 || wide < -1.0 || x != x ? std::numeric_limits<float>::quiet_NaN() : y;
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|): within 4 ulp. ln(1 + u) by the series of atanh(u / (2 +
// u)), whose argument is at most 1/3; of 2 u / (2 + u), since u / 2 may be denormal.
TROUPE_DEVICE inline float softplus(float x) noexcept {
  const float size = x < 0.0F ? -x : x;
  const float u = exp(-size);
  const float s = (u + u) / (2.0F + u), z = 0.25F * (s * s);
  float p = 1.0F / 13;
  p = p * z + 1.0F / 11;
  p = p * z + 1.0F / 9;
  p = p * z + 1.0F / 7;
  p = p * z + 1.0F / 5;
  p = p * z + 1.0F / 3;
  const float rest = s + s * z * p;
  return (x > 0.0F || x != x ? x : 0.0F) + rest;
}

// --- sin, cos, tan ---

// x less its nearest multiple of pi/2, and which one that is, modulo 4 in its lowest bits.
struct quarter_of {
  double rest;
  std::uint32_t quarter;
};

// Whether reduced_near() reduces x: beyond, its product may round to another multiple than the
// nearest, and infinities and NaN have none.
TROUPE_DEVICE inline bool has_near_quarter(float x) noexcept {
  return (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU) < 0x54800000U;  // 2^42
}

// pi/2 in two parts. The first difference is exact, since its product is rounded only with it; the
// second is short of 2^-107 for each multiple, where no f32 is nearer to one than 2^-30.
TROUPE_DEVICE inline quarter_of reduced_near(float x) noexcept {
  const double wide = static_cast<double>(x);
  const double shifted = wide * 0.63661977236758134308 + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  return {fused(n, -6.12323399573676603587e-17, fused(n, -1.57079632679489655800, wide)),
          static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(shifted))};
}

// By all bits of 2/pi that matter (M. Payne, R. Hanek: Radian reduction for trigonometric
// functions, 1983): x = m 2^e, and m times 96 bits of 2^e 2/pi, of which two stand before the
// point.
TROUPE_DEVICE inline quarter_of reduced_far(float x) noexcept {
  const std::uint32_t two_over_pi[] = {0xA2F9836EU, 0x4E441529U, 0xFC2757D1U, 0xF534DDC0U,
                                       0xDB629599U, 0x3C439041U, 0xFE5163ABU};
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t exponent = (bits >> 23U) & 0xFFU;
  if (exponent == 0xFFU) return {static_cast<double>(x - x), 0};  // NaN
  const std::uint64_t m = (bits & 0x7FFFFFU) | 0x800000U;
  // The first of the 96 bits is of weight 2 in 2^e 2/pi.
  const std::uint32_t first = exponent - 150U - 2U, word = first / 32U, shift = first % 32U;
  const auto part = [&](std::uint32_t k) -> std::uint64_t {
    const std::uint64_t two =
        (static_cast<std::uint64_t>(two_over_pi[word + k]) << 32U) | two_over_pi[word + k + 1U];
    return (two >> (32U - shift)) & 0xFFFFFFFFU;
  };
  const std::uint64_t low = m * part(2), middle = m * part(1) + (low >> 32U);
  const std::uint64_t high = (m * part(0) + (middle >> 32U)) & 0xFFFFFFFFU;
  std::uint32_t quarter = static_cast<std::uint32_t>(high >> 30U);
  const std::uint64_t fraction =
      (high << 34U) | ((middle & 0xFFFFFFFFU) << 2U) | ((low & 0xFFFFFFFFU) >> 30U);
  if (fraction >> 63U != 0) ++quarter;  // the nearest one, from above: as a signed number
  const double rest =
      static_cast<double>(static_cast<std::int64_t>(fraction)) * (1.57079632679489661923 * 0x1p-64);
  return bits >> 31U != 0 ? quarter_of{-rest, 0U - quarter} : quarter_of{rest, quarter};
}

// Within 1.5 ulp. Polynomials on [-pi/4, pi/4]: Cephes (sinf.c, cosf.c).
TROUPE_DEVICE inline float sin_of_quarter(quarter_of x, std::uint32_t more) noexcept {
  const auto r = static_cast<float>(x.rest);
  const std::uint32_t quarter = x.quarter + more;
  const float z = r * r;
  const float sine =
      ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * r + r;
  const float cosine =
      ((2.443315711809948e-5F * z - 1.388731625493765e-3F) * z + 4.166664568298827e-2F) * z * z -
      0.5F * z + 1.0F;
  const float y = (quarter & 1U) != 0 ? cosine : sine;
  return (quarter & 2U) != 0 ? -y : y;
}
// Within 1 ulp: the series of both, in f64.
TROUPE_DEVICE inline float tan_of_quarter(quarter_of x) noexcept {
  const double r = x.rest, z = r * r;
  double s = -1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  const double sine = r + r * z * s;
  double c = 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 1.0 / 2;
  const double cosine = 1.0 + z * c;
  const bool is_odd = (x.quarter & 1U) != 0;
  return static_cast<float>((is_odd ? -cosine : sine) / (is_odd ? sine : cosine));
}

// For loops that are to be vectorised, of numbers that has_near_quarter() takes.
TROUPE_DEVICE inline float sin_near(float x) noexcept {
  const float y = sin_of_quarter(reduced_near(x), 0);
  return x == 0.0F ? x : y;  // -0
}
TROUPE_DEVICE inline float cos_near(float x) noexcept { return sin_of_quarter(reduced_near(x), 1); }
TROUPE_DEVICE inline float tan_near(float x) noexcept {
  const float y = tan_of_quarter(reduced_near(x));
  return x == 0.0F ? x : y;
}

TROUPE_DEVICE inline float sin(float x) noexcept {
  return has_near_quarter(x) ? sin_near(x) : sin_of_quarter(reduced_far(x), 0);
}
TROUPE_DEVICE inline float cos(float x) noexcept {
  return has_near_quarter(x) ? cos_near(x) : sin_of_quarter(reduced_far(x), 1);
}
TROUPE_DEVICE inline float tan(float x) noexcept {
  return has_near_quarter(x) ? tan_near(x) : tan_of_quarter(reduced_far(x));
}

TROUPE_DEVICE inline float sigmoid(float x) noexcept { return 1.0F / (1.0F + exp(-x)); }

TROUPE_DEVICE inline float tanh(float x) noexcept {
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
  return size < 0.625F ? (x == 0.0F ? x : near) : signed_far;
}

// x Phi(x) of the normal distribution function. Below -13.5 nothing: of -infinity, too.
TROUPE_DEVICE inline float gelu(float x) noexcept {
  return (x < -13.5F ? -0.0F : x) * normal_cdf(x);
}

// Its approximation by tanh: x (1 + tanh(a)) / 2 = x / (1 + e^-2a) with 2 a = x (c0 + c1 x^2),
// whose sum and products are taken to twice the precision, since exp magnifies their error. Within
// 5 ulp, also on the left, where 1 + tanh(a) has no digits left. Exp::apply(x): e^x.
template <class T>
struct gelu_tanh_parts {
  T c0, c0_low, c1, c1_low;  // sqrt(8 / pi), and 0.044715 times that
  T lowest, far;             // beyond `far` both ends are reached
};
template <class Exp, class T>
TROUPE_DEVICE inline T gelu_tanh(T x, const gelu_tanh_parts<T>& c) noexcept {
  const T in = x < -c.far ? -c.far : (x > c.far ? c.far : x);
  const T square = in * in, square_low = fused(in, in, -square);
  const T product = c.c1 * square;
  const T product_low = fused(c.c1, square, -product) + (c.c1 * square_low + c.c1_low * square);
  const T sum = c.c0 + product, part = sum - c.c0;
  const T sum_low = ((c.c0 - (sum - part)) + (product - part)) + (product_low + c.c0_low);
  const T twice = in * sum;
  const T twice_low = fused(in, sum, -twice) + in * sum_low;
  const T e = Exp::apply(-twice) * (T{1} - twice_low);
  return (x < c.lowest ? c.lowest : x) / (T{1} + e);
}
}  // namespace troupe::vector_math
