#include "troupe/runtime/plan/optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace troupe {
namespace {

constexpr std::array<std::string_view, 5> types{"sgd", "adam", "adamw", "rmsprop", "adagrad"};
constexpr std::array<std::string_view, 6> schedules{
    "constant", "step decay", "exponential", "cosine", "linear", "inverse square root"};

bool is_adam(const optimizer_spec& o) noexcept { return o.type == "adam" || o.type == "adamw"; }

// What f32 can hold.
bool is_number(double x) noexcept {
  return std::abs(x) <= static_cast<double>(std::numeric_limits<float>::max());
}

error usage(std::string text) { return error(error_code::usage, std::move(text)); }

result<void> from_zero(std::string_view field, double x) {
  if (!is_number(x)) return usage(fmt::format("{} {} is not a finite number", field, x));
  if (x < 0) return usage(fmt::format("{} {} is below 0", field, x));
  return {};
}

result<void> below_one(std::string_view field, double x) {
  if (!(x >= 0 && x < 1)) return usage(fmt::format("{} {} is not in [0, 1)", field, x));
  return {};
}

// cos(pi t) for t in [0, 1]: the series of -sin(u), u = pi (t - 1/2), to u^21, which leaves less
// than 1e-18.
double cos_pi(double t) noexcept {
  const double u = std::numbers::pi * (t - 0.5), z = u * u;
  double p = 0;
  for (int k = 21; k >= 3; k -= 2) p = (p + 1) * -z / static_cast<double>(k * (k - 1));
  return -u * (p + 1);
}

// How far from `warmup` to `steps`.
double progress(const learning_rate_schedule& s, std::uint64_t step) noexcept {
  const auto all = s.steps - s.warmup;
  return step >= all ? 1 : static_cast<double>(step) / static_cast<double>(all);
}

optimizer_spec of_adam(std::string type, double learning_rate, double beta1, double beta2,
                       double epsilon, double weight_decay, double clip_value, double clip_norm) {
  optimizer_spec out;
  out.type = std::move(type);
  out.learning_rate = learning_rate;
  out.beta1 = beta1;
  out.beta2 = beta2;
  out.epsilon = epsilon;
  out.weight_decay = weight_decay;
  out.clip_value = clip_value;
  out.clip_norm = clip_norm;
  return out;
}

}  // namespace

// --- optimizers ----------------------------------------------------------------------------------

optimizer_spec sgd(const sgd_options& o) {
  optimizer_spec out;
  out.learning_rate = o.learning_rate;
  out.momentum = o.momentum;
  out.nesterov = o.nesterov;
  out.weight_decay = o.weight_decay;
  out.clip_value = o.clip_value;
  out.clip_norm = o.clip_norm;
  return out;
}

optimizer_spec adam(const adam_options& o) {
  return of_adam("adam", o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay, o.clip_value,
                 o.clip_norm);
}

optimizer_spec adamw(const adamw_options& o) {
  return of_adam("adamw", o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay,
                 o.clip_value, o.clip_norm);
}

optimizer_spec rmsprop(const rmsprop_options& o) {
  optimizer_spec out;
  out.type = "rmsprop";
  out.learning_rate = o.learning_rate;
  out.alpha = o.alpha;
  out.epsilon = o.epsilon;
  out.momentum = o.momentum;
  out.centered = o.centered;
  out.weight_decay = o.weight_decay;
  out.clip_value = o.clip_value;
  out.clip_norm = o.clip_norm;
  return out;
}

optimizer_spec adagrad(const adagrad_options& o) {
  optimizer_spec out;
  out.type = "adagrad";
  out.learning_rate = o.learning_rate;
  out.learning_rate_decay = o.learning_rate_decay;
  out.weight_decay = o.weight_decay;
  out.initial_accumulator = o.initial_accumulator;
  out.epsilon = o.epsilon;
  out.clip_value = o.clip_value;
  out.clip_norm = o.clip_norm;
  return out;
}

