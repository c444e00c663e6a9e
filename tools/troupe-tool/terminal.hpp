#pragma once
// The terminal while a page is redrawn on it: keys come at once and unseen, and leaving it puts
// everything back.

#include "tools/troupe-tool/answer.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

// Of stdout; 0 x 0 where it is no terminal.
screen stdout_screen();

class terminal {
 public:
  // Takes over stdin and stdout, which must be terminals, and the signals that end a program, which
  // then end wait().
  static result<std::unique_ptr<terminal>> open();
  ~terminal();
  terminal(const terminal&) = delete;
  terminal& operator=(const terminal&) = delete;

  // Replaces what is shown without flicker. Lines beyond the height are not drawn.
  void draw(const std::string& page);
  // False once the user wants to leave: q, Ctrl-C, Ctrl-D, a signal or a closed terminal; true
  // after the time or a resize.
  bool wait(std::int64_t ns);

 private:
  terminal();
  struct saved;
  std::unique_ptr<saved> saved_;
};

}  // namespace troupe
