#pragma once
// Optimizers and learning-rate schedules, as values: what a program asks for, and what a plan
// carries.
//
//   s.train(g, loss, {.optimizer = adamw({.learning_rate = 1e-3}),
//                     .schedule = cosine({.steps = 10'000, .warmup = 500}), .steps = 10'000});
//
// Names, formulas and defaults of the functions below are those of torch.optim; an optimizer_spec
// that nothing was said of is SGD with 0.05 and momentum 0.9. An optimizer keeps tensors of the
// variable's shape beside each variable, its slots; they are saved in checkpoints under their
// names, and handed over with the variable.
//
// The update of a variable is a pure function of its values, its slots, the gradient and a count
// (runtime/shards/shard_update.hpp), so that steps that are made again after a failure have the
// same bits.
//
// Threading: values.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// --- optimizers ----------------------------------------------------------------------------------

// Made by the functions below; numbers that a type does not use stay as they are here. By itself:
// SGD with momentum.
struct optimizer_spec {
  std::string type = "sgd";  // sgd, adam, adamw, rmsprop, adagrad
  double learning_rate = 0.05;
  double momentum = 0.9;  // sgd, rmsprop
  bool nesterov = false;  // sgd
  // Added to the gradient, times the value; adamw: taken off the value, times the learning rate.
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;  // adam, adamw
  double alpha = 0.99;                // rmsprop
  bool centered = false;              // rmsprop
  double epsilon = 1e-8;              // all but sgd
  double learning_rate_decay = 0;     // adagrad: learning rate / (1 + t * this), t = 0, 1, ...
  double initial_accumulator = 0;     // adagrad: what the sum of squares begins with
  // Clipping, before anything else is done with the gradient of all workers (async: of one): each
  // element into [-clip_value, clip_value], then the whole gradient of the variable scaled so that
  // its norm is at most clip_norm. 0: not.
  double clip_value = 0, clip_norm = 0;
  friend bool operator==(const optimizer_spec&, const optimizer_spec&) = default;
};

struct sgd_options {
  double learning_rate = 1e-3, momentum = 0;
  bool nesterov = false;
  double weight_decay = 0, clip_value = 0, clip_norm = 0;
};
// v = momentum v + g; w -= learning_rate v, or (nesterov) learning_rate (g + momentum v). Slot:
// velocity.
optimizer_spec sgd(const sgd_options& o);

struct adam_options {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0,
         clip_value = 0, clip_norm = 0;
};
// Kingma, Ba: Adam, a method for stochastic optimization (2015). Slots: first_moment,
// second_moment.
optimizer_spec adam(const adam_options& o);

struct adamw_options {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 1e-2,
         clip_value = 0, clip_norm = 0;
};
// Loshchilov, Hutter: Decoupled weight decay regularization (2019). Slots as adam's.
optimizer_spec adamw(const adamw_options& o);

struct rmsprop_options {
  double learning_rate = 1e-2, alpha = 0.99, epsilon = 1e-8, momentum = 0;
  bool centered = false;
  double weight_decay = 0, clip_value = 0, clip_norm = 0;
};
// Hinton, Tieleman: lecture 6.5 (2012); centered: Graves (2013). Slots: square_average; with
// momentum velocity; centered gradient_average.
optimizer_spec rmsprop(const rmsprop_options& o);

struct adagrad_options {
  double learning_rate = 1e-2, learning_rate_decay = 0, weight_decay = 0, initial_accumulator = 0,
         epsilon = 1e-10, clip_value = 0, clip_norm = 0;
};
// Duchi, Hazan, Singer: Adaptive subgradient methods (2011). Slot: square_sum.
optimizer_spec adagrad(const adagrad_options& o);

// A tensor beside each variable, and what its elements begin with.
struct optimizer_slot {
  std::string_view name;
  float initial = 0;
};
// In the order in which they are kept, saved and handed over; the spec has passed check().
std::vector<optimizer_slot> slots_of(const optimizer_spec& o);
std::size_t slot_count(const optimizer_spec& o) noexcept;
std::vector<std::string> slot_names(const optimizer_spec& o);

// --- schedules -----------------------------------------------------------------------------------

// The learning rate of a step is that of the optimizer times a factor. Steps count from 0. sync:
// step t makes version t + 1. async: the gradients that a variable has had before, divided by the
// number of workers, rounded down.
//
// In the first `warmup` steps the factor is (step + 1) / warmup; then, with s = step - warmup:
struct learning_rate_schedule {
  enum class kind : std::uint8_t {
    constant = 0,     // 1
    step_decay = 1,   // decay^(s / every), rounded down
    exponential = 2,  // decay^s
    // From 1 to minimum at `steps`, as half a wave: minimum + (1 - minimum) (1 + cos(pi s / (steps
    // - warmup))) / 2.
    cosine = 3,
    linear = 4,  // from 1 to minimum at `steps`, straight
    // sqrt(k / (k + s)), k = timescale, or where that is 0 warmup, at least 1.
    inverse_square_root = 5,
  } type = kind::constant;
  std::uint64_t warmup = 0;
  std::uint64_t every = 1;  // step_decay
  double decay = 1;         // step_decay, exponential
  // Cosine, linear: of all, warmup included; from there on the factor is the minimum.
  std::uint64_t steps = 0;
  double minimum = 0;           // cosine, linear: a factor
  std::uint64_t timescale = 0;  // inverse_square_root
  friend bool operator==(const learning_rate_schedule&, const learning_rate_schedule&) = default;
};

struct step_decay_options {
  std::uint64_t every = 1;
  double decay = 0.1;
  std::uint64_t warmup = 0;
};
struct exponential_options {
  double decay = 1;
  std::uint64_t warmup = 0;
};
struct annealing_options {
  std::uint64_t steps = 0;
  double minimum = 0;
  std::uint64_t warmup = 0;
};
struct inverse_square_root_options {
  std::uint64_t timescale = 0;
  std::uint64_t warmup = 0;
};
learning_rate_schedule warm_up(std::uint64_t steps);  // then constant
learning_rate_schedule step_decay(const step_decay_options& o);
learning_rate_schedule exponential(const exponential_options& o);
learning_rate_schedule cosine(const annealing_options& o);
learning_rate_schedule linear(const annealing_options& o);
learning_rate_schedule inverse_square_root(const inverse_square_root_options& o);

// Of a schedule that has passed check(). By plain f64 arithmetic alone, so that it has the same
// bits with every C library.
double learning_rate_factor(const learning_rate_schedule& s, std::uint64_t step) noexcept;
// base^n, by the same means: relative error below 2 (n + 1) 2^-53.
double power_of(double base, std::uint64_t n) noexcept;

// --- mistakes ------------------------------------------------------------------------------------

inline constexpr std::uint64_t schedule_steps_max = std::uint64_t{1} << 48U;

// usage errors that name the field and the rule that it breaks.
result<void> check(const optimizer_spec& o);
result<void> check(const learning_rate_schedule& s);
// Name and value of every number that counts, for people and for the manifest of a checkpoint. What
// older versions did not have is there only where it is not as they did it.
std::vector<std::pair<std::string, std::string>> numbers_of(const optimizer_spec& o,
                                                            const learning_rate_schedule& s);

}  // namespace troupe
