#pragma once
// How deep JSON is nested, before a parser reads it: the parser makes a value for each bracket,
// which takes up to a hundred times the memory of the text.
//
// Threading: any thread.

#include <cstddef>
#include <string_view>

namespace troupe {

// No list or object stands in more than `depth_max - 1` others. Text that is no JSON may be either.
inline bool is_shallow_json(std::string_view text, std::size_t depth_max) noexcept {
  std::size_t depth = 0;
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted && c == '\\') ++i;
    if (c == '"') is_quoted = !is_quoted;
    if (is_quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > depth_max) return false;
  }
  return true;
}

}  // namespace troupe
