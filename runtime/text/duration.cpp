#include "troupe/runtime/text/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace troupe {

namespace {

constexpr std::array<std::pair<std::string_view, double>, 7> units{{{"ns", 1.0},
                                                                    {"us", 1e3},
                                                                    {"ms", 1e6},
                                                                    {"s", 1e9},
                                                                    {"m", 60e9},
                                                                    {"h", 3600e9},
                                                                    {"d", 86400e9}}};

// So that no sum with a clock overflows.
constexpr double longest_ns = 100.0 * 366 * 24 * 3600 * 1e9;

error bad_duration(std::string_view text, std::string_view what) {
  return {
      error_code::usage,
      fmt::format("'{}' is not a duration: {}; write for example 20s, 500ms or 2m", text, what)};
}

}  // namespace

result<std::int64_t> parse_duration(std::string_view text) {
  if (text == "0") return std::int64_t{0};
  double number = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (failure != std::errc{} || !std::isfinite(number))
    return bad_duration(text, "it does not start with a number");
  if (std::signbit(number)) return bad_duration(text, "it is negative");
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  for (const auto& [name, factor] : units) {
    if (unit != name) continue;
    const double ns = std::round(number * factor);
    if (ns > longest_ns) return bad_duration(text, "it is longer than 100 years");
    return static_cast<std::int64_t>(ns);
  }
  return bad_duration(
      text, unit.empty() ? "the unit is missing" : fmt::format("'{}' is no unit of time", unit));
}

std::string format_seconds(double seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 9.95e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  // Beyond a million years a number of hours tells nobody anything; the clamp keeps the arithmetic
  // within 64 bits.
  const auto whole = static_cast<std::int64_t>(std::min(std::round(seconds), 1e15));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace troupe
