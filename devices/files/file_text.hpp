#pragma once
// Texts of files on their way into errors. devices/files/ only.

#include <string>
#include <string_view>

namespace troupe::host {

// In quotes, on one line: what is no printable ASCII becomes '?', and of a long text its beginning.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t bytes_max = 100;
  std::string out = "'";
  for (const char c : text.substr(0, bytes_max)) out += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > bytes_max) out += "...";
  return out + "'";
}

}  // namespace troupe::host
