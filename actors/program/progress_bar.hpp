#pragma once
// Progress of long work: a bar that redraws itself on a terminal, plain lines in a pipe. Writes to
// standard error.

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe {

class progress_bar {
 public:
  progress_bar(std::uint64_t total, bool is_quiet);
  ~progress_bar();  // leaves the cursor on a line of its own

  // `text` stands behind the bar. Draws at most ten times a second (a line each two seconds in a
  // pipe), and at the end.
  void show(std::uint64_t done, const std::string& text);
  // A line above the bar.
  void say(const std::string& line);

 private:
  void draw(std::uint64_t done, const std::string& text);

  std::uint64_t total_;
  bool is_quiet_;
  bool is_terminal_;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace troupe
