#include "troupe/devices/files/host_disk.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/wait.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

using namespace troupe;
using namespace troupe::test;

namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

result<void> write_text(disk& d, const std::string& path, std::string_view text) {
  const auto bytes = bytes_of(text);
  const std::span<const std::byte> pieces[] = {bytes};
  return write_whole(d, path, pieces);
}

// The error's text must hold the path, and be one line.
template <class T>
void check_error(const result<T>& r, error_code code, const std::string& path,
                 std::string_view why = "") {
  BOOST_REQUIRE(!r);
  const auto& message = r.error().message();
  BOOST_TEST((r.error().code() == code), message << " has code " << to_string(r.error().code()));
  BOOST_TEST(message.find(path) != message.npos, message << " lacks " << path);
  BOOST_TEST(message.find(why) != message.npos, message << " lacks " << why);
  BOOST_TEST(message.find('\n') == message.npos);
}

// Root may write everywhere, so it is nobody for a while.
class without_root {
 public:
  without_root() {
    if (::geteuid() == 0) is_root_ = ::seteuid(65534) == 0;
  }
  ~without_root() {
    if (is_root_) BOOST_CHECK(::seteuid(0) == 0);
  }
  static bool is_possible() {
    const without_root nobody;
    return ::geteuid() != 0;
  }

 private:
  bool is_root_ = false;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(host_disk)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_listed_renamed_and_removed) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  auto file = d->create(folder.file("b"), disk::create_mode::exclusive);
  BOOST_REQUIRE(file);
  BOOST_REQUIRE((*file)->write(bytes_of("one ")));
  BOOST_REQUIRE((*file)->write(bytes_of("two")));
  BOOST_REQUIRE((*file)->sync());
  BOOST_REQUIRE((*file)->close());
  BOOST_TEST((*d->read(folder.file("b"), 7) == bytes_of("one two")));
  BOOST_TEST(*d->size(folder.file("b")) == 7U);
  BOOST_REQUIRE(d->make_folder(folder.file("z/y/x")));
  BOOST_REQUIRE(d->make_folder(folder.file("z/y/x")));
  BOOST_REQUIRE(d->rename(folder.file("b"), folder.file("a")));
  BOOST_REQUIRE(d->sync_folder(folder.path()));
  BOOST_TEST(*d->list(folder.path()) == (std::vector<std::string>{"a", "z"}),
             boost::test_tools::per_element());
  BOOST_REQUIRE(d->remove(folder.file("a")));
  BOOST_REQUIRE(d->remove(folder.file("z/y/x")));
  BOOST_TEST(d->list(folder.file("z/y"))->empty());
}

BOOST_AUTO_TEST_CASE(create_replaces_or_refuses_what_is_there) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  write_file(folder.file("f"), bytes_of("old"));
  check_error(d->create(folder.file("f"), disk::create_mode::exclusive), error_code::denied,
              folder.file("f"), "exists");
  BOOST_TEST((read_file(folder.file("f")) == bytes_of("old")));
  BOOST_REQUIRE(d->create(folder.file("f"), disk::create_mode::replace));
  BOOST_TEST(read_file(folder.file("f")).empty());
}

BOOST_AUTO_TEST_CASE(of_many_exclusive_creators_one_succeeds) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  for (int round = 0; round < 20; ++round) {
    const auto path = folder.file(std::to_string(round));
    std::atomic<int> made = 0, denied = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        const auto file = d->create(path, disk::create_mode::exclusive);
        if (file) ++made;
        if (!file && file.error().code() == error_code::denied) ++denied;
      });
    const test::waiting_for named("the end of all creators");
    for (auto& t : threads) t.join();
    BOOST_TEST(made == 1);
    BOOST_TEST(denied == 3);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_there_is_not_found) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto gone = folder.file("none/f");
  const auto code = error_code::not_found;
  check_error(d->create(gone, disk::create_mode::replace), code, gone, "No such file");
  check_error(d->read(gone, 1), code, gone);
  check_error(d->size(gone), code, gone);
  check_error(d->rename(gone, folder.file("f")), code, gone);
  check_error(d->remove(gone), code, gone);
  check_error(d->list(gone), code, gone);
  check_error(d->sync_folder(gone), code, gone);
  check_error(d->lock(gone), code, gone);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_used_so_is_said) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  write_file(folder.file("f"), bytes_of("four"));
  BOOST_REQUIRE(d->make_folder(folder.file("full/inside")));
  const auto code = error_code::usage;
  check_error(d->read(folder.file("f"), 3), code, folder.file("f"), "4 bytes, expected at most 3");
  check_error(d->read(folder.file("full"), 9), code, folder.file("full"), "not a regular file");
  check_error(d->size(folder.file("full")), code, folder.file("full"), "not a regular file");
  check_error(d->create(folder.file("full"), disk::create_mode::replace), code, folder.file("full"),
              "directory");
  check_error(d->create(folder.file("f/x"), disk::create_mode::replace), code, folder.file("f/x"),
              "Not a directory");
  check_error(d->list(folder.file("f")), code, folder.file("f"), "Not a directory");
  check_error(d->make_folder(folder.file("f")), code, folder.file("f"));
  check_error(d->remove(folder.file("full")), code, folder.file("full"), "not empty");
  const auto long_path = folder.file(std::string(300, 'n'));
  check_error(d->create(long_path, disk::create_mode::replace), code, long_path, "too long");
}

