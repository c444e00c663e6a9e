#pragma once
// The element-wise ops as functions of elements: what the host's loops (devices/host/ops/), the
// kernels that are generated for CUDA and their fallback (devices/cuda/) all call, so that f32
// results have the same bits everywhere.
//
// Compiled by GCC or Clang, by nvcc, and by NVRTC, which finds the headers below in a table of the
// program's own (devices/cuda/libraries/nvrtc_program.hpp): nothing else may be included.
//
// Threading: plain functions.

#include "troupe/devices/device_code.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace troupe::host {

// --- arithmetic ---

// Denormal numbers are zeros on threads of kernels. Functions of C libraries that look at the bits
// of one, and compute with it, make neither its result nor that of zero.
TROUPE_DEVICE inline float without_denormal(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7FFFFFFFU) < 0x00800000U ? std::bit_cast<float>(bits & 0x80000000U) : x;
}
TROUPE_DEVICE inline double without_denormal(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  constexpr std::uint64_t sign = std::uint64_t{1} << 63U, least_normal = std::uint64_t{1} << 52U;
  return (bits & ~sign) < least_normal ? std::bit_cast<double>(bits & sign) : x;
}

// Signed overflow is undefined in C++, unsigned is not.
template <class T>
TROUPE_DEVICE auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<std::make_unsigned_t<T>>(x);
  else
    return x;
}

struct add_op {
  template <class T>
  TROUPE_DEVICE static T apply(T a, T b) {
    return static_cast<T>(wrapping(a) + wrapping(b));
  }
};
struct sub_op {
  template <class T>
  TROUPE_DEVICE static T apply(T a, T b) {
    return static_cast<T>(wrapping(a) - wrapping(b));
  }
};
struct mul_op {
  template <class T>
  TROUPE_DEVICE static T apply(T a, T b) {
    return static_cast<T>(wrapping(a) * wrapping(b));
  }
};
struct div_op {  // of whole numbers: by 0 it is 0, and the least one by -1 wraps around
  template <class T>
  TROUPE_DEVICE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      return b == -1 ? static_cast<T>(0U - wrapping(a)) : static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};
struct maximum_op {  // equal elements: a; a NaN on either side: NaN
  TROUPE_DEVICE static auto apply(auto a, auto b) { return a >= b || a != a ? a : b; }
};
struct minimum_op {
  TROUPE_DEVICE static auto apply(auto a, auto b) { return a <= b || a != a ? a : b; }
};
struct pow_op {
  TROUPE_DEVICE static float apply(float a, float b) { return vector_math::pow(a, b); }
  TROUPE_DEVICE static double apply(double a, double b) {
    return std::pow(without_denormal(a), without_denormal(b));
  }
};
struct neg_op {
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(0U - wrapping(x));
    else
      return -x;
  }
};
struct abs_op {
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    if constexpr (std::is_integral_v<T>)
      return x < 0 ? static_cast<T>(0U - wrapping(x)) : x;
    else
      return std::abs(x);
  }
};
struct sign_op {  // of 0 and NaN: they themselves
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    return x > T{} ? T{1} : x < T{} ? T{-1} : x;
  }
};
struct square_op {
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    return static_cast<T>(wrapping(x) * wrapping(x));
  }
};
struct reciprocal_op {
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    return T{1} / x;
  }
};
// What is left of a / b: with the sign of a, less than b, and exact, however large the quotient is.
// NaN where a is infinite or b is 0.
struct fmod_op {
  template <class T>
  TROUPE_DEVICE static T apply(T a, T b) {
    return without_denormal(std::fmod(without_denormal(a), without_denormal(b)));
  }
};
struct fused_multiply_add_op {  // a b + c, rounded once
  TROUPE_DEVICE static auto apply(auto a, auto b, auto c) { return std::fma(a, b, c); }
};

// --- math ---

