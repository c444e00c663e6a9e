#include "troupe/devices/optimizer_step.hpp"

#include "troupe/devices/host/sgd.hpp"
#include "troupe/schema/error.hpp"

#include <algorithm>

namespace troupe {

namespace {

struct host_step {
  const optimizer_step& step;
  stepped w;
  std::span<const stepped> state;
  gradient_sum g;
  std::size_t n;

  void operator()(const sgd_numbers& k) const {
    // The formula without the rest, in the order of operations that checkpoints of it have had from
    // the first day.
    if (!k.nesterov && k.weight_decay == 0 &&
        step.limit == std::numeric_limits<float>::infinity() && step.norm_max == 0)
      return sgd_momentum(w.in, w.out, state[0].in, state[0].out, g.parts, n, k.learning_rate,
                          k.momentum);
    sgd_step(w, state[0], g, n, k);
  }
  void operator()(const adam_numbers& k) const { adam_step(w, state[0], state[1], g, n, k); }
  void operator()(const rmsprop_numbers& k) const {
    rmsprop_step(w, state[0], step.has_velocity ? state[1] : stepped{},
                 step.is_centered ? state[step.has_velocity ? 2 : 1] : stepped{}, g, n, k);
  }
  void operator()(const adagrad_numbers& k) const { adagrad_step(w, state[0], g, n, k); }
  void operator()(const average_numbers& k) const {
    for (const auto& slot : state)
      if (slot.out != slot.in) std::copy_n(slot.in, n, slot.out);
    average_step(w, g, n, k);
  }
};

}  // namespace

void apply_step(const optimizer_step& step, stepped values, std::span<const stepped> state,
                std::span<const float* const> gradients, std::size_t elements) {
  gradient_sum g{gradients};
  g.limit = step.limit;
  if (step.norm_max > 0)
    if (const auto norm = norm_of(g, elements); norm > step.norm_max)
      g.scale = static_cast<float>(step.norm_max / norm);
  std::visit(host_step{step, values, state, g, elements}, step.numbers);
}

}  // namespace troupe
