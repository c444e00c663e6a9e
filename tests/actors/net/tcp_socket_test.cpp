// Names of hosts and addresses of sockets, as the operating system gives them.

#include "troupe/actors/net/tcp_socket.hpp"

#include "tests/support/wait.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/socket.h>

#include <string>
#include <vector>

using namespace troupe;

namespace {

// No address that is known without the resolver, which reads it without asking anybody.
const address short_form{"127.1", 7000};

std::vector<std::string> texts_of(const std::vector<socket_address>& all) {
  std::vector<std::string> texts;
  for (const auto& a : all) texts.push_back(to_string(to_address(a)));
  return texts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tcp_socket)

BOOST_AUTO_TEST_CASE(numbers_and_localhost_are_known_without_asking) {
  BOOST_TEST(
      texts_of(known_addresses({"127.0.0.1", 80})) == (std::vector<std::string>{"127.0.0.1:80"}),
      boost::test_tools::per_element());
  BOOST_TEST(texts_of(known_addresses({"::1", 80})) == (std::vector<std::string>{"[::1]:80"}),
             boost::test_tools::per_element());
  BOOST_TEST(texts_of(known_addresses({"localhost", 80})) ==
                 (std::vector<std::string>{"127.0.0.1:80", "[::1]:80"}),
             boost::test_tools::per_element());
  BOOST_TEST(known_addresses({"localhost.example", 80}).empty());
  BOOST_TEST(known_addresses(short_form).empty());
}

BOOST_AUTO_TEST_CASE(other_names_are_looked_up) {
  const auto found = look_up(short_form);
  BOOST_REQUIRE_MESSAGE(found, (found ? "" : found.error().text()));
  BOOST_TEST_REQUIRE(!found->empty());
  for (const auto& text : texts_of(*found)) BOOST_TEST(text == "127.0.0.1:7000");
  const auto none = look_up({"", 7000});
  BOOST_TEST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::unreachable));
}

BOOST_AUTO_TEST_CASE(a_lookup_tells_by_its_descriptor_that_it_has_its_answer) {
  auto lookup = name_lookup::start(short_form);
  BOOST_REQUIRE_MESSAGE(lookup, (lookup ? "" : lookup.error().text()));
  test::wait_readable(lookup->fd(), "the answer of a lookup");
  const auto found = lookup->answer();
  BOOST_TEST_REQUIRE(bool(found));
  BOOST_TEST(texts_of(*found).at(0) == "127.0.0.1:7000");
}

BOOST_AUTO_TEST_CASE(a_socket_that_is_not_connected_has_no_peer) {
  const auto listener = open_listener({"127.0.0.1", 0});
  BOOST_TEST_REQUIRE(bool(listener));
  BOOST_TEST(peer_of(listener->get()).host == "?");
  BOOST_TEST(local_address_of(listener->get()).host == "127.0.0.1");
  BOOST_TEST(local_address_of(listener->get()).port != 0);
  BOOST_TEST(local_address_of(-1).host == "?");
  // Of a family that is none of the internet's.
  int pair[2];
  BOOST_TEST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const unique_fd a(pair[0]), b(pair[1]);
  BOOST_TEST(peer_of(a.get()).host == "?");
  const auto none = open_stream_socket(-1);
  BOOST_TEST_REQUIRE(!none);
  BOOST_TEST(none.error().message().find("cannot open a socket: ") == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
