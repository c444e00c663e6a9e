#pragma once
// Kernels that make one element, or one small piece, from its number alone: functions of i for i =
// 0, 1, ... in any order.
//
// On the device a thread calls them for every i that is its own; tests on the host call them in a
// loop and compare with the host's kernels. Pointers are to memory of the device. What several add
// to one place is added by the one thread that owns it, in the host's order: no atomics, equal bits
// in every run.

#include "troupe/devices/cuda/code/geometry.hpp"
#include "troupe/devices/device_code.hpp"
#include "troupe/devices/host/loops/philox.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe::cuda::code {

// Sums of whole numbers wrap around.
template <class T>
TROUPE_DEVICE T wrapped_sum(T a, T b) {
  return a + b;
}
TROUPE_DEVICE inline std::int32_t wrapped_sum(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
TROUPE_DEVICE inline std::int64_t wrapped_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// --- moving; W: a whole number of the element's size ---

template <class W>
struct copy_box {
  W* to;
  const W* from;
  box b;  // a: to, b: from
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto p = b.at(i);
    to[p.a] = from[p.b];
  }
};
template <class W>
struct fill {
  W* to;
  W value;
  TROUPE_DEVICE void operator()(std::int64_t i) const { to[i] = value; }
};

// --- by index; i: an element of the result ---

template <class W, class Index>
struct gather {
  W* to;
  const W* from;
  const Index* indices;
  std::int64_t count, along, inner;  // to [outer, count, inner], from [outer, along, inner]
  checked_index check;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto k = i % inner, j = i / inner % count, o = i / inner / count;
    const auto at = check(indices, j, along);
    to[i] = at < 0 ? W{} : from[(o * along + at) * inner + k];
  }
};
template <class W, class Index>
struct take_last {
  W* to;
  const W* from;
  const Index* indices;
  std::int64_t columns, from_columns;
  checked_index check;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto at = check(indices, i, from_columns);
    to[i] = at < 0 ? W{} : from[i / columns * from_columns + at];
  }
};
// i: an element of the result, [rows, columns]; of dy there are `taken` in a row.
template <class T, class Index>
struct put_last {
  T* to;
  const T* dy;
  const Index* indices;
  std::int64_t columns, taken;
  checked_index check;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto row = i / columns, column = i % columns;
    T sum{};
    for (std::int64_t j = row * taken; j < (row + 1) * taken; ++j)
      if (check(indices, j, columns) == column) sum = wrapped_sum(sum, dy[j]);
    to[i] = sum;
  }
};
template <class T, class Index>
struct one_hot {
  T* to;
  const Index* indices;
  std::int64_t depth;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    to[i] = static_cast<std::int64_t>(indices[i / depth]) == i % depth ? T{1} : T{};
  }
};
// Keys to sort by, for scatter_add: `along` of what is outside, which comes last.
template <class Index>
struct scatter_keys {
  std::uint32_t* keys;
  std::uint32_t* positions;
  const Index* indices;
  std::int64_t along;
  checked_index check;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto at = check(indices, i, along);
    keys[i] = static_cast<std::uint32_t>(at < 0 ? along : at);
    positions[i] = static_cast<std::uint32_t>(i);
  }
};
// Of sorted keys: the first of each adds all of its rows, in their order, to what stands in `to`.
// i: [outer, count, inner].
template <class T>
struct scatter_runs {
  T* to;
  const T* from;
  const std::uint32_t* keys;
  const std::uint32_t* positions;
  std::int64_t count, along, inner;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto k = i % inner, o = i / inner / count;
    auto j = i / inner % count;
    const auto key = keys[j];
    if (static_cast<std::int64_t>(key) >= along || (j > 0 && keys[j - 1] == key)) return;
    auto sum = to[(o * along + key) * inner + k];
    // Of many rows some are read ahead: the sums wait for each other, the reads need not.
    constexpr int ahead = 16;
    for (; j + ahead <= count && keys[j + ahead - 1] == key; j += ahead) {
      T rows[ahead];
      for (int r = 0; r < ahead; ++r) rows[r] = from[(o * count + positions[j + r]) * inner + k];
      for (int r = 0; r < ahead; ++r) sum = wrapped_sum(sum, rows[r]);
    }
    for (; j < count && keys[j] == key; ++j)
      sum = wrapped_sum(sum, from[(o * count + positions[j]) * inner + k]);
    to[(o * along + key) * inner + k] = sum;
  }
};

// --- pooling; i: an element of the result, or of the gradient of the image ---

