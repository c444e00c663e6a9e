#pragma once
// Which element types an op takes.

#include "troupe/schema/dtype.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace troupe {

class dtype_set {
 public:
  constexpr dtype_set() = default;
  constexpr dtype_set(std::initializer_list<dtype> types) noexcept {
    for (const auto t : types) bits_ |= bit(t);
  }
  constexpr bool has(dtype t) const noexcept { return (bits_ & bit(t)) != 0; }
  constexpr bool is_empty() const noexcept { return bits_ == 0; }
  friend constexpr dtype_set operator|(dtype_set a, dtype_set b) noexcept {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(dtype_set, dtype_set) noexcept = default;

 private:
  static constexpr std::uint32_t bit(dtype t) noexcept {
    return 1U << static_cast<std::uint8_t>(t);
  }
  std::uint32_t bits_ = 0;
};

inline constexpr dtype_set floating{dtype::f32, dtype::f64};  // what is computed in
// What products, convolutions and attention take as well.
inline constexpr dtype_set halves{dtype::f16, dtype::bf16};
inline constexpr dtype_set any_floating{dtype::f32, dtype::f64, dtype::f16, dtype::bf16};
inline constexpr dtype_set whole{dtype::i32, dtype::i64};
inline constexpr dtype_set numbers = floating | whole;
inline constexpr dtype_set all_types = any_floating | whole | dtype_set{dtype::u8, dtype::boolean};

// "f32, f64 or i32"
inline std::string to_string(dtype_set s) {
  std::string text;
  std::string_view last;
  for (std::uint8_t i = 0; i < dtype_count; ++i) {
    if (!s.has(dtype{i})) continue;
    if (!last.empty()) text += (text.empty() ? "" : ", ") + std::string(last);
    last = to_string(dtype{i});
  }
  return text.empty() ? std::string(last) : text + " or " + std::string(last);
}

}  // namespace troupe
