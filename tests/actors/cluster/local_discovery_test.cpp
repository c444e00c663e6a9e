#include "troupe/actors/cluster/local_discovery.hpp"

#include "troupe/actors/net/io_loop.hpp"

#include <boost/test/unit_test.hpp>

#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

using namespace troupe;

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

const auto nobody_known = [](node_id) { return false; };

}  // namespace

BOOST_AUTO_TEST_SUITE(local_discovery)

BOOST_AUTO_TEST_CASE(members_answer_from_their_loop_and_tools_only_ask) {
  own_environment env;
  io_loop loop, other_loop;
  auto a = open(loop), tool = open(loop);
  BOOST_TEST(tool->find(nobody_known).empty());
  BOOST_REQUIRE(a->announce(member_at(1, "127.0.0.1:1")));
  BOOST_REQUIRE(a->announce(member_at(2, "127.0.0.1:2")));  // after a rejoin
  std::jthread answers([&](std::stop_token stop) {
    while (!stop.stop_requested()) loop.poll(1);
  });
  auto b = open(other_loop);
  BOOST_TEST(b->token() == a->token());
  const auto found = b->find(nobody_known);
  BOOST_REQUIRE_EQUAL(found.size(), 1u);
  BOOST_TEST((found[0].id == node_id{2}));
  BOOST_TEST(found[0].address == "127.0.0.1:2");
  BOOST_REQUIRE(b->announce(member_at(3, "127.0.0.1:3")));
  BOOST_TEST(b->find([](node_id n) { return n == node_id{2}; }).empty());
}

BOOST_AUTO_TEST_CASE(a_member_that_ended_is_not_found) {
  own_environment env;
  io_loop loop, other_loop;
  auto a = open(loop), b = open(other_loop);
  BOOST_REQUIRE(a->announce(member_at(1, "127.0.0.1:1")));
  a.reset();
  BOOST_TEST(loop.poll(0) == 0);
  BOOST_TEST(b->find(nobody_known).empty());
}

BOOST_AUTO_TEST_CASE(a_token_file_is_used_instead_of_the_shared_token) {
  own_environment env;
  io_loop loop;
  const auto path = env.path + "/secret";
  std::ofstream(path) << "words\n";
  ::chmod(path.c_str(), 0644);
  BOOST_TEST(!troupe::local_discovery::open("c", path, loop));  // others may read it
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  BOOST_TEST(open(loop, path)->token() == "words");
  BOOST_TEST(!troupe::local_discovery::open("a/b", "", loop));
}

BOOST_AUTO_TEST_SUITE_END()
