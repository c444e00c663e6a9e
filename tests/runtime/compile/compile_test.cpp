#include "troupe/runtime/compile/compile.hpp"

#include "tests/support/reference.hpp"
#include "tests/support/repetitions.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <random>

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

training_spec spread(std::uint32_t workers, std::uint32_t shards,
                     update_kind update = update_kind::sync) {
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

// RC-2. A loss is behind whom it leaves one at a time, taken by the program before the next one: on
// a device that is not the op, but the copy from there.
void expect_gradients_behind_losses(const plan& p, std::size_t workers) {
  // What an actor's items wait for, send and receive included.
  const auto comes_after = [&](const planned_actor& from, std::uint32_t what) {
    std::vector<bool> seen(p.actors.size());
    std::vector<std::uint32_t> next(1, static_cast<std::uint32_t>(&from - p.actors.data()));
    while (!next.empty()) {
      const auto a = next.back();
      next.pop_back();
      if (a == what) return true;
      if (seen[a] || p.actors[a].kind == actor_kind::shard) continue;
      seen[a] = true;
      for (auto e : p.actors[a].inputs) next.push_back(p.edges[e].from.actor);
    }
    return false;
  };
  const auto& losses = get(p, "loss");
  for (std::uint32_t w = 0; w < workers; ++w) {
    auto edge = losses.inputs.at(w);
    for (;; edge = p.actors[p.edges[edge].from.actor].inputs.at(0)) {
      BOOST_TEST(p.edges[edge].credits == 1U);
      const auto kind = p.actors[p.edges[edge].from.actor].kind;
      if (kind != actor_kind::send && kind != actor_kind::receive) break;
    }
    for (const auto& shard : p.actors)
      if (shard.kind == actor_kind::shard)
        BOOST_TEST(comes_after(producer(p, shard, w), p.edges[edge].from.actor),
                   shard.name << ", worker " << w);
  }
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
  for (std::size_t i = 0; i < values.inputs.size(); ++i)
    names.push_back(producer(*p, values, i).shard.variable);
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
  BOOST_TEST(forward.ops[0].operands == (std::vector<std::int32_t>{0, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(forward.ops[1].operands == (std::vector<std::int32_t>{-1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(forward.ops[2].operands == (std::vector<std::int32_t>{-2}),
             boost::test_tools::per_element());
  // The gradient of the loss is output 1 of the loss itself: the 1 that seeds it has been
  // simplified away.
  BOOST_TEST(
      count(*p, [](const auto& a) { return !a.ops.empty() && a.ops[0].type == "constant"; }) == 0U);
  BOOST_TEST(count(*p, [](const auto& a) {
               return a.ops.size() == 2 && a.ops[0].type == "matmul" &&
                      a.ops[1].type == "relu_grad";
             }) == 2U);
  // 1 reader of images, 6 of variables, 3 forward, 1 loss, 5 matmuls backward, 3 sums of rows
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::op; }) == 19U);
}

BOOST_AUTO_TEST_CASE(without_fusing_every_op_is_an_actor) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), embedded(1, 1), {.fuse = false});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(
      count(*p, [](const auto& a) { return a.kind == actor_kind::op && a.ops.size() != 1; }) == 0U);
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::op; }) == 26U);
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
  // The weights are used forward and backward: sent once, read once, taken twice.
  BOOST_TEST(receive.outputs.at(0).size() == 1U);
  const auto& read = get(*p, "worker/0/dense_2/weights");
  BOOST_TEST(read.ops.at(0).type == "read");
  BOOST_TEST(read.task == receive.task);
  BOOST_TEST(read.outputs.at(0).size() == 2U);
  BOOST_TEST(send.steps == 20U);
  BOOST_TEST(get(*p, "shard/0/dense_2/weights:1/send/1").steps == 20U);  // the reader of worker 1
  BOOST_TEST(get(*p, "shard/0/dense_2/weights:2/send/4").steps == 2U);   // the observer
  BOOST_TEST(get(*p, "variables").steps == 2U);
  BOOST_TEST(get(*p, "variables").task == 4U);
  BOOST_TEST(get(*p, "loss").inputs.size() == 2U);
  // 6 variables to and 6 gradients from each of 2 workers, 6 observed variables, 2 losses.
  BOOST_TEST(count(*p, [](const auto& a) { return a.kind == actor_kind::send; }) == 32U);
}

// --- what a plan computes
// ------------------------------------------------------------------------------------------------

