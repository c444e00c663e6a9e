#pragma once
// Texts on their way to a person: those of a file, which may hold anything, and those that are too
// long.

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

bool is_utf8(std::string_view text) noexcept;
// One line of UTF-8 without characters that a terminal obeys: those, and bytes that are no UTF-8,
// become `instead`. Of a text that is longer than `bytes_max`, its beginning.
std::string printable(std::string_view text, char instead = '?',
                      std::size_t bytes_max = std::string_view::npos);
// For error messages: printable, and "..." where it was cut.
std::string shown(std::string_view text);

// Characters (code points) of UTF-8.
std::size_t characters(std::string_view utf8) noexcept;
// The text in at most n characters: its middle becomes "..", since names differ at both ends.
std::string shorten(std::string_view utf8, std::size_t n);

}  // namespace troupe
