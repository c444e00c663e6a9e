#include "troupe/devices/host/loops/elementwise.hpp"

#include "troupe/devices/host/host_kernels.hpp"

#include <algorithm>
#include <vector>

namespace troupe::host {

const elementwise_overload* find_overload(std::span<const elementwise_overload> overloads,
                                          std::span<const tensor_spec> inputs, dtype out) {
  const auto at = std::find_if(overloads.begin(), overloads.end(), [&](const auto& o) {
    if (o.out != out || o.operands != inputs.size()) return false;
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (o.in[k] != inputs[k].type) return false;
    return true;
  });
  return at != overloads.end() ? &*at : nullptr;
}

result<void> elementwise_kernel::prepare(std::span<const tensor_spec> inputs,
                                         std::span<const tensor_spec> outputs) {
  if (auto ok = check_ports(op_, inputs, overloads_[0].operands, outputs, 1); !ok) return ok;
  overload_ = find_overload(overloads_, inputs, outputs[0].type);
  if (overload_ == nullptr) return unfit(op_, "there is no kernel for these element types", inputs);
  std::array<shape, elementwise_operands_max> shapes;
  for (std::size_t k = 0; k < inputs.size(); ++k) shapes[k] = inputs[k].shape;
  const auto walk = broadcast_walk::over(outputs[0].shape, std::span(shapes).first(inputs.size()));
  if (!walk) return unfit(op_, "an operand cannot be broadcast to the result", inputs);
  walk_ = *walk;
  std::size_t advancing = 0;
  for (std::size_t k = 0; k < inputs.size(); ++k) advancing |= std::size_t{walk_.advances(k)} << k;
  // No operand has the size of the result along the last dimension: only an op of other dimensions
  // gives such a result.
  if (advancing == 0) return unfit(op_, "the result is larger than its operands", inputs);
  compute_ = overload_->tiles[advancing - 1];
  const auto items = std::max({walk_.blocks(), walk_.rows(), walk_.columns()});
  const auto each = items == 0 ? 0.0
                               : elementwise_ns(1, inputs.size()) *
                                     static_cast<double>(outputs[0].shape.elements()) /
                                     static_cast<double>(items);
  constexpr std::int64_t grain = 16;  // of elements: nobody writes into the cache line of another
  cut_ = tile_cut::by_cost(items, each, tile_least_ns, items == walk_.columns() ? grain : 1);
  return {};
}

result<void> elementwise_kernel::run(const tag&, std::span<const tensor> inputs,
                                     std::span<tensor> outputs) {
  const auto block_elements = walk_.rows() * walk_.columns();
  if (block_elements == 0) return {};  // an empty operand must not be read
  std::array<std::int64_t, elementwise_operands_max> row_steps{};
  for (std::size_t k = 0; k < inputs.size(); ++k) row_steps[k] = walk_.row_step(k);
  const auto out_bytes = static_cast<std::int64_t>(size_of(overload_->out));
  auto* const out = outputs[0].bytes().data();
  // Rows x columns of a block, from a row and column of it on.
  const auto compute = [&](std::int64_t block, std::int64_t row, std::int64_t column,
                           std::int64_t rows, std::int64_t columns) {
    std::array<const std::byte*, elementwise_operands_max> operands{};
    for (std::size_t k = 0; k < inputs.size(); ++k)
      operands[k] =
          inputs[k].bytes().data() +
          (walk_.offset(k, block) + row * row_steps[k] + (walk_.advances(k) ? column : 0)) *
              static_cast<std::int64_t>(size_of(overload_->in[k]));
    compute_(out + (block * block_elements + row * walk_.columns() + column) * out_bytes,
             operands.data(), row_steps.data(), rows, columns);
  };
  if (cut_.each >= cut_.items) {  // small: one tile
    for (std::int64_t b = 0; b < walk_.blocks(); ++b)
      compute(b, 0, 0, walk_.rows(), walk_.columns());
    return {};
  }
  return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
    const auto first = cut_.begin(tile), count = cut_.size(tile);
    const bool is_by_columns = cut_.items == walk_.columns(),
               is_by_rows = !is_by_columns && cut_.items == walk_.rows();
    const bool is_by_blocks = !is_by_columns && !is_by_rows;
    for (auto b = is_by_blocks ? first : 0; b < (is_by_blocks ? first + count : walk_.blocks());
         ++b) {
      // Rows of a tile lie dense only where they are whole.
      if (is_by_columns && count < cut_.items)
        for (std::int64_t r = 0; r < walk_.rows(); ++r) compute(b, r, first, 1, count);
      else
        compute(b, is_by_rows ? first : 0, 0, is_by_rows ? count : walk_.rows(), walk_.columns());
    }
    return {};
  });
}

}  // namespace troupe::host
