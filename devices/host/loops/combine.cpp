#include "troupe/devices/host/loops/combine.hpp"

#include "troupe/schema/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace troupe {
namespace {

struct add {
  template <class T>
  T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  }
};
struct least {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return a < b || a != a ? a : b;
  }
};
struct greatest {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return a > b || a != a ? a : b;
  }
};

// Two at once where there are more: each pass over memory that is left out counts.
template <class T, class F>
void fold(T* out, std::span<const std::byte* const> operands, std::size_t n, F f) noexcept {
  const auto at = [&](std::size_t k) { return reinterpret_cast<const T*>(operands[k]); };
  if (operands.size() == 1) {
    if (at(0) != out) std::memcpy(out, at(0), n * sizeof(T));
    return;
  }
  // A group is small enough that what is under way stays in the first-level cache, whoever the
  // operands are.
  constexpr std::size_t group = 2048 / sizeof(T);
  T sums[group];
  for (std::size_t first = 0; first < n; first += group) {
    const auto count = std::min(group, n - first);
    const T *a = at(0) + first, *b = at(1) + first;
    T* to = operands.size() == 2 ? out + first : sums;
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) to[i] = f(a[i], b[i]);
    for (std::size_t k = 2; k < operands.size(); ++k) {
      const T* more = at(k) + first;
      T* into = k + 1 == operands.size() ? out + first : sums;
#pragma GCC ivdep
      for (std::size_t i = 0; i < count; ++i) into[i] = f(sums[i], more[i]);
    }
  }
}

template <class F>
void fold_of(dtype type, std::byte* out, std::span<const std::byte* const> operands, std::size_t n,
             F f) noexcept {
  switch (type) {
    case dtype::f32: return fold(reinterpret_cast<float*>(out), operands, n, f);
    case dtype::f64: return fold(reinterpret_cast<double*>(out), operands, n, f);
    case dtype::i32: return fold(reinterpret_cast<std::int32_t*>(out), operands, n, f);
    case dtype::i64: return fold(reinterpret_cast<std::int64_t*>(out), operands, n, f);
    default: break;
  }
}

}  // namespace

bool can_combine(dtype type) noexcept {
  return type == dtype::f32 || type == dtype::f64 || type == dtype::i32 || type == dtype::i64;
}

void combine(combine_kind kind, dtype type, std::byte* out,
             std::span<const std::byte* const> operands, std::size_t n) noexcept {
  switch (kind) {
    case combine_kind::sum: return fold_of(type, out, operands, n, add());
    case combine_kind::min: return fold_of(type, out, operands, n, least());
    case combine_kind::max: return fold_of(type, out, operands, n, greatest());
  }
}

void divide(dtype type, std::byte* values, std::size_t n, double by) noexcept {
  if (type == dtype::f32) {
    auto* v = reinterpret_cast<float*>(values);
    const auto d = static_cast<float>(by);
    for (std::size_t i = 0; i < n; ++i) v[i] /= d;
  } else if (type == dtype::f64) {
    auto* v = reinterpret_cast<double*>(values);
    for (std::size_t i = 0; i < n; ++i) v[i] /= by;
  }
}

}  // namespace troupe
