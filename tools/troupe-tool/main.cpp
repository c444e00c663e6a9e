// troupe: looks inside a running cluster, and at plans and checkpoints.
//
// The grammar is in command.hpp, what is printed in answer.hpp; here is only what asks and waits.

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/checkpoints.hpp"
#include "tools/troupe-tool/command.hpp"
#include "tools/troupe-tool/completion.hpp"
#include "tools/troupe-tool/context_answers.hpp"
#include "tools/troupe-tool/contexts.hpp"
#include "tools/troupe-tool/event_log.hpp"
#include "tools/troupe-tool/plans.hpp"
#include "tools/troupe-tool/serve.hpp"
#include "tools/troupe-tool/terminal.hpp"
#include "tools/troupe-tool/timeline.hpp"
#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/actors/process/load_library.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/signals.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/insight/why.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t redraw_ns = 1'000'000'000;
constexpr std::int64_t poll_ns = 50'000'000;         // between two questions of wait
constexpr std::int64_t question_ns = 1'000'000'000;  // at most, of one question of wait
constexpr std::int64_t follow_ns = 300'000'000;      // between two questions of events --follow
constexpr std::int64_t look_ns = 100'000'000;        // between two looks of why
constexpr std::int64_t slow_look_ns = 20'000'000;    // at least, between two looks of why --slow
constexpr std::int64_t first_look_ns = 350'000'000;  // at most, of its first look

int print(const outcome& o) {
  // What is longer than a buffer fails while it is written, and flushing the rest may do well.
  const bool is_taken = std::fwrite(o.out.data(), 1, o.out.size(), stdout) == o.out.size();
  const bool is_written = std::fflush(stdout) == 0 && is_taken;
  std::fwrite(o.err.data(), 1, o.err.size(), stderr);
  return is_written ? o.exit_code : static_cast<int>(error_code::failed);
}

int ask_once(const command& c) {
  const auto snapshot = ask_cluster(c.ask);
  return print(snapshot ? answer_to(c, *snapshot, stdout_screen())
                        : answer_error(snapshot.error()));
}

// Looks twice: what has not changed in between was so. A node that does not answer soon, and is out
// of the reach of others, too, is told at once where the job waits for it; anybody else has the
// whole time: on a busy machine a node that is fine may not answer sooner.
int explain_waits(const command& c) {
  auto ask = c.ask;
  ask.timeout_ns = std::min(ask.timeout_ns, first_look_ns);
  auto before = ask_cluster(ask);
  const auto is_known = [&](const silent_node& s) {
    return std::ranges::any_of(before->nodes, [&](const auto& n) {
      return n.name == s.name && n.state != node_state::alive && n.unreachable_seconds > 0;
    });
  };
  if (before && !before->silent.empty() && std::ranges::all_of(before->silent, is_known)) {
    const auto answer = explain(*before, c.id);
    if (answer && answer->kind == root_kind::node_lost)
      return print(answer_to(c, *before, stdout_screen()));
  }
  if (!before || !before->silent.empty()) {
    auto again = ask_cluster(c.ask);
    if (!again)
      return print(before ? answer_to(c, *before, stdout_screen()) : answer_error(again.error()));
    if (!again->silent.empty())
      return print(answer_to(c, *again, stdout_screen(), before ? &*before : nullptr));
    before = std::move(again);
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(look_ns));
  const auto now = ask_cluster(c.ask);
  return print(now ? answer_to(c, *now, stdout_screen(), &*before) : answer_error(now.error()));
}

