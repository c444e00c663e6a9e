#pragma once
// One step of an optimizer on a variable of f32, as numbers: what a device is told of it. Who makes
// them knows the optimizer, its schedule and the step (runtime/shards/shard_update.hpp).
//
// Threading: values.

#include "troupe/devices/host/optimizers.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <variant>
#include <vector>

namespace troupe {

struct optimizer_step {
  std::variant<sgd_numbers, adam_numbers, rmsprop_numbers, adagrad_numbers, average_numbers>
      numbers;
  bool has_velocity = false, is_centered = false;        // rmsprop: which of its slots there are
  float limit = std::numeric_limits<float>::infinity();  // of each element of the gradients' sum
  double norm_max = 0;                                   // of all of them, 0: any
};

// On the host. `state`: the slots, in the order of the optimizer's; an average leaves them as they
// are. Every `out` may be its own `in`; gradients overlap with nothing.
void apply_step(const optimizer_step& step, stepped values, std::span<const stepped> state,
                std::span<const float* const> gradients, std::size_t elements);

// Where a device finds them. State is changed in place.
struct device_update {
  std::span<const std::byte> values;
  std::span<std::byte> result;
  std::vector<std::span<std::byte>> state;
  std::vector<std::span<const std::byte>> gradients;  // of the workers, in their order
  std::size_t elements() const noexcept { return values.size() / sizeof(float); }
};

}  // namespace troupe
