#include "tools/troupe-node/node_log.hpp"

#include "tests/devices/temporary_folder.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::uint64_t some_time = 1'796'040'000'250'123'999;

event some_event() {
  auto e = make_job_event(event_kind::job_failed, "mnist", "1f", "job mnist is over: n2 died");
  e.node = "n1";
  return e;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::unique_ptr<node_log> must(result<std::unique_ptr<node_log>> log) {
  if (!log) BOOST_FAIL(log.error().text());
  return std::move(*log);
}

struct logs {
  test::temporary_folder folder;
  std::string file = folder.file("log");
  log_options to_file() const { return {.to = "file:" + file}; }
};

// A file of this process may grow to so many bytes, until it goes.
struct full_disk {
  explicit full_disk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before);
    handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~full_disk() {
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  }
  rlimit before{};
  void (*handler)(int) = nullptr;
};

// stderr of this process is something else, until it goes.
struct other_stderr {
  explicit other_stderr(int fd) : before(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~other_stderr() {
    ::dup2(before, STDERR_FILENO);
    ::close(before);
  }
  int before;
};

struct pipe_ends {
  pipe_ends() { BOOST_TEST_REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0); }
  ~pipe_ends() {
    for (const int fd : fds) ::close(fd);
  }
  std::array<int, 2> fds{};
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node_log)

BOOST_AUTO_TEST_CASE(a_line_has_time_level_node_kind_job_and_text) {
  BOOST_TEST(log_line(some_event(), some_time, log_format::text) ==
             "2026-11-30T12:00:00.250123Z  error    n1  job failed          mnist  job mnist is "
             "over: n2 died");
  BOOST_TEST(log_line(make_event(event_kind::note, "x"), some_time, log_format::text) ==
             "2026-11-30T12:00:00.250123Z  info     -  note                -  x");
  BOOST_TEST(
      log_line(some_event(), some_time, log_format::json) ==
      R"({"time":"2026-11-30T12:00:00.250123Z","level":"error","node":"n1",)"
      R"("kind":"job failed","job":"mnist","job_id":"1f","text":"job mnist is over: n2 died"})");
}

BOOST_AUTO_TEST_CASE(names_cannot_make_lines_or_move_a_terminal) {
  auto e = make_job_event(event_kind::note, "a\nb\x1b[2J", "", "x\r\ny\xff");
  e.node = "n\t1";
  const auto text = log_line(e, some_time, log_format::text);
  BOOST_TEST(std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }));
  const auto json = log_line(e, some_time, log_format::json);
  BOOST_TEST(std::ranges::none_of(json, [](unsigned char c) { return c < 0x20; }));
  BOOST_TEST(nlohmann::json::parse(json)["job"] == "a\nb\x1b[2J");
}

BOOST_FIXTURE_TEST_CASE(lines_are_added_to_a_file_from_a_level_on, logs) {
  std::ofstream(file) << "before\n";
  {
    const auto log = must(troupe::node_log::open(to_file()));
    log->write(some_event(), some_time);
    log->write(event_level::debug, "n1", "not shown");
    log->write(event_level::warning, "n1", "shown");
  }
  const auto lines = lines_of(file);
  BOOST_TEST_REQUIRE(lines.size() == 3U);
  BOOST_TEST(lines[0] == "before");
  BOOST_TEST(lines[1] == log_line(some_event(), some_time, log_format::text));
  BOOST_TEST(lines[2].ends_with("Z  warning  n1  note                -  shown"));
  auto off = to_file();
  off.level = std::nullopt;
  must(troupe::node_log::open(off))->write(some_event(), some_time);
  BOOST_TEST(lines_of(file).size() == 3U);
}

BOOST_FIXTURE_TEST_CASE(a_file_that_was_moved_is_made_anew, logs) {
  const auto log = must(troupe::node_log::open(to_file()));
  log->write(event_level::info, "n1", "one");
  log->flush();
  std::filesystem::rename(file, file + ".1");
  log->write(event_level::info, "n1", "two");
  log->flush();
  BOOST_TEST(bool(log->reopen()));
  log->write(event_level::info, "n1", "three");
  log->flush();
  BOOST_TEST(lines_of(file + ".1").size() == 2U);
  BOOST_TEST_REQUIRE(lines_of(file).size() == 1U);
  BOOST_TEST(lines_of(file)[0].ends_with("three"));
  // Where it cannot be made, lines go where they went.
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  const auto again = log->reopen();
  BOOST_TEST_REQUIRE(!again);
  BOOST_TEST(again.error().text().find("--log-to: cannot write " + file) != std::string::npos);
  log->write(event_level::info, "n1", "four");
  log->flush();
}

BOOST_FIXTURE_TEST_CASE(NL_2_a_full_disk_ends_nothing_and_is_told_of_later, logs) {
  const auto log = must(troupe::node_log::open(to_file()));
  {
    const full_disk full(150);
    for (int i = 0; i < 5; ++i)
      log->write(event_level::info, "n1", "line " + std::to_string(i) + std::string(40, '.'));
    log->flush();
  }
  log->write(event_level::info, "n1", "there is room again");
  log->flush();
  const auto lines = lines_of(file);
  // One and a part of another one: NL-4.
  BOOST_TEST_REQUIRE(lines.size() == 4U);
  BOOST_TEST(lines[1].size() < 40U);
  BOOST_TEST(lines[2].ends_with("4 lines of this log were dropped: File too large"), lines[2]);
  BOOST_TEST(lines[3].ends_with("there is room again"));
}

