#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

namespace troupe {

namespace {

error bad_size(std::string_view text, std::string_view what) {
  return {error_code::usage,
          fmt::format("'{}' is not a size: {}; write for example 512MiB, 2GiB or a number of bytes",
                      text, what)};
}

std::optional<std::uint64_t> factor_of(std::string_view unit) {
  std::string lower;
  for (const char c : unit) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty() || lower == "b") return 1;
  constexpr std::string_view prefixes = "kmgt";
  const auto power = prefixes.find(lower[0]);
  if (power == std::string_view::npos) return std::nullopt;
  const auto suffix = std::string_view(lower).substr(1);
  const bool is_binary = suffix.empty() || suffix == "ib";
  if (!is_binary && suffix != "b") return std::nullopt;
  std::uint64_t factor = 1;
  for (std::size_t i = 0; i <= power; ++i) factor *= is_binary ? 1024 : 1000;
  return factor;
}

}  // namespace

result<std::uint64_t> parse_byte_size(std::string_view text) {
  const auto digits_end = text.find_first_not_of("0123456789.");
  const auto number = text.substr(0, digits_end);
  auto unit = digits_end == std::string_view::npos ? std::string_view{} : text.substr(digits_end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (number.empty())
    return bad_size(text,
                    text.starts_with('-') ? "it is negative" : "it does not start with a number");
  const auto factor = factor_of(unit);
  if (!factor) return bad_size(text, fmt::format("'{}' is no unit of memory", unit));

  constexpr auto too_much = "it is beyond 2^63 - 1 bytes";
  const auto* end = number.data() + number.size();
  std::uint64_t whole = 0;
  if (auto [rest, failure] = std::from_chars(number.data(), end, whole);
      rest == end) {  // exact, where it is an integer
    std::uint64_t bytes = 0;
    if (failure != std::errc{} || __builtin_mul_overflow(whole, *factor, &bytes) || bytes >> 63)
      return bad_size(text, too_much);
    return bytes;
  }
  double fraction = 0;
  if (auto [rest, failure] =
          std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
      failure != std::errc{} || rest != end)
    return bad_size(text, fmt::format("'{}' is no number", number));
  const double bytes = std::round(fraction * static_cast<double>(*factor));
  if (!(bytes < 0x1p63)) return bad_size(text, too_much);
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t i = 0;
  for (; value >= 1023.95 && i + 1 < units.size(); ++i) value /= 1024;
  return fmt::format("{:.1f} {}", value, units[i]);
}

}  // namespace troupe
