// Lines of standard input, which is a pipe of the test here.

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

// For as long as it lives, standard input is what is written to `in`, or read from `fd`.
struct standard_input_of {
  standard_input_of() {
    int ends[2];
    BOOST_TEST_REQUIRE(::pipe(ends) == 0);
    in = ends[1];
    take(ends[0]);
  }
  explicit standard_input_of(int fd) { take(fd); }
  ~standard_input_of() {
    end();
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }
  standard_input_of(const standard_input_of&) = delete;
  standard_input_of& operator=(const standard_input_of&) = delete;

  void write(std::string_view text) const {
    while (!text.empty()) {
      const auto n = ::write(in, text.data(), text.size());
      if (n <= 0) return;  // nobody reads any more
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void end() {
    if (in >= 0) ::close(std::exchange(in, -1));
  }
  int in = -1;

 private:
  void take(int fd) {
    before_ = ::dup(STDIN_FILENO);
    BOOST_TEST_REQUIRE(::dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    ::close(fd);
  }
  int before_ = -1;
};

std::vector<std::string> lines_of(std::string_view text) {
  standard_input_of input;
  input.write(text);
  input.end();
  flow_graph g;
  const auto lines = collect(read_stdin(g));
  const auto done = drain(g);
  BOOST_TEST_REQUIRE(bool(done));
  return *lines;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(standard_input)

BOOST_AUTO_TEST_CASE(each_line_is_an_item_without_its_end) {
  const auto are = [](std::string_view text, std::vector<std::string> wanted) {
    BOOST_TEST(lines_of(text) == wanted, boost::test_tools::per_element());
  };
  are("", {});
  are("one\ntwo\n", {"one", "two"});
  are("one\n\ntwo", {"one", "", "two"});  // the last one may lack it
  are("\n", {""});
  are("dos\r\nold\rmac\r\n\r\n", {"dos", "old\rmac", ""});
  are(std::string_view("a\0b\n", 4), {std::string("a\0b", 3)});
}

BOOST_AUTO_TEST_CASE(lines_come_whole_however_they_are_written) {
  std::vector<std::string> wanted;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    wanted.push_back(std::string(static_cast<std::size_t>(i % 97), 'a') + std::to_string(i));
    text += wanted.back() + "\n";
  }
  // Larger than what one read takes, and than what a pipe holds.
  wanted.emplace_back(300'000, 'x');
  text += wanted.back();
  standard_input_of input;
  std::thread writer([&] {
    for (std::size_t at = 0, n = 1; at < text.size(); at += n, n = n % 1013 + 1)
      input.write(std::string_view(text).substr(at, n));
    input.end();
  });
  flow_graph g;
  const auto lines = collect(read_stdin(g));
  const auto done = drain(g);
  {
    const test::waiting_for named("the end of the thread that writes lines");
    writer.join();
  }
  BOOST_TEST_REQUIRE(bool(done));
  BOOST_TEST((*lines == wanted));
}

BOOST_AUTO_TEST_CASE(it_is_stopped_while_nothing_comes) {
  standard_input_of input;
  input.write("one\n");  // and no end
  topology t({.threads = 1});
  std::atomic<int> came{0};
  for_each(read_stdin(t), [&](const std::string& line) { came += line == "one"; });
  const auto done = t.run_to_end([&](const topology&) {
    if (came > 0) t.stop();
  });
  BOOST_TEST_REQUIRE(bool(done));
  BOOST_TEST(came == 1);
}

BOOST_AUTO_TEST_CASE(a_line_that_never_ends_is_a_failure) {
  standard_input_of input;
  std::thread writer([&] {
    const std::string some(1 << 20, 'x');
    for (int i = 0; i < 17; ++i) input.write(some);
    input.end();
  });
  flow_graph g;
  const auto lines = collect(read_stdin(g));
  const auto done = drain(g);
  // What is left over is taken, so that the writer ends.
  char some[1 << 16];
  while (::read(STDIN_FILENO, some, sizeof some) > 0) {
  }
  {
    const test::waiting_for named("the end of the thread that writes a long line");
    writer.join();
  }
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST(done.error().text().find("standard input: a line of more than 16777216 bytes") !=
                 std::string::npos,
             done.error().text());
  BOOST_TEST(lines->empty());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_read_is_a_failure) {
  const test::temporary_folder folder;
  const standard_input_of input(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY));
  flow_graph g;
  collect(read_stdin(g));
  const auto done = drain(g);
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST(done.error().text().find("standard input: Is a directory") != std::string::npos,
             done.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
