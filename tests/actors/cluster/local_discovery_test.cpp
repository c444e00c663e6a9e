#include "troupe/actors/cluster/local_discovery.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/net/io_loop.hpp"

#include <boost/test/unit_test.hpp>

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;
using test::wait_until;

namespace {

// The environment names the folders, so a test has its own.
struct own_environment {
  own_environment() {
    char name[] = "/tmp/troupe-test-XXXXXX";
    BOOST_REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
    ::setenv("XDG_RUNTIME_DIR", name, 1);
  }
  ~own_environment() {
    ::unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(path);
  }
  std::string path;
};

std::unique_ptr<local_discovery> open(io_loop& loop, const std::string& token_file = "") {
  auto d = local_discovery::open("c", token_file, loop);
  BOOST_REQUIRE(d);
  return std::move(*d);
}

member_info member_at(std::uint64_t id, std::string address) {
  member_info m;
  m.id = node_id{id};
  m.address = std::move(address);
  return m;
}

std::vector<rendezvous::place> look(local_discovery& d, io_loop& loop, std::vector<node_id> known) {
  std::optional<std::vector<rendezvous::place>> out;
  d.look(std::move(known), [&](std::vector<rendezvous::place> found) { out = std::move(found); });
  wait_until("the look has ended", [&] { return loop.poll(1), out.has_value(); });
  return *out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(local_discovery)

BOOST_AUTO_TEST_CASE(members_answer_from_their_loop_and_tools_only_ask) {
  own_environment env;
  io_loop loop, other_loop;
  auto a = open(loop), tool = open(loop);
  BOOST_TEST(tool->find(60'000'000'000).empty());
  BOOST_REQUIRE(a->announce(member_at(1, "127.0.0.1:1")));
  BOOST_REQUIRE(a->announce(member_at(2, "127.0.0.1:2")));  // after a rejoin
  std::jthread answers([&](std::stop_token stop) {
    while (!stop.stop_requested()) loop.poll(1);
  });
  auto b = open(other_loop);
  BOOST_TEST(b->token() == a->token());
  const auto found = b->find(60'000'000'000);
  BOOST_REQUIRE_EQUAL(found.size(), 1u);
  BOOST_TEST((found[0].id == node_id{2}));
  BOOST_TEST(found[0].address == "127.0.0.1:2");
  BOOST_REQUIRE(b->announce(member_at(3, "127.0.0.1:3")));
  BOOST_TEST(look(*b, other_loop, {node_id{2}, node_id{3}}).empty());
  BOOST_TEST(look(*b, other_loop, {node_id{3}}).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_member_that_ended_is_not_found) {
  own_environment env;
  io_loop loop, other_loop;
  auto a = open(loop), b = open(other_loop);
  BOOST_REQUIRE(a->announce(member_at(1, "127.0.0.1:1")));
  a.reset();
  BOOST_TEST(loop.poll(0) == 0);
  BOOST_TEST(b->find(60'000'000'000).empty());
}

// A member's loop must go on meanwhile, or its peers hold it dead.
BOOST_AUTO_TEST_CASE(a_look_does_not_hold_up_the_loop_and_there_is_one_at_a_time) {
  own_environment env;
  io_loop loop, silent_loop;
  auto a = open(loop), silent = open(silent_loop);
  BOOST_REQUIRE(silent->announce(member_at(2, "127.0.0.1:2")));  // nobody polls its loop
  int found = 0;
  const auto count = [&](const auto& places) {
    BOOST_TEST(places.empty());
    ++found;
  };
  a->look({}, count);
  a->look({}, count);
  BOOST_TEST(found == 0);  // it is waited for elsewhere
  wait_until("the look has ended", [&] { return loop.poll(1), found == 1; });
  a->look({}, count);
  wait_until("the second look has ended", [&] { return loop.poll(1), found == 2; });
  a->look({}, count);
  a.reset();  // in the middle of it
  BOOST_TEST(found == 2);
}

BOOST_AUTO_TEST_CASE(a_token_file_is_used_instead_of_the_shared_token) {
  own_environment env;
  io_loop loop;
  const auto path = env.path + "/secret";
  std::ofstream(path) << "sixteen words or more\n";
  ::chmod(path.c_str(), 0644);
  BOOST_TEST(!troupe::local_discovery::open("c", path, loop));  // others may read it
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  BOOST_TEST(open(loop, path)->token().text() == "sixteen words or more");
  BOOST_TEST(!troupe::local_discovery::open("a/b", "", loop));
}

BOOST_AUTO_TEST_SUITE_END()
