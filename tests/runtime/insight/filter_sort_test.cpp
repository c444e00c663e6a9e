#include "troupe/runtime/insight/filter_sort.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <tuple>
#include <vector>

using namespace troupe;

namespace {

std::vector<actor_snapshot> some_actors() {
  std::vector<actor_snapshot> all;
  for (const auto& [id, name, busy, state] :
       {std::tuple("n1.10", "Decode", 0.5, actor_state::running),
        {"n1.2", "read", 0.0, actor_state::waiting_for_credit},
        {"n2.1", "train", 0.94, actor_state::running},
        {"n1.1", "write", 0.5, actor_state::waiting_for_input}}) {
    actor_snapshot a;
    a.id = id, a.name = name, a.busy_ratio = busy, a.state = state;
    a.node = a.id.substr(0, 2);
    a.since_seconds = busy;
    all.push_back(a);
  }
  return all;
}

std::string ids(const selection& s) {
  auto all = some_actors();
  const auto number = select(all, s);
  BOOST_TEST_REQUIRE(bool(number));
  std::string out;
  for (const auto& a : all) out += a.id + " ";
  return out;
}

void check_refused(const selection& s, const std::string& part) {
  auto all = some_actors();
  const auto number = select(all, s);
  BOOST_TEST_REQUIRE(!number, part);
  BOOST_TEST((number.error().code() == error_code::usage));
  BOOST_TEST(number.error().message().find(part) != std::string::npos, number.error().message());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(filter_sort)

BOOST_AUTO_TEST_CASE(conditions_hold_together) {  // FI-1
  BOOST_TEST(ids({}) == "n1.10 n1.2 n2.1 n1.1 ");
  BOOST_TEST(ids({{"state=running"}}) == "n1.10 n2.1 ");
  BOOST_TEST(ids({{"state=running", "node=n1"}}) == "n1.10 ");
  BOOST_TEST(ids({{"state!=running"}}) == "n1.2 n1.1 ");
  BOOST_TEST(ids({{"name~DE"}}) == "n1.10 ");
  BOOST_TEST(ids({{"name!~r"}}) == "n1.10 ");
  BOOST_TEST(ids({{"busy_ratio>0.5"}}) == "n2.1 ");
  BOOST_TEST(ids({{"busy_ratio>=0.5"}}) == "n1.10 n2.1 n1.1 ");
  BOOST_TEST(ids({{"busy_ratio<0.5"}}) == "n1.2 ");
  BOOST_TEST(ids({{"busy_ratio<=0.5"}}) == "n1.10 n1.2 n1.1 ");
  BOOST_TEST(ids({{"busy_ratio=0.94"}}) == "n2.1 ");
  BOOST_TEST(ids({{"busy_ratio!=0.50"}}) == "n1.2 n2.1 ");
  BOOST_TEST(ids({{"since_seconds>=500ms"}}) == "n1.10 n2.1 n1.1 ");
  BOOST_TEST(ids({{"state==running"}}) == "n1.10 n2.1 ");
  BOOST_TEST(ids({{"bytes_in<1KiB"}}) == "n1.10 n1.2 n2.1 n1.1 ");
  BOOST_TEST(ids({{"bytes_in>=1MiB"}}).empty());
  BOOST_TEST(ids({{"id<n1.9"}}) == "n1.2 n1.1 ");
  BOOST_TEST(ids({{"job="}}) == "n1.10 n1.2 n2.1 n1.1 ");
}

BOOST_AUTO_TEST_CASE(items_of_lists_are_compared_one_by_one) {  // FI-1
  std::vector<node_snapshot> nodes(3);
  nodes[0].name = "a", nodes[0].labels = {"rack=3", "fast=yes"};
  nodes[1].name = "b", nodes[1].labels = {"rack=4"};
  nodes[2].name = "c";
  auto some = nodes;
  BOOST_TEST(*select(some, {{"labels=rack=3"}}) == 1U);
  BOOST_TEST(some[0].name == "a");
  some = nodes;
  BOOST_TEST(*select(some, {{"labels~rack"}}) == 2U);
  some = nodes;
  BOOST_TEST(*select(some, {{"labels!=rack=3"}}) == 2U);
  some = nodes;
  BOOST_TEST(*select(some, {{}, "labels:desc"}) == 3U);
  BOOST_TEST(some[0].name == "b");
}

BOOST_AUTO_TEST_CASE(equals_stay_in_their_order_and_numbers_in_names_are_numbers) {  // FI-2
  BOOST_TEST(ids({{}, "id"}) == "n1.1 n1.2 n1.10 n2.1 ");
  BOOST_TEST(ids({{}, "id:desc"}) == "n2.1 n1.10 n1.2 n1.1 ");
  BOOST_TEST(ids({{}, "busy_ratio:desc"}) == "n2.1 n1.10 n1.1 n1.2 ");
  BOOST_TEST(ids({{}, "busy_ratio:asc"}) == "n1.2 n1.10 n1.1 n2.1 ");
  BOOST_TEST(ids({{}, "busy_ratio:desc", 1}) == "n2.1 ");
  auto all = some_actors();
  BOOST_TEST(*select(all, {{"state=running"}, "", 1}) == 2U);  // without the limit
  std::vector<job_snapshot> none;
  BOOST_TEST(*select(none, {{"state=running"}, "step", 3}) == 0U);
}

BOOST_AUTO_TEST_CASE(mistakes_say_what_there_is) {  // FI-3
  check_refused({{"busy>1"}}, "there is no key 'busy', perhaps 'busy_ratio'; there are id, kind");
  check_refused({{"running"}}, "'running' is no condition");
  check_refused({{"=x"}}, "is no condition");
  check_refused({{"!x"}}, "is no condition");
  check_refused({{""}}, "is no condition");
  check_refused({{"busy_ratio>much"}}, "busy_ratio is a number, and 'much' is none");
  check_refused({{"bytes_in>1x"}}, "bytes_in is a number, and '1x' is none");
  check_refused({{"steps>1s"}}, "'1s' is none");
  check_refused({{"steps=nan"}}, "'nan' is none");
  check_refused({{"busy_ratio~5"}}, "which is compared by");
  check_refused({{}, "busy"}, "--sort: there is no key 'busy'");
  check_refused({{}, "id:up"}, "'up' is no order");
}

BOOST_AUTO_TEST_SUITE_END()
