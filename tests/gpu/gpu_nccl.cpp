// NCCL with several ranks on one GPU, a process each: for results, order and abort, not speed.
//
//   gpu_nccl [--ranks N] [--load | --kill | --stop]
//
// Every collective; with --load, then 64 all-reduces of two communicators in flight, in one order
// that events make; with --kill (--stop) the last rank dies (stops) in the middle, and the others
// must abort and go on without it.
//
// The parent never touches CUDA: it starts ranks and carries the id from the first to the others.
// Without a GPU: a line that says why, and 77.

#include "troupe/devices/cuda/cuda_device.hpp"
#include "troupe/devices/nccl/communicator.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

constexpr int skipped = 77;

enum class course { plain, load, kill, stop };
const char* flag_of(course c) {
  switch (c) {
    case course::load: return "--load";
    case course::kill: return "--kill";
    case course::stop: return "--stop";
    case course::plain: break;
  }
  return nullptr;
}
bool loses_one(course c) { return c == course::kill || c == course::stop; }

struct rank_process {
  pid_t pid;
  int to, from;  // its standard input and output of ids
};

// A limit against hangs of this process, the parent or a rank: it ends, and says what it waited
// for.
constexpr unsigned limit_s = 100;
// The parent takes its ranks along, one of which may be stopped; 0: none, or it has ended.
volatile pid_t pids_of_ranks[16] = {};
const char* volatile waits_for = "";

void give_up(int) {
  const auto say = [](const char* text) { (void)!::write(STDOUT_FILENO, text, std::strlen(text)); };
  say("failed: waited 100 s for "), say(waits_for), say("\n");
  for (const pid_t pid : pids_of_ranks)
    if (pid > 0) ::kill(pid, SIGKILL);
  ::_exit(1);
}
void wait_at_most(const char* for_what) {
  waits_for = for_what;
  std::signal(SIGALRM, give_up);
  ::alarm(limit_s);
}

bool write_all(int fd, const void* p, std::size_t n) {
  return ::write(fd, p, n) == static_cast<ssize_t>(n);
}
bool read_all(int fd, void* p, std::size_t n) {
  for (std::size_t done = 0; done < n;) {
    const auto r = ::read(fd, static_cast<char*>(p) + done, n - done);
    if (r <= 0) return false;
    done += static_cast<std::size_t>(r);
  }
  return true;
}

// --- a rank ---