template <class T>
struct max_pool {
  T* best;
  std::int32_t* places;
  const T* image;
  pool p;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto ox = i % p.ow, oy = i / p.ow % p.oh, plane = i / p.ow / p.oh;
    const auto* x = image + plane * p.h * p.w;
    T b = -std::numeric_limits<T>::infinity();
    std::int64_t at = -1;
    const auto rows = p.inside(0, oy), columns = p.inside(1, ox);
    for (auto ky = rows.first; ky < rows.end; ++ky)
      for (auto kx = columns.first; kx < columns.end; ++kx) {
        const auto j = p.place(0, oy, ky) * p.w + p.place(1, ox, kx);
        if (at < 0 || x[j] > b || (x[j] != x[j] && b == b)) b = x[j], at = j;
      }
    best[i] = b;
    places[i] = static_cast<std::int32_t>(at);
  }
};
// Windows that an element may lie in, row by row, as the host adds them up.
template <class T>
struct max_pool_grad {
  T* dx;
  const T* dy;
  const std::int32_t* places;
  pool p;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto x = i % p.w, y = i / p.w % p.h, plane = i / p.w / p.h, here = y * p.w + x;
    const auto rows = p.windows_of(0, y), columns = p.windows_of(1, x);
    T sum{};
    for (auto oy = rows.first; oy < rows.end; ++oy)
      for (auto ox = columns.first; ox < columns.end; ++ox) {
        const auto o = (plane * p.oh + oy) * p.ow + ox;
        if (places[o] == here) sum += dy[o];
      }
    dx[i] = sum;
  }
};
template <class T>
struct max_pool_take {
  T* y;
  const T* x;
  const std::int32_t* places;
  pool p;
  fault* faults;
  unsigned int op;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto place = places[i];
    if (place < -1 || place >= p.h * p.w) {
      report(faults, op, i, place, -1, p.h * p.w - 1);
      y[i] = T{};
      return;
    }
    y[i] = place >= 0 ? x[i / (p.oh * p.ow) * p.h * p.w + place] : T{};
  }
};
template <class T>
struct avg_pool {
  T* y;
  const T* image;
  pool p;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto ox = i % p.ow, oy = i / p.ow % p.oh, plane = i / p.ow / p.oh;
    const auto* x = image + plane * p.h * p.w;
    const auto rows = p.inside(0, oy), columns = p.inside(1, ox);
    T sum{};
    for (auto ky = rows.first; ky < rows.end; ++ky)
      for (auto kx = columns.first; kx < columns.end; ++kx)
        sum += x[p.place(0, oy, ky) * p.w + p.place(1, ox, kx)];
    y[i] = sum / static_cast<T>(p.count(oy, ox));
  }
};
template <class T>
struct avg_pool_grad {
  T* dx;
  const T* dy;
  pool p;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto x = i % p.w, y = i / p.w % p.h, plane = i / p.w / p.h;
    const auto rows = p.windows_of(0, y), columns = p.windows_of(1, x);
    T sum{};
    for (auto oy = rows.first; oy < rows.end; ++oy) {
      if (p.element_of(0, oy, y) < 0) continue;
      for (auto ox = columns.first; ox < columns.end; ++ox)
        if (p.element_of(1, ox, x) >= 0)
          sum += dy[(plane * p.oh + oy) * p.ow + ox] / static_cast<T>(p.count(oy, ox));
    }
    dx[i] = sum;
  }
};

// --- random numbers; i: a counter, which gives 4 (f32) or 2 (f64) elements. As
// devices/host/ops/random.cpp ---

enum class law : std::uint8_t { uniform, normal, mask };

template <class T>
struct random_numbers {
  T* out;
  std::int64_t elements;
  std::uint64_t first;           // element of the whole batch that out[0] is
  std::uint64_t draw;            // the step, where `draw_at` is null
  const std::uint64_t* draw_at;  // where a captured graph finds it
  std::uint32_t key_low, key_high;
  law kind;
  T a, b;  // uniform: low, high; normal: mean, deviation; mask: rate, what is kept