std::vector<optimizer_slot> slots_of(const optimizer_spec& o) {
  if (is_adam(o)) return {{"first_moment"}, {"second_moment"}};
  if (o.type == "adagrad") return {{"square_sum", static_cast<float>(o.initial_accumulator)}};
  if (o.type != "rmsprop") return {{"velocity"}};
  std::vector<optimizer_slot> slots{{"square_average"}};
  if (o.momentum > 0) slots.push_back({"velocity"});
  if (o.centered) slots.push_back({"gradient_average"});
  return slots;
}

std::size_t slot_count(const optimizer_spec& o) noexcept {
  if (is_adam(o)) return 2;
  return o.type == "rmsprop" ? 1 + std::size_t{o.momentum > 0} + std::size_t{o.centered} : 1;
}

std::vector<std::string> slot_names(const optimizer_spec& o) {
  std::vector<std::string> names;
  for (const auto& s : slots_of(o)) names.emplace_back(s.name);
  return names;
}

// --- schedules -----------------------------------------------------------------------------------

namespace {

using schedule_kind = learning_rate_schedule::kind;

learning_rate_schedule annealing(schedule_kind type, const annealing_options& o) {
  learning_rate_schedule s;
  s.type = type;
  s.warmup = o.warmup;
  s.steps = o.steps;
  s.minimum = o.minimum;
  return s;
}

}  // namespace

learning_rate_schedule warm_up(std::uint64_t steps) {
  learning_rate_schedule s;
  s.warmup = steps;
  return s;
}

learning_rate_schedule step_decay(const step_decay_options& o) {
  auto s = warm_up(o.warmup);
  s.type = schedule_kind::step_decay;
  s.every = o.every;
  s.decay = o.decay;
  return s;
}

learning_rate_schedule exponential(const exponential_options& o) {
  auto s = warm_up(o.warmup);
  s.type = schedule_kind::exponential;
  s.decay = o.decay;
  return s;
}

learning_rate_schedule cosine(const annealing_options& o) {
  return annealing(schedule_kind::cosine, o);
}
learning_rate_schedule linear(const annealing_options& o) {
  return annealing(schedule_kind::linear, o);
}

learning_rate_schedule inverse_square_root(const inverse_square_root_options& o) {
  auto s = warm_up(o.warmup);
  s.type = schedule_kind::inverse_square_root;
  s.timescale = o.timescale;
  return s;
}

double power_of(double base, std::uint64_t n) noexcept {
  double power = 1;
  for (; n > 0; n >>= 1U, base *= base)
    if ((n & 1U) != 0) power *= base;
  return power;
}

double learning_rate_factor(const learning_rate_schedule& s, std::uint64_t step) noexcept {
  if (step < s.warmup) return static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  step -= s.warmup;
  switch (s.type) {
    case schedule_kind::constant: return 1;
    case schedule_kind::step_decay: return power_of(s.decay, step / s.every);
    case schedule_kind::exponential: return power_of(s.decay, step);
    case schedule_kind::cosine:
      return s.minimum + (1 - s.minimum) * (1 + cos_pi(progress(s, step))) / 2;
    case schedule_kind::linear: return 1 - (1 - s.minimum) * progress(s, step);
    case schedule_kind::inverse_square_root: {
      const auto k =
          static_cast<double>(s.timescale > 0 ? s.timescale : std::max<std::uint64_t>(1, s.warmup));
      return std::sqrt(k / (k + static_cast<double>(step)));
    }
  }
  return 1;
}

// --- mistakes ------------------------------------------------------------------------------------

