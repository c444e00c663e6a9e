#include "troupe/runtime/text/address.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

std::string refused(std::string_view text) {
  const auto a = parse_address(text);
  return a ? "accepted" : a.error().message();
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(address)

BOOST_AUTO_TEST_CASE(what_people_write_is_read_and_written_back) {
  for (const auto* text : {"localhost:0", "127.0.0.1:7000", "[::1]:7000", "[fe80::1]:65535",
                           "gpu-3.lab:7000", "0.0.0.0:1", "node_1:80", "[fe80::1%eth0]:7000"}) {
    const auto a = parse_address(text);
    BOOST_REQUIRE_MESSAGE(a, text);
    BOOST_TEST(to_string(*a) == text);
  }
  BOOST_TEST(parse_address("[::1]:7000")->host == "::1");
  BOOST_TEST(parse_address("[::1]:7000")->port == 7000);
}

BOOST_AUTO_TEST_CASE(a_bad_address_is_named_with_what_is_wrong) {
  BOOST_TEST(has(refused("localhost"), "port is missing"));
  BOOST_TEST(has(refused("[::1]"), "port is missing"));
  BOOST_TEST(has(refused(""), "port is missing"));
  BOOST_TEST(has(refused("::1:7000"), "in brackets"));
  BOOST_TEST(has(refused(":7000"), "host is missing"));
  BOOST_TEST(has(refused("localhost:"), "'' is no port"));
  BOOST_TEST(has(refused("localhost:65536"), "'65536' is no port"));
  BOOST_TEST(has(refused("localhost:-1"), "'-1' is no port"));
  BOOST_TEST(has(refused("localhost:70 "), "is no port"));
  BOOST_TEST(has(refused("localhost:7000000000000000000000"), "is no port"));
  BOOST_TEST(has(refused("256.0.0.1:1"), "'256.0.0.1' is neither"));
  BOOST_TEST(has(refused("1.2.3:1"), "neither"));
  BOOST_TEST(has(refused("a b:1"), "'a b' is neither"));
  BOOST_TEST(has(refused("[::g]:1"), "'::g' is no IPv6 address"));
  BOOST_TEST(has(refused(std::string(254, 'a') + ":1"), "neither"));
  BOOST_TEST(has(refused(std::string("a\0b:1", 5)), "neither"));
  BOOST_TEST((parse_address("x").error().code() == error_code::usage));
}

BOOST_AUTO_TEST_CASE(wildcards_and_link_local_addresses_are_known) {
  BOOST_TEST(is_wildcard({"0.0.0.0", 1}));
  BOOST_TEST(is_wildcard({"::", 1}));
  BOOST_TEST(is_wildcard({"0:0::0", 1}));
  for (const auto* host : {"", "localhost", "127.0.0.1", "::1", "10.0.0.0", "fe80::1%eth0", "any"})
    BOOST_TEST(!is_wildcard({host, 1}), host);
  for (const auto* host : {"169.254.1.2", "fe80::1", "fe80::1%eth0", "febf::1"})
    BOOST_TEST(is_link_local({host, 1}), host);
  for (const auto* host : {"", "169.25.4.1", "fec0::1", "::1", "169.254.example"})
    BOOST_TEST(!is_link_local({host, 1}), host);
  BOOST_TEST(has(refused("[fe80::1%]:1"), "no IPv6 address"));
  BOOST_TEST(has(refused("[fe80::1%a_name_that_is_too_long]:1"), "no IPv6 address"));
}

BOOST_AUTO_TEST_CASE(loopback_is_what_other_machines_cannot_reach) {
  BOOST_TEST(is_loopback({"localhost", 1}));
  BOOST_TEST(is_loopback({"127.0.0.1", 1}));
  BOOST_TEST(is_loopback({"127.9.9.9", 1}));
  BOOST_TEST(is_loopback({"::1", 1}));
  BOOST_TEST(!is_loopback({"0.0.0.0", 1}));
  BOOST_TEST(!is_loopback({"::", 1}));
  BOOST_TEST(!is_loopback({"127.evil.example", 1}));
}

BOOST_AUTO_TEST_SUITE_END()
