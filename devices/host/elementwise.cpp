#include "devices/host/elementwise.hpp"

#include "devices/host/host_kernels.hpp"

#include <algorithm>
#include <vector>

namespace troupe::host {

const elementwise_overload* find_overload(std::span<const elementwise_overload> overloads, std::span<const tensor_spec> inputs, dtype out) {
  const auto at = std::find_if(overloads.begin(), overloads.end(), [&](const auto& o) {
    if (o.out != out || o.operands != inputs.size()) return false;
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (o.in[k] != inputs[k].type) return false;
    return true;
  });
  return at != overloads.end() ? &*at : nullptr;
}

result<void> elementwise_kernel::prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) {
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
  // No operand has the size of the result along the last dimension: only an op of other dimensions gives such a result.
  if (advancing == 0) return unfit(op_, "the result is larger than its operands", inputs);
  compute_ = overload_->tiles[advancing - 1];
  return {};
}

result<void> elementwise_kernel::run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) {
  const auto block_elements = walk_.rows() * walk_.columns();
  if (block_elements == 0) return {};  // an empty operand must not be read
  std::array<const std::byte*, elementwise_operands_max> operands{};
  std::array<std::int64_t, elementwise_operands_max> row_steps{};
  for (std::size_t k = 0; k < inputs.size(); ++k) row_steps[k] = walk_.row_step(k);
  const auto out_bytes = block_elements * static_cast<std::int64_t>(size_of(overload_->out));
  auto* out = outputs[0].bytes().data();
  for (std::int64_t b = 0; b < walk_.blocks(); ++b, out += out_bytes) {
    for (std::size_t k = 0; k < inputs.size(); ++k)
      operands[k] = inputs[k].bytes().data() + walk_.offset(k, b) * static_cast<std::int64_t>(size_of(overload_->in[k]));
    compute_(out, operands.data(), row_steps.data(), walk_.rows(), walk_.columns());
  }
  return {};
}

}  // namespace troupe::host
