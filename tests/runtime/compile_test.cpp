#include "runtime/compile.hpp"

#include "runtime/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>

using namespace troupe;

namespace {

const planned_actor* find(const plan& p, std::string_view name) {
  for (const auto& a : p.actors)
    if (a.name == name) return &a;
  return nullptr;
}

const planned_actor& get(const plan& p, std::string_view name) {
  const auto* a = find(p, name);
  BOOST_TEST_REQUIRE(a != nullptr, "there is no actor " << name);
  return *a;
}

const planned_actor& producer(const plan& p, const planned_actor& a, std::size_t port = 0) {
  return p.actors[p.edges[a.inputs.at(port)].from.actor];
}

std::string error_of(const result<plan>& p) { return p ? "no error" : p.error().text(); }

idx_info images() { return {.path = "data", .samples = 1000, .rows = 28, .columns = 28}; }

// The classifier of the example; returns the loss.
value classifier(graph& g, std::int64_t batch = 128) {
  const auto data = idx_batch(g, images(), {.batch = batch});
  auto x = relu(dense(data.images, 256, "dense_1"));
  x = relu(dense(x, 128, "dense_2"));
  return softmax_cross_entropy(dense(x, 10, "dense_3"), data.labels, data.scale);
}

struct compiled {
  op_table ops = make_op_table();
  graph g{ops};
};

training_spec spread(std::uint32_t workers, std::uint32_t shards, update_kind update = update_kind::sync) {
  training_spec s;
  s.workers = workers;
  s.shards = shards;
  s.update = update;
  s.steps = 20;
  s.observe_every = 10;
  for (std::uint32_t w = 0; w < workers; ++w) {
    s.worker_task.push_back(static_cast<std::uint32_t>(s.task_names.size()));
    s.task_names.push_back(fmt::format("/job:worker/task:{}", w));
  }
  for (std::uint32_t k = 0; k < shards; ++k) {
    s.shard_task.push_back(static_cast<std::uint32_t>(s.task_names.size()));
    s.task_names.push_back(fmt::format("/job:ps/task:{}", k));
  }
  s.client_task = static_cast<std::uint32_t>(s.task_names.size());
  s.task_names.push_back("/job:client/task:0");
  s.tasks = static_cast<std::uint32_t>(s.task_names.size());
  return s;
}

training_spec embedded(std::uint32_t workers, std::uint32_t shards) {
  training_spec s;
  s.workers = workers;
  s.shards = shards;
  s.steps = 20;
  return s;
}

std::size_t count(const plan& p, const std::function<bool(const planned_actor&)>& wanted) {
  return static_cast<std::size_t>(std::count_if(p.actors.begin(), p.actors.end(), wanted));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(compile)

BOOST_AUTO_TEST_CASE(training_embedded_has_shards_worker_ops_and_two_fetches) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), embedded(1, 1), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(p->tasks.size() == 1U);
  BOOST_TEST(p->tasks[0].is_client);
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::shard; }) == 6U);
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::send; }) == 0U);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::op) BOOST_TEST(a.steps == 20U);
  BOOST_TEST(get(*p, "loss").steps == 20U);
  BOOST_TEST(get(*p, "variables").steps == 1U);
  const auto& values = get(*p, "variables");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < values.inputs.size(); ++i) names.push_back(producer(*p, values, i).shard.variable);
  BOOST_TEST(std::is_sorted(names.begin(), names.end()));
  BOOST_TEST(names.size() == 6U);
}

BOOST_AUTO_TEST_CASE(a_chain_behind_a_matmul_is_one_actor) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), embedded(1, 1), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  const auto& forward = get(*p, "worker/0/dense_1/matmul+add+relu");
  BOOST_TEST(forward.ops.size() == 3U);
  BOOST_TEST(forward.inputs.size() == 3U);
  BOOST_TEST(forward.ops[0].operands == (std::vector<std::int32_t>{0, 1}), boost::test_tools::per_element());
  BOOST_TEST(forward.ops[1].operands == (std::vector<std::int32_t>{-1, 2}), boost::test_tools::per_element());
  BOOST_TEST(forward.ops[2].operands == (std::vector<std::int32_t>{-2}), boost::test_tools::per_element());
  // The gradient of the loss is output 1 of the loss itself: the 1 that seeds it has been simplified away.
  BOOST_TEST(count(*p, [](const auto& a) { return !a.ops.empty() && a.ops[0].type == "constant"; }) == 0U);
  BOOST_TEST(count(*p, [](const auto& a) { return a.ops.size() == 2 && a.ops[0].type == "matmul" && a.ops[1].type == "relu_grad"; }) == 2U);
  // 1 reader, 3 forward, 1 loss, 5 matmuls backward, 3 sums of rows
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::op; }) == 13U);
}

BOOST_AUTO_TEST_CASE(without_fusing_every_op_is_an_actor) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), embedded(1, 1), {.fuse = false});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::op && a.ops.size() != 1; }) == 0U);
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::op; }) == 20U);
}

BOOST_AUTO_TEST_CASE(between_tasks_every_edge_has_a_send_and_a_receive) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), spread(2, 2), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  const auto& send = get(*p, "shard/0/dense_2/weights/send/0");
  const auto& receive = get(*p, "shard/0/dense_2/weights/receive/0");
  BOOST_TEST((producer(*p, send).kind == actor_kind::shard));
  BOOST_TEST((producer(*p, receive).name == send.name));
  BOOST_TEST(send.task == producer(*p, send).task);
  BOOST_TEST(receive.task == 0U);
  // The weights are read forward and backward: sent once, taken twice.
  BOOST_TEST(receive.outputs.at(0).size() == 2U);
  BOOST_TEST(send.steps == 20U);
  BOOST_TEST(get(*p, "shard/0/dense_2/weights:1/send/1").steps == 20U);   // the reader of worker 1
  BOOST_TEST(get(*p, "shard/0/dense_2/weights:2/send/4").steps == 2U);    // the observer
  BOOST_TEST(get(*p, "variables").steps == 2U);
  BOOST_TEST(get(*p, "variables").task == 4U);
  BOOST_TEST(get(*p, "loss").inputs.size() == 2U);
  // 6 variables to and 6 gradients from each of 2 workers, 6 observed variables, 2 losses.
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::send; }) == 32U);
}

BOOST_AUTO_TEST_SUITE_END()