// Many looks; a regular step would see a regular job at the same place each time.
int explain_rate(const command& c) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(c.duration_ns);
  std::minstd_rand random(static_cast<unsigned>(getpid()));
  auto ask = c.ask;
  std::vector<cluster_snapshot> looks;
  while (std::chrono::steady_clock::now() < end || looks.size() < 2) {
    auto look = ask_cluster(ask);
    if (!look) return print(answer_error(look.error()));
    looks.push_back(std::move(*look));
    ask.timeout_ns = std::min(ask.timeout_ns, first_look_ns);  // who is slow is left out
    std::this_thread::sleep_for(std::chrono::nanoseconds(
        slow_look_ns / 2 + static_cast<std::int64_t>(random() % (slow_look_ns / 1000)) * 1000));
  }
  return print(answer_slow(c, looks));
}

// Retries whatever may still change: no cluster yet, nodes that start. A refused token or a bad
// flag stays as it is.
int wait_for(const command& c) {
  std::optional<cluster_snapshot> last;  // of those that were answered in time
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(c.ask.timeout_ns);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - std::chrono::steady_clock::now())
            .count();
    auto ask = c.ask;
    ask.timeout_ns = std::clamp(left, poll_ns, question_ns);
    const auto snapshot = ask_cluster(ask);
    if (snapshot) last = *snapshot;
    if (snapshot && c.job_wanted) {
      if (const auto done = answer_waited_for_job(c, *snapshot)) return print(*done);
    } else if (snapshot && nodes_alive(*snapshot) >= c.nodes_wanted) {
      return print(answer_wait_done(c, *snapshot));
    }
    if (!snapshot && (snapshot.error().code() == error_code::denied ||
                      snapshot.error().code() == error_code::usage))
      return print(answer_error(snapshot.error()));
    if (std::chrono::steady_clock::now() + std::chrono::nanoseconds(poll_ns) >= end)
      return print(answer_wait_timed_out(c, last ? result<cluster_snapshot>(*last) : snapshot));
    std::this_thread::sleep_for(std::chrono::nanoseconds(poll_ns));
  }
}

// Asks for it once, then looks until it is so.
int change(const command& c) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(c.ask.timeout_ns);
  auto ask = c.ask;
  ask.timeout_ns = std::min(ask.timeout_ns, 2 * question_ns);
  const auto first = ask_cluster(ask);
  if (!first) return print(answer_error(first.error()));
  if (const auto refused = answer_refused(c, *first)) return print(*refused);
  ask.request.clear();
  do {
    std::this_thread::sleep_for(std::chrono::nanoseconds(poll_ns));
    const auto now = ask_cluster(ask);
    if (now)
      if (const auto done = answer_changed(c, *first, *now)) return print(*done);
    // It was the last one.
    if (!now && c.action == verb::leave_cluster && now.error().code() == error_code::unreachable)
      return print(answer_changed(c, *first, {}).value());
  } while (std::chrono::steady_clock::now() < end);
  return print(answer_not_changed(c));
}

// On a terminal a line that is redrawn, else one line.
class progress_display {
 public:
  explicit progress_display(const command& c) : command_(c) {}