[[noreturn]] void end(const std::string& why, int code = 1) {
  std::printf("%s\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(code);
}
template <class T>
T fine(result<T> r) {
  if (!r) end("failed: " + r.error().text());
  return std::move(*r);
}
void fine(result<void> r) {
  if (!r) end("failed: " + r.error().text());
}

void settle(nccl::communicator& c) {
  constexpr int patience_ms = 60'000;  // against hangs
  for (int i = 0; !fine(c.is_ready()); ++i) {
    if (i > patience_ms) end("failed: a rank did not come within a minute");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct rank_state {
  std::unique_ptr<cuda::cuda_stream> stream;
  device_memory a, b;

  // `count` floats: `f(i)` in, and what comes out.
  template <class F>
  void fill(std::size_t count, F f) {
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = f(i);
    fine(stream->copy("in", {a.bytes, count * 4}, memory_kind::device, std::as_bytes(std::span(x)),
                      memory_kind::pageable));
  }
  template <class F>
  void expect(const char* what, std::size_t count, F f) {
    std::vector<float> x(count);
    fine(stream->copy("out", std::as_writable_bytes(std::span(x)), memory_kind::pageable,
                      {b.bytes, count * 4}, memory_kind::device));
    fine(stream->synchronize());
    for (std::size_t i = 0; i < count; ++i)
      if (x[i] != f(i))
        end(std::string("failed: ") + what + ", element " + std::to_string(i) + " is " +
            std::to_string(x[i]) + ", expected " + std::to_string(f(i)));
  }
};

void every_collective(nccl::communicator& c, rank_state& s, std::size_t count) {
  const auto n = static_cast<float>(c.ranks()), own = static_cast<float>(c.rank());
  const auto value = [](std::size_t i, float rank) {
    return static_cast<float>(i % 100) + 100 * rank;
  };
  const auto of_own = [&](std::size_t i) { return value(i, own); };
  s.fill(count, of_own);
  fine(c.all_reduce(s.stream->native(), "sum", s.a.bytes, s.b.bytes, count, dtype::f32,
                    nccl::reduce::sum));
  settle(c);
  s.expect("sum", count,
           [&](std::size_t i) { return n * static_cast<float>(i % 100) + 100 * n * (n - 1) / 2; });
  fine(c.all_reduce(s.stream->native(), "max", s.a.bytes, s.b.bytes, count, dtype::f32,
                    nccl::reduce::max));
  settle(c);
  s.expect("max", count, [&](std::size_t i) { return value(i, n - 1); });
  fine(c.all_reduce(s.stream->native(), "min", s.a.bytes, s.b.bytes, count, dtype::f32,
                    nccl::reduce::min));
  settle(c);
  s.expect("min", count, [&](std::size_t i) { return value(i, 0); });
  fine(c.broadcast(s.stream->native(), "broadcast", s.a.bytes, s.b.bytes, count, dtype::f32,
                   c.ranks() - 1));
  settle(c);
  s.expect("broadcast", count, [&](std::size_t i) { return value(i, n - 1); });
  const auto each = count / static_cast<std::size_t>(c.ranks());
  fine(c.all_gather(s.stream->native(), "all_gather", s.a.bytes, s.b.bytes, each, dtype::f32));
  settle(c);
  s.expect("all_gather", each * static_cast<std::size_t>(c.ranks()),
           [&](std::size_t i) { return value(i % each, static_cast<float>(i / each)); });
  fine(c.reduce_scatter(s.stream->native(), "reduce_scatter", s.a.bytes, s.b.bytes, each,
                        dtype::f32, nccl::reduce::sum));
  settle(c);
  s.expect("reduce_scatter", each, [&](std::size_t i) {
    return n * static_cast<float>((i + each * static_cast<std::size_t>(c.rank())) % 100) +
           100 * n * (n - 1) / 2;
  });
}

// NC-5.
void finish(nccl::communicator& c) {
  fine(c.finish());
  settle(c);
}

// All ranks enqueue `all` sums, of two communicators in turn, ordered by events (NC-2), and none
// waits for any before the last: sums of different pieces would show another order.
void under_load(nccl::communicator& one, nccl::communicator& other, cuda::cuda_device& device,
                rank_state& s) {
  constexpr std::size_t all = 64, each = 16'384;  // pieces, floats
  const auto second = fine(device.make_cuda_stream(stream_kind::collective));
  const auto n = static_cast<float>(one.ranks()), own = static_cast<float>(one.rank());
  s.fill(all * each, [&](std::size_t i) { return static_cast<float>(i / each) + 100 * own; });
  auto before = fine(s.stream->record());
  for (std::size_t i = 0; i < all; ++i) {
    auto& on = i % 2 == 0 ? *s.stream : *second;
    auto& c = i % 2 == 0 ? one : other;
    fine(on.wait(before));
    // No two ranks at once.
    std::this_thread::sleep_for(
        std::chrono::microseconds((i * 7 + static_cast<std::size_t>(one.rank()) * 13) % 5 * 200));
    fine(c.all_reduce(on.native(), "sum", s.a.bytes + i * each * 4, s.b.bytes + i * each * 4, each,
                      dtype::f32, nccl::reduce::sum));
    settle(c);  // it has been enqueued
    before = fine(on.record());
  }
  fine(s.stream->wait(before));
  s.expect("64 sums under load", all * each,
           [&](std::size_t i) { return n * static_cast<float>(i / each) + 100 * n * (n - 1) / 2; });
}

int run_rank(int rank, int ranks, course how) {
  wait_at_most("the device, in a rank");
  auto devices = cuda::make_cuda_devices(1, {}, {});
  if (!devices) end("skipped: " + devices.error().text(), skipped);
  auto& device = *devices->front();
  rank_state s;
  s.stream = fine(device.make_cuda_stream(stream_kind::collective));
  constexpr std::size_t bytes = 4 << 20;
  s.a = fine(s.stream->allocate(bytes, "a"));
  s.b = fine(s.stream->allocate(bytes, "b"));
  const auto meet = [&](int own, int all) {
    wait_at_most("all ranks to meet, in a rank");
    nccl::unique_id id;
    if (own == 0) {
      id = fine(nccl::make_unique_id());
      if (!write_all(4, id.bytes.data(), id.bytes.size())) end("failed: the parent is gone");
    } else if (!read_all(3, id.bytes.data(), id.bytes.size())) {
      end("failed: the parent is gone");
    }
    auto c = fine(nccl::communicator::begin(id, own, all, device.name()));
    settle(*c);
    return c;
  };
  auto c = meet(rank, ranks);
  wait_at_most("every collective, in a rank");
  for (const std::size_t count : {12, 1200, 600'000}) every_collective(*c, s, count);
  if (how == course::load) {
    auto other = meet(rank, ranks);
    wait_at_most("the sums under load, in a rank");
    under_load(*c, *other, device, s);
    finish(*other);
  }
  if (!loses_one(how)) {
    finish(*c);
    return 0;
  }
  if (rank == ranks - 1) std::raise(how == course::kill ? SIGKILL : SIGSTOP);
  // The others enqueue what can never end, abort, and go on without it.
  fine(c->all_reduce(s.stream->native(), "sum", s.a.bytes, s.b.bytes, 600'000, dtype::f32,
                     nccl::reduce::sum));
  wait_at_most("the abort, in a rank");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  c->abort();
  fine(s.stream->synchronize());
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (took > 2) end("failed: the abort took " + std::to_string(took) + " s");
  std::printf("rank %d: aborted in %.3f s\n", rank, took);
  if (ranks - 1 > 0) {
    c = meet(rank, ranks - 1);
    wait_at_most("the collectives of the ranks that are left, in a rank");
    every_collective(*c, s, 1200);
    finish(*c);
  }
  return 0;
}

// --- the parent ---

rank_process start(const char* self, int rank, int ranks, course how) {
  int to[2], from[2];
  if (::pipe(to) != 0 || ::pipe(from) != 0) end("failed: no pipes");
  const auto pid = ::fork();
  if (pid == 0) {
    // Several ranks on one GPU: NCCL refuses what looks like one device of one host.
    ::setenv("NCCL_HOSTID", ("troupe-" + std::to_string(rank)).c_str(), 1);
    ::setenv("NCCL_P2P_DISABLE", "1", 1);
    ::setenv("NCCL_SHM_DISABLE", "1", 1);
    ::setenv("NCCL_NET", "Socket", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::dup2(to[0], 13), ::dup2(from[1], 14);
    ::dup2(13, 3), ::dup2(14, 4);
    for (int fd = 5; fd < 128; ++fd) ::close(fd);
    const auto own = std::to_string(rank), all = std::to_string(ranks);
    ::execl(self, "gpu_nccl", "--rank", own.c_str(), "--ranks", all.c_str(), flag_of(how), nullptr);
    std::_Exit(127);
  }
  ::close(to[0]), ::close(from[1]);
  return {pid, to[1], from[0]};
}

int run_parent(const char* self, int ranks, course how) {
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<rank_process> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(start(self, r, ranks, how));
    pids_of_ranks[r] = all.back().pid;
  }
  // An id for each communicator: a second one under load, or without the last rank.
  for (int round = 0; round < (how == course::plain ? 1 : 2); ++round) {
    wait_at_most("an id of the first rank");
    nccl::unique_id id;
    if (!read_all(all[0].from, id.bytes.data(), id.bytes.size())) break;
    for (int r = 1; r < ranks - (loses_one(how) ? round : 0); ++r)
      (void)write_all(all[static_cast<std::size_t>(r)].to, id.bytes.data(), id.bytes.size());
  }
  for (const auto& r : all) ::close(r.to);  // who still waits for an id gets none
  int worst = 0;
  bool skips = false;
  for (int r = 0; r < ranks; ++r) {
    wait_at_most("a rank to end");
    int status = 0;
    // The others have ended.
    if (how == course::stop && r == ranks - 1)
      ::kill(all[static_cast<std::size_t>(r)].pid, SIGKILL);
    ::waitpid(all[static_cast<std::size_t>(r)].pid, &status, 0);
    pids_of_ranks[r] = 0;
    const bool is_victim =
        loses_one(how) && r == ranks - 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == skipped)
      skips = true;
    else if (!is_victim && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
      worst = 1;
  }
  if (worst == 0 && skips) return skipped;
  std::printf("%d ranks%s: %s\n", ranks,
              how == course::kill   ? ", the last one killed"
              : how == course::stop ? ", the last one stopped"
              : how == course::load ? ", under load"
                                    : "",
              worst == 0 ? "every collective is right" : "failed");
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, rank = -1;
  course how = course::plain;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--ranks" && i + 1 < argc) {
      ranks = std::atoi(argv[++i]);
    } else if (a == "--rank" && i + 1 < argc) {
      rank = std::atoi(argv[++i]);
    } else if (a == "--load" || a == "--kill" || a == "--stop") {
      how = a == "--load" ? course::load : a == "--kill" ? course::kill : course::stop;
    } else {
      std::printf(
          "gpu_nccl [--ranks N] [--load | --kill | --stop]: NCCL with several ranks on one GPU, a process each\n");
      return a == "--help" ? 0 : 2;
    }
  }
  if (ranks < 2 || ranks > 16) {
    std::printf("gpu_nccl takes 2 to 16 ranks\n");
    return 2;
  }
  return rank >= 0 ? run_rank(rank, ranks, how) : run_parent("/proc/self/exe", ranks, how);
}
