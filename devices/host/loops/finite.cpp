#include "troupe/devices/host/loops/finite.hpp"

#include <cstring>

namespace troupe {
namespace {

// Infinities and NaN have all bits of the exponent set.
template <class Bits>
bool is_not_finite(Bits x, Bits exponent) noexcept {
  return (x & exponent) == exponent;
}

// The rest behind those is a fraction: none in infinities.
template <class Bits>
bool is_nan_of_bits(Bits x, Bits exponent) noexcept {
  constexpr auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  return static_cast<Bits>(x & static_cast<Bits>(~sign)) > exponent;
}

template <class Bits>
std::optional<std::int64_t> find(const std::byte* bytes, std::int64_t n, Bits exponent,
                                 bool (*is_wanted)(Bits, Bits)) noexcept {
  const auto* x = reinterpret_cast<const Bits*>(bytes);
  constexpr std::int64_t piece = 1024;
  for (std::int64_t from = 0; from < n; from += piece) {
    const auto end = from + piece < n ? from + piece : n;
    Bits any = 0;
    for (auto i = from; i < end; ++i)
      any = static_cast<Bits>(any | static_cast<Bits>(is_not_finite(x[i], exponent) ? 1 : 0));
    if (any == 0) continue;
    for (auto i = from; i < end; ++i)
      if (is_wanted(x[i], exponent)) return i;
  }
  return std::nullopt;
}

template <class Bits>
std::string text_of(const std::byte* bytes, std::int64_t element, Bits exponent) {
  Bits x;
  std::memcpy(&x, bytes + element * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
  constexpr auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto fraction = static_cast<Bits>(x & static_cast<Bits>(~(exponent | sign)));
  return fraction != 0 ? "nan" : (x & sign) != 0 ? "-inf" : "inf";
}

// Calls `what` with the bytes and the bits of the exponent of its type.
template <class What, class Other>
auto of_type(const tensor& t, What what, Other other) {
  const auto* bytes = t.bytes().data();
  switch (t.type()) {
    case dtype::f32: return what(bytes, std::uint32_t{0x7F80'0000});
    case dtype::f64: return what(bytes, std::uint64_t{0x7FF0'0000'0000'0000});
    case dtype::f16: return what(bytes, std::uint16_t{0x7C00});
    case dtype::bf16: return what(bytes, std::uint16_t{0x7F80});
    default: return other();
  }
}

}  // namespace

std::optional<std::int64_t> first_not_finite(const tensor& t) noexcept {
  return of_type(
      t,
      [&]<class Bits>(const std::byte* bytes, Bits exponent) {
        return find(bytes, t.elements(), exponent, is_not_finite<Bits>);
      },
      [] { return std::optional<std::int64_t>(); });
}

std::optional<std::int64_t> first_nan(const tensor& t) noexcept {
  return of_type(
      t,
      [&]<class Bits>(const std::byte* bytes, Bits exponent) {
        return find(bytes, t.elements(), exponent, is_nan_of_bits<Bits>);
      },
      [] { return std::optional<std::int64_t>(); });
}

std::string not_finite_text(const tensor& t, std::int64_t element) {
  return of_type(
      t, [&](const std::byte* bytes, auto exponent) { return text_of(bytes, element, exponent); },
      [] { return std::string("a number"); });
}

}  // namespace troupe