namespace {

// A small classifier on 37 made-up samples, so that an epoch ends with a smaller batch.
value small_classifier(graph& g, std::int64_t batch) {
  const auto data =
      idx_batch(g, {.path = "p", .samples = 37, .rows = 3, .columns = 2, .classes = 4},
                {.batch = batch, .seed = 3});
  const auto x = sigmoid(dense(relu(dense(data.images, 5, "a")), 6, "b"));
  return softmax_cross_entropy(dense(x, 4, "c"), data.labels, data.scale);
}

reference::feeds initial_values(const graph& g) {
  reference::feeds values;
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform(-0.5, 0.5);
  for (const auto& n : g.nodes())
    if (n.type == "variable")
      values[n.name] = reference::make(n.outputs[0], [&](std::size_t) { return uniform(random); });
  return values;
}

struct run_result {
  std::vector<double> losses;  // sum over the workers, by step
  std::vector<reference::array> variables;
};

run_result train(std::int64_t batch, const training_spec& spec, const compile_options& options) {
  compiled c;
  const auto loss = small_classifier(c.g, batch);
  const auto p = compile_training(c.g, loss, spec, options);
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  // What a node gets is what came over the wire.
  const auto received = decode_plan(encode(*p));
  BOOST_TEST_REQUIRE(bool(received), error_of(received));
  reference::plan_runner runner(*received, c.ops, initial_values(c.g));
  run_result r;
  for (std::uint64_t i = 0; i < spec.steps; ++i) {
    double sum = 0;
    for (const auto& l : runner.step("loss")) sum += l.at.at(0);
    r.losses.push_back(sum);
  }
  r.variables = runner.variables();
  return r;
}

void check_equal(const run_result& a, const run_result& b) {
  BOOST_TEST((a.losses == b.losses));
  BOOST_TEST((a.variables == b.variables));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_same_graph_computes_the_same_embedded_spread_fused_and_unfused) {
  const auto reference = train(4, embedded(2, 1), {.fuse = false});
  BOOST_TEST(reference.losses.front() > reference.losses.back());
  check_equal(train(4, embedded(2, 1), {}), reference);
  check_equal(train(4, embedded(2, 3), {}), reference);
  check_equal(train(4, spread(2, 2), {}), reference);
  check_equal(train(4, spread(2, 1), {.fuse = false}), reference);
  auto together = spread(2, 2);  // both workers and a shard on one node
  together.worker_task = {0, 0};
  together.shard_task = {0, 3};
  check_equal(train(4, together, {}), reference);
}

BOOST_AUTO_TEST_CASE(
    one_worker_with_the_whole_batch_computes_what_more_workers_do_with_their_parts) {
  const auto one = train(12, embedded(1, 1), {});
  for (const std::uint32_t workers : {2U, 3U, 4U}) {
    const auto many = train(12 / workers, embedded(workers, 1), {});
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      BOOST_TEST(std::abs(one.losses[i] - many.losses[i]) < 1e-12 * one.losses[i]);
  }
}

BOOST_AUTO_TEST_CASE(a_plan_of_steps_computes_what_the_graph_says_whatever_is_fused) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      compiled c;
      std::mt19937_64 random(seed);
      reference::feeds fed;
      std::uniform_real_distribution<double> uniform(-1, 1);
      const auto feed = [&](const tensor_spec& spec, const std::string& name) {
        fed[name] = reference::make(spec, [&](std::size_t) { return uniform(random); });
        return input(c.g, spec, name);
      };
      std::vector<value> values{feed({dtype::f32, {4, 4}}, "a"), feed({dtype::f32, {4, 4}}, "b"),
                                feed({dtype::f32, {4, 4}}, "d")};
      const auto row = feed({dtype::f32, {4}}, "row"), scalar = feed({dtype::f32, {}}, "scalar");
      const auto any = [&] {
        return values[values.size() - 1 - random() % std::min<std::size_t>(values.size(), 6)];
      };
      const auto ops = 1 + random() % 40;
      for (std::uint64_t i = 0; i < ops; ++i) {
        const auto x = any();
        const auto y = random() % 3 == 0 ? (random() % 2 == 0 ? row : scalar) : any();
        switch (random() % 8) {
          case 0: values.push_back(add(x, y)); break;
          case 1: values.push_back(sub(x, y)); break;
          case 2: values.push_back(mul(x, y)); break;
          case 3: values.push_back(maximum(x, y)); break;
          case 4: values.push_back(relu(x)); break;
          case 5: values.push_back(troupe::tanh(x)); break;
          case 6: values.push_back(matmul(x, any())); break;
          default: values.push_back(mul(x, constant(c.g, random() % 2 == 0 ? 1.0F : 0.5F)));
        }
      }
      const std::vector<value> fetches{values.back(), any(), any()};
      for (const bool fuse : {true, false}) {
        const auto p = compile_steps(c.g, fetches, {.fuse = fuse});
        BOOST_TEST_REQUIRE(bool(p), error_of(p));
        const auto got = reference::plan_runner(*p, c.ops, fed).step("fetch");
        BOOST_TEST_REQUIRE(got.size() == fetches.size());
        for (std::size_t k = 0; k < fetches.size(); ++k)
          BOOST_TEST((got[k] == reference::evaluate(c.g, fetches[k], fed)));
      }
    }
  }
}

// --- pass by pass --------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(prune_keeps_what_the_roots_need_and_nothing_else) {
  compiled c;
  const auto x = input(c.g, {dtype::f32, {3}}, "x"),
             unused = input(c.g, {dtype::f32, {3}}, "unused");
  relu(unused);
  const auto y = relu(x);
  const auto f = passes::prune(c.g, std::vector<value>{y});
  BOOST_TEST_REQUIRE(f.ops.size() == 2U);
  BOOST_TEST(f.ops[0].name == "x");
  BOOST_TEST(f.ops[1].name == "relu_1");
  BOOST_TEST((f.roots[0] == passes::op_ref{1, 0}));
}

