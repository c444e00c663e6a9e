// Which run has its turn, and what it reads.

#include "troupe/runtime/stores/store_state.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;

namespace {

stored_variable variable_of(const std::string& name, float x) {
  variable_entry e{{tensor::of({x}, {1})}, {}};
  return {name, std::make_shared<const variable_entry>(std::move(e)), 0};
}
float number(const stored_variable& v) { return *v.entry->value.now.data<float>(); }

// Makes variables of these names, each 0.
void make(store_state& s, const std::vector<std::string>& names) {
  auto granted = s.begin({1, {}, names, true});
  BOOST_TEST_REQUIRE(bool(granted));
  BOOST_TEST_REQUIRE(granted->size() == 1U);
  std::vector<stored_variable> all;
  for (const auto& n : names) all.push_back(variable_of(n, 0));
  s.commit(1, std::move(all));
}

std::vector<std::uint64_t> ids(const result<std::vector<store_grant>>& grants) {
  std::vector<std::uint64_t> out;
  if (grants)
    for (const auto& g : *grants) out.push_back(g.id);
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(store_state)

BOOST_AUTO_TEST_CASE(who_changes_what_another_reads_or_changes_waits_in_order) {
  troupe::store_state s;
  make(s, {"a", "b", "c"});
  using list = std::vector<std::uint64_t>;
  BOOST_TEST(ids(s.begin({2, {"a"}, {"b"}})) == list{2});
  BOOST_TEST(ids(s.begin({3, {"b"}, {"c"}})).empty());  // reads what 2 changes
  BOOST_TEST(ids(s.begin({4, {}, {"a"}})).empty());     // changes what 2 reads
  BOOST_TEST(ids(s.begin({5, {"c"}, {}})) == list{5});  // changes nothing
  BOOST_TEST(ids(s.begin({6, {}, {"c"}})).empty());     // not before 3, which waits
  BOOST_TEST(ids(s.commit(2, {variable_of("b", 7)})) == (list{3, 4}));
  BOOST_TEST(ids(s.give_up(3)) == list{6});
  BOOST_TEST(s.give_up(3).empty());
  BOOST_TEST(s.counts().waited == 3U);
  const auto all = s.all();
  BOOST_TEST(number(all.variables[1]) == 7);
  BOOST_TEST(all.variables[1].version == 2U);
  BOOST_TEST(all.version == 2U);
}

BOOST_AUTO_TEST_CASE(a_commit_counts_for_a_granted_request_and_its_own_variables) {
  troupe::store_state s;
  make(s, {"a", "b"});
  BOOST_TEST(s.commit(9, {variable_of("a", 1)}).empty());  // nobody asked
  BOOST_TEST(ids(s.begin({2, {}, {"a"}})).size() == 1U);
  BOOST_TEST(ids(s.begin({3, {}, {"a"}})).empty());
  BOOST_TEST(s.commit(3, {variable_of("a", 2)}).empty());  // not its turn
  BOOST_TEST(number(s.all().variables[0]) == 0);
  s.commit(2, {variable_of("a", 3), variable_of("b", 4), variable_of("d", 5)});
  BOOST_TEST_REQUIRE(s.all().variables.size() == 2U);
  BOOST_TEST(number(s.all().variables[0]) == 3);
  BOOST_TEST(number(s.all().variables[1]) == 0);
}

BOOST_AUTO_TEST_CASE(who_wants_all_waits_for_all_and_has_what_is_there_then) {
  troupe::store_state s;
  make(s, {"a"});
  BOOST_TEST(ids(s.begin({2, {}, {"b"}, true})).size() == 1U);
  BOOST_TEST(ids(s.begin({.id = 3, .all = true})).empty());
  BOOST_TEST(ids(s.begin({4, {"a"}, {"a"}})).empty());
  const auto next = s.commit(2, {variable_of("b", 1)});
  BOOST_TEST_REQUIRE(next.size() == 1U);
  BOOST_TEST(next[0].writes.variables.size() == 2U);
  BOOST_TEST(s.commit(3, {variable_of("c", 1)}).size() == 1U);
  BOOST_TEST(s.all().variables.size() == 3U);
  const auto version = s.version();
  s.commit(4, {});
  BOOST_TEST(s.version() == version);  // nothing has changed
}

BOOST_AUTO_TEST_CASE(what_is_not_there_is_named) {
  troupe::store_state s;
  make(s, {"a"});
  const auto none = s.begin({2, {"a", "x"}, {"x", "y"}});
  BOOST_TEST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::not_found));
  BOOST_TEST(none.error().message().find("no variable 'x', 'y': initialize") != std::string::npos,
             none.error().message());
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back("v" + std::to_string(i));
  BOOST_TEST(s.begin({3, many, {}}).error().message().find("'v7' and 12 more") !=
             std::string::npos);
  BOOST_TEST(s.counts().commits == 1U);
}