BOOST_AUTO_TEST_CASE(NL_1_and_NL_3_a_pipe_that_nobody_reads_holds_nobody_up) {
  pipe_ends pipe;
  std::string read;
  {
    const other_stderr to_pipe(pipe.fds[1]);
    auto log = must(troupe::node_log::open({.lines_max = 16}));
    // A pipe has room for 64 KiB, the queue for 16 lines of these.
    for (int i = 0; i < 200; ++i) log->write(event_level::info, "n1", std::string(2000, 'x'));
    log.reset();
  }
  ::fcntl(pipe.fds[0], F_SETFL, O_NONBLOCK);
  std::array<char, 65536> buffer{};
  for (;;) {
    const auto n = ::read(pipe.fds[0], buffer.data(), buffer.size());
    if (n <= 0) break;
    read.append(buffer.data(), static_cast<std::size_t>(n));
  }
  const auto lines = std::ranges::count(read, '\n');
  BOOST_TEST(lines > 10);
  BOOST_TEST(lines < 60);
}

BOOST_FIXTURE_TEST_CASE(NL_3_a_named_pipe_that_nobody_reads_holds_nobody_up, logs) {
  BOOST_TEST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  const auto unread = troupe::node_log::open(to_file());
  BOOST_TEST_REQUIRE(!unread);
  BOOST_TEST(unread.error().text().find("and nobody reads it: start what reads it first") !=
             std::string::npos);
  const int reader = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  auto log = must(troupe::node_log::open(to_file()));
  // A pipe has room for 64 KiB.
  for (int i = 0; i < 200; ++i) log->write(event_level::info, "n1", std::string(2000, 'x'));
  BOOST_TEST(bool(log->reopen()));  // the same pipe
  // logrotate has put a file there: whoever waits for room goes on in that.
  std::filesystem::remove(file);
  BOOST_TEST(bool(log->reopen()));
  log->write(event_level::info, "n1", "in the file");
  log->flush();
  const auto lines = lines_of(file);
  BOOST_TEST_REQUIRE(!lines.empty());
  BOOST_TEST(lines.back().ends_with("in the file"));
  // The end.
  std::filesystem::remove(file);
  BOOST_TEST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  const int again = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  BOOST_TEST(bool(log->reopen()));
  for (int i = 0; i < 200; ++i) log->write(event_level::info, "n1", std::string(2000, 'x'));
  log.reset();
  ::close(again);
  ::close(reader);
}

BOOST_AUTO_TEST_CASE(NL_1_lines_that_the_queue_has_dropped_are_counted_and_told) {
  pipe_ends pipe;
  std::string read;
  {
    const other_stderr to_pipe(pipe.fds[1]);
    auto log = must(troupe::node_log::open({.lines_max = 16}));
    for (int i = 0; i < 200; ++i) log->write(event_level::info, "n1", std::string(2000, 'x'));
    std::array<char, 65536> buffer{};
    // Until it has told of them: it does so before the next line.
    while (read.find("were dropped") == std::string::npos) {
      const auto n = ::read(pipe.fds[0], buffer.data(), buffer.size());
      if (n <= 0) break;
      read.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  const auto at = read.find("lines of this log were dropped: they came faster than");
  BOOST_TEST_REQUIRE(at != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_journal_gets_fields, logs) {
  const auto path = folder.file("journal");
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  path.copy(at.sun_path, sizeof at.sun_path - 1);
  BOOST_TEST_REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  const auto log = must(troupe::node_log::open({.to = "journal", .journal_socket = path}));
  log->write(some_event(), some_time);
  std::array<char, 4096> buffer{};
  const auto n = ::recv(fd, buffer.data(), buffer.size(), 0);
  BOOST_TEST_REQUIRE(n > 0);
  BOOST_TEST(std::string(buffer.data(), static_cast<std::size_t>(n)) ==
             "MESSAGE=job mnist is over: n2 died\nPRIORITY=3\nSYSLOG_IDENTIFIER=troupe-node\n"
             "TROUPE_NODE=n1\nTROUPE_KIND=job failed\nTROUPE_JOB=mnist\nTROUPE_JOB_ID=1f\n"
             "TROUPE_TIME=2026-11-30T12:00:00.250123Z\n");
  ::close(fd);
}

BOOST_FIXTURE_TEST_CASE(mistakes_say_what_to_do, logs) {
  const auto why = [](log_options o) {
    const auto log = troupe::node_log::open(o);
    return log ? std::string("no error") : log.error().text();
  };
  BOOST_TEST(why({.to = "disk"}).find("there are stderr, file:PATH and journal") !=
             std::string::npos);
  BOOST_TEST(why({.to = "file:"}).find("is no place for a log") != std::string::npos);
  BOOST_TEST(why({.to = "file:" + folder.file("no/such/folder")})
                 .find("No such file or directory; give a file in a folder that is there") !=
             std::string::npos);
  BOOST_TEST(why({.to = "journal", .journal_socket = folder.file("none")})
                 .find("is systemd's journal running here? Else use --log-to stderr") !=
             std::string::npos);
  BOOST_TEST(!parse_log_level("loud"));
  BOOST_TEST(!parse_log_level("off")->has_value());
}

BOOST_AUTO_TEST_SUITE_END()
