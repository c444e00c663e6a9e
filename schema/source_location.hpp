#pragma once
// The line of a user's program that something comes from: that of a call, or one that a file tells
// of (runtime/compile/graph_file.hpp), which std::source_location cannot be made of. The name of
// the file is not owned: a literal, or kept by whoever gives the line out.

#include <cstdint>
#include <source_location>

namespace troupe {

class source_location {
 public:
  constexpr source_location() noexcept = default;
  constexpr source_location(const std::source_location& s) noexcept
      : file_(s.file_name()), line_(s.line()) {}
  constexpr source_location(const char* file, std::uint32_t line) noexcept
      : file_(file), line_(line) {}
  // As a default argument: the line of the call.
  static constexpr source_location current(
      const std::source_location& here = std::source_location::current()) noexcept {
    return here;
  }

  constexpr const char* file_name() const noexcept { return file_; }
  constexpr std::uint32_t line() const noexcept { return line_; }

 private:
  const char* file_ = "";
  std::uint32_t line_ = 0;
};

}  // namespace troupe
