#include "troupe/devices/host/optimizers.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe {
namespace {

constexpr std::size_t piece = 1024;  // elements of a gradient that stay in the first-level cache

float limited(float x, float limit) noexcept {
  x = x < -limit ? -limit : x;
  return x > limit ? limit : x;
}

bool is_one(const gradient_sum& g) noexcept {
  return g.parts.size() == 1 && g.limit == std::numeric_limits<float>::infinity() && g.scale == 1;
}

// Elements first, first + 1, ... of the gradient.
void sum_piece(float* out, const gradient_sum& g, std::size_t first, std::size_t count) noexcept {
  if (g.parts.empty())
    std::fill_n(out, count, 0.0F);
  else
    std::copy_n(g.parts[0] + first, count, out);
  for (std::size_t k = 1; k < g.parts.size(); ++k) {
    const float* part = g.parts[k] + first;
    for (std::size_t i = 0; i < count; ++i) out[i] += part[i];
  }
  if (g.limit != std::numeric_limits<float>::infinity())
    for (std::size_t i = 0; i < count; ++i) out[i] = limited(out[i], g.limit);
  if (g.scale != 1)
    for (std::size_t i = 0; i < count; ++i) out[i] *= g.scale;
}

// step(first, count, gradient) for all elements, piece by piece where the gradient has to be made.
template <class Step>
void for_pieces(const gradient_sum& g, std::size_t n, Step&& step) noexcept {
  if (is_one(g)) return step(0, n, g.parts[0]);
  alignas(64) float sum[piece];
  for (std::size_t first = 0; first < n; first += piece) {
    const auto count = std::min(piece, n - first);
    sum_piece(sum, g, first, count);
    step(first, count, static_cast<const float*>(sum));
  }
}

stepped from(stepped t, std::size_t first) noexcept {
  return t.in == nullptr ? t : stepped{t.in + first, t.out + first};
}

// a + weight (b - a), by the form that is exact at the nearer end.
template <bool IsNearB>
float mixed(float a, float b, float weight) noexcept {
  return IsNearB ? b - (b - a) * (1.0F - weight) : a + weight * (b - a);
}

template <bool IsNesterov>
void sgd_piece(stepped w, stepped velocity, const float* gradient, std::size_t n,
               const sgd_numbers k) noexcept {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i] + k.weight_decay * w.in[i];
    const float v = k.momentum * velocity.in[i] + g;
    velocity.out[i] = v;
    w.out[i] = w.in[i] - k.learning_rate * (IsNesterov ? g + k.momentum * v : v);
  }
}

template <bool IsNearGradient>
void adam_piece(stepped w, stepped first_moment, stepped second_moment, const float* gradient,
                std::size_t n, const adam_numbers k) noexcept {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i] + k.weight_decay * w.in[i];
    const float m = mixed<IsNearGradient>(first_moment.in[i], g, k.new_first);
    const float v = k.beta2 * second_moment.in[i] + k.new_second * g * g;
    first_moment.out[i] = m;
    second_moment.out[i] = v;
    w.out[i] = k.keep * w.in[i] - k.step_size * m / (std::sqrt(v) / k.root_correction + k.epsilon);
  }
}

template <bool IsCentered, bool HasVelocity, bool IsNearGradient>
void rmsprop_piece(stepped w, stepped square_average, stepped velocity, stepped gradient_average,
                   const float* gradient, std::size_t n, const rmsprop_numbers k) noexcept {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i] + k.weight_decay * w.in[i];
    const float s = k.alpha * square_average.in[i] + k.new_square * g * g;
    square_average.out[i] = s;
    float variance = s;
    if (IsCentered) {
      const float m = mixed<IsNearGradient>(gradient_average.in[i], g, k.new_square);
      gradient_average.out[i] = m;
      variance = s - m * m;
      variance = variance < 0.0F ? 0.0F : variance;
    }
    const float root = std::sqrt(variance) + k.epsilon;
    if (HasVelocity) {
      const float v = k.momentum * velocity.in[i] + g / root;
      velocity.out[i] = v;
      w.out[i] = w.in[i] - k.learning_rate * v;
    } else {
      w.out[i] = w.in[i] - k.learning_rate * g / root;
    }
  }
}

}  // namespace

