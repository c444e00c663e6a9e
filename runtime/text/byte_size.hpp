#pragma once
// Sizes of memory as people write and read them: "2GiB", "512MB". Pure; shared by all programs.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// "4096", "64KiB", "1.5GiB", "2G" in bytes. KiB, MiB, GiB, TiB and K, M, G, T are powers of 1024;
// kB, MB, GB, TB powers of 1000; letters in any case. Negative, not a number, or beyond 2^63 - 1
// bytes: a usage error that says what was expected.
result<std::uint64_t> parse_byte_size(std::string_view text);

// Bytes for a person: "512 B", "4.0 KiB", "1.2 GiB".
std::string format_bytes(std::uint64_t bytes);

}  // namespace troupe
