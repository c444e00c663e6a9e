#pragma once
// Text to where a person or a file may take it or not: fmt::print throws where nothing can be
// written, and a closed terminal must not end a training.

#include <cstdio>
#include <string>

namespace troupe {

// False: not all of it was taken.
inline bool write_text(std::FILE* to, const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), to) == text.size();
}
// A line on standard error; where that can't be written there is nobody to tell.
inline void say_error(const std::string& line) { (void)write_text(stderr, line + "\n"); }

}  // namespace troupe
