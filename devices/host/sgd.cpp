#include "troupe/devices/host/sgd.hpp"

#include <algorithm>

namespace troupe {
namespace {

// One pass for the usual numbers of workers, known at compile time so that GCC vectorises it.
template <std::size_t Gradients>
void update(const float* w_in, float* w_out, const float* v_in, float* v_out,
            const float* const* gradients, std::size_t n, float learning_rate,
            float momentum) noexcept {
  const float *g0 = gradients[0], *g1 = Gradients > 1 ? gradients[1] : g0,
              *g2 = Gradients > 2 ? gradients[2] : g0, *g3 = Gradients > 3 ? gradients[3] : g0;
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) {
    float g = g0[i];
    if (Gradients > 1) g = g + g1[i];
    if (Gradients > 2) g = g + g2[i];
    if (Gradients > 3) g = g + g3[i];
    const float v = momentum * v_in[i] + g;
    v_out[i] = v;
    w_out[i] = w_in[i] - learning_rate * v;
  }
}

// Any number: gradients are summed into a piece that stays in the first-level cache.
void update_many(const float* w_in, float* w_out, const float* v_in, float* v_out,
                 std::span<const float* const> gradients, std::size_t n, float learning_rate,
                 float momentum) noexcept {
  constexpr std::size_t piece = 1024;
  alignas(64) float sums[piece];
  for (std::size_t first = 0; first < n; first += piece) {
    const auto count = std::min(piece, n - first);
    std::fill_n(sums, count, 0.0F);
    if (!gradients.empty()) std::copy_n(gradients[0] + first, count, sums);
    for (std::size_t k = 1; k < gradients.size(); ++k)
      for (std::size_t i = 0; i < count; ++i) sums[i] += gradients[k][first + i];
    const float* sum = sums;
    update<1>(w_in + first, w_out + first, v_in + first, v_out + first, &sum, count, learning_rate,
              momentum);
  }
}

}  // namespace

void sgd_momentum(const float* w_in, float* w_out, const float* v_in, float* v_out,
                  std::span<const float* const> gradients, std::size_t n, float learning_rate,
                  float momentum) noexcept {
  const auto* g = gradients.data();
  switch (gradients.size()) {
    case 1: return update<1>(w_in, w_out, v_in, v_out, g, n, learning_rate, momentum);
    case 2: return update<2>(w_in, w_out, v_in, v_out, g, n, learning_rate, momentum);
    case 3: return update<3>(w_in, w_out, v_in, v_out, g, n, learning_rate, momentum);
    case 4: return update<4>(w_in, w_out, v_in, v_out, g, n, learning_rate, momentum);
    default: return update_many(w_in, w_out, v_in, v_out, gradients, n, learning_rate, momentum);
  }
}

void sum_gradients(float* out, std::span<const float* const> gradients, std::size_t n) noexcept {
  if (gradients.empty()) return static_cast<void>(std::fill_n(out, n, 0.0F));
  if (gradients.size() == 1) return static_cast<void>(std::copy_n(gradients[0], n, out));
  const float *a = gradients[0], *b = gradients[1];
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  for (const auto* more : gradients.subspan(2))
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) out[i] += more[i];
}

}  // namespace troupe