BOOST_AUTO_TEST_CASE(DSK_3_a_pipe_stops_nobody) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto path = folder.file("pipe");
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  check_error(d->read(path, 100), error_code::usage, path, "not a regular file");
  check_error(d->create(path, disk::create_mode::replace), error_code::usage, path);
  check_error(d->size(path), error_code::usage, path);
  check_error(d->lock(path), error_code::usage, path);
  check_error(d->list(path), error_code::usage, path);
  check_error(d->sync_folder(path), error_code::usage, path);
}

BOOST_AUTO_TEST_CASE(a_folder_without_permission_is_said) {
  if (!without_root::is_possible()) {
    BOOST_TEST_MESSAGE("skipped: root may write everywhere, and cannot be somebody else here");
    return;
  }
  const temporary_folder folder;
  const auto d = make_host_disk();
  write_file(folder.file("f"), bytes_of("old"));
  BOOST_REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
  {
    const without_root nobody;
    check_error(write_text(*d, folder.file("f"), "new"), error_code::usage, folder.file("f"),
                "Permission denied");
    check_error(d->make_folder(folder.file("g")), error_code::usage, folder.file("g"),
                "Permission denied");
    check_error(d->remove(folder.file("f")), error_code::usage, folder.file("f"),
                "Permission denied");
    check_error(d->lock(folder.file("lock")), error_code::usage, folder.file("lock"),
                "Permission denied");
  }
  BOOST_REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  BOOST_TEST((read_file(folder.file("f")) == bytes_of("old")));
}

BOOST_AUTO_TEST_CASE(write_whole_replaces_a_file_and_leaves_nothing_beside_it) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto path = folder.file("f");
  BOOST_REQUIRE(write_text(*d, path, "old"));
  write_file(path + ".tmp", bytes_of("what somebody who died left"));
  const std::vector<std::byte> large(3 * write_piece_bytes + 5, std::byte{7});
  const auto end = bytes_of("end");
  const std::span<const std::byte> pieces[] = {large, {}, end};
  std::vector<std::byte> seen;
  BOOST_REQUIRE(write_whole(*d, path, pieces, [&](std::span<const std::byte> bytes) {
    BOOST_TEST(bytes.size() <= write_piece_bytes);
    seen.insert(seen.end(), bytes.begin(), bytes.end());
  }));
  auto expected = large;
  expected.insert(expected.end(), end.begin(), end.end());
  BOOST_TEST((read_file(path) == expected));
  BOOST_TEST((seen == expected));
  BOOST_TEST(d->list(folder.path())->size() == 1U);
}

BOOST_AUTO_TEST_CASE(write_whole_that_fails_while_writing_changes_nothing) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto path = folder.file("f");
  BOOST_REQUIRE(write_text(*d, path, "old"));
  // No file of this process may be longer than 100 bytes for a while.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit all{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &all) == 0);
  const rlimit few{100, all.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &few) == 0);
  const auto failed = write_text(*d, path, std::string(1000, 'n'));
  BOOST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &all) == 0);
  ::signal(SIGXFSZ, before);
  check_error(failed, error_code::failed, path, "File too large");
  BOOST_TEST((read_file(path) == bytes_of("old")));
  BOOST_TEST(d->list(folder.path())->size() == 1U);
}

BOOST_AUTO_TEST_CASE(write_whole_over_a_folder_fails_and_takes_its_file_away) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  BOOST_REQUIRE(d->make_folder(folder.file("f/inside")));
  check_error(write_text(*d, folder.file("f"), "new"), error_code::usage, folder.file("f"));
  BOOST_TEST(*d->list(folder.path()) == std::vector<std::string>{"f"},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_lock_is_held_until_it_is_given_back) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto path = folder.file("lock");
  auto lock = d->lock(path);
  BOOST_REQUIRE(lock);
  check_error(d->lock(path), error_code::denied, path, "another program holds it");
  lock->reset();
  BOOST_TEST(bool(d->lock(path)));
}

BOOST_AUTO_TEST_CASE(a_lock_ends_with_its_process) {
  const temporary_folder folder;
  const auto d = make_host_disk();
  const auto path = folder.file("lock");
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  const auto child = ::fork();
  if (child == 0) {
    const auto lock = make_host_disk()->lock(path);
    const char answer = lock ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  test::wait_readable(ready[0], "the child has asked for the lock");
  BOOST_REQUIRE(::read(ready[0], &answer, 1) == 1);
  BOOST_TEST(answer == 'y');
  check_error(d->lock(path), error_code::denied, path, "another program holds it");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  BOOST_TEST(bool(d->lock(path)));
  ::close(ready[0]), ::close(ready[1]);
}

BOOST_AUTO_TEST_SUITE_END()
