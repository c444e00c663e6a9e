#include "runtime/memory_budget.hpp"

#include "runtime/compile.hpp"
#include "runtime/op_table.hpp"

#include <boost/test/unit_test.hpp>

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
    BOOST_TEST(need.largest_bytes == (1u + credits) * 4000u);
    BOOST_TEST(memory_of_part(*p, 1).bytes == 0u);
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
  BOOST_TEST(need.largest == "huge");
}

BOOST_AUTO_TEST_SUITE_END()
