#pragma once
// A graph with something of everything, and damage to its file, for tests and fuzz targets.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace troupe::test {

inline idx_info images() { return {.path = "data", .samples = 1000, .rows = 28, .columns = 28}; }

// A loop with a branch in it, and what goes back through them.
inline value looped(graph& g, value x) {
  const auto zero = constant(g, 0), one = constant(g, 1);
  const auto out = while_loop(
      {zero, x}, [&](auto v) { return less(v[0], constant(g, 3)); },
      [&](auto v) {
        return std::vector{add(v[0], one),
                           cond(
                               less(reduce_sum(v[1]), one), [&] { return tanh(v[1]); },
                               [&] { return mul(v[1], constant(g, 0.5F)); })};
      },
      {.iterations_max = 4});
  const auto slopes = gradients(g, reduce_sum(out[1]), std::array{x});
  return add(out[1], mul(stop_gradient(slopes[0]), zero));
}

// Small: two layers, a scope with a device, a constant, a loop, a moving average.
inline value loss_of(graph& g) {
  const auto data = idx_batch(g, images(), {.batch = 16});
  const auto hidden = [&] {
    const auto names = g.name_scope("tower");
    const auto device = g.device_scope("/cpu:1");
    return looped(g, relu(dense(data.images, 8, "dense_1")) * constant(g, 0.5F));
  }();
  const auto loss = softmax_cross_entropy(dense(hidden, 10, "dense_2"), data.labels, data.scale);
  moving_average(reduce_mean(hidden, {0}), "mean", {.beside = loss});
  return loss;
}

inline constexpr std::ptrdiff_t message_at = 32;  // in a graph's file

// A message as a file whose length and hash are right.
inline std::vector<std::byte> sealed(const std::vector<std::byte>& message) {
  std::vector<std::byte> out(static_cast<std::size_t>(message_at) + message.size());
  const auto set = [&](std::size_t at, auto n) { std::memcpy(out.data() + at, &n, sizeof n); };
  std::memcpy(out.data(), "TROUPEGR", 8);
  set(8, std::uint32_t{1});
  set(16, std::uint64_t{message.size()});
  set(24, std::uint64_t{XXH3_64bits(message.data(), message.size())});
  if (!message.empty()) std::memcpy(out.data() + message_at, message.data(), message.size());
  return out;
}

// One or a few changes: a bit, a byte, a number, a word that stands elsewhere.
inline std::vector<std::byte> mutated(std::vector<std::byte> m, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (auto changes = 1 + below(3); changes > 0; --changes) {
    const auto word = 8 * below(m.size() / 8);
    switch (below(5)) {
      case 0: m[below(m.size())] ^= static_cast<std::byte>(1U << below(8)); break;
      case 1: m[below(m.size())] = static_cast<std::byte>(random()); break;
      case 2: std::memcpy(m.data() + word, m.data() + 8 * below(m.size() / 8), 8); break;
      case 3: {
        const auto n = static_cast<std::uint32_t>(below(2) == 0 ? random() : below(40));
        std::memcpy(m.data() + 4 * below(m.size() / 4), &n, sizeof n);
        break;
      }
      default: std::memset(m.data() + word, 0, 8); break;
    }
  }
  return m;
}

}  // namespace troupe::test
