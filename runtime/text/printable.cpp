#include "troupe/runtime/text/printable.hpp"

#include <algorithm>

namespace troupe {
namespace {

// Bytes of the character at i, of a text that is UTF-8.
std::size_t character_bytes(std::string_view text, std::size_t i) {
  const auto first = static_cast<unsigned char>(text[i]);
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// Not below U+0020, not U+007F to U+009F, and no single byte of what is not UTF-8.
bool is_safe(std::string_view character) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(character[k]); };
  return character.size() > 1 ? byte(0) != 0xc2 || byte(1) >= 0xa0
                              : byte(0) >= 0x20 && byte(0) < 0x7f;
}

// How many bytes of the text are in `out` then.
std::size_t put_printable(std::string& out, std::string_view text, char instead,
                          std::size_t bytes_max) {
  const bool is_text = is_utf8(text);
  std::size_t i = 0;
  while (i < text.size() && out.size() < bytes_max) {
    const auto character = text.substr(i, is_text ? character_bytes(text, i) : 1);
    if (is_safe(character))
      out += character;
    else
      out += instead;
    i += character.size();
  }
  return i;
}

bool is_start(char c) noexcept { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// Byte offset of character n, or the end.
std::size_t offset_of(std::string_view s, std::size_t n) noexcept {
  std::size_t at = 0;
  for (; at < s.size(); ++at)
    if (is_start(s[at]) && n-- == 0) break;
  return at;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) {
      return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U;
    };
    const auto first = byte(i);
    const std::size_t more = first < 0x80                    ? 0
                             : first >= 0xc2 && first < 0xe0 ? 1
                             : first >= 0xe0 && first < 0xf0 ? 2
                             : first >= 0xf0 && first < 0xf5 ? 3
                                                             : 9;
    if (more == 9) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0U) != 0x80) return false;
    // No longer forms, no halves of surrogate pairs, nothing above U+10FFFF (RFC 3629).
    if ((first == 0xe0 && byte(i + 1) < 0xa0) || (first == 0xed && byte(i + 1) > 0x9f) ||
        (first == 0xf0 && byte(i + 1) < 0x90) || (first == 0xf4 && byte(i + 1) > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

std::string printable(std::string_view text, char instead, std::size_t bytes_max) {
  std::string out;
  put_printable(out, text, instead, bytes_max);
  return out;
}

std::string shown(std::string_view text) {
  constexpr std::size_t most = 80;
  std::string out;
  const auto used = put_printable(out, text, '?', most);
  return used < text.size() ? out + "..." : out;
}

std::size_t characters(std::string_view utf8) noexcept {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), is_start));
}

std::string shorten(std::string_view utf8, std::size_t n) {
  const auto length = characters(utf8);
  if (length <= n) return std::string(utf8);
  if (n < 4) return std::string("..").substr(0, n);
  const auto head = (n - 2) / 2, tail = n - 2 - head;
  return std::string(utf8.substr(0, offset_of(utf8, head))) + ".." +
         std::string(utf8.substr(offset_of(utf8, length - tail)));
}

}  // namespace troupe
