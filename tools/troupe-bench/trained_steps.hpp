#pragma once
// The perceptron of the benchmarks, trained by a session: one way to build it, one to time it.

#include "tools/troupe-bench/measure.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <chrono>
#include <cstdint>

namespace troupe {

// 784, 256, 128, 10, as the hand-written one has them.
inline value perceptron_loss(const idx_batch_values& batch) {
  auto x = relu(dense(batch.images, 256, "dense_1"));
  x = relu(dense(x, 128, "dense_2"));
  return softmax_cross_entropy(dense(x, 10, "dense_3"), batch.labels, batch.scale);
}
inline value perceptron_loss(graph& g, const idx_info& data, const idx_batch_options& reading) {
  return perceptron_loss(idx_batch(g, data, reading));
}

// Seconds a step of the `steps` behind the first `warm` ones, of a training of as many in all;
// on_loss(step, loss) sees each.
template <class OnLoss>
result<double> time_steps(training& run, std::uint64_t warm, std::uint64_t steps,
                          std::uint64_t& actors, OnLoss&& on_loss) {
  std::uint64_t seen = 0;
  std::chrono::steady_clock::time_point began;
  double seconds = 0;
  while (auto event = run.next()) {
    using kind = training_event::kind;
    if (event->type == kind::failed) return error(error_code::failed, event->text);
    if (event->type == kind::finished) actors = event->totals.actors;
    if (event->type != kind::loss) continue;
    on_loss(seen, event->loss);
    if (++seen == warm) began = std::chrono::steady_clock::now();
    if (seen == warm + steps) seconds = seconds_since(began);
  }
  return seconds / double(steps);
}

}  // namespace troupe
