#include "troupe/actors/program/progress_bar.hpp"

#include "troupe/actors/program/output.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace troupe {

namespace {

std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

progress_bar::progress_bar(std::uint64_t total, bool is_quiet)
    : total_(std::max<std::uint64_t>(1, total)),
      is_quiet_(is_quiet),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {}

progress_bar::~progress_bar() {
  if (is_drawn_ && is_terminal_) say_error("");
}

void progress_bar::show(std::uint64_t done, const std::string& text) {
  if (is_quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const auto pause =
      is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000);
  if (is_drawn_ && done < total_ && now - drawn_ < pause) return;
  drawn_ = now;
  is_drawn_ = true;
  draw(done, text);
}

void progress_bar::say(const std::string& line) {
  if (is_drawn_ && is_terminal_) (void)write_text(stderr, "\r\033[K");
  say_error(line);
}

void progress_bar::draw(std::uint64_t done, const std::string& text) {
  const auto percent = 100 * std::min(done, total_) / total_;
  if (!is_terminal_) {
    say_error(fmt::format("{:3}%  {}", percent, text));
    return;
  }
  const auto columns = terminal_columns();
  const auto room = columns > text.size() + 10 ? columns - text.size() - 10 : 0;
  const auto width = std::min<std::size_t>(40, room);
  const auto full = width * std::min(done, total_) / total_;
  std::string bar;
  for (std::size_t i = 0; i < width; ++i) bar += i < full ? "█" : "░";
  (void)write_text(stderr, fmt::format("\r{} {:3}%  {}\033[K", bar, percent,
                                       text.substr(0, columns > 8 ? columns - 8 : 0)));
  std::fflush(stderr);
}

}  // namespace troupe
