// The largest gradient is made before those that need not be there for it.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;

namespace {

using model = std::function<value(graph&)>;

training_spec spec(std::uint32_t workers, std::uint32_t tasks, bool all_reduce = true) {
  training_spec s;
  s.workers = workers;
  s.all_reduce = all_reduce;
  s.steps = 20;
  for (std::uint32_t t = 0; t < tasks; ++t)
    s.task_names.push_back(fmt::format("/job:worker/task:{}", t));
  for (std::uint32_t w = 0; w < workers; ++w) s.worker_task.push_back(w % tasks);
  s.shard_task = {0};
  s.client_task = tasks;
  s.task_names.push_back("/job:client/task:0");
  s.tasks = tasks + 1;
  return s;
}

plan made(const model& m, const training_spec& s, compile_options o = {}) {
  const auto ops = make_op_table();
  graph g(ops);
  auto p = compile_training(g, m(g), s, o);
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  return std::move(*p);
}

// Layers of these widths behind inputs of 784.
model layers_of(std::vector<std::int64_t> widths) {
  return [widths](graph& g) {
    auto x = input(g, {dtype::f32, {32, 784}}, "x");
    for (std::size_t i = 0; i < widths.size(); ++i)
      x = relu(dense(x, widths[i], fmt::format("dense_{}", i + 1)));
    return reduce_sum(x);
  };
}

std::vector<std::uint32_t> gates(const plan& p) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < p.actors.size(); ++i)
    if (p.actors[i].name.ends_with("/after_largest")) out.push_back(i);
  return out;
}

std::uint32_t producer(const plan& p, std::uint32_t actor, std::size_t input) {
  return p.edges[p.actors[actor].inputs[input]].from.actor;
}

// All that `actor` needs within a step.
std::set<std::uint32_t> needed_by(const plan& p, std::uint32_t actor) {
  std::set<std::uint32_t> seen;
  std::vector<std::uint32_t> open{actor};
  while (!open.empty()) {
    const auto i = open.back();
    open.pop_back();
    if (!seen.insert(i).second || p.actors[i].kind == actor_kind::shard) continue;
    for (std::size_t k = 0; k < p.actors[i].inputs.size(); ++k) open.push_back(producer(p, i, k));
  }
  return seen;
}

// Who makes worker w's gradient of a variable.
std::uint32_t maker_of(const plan& p, std::string_view variable, std::uint32_t worker) {
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
    if (p.actors[i].kind != actor_kind::shard || p.actors[i].shard.variable != variable) continue;
    auto rank = producer(p, i, 0);
    if (p.actors[rank].kind != actor_kind::collective) continue;
    const auto& from = p.edges[p.actors[i].inputs[0]].from;
    const auto& c = *p.actors[rank].collective;
    const auto at = std::find(c.workers.begin(), c.workers.end(), worker);
    if (at == c.workers.end()) continue;
    auto maker =
        producer(p, rank, static_cast<std::size_t>(at - c.workers.begin()) * c.tensors + from.port);
    while (p.actors[maker].forwards_input) maker = producer(p, maker, 0);
    return maker;
  }
  BOOST_REQUIRE_MESSAGE(false, "no gradient of " << variable);
  return 0;
}

// No actor needs itself within a step, but by ranks, which take turns.
void has_no_cycle(const plan& p) {
  std::vector<std::uint32_t> missing(p.actors.size()), ready;
  std::vector<std::vector<std::uint32_t>> consumers(p.actors.size());
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
    if (p.actors[i].kind == actor_kind::shard) continue;
    for (std::size_t k = 0; k < p.actors[i].inputs.size(); ++k) {
      const auto from = producer(p, i, k);
      if (p.actors[i].kind == actor_kind::collective &&
          p.actors[from].kind == actor_kind::collective)
        continue;
      consumers[from].push_back(i);
      ++missing[i];
    }
  }
  for (std::uint32_t i = 0; i < p.actors.size(); ++i)
    if (missing[i] == 0) ready.push_back(i);
  std::size_t done = 0;
  while (!ready.empty()) {
    const auto i = ready.back();
    ready.pop_back();
    ++done;
    for (const auto c : consumers[i])
      if (--missing[c] == 0) ready.push_back(c);
  }
  BOOST_TEST(done == p.actors.size());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(order_pushes)

