// topology::run(): what a program that runs a topology prints and ends with, and what signals do.

#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/flow/stage_host.hpp"
#include "troupe/actors/flow/topology.hpp"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// For as long as it lives, what is written to descriptor 1 or 2 goes to `to` instead.
class redirected {
 public:
  redirected(int fd, int to) : fd_(fd) {
    flush();
    before_ = ::dup(fd);
    BOOST_TEST_REQUIRE(before_ >= 0);
    BOOST_TEST_REQUIRE(::dup2(to, fd) == fd);
  }
  ~redirected() {
    flush();
    ::dup2(before_, fd_);
    ::close(before_);
  }
  redirected(const redirected&) = delete;
  redirected& operator=(const redirected&) = delete;

 private:
  static void flush() { std::fflush(stdout), std::fflush(stderr); }
  int fd_, before_ = -1;
};

struct ended {
  int code = 0;
  std::string text;
};
// What `fd` was told meanwhile.
ended run(troupe::topology& t, int fd = STDERR_FILENO) {
  std::FILE* file = std::tmpfile();
  BOOST_TEST_REQUIRE(file != nullptr);
  ended e;
  {
    const redirected to_file(fd, ::fileno(file));
    e.code = t.run();
  }
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) e.text += static_cast<char>(c);
  std::fclose(file);
  return e;
}
bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

// Endless; at some item the process gets a signal.
struct signalled {
  int signal = SIGINT;
  std::int64_t made = 0;
  std::optional<std::int64_t> operator()() {
    if (made == 1000) ::raise(signal);
    return made++;
  }
};
struct makes_more_for_ever {
  generator<std::int64_t> operator()(std::int64_t) const {
    for (std::int64_t n = 0;; ++n) {
      if (n == 1000 || n == 1001) ::raise(SIGTERM);
      co_yield n;
    }
  }
};

