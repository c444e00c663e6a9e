#pragma once
// The extents of a tensor, outermost first, row-major. A value type without allocation.
//
// A dimension may be symbolic: its size is then a bound that a step may stay below (the last batch of an epoch is
// smaller). Symbols are small positive numbers, equal symbols have equal sizes in every step. Tensors at
// run time have plain shapes, without symbols.
//
// SH-1  rank() <= rank_max, every size >= 0, and the product of all sizes fits in int64 (checked by from()).

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

namespace troupe {

struct dim {
  std::int64_t size = 0;     // elements, or the bound of a symbolic dimension
  std::uint8_t symbol = 0;  // 0: the size is exact

  friend constexpr bool operator==(const dim&, const dim&) = default;
};

class shape {
 public:
  static constexpr std::size_t rank_max = 8;

  constexpr shape() = default;  // a scalar
  // Sizes known to be valid (a literal in a program); use from() for anything that was read.
  shape(std::initializer_list<std::int64_t> sizes);

  // nullopt: rank, a negative size or an overflowing product (SH-1).
  static std::optional<shape> from(std::span<const dim> dims) noexcept;

  std::size_t rank() const noexcept { return rank_; }
  dim operator[](std::size_t i) const noexcept { return {sizes_[i], symbols_[i]}; }
  std::int64_t size(std::size_t i) const noexcept { return sizes_[i]; }
  std::span<const std::int64_t> sizes() const noexcept { return {sizes_.data(), rank_}; }
  // Product of all sizes (bounds, for symbolic dimensions). 1 for a scalar.
  std::int64_t elements() const noexcept;

  bool is_symbolic() const noexcept;
  // The same rank, symbolic dimensions of the given symbol replaced by an exact size.
  shape with_symbol(std::uint8_t symbol, std::int64_t size) const noexcept;
  shape with_dim(std::size_t i, dim d) const noexcept;
  // True when `concrete` has this rank, equal exact sizes, and sizes within the bounds of symbolic ones.
  bool admits(const shape& concrete) const noexcept;

  friend bool operator==(const shape&, const shape&) noexcept = default;

 private:
  std::array<std::int64_t, rank_max> sizes_{};  // zero from rank_ on, so that shapes compare as bytes
  std::array<std::uint8_t, rank_max> symbols_{};
  std::uint8_t rank_ = 0;
};

// "[128?, 784]": a question mark behind symbolic bounds.
std::string to_string(const shape& s);

}  // namespace troupe