BOOST_AUTO_TEST_CASE(what_the_first_layer_does_not_need_waits_for_its_gradient) {
  const auto m = layers_of({256, 128, 10});
  const auto p = made(m, spec(2, 2)), without = made(m, spec(2, 2), {.order_pushes = false});
  BOOST_TEST(gates(without).empty());
  for (const std::uint32_t w : {0U, 1U}) {
    const auto first = maker_of(p, "dense_1/weights", w);
    for (const auto* later :
         {"dense_2/weights", "dense_3/weights", "dense_2/bias", "dense_3/bias", "dense_1/bias"}) {
      const auto maker = maker_of(p, later, w);
      if (maker == first) continue;  // one group makes both
      BOOST_TEST((needed_by(p, maker).contains(first) || needed_by(p, first).contains(maker)),
                 later << " of worker " << w);
    }
    BOOST_TEST(!needed_by(without, maker_of(without, "dense_2/weights", w))
                    .contains(maker_of(without, "dense_1/weights", w)));
    BOOST_TEST(needed_by(p, maker_of(p, "dense_2/weights", w)).contains(first));
  }
  has_no_cycle(p);
  BOOST_TEST(bool(check(p)));
}

BOOST_AUTO_TEST_CASE(several_workers_of_a_node_wait_for_their_own) {
  const auto p = made(layers_of({256, 128, 10}), spec(4, 2));
  for (std::uint32_t w = 0; w < 4; ++w)
    for (std::uint32_t other = 0; other < 4; ++other)
      BOOST_TEST(needed_by(p, maker_of(p, "dense_2/weights", w))
                     .contains(maker_of(p, "dense_1/weights", other)) == (w == other));
  has_no_cycle(p);
}

BOOST_AUTO_TEST_CASE(nobody_waits_where_nothing_is_won) {
  BOOST_TEST(gates(made(layers_of({256, 128, 10}), spec(2, 2, false))).empty());  // no exchange
  BOOST_TEST(gates(made(layers_of({256, 128, 10}), spec(2, 1))).empty());         // of one task
  // Layers of one size.
  BOOST_TEST(gates(made(layers_of({784, 784, 784}), spec(2, 2))).empty());
  BOOST_TEST(gates(made(layers_of({64, 10}), spec(2, 2))).empty());  // a small one
}

BOOST_AUTO_TEST_CASE(the_plan_says_so) {
  compile_report report;
  made(layers_of({256, 128, 10}), spec(2, 2), {.report = &report});
  const auto pass = std::find_if(report.passes.begin(), report.passes.end(),
                                 [](const auto& r) { return r.pass == "order_pushes"; });
  BOOST_TEST_REQUIRE((pass != report.passes.end()));
  BOOST_TEST_REQUIRE(pass->changes.size() == 1U);
  BOOST_TEST(
      pass->changes[0].what.find("its gradient is 802816 of 940584 bytes") != std::string::npos,
      pass->changes[0].what);
}

// Layers that branch and come together, with variables of any size, and collectives of the
// program's between them.
BOOST_AUTO_TEST_CASE(no_actor_waits_for_itself_whatever_the_graph) {
  std::size_t all_gates = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const model m = [seed](graph& g) {
      std::mt19937 random(seed);
      std::vector<value> values{dense(input(g, {dtype::f32, {8, 4096}}, "x"), 64, "first")};
      const auto layers = 2 + random() % 6;
      for (std::uint32_t i = 0; i < layers; ++i) {
        const auto from = values[random() % values.size()];
        const auto wide = random() % 4 == 0 ? 2048 : 64;
        auto y =
            dense(relu(dense(from, wide, fmt::format("up_{}", i))), 64, fmt::format("down_{}", i));
        if (random() % 3 == 0) y = y + values[random() % values.size()];
        if (random() % 4 == 0) y = all_reduce(y);
        values.push_back(y);
      }
      auto sum = reduce_sum(values.back());
      for (const auto& v : values) sum = sum + reduce_mean(v);
      return sum;
    };
    const auto p = made(m, spec(3, 3));
    has_no_cycle(p);
    BOOST_TEST(bool(check(p)));
    all_gates += gates(p).size();
  }
  BOOST_TEST(all_gates > 0U);
}

BOOST_AUTO_TEST_SUITE_END()
