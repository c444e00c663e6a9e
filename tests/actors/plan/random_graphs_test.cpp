// Random graphs over every op and element type, with gradients: computed at once, in a step with
// and without fusion, and trained over two nodes, they give the same bits.

#include "tests/support/events.hpp"
#include "tests/support/op_cases.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/compile/compile.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

using namespace troupe;
using namespace troupe::op_cases;

namespace {

constexpr std::uint64_t seeds_in_all = 200;
constexpr std::size_t ops_each = 10;
constexpr std::uint64_t weights_seed = 5;

std::uint64_t seeds() {
  const auto* text = std::getenv("TROUPE_SEEDS");
  const auto wanted =
      text == nullptr ? seeds_in_all : std::uint64_t{std::strtoull(text, nullptr, 10)};
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return std::min<std::uint64_t>(wanted, 20);
#else
  return std::min<std::uint64_t>(wanted, seeds_in_all);
#endif
}

// What compilers and readers put into graphs has tests of its own.
const std::set<std::string> others{
    "input",          "variable",      "constant",   "constant_tensor", "idx_batch",  "index_batch",
    "text_batch",     "read",          "after",      "relay",           "pass_if",    "pack_rows",
    "random_uniform", "random_normal", "all_reduce", "reduce_scatter",  "all_gather", "broadcast"};

struct pair {
  std::string op;
  dtype type;
  friend auto operator<=>(const pair&, const pair&) = default;
};

std::vector<pair> all_pairs(const op_table& ops) {
  std::vector<pair> all;
  for (const auto& [name, row] : ops.rows()) {
    if (others.contains(name)) continue;
    for (std::uint8_t n = 0; n < dtype_count; ++n)
      if (row.types.has(dtype{n})) all.push_back({name, dtype{n}});
  }
  return all;
}

// A graph of a seed: the same calls whatever it is built in. Values whose numbers are not all
// finite are not built upon; which ones is found out where values are computed at once.
struct program {
  std::uint64_t seed = 0;
  std::vector<pair> wanted;
  std::vector<bool> is_finite;  // by result, as found by the eager
  bool finds_out = false;
  bool is_apart = false;         // half of the ops on the node of the shards
  std::vector<value> results{};  // of ops, all outputs
  std::vector<value> weights{};
  value loss{};

  void build(graph& g, const std::function<bool(value)>& check) {
    drawer d(seed);
    for (int k = 0; k < 2; ++k)
      weights.push_back(variable(g, {dtype::f32, {2 + k, 2}},
                                 {initializer_spec::kind::uniform, 0.5}, fmt::format("w{}", k)));
    std::vector<value> pool = weights;
    for (const auto& [op, type] : wanted) {
      auto c = draw(d, op, *g.ops().find(op), type);
      for (int tries = 0; !c && tries < 20; ++tries) c = draw(d, op, *g.ops().find(op), type);
      BOOST_TEST_REQUIRE(c.has_value(), op);
      const bool is_there = d.coin();
      const auto device =
          g.device_scope(is_apart && is_there ? "/job:ps/task:0" : "/job:worker/task:0");
      std::vector<value> operands;
      for (const auto& a : c->operands) {
        auto x = constant(g, to_tensor(a));
        const auto from =
            pool[static_cast<std::size_t>(d.below(static_cast<std::int64_t>(pool.size())))];
        if (floating.has(a.spec.type)) x = mul(x, factor(from, a.spec.type));
        operands.push_back(x);
      }
      const auto y = g.add(op, operands, c->attrs, "op", source_location::current());
      BOOST_TEST_REQUIRE(y.is_valid(), (g.first_error() ? g.first_error()->text() : op));
      for (std::uint32_t k = 0; k < g.node(y.node).outputs.size(); ++k) {
        const value result{&g, y.node, k};
        results.push_back(result);
        if (finds_out) is_finite.push_back(check(result));
        if (floating.has(result.spec().type) && is_finite[results.size() - 1])
          pool.push_back(result);
      }
    }
    const auto device = g.device_scope("/job:worker/task:0");
    for (const auto& v : pool) {
      const auto part = troupe::tanh(reduce_sum(v) * 0.01);
      loss = loss.is_valid() ? loss + cast(part, dtype::f32) : cast(part, dtype::f32);
    }
  }

