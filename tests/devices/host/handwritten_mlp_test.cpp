#include "tools/troupe-bench/handwritten_mlp.hpp"
#include "troupe/devices/host/initial_values.hpp"

#include "tests/devices/kernel_harness.hpp"
#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/devices/host/sgd.hpp"

#include <algorithm>
#include <cmath>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr auto widths = handwritten_mlp::widths;

void initialize(handwritten_mlp& m) {
  for (std::size_t i = 0; i < handwritten_mlp::layers; ++i) {
    const double limit = 1 / std::sqrt(static_cast<double>(widths[i]));
    uniform_init(m.weights(i), 1, "weights/" + std::to_string(i), limit);
    uniform_init(m.biases(i), 1, "biases/" + std::to_string(i), limit);
  }
}

tensor copy_of(std::span<const float> values, const shape& s) {
  return tensor::of<float>(dtype::f32, s, values);
}

// The same step from the host's kernels, one op after the other.
class step_of_kernels {
 public:
  explicit step_of_kernels(handwritten_mlp& m) {
    for (std::size_t i = 0; i < handwritten_mlp::layers; ++i) {
      parameters_.push_back(copy_of(m.weights(i), {widths[i], widths[i + 1]}));
      parameters_.push_back(copy_of(m.biases(i), {widths[i + 1]}));
    }
    for (const auto& p : parameters_)
      velocity_.emplace_back(static_cast<std::size_t>(p.elements()));
  }

  float step(const tensor& images, const tensor& labels) {
    const auto batch = images.shape().size(0);
    std::vector<tensor> x{images};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto spec = f32({batch, widths[i + 1]});
      const auto y = host_.one(
          "add", {host_.one("matmul", {x[i], parameters_[2 * i]}, spec), parameters_[2 * i + 1]},
          spec);
      x.push_back(i < 2 ? host_.one("relu", {y}, spec) : y);
    }
    auto loss = host_.run("softmax_cross_entropy",
                          {x[3], labels, tensor::of({1.0F / static_cast<float>(batch)}, {})},
                          {f32({}), x[3].spec()});
    BOOST_REQUIRE(loss);
    backward(x, (*loss)[1]);
    return (*loss)[0].data<float>()[0];
  }

  const tensor& parameter(std::size_t i) const { return parameters_[i]; }

 private:
  void backward(const std::vector<tensor>& x, tensor dy) {
    std::vector<tensor> gradients(6);
    for (std::size_t i = 3; i-- > 0;) {
      gradients[2 * i] = host_.one("matmul", {x[i], dy}, parameters_[2 * i].spec(),
                                   {{"transpose_a", std::int64_t{1}}});
      gradients[2 * i + 1] = host_.one("reduce_sum", {dy}, parameters_[2 * i + 1].spec(),
                                       {{"axes", std::vector<std::int64_t>{0}}});
      if (i == 0) break;
      const auto dx = host_.one("matmul", {dy, parameters_[2 * i]}, x[i].spec(),
                                {{"transpose_b", std::int64_t{1}}});
      dy = host_.one("relu_grad", {dx, x[i]}, x[i].spec());
    }
    for (std::size_t i = 0; i < 6; ++i) {
      auto* w = parameters_[i].data<float>();
      const float* g = gradients[i].data<float>();
      sgd_momentum(w, w, velocity_[i].data(), std::span(&g, 1), velocity_[i].size(), 0.05F, 0.9F);
    }
  }

  kernel_harness host_;
  std::vector<tensor> parameters_;
  std::vector<std::vector<float>> velocity_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(handwritten_mlp)

BOOST_AUTO_TEST_CASE(its_steps_are_those_of_the_kernels_at_every_batch_size) {
  for (const std::int64_t batch : {128L, 16L, 1L}) {
    troupe::handwritten_mlp by_hand(batch);
    initialize(by_hand);
    step_of_kernels by_kernels(by_hand);
    for (unsigned step = 0; step < 5; ++step) {
      const auto images = random_tensor({batch, 784}, step, 0, 1);
      auto labels = tensor::make({dtype::i32, {batch}});
      for (std::int64_t i = 0; i < batch; ++i)
        labels.data<std::int32_t>()[i] = static_cast<std::int32_t>((i + step) % 10);
      const float loss = by_hand.step(images.data<float>(), labels.data<std::int32_t>(), batch);
      BOOST_TEST(std::abs(by_kernels.step(images, labels) - loss) <= 1e-5F * loss);
    }
    for (std::size_t i = 0; i < 6; ++i) {
      const auto expected = i % 2 == 0 ? by_hand.weights(i / 2) : by_hand.biases(i / 2);
      float worst = 0;
      for (std::size_t k = 0; k < expected.size(); ++k)
        worst = std::max(worst, std::abs(by_kernels.parameter(i).data<float>()[k] - expected[k]));
      BOOST_TEST(worst < 1e-5F);
    }
  }
}

BOOST_AUTO_TEST_CASE(it_learns_the_synthetic_images) {
  const temporary_folder folder;
  BOOST_REQUIRE(write_synthetic_images(folder.path()));
  const auto train = load_idx(folder.path(), false), test = load_idx(folder.path(), true);
  BOOST_REQUIRE(train);
  BOOST_REQUIRE(test);
  troupe::handwritten_mlp m(128);
  initialize(m);
  std::vector<float> images(128 * 784);
  std::vector<std::int32_t> labels(128);
  const auto gather = [&](const idx_dataset& d, std::size_t at, std::size_t sample) {
    for (std::size_t p = 0; p < 784; ++p)
      images[at * 784 + p] = static_cast<float>(d.images[sample * 784 + p]) / 255.0F;
    labels[at] = d.labels[sample];
  };
  const auto samples = static_cast<std::size_t>((*train)->info.samples);
  // The best of the last epochs: a single one may end beside its mean, by the last bits of what a
  // processor adds up.
  std::int64_t best = 0;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    const auto order = permutation(1, epoch, static_cast<std::uint32_t>(samples));
    for (std::size_t first = 0; first < samples; first += 128) {
      const auto count = std::min<std::size_t>(128, samples - first);
      for (std::size_t i = 0; i < count; ++i) gather(**train, i, order[first + i]);
      m.step(images.data(), labels.data(), static_cast<std::int64_t>(count));
    }
    std::int64_t correct = 0;
    for (std::size_t first = 0; epoch >= 5 && first < 2000; first += 100) {
      for (std::size_t i = 0; i < 100; ++i) gather(**test, i, first + i);
      correct += m.count_correct(images.data(), labels.data(), 100);
    }
    best = std::max(best, correct);
  }
  BOOST_TEST(best > 1800);  // 0.9
  BOOST_TEST(best < 1990);  // not trivial either
}

BOOST_AUTO_TEST_SUITE_END()
