#pragma once
// Texts of a model file, which may hold anything, on their way to a person.

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::onnx {

bool is_utf8(std::string_view text) noexcept;
// One line of UTF-8 without characters that a terminal obeys: those, and bytes that are no UTF-8, become `instead`. Of a text that is longer
// than `bytes_max`, its beginning.
std::string printable(std::string_view text, char instead = '?', std::size_t bytes_max = std::string_view::npos);
// For error messages: printable, and "..." where it was cut.
std::string shown(std::string_view text);

}  // namespace troupe::onnx
