#pragma once
// One step of each optimizer over a variable, as plain functions over f32 memory. (Plain SGD has
// its own, in sgd.hpp.)
//
// Formulas and the order of their operations are those of torch.optim
// (torch/optim/{sgd,adam,adamw,rmsprop,adagrad}.py, one tensor, no amsgrad), so that both go the
// same way but for roundings. The numbers are what is left of an optimizer's settings in one step;
// who makes them knows the step (runtime/shards/shard_update.hpp).
//
// One pass over memory. Every `out` may be its own `in`; nothing else may overlap. Equal arguments
// give equal bits, whatever the alignment or the position in a vector (K-2).

#include <cstddef>
#include <limits>
#include <span>

namespace troupe {

// A gradient as an optimizer takes it: parts[0] + parts[1] + ... (in this order; none: zeros), each
// element of the sum moved into [-limit, limit], then multiplied by scale. NaN stays.
struct gradient_sum {
  std::span<const float* const> parts;
  float limit = std::numeric_limits<float>::infinity();
  float scale = 1;
};

// Square root of the sum of squares of the sum, limited but not scaled. In f64, in a fixed order: a
// pure function of the elements.
double norm_of(const gradient_sum& g, std::size_t n) noexcept;

// A tensor before and after the step: the values, or a slot of the optimizer's state.
struct stepped {
  const float* in = nullptr;
  float* out = nullptr;
};

// g += weight_decay w; v = momentum v + g; w -= learning_rate v, or (nesterov) learning_rate (g +
// momentum v). Without decay, limit and scale and not nesterov: the bits of sgd_momentum().
struct sgd_numbers {
  float learning_rate = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
void sgd_step(stepped w, stepped velocity, const gradient_sum& g, std::size_t n,
              const sgd_numbers& k) noexcept;

// g += weight_decay w; w *= keep; m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2;
// w -= step_size m / (sqrt(v) / root_correction + epsilon).
struct adam_numbers {
  float step_size = 0;              // learning rate / (1 - beta1^t)
  float root_correction = 1;        // sqrt(1 - beta2^t)
  float new_first = 0;              // 1 - beta1
  float beta2 = 0, new_second = 0;  // 1 - beta2
  float epsilon = 0;
  float weight_decay = 0;  // L2
  float keep = 1;          // decoupled: 1 - learning rate * decay
};
void adam_step(stepped w, stepped first_moment, stepped second_moment, const gradient_sum& g,
               std::size_t n, const adam_numbers& k) noexcept;

// g += weight_decay w; s = alpha s + (1 - alpha) g^2; a = sqrt(s) + epsilon, or (centered) m +=
// (1 - alpha) (g - m) and a = sqrt(s - m^2) + epsilon; w -= learning_rate g / a, or (with velocity)
// v = momentum v + g / a; w -= learning_rate v. Slots that are not used have no memory. Where
// rounding makes s - m^2 negative, it counts as 0.
struct rmsprop_numbers {
  float learning_rate = 0, momentum = 0, alpha = 0, new_square = 0;  // new_square: 1 - alpha
  float epsilon = 0, weight_decay = 0;
};
void rmsprop_step(stepped w, stepped square_average, stepped velocity, stepped gradient_average,
                  const gradient_sum& g, std::size_t n, const rmsprop_numbers& k) noexcept;

// g += weight_decay w; s += g^2; w -= learning_rate g / (sqrt(s) + epsilon).
struct adagrad_numbers {
  float learning_rate = 0;  // / (1 + (t - 1) decay)
  float epsilon = 0, weight_decay = 0;
};
void adagrad_step(stepped w, stepped square_sum, const gradient_sum& g, std::size_t n,
                  const adagrad_numbers& k) noexcept;

// w += rate (scale g - w).
struct average_numbers {
  float rate = 0, scale = 1;
};
void average_step(stepped w, const gradient_sum& g, std::size_t n,
                  const average_numbers& k) noexcept;

}  // namespace troupe
