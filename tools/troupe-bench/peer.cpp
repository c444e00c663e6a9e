#include "tools/troupe-bench/peer.hpp"

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/bench_ops.hpp"
#include "tools/troupe-bench/bench_stages.hpp"
#include "tools/troupe-bench/link_end.hpp"
#include "troupe/actors/flow/stage_host.hpp"
#include "troupe/actors/process/process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe {

namespace {

struct pipe_ends {
  int read = -1, write = -1;
  static result<pipe_ends> make() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0)
      return error(error_code::failed,
                   "no pipe to the other process: " + std::string(std::strerror(errno)));
    return pipe_ends{fds[0], fds[1]};
  }
};

// Answers lines until the input ends.
int serve(const std::string& ready, const std::function<std::string(const std::string&)>& answer) {
  std::cout << ready << std::endl;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << (line == "cpu" ? fmt::format("{}", own_cpu_seconds()) : answer(line)) << std::endl;
  return 0;
}

int fail(const error& e) {
  fmt::print(stderr, "troupe-bench --peer: {}\n", e.text());
  return 1;
}

int serve_link(link_guard guard) {
  auto bare = bare_server::start();
  if (!bare) return fail(bare.error());
  link_end link(link_side::receiver, guard);
  auto port = link.listen();
  if (!port) return fail(port.error());
  return serve(fmt::format("{} {}", (*bare)->port(), *port), [&](const std::string& line) {
    std::size_t i = 0;
    if (std::sscanf(line.c_str(), "buffers %zu", &i) != 1 || i >= stream_cases.size())
      return std::string("what?");
    return fmt::format("{}", link.buffers_seen(i));
  });
}

int serve_node(const std::string& cluster, direct_reads reads, bool has_tls) {
  process_options options;
  options.protect.tls = has_tls;
  options.reads = reads;
  options.cluster = cluster;
  options.libraries = {&bench_ops()};
  auto p = process::start(options);
  if (!p) return fail(p.error());
  return serve((*p)->address(), [](const std::string&) { return std::string("what?"); });
}

// A node of that name which runs stages of pipelines.
int serve_stages(const std::string& cluster, const std::string& name) {
  process_options options;
  options.cluster = cluster;
  options.name = name;
  options.gpus = "none";
  options.host_work = host_stages({&bench_stages()});
  auto p = process::start(options);
  if (!p) return fail(p.error());
  return serve((*p)->address(), [](const std::string&) { return std::string("what?"); });
}

int serve_relay(std::uint16_t next) {
  auto relay = bare_relay::start(next);
  if (!relay) return fail(relay.error());
  return serve(std::to_string((*relay)->port()),
               [](const std::string&) { return std::string("what?"); });
}

}  // namespace

result<std::unique_ptr<peer_process>> peer_process::start(
    const std::vector<std::string>& arguments) {
  auto in = pipe_ends::make();
  if (!in) return in.error();
  auto out = pipe_ends::make();
  if (!out) return out.error();
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in->read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out->write, STDOUT_FILENO);
  std::vector<std::string> words{"troupe-bench", "--peer"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  std::unique_ptr<peer_process> p(new peer_process);
  const int failed =
      ::posix_spawn(&p->pid_, "/proc/self/exe", &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  ::close(in->read);
  ::close(out->write);
  p->to_ = in->write;
  p->from_ = out->read;
  if (failed != 0) {
    p->pid_ = -1;
    return error(error_code::failed,
                 "the other process does not start: " + std::string(std::strerror(failed)));
  }
  auto ready = p->read_line();
  if (!ready) return ready.error();
  p->ready_ = std::move(*ready);
  return p;
}

peer_process::~peer_process() {
  if (to_ >= 0) ::close(to_);
  if (from_ >= 0) ::close(from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

result<std::string> peer_process::ask(const std::string& line) {
  const auto text = line + "\n";
  if (::write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return error(error_code::failed, "the other process is gone");
  return read_line();
}

result<double> peer_process::cpu_seconds() {
  auto text = ask("cpu");
  if (!text) return text.error();
  return std::strtod(text->c_str(), nullptr);
}

result<std::string> peer_process::read_line() {
  for (;;) {
    if (const auto end = rest_.find('\n'); end != std::string::npos) {
      auto line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return line;
    }
    char bytes[256];
    const auto n = ::read(from_, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return error(error_code::failed, "the other process has ended");
    rest_.append(bytes, static_cast<std::size_t>(n));
  }
}

double own_cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

int run_peer(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "link")
    return serve_link(arguments[1] == "on"    ? link_guard::checksums
                      : arguments[1] == "tls" ? link_guard::tls
                                              : link_guard::nothing);
  if (arguments.size() == 2 && arguments[0] == "relay")
    return serve_relay(static_cast<std::uint16_t>(std::strtoul(arguments[1].c_str(), nullptr, 10)));
  if (arguments.size() == 3 && arguments[0] == "stages")
    return serve_stages(arguments[1], arguments[2]);
  if (arguments.size() == 2 && arguments[0] == "node")
    return serve_node(arguments[1], direct_reads::automatic, false);
  if (arguments.size() == 3 && arguments[0] == "node" && arguments[2] == "tls")
    return serve_node(arguments[1], direct_reads::automatic, true);
  if (arguments.size() == 3 && arguments[0] == "node")
    if (const auto reads = parse_direct_reads(arguments[2]))
      return serve_node(arguments[1], *reads, false);
  fmt::print(stderr, "troupe-bench: --peer is for troupe-bench itself\n");
  return 2;
}

}  // namespace troupe
