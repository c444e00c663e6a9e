#include "runtime/shard_update.hpp"

#include "devices/host/sgd.hpp"
#include "runtime/precision.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

gradient_sum clipped(const optimizer_spec& o, std::span<const float* const> gradients, std::size_t n) {
  gradient_sum g{gradients};
  if (o.clip_value > 0) g.limit = static_cast<float>(o.clip_value);
  if (o.clip_norm <= 0) return g;
  const auto norm = norm_of(g, n);
  if (norm > o.clip_norm) g.scale = static_cast<float>(o.clip_norm / norm);
  return g;
}

// By the factor as f32.
double scheduled_rate(const optimizer_spec& o, const learning_rate_schedule& s, update_count at) noexcept {
  return o.learning_rate * static_cast<double>(static_cast<float>(learning_rate_factor(s, at.step)));
}

void adam(const optimizer_spec& o, double learning_rate, std::uint64_t t, stepped w, std::span<const stepped> state, const gradient_sum& g, std::size_t n) {
  const bool is_decoupled = o.type == "adamw";
  adam_numbers k;
  k.step_size = static_cast<float>(learning_rate / (1 - power_of(o.beta1, t)));
  k.root_correction = static_cast<float>(std::sqrt(1 - power_of(o.beta2, t)));
  k.new_first = static_cast<float>(1 - o.beta1);
  k.beta2 = static_cast<float>(o.beta2);
  k.new_second = static_cast<float>(1 - o.beta2);
  k.epsilon = static_cast<float>(o.epsilon);
  k.weight_decay = is_decoupled ? 0.0F : static_cast<float>(o.weight_decay);
  k.keep = is_decoupled ? static_cast<float>(1 - learning_rate * o.weight_decay) : 1.0F;
  adam_step(w, state[0], state[1], g, n, k);
}

void rmsprop(const optimizer_spec& o, double learning_rate, stepped w, std::span<const stepped> state, const gradient_sum& g, std::size_t n) {
  const rmsprop_numbers k{static_cast<float>(learning_rate), static_cast<float>(o.momentum), static_cast<float>(o.alpha), static_cast<float>(1 - o.alpha),
                          static_cast<float>(o.epsilon), static_cast<float>(o.weight_decay)};
  const bool has_velocity = o.momentum > 0;
  rmsprop_step(w, state[0], has_velocity ? state[1] : stepped{}, o.centered ? state[has_velocity ? 2 : 1] : stepped{}, g, n, k);
}

}  // namespace

update_count count_of(const shard_spec& s, std::uint64_t version) noexcept {
  const auto before = version > 0 ? version - 1 : 0;
  return {std::max<std::uint64_t>(1, version), s.update == update_kind::sync ? before : before / s.steps.size()};
}

bool changes_rows_alone(const shard_spec& s) noexcept {
  const auto& o = s.optimizer;
  return !s.average && !s.loss_scale && o.type == "sgd" && o.momentum == 0 && o.weight_decay == 0 && o.clip_value == 0 && o.clip_norm == 0;
}

float learning_rate_at(const optimizer_spec& o, const learning_rate_schedule& s, update_count at) noexcept {
  return static_cast<float>(scheduled_rate(o, s, at));
}

void update_shard(const optimizer_spec& o, const learning_rate_schedule& s, update_count at, stepped values, std::span<const stepped> state,
                  std::span<const float* const> gradients, std::size_t elements) {
  expects(state.size() == slot_count(o), "there is a tensor for every slot of the optimizer");
  const auto learning_rate = scheduled_rate(o, s, at);
  const auto g = clipped(o, gradients, elements);
  if (o.type == "adam" || o.type == "adamw") return adam(o, learning_rate, at.updates, values, state, g, elements);
  if (o.type == "rmsprop") return rmsprop(o, learning_rate, values, state, g, elements);
  if (o.type == "adagrad") {
    const auto decayed = learning_rate / (1 + static_cast<double>(at.updates - 1) * o.learning_rate_decay);
    return adagrad_step(values, state[0], g, elements,
                        {static_cast<float>(decayed), static_cast<float>(o.epsilon), static_cast<float>(o.weight_decay)});
  }
  const sgd_numbers k{static_cast<float>(learning_rate), static_cast<float>(o.momentum), static_cast<float>(o.weight_decay), o.nesterov};
  if (!o.nesterov && o.weight_decay == 0 && o.clip_value == 0 && o.clip_norm == 0)
    return sgd_momentum(values.in, values.out, state[0].in, state[0].out, gradients, elements, k.learning_rate, k.momentum);
  sgd_step(values, state[0], g, elements, k);
}

void apply_to_shard(const shard_spec& s, update_count at, stepped values, std::span<const stepped> state, std::span<const float* const> gradients, std::size_t elements) {
  if (!s.average && !s.loss_scale) return update_shard(s.optimizer, s.schedule, at, values, state, gradients, elements);
  for (const auto& slot : state)
    if (slot.out != slot.in) std::copy_n(slot.in, elements, slot.out);
  if (s.loss_scale) {
    expects(elements == 2, "a scale of a loss and its steps are together");
    float good = 0;
    for (const auto* g : gradients) good += g[0];
    float now[2] = {values.in[0], values.in[1]};
    update_loss_scale(now, good == static_cast<float>(s.loss_scale->samples), s.loss_scale->grows_every);
    std::copy_n(now, 2, values.out);
    return;
  }
  average_step(values, {gradients}, elements, {static_cast<float>(s.average->rate), 1.0F / static_cast<float>(s.average->samples)});
}

}  // namespace troupe
