// Which stages run where, what nodes are told of them, and what they refuse.

#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

using namespace troupe;

namespace {

struct scaled {
  int factor = 1;
  static constexpr auto fields = troupe::fields<&scaled::factor>("factor");
  int operator()(int x) const { return x * factor; }
};
struct drops {
  void operator()(int) {}
};
struct adds_up {
  int sum = 0;
  static constexpr auto fields = troupe::fields<&adds_up::sum>("sum");
  int operator()(int x) { return sum += x; }
};
struct hides_members {
  int factor = 1;
  int operator()(int x) const { return x * factor; }
};
struct opaque {
  int x = 0;
};
struct makes_opaque {
  opaque operator()(int x) const { return {x}; }
};
int doubled(int x) { return 2 * x; }
struct otherwise_scaled {
  double factor = 1;
  static constexpr auto fields = troupe::fields<&otherwise_scaled::factor>("factor");
  int operator()(int x) const { return static_cast<int>(x * factor); }
};
struct other_items {
  std::int64_t operator()(std::int64_t x) const { return x; }
};

const stage_library& stages() {
  static const stage_library all(
      "numbers", "1.0",
      {stage_of<scaled>("scaled"), stage_of<drops>("drops"), stage_of<&doubled>("doubled")});
  return all;
}

const std::vector<place_node> nodes{
    {"n1", "worker", {"rack=1"}}, {"n2", "worker", {"rack=2"}}, {"n3", "ps", {}}};

std::string mistake_of(flow_graph& g) {
  const auto ok = g.check();
  return ok ? "" : ok.error().text();
}
// By the name of its stage, where it runs.
std::string places_of(const flow_graph& g) {
  const auto placed = place_on_nodes(g, nodes);
  if (!placed) return placed.error().text();
  std::string text;
  for (std::size_t i = 0; i < placed->size(); ++i)
    if ((*placed)[i] != 0 && (*placed)[i] != no_process)
      text += (text.empty() ? "" : " ") + g.stages()[i].name + ":" + nodes[(*placed)[i] - 1].name;
  return text;
}
topology_description described(flow_graph& g) {
  BOOST_REQUIRE(g.check());
  auto d = describe(g, *place_on_nodes(g, nodes), {&stages()});
  BOOST_REQUIRE(d);
  d->processes = {{1, "program", ""}, {2, "n1", ""}, {3, "n2", ""}, {4, "n3", ""}};
  return std::move(*d);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(topology_parts)

BOOST_AUTO_TEST_CASE(stages_go_where_on_says) {
  flow_graph g;
  const auto begin = from(g, {1, 2, 3});
  const auto a = map(begin, doubled, {.name = "a", .on = "/job:worker"});
  const auto b = map(a, doubled, {.name = "b", .on = "/job:worker"});    // with the one before
  const auto c = map(b, doubled, {.name = "c", .on = "/label:rack=2"});  // the only one
  const auto d = map(c, doubled, {.name = "d", .on = "/job:worker/task:0"});
  const auto e = map(d, doubled, {.name = "e"});
  const auto f = map(e, doubled, {.name = "f", .on = "/job:worker"});  // with the fewest stages
  const auto h = map(f, doubled, {.name = "h", .replicas = 3, .on = "/job:worker"});
  for_each(h, drops{}, {.name = "i", .on = "/node:n3"});
  BOOST_REQUIRE(g.check());
  BOOST_CHECK_EQUAL(places_of(g), "a:n1 b:n1 c:n2 d:n1 f:n2 h/0:n1 h/1:n2 h/2:n1 i:n3");
}

BOOST_AUTO_TEST_CASE(where_nobody_is_is_told_with_the_line) {
  flow_graph g;
  for_each(from(g, {1}), drops{}, {.on = "/job:gpu"});
  BOOST_REQUIRE(g.check());
  const auto text = places_of(g);
  BOOST_CHECK_MESSAGE(text.find("topology_parts_test.cpp:") != std::string::npos, text);
  BOOST_CHECK_MESSAGE(
      text.find("drops: no node is /job:gpu: there are n1 (/job:worker/task:0) /label:rack=1, "
                "n2 (/job:worker/task:1) /label:rack=2, n3 (/job:ps/task:0)") != std::string::npos,
      text);
  BOOST_CHECK(has_places(g));
}

BOOST_AUTO_TEST_CASE(what_cannot_travel_is_refused_before_anything_runs) {
  const auto refused = [](auto add, const char* why) {
    flow_graph g;
    add(g);
    const auto text = mistake_of(g);
    BOOST_CHECK_MESSAGE(text.find(why) != std::string::npos, text);
    BOOST_CHECK_MESSAGE(text.find("topology_parts_test.cpp:") != std::string::npos, text);
  };
  refused([](auto& g) { for_each(from(g, {1}), drops{}, {.on = "n1"}); }, "drops: .on: ");
  refused([](auto& g) { for_each(from(g, {1}), drops{}, {.on = "/job:worker/gpu:0"}); },
          "a function has no device");
  refused([](auto& g) { collect(map(from(g, {1}), hides_members{}, {.on = "/job:w"})); },
          "hides_members: its function has members that do not go over a wire");
  refused(
      [](auto& g) { for_each(map(from(g, {1}), makes_opaque{}, {.on = "/job:w"}), [](opaque) {}); },
      "makes_opaque: what it makes does not go over a wire");
  refused(
      [](auto& g) {
        for_each(from(g, std::vector<opaque>{{1}}), [](opaque) {}, {.name = "end", .on = "/job:w"});
      },
      "end: its items do not go over a wire");
  refused(
      [](auto& g) {
        const auto loop = feedback<int>(g);
        const auto summed = map(merge(from(g, {1}), loop), adds_up{}, {.on = "/job:w"});
        close(loop, summed);
      },
      "adds_up runs on a node, and so cannot stand in the loop");
  refused([](auto& g) { filter(from(g, {1}), [](int) { return true; }, {.on = "/job:w"}); },
          "filter: a filter runs in the program");
  refused([](auto& g) { source(g, [] { return std::optional<int>(); }, {.on = "/job:w"}); },
          "source: a source runs in the program");
}

BOOST_AUTO_TEST_CASE(a_function_that_stands_in_no_library_is_told) {
  flow_graph g;
  collect(map(from(g, {1}), [](int x) { return x; }, {.name = "mine", .on = "/node:n1"}));
  BOOST_REQUIRE(g.check());
  const auto d = describe(g, *place_on_nodes(g, nodes), {&stages()});
  BOOST_REQUIRE(!d);
  BOOST_CHECK_MESSAGE(d.error().text().find("mine: it is to run on /node:n1, and its function "
                                            "stands in no stage library") != std::string::npos,
                      d.error().text());
}

BOOST_AUTO_TEST_CASE(a_node_has_the_same_stages_bounds_and_policies) {
  flow_graph g;
  const auto letters = dead_letters(g);
  const auto a = map(from(g, {1, 2}), scaled{7},
                     {.name = "a",
                      .blocks = true,
                      .on_error = skip(5),
                      .dead_letters = letters,
                      .on = "/node:n1"});
  collect(a);
  collect(letters);
  const auto d = described(g);
  const auto part = part_of(d, 1, {&stages()});
  BOOST_REQUIRE_MESSAGE(part, (part ? "" : part.error().text()));
  const auto& p = **part;
  BOOST_REQUIRE_EQUAL(p.stages().size(), g.stages().size());
  for (std::size_t i = 0; i < g.stages().size(); ++i) {
    const auto& mine = g.stages()[i];
    const auto& there = p.stages()[i];
    BOOST_CHECK_EQUAL(there.name, mine.name);
    BOOST_CHECK_EQUAL(flow_graph::line_of(there.where), flow_graph::line_of(mine.where));
    BOOST_CHECK(there.in == mine.in && there.out == mine.out);
    BOOST_CHECK_EQUAL(there.is_elsewhere, mine.name != "a");
    BOOST_CHECK_EQUAL(there.make != nullptr, mine.name == "a");
    if (mine.name != "a") continue;
    BOOST_CHECK(there.on_error.what == error_policy::kind::skip);
    BOOST_CHECK_EQUAL(there.on_error.at_most, 5U);
    BOOST_CHECK(there.may_block);
    BOOST_CHECK_EQUAL(there.dead_output, mine.dead_output);
  }
  for (std::size_t i = 0; i < g.edges().size(); ++i) {
    BOOST_CHECK_EQUAL(p.edges()[i].bytes_max, g.edges()[i].bytes_max);
    BOOST_CHECK_GE(p.edges()[i].items_max, g.edges()[i].items_max);
  }
}

BOOST_AUTO_TEST_CASE(what_a_node_lacks_is_said) {
  flow_graph g;
  collect(map(map(from(g, {1, 2}), scaled{7}, {.on = "/node:n1"}), doubled, {.on = "/node:n1"}));
  const auto d = described(g);
  const auto lack = [&](const library_list& libraries) {
    const auto part = part_of(d, 1, libraries);
    return part ? std::string() : part.error().text();
  };
  BOOST_CHECK_EQUAL(lack({&stages()}), "");
  BOOST_CHECK_EQUAL(lack({}), "has no stage library numbers");
  const stage_library older("numbers", "0.9", {stage_of<scaled>("scaled")});
  BOOST_CHECK_EQUAL(lack({&older}), "has numbers 0.9, not 1.0");
  const stage_library fewer("numbers", "1.0", {stage_of<scaled>("scaled")});
  BOOST_CHECK_EQUAL(lack({&fewer}), "has a numbers without doubled");
  const stage_library other(
      "numbers", "1.0", {stage_of<otherwise_scaled>("scaled"), stage_of<other_items>("doubled")});
  BOOST_CHECK_EQUAL(
      lack({&other}),
      "has a scaled whose members are otherwise_scaled{factor:f64}, not scaled{factor:i32}; "
      "has a doubled whose items are i64, not i32");
}

BOOST_AUTO_TEST_CASE(a_library_has_each_name_once) {
  BOOST_CHECK(check_library(stages()));
  const stage_library twice("l", "1", {stage_of<scaled>("a"), stage_of<drops>("a")});
  BOOST_CHECK_EQUAL(check_library(twice).error().text(), "stage library l: two stages are named a");
  const stage_library same("l", "1", {stage_of<scaled>("a"), stage_of<scaled>("b")});
  BOOST_CHECK_EQUAL(check_library(same).error().text(),
                    "stage library l: a and b are the same function");
  const stage_library unnamed("l", "1", {stage_of<scaled>("")});
  BOOST_CHECK(!check_library(unnamed));
}

// Whatever a peer says: a graph, or an error.
BOOST_AUTO_TEST_CASE(descriptions_of_anybody_else_are_refused) {
  flow_graph g;
  collect(map(from(g, {1, 2}), scaled{7}, {.replicas = 2, .on = "/job:worker"}));
  const auto d = described(g);
  const auto good = bytes_of(d);
  std::mt19937_64 random(3);
  std::size_t read = 0, taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto bad = good;
    for (auto n = 1 + random() % 3; n > 0; --n)
      bad[random() % bad.size()] =
          static_cast<std::byte>(random() % 4 == 0 ? random() : random() % 4);
    auto came = value_of<topology_description>(bad);
    if (!came) continue;
    ++read;
    const auto part = part_of(std::move(*came), 1, {&stages()});
    if (!part) continue;
    ++taken;
    const troupe::flow_group runs(*part);
    BOOST_CHECK(!runs.is_over());
  }
  BOOST_CHECK_GT(read, 1000U);
  BOOST_CHECK_LT(taken, read);
  BOOST_CHECK(!part_of(d, 0, {&stages()}));
  BOOST_CHECK(!part_of(d, 9, {&stages()}));
}

BOOST_AUTO_TEST_SUITE_END()
