#include "troupe/runtime/analysis/sparse_edges.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <set>
#include <string>

using namespace troupe;

namespace {

plan training(update_kind update, std::uint64_t observe_every = 0) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto data =
      idx_batch(g, {.path = "data", .samples = 1000, .rows = 28, .columns = 28}, {.batch = 128});
  const auto loss = softmax_cross_entropy(dense(data.images, 10, "dense"), data.labels, data.scale);
  training_spec s;
  s.workers = 2, s.shards = 1;
  s.steps = 12;
  s.update = update;
  s.observe_every = observe_every;
  s.tasks = 2;
  s.task_names = {"/job:ps/task:0", "/job:client/task:0"};
  s.worker_task = {0, 0};
  s.shard_task = {0};
  s.client_task = 1;
  auto p = compile_training(g, loss, s, {});
  BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
  return *p;
}

// Of all sparse edges, whose they are and who takes them.
std::set<std::string> ends(const plan& p, bool producers) {
  std::set<std::string> names;
  const auto sparse = sparse_edges(p);
  for (std::size_t e = 0; e < p.edges.size(); ++e)
    if (sparse[e])
      names.insert(p.actors[producers ? p.edges[e].from.actor : p.edges[e].to.actor].name);
  return names;
}

bool leads_to(const plan& p, const std::string& fetch) { return ends(p, false).contains(fetch); }

}  // namespace

BOOST_AUTO_TEST_SUITE(sparse_edges)

BOOST_AUTO_TEST_CASE(what_is_observed_at_the_end_is_sparse_up_to_its_fetch_and_a_step_is_not) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    const auto p = training(update);
    BOOST_TEST(leads_to(p, "variables"));
    BOOST_TEST(!leads_to(p, "loss"));
    for (const auto& name : ends(p, false)) BOOST_TEST(!name.starts_with("worker/"), name);
    for (const auto& name : ends(p, true)) BOOST_TEST(name.starts_with("shard/"), name);
  }
}

BOOST_AUTO_TEST_CASE(every_nth_version_is_sparse_and_every_version_is_not) {
  BOOST_TEST(leads_to(training(update_kind::sync, 4), "variables"));
  BOOST_TEST(ends(training(update_kind::sync, 1), false).empty());
}

BOOST_AUTO_TEST_CASE(a_plan_without_shards_has_none) {
  BOOST_TEST(troupe::sparse_edges(plan{}).empty());
}

BOOST_AUTO_TEST_SUITE_END()