struct exp_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::exp(x); }
  TROUPE_DEVICE static double apply(double x) { return std::exp(x); }
};
struct log_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::log_of_any(x); }
  TROUPE_DEVICE static double apply(double x) { return std::log(without_denormal(x)); }
};
struct sqrt_op {
  TROUPE_DEVICE static auto apply(auto x) { return std::sqrt(x); }
};
struct rsqrt_op {
  template <class T>
  TROUPE_DEVICE static T apply(T x) {
    return T{1} / std::sqrt(x);
  }
};
struct erf_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::erf(x); }
  TROUPE_DEVICE static double apply(double x) { return std::erf(x); }
};
// An op may tell loops of the host that are to be vectorised of which numbers apply_near() makes
// the bits of apply(): without branches.
struct sin_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::sin(x); }
  TROUPE_DEVICE static double apply(double x) { return std::sin(x); }
  TROUPE_DEVICE static bool is_near(float x) { return vector_math::has_near_quarter(x); }
  TROUPE_DEVICE static float apply_near(float x) { return vector_math::sin_near(x); }
};
struct cos_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::cos(x); }
  TROUPE_DEVICE static double apply(double x) { return std::cos(x); }
  TROUPE_DEVICE static bool is_near(float x) { return vector_math::has_near_quarter(x); }
  TROUPE_DEVICE static float apply_near(float x) { return vector_math::cos_near(x); }
};
struct tan_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::tan(x); }
  TROUPE_DEVICE static double apply(double x) { return std::tan(x); }
  TROUPE_DEVICE static bool is_near(float x) { return vector_math::has_near_quarter(x); }
  TROUPE_DEVICE static float apply_near(float x) { return vector_math::tan_near(x); }
};
struct expm1_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::expm1(x); }
  TROUPE_DEVICE static double apply(double x) { return std::expm1(x); }
};
struct log1p_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::log1p(x); }
  TROUPE_DEVICE static double apply(double x) { return std::log1p(x); }
};
struct asin_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::asin(x); }
  TROUPE_DEVICE static double apply(double x) { return std::asin(x); }
};
struct acos_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::acos(x); }
  TROUPE_DEVICE static double apply(double x) { return std::acos(x); }
};
struct atan_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::atan(x); }
  TROUPE_DEVICE static double apply(double x) { return std::atan(x); }
};
struct sinh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::sinh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::sinh(x); }
};
struct cosh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::cosh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::cosh(x); }
};
struct asinh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::asinh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::asinh(x); }
};
struct acosh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::acosh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::acosh(x); }
};
struct atanh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::atanh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::atanh(x); }
};
struct floor_op {
  TROUPE_DEVICE static auto apply(auto x) { return std::floor(x); }
};
struct ceil_op {
  TROUPE_DEVICE static auto apply(auto x) { return std::ceil(x); }
};
struct round_op {  // halves to even, as in NumPy
  TROUPE_DEVICE static auto apply(auto x) { return std::nearbyint(x); }
};

// --- activation ---

struct relu_op {  // a NaN stays
  TROUPE_DEVICE static auto apply(auto x) { return x < decltype(x){} ? decltype(x){} : x; }
};
struct leaky_relu_op {
  TROUPE_DEVICE static auto apply(auto x, auto slope) { return x < decltype(x){} ? slope * x : x; }
};
struct sigmoid_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::sigmoid(x); }
  TROUPE_DEVICE static double apply(double x) { return 1 / (1 + std::exp(-x)); }
};
struct tanh_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::tanh(x); }
  TROUPE_DEVICE static double apply(double x) { return std::tanh(x); }
};
struct softplus_op {
  TROUPE_DEVICE static float apply(float x) { return vector_math::softplus(x); }
  TROUPE_DEVICE static double apply(double x) {
    return (x > 0 || x != x ? x : 0) + std::log1p(std::exp(-std::abs(x)));
  }
};
// The normal distribution function and its density in f64, within 4 ulp for |x| <= 37.5, beyond
// those of 37.5. erfc(-x / sqrt(2)) / 2, whose argument's rounding is mended by its slope, as that
// of x^2 is.
struct wide_normal {
  double cdf, bell;
};
TROUPE_DEVICE inline wide_normal wide_normal_of(double x) {
  constexpr double c = 0x1.6a09e667f3bcdp-1, c_low = -4.833646656726457e-17;  // sqrt(1/2)
  const double in = x < -37.5 ? -37.5 : x > 37.5 ? 37.5 : x;
  const double a = -in * c;
  const double a_low = vector_math::fused(-in, c, -a) - in * c_low;
  const double far = std::erfc(a);
  const double slope = 1.12837916709551257390 * (std::exp(-a * a) / far);
  const double square = in * in, square_low = vector_math::fused(in, in, -square);
  const double bell = std::exp(-0.5 * square) * (1.0 - 0.5 * square_low);
  return {0.5 * (far * (1.0 - slope * a_low)), 0.39894228040143267794 * bell};
}

struct gelu_op {  // x Phi(x)
  TROUPE_DEVICE static float apply(float x) { return vector_math::gelu(x); }
  TROUPE_DEVICE static double apply(double x) {
    return x < -37.5 ? -0.0 : x * wide_normal_of(x).cdf;
  }
};
struct gelu_grad_op {  // dy (Phi(x) + x phi(x))
  TROUPE_DEVICE static float apply(float dy, float x) {
    const auto at = vector_math::normal(x);
    const float near = x < -13.0F ? -13.0F : x > 13.0F ? 13.0F : x;  // beyond, x phi(x) is nothing
    return dy * (at.cdf + near * (at.bell * 0.39894228F));
  }
  TROUPE_DEVICE static double apply(double dy, double x) {
    const auto at = wide_normal_of(x);
    const double slope = at.cdf + (x <= 37.5 ? x * at.bell : 0.0);
    return dy * (x < -37.5 ? 0.0 : slope);
  }
};
struct gelu_tanh_op {
  TROUPE_DEVICE static float apply(float x) {
    constexpr vector_math::gelu_tanh_parts<float> c{
        0x1.988454p+0F, -4.5340681e-8F, 0x1.2444f2p-4F, 2.3988324e-9F, -0x1.fffffep127F, 16.0F};
    return vector_math::gelu_tanh<exp_op>(x, c);
  }
  TROUPE_DEVICE static double apply(double x) {
    constexpr vector_math::gelu_tanh_parts<double> c{
        0x1.9884533d43651p+0,   -9.96930880911092e-17,   0x1.2444f2a4d8b4bp-4,
        -6.175149918155315e-19, -0x1.fffffffffffffp1023, 32.0};
    return vector_math::gelu_tanh<exp_op>(x, c);
  }
};
struct clip_op {  // max(low, min(x, high)), so that high wins over x and low over both; a NaN stays
  TROUPE_DEVICE static auto apply(auto x, auto low, auto high) {
    const auto below = x > high ? high : x;
    return below < low ? low : below;
  }
};
struct relu_grad_op {
  TROUPE_DEVICE static auto apply(auto dy, auto y) {
    return y > decltype(y){} ? dy : decltype(dy){};
  }
};
struct sigmoid_grad_op {
  TROUPE_DEVICE static auto apply(auto dy, auto y) { return dy * (y * (1 - y)); }
};
struct tanh_grad_op {
  TROUPE_DEVICE static auto apply(auto dy, auto y) { return dy * (1 - y * y); }
};