result<void> check(const optimizer_spec& o) {
  if (std::find(types.begin(), types.end(), o.type) == types.end())
    return usage(
        fmt::format("there is no optimizer '{}' (there are: {})", o.type, fmt::join(types, ", ")));
  const std::pair<std::string_view, double> from_0[] = {
      {"learning rate", o.learning_rate},
      {"weight decay", o.weight_decay},
      {"epsilon", o.epsilon},
      {"learning rate decay", o.learning_rate_decay},
      {"initial accumulator", o.initial_accumulator},
      {"clip value", o.clip_value},
      {"clip norm", o.clip_norm}};
  for (const auto& [field, x] : from_0)
    if (auto ok = from_zero(field, x); !ok) return ok;
  const std::pair<std::string_view, double> below_1[] = {
      {"momentum", o.momentum}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"alpha", o.alpha}};
  for (const auto& [field, x] : below_1)
    if (auto ok = below_one(field, x); !ok) return ok;
  if (o.nesterov && (o.type != "sgd" || o.momentum == 0))
    return usage("nesterov is for sgd with a momentum above 0");
  if (o.centered && o.type != "rmsprop")
    return usage(fmt::format("centered is for rmsprop, not for {}", o.type));
  return {};
}

result<void> check(const learning_rate_schedule& s) {
  if (static_cast<std::size_t>(s.type) >= schedules.size())
    return usage(fmt::format("there is no schedule {}", static_cast<int>(s.type)));
  const auto name = schedules[static_cast<std::size_t>(s.type)];
  const std::pair<std::string_view, std::uint64_t> counts[] = {
      {"warmup", s.warmup}, {"every", s.every}, {"steps", s.steps}, {"timescale", s.timescale}};
  for (const auto& [field, n] : counts)
    if (n > schedule_steps_max)
      return usage(fmt::format("schedule {}: {} {} is above 2^48", name, field, n));
  if (s.every < 1)
    return usage(fmt::format("schedule {}: every 0 steps is not possible, use 1 or more", name));
  if (!(s.decay > 0 && s.decay <= 1))
    return usage(fmt::format("schedule {}: decay {} is not in (0, 1]", name, s.decay));
  if (!(s.minimum >= 0 && s.minimum <= 1))
    return usage(fmt::format("schedule {}: minimum {} is not in [0, 1]", name, s.minimum));
  if ((s.type == schedule_kind::cosine || s.type == schedule_kind::linear) && s.steps <= s.warmup)
    return usage(fmt::format("schedule {}: steps {} are not more than the {} of its warmup", name,
                             s.steps, s.warmup));
  return {};
}

std::vector<std::pair<std::string, std::string>> numbers_of(const optimizer_spec& o,
                                                            const learning_rate_schedule& s) {
  std::vector<std::pair<std::string, std::string>> out{
      {"optimizer", o.type}, {"learning rate", fmt::format("{}", o.learning_rate)}};
  const auto add = [&](const char* name, auto x) { out.emplace_back(name, fmt::format("{}", x)); };
  const auto add_new = [&](const char* name, auto x, auto as_before) {
    if (x != as_before) add(name, x);
  };
  if (o.type == "sgd" || o.type == "rmsprop") add("momentum", o.momentum);
  if (is_adam(o)) add("beta1", o.beta1), add("beta2", o.beta2);
  if (o.type == "rmsprop") add("alpha", o.alpha), add("centered", o.centered);
  if (o.type == "adagrad")
    add("learning rate decay", o.learning_rate_decay),
        add("initial accumulator", o.initial_accumulator);
  if (o.type != "sgd") add("epsilon", o.epsilon);
  add_new("nesterov", o.nesterov, false);
  add_new("weight decay", o.weight_decay, 0.0);
  add_new("clip value", o.clip_value, 0.0);
  add_new("clip norm", o.clip_norm, 0.0);
  if (s == learning_rate_schedule{}) return out;
  std::string text(schedules[static_cast<std::size_t>(s.type)]);
  if (s.type == schedule_kind::step_decay) text += fmt::format(" by {} every {}", s.decay, s.every);
  if (s.type == schedule_kind::exponential) text += fmt::format(" by {}", s.decay);
  if (s.type == schedule_kind::cosine || s.type == schedule_kind::linear)
    text += fmt::format(" to {} at {}", s.minimum, s.steps);
  if (s.type == schedule_kind::inverse_square_root) text += fmt::format(" of {}", s.timescale);
  if (s.warmup > 0) text += fmt::format(", warm-up {}", s.warmup);
  out.emplace_back("learning rate schedule", std::move(text));
  return out;
}

}  // namespace troupe
