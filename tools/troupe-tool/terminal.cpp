#include "tools/troupe-tool/terminal.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

namespace troupe {

namespace {

constexpr std::string_view alternate_screen = "\x1b[?1049h\x1b[?25l",
                           normal_screen = "\x1b[?25h\x1b[?1049l";

void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the terminal is gone; wait() sees that too
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

struct terminal::saved {
  termios mode{};
  sigset_t mask{};
  int signals = -1;
};

screen stdout_screen() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  // Some terminals do not know their size: then the size of all terminals since 1978.
  return {size.ws_col != 0 ? size.ws_col : std::size_t{80},
          size.ws_row != 0 ? size.ws_row : std::size_t{24}};
}

terminal::terminal() : saved_(std::make_unique<saved>()) {}

result<std::unique_ptr<terminal>> terminal::open() {
  std::unique_ptr<terminal> t(new terminal());
  auto& s = *t->saved_;
  if (::tcgetattr(STDIN_FILENO, &s.mode) != 0)
    return error(error_code::usage,
                 fmt::format("stdin is not a terminal: {}", std::strerror(errno)));
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) ::sigaddset(&ending, signal);
  ::sigprocmask(SIG_BLOCK, &ending, &s.mask);
  s.signals = ::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
  auto raw = s.mode;
  // Without ISIG Ctrl-C is a key like any other, and Ctrl-Z does not leave the screen as it is.
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  write_all(alternate_screen);
  return t;
}

terminal::~terminal() {
  if (saved_->signals < 0) return;
  write_all(normal_screen);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_->mode);
  ::close(saved_->signals);
  ::sigprocmask(SIG_SETMASK, &saved_->mask, nullptr);
}

void terminal::draw(const std::string& page) {
  const auto height = stdout_screen().height;
  std::string out = "\x1b[H";
  std::size_t lines = 0;
  for (std::size_t at = 0; at < page.size() && lines + 1 < height; ++lines) {
    const auto end = std::min(page.find('\n', at), page.size());
    out += page.substr(at, end - at) + "\x1b[K\r\n";
    at = end + 1;
  }
  write_all(out + "\x1b[J");
}

bool terminal::wait(std::int64_t ns) {
  pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {saved_->signals, POLLIN, 0}};
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  if (::ppoll(fds, 2, &time, nullptr) <= 0) return true;
  if (fds[1].revents != 0) {
    signalfd_siginfo info{};
    while (::read(saved_->signals, &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGWINCH) return false;
  }
  if (fds[0].revents != 0) {
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) != 1) return false;
    constexpr char end_of_text = 3, end_of_transmission = 4;  // Ctrl-C, Ctrl-D
    return key != 'q' && key != 'Q' && key != end_of_text && key != end_of_transmission;
  }
  return true;
}

}  // namespace troupe
