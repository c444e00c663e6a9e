// Ends a test case that does not end by itself, and says which it is, what it waits for and where
// its threads are.
//
// Each test case has 100 s; TROUPE_TEST_CASE_LIMIT is another number of seconds, and 0 none. It is
// a limit against hangs alone, and less than the one for the whole program (TIMEOUT), which could
// say no more than that something hung. A case that still computes then, by a tenth of a core in
// the last fifth of its time, does not hang but is on a busy machine: it goes on as long as it does
// so, up to five times the limit. A debugger that is attached may take longer.
//
// Threading: a thread of its own, from the first test case to the last one. It sleeps until a limit
// has passed and then asks what runs, so that no test wakes it; it takes no signal and no lock but
// its own, and allocates nothing before a case hangs. A child that a test forks is without it.

#include "tests/support/wait.hpp"

#include <boost/test/tree/observer.hpp>
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

extern char** environ;

namespace {

using clock = std::chrono::steady_clock;
namespace unit_test = boost::unit_test;

constexpr int exit_code = 3;

// To where errors go, past all buffers: some thread may hold their locks for ever.
void say(std::string text) {
  text += '\n';
  for (std::size_t done = 0; done < text.size();) {
    const auto n = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

std::chrono::seconds limit_of_environment() {
  const char* text = std::getenv("TROUPE_TEST_CASE_LIMIT");
  if (text == nullptr) return std::chrono::seconds(100);
  char* end = nullptr;
  const auto seconds = std::strtol(text, &end, 10);
  if (end == text || *end != 0 || seconds < 0 || seconds > 1'000'000) {
    say(std::string("TROUPE_TEST_CASE_LIMIT: seconds, 0 for no limit, not '") + text + "'");
    ::_exit(2);
  }
  return std::chrono::seconds(seconds);
}

// Of this process, all threads, and of what it has waited for.
std::chrono::microseconds computed() {
  std::chrono::microseconds sum{};
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(who, &used);
    for (const auto& t : {used.ru_utime, used.ru_stime})
      sum += std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
  }
  return sum;
}

bool has_debugger() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != std::string::npos;
  return false;
}

// By a debugger, where there is one. A program ends it after 20 s, since this thread stands still
// as well while it looks.
void show_threads() {
  // Else some systems let no child look at its parent.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  // Signals are blocked in this thread, and would be in what it starts.
  posix_spawnattr_t how;
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_init(&how);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
  const std::string pid = std::to_string(::getpid());
  const char* const arguments[] = {"timeout", "--signal=KILL", "20",   "gdb",
                                   "-nx",     "-batch",        "-iex", "set debuginfod enabled off",
                                   "-p",      pid.c_str(),     "-ex",  "thread apply all bt 25",
                                   nullptr};
  pid_t child = 0;
  int status = 0;
  const int failed = ::posix_spawnp(&child, arguments[0], &files, &how,
                                    const_cast<char* const*>(arguments), environ);
  if (failed == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  }
  if (failed != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127))
    say("no backtraces: there is no gdb");
  else
    say("gdb did not show all threads, or not within 20 s");
}

class case_watch : public unit_test::test_observer {
 public:
  case_watch() { unit_test::framework::register_observer(*this); }
  ~case_watch() {
    unit_test::framework::deregister_observer(*this);
    end();
  }
  case_watch(const case_watch&) = delete;
  case_watch& operator=(const case_watch&) = delete;

  // After all of the framework's own, of which the first has to come before any other.
  int priority() override { return 5; }
  void test_unit_start(const unit_test::test_unit& unit) override {
    if (unit.p_type != unit_test::TUT_CASE) return;
    if (!limit_) limit_ = limit_of_environment();
    if (limit_->count() == 0) return;
    const auto& file = unit.p_file_name;
    running next{std::string(file.begin(), file.end()) + ":" + std::to_string(unit.p_line_num),
                 unit.full_name(), clock::now(), clock::now() + *limit_ - slice()};
    const std::scoped_lock lock(mutex_);
    running_ = std::move(next);
    if (!thread_.joinable()) start();
  }
  void test_unit_finish(const unit_test::test_unit& unit, unsigned long) override {
    if (unit.p_type != unit_test::TUT_CASE) return;
    const std::scoped_lock lock(mutex_);
    running_.reset();
  }
  void test_finish() override { end(); }

 private:
  struct running {
    std::string place, name;
    clock::time_point begin, look;                               // when it is looked at next
    std::optional<std::chrono::microseconds> computed_before{};  // at the last look
  };
  std::chrono::milliseconds slice() const { return std::chrono::milliseconds(*limit_) / 5; }

  void start() {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { watch(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void watch() {
    ::pthread_setname_np(::pthread_self(), "case watch");
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      // A case that begins later ends later: to wake up for this one is early enough for all.
      const auto until = running_ ? running_->look : clock::now() + *limit_ - slice();
      changed_.wait_until(lock, until);
      if (is_over_ || !running_ || clock::now() < running_->look) continue;
      auto& r = *running_;
      const auto now = computed();
      const bool computes = !r.computed_before || now - *r.computed_before >= slice() / 10;
      const bool has_time = clock::now() - r.begin < 5 * *limit_;
      if (!has_debugger() && !(computes && has_time)) give_up(r);
      r.computed_before = now;
      r.look = clock::now() + slice();
    }
  }

  [[noreturn]] void give_up(const running& hanging) {
    // What the test has said until now, if nobody is in the middle of it.
    if (::ftrylockfile(stdout) == 0) {
      std::fflush(stdout);
      ::funlockfile(stdout);
    }
    const auto passed = clock::now() - hanging.begin;
    const auto seconds =
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(passed).count());
    say(hanging.place + ": test case '" + hanging.name + "' has not ended after " + seconds + " s");
    for (const auto& what : troupe::test::waiting_for::all()) say("it waits " + what);
    show_threads();
    ::_exit(exit_code);
  }

  std::optional<std::chrono::seconds> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<running> running_;
  bool is_over_ = false;
  std::thread thread_;
};

case_watch the_watch;

}  // namespace