  void show(const record_progress& p) {
    if (is_terminal_)
      fmt::print(stderr, "\r{}\x1b[K", progress_line(command_, p));
    else if (!is_shown_)
      fmt::print(stderr, "troupe: recording {} s on {} node{}\n",
                 double(command_.duration_ns) / 1e9, p.nodes, p.nodes == 1 ? "" : "s");
    is_shown_ = true;
  }
  void clear() const {
    if (is_terminal_ && is_shown_) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  const command& command_;
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  bool is_shown_ = false;
};

int record_timeline(const command& c) {
  if (!c.id.empty()) {
    const auto snapshot = ask_cluster(c.ask);
    if (!snapshot) return print(answer_error(snapshot.error()));
    if (const auto known = check_job(c.id, snapshot->jobs); !known)
      return print(answer_error(known.error()));
  }
  progress_display display(c);
  record_options how{.ask = c.ask,
                     .duration_ns = c.duration_ns,
                     .on_progress = [&](const record_progress& p) { display.show(p); }};
  const auto recording = record_cluster(how);
  display.clear();
  if (!recording) return print(answer_error(recording.error()));
  bool is_written = true;
  const auto summary = write_timeline(*recording, c.id, [&](std::string_view piece) {
    is_written = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size() && is_written;
  });
  const auto code = print(answer_timeline(c, *recording, summary));
  return is_written ? code : static_cast<int>(error_code::failed);
}

// In this process; libraries run code of their own when they are loaded, and nothing else does.
int explain_plan(const command& c) {
  auto ops = make_op_table();
  auto kernels = make_host_kernels();
  for (const auto& file : c.plan.load)
    if (auto ok = load_ops(ops, kernels, file); !ok) return print(answer_error(ok.error()));
  return print(answer_plan(c, *make_host_disk(), ops));
}

// A list after the other, with what was not there on stderr, until the pipe is closed.
int watch_in_pipe(const command& c) {
  for (bool is_first = true;; is_first = false) {
    const auto snapshot = ask_cluster(c.ask);
    auto o = snapshot ? answer_to(c, *snapshot, {}) : answer_error(snapshot.error());
    if (o.exit_code == static_cast<int>(error_code::usage) ||
        o.exit_code == static_cast<int>(error_code::denied))
      return print(o);
    if (!is_first && !c.json) o.out.insert(0, "\n");
    print(o);
    if (std::ferror(stdout) != 0) return static_cast<int>(error_code::failed);
    std::this_thread::sleep_for(std::chrono::nanoseconds(c.interval_ns));
  }
}

volatile std::sig_atomic_t is_interrupted = 0;

// Until Ctrl-C, which is its end in good order. Nodes, and the whole cluster, may go and come back.
int follow_log(const command& c) {
  struct sigaction on_end{};
  on_end.sa_handler = [](int) { is_interrupted = 1; };
  for (const int ends : {SIGINT, SIGTERM})
    if (is_heeded(ends)) sigaction(ends, &on_end, nullptr);  // a wait that it interrupts ends
  log_follower log(c);
  auto ask = c.ask;
  bool has_answered = false;
  std::string trouble;
  while (is_interrupted == 0) {
    ask.newer_than_ns = has_answered ? log.newer_than_ns(unix_now_ns()) : 0;
    const auto snapshot = ask_cluster(ask);
    if (is_interrupted != 0) break;
    if (!snapshot) {
      const auto& e = snapshot.error();
      if (!has_answered || e.code() == error_code::denied || e.code() == error_code::usage)
        return print(answer_error(e));
      if (std::exchange(trouble, e.text()) != e.text())
        fmt::print(stderr, "troupe: {}; asked again until it answers\n", e.text());
    } else {
      const auto o = log.add(*snapshot, unix_now_ns());
      if (const auto code = print(o); code != 0) return code;
      has_answered = true;
      trouble.clear();
    }
    const timespec pause{0, follow_ns};
    nanosleep(&pause, nullptr);
  }
  return 0;
}

// Until q or Ctrl-C. A cluster that is not there now may come back, so errors are shown on the
// page.
int redraw(const command& c) {
  auto page = terminal::open();
  if (!page) return ask_once(c);
  const auto interval_ns = c.interval_ns > 0 ? c.interval_ns : redraw_ns;
  do {
    const auto snapshot = ask_cluster(c.ask);
    const auto o =
        snapshot ? answer_to(c, *snapshot, stdout_screen()) : answer_error(snapshot.error());
    (*page)->draw(o.out + (o.err.empty() ? "" : "\n" + o.err));
  } while ((*page)->wait(interval_ns));
  return 0;
}

}  // namespace

