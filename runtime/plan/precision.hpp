#pragma once
// In which precision a graph computes, and how the loss is scaled for it: what a program asks for
// (compile_options), and the arithmetic of the scale.
//
// Products, convolutions and attention compute in halves
// (runtime/compile/passes/flow/mixed_precision.cpp); variables, their updates and all else are
// f32. bf16 has the range of f32. f16 has not: gradients below 6e-8 would be 0, so the loss is
// multiplied by a scale before gradients are made, and they are divided by it before they are
// clipped and pushed. A step whose gradients are not finite on any worker is left out: variables
// and the optimizer's slots stay. A dynamic scale is then halved, and it is doubled after so many
// good steps in a row (Micikevicius et al.: Mixed Precision Training, 2018). Moving averages move
// on, since they follow values, not gradients.
//
// The scale is a variable of the training, "loss_scale", f32[2]: {scale, good steps since it has
// changed}. So recovery, replicas, checkpoints and all-reduce have nothing new to know, and every
// worker has the scale of its step's version.
//
// LSC-1  (sync) A step is left out by all workers and for all variables, or by none.
// LSC-2  Scale and counts are functions of the steps' gradients alone: the same for any number of
//        nodes and threads, and after a recovery.
// LSC-3  The scale is a finite f32 from 1 on, or as it was asked for.
//
// Threading: pure functions.

#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

enum class precision_kind : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2 };
std::string_view to_string(precision_kind p) noexcept;
std::optional<precision_kind> precision_named(std::string_view name) noexcept;
// Not of f32.
dtype half_of(precision_kind p) noexcept;

struct loss_scale_spec {
  bool is_dynamic = true;
  double initial = 65'536;
  std::uint64_t grows_every = 2'000;  // of a dynamic one: good steps
  friend bool operator==(const loss_scale_spec&, const loss_scale_spec&) = default;
};
// Of the variable of a dynamic one, unless the graph has another thing of that name.
inline constexpr std::string_view loss_scale_name = "loss_scale";
// Which f32 counts exactly.
inline constexpr std::uint64_t growth_steps_max = std::uint64_t{1} << 24;

inline loss_scale_spec dynamic_loss_scale(double initial = 65'536,
                                          std::uint64_t grows_every = 2'000) {
  return {true, initial, grows_every};
}
inline loss_scale_spec fixed_loss_scale(double scale) { return {false, scale, 2'000}; }

// What is wrong with its numbers.
result<void> check(const loss_scale_spec& s);
// "dynamic" or a number, as flags give it.
result<loss_scale_spec> parse_loss_scale(std::string_view text);
std::string to_string(const loss_scale_spec& s);
// What a training does that was asked for this: f16 has a dynamic scale unless something else is
// said. nullopt: none.
std::optional<loss_scale_spec> loss_scale_of(precision_kind p,
                                             const std::optional<loss_scale_spec>& asked) noexcept;

// {scale, good steps} after a step, in place.
void update_loss_scale(float state[2], bool is_good, std::uint64_t grows_every) noexcept;

}  // namespace troupe
