// What a compiled training wants of the nodes of its workers and shards.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/operators.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <string>
#include <vector>

using namespace troupe;

namespace {

training_spec spec_of(std::uint32_t workers, std::uint32_t shards) {
  training_spec s;
  s.workers = workers;
  s.shards = shards;
  return s;
}

struct fixture {
  const op_table ops = make_op_table();

  // The loss is what `build` makes of variable "w", which is on `device_of_w`.
  device_wishes wishes(const std::function<value(graph&, value)>& build, training_spec spec = {},
                       compile_options o = {}, const std::string& device_of_w = "/cpu:0") const {
    graph g(ops);
    value w;
    {
      const auto on = g.device_scope(device_of_w);
      w = variable(g, {dtype::f32, {4}}, {}, "w");
    }
    const auto loss = reduce_sum(build(g, w));
    spec.steps = 10;
    const auto made = compile_program(g, loss, spec, o);
    BOOST_TEST_REQUIRE(bool(made), (made ? "" : made.error().text()));
    return made->devices();
  }
};

std::vector<std::uint32_t> counts(const std::vector<device_wish>& all) {
  std::vector<std::uint32_t> out;
  for (const auto& w : all) out.push_back(w.devices);
  return out;
}

using expected = std::vector<std::uint32_t>;

}  // namespace

BOOST_FIXTURE_TEST_SUITE(device_wishes, fixture)

BOOST_AUTO_TEST_CASE(who_wishes_for_nothing_needs_nothing) {
  BOOST_TEST(wishes([](graph&, value w) { return w * w; }).empty());
  BOOST_TEST(wishes([](graph& g, value w) {
               const auto on = g.device_scope("/cpu:3");
               return w * w;
             }).empty());
}

BOOST_AUTO_TEST_CASE(the_wish_that_reaches_furthest_counts_with_its_line) {
  int line = 0;
  const auto all = wishes(
      [&](graph& g, value w) {
        value x;
        {
          const auto on = g.device_scope("/gpu:2");
          x = exp(w), line = __LINE__;
        }
        const auto on = g.device_scope("/gpu:1");
        return tanh(x);
      },
      spec_of(2, 3));
  BOOST_TEST(counts(all.workers) == expected({3, 3}), boost::test_tools::per_element());
  BOOST_TEST(counts(all.shards) == expected({0, 0, 0}), boost::test_tools::per_element());
  BOOST_TEST(all.workers[1].who == "exp");
  BOOST_TEST(all.workers[1].source.line == static_cast<std::uint32_t>(line));
  BOOST_TEST(all.workers[1].source.file.find("device_wishes_test.cpp") != std::string::npos,
             all.workers[1].source.file);
}

BOOST_AUTO_TEST_CASE(a_variable_is_a_wish_of_its_shard_where_it_may_stand_there) {
  const auto square = [](graph&, value w) { return w * w; };
  auto all = wishes(square, {}, {}, "/gpu:1");
  BOOST_TEST(counts(all.shards) == expected({2}), boost::test_tools::per_element());
  BOOST_TEST(all.shards[0].who == "w");
  // What is recovered is kept on the host.
  training_spec kept;
  kept.is_recoverable = true;
  BOOST_TEST(wishes(square, kept, {}, "/gpu:1").empty());
  // A wish for all ops is one of workers and shards.
  all = wishes([](graph& g, value) { return exp(variable(g, {dtype::f32, {4}}, {}, "v")); },
               spec_of(2, 1), {.device = "/gpu:0"});
  BOOST_TEST(counts(all.workers) == expected({1, 1}), boost::test_tools::per_element());
  BOOST_TEST(counts(all.shards) == expected({1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_stands_on_the_host_after_all_wishes_for_nothing) {
  const auto branch = [](graph& g, value w) {
    const auto on = g.device_scope("/gpu:0");
    return cond(
        less(reduce_sum(w), constant(g, 1.0F)), [&] { return std::vector{w * 2.0F}; },
        [&] { return std::vector{w * 3.0F}; })[0];
  };
  const auto all = wishes(branch);
  for (const auto& w : all.workers) BOOST_TEST(w.who.find("cond") == std::string::npos, w.who);
  // Of an op that is pruned too.
  BOOST_TEST(wishes([](graph& g, value w) {
               const auto on = g.device_scope("/gpu:5");
               (void)exp(w);
               const auto back = g.device_scope("/cpu:0");
               return w * w;
             }).empty());
}

BOOST_AUTO_TEST_CASE(a_wish_that_names_a_task_is_one_of_the_worker_or_shard_of_that_name) {
  auto spec = spec_of(3, 2);
  spec.tasks = 6;
  spec.task_names = {"/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2",
                     "/job:ps/task:0",     "/job:ps/task:1",     "/job:client/task:0"};
  spec.worker_task = {0, 1, 2};
  spec.shard_task = {3, 4};
  spec.client_task = 5;
  const auto at = [&](const std::string& device) {
    return wishes(
        [&](graph& g, value w) {
          const auto on = g.device_scope(device);
          return exp(w);
        },
        spec);
  };
  auto all = at("/job:worker/task:1/gpu:0");
  BOOST_TEST(counts(all.workers) == expected({0, 1, 0}), boost::test_tools::per_element());
  all = at("/job:worker/gpu:1");
  BOOST_TEST(counts(all.workers) == expected({2, 2, 2}), boost::test_tools::per_element());
  all = at("/job:ps/task:1/gpu:0");
  BOOST_TEST(counts(all.workers) == expected({0, 0, 0}), boost::test_tools::per_element());
  BOOST_TEST(counts(all.shards) == expected({0, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