struct passes {
  std::int64_t operator()(std::int64_t x) const { return x; }
};
const stage_library& run_stages() {
  static const stage_library all("run", "1", {stage_of<passes>("passes")});
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(topology_run)

BOOST_AUTO_TEST_CASE(it_ends_with_a_table_and_0) {
  troupe::topology t({.name = "lines", .threads = 1});
  for_each(map(from(t, {1, 2, 3}), [](int x) { return x; }, {.name = "works"}), [](int) {},
           {.name = "writes"});
  const auto e = run(t);
  BOOST_TEST(e.code == 0);
  BOOST_TEST(says(e.text, "STAGE "), e.text);
  BOOST_TEST(says(e.text, "\nworks "), e.text);
  BOOST_TEST(says(e.text, "\nwrites "), e.text);
}

BOOST_AUTO_TEST_CASE(one_that_is_quiet_says_nothing) {
  troupe::topology t({.threads = 1, .is_quiet = true});
  for_each(from(t, {1, 2, 3}), [](int) {});
  const auto e = run(t);
  BOOST_TEST(e.code == 0);
  BOOST_TEST(e.text == "");
}

BOOST_AUTO_TEST_CASE(a_failure_is_one_line_under_its_name_also_of_a_quiet_one) {
  troupe::topology t({.name = "lines", .threads = 1, .is_quiet = true});
  for_each(from(t, {1, 2, 3}),
           [](int x) {
             if (x == 2) throw std::runtime_error("item of doom");
           },
           {.name = "writes"});
  const auto e = run(t);
  BOOST_TEST(e.code == static_cast<int>(error_code::failed));
  BOOST_TEST(e.text.starts_with("lines: "), e.text);
  BOOST_TEST(says(e.text, "writes (topology_run_test.cpp:"), e.text);
  BOOST_TEST(e.text.find('\n') == e.text.size() - 1, e.text);
}

BOOST_AUTO_TEST_CASE(one_that_explains_runs_nothing) {
  int ran = 0;
  troupe::topology t({.explains_only = true});
  for_each(from(t, {1, 2, 3}), [&](int) { ++ran; }, {.name = "writes"});
  const auto e = run(t, STDOUT_FILENO);
  BOOST_TEST(e.code == 0);
  BOOST_TEST(says(e.text, "writes"), e.text);
  BOOST_TEST(e.text == t.explain());
  BOOST_TEST(ran == 0);
  BOOST_TEST(t.report().empty());

  troupe::topology wrong({.explains_only = true});
  from(wrong, {1});  // nobody takes it
  (void)feedback<int>(wrong);
  const auto mistake = run(wrong);
  BOOST_TEST(mistake.code == static_cast<int>(error_code::usage));
  BOOST_TEST(says(mistake.text, "topology_run_test.cpp:"), mistake.text);
  BOOST_TEST(wrong.explain() == mistake.text);
}

BOOST_AUTO_TEST_CASE(a_signal_drains_it) {
  for (const int signal : {SIGINT, SIGTERM}) {
    troupe::topology t({.threads = 2});
    std::int64_t arrived = 0;
    bool is_in_order = true;
    for_each(map(source(t, signalled{signal}), passes{}),
             [&](std::int64_t x) { is_in_order = is_in_order && x == arrived++; });
    const auto e = run(t);
    BOOST_TEST(e.code == 128 + signal);
    BOOST_TEST(says(e.text, "ends when what is under way is done; again: at once"), e.text);
    BOOST_TEST(says(e.text, "STAGE "), e.text);
    // Nothing that was made before it is lost.
    BOOST_TEST(arrived > 1000);
    BOOST_TEST(is_in_order);
  }
}

BOOST_AUTO_TEST_CASE(a_second_signal_ends_it_at_once) {
  troupe::topology t({.name = "lines", .threads = 1, .is_quiet = true});
  // A drain would wait for its item for ever.
  for_each(map(from(t, std::vector<std::int64_t>{1}), makes_more_for_ever{}), [](std::int64_t) {});
  const auto e = run(t);
  BOOST_TEST(e.code == 128 + SIGTERM);
  BOOST_TEST(e.text == "lines: stopped at once\n");
}

BOOST_AUTO_TEST_CASE(signals_do_what_they_did_before_when_it_is_over) {
  static std::atomic<int> seen{0};
  const auto before = std::signal(SIGINT, [](int) { ++seen; });
  const auto term_before = std::signal(SIGTERM, SIG_IGN);
  {
    troupe::topology t({.threads = 1, .is_quiet = true});
    // What was ignored stays so: only the other one drains it.
    const auto all = collect(source(t, [n = 0]() mutable -> std::optional<int> {
      if (n == 100) ::raise(SIGTERM);
      return n < 200 ? std::optional(n++) : std::nullopt;
    }));
    BOOST_TEST(run(t).code == 0);
    BOOST_TEST(all->size() == 200U);
  }
  ::raise(SIGINT);
  BOOST_TEST(seen == 1);
  BOOST_TEST((std::signal(SIGINT, before) != SIG_DFL));
  BOOST_TEST((std::signal(SIGTERM, term_before) == SIG_IGN));
}

BOOST_AUTO_TEST_CASE(a_terminal_is_told_how_far_it_is) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  BOOST_TEST_REQUIRE(master >= 0);
  BOOST_TEST_REQUIRE(::grantpt(master) == 0);
  BOOST_TEST_REQUIRE(::unlockpt(master) == 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  BOOST_TEST_REQUIRE(terminal >= 0);
  // It goes on until its line has been read.
  std::atomic<bool> is_told{false};
  std::string shown;
  std::thread reader([&] {
    char some[256];
    for (ssize_t n; (n = ::read(master, some, sizeof some)) > 0;) {
      shown.append(some, static_cast<std::size_t>(n));
      if (shown.find("; busiest: ") != std::string::npos) is_told = true;
    }
  });
  troupe::topology t({.threads = 1});
  for_each(source(t,
                  [&, n = 0]() mutable -> std::optional<int> {
                    return is_told ? std::nullopt : std::optional(n++);
                  }),
           [](int) {}, {.name = "writes"});
  int code = -1;
  {
    const test::waiting_for named("the end of a topology whose progress is on a terminal");
    const redirected to_terminal(STDERR_FILENO, terminal);
    code = t.run();
  }
  ::close(terminal);
  reader.join();
  ::close(master);
  BOOST_TEST(code == 0);
  // The line is drawn over the one before, and the table begins on one of its own.
  BOOST_TEST(shown.starts_with("\r"), shown);
  BOOST_TEST(says(shown, " items done, "), shown);
  BOOST_TEST(says(shown, "\nSTAGE "), shown);
}

BOOST_AUTO_TEST_CASE(a_lost_node_is_told_while_it_runs) {
  test::own_node worker{.job = "worker", .host_work = host_stages({&run_stages()})};
  worker.name = "n1";
  auto other = worker;
  other.name = "n2";
  test::own_nodes nodes("run_lost", {worker, other});
  topology_options o{.name = "lines", .threads = 2};
  o.cluster.cluster = "run_lost";
  o.cluster.lease = 30s;
  o.cluster.timeout = 30s;
  troupe::topology t(o);
  t.use(run_stages());
  // Endless until the node is gone, and a bit longer.
  std::atomic<bool> has_left{false};
  std::atomic<std::int64_t> arrived{0};
  std::int64_t after = 0;
  const auto made = source(t, [&, n = std::int64_t{0}]() mutable -> std::optional<std::int64_t> {
    if (has_left && ++after > 1000) return std::nullopt;
    return n++;
  });
  std::atomic<bool> is_in_order{true};
  for_each(map(made, passes{}, {.replicas = 2, .on = "/job:worker"}), [&](std::int64_t x) {
    if (x != arrived++) is_in_order = false;
  });
  std::atomic<bool> is_over{false};
  std::thread leaver([&] {
    while (arrived <= 1000 && !is_over) std::this_thread::sleep_for(2ms);
    if (!is_over) nodes.leave(0);
    has_left = true;
  });
  const auto e = run(t);
  is_over = true;
  leaver.join();
  BOOST_TEST(e.code == 0, e.text);
  BOOST_TEST(is_in_order);
  BOOST_TEST(says(e.text, "lines: n1 was lost ("), e.text);
  BOOST_TEST(says(e.text, "what it had is made again"), e.text);
}

BOOST_AUTO_TEST_CASE(whoever_is_stopped_waits_for_no_nodes) {
  test::own_nodes nodes("run_waits", {{.job = "other", .name = "n1"}});
  topology_options o{.threads = 1};
  o.cluster.cluster = "run_waits";
  o.cluster.timeout = 10min;
  troupe::topology t(o);
  t.use(run_stages());
  collect(map(from(t, std::vector<std::int64_t>{1}), passes{}, {.on = "/job:worker"}));
  t.stop();
  const auto e = run(t);
  BOOST_TEST(e.code == static_cast<int>(error_code::failed));
  BOOST_TEST(says(e.text, "stopped while it waited for nodes"), e.text);
}

BOOST_AUTO_TEST_CASE(a_signal_ends_the_search_for_a_cluster) {
  const test::runtime_folder folder;
  topology_options o{.threads = 1};
  o.cluster.cluster = "run_searches";
  o.cluster.timeout = 10min;
  int asked = 0;
  o.cluster.is_cancelled = [&] { return asked++ > 0 || ::raise(SIGINT) != 0; };
  troupe::topology t(o);
  for_each(from(t, {1}), [](int) {});
  const auto e = run(t);
  BOOST_TEST(e.code == 128 + SIGINT);
  BOOST_TEST(says(e.text, "interrupted while it looked for the cluster"), e.text);
}

BOOST_AUTO_TEST_CASE(a_cluster_that_is_not_there_is_told) {
  const test::runtime_folder folder;
  topology_options o{.name = "lines", .threads = 1};
  o.cluster.cluster = "run_nobody";
  o.cluster.timeout = 10ms;
  troupe::topology t(o);
  for_each(from(t, {1}), [](int) {});
  const auto e = run(t);
  BOOST_TEST(e.code == static_cast<int>(error_code::unreachable));
  BOOST_TEST(says(e.text, "lines: no node of cluster 'run_nobody' was found within 10 ms"), e.text);
}

BOOST_AUTO_TEST_SUITE_END()
