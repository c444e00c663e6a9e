#pragma once
// How a loop walks over a result whose operands are broadcast by NumPy's rules, with as few nested
// loops as possible. Used in devices/host/ only.
//
// Dimensions of one element vanish, and neighbours that all operands walk alike become one: most
// walks are a single row. What is left are rows x columns, and blocks of these around them.
//
// BW-1  Along a row an operand advances by one element or not at all.
// BW-2  The result is dense: its block b begins at element b * rows * columns.

#include "troupe/schema/shape.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::host {

class broadcast_walk {
 public:
  broadcast_walk() = default;
  // nullopt: an operand cannot be broadcast to `out`. All shapes are concrete.
  static std::optional<broadcast_walk> over(const shape& out, std::span<const shape> operands);

  std::int64_t blocks() const noexcept { return blocks_; }
  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t columns() const noexcept { return columns_; }

  std::size_t operands() const noexcept { return steps_.size(); }
  // Of operand k: elements from one row to the next; whether it advances along a row.
  std::int64_t row_step(std::size_t k) const noexcept { return steps_[k].row; }
  bool advances(std::size_t k) const noexcept { return steps_[k].column != 0; }
  // The element of operand k that block b begins with.
  std::int64_t offset(std::size_t k, std::int64_t block) const noexcept;

 private:
  static constexpr std::size_t around_max = shape::rank_max - 2;
  struct steps {
    std::int64_t column = 1, row = 0;
    std::array<std::int64_t, around_max> around{};
  };

  std::int64_t blocks_ = 1, rows_ = 1, columns_ = 1;
  std::size_t around_ = 0;                        // loops around a block
  std::array<std::int64_t, around_max> sizes_{};  // of those, outermost first
  std::vector<steps> steps_;
};

}  // namespace troupe::host