// Many requests at once, in random order: each adds 1 to what it changes, and writes down what it
// read. Whatever ran side by side, all of it is as if they had run in the order of their requests,
// as far as they have to do with each other.
BOOST_AUTO_TEST_CASE(runs_side_by_side_have_the_effects_of_some_order) {
  const std::vector<std::string> names{"a", "b", "c", "d", "e"};
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    troupe::store_state s;
    make(s, names);
    std::map<std::string, int> commits;  // by variable
    std::map<std::uint64_t, store_request> open;
    std::map<std::uint64_t, store_grant> granted;
    std::set<std::uint64_t> told;
    const auto some = [&](unsigned one_in) {
      std::vector<std::string> out;
      for (const auto& n : names)
        if (random() % one_in == 0) out.push_back(n);
      return out;
    };
    const auto take = [&](std::vector<store_grant> grants) {
      for (auto& g : grants) {
        BOOST_TEST_REQUIRE(told.insert(g.id).second);
        for (const auto* view : {&g.reads, &g.writes})
          for (const auto& v : view->variables)
            BOOST_TEST_REQUIRE(number(v) == static_cast<float>(commits[v.name]));
        if (const auto at = open.find(g.id); at != open.end()) granted.emplace(g.id, std::move(g));
      }
    };
    std::uint64_t next = 10;
    for (int move = 0; move < 200; ++move) {
      const bool asks = move < 150 && (granted.empty() || random() % 2 == 0);
      if (asks) {
        store_request r{next++, some(3), some(3)};
        if (!r.writes.empty()) open.emplace(r.id, r);
        auto grants = s.begin(r);
        BOOST_TEST_REQUIRE(bool(grants));
        BOOST_TEST_REQUIRE((!r.writes.empty() || grants->size() == 1U));
        take(std::move(*grants));
      } else if (!granted.empty() && random() % 5 != 0) {
        auto at = std::next(granted.begin(), static_cast<long>(random() % granted.size()));
        const auto id = at->first;
        std::vector<stored_variable> changes;
        for (const auto& v : at->second.writes.variables) {
          BOOST_TEST_REQUIRE(number(v) == static_cast<float>(commits[v.name]));  // nobody else did
          changes.push_back(variable_of(v.name, number(v) + 1));
        }
        for (const auto& v : at->second.reads.variables)
          BOOST_TEST_REQUIRE(number(v) == static_cast<float>(commits[v.name]));
        for (const auto& c : changes) ++commits[c.name];
        granted.erase(at);
        open.erase(id);
        take(s.commit(id, std::move(changes)));
      } else if (!open.empty()) {
        const auto at = std::next(open.begin(), static_cast<long>(random() % open.size()));
        const auto id = at->first;
        granted.erase(id);
        open.erase(at);
        take(s.give_up(id));
      }
    }
    // Nobody waits for ever: the oldest always has its turn.
    while (!open.empty()) {
      BOOST_TEST_REQUIRE(granted.contains(open.begin()->first));
      const auto id = open.begin()->first;
      granted.erase(id);
      open.erase(id);
      take(s.give_up(id));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
