#pragma once
// The extents of a tensor, outermost first, row-major. A value type without allocation.
//
// A dimension may be symbolic: its size is then a bound that a step may stay below (the last batch
// of an epoch is smaller). Symbols are small positive numbers, equal symbols have equal sizes in
// every step. Tensors at run time have plain shapes, without symbols.
//
// SH-1  rank() <= rank_max, every size >= 0, and the product of all sizes fits in int64 (checked by
//       from()).

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

namespace troupe {

struct dim {
  std::int64_t size = 0;    // elements, or the bound of a symbolic dimension
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
  std::int64_t elements() const noexcept {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }

  bool is_symbolic() const noexcept;
  // The same rank, symbolic dimensions of the given symbol replaced by an exact size.
  shape with_symbol(std::uint8_t symbol, std::int64_t size) const noexcept;
  shape with_dim(std::size_t i, dim d) const noexcept;
  // True when `concrete` has this rank, equal exact sizes, and sizes within the bounds of symbolic
  // ones.
  bool admits(const shape& concrete) const noexcept;

  // Every firing compares shapes, mostly of one or two dimensions: a comparison of all bytes would
  // be a call.
  friend bool operator==(const shape& a, const shape& b) noexcept {
    if (a.rank_ != b.rank_ ||
        std::bit_cast<std::uint64_t>(a.symbols_) != std::bit_cast<std::uint64_t>(b.symbols_))
      return false;
    for (std::size_t i = 0; i < a.rank_; ++i)
      if (a.sizes_[i] != b.sizes_[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, rank_max> sizes_{};  // zero from rank_ on
  std::array<std::uint8_t, rank_max> symbols_{};
  std::uint8_t rank_ = 0;
};

// "[128?, 784]": a question mark behind symbolic bounds.
std::string to_string(const shape& s);

}  // namespace troupe
