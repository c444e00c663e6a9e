#include "troupe/devices/files/signals.hpp"

#include <csignal>
#include <initializer_list>

#include <signal.h>

namespace troupe {
namespace {

bool is_set_to(int signal, void (*what)(int)) {
  struct sigaction now{};
  return ::sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
         now.sa_handler == what;
}

}  // namespace

void take_writes_as_errors() {
  for (const int signal : {SIGPIPE, SIGXFSZ})
    if (is_set_to(signal, SIG_DFL)) std::signal(signal, SIG_IGN);
}

bool is_heeded(int signal) { return !is_set_to(signal, SIG_IGN); }

void heed_signal(int signal, void (*handler)(int)) {
  if (is_heeded(signal)) std::signal(signal, handler);
}

scoped_signal::scoped_signal(int signal, void (*handler)(int)) : signal_(signal) {
  ::sigaction(signal_, nullptr, &before_);
  heed_signal(signal_, handler);
}

scoped_signal::~scoped_signal() { ::sigaction(signal_, &before_, nullptr); }

}  // namespace troupe
