// What a process refuses to start with.

#include "troupe/actors/process/process.hpp"

#include "tests/support/two_nodes.hpp"

#include <boost/test/unit_test.hpp>

#include <string>

using namespace troupe;

namespace {

void is_refused(const process_options& o, error_code code, std::string_view why) {
  const auto p = process::start(o);
  BOOST_TEST_REQUIRE(!p);
  BOOST_TEST((p.error().code() == code));
  BOOST_TEST(p.error().message().find(why) != std::string::npos, p.error().message());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(process)

BOOST_AUTO_TEST_CASE(a_lease_is_from_a_second_to_an_hour) {
  process_options o;
  o.lease = std::chrono::milliseconds(999);
  is_refused(o, error_code::usage, "a lease of 0.999 s: it is from 1 s to 1 h");
  o.lease = std::chrono::seconds(3601);
  is_refused(o, error_code::usage, "it is from 1 s to 1 h");
  for (const auto lease : {1, 3600}) {
    o.lease = std::chrono::seconds(lease);
    BOOST_TEST(bool(troupe::process::start(o)));
  }
}

BOOST_AUTO_TEST_CASE(addresses_are_those_that_others_can_reach) {
  const test::runtime_folder folder;
  process_options o;
  o.cluster = "refused";
  o.join = {"192.0.2.1:7000"};
  is_refused(o, error_code::usage,
             "--join 192.0.2.1:7000 is another machine, whose nodes could not reach this one on "
             "loopback: give --listen HOST:PORT");
  o.join = {"no address"};
  is_refused(o, error_code::usage, "no address");
  o.join.clear();
  o.listen = "no address";
  is_refused(o, error_code::usage, "no address");
  o.listen = "0.0.0.0:0";
  is_refused(o, error_code::denied,
             "--listen 0.0.0.0:0 is reachable from other machines: it needs --token-file");
  o.listen = "127.0.0.1:0";
  o.token_file = folder.path + "/none";
  is_refused(o, error_code::usage, "none");
  // Somebody has that port already.
  o.token_file.clear();
  auto first = troupe::process::start(o);
  BOOST_TEST_REQUIRE(bool(first));
  o.listen = (*first)->address();
  is_refused(o, error_code::usage, o.listen);
  (*first)->leave("the test is over");
}

BOOST_AUTO_TEST_SUITE_END()
