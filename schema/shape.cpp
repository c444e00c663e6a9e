#include "troupe/schema/shape.hpp"

#include "troupe/schema/error.hpp"

#include <fmt/format.h>

namespace troupe {

shape::shape(std::initializer_list<std::int64_t> sizes) {
  expects(sizes.size() <= rank_max, "a shape has at most 8 dimensions");
  for (auto n : sizes) {
    expects(n >= 0, "a dimension is not negative");
    sizes_[rank_++] = n;
  }
  std::int64_t product = 1;
  for (auto n : sizes)
    expects(!__builtin_mul_overflow(product, n == 0 ? 1 : n, &product),
            "the sizes of a shape have a product");
}

std::optional<shape> shape::from(std::span<const dim> dims) noexcept {
  if (dims.size() > rank_max) return std::nullopt;
  shape s;
  std::int64_t product = 1;
  for (const auto& d : dims) {
    if (d.size < 0) return std::nullopt;
    // Zero must not hide an overflow of the other sizes, which are used on their own in strides.
    if (__builtin_mul_overflow(product, d.size == 0 ? 1 : d.size, &product)) return std::nullopt;
    s.sizes_[s.rank_] = d.size;
    s.symbols_[s.rank_++] = d.symbol;
  }
  return s;
}

bool shape::is_symbolic() const noexcept {
  return symbols_ != std::array<std::uint8_t, rank_max>{};
}

shape shape::with_symbol(std::uint8_t symbol, std::int64_t size) const noexcept {
  shape s = *this;
  for (std::size_t i = 0; i < rank_; ++i)
    if (s.symbols_[i] == symbol) {
      s.sizes_[i] = size;
      s.symbols_[i] = 0;
    }
  return s;
}

shape shape::with_dim(std::size_t i, dim d) const noexcept {
  shape s = *this;
  if (i < rank_) {
    s.sizes_[i] = d.size;
    s.symbols_[i] = d.symbol;
  }
  return s;
}

bool shape::admits(const shape& concrete) const noexcept {
  if (rank_ != concrete.rank_) return false;
  for (std::size_t i = 0; i < rank_; ++i) {
    const bool fits = symbols_[i] != 0 ? concrete.size(i) <= size(i) : concrete.size(i) == size(i);
    if (!fits) return false;
  }
  return true;
}

std::string to_string(const shape& s) {
  std::string text = "[";
  for (std::size_t i = 0; i < s.rank(); ++i)
    text += fmt::format("{}{}{}", i == 0 ? "" : ", ", s.size(i), s[i].symbol != 0 ? "?" : "");
  return text + "]";
}

}  // namespace troupe
