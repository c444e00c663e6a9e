#include "troupe/actors/cluster/dns_discovery.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/net/io_loop.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using test::wait_until;

namespace {

// Says at once that it has found `place`, and counts.
struct beside final : rendezvous {
  void look(std::vector<node_id>, found_handler found) override {
    ++looks;
    found({{"10.0.0.1:7", node_id{7}}});
  }
  result<void> announce(const member_info&) override { return ++announced, result<void>(); }
  int looks = 0, announced = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(dns_discovery)

BOOST_AUTO_TEST_CASE(joins_are_addresses_or_names_to_look_up) {
  std::vector<address> names;
  const std::vector<std::string> joins = {"a:1", "dns:pods.lab:7000", "[::1]:2"};
  const auto addresses = split_joins(joins, names);
  BOOST_REQUIRE(addresses);
  BOOST_TEST((*addresses == std::vector<std::string>{"a:1", "[::1]:2"}));
  BOOST_TEST((names == std::vector<address>{{"pods.lab", 7000}}));
  for (const char* bad :
       {"dns:", "dns:pods", "dns:pods:", "dns:pods:0", "dns::7", "pods:0", "pods"}) {
    const auto place = parse_join(bad);
    BOOST_TEST_REQUIRE(!place, bad);
    BOOST_TEST((place.error().code() == error_code::usage), bad);
  }
}

BOOST_AUTO_TEST_CASE(all_addresses_of_a_name_are_found_beside_those_of_another) {  // DJ-1
  io_loop loop;
  beside also;
  std::vector<rendezvous::place> found;
  troupe::dns_discovery d({{"localhost", 7000}}, &also, loop);
  const auto take = [&](std::vector<rendezvous::place> more) {
    found.insert(found.end(), more.begin(), more.end());
  };
  d.look({}, take);
  d.look({}, take);  // the lookup goes on, or has just been: it is not begun again
  const auto has = [&](const std::string& place) {
    return std::ranges::count(found, place, &rendezvous::place::address);
  };
  wait_until("the name was looked up", [&] { return loop.poll(1), has("127.0.0.1:7000") > 0; });
  BOOST_TEST(has("127.0.0.1:7000") == 1);
  BOOST_TEST(has("[::1]:7000") == 1);
  BOOST_TEST(has("10.0.0.1:7") == 2);
  BOOST_TEST(also.looks == 2);
  BOOST_TEST(bool(d.announce({})));
  BOOST_TEST(also.announced == 1);
}

BOOST_AUTO_TEST_CASE(a_name_without_addresses_finds_nobody_and_may_go_at_any_time) {  // DJ-2
  io_loop loop;
  int calls = 0;
  {
    troupe::dns_discovery d({{"no-such-name.invalid", 7000}}, nullptr, loop);
    d.look({}, [&](const auto&) { ++calls; });
    BOOST_TEST(bool(d.announce({})));
  }
  loop.poll(0);  // its answer comes to nobody
  BOOST_TEST(calls == 0);
}

BOOST_AUTO_TEST_SUITE_END()
