#include "troupe/runtime/plan/precision.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace troupe {

std::string_view to_string(precision_kind p) noexcept {
  switch (p) {
    case precision_kind::f32: return "f32";
    case precision_kind::bf16: return "bf16";
    case precision_kind::f16: return "f16";
  }
  return "unknown";
}

std::optional<precision_kind> precision_named(std::string_view name) noexcept {
  for (const auto p : {precision_kind::f32, precision_kind::bf16, precision_kind::f16})
    if (name == to_string(p)) return p;
  return std::nullopt;
}

dtype half_of(precision_kind p) noexcept {
  return p == precision_kind::f16 ? dtype::f16 : dtype::bf16;
}

result<void> check(const loss_scale_spec& s) {
  const auto refuse = [&](std::string_view what) {
    return error(error_code::usage, fmt::format("loss scale {}: {}", s.initial, what));
  };
  const auto scale = static_cast<float>(s.initial);
  // Its inverse is taken, too, and denormal numbers are zero.
  if (!(s.initial > 0) || !std::isnormal(scale) || !std::isnormal(1 / scale))
    return refuse(
        "must be a number above 0 that, like its inverse, is a normal number in f32; powers of 2 "
        "keep gradients exact");
  if (s.is_dynamic && s.initial < 1) return refuse("a dynamic loss scale must begin at 1 or above");
  if (s.is_dynamic && (s.grows_every < 1 || s.grows_every > growth_steps_max))
    return refuse(fmt::format("it grows every {} good steps: use 1..2^24", s.grows_every));
  return {};
}

result<loss_scale_spec> parse_loss_scale(std::string_view text) {
  if (text == "dynamic") return dynamic_loss_scale();
  double n = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (failed != std::errc() || end != text.data() + text.size())
    return error(error_code::usage,
                 fmt::format("loss scale '{}': must be 'dynamic' or a number, such as 1024", text));
  auto s = fixed_loss_scale(n);
  if (auto ok = check(s); !ok) return std::move(ok.error());
  return s;
}

std::string to_string(const loss_scale_spec& s) {
  return s.is_dynamic ? fmt::format("dynamic from {}, every {} steps", s.initial, s.grows_every)
                      : fmt::format("{}", s.initial);
}

std::optional<loss_scale_spec> loss_scale_of(precision_kind p,
                                             const std::optional<loss_scale_spec>& asked) noexcept {
  if (asked) return asked;
  return p == precision_kind::f16 ? std::optional(dynamic_loss_scale()) : std::nullopt;
}

void update_loss_scale(float state[2], bool is_good, std::uint64_t grows_every) noexcept {
  if (!is_good) {
    state[0] = state[0] > 2 ? state[0] / 2 : 1;
    state[1] = 0;
    return;
  }
  state[1] += 1;
  if (state[1] < static_cast<float>(grows_every)) return;
  // One whose double is no number stays.
  if (const auto doubled = state[0] * 2; std::isfinite(doubled)) state[0] = doubled;
  state[1] = 0;
}

}  // namespace troupe