double norm_of(const gradient_sum& g, std::size_t n) noexcept {
  constexpr std::size_t lanes = 8;
  const gradient_sum unscaled{g.parts, g.limit, 1};
  double total = 0;
  alignas(64) float sum[piece];
  for (std::size_t first = 0; first < n; first += piece) {
    const auto count = std::min(piece, n - first);
    sum_piece(sum, unscaled, first, count);
    // What is missing of whole lanes adds zeros.
    std::fill(sum + count, sum + (count + lanes - 1) / lanes * lanes, 0.0F);
    std::array<double, lanes> squares{};
    for (std::size_t i = 0; i < count; i += lanes)
      for (std::size_t k = 0; k < lanes; ++k) {
        const auto x = static_cast<double>(sum[i + k]);
        squares[k] += x * x;
      }
    for (const auto s : squares) total += s;
  }
  return std::sqrt(total);
}

void sgd_step(stepped w, stepped velocity, const gradient_sum& g, std::size_t n,
              const sgd_numbers& k) noexcept {
  const auto step = k.nesterov ? sgd_piece<true> : sgd_piece<false>;
  for_pieces(g, n, [&](std::size_t first, std::size_t count, const float* gradient) {
    step(from(w, first), from(velocity, first), gradient, count, k);
  });
}

void adam_step(stepped w, stepped first_moment, stepped second_moment, const gradient_sum& g,
               std::size_t n, const adam_numbers& k) noexcept {
  const auto step = k.new_first < 0.5F ? adam_piece<false> : adam_piece<true>;
  for_pieces(g, n, [&](std::size_t first, std::size_t count, const float* gradient) {
    step(from(w, first), from(first_moment, first), from(second_moment, first), gradient, count, k);
  });
}

void rmsprop_step(stepped w, stepped square_average, stepped velocity, stepped gradient_average,
                  const gradient_sum& g, std::size_t n, const rmsprop_numbers& k) noexcept {
  const bool is_centered = gradient_average.in != nullptr, has_velocity = velocity.in != nullptr;
  const bool is_near = k.new_square >= 0.5F;
  const auto step =
      is_centered
          ? (has_velocity
                 ? (is_near ? rmsprop_piece<true, true, true> : rmsprop_piece<true, true, false>)
                 : (is_near ? rmsprop_piece<true, false, true> : rmsprop_piece<true, false, false>))
          : (has_velocity ? rmsprop_piece<false, true, false> : rmsprop_piece<false, false, false>);
  for_pieces(g, n, [&](std::size_t first, std::size_t count, const float* gradient) {
    step(from(w, first), from(square_average, first), from(velocity, first),
         from(gradient_average, first), gradient, count, k);
  });
}

void adagrad_step(stepped w, stepped square_sum, const gradient_sum& g, std::size_t n,
                  const adagrad_numbers& k) noexcept {
  for_pieces(g, n, [&](std::size_t first, std::size_t count, const float* gradient) {
    const auto [w_in, w_out] = from(w, first);
    const auto [s_in, s_out] = from(square_sum, first);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      const float x = gradient[i] + k.weight_decay * w_in[i];
      const float s = s_in[i] + x * x;
      s_out[i] = s;
      w_out[i] = w_in[i] - k.learning_rate * x / (std::sqrt(s) + k.epsilon);
    }
  });
}

void average_step(stepped w, const gradient_sum& g, std::size_t n,
                  const average_numbers& k) noexcept {
  for_pieces(g, n, [&](std::size_t first, std::size_t count, const float* gradient) {
    const auto [w_in, w_out] = from(w, first);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i)
      w_out[i] = w_in[i] + k.rate * (k.scale * gradient[i] - w_in[i]);
  });
}

}  // namespace troupe
