#pragma once
// What an element-wise kernel shows to a fused group: a function over a tile. Used in devices/host/ only.

#include "devices/kernel.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe::host {

inline constexpr std::size_t elementwise_operands_max = 3;

// How an operand's elements meet those of operand 0.
enum class operand_form : std::uint8_t {
  full,    // one by one
  row,     // the operand is as long as the last dimension, and is used for every row
  scalar,  // one element for all
};

// out[rows, columns] from operands; a `full` one points to the tile's first element, others to their own first one.
// out may be any of the full operands. Where all operands are full or scalar, a caller may take any number of
// elements as one row.
using tile_function = void (*)(std::byte* out, const std::byte* const* operands, std::int64_t rows,
                               std::int64_t columns);

class elementwise_kernel : public kernel {
 public:
  // Valid after prepare().
  struct tiling {
    tile_function compute = nullptr;
    std::array<operand_form, elementwise_operands_max> forms{};
    std::uint8_t operands = 0;
  };
  const tiling& tiles() const noexcept { return tiling_; }

  result<void> run(const tag& t, std::span<const tensor> inputs, std::span<tensor> outputs) final;

 protected:
  void set(const tiling& t, const tensor_spec& output) noexcept;

 private:
  tiling tiling_;
  std::int64_t rows_ = 0, columns_ = 0;
};

// The tensor as rows of its last dimension, or as one row where no operand has to know.
struct tile_extent {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};
tile_extent extent_of(const shape& s, bool by_rows) noexcept;

}  // namespace troupe::host
