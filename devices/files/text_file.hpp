#pragma once
// A text as a sequence of bytes, of which readers take pieces.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// What a graph knows of a text.
struct text_info {
  std::string path;  // absolute
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // of its content, XXH3-64: other nodes must find the same
};

// Reads the whole file, to know it. Errors: not_found, usage (no file, more than 4 GiB).
result<text_info> open_text(const std::string& path);
// Its bytes, if it is still the text that was opened.
result<std::shared_ptr<const std::vector<std::byte>>> load_text(const text_info& info);

// Where piece `place` of the global batch of a step begins, if there are so many places to begin.
std::uint64_t piece_of_text(std::uint64_t seed, std::uint64_t step, std::uint64_t place,
                            std::uint64_t places) noexcept;

}  // namespace troupe
