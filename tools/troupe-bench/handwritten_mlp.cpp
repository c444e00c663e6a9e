#include "tools/troupe-bench/handwritten_mlp.hpp"

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

namespace troupe {
namespace {

// Floats of a layer's weights or biases, up to whole cache lines.
constexpr std::int64_t padded(std::int64_t n) noexcept { return (n + 15) / 16 * 16; }

constexpr std::int64_t weights_offset(std::size_t layer) noexcept {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < layer; ++i)
    at += padded(handwritten_mlp::widths[i] * handwritten_mlp::widths[i + 1]) +
          padded(handwritten_mlp::widths[i + 1]);
  return at;
}

tensor zeros(std::int64_t n) {
  auto t = tensor::make({dtype::f32, {n}});
  std::fill_n(t.data<float>(), n, 0.0F);
  return t;
}

// c [m, n] = op(a) [m, k] * op(b) [k, n], row-major.
void product(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
             const float* a, const float* b, float* c) noexcept {
  dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a,
             transpose_a ? m : k, b, transpose_b ? k : n, 0.0F, c, n);
}

void add_bias(float* x, const float* bias, std::int64_t rows, std::int64_t columns,
              bool relu) noexcept {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = x + r * columns;
#pragma GCC ivdep
    for (std::int64_t c = 0; c < columns; ++c) {
      const float y = row[c] + bias[c];
      row[c] = relu && y < 0.0F ? 0.0F : y;
    }
  }
}

}  // namespace

handwritten_mlp::handwritten_mlp(std::int64_t batch_max, float learning_rate, float momentum)
    : learning_rate_(learning_rate),
      momentum_(momentum),
      batch_max_(batch_max),
      parameters_(zeros(weights_offset(layers))),
      velocity_(zeros(weights_offset(layers))),
      gradients_(zeros(weights_offset(layers))) {
  for (std::size_t i = 0; i < layers; ++i) {
    activations_[i] = zeros(batch_max * widths[i + 1]);
    deltas_[i] = zeros(batch_max * widths[i + 1]);
  }
}

float* handwritten_mlp::at_weights(tensor& t, std::size_t layer) noexcept {
  return t.data<float>() + weights_offset(layer);
}

float* handwritten_mlp::at_biases(tensor& t, std::size_t layer) noexcept {
  return at_weights(t, layer) + padded(widths[layer] * widths[layer + 1]);
}

std::span<float> handwritten_mlp::weights(std::size_t layer) noexcept {
  return {at_weights(parameters_, layer),
          static_cast<std::size_t>(widths[layer] * widths[layer + 1])};
}

std::span<float> handwritten_mlp::biases(std::size_t layer) noexcept {
  return {at_biases(parameters_, layer), static_cast<std::size_t>(widths[layer + 1])};
}

float handwritten_mlp::step(const float* images, const std::int32_t* labels,
                            std::int64_t batch) noexcept {
  expects(batch > 0 && batch <= batch_max_, "a batch fits the buffers");
  set_up_kernel_thread();
  forward(images, batch);
  const float loss = loss_gradient(labels, batch);
  backward(images, batch);
  update();
  return loss;
}

std::int64_t handwritten_mlp::count_correct(const float* images, const std::int32_t* labels,
                                            std::int64_t batch) noexcept {
  expects(batch > 0 && batch <= batch_max_, "a batch fits the buffers");
  set_up_kernel_thread();
  forward(images, batch);
  std::int64_t correct = 0;
  for (std::int64_t r = 0; r < batch; ++r) {
    const float* row = activations_[layers - 1].data<float>() + r * widths[layers];
    correct += std::max_element(row, row + widths[layers]) - row == labels[r] ? 1 : 0;
  }
  return correct;
}

void handwritten_mlp::forward(const float* images, std::int64_t batch) noexcept {
  for (std::size_t i = 0; i < layers; ++i) {
    const float* x = i == 0 ? images : activations_[i - 1].data<float>();
    float* y = activations_[i].data<float>();
    product(false, false, batch, widths[i + 1], widths[i], x, at_weights(parameters_, i), y);
    add_bias(y, at_biases(parameters_, i), batch, widths[i + 1], i + 1 < layers);
  }
}

float handwritten_mlp::loss_gradient(const std::int32_t* labels, std::int64_t batch) noexcept {
  constexpr std::int64_t classes = widths[layers];
  const float* x = activations_[layers - 1].data<float>();
  float* d = deltas_[layers - 1].data<float>();
  const float scale = 1.0F / static_cast<float>(batch);
  for (std::int64_t r = 0; r < batch; ++r) {
    const float largest = *std::max_element(x + r * classes, x + (r + 1) * classes);
    for (std::int64_t c = 0; c < classes; ++c) d[r * classes + c] = x[r * classes + c] - largest;
  }
  float loss = 0;
  for (std::int64_t r = 0; r < batch; ++r) loss -= d[r * classes + labels[r]];
  for (std::int64_t i = 0; i < batch * classes; ++i) d[i] = vector_math::exp(d[i]);
  for (std::int64_t r = 0; r < batch; ++r) {
    float sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += d[r * classes + c];
    for (std::int64_t c = 0; c < classes; ++c) d[r * classes + c] *= scale / sum;
    d[r * classes + labels[r]] -= scale;
    loss += vector_math::log(sum);
  }
  return loss * scale;
}

void handwritten_mlp::backward(const float* images, std::int64_t batch) noexcept {
  for (std::size_t i = layers; i-- > 0;) {
    const std::int64_t in = widths[i], out = widths[i + 1];
    const float* x = i == 0 ? images : activations_[i - 1].data<float>();
    const float* dy = deltas_[i].data<float>();
    product(true, false, in, out, batch, x, dy, at_weights(gradients_, i));
    float* db = at_biases(gradients_, i);
    std::fill_n(db, out, 0.0F);
    for (std::int64_t r = 0; r < batch; ++r)
      for (std::int64_t c = 0; c < out; ++c) db[c] += dy[r * out + c];
    if (i == 0) return;
    float* dx = deltas_[i - 1].data<float>();
    product(false, true, batch, in, out, dy, at_weights(parameters_, i), dx);
#pragma GCC ivdep
    for (std::int64_t k = 0; k < batch * in; ++k) dx[k] = x[k] > 0.0F ? dx[k] : 0.0F;
  }
}

void handwritten_mlp::update() noexcept {
  float* w = parameters_.data<float>();
  float* v = velocity_.data<float>();
  const float* g = gradients_.data<float>();
#pragma GCC ivdep
  for (std::int64_t i = 0; i < weights_offset(layers); ++i) {
    v[i] = momentum_ * v[i] + g[i];
    w[i] -= learning_rate_ * v[i];
  }
}

}  // namespace troupe
