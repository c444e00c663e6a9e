#pragma once
// Durations as people write and read them: "20s", "500ms". Pure; shared by all programs.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// "250us", "500ms", "1.5s", "2m", "1h" in nanoseconds; units ns, us, ms, s, m, h, d are required, a
// lone "0" is fine. A usage error says what was expected. Negative, not a number, or beyond 100
// years: a usage error.
result<std::int64_t> parse_duration(std::string_view text);

// Seconds for a person, at most three digits that mean something: "0.4 ms", "3.2 s", "4 min 10 s",
// "2 h 5 min".
std::string format_seconds(double seconds);

}  // namespace troupe