namespace {

// Where the packages' service has its sockets, which are its user's.
result<void> become_service_user() {
  constexpr const char* user = "troupe";
  constexpr const char* folder = "/run/troupe";
  const auto* entry = ::getpwnam(user);
  if (entry == nullptr)
    return error(error_code::usage, "--system: there is no user troupe: is the package installed?");
  if (::geteuid() != entry->pw_uid) {
    if (::geteuid() != 0)
      return error(error_code::denied, "--system: that is for root and the user troupe (sudo)");
    if (::setgroups(0, nullptr) != 0 || ::setgid(entry->pw_gid) != 0 ||
        ::setuid(entry->pw_uid) != 0)
      return error(error_code::failed, "--system: cannot become the user troupe");
  }
  ::setenv("XDG_RUNTIME_DIR", folder, 1);
  return {};
}

// What completion offers is of the cluster that the line says, and is asked for only briefly.
int complete_line(std::span<const std::string> words, const surroundings& around) {
  const auto names = [&](std::string_view kind, std::span<const std::string> flags) {
    std::vector<std::string> found;
    std::vector<std::string> line(flags.begin(), flags.end());
    line.insert(line.end(), {"names", std::string(kind), "--timeout", "500ms"});
    const auto parsed = parse_command(line, around);
    if (!parsed.to_run) return found;
    if (kind == "contexts") {
      for (const auto& [name, place] : around.known.places) found.push_back(name);
    } else if (parsed.to_run->is_system && !become_service_user()) {
      return found;
    } else if (const auto snapshot = ask_cluster(parsed.to_run->ask)) {
      std::istringstream lines(answer_to(*parsed.to_run, *snapshot, {}).out);
      for (std::string name; std::getline(lines, name);) found.push_back(name);
    }
    return found;
  };
  std::string out;
  for (const auto& [word, meaning] : complete(words, names))
    out += meaning.empty() ? word + "\n" : fmt::format("{}\t{}\n", word, meaning);
  return print({0, out, {}});
}

int run(const command& c, const surroundings& around) {
  if (c.action == verb::version) return print(answer_version(c));
  if (c.action == verb::completion) return print({0, c.script, {}});
  if (is_of_contexts(c.action) || (c.action == verb::names && c.kind == object_kind::none))
    return print(answer_contexts(c, around));
  if (c.action == verb::plan) return explain_plan(c);
  if (c.action == verb::list_checkpoints || c.action == verb::verify_checkpoints)
    return print(answer_checkpoints(c, *make_host_disk(), stdout_screen().width));
  if (c.is_system)
    if (const auto ok = become_service_user(); !ok) return print(answer_error(ok.error()));
  if (c.action == verb::wait) return wait_for(c);
  if (c.action == verb::serve) return serve(c);
  if (c.action == verb::timeline) return record_timeline(c);
  if (c.log.is_followed) return follow_log(c);
  if (c.action == verb::why) return c.is_slow ? explain_rate(c) : explain_waits(c);
  if (is_change(c.action)) return change(c);
  const bool is_interactive = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  const bool is_live = c.action == verb::none || c.action == verb::top || c.is_watch;
  if (is_live && is_interactive && !c.json) return redraw(c);
  if (c.is_watch) return watch_in_pipe(c);
  return ask_once(c);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + std::min(count, 1), values + count);
  const auto around = look_around();
  if (arguments.size() >= 2 && arguments[0] == "__complete" && arguments[1] == "--")
    return complete_line(std::span(arguments).subspan(2), around);
  const auto parsed = parse_command(arguments, around);
  if (!parsed.to_run) return print({parsed.exit_code, parsed.out, parsed.err});
  const auto code = run(*parsed.to_run, around);
  const bool is_elsewhere = code == static_cast<int>(error_code::unreachable) ||
                            code == static_cast<int>(error_code::denied);
  if (code == static_cast<int>(error_code::unreachable) && parsed.to_run->is_system)
    fmt::print(stderr, "troupe: systemctl start troupe-node@a starts one\n");
  if (is_elsewhere && !parsed.to_run->context.empty())
    fmt::print(stderr, "troupe: it was asked where context '{0}' says (troupe context show {0})\n",
               parsed.to_run->context);
  return code;
}
