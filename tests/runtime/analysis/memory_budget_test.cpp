#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/graph/build.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <limits>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(memory_budget)

BOOST_AUTO_TEST_CASE(every_credit_is_a_buffer_and_so_is_what_is_being_written) {
  const auto ops = make_op_table();
  graph g(ops);
  const value y = relu(input(g, {dtype::f32, {1000}}, "x"));
  for (const std::uint32_t credits : {1u, 2u, 7u}) {
    compile_options o;
    o.credits = credits;
    const auto p = compile_steps(g, {&y, 1}, o);
    BOOST_REQUIRE(p);
    const auto need = memory_of_part(*p, 0);
    BOOST_TEST(need.bytes == 2u * (1u + credits) * 4000u);  // the feed's and the op's
    BOOST_REQUIRE(!need.largest.empty());
    BOOST_TEST(need.largest.front().bytes == (1u + credits) * 4000u);
    BOOST_TEST(memory_of_part(*p, 1).bytes == 0u);
  }
}

// Values, slots; where it may go back or end early (recovery, cuts) both of the version before;
// with cuts those that are being written; a spare for each version that is out.
BOOST_AUTO_TEST_CASE(a_shard_holds_every_slot_of_its_optimizer_for_each_version) {
  const auto ops = make_op_table();
  const std::pair<optimizer_spec, std::uint64_t> optimizers[] = {
      {{}, 1}, {adam({}), 2}, {rmsprop({.momentum = 0.5, .centered = true}), 3}};
  for (const auto& [optimizer, slots] : optimizers)
    for (const bool is_recoverable : {false, true})
      for (const bool has_cuts : {false, true}) {
        graph g(ops);
        training_spec s;
        s.optimizer = optimizer;
        s.is_recoverable = is_recoverable;
        s.has_cuts = has_cuts;
        const auto w = variable(g, {dtype::f32, {1000}}, {}, "w");
        const auto p = compile_training(g, reduce_sum(mul(w, w)), s, {});
        BOOST_REQUIRE(p);
        const auto shard = std::find_if(p->actors.begin(), p->actors.end(),
                                        [](const auto& a) { return a.kind == actor_kind::shard; });
        std::uint64_t credits = 0;
        for (const auto& port : shard->outputs)
          for (const auto e : port) credits = std::max<std::uint64_t>(credits, p->edges[e].credits);
        const bool may_go_back = is_recoverable || has_cuts;
        const auto versions = 1 + std::uint64_t{may_go_back} + std::uint64_t{has_cuts};
        plan alone = *p;
        alone.actors = {*shard};
        alone.buffers.clear();
        BOOST_TEST(memory_of_part(alone, 0).bytes == (versions * (1 + slots) + credits) * 4000);
      }
}

BOOST_AUTO_TEST_CASE(sizes_beyond_all_memory_saturate) {
  plan p;
  p.tasks.resize(1);
  planned_actor a;
  a.name = "huge";
  a.output_specs = {{dtype::f64, {std::numeric_limits<std::int64_t>::max() / 8}}};
  a.outputs = {{0}};
  p.actors = {a};
  planned_edge e;
  e.credits = 4096;
  p.edges = {e};
  const auto need = memory_of_part(p, 0);
  BOOST_TEST(need.bytes == std::numeric_limits<std::uint64_t>::max());
  BOOST_REQUIRE(!need.largest.empty());
  BOOST_TEST(need.largest.front().actor == "huge");
}

BOOST_AUTO_TEST_SUITE_END()
