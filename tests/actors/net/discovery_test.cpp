#include "tests/support/wait.hpp"
#include "troupe/actors/net/discovery.hpp"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

using namespace troupe;
namespace fs = std::filesystem;

BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::error_code)

namespace {

const auto nobody_known = [](node_id) { return false; };

// A folder of its own that goes away with the test.
struct sandbox {
  sandbox() {
    char name[] = "/tmp/troupe-test-XXXXXX";
    BOOST_REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~sandbox() { fs::remove_all(path); }
  discovery_roots roots() const { return {path, "/nonexistent"}; }
  discovery open(std::string_view cluster = "c") const {
    auto d = discovery::open(roots(), cluster);
    BOOST_REQUIRE(d);
    return std::move(*d);
  }
  std::string file(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const auto p = path + "/" + name;
    std::ofstream(p) << text;
    ::chmod(p.c_str(), mode);
    return p;
  }
  std::string path;
};

// A socket in the folder that does what a test wants it to do.
struct odd_socket {
  odd_socket(const std::string& path, bool listens) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, path.c_str(), sizeof(at.sun_path) - 1);
    fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    BOOST_REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    if (listens) BOOST_REQUIRE(::listen(fd, 8) == 0);
  }
  ~odd_socket() { ::close(fd); }
  void say(const std::string& text) const {
    test::wait_readable(fd, "somebody connects to the socket");
    const int c = ::accept(fd, nullptr, nullptr);
    BOOST_REQUIRE(::write(c, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(c);
  }
  int fd;
};

std::int64_t milliseconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

std::size_t sockets_in(const std::string& folder) {
  std::size_t n = 0;
  for (const auto& e : fs::directory_iterator(folder)) n += e.path().native().ends_with(".sock");
  return n;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(discovery)

BOOST_AUTO_TEST_CASE(names_of_clusters_are_checked) {
  for (auto good : {"default", "a", "A.b_c-9", "..."})
    BOOST_TEST(bool(check_cluster_name(good)), good);
  for (auto bad : {"", ".", "..", "a/b", "a b", "ä", "x\n"})
    BOOST_TEST(!check_cluster_name(bad), bad);
  BOOST_TEST(bool(check_cluster_name(std::string(64, 'x'))));
  const auto refused = check_cluster_name(std::string(65, 'x'));
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().code() == error_code::usage);
  sandbox s;
  BOOST_TEST(!troupe::discovery::open(s.roots(), "../x"));
}

BOOST_AUTO_TEST_CASE(processes_find_each_other_and_not_themselves) {
  sandbox s;
  auto a = s.open(), b = s.open(), other = s.open("other");
  BOOST_REQUIRE(a.announce(node_id{0xa}, "127.0.0.1:1"));
  BOOST_REQUIRE(b.announce(node_id{0xb}, "127.0.0.1:2"));
  BOOST_REQUIRE(other.announce(node_id{0xc}, "127.0.0.1:3"));
  std::jthread answers([&](std::stop_token stop) {
    while (!stop.stop_requested()) b.answer();
  });
  BOOST_TEST((a.entries(nobody_known, 2000) ==
              std::vector<discovery_entry>{{node_id{0xb}, "127.0.0.1:2"}}));
  BOOST_TEST(a.entries([](node_id n) { return n == node_id{0xb}; }).empty());
  BOOST_TEST(a.silent() == 0u);
  BOOST_TEST(fs::exists(a.folder() + "/000000000000000b.sock"));
}

BOOST_AUTO_TEST_CASE(an_answer_that_comes_later_is_taken_by_the_next_call) {
  sandbox s;
  auto a = s.open(), b = s.open();
  BOOST_REQUIRE(b.announce(node_id{0xb}, "127.0.0.1:2"));
  BOOST_TEST(a.entries(nobody_known, 0).empty());
  BOOST_TEST(a.silent() == 1u);
  b.answer();
  BOOST_TEST(a.entries(nobody_known, 0).size() == 1u);
  b = s.open();  // gone, and its socket with it
  BOOST_TEST(a.entries(nobody_known, 0).empty());
  BOOST_TEST(sockets_in(a.folder()) == 0u);
}

BOOST_AUTO_TEST_CASE(DI_1_a_socket_nobody_listens_at_is_removed) {
  sandbox s;
  auto a = s.open();
  {
    odd_socket killed(a.folder() + "/00000000000000ff.sock", true);
  }
  BOOST_TEST(sockets_in(a.folder()) == 1u);
  // It is not waited for: that would be a minute.
  const auto took = milliseconds_of([&] { BOOST_TEST(a.entries(nobody_known, 60'000).empty()); });
  BOOST_TEST(took < 30'000);
  BOOST_TEST(sockets_in(a.folder()) == 0u);
  BOOST_TEST(a.stale() == 1u);
  BOOST_TEST(a.silent() == 0u);
}

BOOST_AUTO_TEST_CASE(DI_1_a_socket_has_no_name_before_it_listens) {
  sandbox s;
  auto a = s.open();
  odd_socket early(a.folder() + "/00000000000000ff.sock.", false);
  BOOST_TEST(a.entries(nobody_known).empty());
  BOOST_TEST(a.stale() == 0u);
  BOOST_TEST(fs::exists(a.folder() + "/00000000000000ff.sock."));
}

BOOST_AUTO_TEST_CASE(DI_2_two_that_ask_each_other_at_the_same_time_both_get_an_answer) {
  sandbox s;
  for (int round = 0; round < 50; ++round) {
    auto a = s.open(), b = s.open();
    std::vector<discovery_entry> seen_by_b;
    bool b_announced = false;  // checked after the join: Boost.Test belongs to one thread
    // A process answers as long as it lives, so each does until the other has asked, too.
    std::atomic<int> asked = 0;
    const auto answer = [&asked](troupe::discovery& d) {
      for (++asked; asked < 2;) {
        d.answer();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    std::jthread other([&] {
      b_announced = bool(b.announce(node_id{0xb}, "b:1"));
      seen_by_b = b.entries(nobody_known, 2000);
      answer(b);
    });
    BOOST_REQUIRE(a.announce(node_id{0xa}, "a:1"));
    const auto seen_by_a = a.entries(nobody_known, 2000);
    const test::waiting_for named("the end of the other process's part");
    answer(a);
    other.join();
    BOOST_REQUIRE(b_announced);
    BOOST_REQUIRE_GE(seen_by_a.size() + seen_by_b.size(), 1u);
  }
}

BOOST_AUTO_TEST_CASE(the_first_answer_is_waited_for_where_somebody_is) {
  sandbox s;
  auto a = s.open(), b = s.open();
  BOOST_TEST(a.first_entries(nobody_known, 10, 60'000).empty());  // nobody is: at once
  BOOST_REQUIRE(b.announce(node_id{0xb}, "127.0.0.1:2"));
  std::atomic<bool> has_asked{false};
  std::jthread late([&] {
    while (!has_asked) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    b.answer();
  });
  has_asked = true;
  BOOST_TEST(a.first_entries(nobody_known, 10, 60'000).size() == 1u);
  // Up to its limit, and then it says who is silent.
  odd_socket frozen(a.folder() + "/00000000000000ff.sock", true);
  auto c = s.open();
  BOOST_TEST(c.first_entries([](node_id n) { return n == node_id{0xb}; }, 10, 60).empty());
  BOOST_TEST(c.silent() == 1u);
}

BOOST_AUTO_TEST_CASE(DI_5_who_does_not_answer_costs_its_wait_once_and_stays) {
  sandbox s;
  auto a = s.open();
  odd_socket frozen(a.folder() + "/00000000000000ff.sock", true);
  const auto first = milliseconds_of([&] { a.entries(nobody_known, 50); });
  const auto again = milliseconds_of([&] { a.entries(nobody_known, 60'000); });
  BOOST_TEST(first >= 49);
  BOOST_TEST((again < 30'000 || first >= ask_again_ms));  // or the machine stood still
  BOOST_TEST(a.silent() == 1u);
  BOOST_TEST(sockets_in(a.folder()) == 1u);
  frozen.say("troupe 1 00000000000000ff h:9\n");
  BOOST_TEST((a.entries(nobody_known, 0) == std::vector<discovery_entry>{{node_id{0xff}, "h:9"}}));
}

BOOST_AUTO_TEST_CASE(DI_5_nonsense_is_no_answer) {
  for (const std::string text :
       {"", "hello\n", "troupe 1 00000000000000fe h:9\n", "troupe 1 00000000000000ff h:9",
        "troupe 1 00000000000000ff \n", "troupe 1 00000000000000ff a b\n",
        "troupe 2 00000000000000ff h:9\n"}) {
    sandbox s;
    auto a = s.open();
    odd_socket odd(a.folder() + "/00000000000000ff.sock", true);
    BOOST_TEST(a.entries(nobody_known, 0).empty());
    odd.say(text);
    BOOST_TEST(a.entries(nobody_known, 0).empty(), text);
  }
  sandbox s;
  auto a = s.open();
  odd_socket odd(a.folder() + "/00000000000000ff.sock", true);
  a.entries(nobody_known, 0);
  odd.say(std::string(100'000, 'x'));
  BOOST_TEST(a.entries(nobody_known, 0).empty());
  for (auto name : {"xyz.sock", "00000000000000FF.sock", "0ff.sock", "-00000000000000f.sock"})
    std::ofstream(a.folder() + "/" + name) << "x";
  BOOST_TEST(a.entries(nobody_known, 0).empty());
}

BOOST_AUTO_TEST_CASE(a_new_announcement_replaces_the_old_one) {
  sandbox s;
  auto a = s.open();
  BOOST_REQUIRE(a.announce(node_id{1}, "h:1"));
  BOOST_REQUIRE(a.announce(node_id{2}, "h:1"));
  BOOST_TEST(sockets_in(a.folder()) == 1u);
  BOOST_TEST(fs::exists(a.folder() + "/0000000000000002.sock"));
}

BOOST_AUTO_TEST_CASE(without_a_descriptor_left_nobody_is_kept_waiting) {
  sandbox s;
  auto a = s.open(), b = s.open();
  BOOST_REQUIRE(b.announce(node_id{0xb}, "h:1"));
  BOOST_TEST(a.entries(nobody_known, 0).empty());
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int next = ::dup(0);  // the lowest free one
  ::close(next);
  rlimit tight{static_cast<rlim_t>(next), before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &tight);
  b.answer();
  ::setrlimit(RLIMIT_NOFILE, &before);
  a.entries(nobody_known, 0);
  // It was closed without an answer, which is asked for again later.
  BOOST_TEST(a.silent() == 1u);
  const int accepted = ::accept4(b.fd(), nullptr, nullptr, SOCK_NONBLOCK);
  BOOST_TEST(accepted < 0);
}

BOOST_AUTO_TEST_CASE(DI_3_folders_of_others_or_open_to_others_are_refused) {
  sandbox s;
  s.open();
  struct stat st{};
  BOOST_REQUIRE(::stat((s.path + "/troupe/c").c_str(), &st) == 0);
  BOOST_TEST((st.st_mode & 07777u) == 0700u);
  ::chmod((s.path + "/troupe/c").c_str(), 0750);
  const auto open_to_others = troupe::discovery::open(s.roots(), "c");
  BOOST_REQUIRE(!open_to_others);
  BOOST_TEST(open_to_others.error().code() == error_code::denied);
  BOOST_TEST(open_to_others.error().message().find("chmod 700") != std::string::npos);
  fs::create_directory_symlink("/tmp", s.path + "/troupe/link");
  BOOST_TEST(!troupe::discovery::open(s.roots(), "link"));
  std::ofstream(s.path + "/troupe/file") << "x";
  BOOST_TEST(!troupe::discovery::open(s.roots(), "file"));
  if (::geteuid() != 0) return;  // only root can give a folder away
  BOOST_REQUIRE(::chown((s.path + "/troupe").c_str(), 12345, 12345) == 0);
  const auto of_others = troupe::discovery::open(s.roots(), "d");
  BOOST_REQUIRE(!of_others);
  BOOST_TEST(of_others.error().message().find("belongs to user 12345") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(without_a_runtime_folder_of_ours_the_temporary_one_is_used) {
  sandbox s;
  for (const auto& runtime : {std::string(), s.path + "/missing", s.file("file", "x")}) {
    auto d = troupe::discovery::open({runtime, s.path}, "c");
    BOOST_REQUIRE(d);
    BOOST_TEST(d->folder() == s.path + "/troupe-" + std::to_string(::geteuid()) + "/c");
  }
  BOOST_TEST(!troupe::discovery::open({"", s.path + "/missing"}, "c"));
}

BOOST_AUTO_TEST_CASE(a_path_that_is_too_long_for_a_socket_is_an_error_that_says_so) {
  sandbox s;
  const auto deep = s.path + "/" + std::string(80, 'd');
  fs::create_directory(deep);
  const auto d = troupe::discovery::open({deep, "/tmp"}, "cluster");
  BOOST_REQUIRE(!d);
  BOOST_TEST(d.error().code() == error_code::usage);
  BOOST_TEST(d.error().message().find("at most 107") != std::string::npos);
  BOOST_TEST(fs::is_empty(deep));
}

BOOST_AUTO_TEST_CASE(DI_4_all_who_start_at_once_share_one_token) {
  sandbox s;
  std::set<std::string> tokens;
  std::vector<secret> seen(8);
  {
    std::vector<std::jthread> starters;
    for (auto& t : seen)
      starters.emplace_back([&] {
        auto d = troupe::discovery::open(s.roots(), "c");
        if (d) t = d->shared_token() ? *d->shared_token() : secret();
      });
  }
  for (const auto& t : seen) tokens.emplace(t.text());
  BOOST_REQUIRE_EQUAL(tokens.size(), 1u);
  BOOST_TEST(tokens.begin()->size() == 64u);
  auto d = s.open();
  std::size_t files = 0;
  for (const auto& e : fs::directory_iterator(d.folder())) files += e.is_regular_file();
  BOOST_TEST(files == 1u);
  struct stat st{};
  BOOST_REQUIRE(::stat((d.folder() + "/token").c_str(), &st) == 0);
  BOOST_TEST((st.st_mode & 07777u) == 0600u);
  BOOST_TEST((s.open("other").shared_token()->text() != *tokens.begin()));
}

BOOST_AUTO_TEST_CASE(DI_3_token_files_are_checked) {
  sandbox s;
  const auto good = read_token_file(s.file("good", "sixteen secret b\r\n"));
  BOOST_TEST_REQUIRE(bool(good));
  BOOST_TEST(good->text() == "sixteen secret b");
  const auto message = [](const result<secret>& r) {
    BOOST_REQUIRE(!r);
    return r.error().message();
  };
  BOOST_TEST(message(read_token_file(s.path + "/none"))
                 .find("cannot read the token file " + s.path + "/none") == 0u);
  BOOST_TEST(message(read_token_file(s.file("empty", "\n"))).find("is empty") != std::string::npos);
  BOOST_TEST(message(read_token_file(s.file("short", "sixteen secret \n"))) ==
             "the token file " + s.path +
                 "/short holds 15 bytes, and a token has at least 16 bytes, so that it cannot be "
                 "guessed: (umask 077; openssl rand -hex 32 > " +
                 s.path + "/short) makes one");
  BOOST_TEST(read_token_file(s.file("short2", "x")).error().code() == error_code::usage);
  BOOST_TEST(message(read_token_file(s.file("wide", "x", 0640))).find("chmod 600") !=
             std::string::npos);
  BOOST_TEST(message(read_token_file(s.path)).find("is not a file") != std::string::npos);
  BOOST_TEST(
      message(read_token_file(s.file("long", std::string(5000, 'x')))).find("longer than 4096") !=
      std::string::npos);
  BOOST_TEST(read_token_file(s.file("wide2", "x", 0604)).error().code() == error_code::denied);
}

BOOST_AUTO_TEST_CASE(DI_3_a_folder_above_that_others_may_write_to_is_refused) {
  for (const mode_t mode : {0777, 0770, 0702}) {
    sandbox s;
    BOOST_REQUIRE(::chmod(s.path.c_str(), mode) == 0);
    for (const auto& roots :
         {discovery_roots{s.path, "/nonexistent"}, discovery_roots{"", s.path}}) {
      const auto d = troupe::discovery::open(roots, "c");
      BOOST_REQUIRE(!d);
      BOOST_TEST(d.error().code() == error_code::denied);
      BOOST_TEST(d.error().message().find("chmod go-w " + s.path) != std::string::npos);
    }
    BOOST_TEST(fs::is_empty(s.path));
    // As /tmp: who may write there may not rename what is ours.
    BOOST_REQUIRE(::chmod(s.path.c_str(), mode | S_ISVTX) == 0);
    BOOST_TEST(bool(troupe::discovery::open({"", s.path}, "c")));
  }
}

BOOST_AUTO_TEST_SUITE_END()