BOOST_AUTO_TEST_CASE(simplify_removes_what_changes_nothing) {
  const auto simplified = [](const std::function<value(graph&, value, value)>& build) {
    compiled c;
    const auto x = input(c.g, {dtype::f32, {3}}, "x"), s = input(c.g, {dtype::f32, {}}, "s");
    std::string text;
    for (const auto& op :
         passes::simplify(passes::prune(c.g, std::vector<value>{build(c.g, x, s)})).ops)
      text += op.type + " ";
    return text;
  };
  const auto neg = [](graph& g, value x) {
    return g.add("neg", std::vector<value>{x}, {}, "neg", source_location::current());
  };
  BOOST_TEST(simplified([](graph& g, value x, value) { return mul(x, constant(g, 1)); }) ==
             "input ");
  BOOST_TEST(simplified([](graph& g, value x, value) { return add(x, constant(g, 0)); }) ==
             "input ");
  BOOST_TEST(simplified([](graph& g, value x, value) { return sub(x, constant(g, 0)); }) ==
             "input ");
  BOOST_TEST(simplified([](graph& g, value, value s) { return mul(constant(g, 1), s); }) ==
             "input ");
  BOOST_TEST(simplified([](graph& g, value, value s) { return add(constant(g, 0), s); }) ==
             "input ");
  BOOST_TEST(simplified([&](graph& g, value x, value) { return neg(g, neg(g, x)); }) == "input ");
  BOOST_TEST(simplified([&](graph& g, value x, value) {
               return neg(g, mul(neg(g, add(x, constant(g, 0))), constant(g, 1)));
             }) == "input ");
  BOOST_TEST(simplified([](graph& g, value x, value) { return mul(x, constant(g, 2)); }) ==
             "input constant mul ");
  BOOST_TEST(simplified([](graph& g, value x, value) { return mul(x, constant(g, 0)); }) ==
             "input constant mul ");
  BOOST_TEST(simplified([](graph& g, value x, value) { return add(x, constant(g, 1)); }) ==
             "input constant add ");
  BOOST_TEST(simplified([](graph& g, value, value s) { return sub(constant(g, 0), s); }) ==
             "input constant sub ");
  BOOST_TEST(simplified([](graph&, value x, value) { return maximum(x, x); }) == "input maximum ");
}

BOOST_AUTO_TEST_CASE(fuse_leaves_alone_what_somebody_else_reads_and_what_has_several_outputs) {
  const auto names = [](const std::function<std::vector<value>(graph&, value)>& build) {
    compiled c;
    const auto x = input(c.g, {dtype::f32, {3, 3}}, "x");
    const auto p = compile_steps(c.g, build(c.g, x), {});
    BOOST_TEST_REQUIRE(bool(p), error_of(p));
    std::string text;
    for (const auto& a : p->actors)
      if (a.kind == actor_kind::op) text += a.name + " ";
    return text;
  };
  using values = std::vector<value>;
  BOOST_TEST(names([](graph&, value x) { return values{relu(add(matmul(x, x), x))}; }) ==
             "matmul+add+relu ");
  BOOST_TEST(names([](graph&, value x) {
               const auto m = matmul(x, x);
               return values{relu(m), m};  // also fetched
             }) == "matmul relu ");
  BOOST_TEST(names([](graph&, value x) {
               const auto m = matmul(x, x);
               return values{add(m, m)};  // two operands are two consumers
             }) == "matmul add ");
  BOOST_TEST(names([](graph&, value x) {
               const auto first = matmul(x, x), second = matmul(x, x, true, false);
               return values{add(first, second)};  // one group has room for one matmul
             }) == "matmul_1 matmul+add ");
  BOOST_TEST(names([](graph&, value x) { return values{sub(relu(x), matmul(x, x))}; }) ==
             "matmul+relu+sub ");  // a tree
  BOOST_TEST(names([](graph&, value x) { return values{relu(relu(relu(relu(relu(relu(x))))))}; }) ==
             "relu+relu+relu+relu+2_more ");
  BOOST_TEST(names([](graph& g, value x) { return values{mul(x, constant(g, 2))}; }) ==
             "constant mul ");  // sources stay
  BOOST_TEST(names([](graph&, value x) { return values{add(x, reduce_sum(x, {0}))}; }) ==
             "reduce_sum add ");  // other shape
  BOOST_TEST(names([](graph& g, value x) {
               const auto on = g.device_scope("/cpu:1");
               return values{relu(add(x, x))};
             }) == "add+relu ");
  BOOST_TEST(names([](graph& g, value x) {
               const auto m = matmul(x, x);
               const auto on = g.device_scope("/cpu:1");
               return values{relu(m)};  // another device
             }) == "matmul relu ");
  BOOST_TEST(names([](graph& g, value x) {
               const auto labels = input(g, {dtype::i32, {3}}, "labels"),
                          scale = input(g, {dtype::f32, {}}, "scale");
               const auto loss = softmax_cross_entropy(x, labels, scale);
               return values{relu(value{&g, loss.node, 1})};  // output 1 of two
             }) == "softmax_cross_entropy relu ");
}

