#include "tools/troupe-node/node_log.hpp"

#include "troupe/runtime/text/json_line.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/base_sink.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

namespace troupe {

namespace {

constexpr auto end_max = std::chrono::seconds(1);  // NL-3
constexpr int look_ms = 50;
constexpr std::size_t piece_max = 4096;  // of a pipe that is writable: POSIX's PIPE_BUF on Linux

std::string log_time(std::uint64_t unix_ns) {
  using namespace std::chrono;
  const sys_time<microseconds> at(floor<microseconds>(nanoseconds(unix_ns)));
  const auto day = floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", int(date.year()),
                     unsigned(date.month()), unsigned(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

std::uint64_t log_now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

spdlog::level::level_enum spdlog_level(event_level l) {
  switch (l) {
    case event_level::trace: return spdlog::level::trace;
    case event_level::debug: return spdlog::level::debug;
    case event_level::info: return spdlog::level::info;
    case event_level::warning: return spdlog::level::warn;
    case event_level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

// As syslog(3) numbers them.
int priority_of(event_level l) {
  switch (l) {
    case event_level::error: return 3;
    case event_level::warning: return 4;
    case event_level::info: return 6;
    default: return 7;
  }
}

std::string journal_entry(const event& e, std::uint64_t unix_ns) {
  // Values without a line's end stand as they are.
  return fmt::format(
      "MESSAGE={}\nPRIORITY={}\nSYSLOG_IDENTIFIER=troupe-node\nTROUPE_NODE={}\nTROUPE_KIND={}\n"
      "TROUPE_JOB={}\nTROUPE_JOB_ID={}\nTROUPE_TIME={}\n",
      printable(e.text), priority_of(e.level), printable(e.node), to_string(e.kind),
      printable(e.job), printable(e.job_id), log_time(unix_ns));
}

event own_line(event_level level, std::string_view node, std::string text) {
  auto e = make_event(event_kind::note, std::move(text));
  e.level = level;
  e.node = node;
  return e;
}

// NL-3: until when whoever takes the lines is waited for.
struct log_end {
  std::atomic<std::int64_t> at_ns{0};  // on the steady clock; 0: it has not come yet

  // True also where there is another one to write to: `instead` is none at -1.
  bool wait_for_room(int fd, const std::atomic<int>* instead = nullptr) const {
    for (;;) {
      if (instead != nullptr && instead->load() >= 0) return true;
      const auto end = at_ns.load();
      const bool is_over =
          end != 0 && std::chrono::steady_clock::now().time_since_epoch().count() > end;
      pollfd p{fd, POLLOUT, 0};
      if (::poll(&p, 1, is_over ? 0 : look_ms) > 0) return true;
      if (is_over) return false;
    }
  }
};

// Where lines go. Its calls come one at a time, but for reopen(), which does not wait.
class log_target {
 public:
  virtual ~log_target() = default;
  // 0, or errno.
  virtual int take(std::string_view line) = 0;
  virtual result<void> reopen() { return {}; }
};

// stderr, or a file: what is no regular one (a pipe that has a name, a terminal) may have no room
// for long.
class descriptor_target final : public log_target {
 public:
  descriptor_target(int fd, std::string path, const log_end& end)
      : fd_(fd), path_(std::move(path)), end_(end), may_lack_room_(!is_regular(fd)) {}
  ~descriptor_target() override {
    if (!path_.empty()) ::close(fd_);
    if (const int next = next_.load(); next >= 0) ::close(next);
  }

  static result<int> open(const std::string& path) {
    const int fd = ::open(path.c_str(),
                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
    if (fd >= 0) return fd;
    const int number = errno;
    if (number == ENXIO)
      return error(error_code::usage,
                   fmt::format("--log-to: {} is a pipe or socket, and nobody reads it: start what "
                               "reads it first",
                               shown(path)));
    return error(number == ENOENT ? error_code::not_found : error_code::usage,
                 fmt::format("--log-to: cannot write {}: {}; give a file in a folder that is there "
                             "and may be written",
                             shown(path), std::strerror(number)));
  }

  int take(std::string_view line) override {
    use_next();
    std::string whole;
    if (is_within_line_) whole = '\n';  // NL-4
    whole += line;
    whole += '\n';
    std::size_t done = 0;
    int number = 0;
    while (done < whole.size() && number == 0) {
      if (may_lack_room_ && !end_.wait_for_room(fd_, &next_)) {
        number = EAGAIN;
        break;
      }
      if (use_next()) {
        whole = std::string(line) + '\n';
        done = 0;
        continue;
      }
      const auto n = ::write(fd_, whole.data() + done, std::min(whole.size() - done, piece_max));
      if (n >= 0)
        done += static_cast<std::size_t>(n);
      else if (errno != EINTR)
        number = errno;
    }
    // What is not whole counts as dropped.
    if (done > 0) is_within_line_ = done < whole.size() && whole[done - 1] != '\n';
    return number;
  }

  result<void> reopen() override {
    if (path_.empty()) return {};
    auto fd = open(path_);
    if (!fd) return std::move(fd.error());
    if (const int unused = next_.exchange(*fd); unused >= 0) ::close(unused);
    return {};
  }

 private:
  static bool is_regular(int fd) {
    struct stat s{};
    return ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  }
  // What reopen() has opened.
  bool use_next() {
    const int next = next_.exchange(-1);
    if (next < 0) return false;
    ::close(std::exchange(fd_, next));
    may_lack_room_ = !is_regular(fd_);
    is_within_line_ = false;
    return true;
  }

  int fd_;
  const std::string path_;  // empty: not ours to close
  const log_end& end_;
  bool may_lack_room_;
  bool is_within_line_ = false;
  std::atomic<int> next_{-1};  // for the next line
};

class journal_target final : public log_target {
 public:
  journal_target(std::string path, const log_end& end) : path_(std::move(path)), end_(end) {}
  ~journal_target() override {
    if (fd_ >= 0) ::close(fd_);
  }

  result<void> connect() {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    const auto refuse = [&](const char* why) {
      return error(error_code::not_found,
                   fmt::format("--log-to journal: no journal takes lines at {} ({}): is systemd's "
                               "journal running here? Else use --log-to stderr or file:PATH",
                               shown(path_), why));
    };
    if (path_.size() >= sizeof at.sun_path) return refuse("the path is too long");
    std::memcpy(at.sun_path, path_.c_str(), path_.size() + 1);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return refuse(std::strerror(errno));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
      const int number = errno;
      ::close(fd);
      return refuse(std::strerror(number));
    }
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
    return {};
  }

  int take(std::string_view entry) override {
    int number = send(entry);
    // A journal that was started again has another socket at that path.
    if ((number == ECONNREFUSED || number == ENOTCONN || number == EPIPE) && connect())
      number = send(entry);
    return number;
  }

 private:
  int send(std::string_view entry) const {
    for (;;) {
      if (::send(fd_, entry.data(), entry.size(), MSG_NOSIGNAL) >= 0) return 0;
      const int number = errno;
      if (number == EAGAIN && !end_.wait_for_room(fd_)) return EAGAIN;
      if (number != EAGAIN && number != EINTR) return number;
    }
  }

  std::string path_;
  const log_end& end_;
  int fd_ = -1;
};

// NL-1 and NL-2: what was dropped is told before the next line.
class target_sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  using format_line = std::function<std::string(const event&, std::uint64_t)>;
  target_sink(std::unique_ptr<log_target> target, format_line format)
      : target_(std::move(target)), format_(std::move(format)) {}

  // Lines that the queue has dropped.
  std::function<std::uint64_t()> overrun = [] { return std::uint64_t{0}; };

  std::uint64_t handled() const noexcept { return handled_.load(); }
  // Without the mutex: whoever has it may wait for room.
  result<void> reopen() { return target_->reopen(); }

 private:
  void sink_it_(const spdlog::details::log_msg& m) override {
    tell_dropped();
    if (const int number = target_->take({m.payload.data(), m.payload.size()}); number != 0) {
      ++unwritten_;
      why_ = number;
    }
    handled_.fetch_add(1);
  }
  void flush_() override { tell_dropped(); }

  void tell_dropped() {
    if (const auto n = overrun() - told_; n > 0 && tell(n,
                                                        "they came faster than they could be "
                                                        "written"))
      told_ += n;
    if (unwritten_ > 0 && tell(unwritten_, std::strerror(why_))) unwritten_ = 0;
  }
  bool tell(std::uint64_t n, std::string_view why) {
    const auto line = own_line(event_level::warning, "",
                               fmt::format("{} line{} of this log {} dropped: {}", n,
                                           n == 1 ? "" : "s", n == 1 ? "was" : "were", why));
    return target_->take(format_(line, log_now_ns())) == 0;
  }

  std::unique_ptr<log_target> target_;
  format_line format_;
  std::uint64_t told_ = 0, unwritten_ = 0;
  int why_ = 0;
  std::atomic<std::uint64_t> handled_{0};
};

}  // namespace

std::string log_line(const event& e, std::uint64_t unix_ns, log_format format) {
  if (format == log_format::text)
    return fmt::format("{}  {:7}  {}  {:18}  {}  {}", log_time(unix_ns), to_string(e.level),
                       or_dash(e.node), to_string(e.kind), or_dash(e.job), printable(e.text));
  return json_line(nlohmann::ordered_json{{"time", log_time(unix_ns)},
                                          {"level", to_string(e.level)},
                                          {"node", e.node},
                                          {"kind", to_string(e.kind)},
                                          {"job", e.job},
                                          {"job_id", e.job_id},
                                          {"text", e.text}});
}

result<std::optional<event_level>> parse_log_level(std::string_view text) {
  if (text == "off") return std::optional<event_level>();
  for (std::uint8_t i = 0; !to_string(static_cast<event_level>(i)).empty(); ++i)
    if (to_string(static_cast<event_level>(i)) == text)
      return std::optional(static_cast<event_level>(i));
  return error(error_code::usage,
               fmt::format("'{}' is no level of a log; there are trace, debug, info, warning, "
                           "error and off",
                           shown(text)));
}

struct node_log::parts {
  log_options options;
  target_sink::format_line format;
  log_end end;
  std::atomic<std::uint64_t> written{0};
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<target_sink> sink;
  std::shared_ptr<spdlog::async_logger> logger;  // null: off
};

node_log::node_log(std::unique_ptr<parts> p) : parts_(std::move(p)) {}

result<std::unique_ptr<node_log>> node_log::open(const log_options& options) {
  constexpr std::string_view file = "file:";
  auto p = std::make_unique<parts>();
  p->options = options;
  p->format = [format = options.format](const event& e, std::uint64_t at) {
    return log_line(e, at, format);
  };
  const std::string_view to = options.to;
  std::unique_ptr<log_target> target;
  if (to == "stderr") {
    target = std::make_unique<descriptor_target>(STDERR_FILENO, std::string(), p->end);
  } else if (to.starts_with(file) && to.size() > file.size()) {
    std::string path(to.substr(file.size()));
    auto fd = descriptor_target::open(path);
    if (!fd) return std::move(fd.error());
    target = std::make_unique<descriptor_target>(*fd, std::move(path), p->end);
  } else if (to == "journal") {
    auto journal = std::make_unique<journal_target>(options.journal_socket, p->end);
    if (auto ok = journal->connect(); !ok) return std::move(ok.error());
    p->format = journal_entry;
    target = std::move(journal);
  } else {
    return error(error_code::usage,
                 fmt::format("--log-to: '{}' is no place for a log; there are stderr, file:PATH "
                             "and journal",
                             shown(options.to)));
  }
  if (!options.level) return std::unique_ptr<node_log>(new node_log(std::move(p)));
  p->pool = std::make_shared<spdlog::details::thread_pool>(options.lines_max, 1);
  p->sink = std::make_shared<target_sink>(std::move(target), p->format);
  // The pool outlives its thread, which asks.
  p->sink->overrun = [pool = p->pool.get()] {
    return static_cast<std::uint64_t>(pool->overrun_counter());
  };
  p->logger = std::make_shared<spdlog::async_logger>("troupe-node", p->sink, p->pool,
                                                     spdlog::async_overflow_policy::overrun_oldest);
  p->logger->set_level(spdlog_level(*options.level));
  // The sink throws nothing, and nobody is told of what spdlog itself cannot do.
  p->logger->set_error_handler([](const std::string&) {});
  return std::unique_ptr<node_log>(new node_log(std::move(p)));
}

node_log::~node_log() {
  if (!parts_->logger) return;
  parts_->end.at_ns.store((std::chrono::steady_clock::now() + end_max).time_since_epoch().count());
  parts_->logger->flush();  // tells what was dropped last
  parts_->logger.reset();
  parts_->pool.reset();  // its thread writes what waits, and ends
}

void node_log::write(const event& line, std::uint64_t unix_ns) {
  const auto& to = parts_->logger;
  const auto level = spdlog_level(line.level);
  if (!to || !to->should_log(level)) return;
  parts_->written.fetch_add(1);
  to->log(level, spdlog::string_view_t(parts_->format(line, unix_ns)));
}

void node_log::write(event_level level, std::string_view node, std::string text) {
  write(own_line(level, node, std::move(text)), log_now_ns());
}

result<void> node_log::reopen() { return parts_->sink ? parts_->sink->reopen() : result<void>(); }

void node_log::flush() {
  if (!parts_->logger) return;
  while (parts_->sink->handled() + parts_->pool->overrun_counter() < parts_->written.load())
    ::poll(nullptr, 0, 1);
}

}  // namespace troupe