  // Near 1, and another number for other values.
  static value factor(value from, dtype type) {
    return cast(troupe::tanh(reduce_sum(from) * 0.01) * 0.1 + 1, type);
  }
};

std::vector<std::byte> bytes_of(const tensor& t) {
  const auto all = std::as_const(t).bytes();
  return {all.begin(), all.end()};
}

bool has_finite_numbers(const tensor& t) {
  for (std::int64_t i = 0; i < t.elements(); ++i)
    if (!std::isfinite(element(t, static_cast<std::size_t>(i)))) return false;
  return true;
}

struct outcome {
  std::vector<tensor> values;          // results of ops, the loss, gradients
  std::vector<tensor> weights;         // in the beginning
  std::vector<std::size_t> gradients;  // places of them in `values`
};

outcome at_once(session& s, program& p) {
  const auto e = s.eager(weights_seed);
  p.build(*e, [&](value v) { return has_finite_numbers(*e->read(v)); });
  outcome o;
  const auto add = [&](value v) {
    const auto t = e->read(v);
    BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
    o.values.push_back(*t);
  };
  for (const auto& v : p.results) add(v);
  add(p.loss);
  for (const auto& g : gradients(*e, p.loss, p.weights))
    o.gradients.push_back(o.values.size()), add(g);
  for (const auto& w : p.weights) o.weights.push_back(*e->read(w));
  BOOST_TEST_REQUIRE(!e->first_error().has_value(),
                     (e->first_error() ? e->first_error()->text() : ""));
  return o;
}

// Without one pass of the compiler, each in turn.
struct pass_choice {
  const char* without;
  compile_options options;
};
std::vector<pass_choice> all_passes_but_one(std::uint64_t turn) {
  static const std::vector<pass_choice> others{
      {"fold", {.fold = false}},
      {"simplify", {.simplify = false}},
      {"share", {.share = false}},
      {"share_memory", {.share_memory = false}},
      {"fuse and share_memory", {.fuse = false, .share_memory = false}}};
  return {{"none", {}},
          {"fuse", {.fuse = false}},
          others[turn % others.size()],
          {"none, on a device", {.device = "/gpu:0"}},
          {"fuse, on a device", {.fuse = false, .device = "/gpu:0"}}};
}

std::vector<tensor> in_a_step(session& s, program p, const outcome& expected,
                              compile_options options) {
  graph g(s.ops());
  p.build(g, {});
  auto fetches = p.results;
  fetches.push_back(p.loss);
  for (const auto& d : gradients(g, p.loss, p.weights)) fetches.push_back(d);
  BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                     (g.first_error() ? g.first_error()->text() : ""));
  auto steps = s.compile(g, fetches, options);
  BOOST_TEST_REQUIRE(bool(steps), (steps ? "" : steps.error().text()));
  std::vector<std::pair<std::string_view, tensor>> feeds;
  for (std::size_t k = 0; k < p.weights.size(); ++k)
    feeds.emplace_back(g.node(p.weights[k].node).name, expected.weights[k]);
  auto values = (*steps)->step(feeds);
  BOOST_TEST_REQUIRE(bool(values), (values ? "" : values.error().text()));
  return *values;
}

// Weights after one step of plain SGD with a rate of 1.
std::map<std::string, tensor> trained(session& s, program p) {
  graph g(s.ops());
  p.build(g, {});
  auto run = s.train(g, p.loss,
                     {.optimizer = sgd({.learning_rate = 1}), .seed = weights_seed, .steps = 1});
  BOOST_TEST_REQUIRE(bool(run), (run ? "" : run.error().text()));
  std::map<std::string, tensor> weights;
  while (auto e = test::next_event(**run)) {
    BOOST_TEST_REQUIRE((e->type != training_event::kind::failed), e->text);
    if (e->type == training_event::kind::variables)
      for (const auto& [name, t] : e->variables) weights[name] = t;
  }
  return weights;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(random_graphs)

BOOST_AUTO_TEST_CASE(
    graphs_of_every_op_and_type_have_the_same_bits_at_once_in_steps_and_over_two_nodes) {
  test::two_nodes nodes("graphs");
  auto alone = session::open({.roles = {"/job:worker/task:0", "/job:ps/task:0"}, .gpus = "host:1"});
  BOOST_TEST_REQUIRE(bool(alone));

  const auto pairs = all_pairs((*alone)->ops());
  std::set<pair> reached;
  std::size_t compared = 0, slopes = 0, moving = 0;  // moving: neither 0 nor without a number
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      program p{.seed = seed, .wanted = {}, .is_finite = {}, .finds_out = true};
      for (std::size_t k = 0; k < ops_each; ++k)
        p.wanted.push_back(pairs[(seed * ops_each + k) * 7 % pairs.size()]);
      reached.insert(p.wanted.begin(), p.wanted.end());
      auto first = p;
      const auto expected = at_once(**alone, first);
      p.is_finite = first.is_finite;
      p.finds_out = false;
      auto choices = all_passes_but_one(seed);
      auto over_nodes = choices[seed % 3];
      over_nodes.without = "none, over two nodes and the program";
      choices.push_back(over_nodes);
      for (const auto& [without, options] : choices) {
        const bool is_over_nodes = &without == &choices.back().without;
        p.is_apart = is_over_nodes;
        const auto values =
            in_a_step(is_over_nodes ? nodes.client() : **alone, p, expected, options);
        BOOST_TEST_REQUIRE(values.size() == expected.values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          BOOST_TEST_REQUIRE((values[i].spec() == expected.values[i].spec()),
                             to_string(values[i].spec())
                                 << " and " << to_string(expected.values[i].spec()));
          BOOST_TEST(
              (bytes_of(values[i]) == bytes_of(expected.values[i])),
              "value " << i << ", without pass " << without << ", " << to_string(values[i].spec()));
          ++compared;
        }
      }
      p.is_apart = true;
      const auto weights = trained(nodes.client(), p);
      BOOST_TEST_REQUIRE(weights.size() == expected.weights.size());
      for (std::size_t k = 0; k < expected.weights.size(); ++k) {
        const auto& before = expected.weights[k];
        const auto& slope = expected.values[expected.gradients[k]];
        const auto& after = weights.at(fmt::format("w{}", k));
        for (std::int64_t i = 0; i < before.elements(); ++i, ++slopes)
          BOOST_TEST(after.data<float>()[i] == before.data<float>()[i] - slope.data<float>()[i],
                     "w" << k << ", element " << i);
        moving += static_cast<std::size_t>(
            std::count_if(slope.data<float>(), slope.data<float>() + slope.elements(),
                          [](float x) { return std::isfinite(x) && x != 0; }));
        ++compared;
      }
    }
  BOOST_TEST_MESSAGE(fmt::format(
      "{} graphs, {} of {} ops and types, {} tensors compared, {} of {} slopes are not 0", seeds(),
      reached.size(), pairs.size(), compared, moving, slopes));
  BOOST_TEST(moving > slopes * 9 / 10);
  if (seeds() == seeds_in_all)
    for (const auto& want : pairs)
      BOOST_TEST(reached.contains(want),
                 want.op << " of " << to_string(want.type) << " is in no graph");
}

BOOST_AUTO_TEST_SUITE_END()
