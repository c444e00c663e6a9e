#pragma once
// What signals do to a process, the same for programs and nodes.
//
// SIG-1  A write to a pipe that nobody reads, or beyond a limit of file sizes, is an error of that
//       write, and not the end of the process.
// SIG-2  A signal that was ignored when the process began (nohup, a shell's background job) stays
//       ignored.
//
// Threading: the thread that begins the process, before it has others.

#include <signal.h>

namespace troupe {

// SIG-1, where nobody has chosen otherwise: SIGPIPE and SIGXFSZ are ignored, by programs that it
// starts, too. Nodes, training_report and topology::run() do so; a session alone changes no signal
// of its process, so a program with a loop of its own may call this when it begins.
void take_writes_as_errors();

// False: the signal is ignored, and stays so (SIG-2).
bool is_heeded(int signal);
// The handler is called for it from now on, unless it is ignored.
void heed_signal(int signal, void (*handler)(int));

// The same until it goes.
class scoped_signal {
 public:
  scoped_signal(int signal, void (*handler)(int));
  ~scoped_signal();
  scoped_signal(const scoped_signal&) = delete;
  scoped_signal& operator=(const scoped_signal&) = delete;

 private:
  int signal_;
  struct sigaction before_{};
};

}  // namespace troupe