  static constexpr std::uint64_t each = sizeof(T) == 4 ? 4 : 2;
  static TROUPE_DEVICE float unit_of(std::uint32_t x) {
    return static_cast<float>(x >> 8U) * 0x1p-24F;
  }
  static TROUPE_DEVICE double unit_of(std::uint32_t x, std::uint32_t y) {
    return static_cast<double>((std::uint64_t{x} << 32U | y) >> 11U) * 0x1p-53;
  }

  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto counter = first / each + static_cast<std::uint64_t>(i);
    const host::philox generator{key_low, key_high};
    const auto words = generator(counter, draw_at != nullptr ? *draw_at : draw);
    T numbers[each];
    if constexpr (sizeof(T) == 4) {
      for (std::size_t k = 0; k < each; ++k) numbers[k] = unit_of(words[k]);
      if (kind == law::normal)
        for (std::size_t k = 0; k < each; k += 2) {
          const float length = std::sqrt(-2.0F * vector_math::log(numbers[k] + 0x1p-24F));
          const float angle = 6.28318531F * numbers[k + 1];
          numbers[k] = length * vector_math::cos_near(angle);
          numbers[k + 1] = length * vector_math::sin_near(angle);
        }
    } else {
      numbers[0] = unit_of(words[0], words[1]);
      numbers[1] = unit_of(words[2], words[3]);
      if (kind == law::normal) {
        const double length = std::sqrt(-2 * std::log(numbers[0] + 0x1p-53)),
                     angle = 2 * 3.141592653589793238462643 * numbers[1];
        numbers[0] = length * std::cos(angle);
        numbers[1] = length * std::sin(angle);
      }
    }
    for (std::uint64_t k = 0; k < each; ++k) {
      const auto at =
          static_cast<std::int64_t>(counter * each + k) - static_cast<std::int64_t>(first);
      if (at < 0 || at >= elements) continue;
      const auto x = numbers[k];
      out[at] = kind == law::uniform  ? a + (b - a) * x
                : kind == law::normal ? a + b * x
                : x < a               ? T{}
                                      : b;
    }
  }
};

// --- optimizers, of f32; i: an element. As devices/host/optimizers.hpp, whose numbers these are
// ---

struct gradient {
  static constexpr int parts_max = 16;
  const float* part[parts_max]{};
  int parts = 0;
  float limit = std::numeric_limits<float>::infinity(), scale = 1;
  // On the device, made before: where it is more than norm_max, the scale follows from it.
  const double* norm = nullptr;
  double norm_max = 0;
  TROUPE_DEVICE float unscaled(std::int64_t i) const {
    float g = parts == 0 ? 0.0F : part[0][i];
    for (int k = 1; k < parts; ++k) g += part[k][i];
    g = g < -limit ? -limit : g;
    return g > limit ? limit : g;
  }
  TROUPE_DEVICE float at(std::int64_t i) const {
    const float by =
        norm != nullptr && *norm > norm_max ? static_cast<float>(norm_max / *norm) : scale;
    return by != 1 ? unscaled(i) * by : unscaled(i);
  }
};
struct variable {
  const float* in = nullptr;
  float* out = nullptr;
};
// a + weight (b - a), by the form that is exact at the nearer end.
TROUPE_DEVICE inline float mixed(float a, float b, float weight) {
  return weight >= 0.5F ? b - (b - a) * (1.0F - weight) : a + weight * (b - a);
}

struct sgd {
  variable w, velocity;
  gradient g;
  float learning_rate, momentum, weight_decay;
  bool nesterov;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const float x = g.at(i) + weight_decay * w.in[i];
    const float v = momentum * velocity.in[i] + x;
    velocity.out[i] = v;
    w.out[i] = w.in[i] - learning_rate * (nesterov ? x + momentum * v : v);
  }
};
struct adam {
  variable w, first, second;
  gradient g;
  float step_size, root_correction, new_first, beta2, new_second, epsilon, weight_decay, keep;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const float x = g.at(i) + weight_decay * w.in[i];
    const float m = mixed(first.in[i], x, new_first);
    const float v = beta2 * second.in[i] + new_second * x * x;
    first.out[i] = m;
    second.out[i] = v;
    w.out[i] = keep * w.in[i] - step_size * m / (std::sqrt(v) / root_correction + epsilon);
  }
};
struct rmsprop {
  variable w, square, velocity, average;  // velocity, average: null where there is none
  gradient g;
  float learning_rate, momentum, alpha, new_square, epsilon, weight_decay;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const float x = g.at(i) + weight_decay * w.in[i];
    const float s = alpha * square.in[i] + new_square * x * x;
    square.out[i] = s;
    float variance = s;
    if (average.in != nullptr) {
      const float m = mixed(average.in[i], x, new_square);
      average.out[i] = m;
      variance = s - m * m;
      variance = variance < 0.0F ? 0.0F : variance;
    }
    const float root = std::sqrt(variance) + epsilon;
    if (velocity.in != nullptr) {
      const float v = momentum * velocity.in[i] + x / root;
      velocity.out[i] = v;
      w.out[i] = w.in[i] - learning_rate * v;
    } else {
      w.out[i] = w.in[i] - learning_rate * x / root;
    }
  }
};
struct average {
  variable w;
  gradient g;
  float rate, factor;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    w.out[i] = w.in[i] + rate * (factor * g.at(i) - w.in[i]);
  }
};
struct adagrad {
  variable w, square;
  gradient g;
  float learning_rate, epsilon, weight_decay;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const float x = g.at(i) + weight_decay * w.in[i];
    const float s = square.in[i] + x * x;
    square.out[i] = s;
    w.out[i] = w.in[i] - learning_rate * x / (std::sqrt(s) + epsilon);
  }
};

}  // namespace troupe::cuda::code