// --- comparison ---

struct equal_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a == b; }
};
struct not_equal_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a != b; }
};
struct less_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a < b; }
};
struct less_equal_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a <= b; }
};
struct greater_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a > b; }
};
struct greater_equal_op {
  TROUPE_DEVICE static bool apply(auto a, auto b) { return a >= b; }
};
struct and_op {
  TROUPE_DEVICE static bool apply(bool a, bool b) { return a & b; }
};
struct or_op {
  TROUPE_DEVICE static bool apply(bool a, bool b) { return a | b; }
};
struct xor_op {
  TROUPE_DEVICE static bool apply(bool a, bool b) { return a != b; }
};
struct not_op {
  TROUPE_DEVICE static bool apply(bool x) { return !x; }
};
struct is_nan_op {
  TROUPE_DEVICE static bool apply(auto x) { return x != x; }
};
struct where_op {
  template <class T>
  TROUPE_DEVICE static T apply(boolean c, T a, T b) {
    return c ? a : b;
  }
};

struct first_op {  // the other one says how large
  template <class T>
  TROUPE_DEVICE static T apply(T x, T) {
    return x;
  }
};

// --- cast ---

// What is widened first, and what is narrowed last.
TROUPE_DEVICE inline float widened(f16 x) { return to_f32(x); }
TROUPE_DEVICE inline float widened(bf16 x) { return to_f32(x); }
TROUPE_DEVICE inline std::uint8_t widened(boolean x) { return x ? 1 : 0; }
TROUPE_DEVICE auto widened(auto x) { return x; }

// Fractions are cut off. What does not fit becomes the nearest number that does, and NaN 0: C++
// leaves both open, and processors differ.
template <class To, class From>
TROUPE_DEVICE To saturated(From x) {
  if constexpr (std::is_floating_point_v<From>) {
    // The first numbers beyond the range are powers of two, and so exact in every floating type.
    constexpr From above =
        static_cast<From>(std::uint64_t{1} << (std::numeric_limits<To>::digits - 1)) * 2;
    constexpr From below = std::is_signed_v<To> ? -above : From{0};
    if (!(x == x)) return To{0};
    if (x >= above) return std::numeric_limits<To>::max();
    if (x < below) return std::numeric_limits<To>::min();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);  // wraps around, as whole numbers do
  }
}

// To f32 so that what is rounded after it rounds as from f64: cut off, and what was lost is kept in
// the last bit (S. Boldo, G. Melquiond: Emulation of a FMA and correctly rounded sums, 2008).
TROUPE_DEVICE inline float cut_to_f32(float x) { return x; }
TROUPE_DEVICE inline float cut_to_f32(double x) {
  const auto near = static_cast<float>(x);
  const auto back = static_cast<double>(near);
  if (back == x || x != x) return near;
  const bool is_above = x < 0 ? back < x : back > x;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(near) - (is_above ? 1U : 0U)) | 1U);
}
template <class T>
TROUPE_DEVICE float cut_to_f32(T x) {
  if constexpr (sizeof(T) == sizeof(std::int64_t)) {
    // More bits than f64 has: the lower half counts as whether there is something in it.
    constexpr std::int64_t low = (std::int64_t{1} << 24) - 1;
    const bool is_large = x > (std::int64_t{1} << 50) || x < -(std::int64_t{1} << 50);
    return cut_to_f32(
        static_cast<double>(is_large ? (x & ~low) | ((x & low) != 0 ? 1 << 12 : 0) : x));
  } else {
    return cut_to_f32(static_cast<double>(x));
  }
}

template <class To>
struct cast_op {
  TROUPE_DEVICE static To apply(auto from) {
    const auto x = widened(from);
    if constexpr (std::is_same_v<To, boolean>)
      return boolean(x != decltype(x){});
    else if constexpr (std::is_same_v<To, f16>)
      return to_f16(cut_to_f32(x));
    else if constexpr (std::is_same_v<To, bf16>)
      return to_bf16(cut_to_f32(x));
    else if constexpr (std::is_integral_v<To>)
      return saturated<To>(x);
    else
      return static_cast<To>(x);
  }
};

}  // namespace troupe::host
