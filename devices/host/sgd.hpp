#pragma once
// What a parameter shard computes: one step of SGD with momentum. Plain functions over
// memory, for f32.
//
// Equal arguments give equal bits, whatever the alignment or the position in a vector (K-2).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

// g = gradients[0] + gradients[1] + ... (in this order); v_out = momentum * v_in + g; w_out =
// w_in - learning_rate * v_out. One pass over memory. w_out may be w_in, v_out may be v_in; nothing
// else may overlap. No gradients: g = 0.
void sgd_momentum(const float* w_in, float* w_out, const float* v_in, float* v_out,
                  std::span<const float* const> gradients, std::size_t n, float learning_rate,
                  float momentum) noexcept;
// The same with v_out = v_in.
inline void sgd_momentum(const float* w_in, float* w_out, float* velocity,
                         std::span<const float* const> gradients, std::size_t n,
                         float learning_rate, float momentum) noexcept {
  sgd_momentum(w_in, w_out, velocity, velocity, gradients, n, learning_rate, momentum);
}

// out = gradients[0] + gradients[1] + ... (in this order): sgd_momentum() of the sum alone has the
// bits of that of all of them.
void sum_gradients(float* out, std::span<const float* const> gradients, std::size_t n) noexcept;

}  // namespace troupe
