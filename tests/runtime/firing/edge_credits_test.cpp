// Where the credits of a plan's edges lie.

#include "troupe/runtime/firing/edge_credits.hpp"
#include "troupe/runtime/graph/build.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

using namespace troupe;

namespace {

// 40 ops in turns on stream 0 and 1, each with a consumer on its own stream and one on the other.
plan two_streams() {
  const auto ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4}}, "x");
  std::vector<value> out;
  for (int i = 0; i < 40; ++i) {
    const auto on = [&](int stream) { return g.device_scope(fmt::format("/cpu:{}", stream)); };
    const auto here = on(i % 2);
    const auto y = neg(x);
    out.push_back(abs(y));
    const auto there = on(1 - i % 2);
    out.push_back(exp(y));
  }
  const auto p = compile_steps(g, out, {.fuse = false, .credits = 3, .share = false});
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  return *p;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(edge_credits)

BOOST_AUTO_TEST_CASE(each_edge_has_its_credits_and_no_line_is_that_of_two_pairs_of_streams) {
  auto p = two_streams();
  for (std::size_t i = 0; i < p.edges.size(); ++i)
    p.edges[i].credits = static_cast<std::uint32_t>(1 + i % 7);
  for (const std::uint32_t streams : {1U, 2U, 3U}) {
    const troupe::edge_credits credits(p, streams);
    std::map<std::uintptr_t, std::set<std::pair<std::uint32_t, std::uint32_t>>> pairs_of;
    std::set<const edge_credit*> all;
    for (std::size_t i = 0; i < p.edges.size(); ++i) {
      const auto& e = p.edges[i];
      BOOST_TEST(credits[i].initial() == static_cast<std::int32_t>(1 + i % 7));
      BOOST_TEST(credits[i].free() == credits[i].initial());
      all.insert(&credits[i]);
      pairs_of[reinterpret_cast<std::uintptr_t>(&credits[i]) / 64].insert(
          {p.actors[e.from.actor].stream % streams, p.actors[e.to.actor].stream % streams});
    }
    BOOST_TEST(all.size() == p.edges.size());
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (const auto& [line, pairs] : pairs_of) {
      BOOST_TEST(pairs.size() == 1U);
      seen.insert(pairs.begin(), pairs.end());
    }
    BOOST_TEST(seen.size() == (streams == 1 ? 1U : 4U));
  }
}

BOOST_AUTO_TEST_CASE(actors_are_made_stream_by_stream_each_in_its_order) {
  const auto p = two_streams();
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) all.push_back(i);
  BOOST_TEST(by_stream(p, all, 1) == all, boost::test_tools::per_element());
  const auto sorted = by_stream(p, all, 2);
  BOOST_TEST(sorted.size() == all.size());
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const auto a = p.actors[sorted[i - 1]].stream, b = p.actors[sorted[i]].stream;
    BOOST_TEST((a < b || (a == b && sorted[i - 1] < sorted[i])));
  }
}

BOOST_AUTO_TEST_CASE(a_plan_without_edges_has_no_credits) {
  const troupe::edge_credits none(plan{}, 2);
  BOOST_TEST(by_stream(plan{}, {}, 2).empty());
}

BOOST_AUTO_TEST_SUITE_END()
