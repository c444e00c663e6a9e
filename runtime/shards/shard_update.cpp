#include "troupe/runtime/shards/shard_update.hpp"

#include "troupe/runtime/plan/precision.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

// By the factor as f32.
double scheduled_rate(const optimizer_spec& o, const learning_rate_schedule& s,
                      update_count at) noexcept {
  return o.learning_rate *
         static_cast<double>(static_cast<float>(learning_rate_factor(s, at.step)));
}

adam_numbers adam(const optimizer_spec& o, double learning_rate, std::uint64_t t) {
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
  return k;
}

}  // namespace

update_count count_of(const shard_spec& s, std::uint64_t version) noexcept {
  const auto before = version > 0 ? version - 1 : 0;
  return {std::max<std::uint64_t>(1, version),
          s.update == update_kind::sync ? before : before / s.steps.size()};
}

bool changes_rows_alone(const shard_spec& s) noexcept {
  const auto& o = s.optimizer;
  return !s.average && !s.loss_scale && o.type == "sgd" && o.momentum == 0 && o.weight_decay == 0 &&
         o.clip_value == 0 && o.clip_norm == 0;
}

float learning_rate_at(const optimizer_spec& o, const learning_rate_schedule& s,
                       update_count at) noexcept {
  return static_cast<float>(scheduled_rate(o, s, at));
}

optimizer_step step_of(const optimizer_spec& o, const learning_rate_schedule& s, update_count at) {
  optimizer_step step;
  const auto learning_rate = scheduled_rate(o, s, at);
  if (o.clip_value > 0) step.limit = static_cast<float>(o.clip_value);
  step.norm_max = std::max(0.0, o.clip_norm);
  if (o.type == "adam" || o.type == "adamw") {
    step.numbers = adam(o, learning_rate, at.updates);
  } else if (o.type == "rmsprop") {
    step.has_velocity = o.momentum > 0;
    step.is_centered = o.centered;
    step.numbers =
        rmsprop_numbers{static_cast<float>(learning_rate), static_cast<float>(o.momentum),
                        static_cast<float>(o.alpha),       static_cast<float>(1 - o.alpha),
                        static_cast<float>(o.epsilon),     static_cast<float>(o.weight_decay)};
  } else if (o.type == "adagrad") {
    const auto decayed =
        learning_rate / (1 + static_cast<double>(at.updates - 1) * o.learning_rate_decay);
    step.numbers = adagrad_numbers{static_cast<float>(decayed), static_cast<float>(o.epsilon),
                                   static_cast<float>(o.weight_decay)};
  } else {
    step.numbers = sgd_numbers{static_cast<float>(learning_rate), static_cast<float>(o.momentum),
                               static_cast<float>(o.weight_decay), o.nesterov};
  }
  return step;
}

optimizer_step step_of(const shard_spec& s, update_count at) {
  if (!s.average) return step_of(s.optimizer, s.schedule, at);
  optimizer_step step;
  step.numbers = average_numbers{static_cast<float>(s.average->rate),
                                 1.0F / static_cast<float>(s.average->samples)};
  return step;
}

void update_shard(const optimizer_spec& o, const learning_rate_schedule& s, update_count at,
                  stepped values, std::span<const stepped> state,
                  std::span<const float* const> gradients, std::size_t elements) {
  expects(state.size() == slot_count(o), "there is a tensor for every slot of the optimizer");
  apply_step(step_of(o, s, at), values, state, gradients, elements);
}

void apply_to_shard(const shard_spec& s, update_count at, stepped values,
                    std::span<const stepped> state, std::span<const float* const> gradients,
                    std::size_t elements) {
  if (!s.loss_scale) return apply_step(step_of(s, at), values, state, gradients, elements);
  for (const auto& slot : state)
    if (slot.out != slot.in) std::copy_n(slot.in, elements, slot.out);
  expects(elements == 2, "a scale of a loss and its steps are together");
  float good = 0;
  for (const auto* g : gradients) good += g[0];
  float now[2] = {values.in[0], values.in[1]};
  update_loss_scale(now, good == static_cast<float>(s.loss_scale->samples),
                    s.loss_scale->grows_every);
  std::copy_n(now, 2, values.out);
}

}  // namespace troupe
