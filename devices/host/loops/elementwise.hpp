#pragma once
// Element-wise kernels: what all of them share, and what each shows to a fused group: a function
// over a tile. Used in devices/host/ only. The operations stand in ops/, a file per family;
// elementwise_tiles.hpp makes tiles of them.
//
// EW-1  Operands are broadcast by NumPy's rules to the shape of the result.

#include "troupe/devices/host/loops/broadcast.hpp"
#include "troupe/devices/host/tile_team.hpp"
#include "troupe/devices/kernel.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::host {

inline constexpr std::size_t elementwise_operands_max = 3;

// out[rows, columns] from operands. Operand k moves by row_steps[k] elements from row to row;
// within a row it advances with the result or stays, which the function was chosen for. out may be
// any operand that advances along rows and columns.
using tile_function = void (*)(std::byte* out, const std::byte* const* operands,
                               const std::int64_t* row_steps, std::int64_t rows,
                               std::int64_t columns);

// An operation for one combination of element types.
struct elementwise_overload {
  std::uint8_t operands = 0;
  std::array<dtype, elementwise_operands_max> in{};
  dtype out = dtype::f32;
  // By the operands that advance along a row, as bits, minus 1: at least one does.
  std::array<tile_function, (1U << elementwise_operands_max) - 1> tiles{};
};

class elementwise_kernel : public kernel {
 public:
  // `op` and `overloads` live as long as the program.
  elementwise_kernel(std::string_view op, std::span<const elementwise_overload> overloads,
                     tile_team& team)
      : op_(op), overloads_(overloads), team_(team) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) final;
  result<void> run(const tag& t, std::span<const tensor> inputs, std::span<tensor> outputs) final;

  // Valid after prepare().
  std::size_t operands() const noexcept { return overload_->operands; }
  tile_function compute() const noexcept { return compute_; }
  const elementwise_overload& overload() const noexcept { return *overload_; }

 private:
  std::string_view op_;
  std::span<const elementwise_overload> overloads_;
  tile_team& team_;
  const elementwise_overload* overload_ = nullptr;
  tile_function compute_ = nullptr;
  broadcast_walk walk_;
  tile_cut cut_;  // of blocks, rows or columns, whichever are most
};

// About what an element takes that so many ops go over, where so many operands of the group come
// from memory.
inline double elementwise_ns(std::size_t ops, std::size_t operands) noexcept {
  return 0.05 * static_cast<double>(ops) + 0.15 * static_cast<double>(operands + 1);
}

// The overload for these element types, nullptr: there is none.
const elementwise_overload* find_overload(std::span<const elementwise_overload> overloads,
                                          std::span<const tensor_spec> inputs, dtype out);

}  // namespace troupe::host
