#pragma once
// The example's training step as a skilled C++ user would write it without Troupe: the baseline of
// the benchmark, and a reference for its numbers.
//
// 784-256-128-10, ReLU, softmax cross-entropy (mean over the batch), SGD with momentum. oneDNN does
// the matrix products (its matmul with bias and ReLU as post-ops is no faster), all parameters lie
// in one array that one loop updates. No graph, no actors, no messages, no allocation in a step.
//
// Threading: one thread at a time. oneDNN runs on one thread.

#include "troupe/devices/tensor.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

class handwritten_mlp {
 public:
  static constexpr std::size_t layers = 3;
  static constexpr std::array<std::int64_t, layers + 1> widths = {784, 256, 128, 10};

  // Weights and biases are zero: set them before the first step. `batch_max` bounds every step.
  explicit handwritten_mlp(std::int64_t batch_max, float learning_rate = 0.05F,
                           float momentum = 0.9F);

  // [widths[layer], widths[layer + 1]], row-major; and [widths[layer + 1]].
  std::span<float> weights(std::size_t layer) noexcept;
  std::span<float> biases(std::size_t layer) noexcept;

  // One step on `batch` samples: images [batch, 784], labels in 0..9. The mean loss before the
  // update.
  float step(const float* images, const std::int32_t* labels, std::int64_t batch) noexcept;
  // Rows whose largest logit is the label.
  std::int64_t count_correct(const float* images, const std::int32_t* labels,
                             std::int64_t batch) noexcept;

 private:
  void forward(const float* images, std::int64_t batch) noexcept;
  float loss_gradient(const std::int32_t* labels, std::int64_t batch) noexcept;
  void backward(const float* images, std::int64_t batch) noexcept;
  void update() noexcept;

  float *at_weights(tensor& t, std::size_t layer) noexcept,
      *at_biases(tensor& t, std::size_t layer) noexcept;

  float learning_rate_, momentum_;
  std::int64_t batch_max_;
  // Weights and biases of all layers, each 64-byte aligned.
  tensor parameters_, velocity_, gradients_;
  std::array<tensor, layers> activations_;  // [batch, widths[layer + 1]]
  std::array<tensor, layers> deltas_;       // gradients of the activations
};

}  // namespace troupe