BOOST_AUTO_TEST_CASE(workers_and_shards_take_the_streams_of_their_task_in_turn) {
  compiled c;
  const auto p = compile_training(c.g, small_classifier(c.g, 4), embedded(2, 1), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  std::vector<std::uint32_t> shard_streams;
  for (const auto& a : p->actors) {
    if (a.kind == actor_kind::op)
      BOOST_TEST(a.stream == (a.name.starts_with("worker/0/") ? 0U : 1U), a.name);
    if (a.kind == actor_kind::shard) shard_streams.push_back(a.stream);
  }
  BOOST_TEST(shard_streams == (std::vector<std::uint32_t>{2, 3, 4, 5, 6, 7}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(device_scopes_choose_stream_and_task) {
  compiled c;
  const auto data = idx_batch(c.g, images(), {.batch = 8});
  const auto x = dense(data.images, 4, "a");
  value h;
  {
    const auto on = c.g.device_scope("/job:ps/cpu:3");
    h = relu(x);
  }
  const auto loss = softmax_cross_entropy(dense(h, 10, "b"), data.labels, data.scale);
  const auto p = compile_training(c.g, loss, spread(1, 1), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(get(*p, "worker/0/relu").task == 1U);
  BOOST_TEST(get(*p, "worker/0/relu").stream == 3U);
  BOOST_TEST(get(*p, "worker/0/a/matmul+add/send/1").task == 0U);
  BOOST_TEST(get(*p, "worker/0/a/matmul+add/receive/1").stream == 3U);
  // Embedded there is one task only, and the same graph runs there.
  const auto e = compile_training(c.g, loss, embedded(1, 1), {});
  BOOST_TEST_REQUIRE(bool(e), error_of(e));
  BOOST_TEST(get(*e, "worker/0/relu").task == 0U);
  BOOST_TEST(get(*e, "worker/0/relu").stream == 3U);
}

BOOST_AUTO_TEST_CASE(variables_go_largest_first_to_the_shard_with_the_least_bytes) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), spread(1, 2), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  std::size_t bytes[2] = {};
  for (const auto& a : p->actors) {
    if (a.kind != actor_kind::shard) continue;
    BOOST_TEST_REQUIRE(a.shard.shard < 2U);
    BOOST_TEST(a.task == 1U + a.shard.shard);
    bytes[a.shard.shard] += a.shard.spec.size_bytes();
  }
  // 802,816 bytes: more than all others together.
  BOOST_TEST(get(*p, "shard/0/dense_1/weights").shard.shard == 0U);
  BOOST_TEST(bytes[0] == 802'816U);
  BOOST_TEST(bytes[1] == 4U * (256 + 256 * 128 + 128 + 1280 + 10));
}

BOOST_AUTO_TEST_CASE(RC_2_every_gradient_of_a_recoverable_training_comes_after_the_loss) {
  for (const std::string device : {"", "/gpu:0"})
    for (const bool fuses : {true, false})
      for (const bool is_leaf :
           {true,
            false}) {  // nobody but the program reads the sum; or gradients come with the loss
        BOOST_TEST_CONTEXT("device '" << device << "', fuses " << fuses << ", leaf " << is_leaf) {
          compiled c;
          const auto of_images = classifier(c.g);
          const auto counted = [&] {
            return reduce_sum(variable(c.g, {dtype::f32, {4}}, {}, "counter"));
          };
          const auto loss = is_leaf ? add(of_images, counted()) : of_images;
          auto spec = spread(2, 1);
          spec.observe_every = 0;
          spec.is_recoverable = true;
          const auto made = compile_training(c.g, loss, spec,
                                             {.name = "training", .fuse = fuses, .device = device});
          BOOST_TEST_REQUIRE(bool(made), error_of(made));
          expect_gradients_behind_losses(*made, 2);
        }
      }
}

BOOST_AUTO_TEST_CASE(async_training_observes_at_the_end_and_takes_losses_as_they_come) {
  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), spread(3, 1, update_kind::async), {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(get(*p, "loss").fires_on_any);
  BOOST_TEST(get(*p, "loss").steps == 60U);
  BOOST_TEST(get(*p, "variables").steps == 1U);
  BOOST_TEST(!get(*p, "variables").fires_on_any);
  const auto& shard = get(*p, "shard/0/dense_1/bias");
  BOOST_TEST((shard.shard.update == update_kind::async));
  BOOST_TEST(shard.steps == 60U);
  BOOST_TEST_REQUIRE(shard.shard.readers.size() == 4U);
  BOOST_TEST(shard.shard.readers[3].at_end);
  for (std::uint32_t w = 0; w < 3; ++w) {
    const auto& reader = get(*p, fmt::format("worker/{}/idx_batch", w)).ops[0].attrs;
    BOOST_TEST(reader.integer("part") == w);
    BOOST_TEST(reader.integer("parts") == 3);
    BOOST_TEST(reader.integer("global_scale", -1) == 0);
  }
}

BOOST_AUTO_TEST_CASE(inputs_of_a_training_graph_are_fed_by_the_client_for_each_worker) {
  compiled c;
  const auto x = input(c.g, {dtype::f32, {5}}, "x");
  const auto w = variable(c.g, {dtype::f32, {5}}, {}, "w");
  const auto loss = reduce_sum(mul(x, w));
  const auto one = compile_training(c.g, loss, spread(1, 1), {});
  BOOST_TEST_REQUIRE(bool(one), error_of(one));
  BOOST_TEST((get(*one, "x").kind == actor_kind::feed));
  BOOST_TEST(get(*one, "x").task == 2U);
  BOOST_TEST(get(*one, "x").steps == 20U);
  const auto two = compile_training(c.g, loss, spread(2, 1), {});
  BOOST_TEST_REQUIRE(bool(two), error_of(two));
  BOOST_TEST((get(*two, "worker/1/x").kind == actor_kind::feed));
}

BOOST_AUTO_TEST_CASE(a_plan_of_steps_is_fed_and_fetched_without_limit) {
  compiled c;
  const auto x = input(c.g, {dtype::f32, {2, 3}}, "x");
  const auto y = dense(x, 4, "layer");
  const auto p = compile_steps(c.g, std::vector<value>{y, x}, {.name = "steps", .credits = 5});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(p->name == "steps");
  BOOST_TEST(p->workers == 0U);
  for (const auto* name : {"x", "layer/weights", "layer/bias"})
    BOOST_TEST((get(*p, name).kind == actor_kind::feed));
  BOOST_TEST(get(*p, "fetch").inputs.size() == 2U);
  BOOST_TEST(producer(*p, get(*p, "fetch"), 1).name == "x");
  for (const auto& a : p->actors) BOOST_TEST(a.steps == 0U);
  for (const auto& e : p->edges) BOOST_TEST(e.credits == 5U);
}

// --- mistakes ------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_training_that_cannot_be_is_an_error_that_says_why) {
  const std::pair<std::function<void(training_spec&)>, const char*> cases[] = {
      {[](auto& s) { s.workers = 0; }, "0 workers: use 1..65536"},
      {[](auto& s) { s.shards = 0; }, "0 shards"},
      {[](auto& s) { s.steps = 0; }, "0 steps"},
      {[](auto& s) { s.observe_every = 7; }, "use a divisor of the steps"},
      {[](auto& s) { s.observe_every = 40; }, "use a divisor of the steps"},
      {[](auto& s) { s.optimizer.type = "lion"; }, "there is no optimizer 'lion'"},
      {[](auto& s) { s.optimizer = adam({.beta1 = 1}); }, "beta1 1 is not in [0, 1)"},
      {[](auto& s) { s.schedule = cosine({.steps = 3, .warmup = 3}); },
       "schedule cosine: steps 3 are not more than the 3 of its warmup"},
      {[](auto& s) { s.clip_global_norm = -1; }, "clip global norm -1 is not"},
      {[](auto& s) { s.clip_global_norm = std::nan(""); }, "clip global norm nan is not"},
      {[](auto& s) { s.optimizer.learning_rate = std::nan(""); }, "learning rate nan"},
      {[](auto& s) { s.optimizer.momentum = 1; }, "momentum 1 is not in [0, 1)"},
      {[](auto& s) { s.tasks = 3; }, "names of tasks for 3 tasks"},
      {[](auto& s) { s.worker_task.pop_back(); }, "2 workers, but places for 1"},
      {[](auto& s) { s.shard_task.push_back(0); }, "1 shards, but places for 2"},
      {[](auto& s) { s.worker_task[0] = 4; }, "a worker is placed on task 4 of 4"},
      {[](auto& s) { s.shard_task[0] = 4; }, "a shard is placed on task 4 of 4"},
      {[](auto& s) { s.client_task = 4; }, "the client is task 4 of 4"},
      {[](auto& s) { s.task_names[0] = "worker0"; }, "name of a task: device 'worker0'"},
  };
  for (const auto& [spoil, says] : cases) {
    compiled c;
    auto spec = spread(2, 1);
    spoil(spec);
    const auto p = compile_training(c.g, classifier(c.g), spec, {});
    BOOST_TEST(error_of(p).find(says) != std::string::npos, error_of(p)
                                                                << "\n  should say: " << says);
  }
}

BOOST_AUTO_TEST_CASE(optimizer_and_schedule_reach_every_shard) {
  compiled c;
  auto spec = spread(2, 2);
  spec.optimizer = adamw({.learning_rate = 0.5});
  spec.schedule = warm_up(3);
  const auto p = compile_training(c.g, classifier(c.g), spec, {});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  for (const auto& a : p->actors) {
    if (a.kind != actor_kind::shard) continue;
    BOOST_TEST((a.shard.optimizer == spec.optimizer));
    BOOST_TEST((a.shard.schedule == spec.schedule));
  }
}

// Which variables of a training push rows.
std::map<std::string, bool> pushes_of(const std::function<value(graph&)>& build, training_spec spec,
                                      const compile_options& options = {}) {
  compiled c;
  const auto p = compile_training(c.g, build(c.g), spec, options);
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  const auto back = decode_plan(encode(*p));
  BOOST_TEST_REQUIRE(bool(back), error_of(back));
  BOOST_TEST((*back == *p));
  std::map<std::string, bool> out;
  for (const auto& a : p->actors) {
    if (a.kind != actor_kind::shard) continue;
    out[a.shard.variable] = a.shard.pushes_rows;
    for (std::size_t w = 0; w < a.shard.steps.size(); ++w)
      BOOST_TEST(are_rows_of(p->edges[a.inputs[w]].spec, a.shard.spec) == a.shard.pushes_rows);
  }
  return out;
}

BOOST_AUTO_TEST_CASE(tables_that_are_read_by_index_push_rows_where_these_are_fewer_bytes) {
  const auto model = [](std::int64_t words, int uses) {
    return [=](graph& g) {
      const auto data = idx_batch(g, images(), {.batch = 8});
      const auto table = variable(g, {dtype::f32, {words, 10}}, {}, "table");
      auto x = add(dense(data.images, 10, "d"), embedding(table, data.labels));
      for (int i = 1; i < uses; ++i) x = add(x, embedding(table, data.labels));
      return softmax_cross_entropy(x, data.labels, data.scale);
    };
  };
  using pushes = std::map<std::string, bool>;
  auto recoverable = spread(2, 2);
  recoverable.observe_every = 0;
  recoverable.is_recoverable = recoverable.has_cuts = true;
  for (const auto& spec : {embedded(1, 1), embedded(3, 2), spread(2, 2), recoverable}) {
    BOOST_TEST((pushes_of(model(1000, 1), spec) ==
                pushes{{"d/bias", false}, {"d/weights", false}, {"table", true}}));
    BOOST_TEST(!pushes_of(model(1000, 1), spec, {.sparse_pushes = false}).at("table"));
    // 8 rows of 48 bytes are more than 9 of 40.
    BOOST_TEST(!pushes_of(model(9, 1), spec).at("table"));
    BOOST_TEST(!pushes_of(model(1000, 2), spec).at("table"));  // a sum of two
  }
  auto clipped = embedded(1, 1);
  clipped.clip_global_norm = 1;
  BOOST_TEST(!pushes_of(model(1000, 1), clipped).at("table"));
}

// Of its own worker alone, and of all its variables together.
BOOST_AUTO_TEST_CASE(clip_global_norm_puts_one_norm_before_the_pushes_of_each_worker) {
  compiled c;
  auto spec = spread(2, 2);
  spec.clip_global_norm = 1;
  const auto p = compile_training(c.g, classifier(c.g), spec, {.fuse = false});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  BOOST_TEST(count(*p, [](const auto& a) {
               return a.kind == actor_kind::op && a.ops.front().type == "sqrt";
             }) == 2U);
  for (const auto& a : p->actors) {
    if (a.kind != actor_kind::shard) continue;
    for (std::size_t w = 0; w < 2; ++w) {
      const auto* pushed = &producer(*p, a, w);
      while (pushed->kind == actor_kind::receive || pushed->kind == actor_kind::send)
        pushed = &producer(*p, *pushed);
      BOOST_TEST(pushed->ops.front().type == "mul");
      BOOST_TEST(pushed->name.starts_with(fmt::format("worker/{}/", w)), pushed->name);
    }
  }
}

// A training moves the averages of the part of the graph that its loss needs, and no others;
// nothing descends on them.
BOOST_AUTO_TEST_CASE(moving_averages_take_samples_from_every_worker) {
  const auto averages_of = [](const training_spec& spec,
                              const std::function<value(graph&, value)>& model) {
    compiled c;
    const auto data = idx_batch(c.g, images(), {.batch = 8});
    const auto p = compile_training(
        c.g, softmax_cross_entropy(model(c.g, data.images), data.labels, data.scale), spec, {});
    BOOST_TEST_REQUIRE(bool(p), error_of(p));
    const auto again = decode_plan(encode(*p));
    BOOST_TEST_REQUIRE(bool(again));
    BOOST_TEST((*again == *p));
    std::map<std::string, std::pair<double, std::uint32_t>> all;
    for (const auto& a : p->actors)
      if (a.kind == actor_kind::shard && a.shard.average)
        all[a.shard.variable] = {a.shard.average->rate, a.shard.average->samples};
    return all;
  };
  using averages = std::map<std::string, std::pair<double, std::uint32_t>>;
  const auto two_heads = [](graph&, value x) {
    const auto trunk = batch_norm(dense(x, 6, "d"), "n", {.rate = 0.25});
    (void)batch_norm(dense(trunk, 4, "e"), "not_needed");
    return dense(trunk, 10, "o");
  };
  BOOST_TEST((averages_of(spread(2, 2), two_heads) ==
              averages{{"n/mean", {0.25, 2}}, {"n/variance", {0.25, 2}}}));
  auto async = spread(2, 2);
  async.update = update_kind::async;
  async.observe_every = 0;
  BOOST_TEST((averages_of(async, two_heads) ==
              averages{{"n/mean", {0.25, 1}}, {"n/variance", {0.25, 1}}}));
  const auto as_they_are = [](graph&, value x) {
    return dense(batch_norm(dense(x, 6, "d"), "n", {.is_training = false}), 10, "o");
  };
  BOOST_TEST((averages_of(embedded(1, 1), as_they_are) ==
              averages{{"n/mean", {0, 1}}, {"n/variance", {0, 1}}}));
  // One that the loss itself reads, and whose sample it does not need.
  const auto is_read = [](graph&, value x) {
    const auto y = dense(x, 10, "o");
    return sub(y, moving_average(reduce_mean(y, {0}), "center"));
  };
  BOOST_TEST((averages_of(embedded(1, 1), is_read) == averages{{"center", {0.1, 1}}}));

  compiled c;
  const auto p = compile_training(c.g, classifier(c.g), embedded(1, 1), {});
  for (const auto& wrong : {moving_average_spec{1.5, 1}, moving_average_spec{std::nan(""), 1},
                            moving_average_spec{0.5, 0}}) {
    auto q = *p;
    for (auto& a : q.actors)
      if (a.kind == actor_kind::shard) a.shard.average = wrong;
    const auto ok = check(q);
    BOOST_TEST(!bool(ok));
    BOOST_TEST(ok.error().text().find("moving average of") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(variables_that_are_handed_over_come_with_every_slot) {
  const std::pair<optimizer_spec, std::size_t> cases[] = {
      {{}, 2}, {adam({}), 3}, {rmsprop({}), 2}, {rmsprop({.momentum = 0.5, .centered = true}), 4}};
  for (const auto& [optimizer, ports] : cases) {
    compiled c;
    auto spec = spread(1, 1);
    spec.observe_every = 0;
    spec.is_recoverable = true;
    spec.optimizer = optimizer;
    const auto program = compile_program(c.g, classifier(c.g), spec, {});
    BOOST_TEST_REQUIRE(bool(program));
    const auto variable = program->variables().front().first;
    task_map where{spec.task_names, {}, spec.worker_task, spec.shard_task, spec.client_task};
    for (std::uint32_t i = 0; i < where.task_names.size(); ++i)
      where.roles.emplace_back(where.task_names[i], i);
    const auto p = program->place(where, {.restore = restore_kind::kept,
                                          .version = 4,
                                          .worker_steps = {4},
                                          .handed = {{variable, 0}}});
    BOOST_TEST_REQUIRE(bool(p), error_of(p));
    BOOST_TEST(get(*p, "hand_over/" + variable).outputs.size() == ports);
    BOOST_TEST(get(*p, "shard/0/" + variable).inputs.size() == 1 + ports);
    auto fewer = *p;
    for (auto& a : fewer.actors)
      if (a.name == "shard/0/" + variable)
        a.shard.optimizer =
            a.shard.optimizer.type == "sgd" ? adam({}) : optimizer_spec{.type = "nobody"};
    BOOST_TEST(!bool(check(fewer)));
  }
}

BOOST_AUTO_TEST_CASE(mistakes_in_a_graph_are_errors_with_the_users_line) {
  using build = std::function<value(graph&)>;
  const tensor_spec vector3{dtype::f32, {3}};
  const std::pair<build, const char*> cases[] = {
      {[&](graph& g) { return matmul(input(g, vector3, "x"), input(g, vector3, "y")); },
       "both must be matrices"},
      {[&](graph& g) { return variable(g, vector3, {}, "w"); },
       "loss 'w' is f32[3], but must be a scalar"},
      {[&](graph& g) { return reduce_sum(input(g, vector3, "x")); },
       "no gradient flows from loss 'reduce_sum' to any variable"},
      {[&](graph& g) {
         const auto s = variable(g, {dtype::f32, {}}, {}, "scale");
         return softmax_cross_entropy(dense(input(g, {dtype::f32, {4, 3}}, "x"), 3, "d"),
                                      input(g, {dtype::i32, {4}}, "y"), stop_gradient(s));
       },
       "the loss depends on variable 'scale', but no gradient flows to it"},
      {[&](graph& g) {
         const auto on = g.device_scope("/job:gpu_farm");
         return reduce_sum(variable(g, vector3, {}, "w"));
       },
       "there is no task for device '/job:gpu_farm'; tasks are /job:worker/task:0, /job:worker/task:1, /job:ps/task:0, "
       "/job:client/task:0"},
      {[&](graph& g) {
         const auto on = g.device_scope("/job:worker/task:1");
         return reduce_sum(variable(g, vector3, {}, "w"));
       },
       "variable 'w' wants device '/job:worker/task:1', but no shard runs there"},
      {[&](graph& g) {
         const auto data = idx_batch(g, images(), {.part = 1, .parts = 5});
         return softmax_cross_entropy(dense(data.images, 10, "d"), data.labels, data.scale);
       },
       "idx_batch 'idx_batch' reads one of 5 parts, but the job has 2 workers"},
      {[&](graph& g) {
         return reduce_sum(mul(variable(g, vector3, {}, "w"), input(g, vector3, "shard/0/w")));
       },
       "no error"},
  };
  for (const auto& [make, says] : cases) {
    compiled c;
    const auto loss = make(c.g);
    const auto p = compile_training(c.g, loss, spread(2, 1), {});
    BOOST_TEST(error_of(p).find(says) != std::string::npos, error_of(p)
                                                                << "\n  should say: " << says);
    if (!p) BOOST_TEST(error_of(p).find("compile_test.cpp:") != std::string::npos, error_of(p));
  }
}

BOOST_AUTO_TEST_CASE(mistakes_in_what_is_asked_for_are_errors) {
  compiled c, other;
  const auto x = input(c.g, {dtype::f32, {3}}, "x");
  BOOST_TEST(error_of(compile_steps(c.g, {}, {})).find("nothing is fetched") != std::string::npos);
  BOOST_TEST(
      error_of(compile_steps(c.g, std::vector<value>{value{}}, {})).find("not of this graph") !=
      std::string::npos);
  BOOST_TEST(
      error_of(compile_steps(other.g, std::vector<value>{x}, {})).find("not of this graph") !=
      std::string::npos);
  BOOST_TEST(
      error_of(compile_steps(c.g, std::vector<value>{x}, {.credits = 0})).find("1..4096 credits") !=
      std::string::npos);
  BOOST_TEST(error_of(compile_steps(c.g, std::vector<value>{x}, {.credits = 4097}))
                 .find("1..4096 credits") != std::string::npos);
  BOOST_TEST(error_of(compile_training(c.g, value{}, embedded(1, 1), {}))
                 .find("the loss is not a value of this graph") != std::string::npos);
  compiled named;
  const auto y = relu(input(named.g, {dtype::f32, {3}}, "fetch"));
  BOOST_TEST(error_of(compile_steps(named.g, std::vector<value>{y}, {}))
                 .find("two actors have this name") != std::string::npos);
}

// --- size ----------------------------------------------------------------------------------------

namespace {

double seconds_to_compile(std::uint64_t ops, bool fuse) {
  const auto start = std::clock();  // of this process, so that a busy machine does not count
  compiled c;
  std::mt19937_64 random(9);
  std::vector<value> values{input(c.g, {dtype::f32, {16}}, "a"),
                            input(c.g, {dtype::f32, {16}}, "b")};
  for (std::uint64_t i = 0; i < ops; ++i) {
    const auto x = values[values.size() - 1 - random() % std::min<std::size_t>(values.size(), 50)],
               y = values[random() % values.size()];
    values.push_back(i % 3 == 0 ? add(x, y) : i % 3 == 1 ? mul(x, y) : maximum(x, y));
  }
  const auto p =
      compile_steps(c.g, std::vector<value>(values.end() - 50, values.end()), {.fuse = fuse});
  BOOST_TEST_REQUIRE(bool(p), error_of(p));
  const auto back = decode_plan(encode(*p));
  BOOST_TEST_REQUIRE(bool(back), error_of(back));
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_random_graph_of_100000_ops_compiles_in_seconds_and_linearly) {
  for (const bool fuse : {true, false}) {
    const auto ops = static_cast<std::size_t>(repetitions(100'000));
    const auto small = seconds_to_compile(ops / 10, fuse), large = seconds_to_compile(ops, fuse);
    BOOST_TEST_MESSAGE("fuse " << fuse << ": " << ops / 10 << " ops " << small << " s, " << ops
                               << " ops " << large << " s");
    // Linear would be 10; the limit leaves room for caches and noise.
    BOOST_TEST(large < 40 * (small + 0.02));
  }
}

BOOST_AUTO_TEST_CASE(a_chain_and_a_tree_of_100000_ops_fuse_into_one_actor) {
  for (const bool is_tree : {false, true}) {
    compiled c;
    std::vector<value> values;
    const auto x = input(c.g, {dtype::f32, {16}}, "x");
    if (!is_tree) {
      auto y = x;
      for (std::uint64_t i = 0; i < repetitions(100'000); ++i) y = i % 2 == 0 ? relu(y) : add(y, x);
      values = {y};
    } else {
      // Each leaf by itself: equal ones would be one.
      for (int i = 0; i < 65'536; ++i)
        values.push_back(add(x, constant(c.g, static_cast<float>(i))));
      while (values.size() > 1) {
        std::vector<value> half;
        for (std::size_t i = 0; i < values.size(); i += 2)
          half.push_back(add(values[i], values[i + 1]));
        values = half;
      }
    }
    const auto p = compile_steps(c.g, values, {});
    BOOST_TEST_REQUIRE(bool(p), error_of(p));
    const std::size_t constants = is_tree ? 65'535 : 0;  // x + 0 is x
    BOOST_TEST(p->actors.size() == 3U + constants);
    BOOST_TEST(p->edges.size() == 2U + constants);  // x is sent once, whoever uses it
  }
}

BOOST_AUTO_TEST_SUITE_END()
