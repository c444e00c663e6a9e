// Graphs that are stepped, or run by feeds and fetches, on the nodes that their devices name.

#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

tensor row(std::vector<float> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return tensor::of<float>(dtype::f32, {n}, values);
}

// An op that takes as long as the gate is shut. Kernels know nothing of a test but what is global.
struct gate {
  std::atomic<bool> is_open{true};
  std::atomic<int> waiting{0};
};
gate the_gate;

class gate_kernel final : public kernel {
 public:
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor> in, std::span<tensor> out) override {
    ++the_gate.waiting;
    const auto end = std::chrono::steady_clock::now() + test::hang;
    while (!the_gate.is_open && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    --the_gate.waiting;
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      out[0].data<float>()[i] = in[0].data<float>()[i];
    return {};
  }
};

result<std::vector<tensor_spec>> like_the_first(const attributes&, std::span<const tensor_spec> in,
                                                const tag*) {
  return std::vector{in[0]};
}

void add_gate(op_table& ops, kernel_table& kernels) {
  ops.add("gate", {.inputs = 1, .shapes = like_the_first});
  kernels.add("gate", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<gate_kernel>());
              }});
}

const op_library gates{.name = "gates", .version = "1", .add = add_gate};

// Two layers, each on the node that a device names; `marks` is where the error of `second` points.
struct two_layers {
  value x, half, y;
  std::uint32_t second_line = 0;

  two_layers(graph& g, const std::string& first, const std::string& second) {
    x = input(g, {dtype::f32, {3}}, "x");
    {
      const auto there = g.device_scope(first);
      half = named(g, troupe::tanh(x * 3.0F), "half");
    }
    const auto there = g.device_scope(second);
    second_line = __LINE__ + 1;
    y = named(g, troupe::exp(half + 0.5F), "y");
  }
  static value named(graph& g, value v, const std::string& name) {
    g.node(v.node).name = name;
    return v;
  }
};

std::vector<float> numbers_of(const tensor& t) {
  const auto* data = t.data<float>();
  return {data, data + t.elements()};
}

std::string failure_of(session& s, const std::string& device) {
  graph g(s.ops());
  const two_layers layers(g, "/job:client", device);
  BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                     (g.first_error() ? g.first_error()->text() : ""));
  auto out = s.runner(g)->run({{"x", row({1, 2, 3})}}, {"y"});
  auto steps = s.compile(g, std::array{layers.y});
  BOOST_TEST(bool(out) == bool(steps));
  if (!out && !steps) BOOST_TEST(out.error().text() == steps.error().text());
  if (out) return {};
  BOOST_TEST((out.error().code() == error_code::usage));
  return out.error().text();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(graphs_over_nodes)

BOOST_AUTO_TEST_CASE(a_device_that_nobody_has_is_an_error_with_the_line_and_what_there_is) {
  test::own_nodes nodes("unknown", {{.name = "a", .labels = {"rack=3"}},
                                    {.job = "ps", .name = "b", .gpus = "host:1"}});
  auto alone = session::open({.roles = {"/job:worker/task:0"}, .gpus = "none"});
  BOOST_TEST_REQUIRE(bool(alone));
  for (const auto* device : {"/job:worker", "/job:worker/task:0", "/job:ps", "/task:0", "/node:a",
                             "/node:b/gpu:0", "/label:rack=3", "/job:ps/task:0/cpu:7"})
    BOOST_TEST(failure_of(nodes.client(), device) == "", device);
  for (const auto* device : {"/job:moon/task:7", "/job:worker/task:1", "/node:c", "/label:rack=4",
                             "/job:worker/gpu:0", "/node:b/gpu:1", "/job:ps/task:0/label:rack=3"}) {
    const auto text = failure_of(nodes.client(), device);
    BOOST_TEST(text.find("graphs_over_nodes_test.cpp:") != std::string::npos, text);
    BOOST_TEST(text.find(std::string("there is no task for device '") + device +
                         "'; tasks are /job:worker/task:0 (a, rack=3), /job:ps/task:0 (b, 1 gpu), "
                         "/job:client/task:0 (") != std::string::npos,
               text);
  }
  for (const auto* device : {"/job:client", "/job:worker/task:0", "/task:0"})
    BOOST_TEST(failure_of(**alone, device) == "", device);
  for (const auto* device : {"/job:moon/task:7", "/job:worker/task:1", "/job:ps", "/node:a"}) {
    const auto text = failure_of(**alone, device);
    BOOST_TEST(text.find(std::string("there is no task for device '") + device +
                         "'; tasks are /job:client/task:0 (") != std::string::npos,
               text);
    BOOST_TEST(text.find("/job:worker/task:0 (") != std::string::npos, text);
  }
}

BOOST_AUTO_TEST_CASE(a_process_refuses_names_and_labels_that_nobody_could_write) {
  std::vector<process_options> bad(3);
  bad[0].name = "a b";
  bad[1].labels = {"rack"};
  bad[2].labels.resize(labels_max + 1, "a=b");
  for (const auto& o : bad) BOOST_TEST(!process::start(o));
}

// A training has the tasks of its workers and shards, also alone.
BOOST_AUTO_TEST_CASE(a_training_refuses_a_device_that_it_does_not_have_alone_too) {
  auto alone = session::open({});
  BOOST_TEST_REQUIRE(bool(alone));
  for (const auto& [device, is_there] : {std::pair("/job:worker/task:1", true),
                                         {"/job:worker/task:2", false},
                                         {"/job:ps", true},
                                         {"/job:client", true},
                                         {"/job:moon", false},
                                         {"/node:a", false}}) {
    graph g((*alone)->ops());
    const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
    const auto there = g.device_scope(device);
    auto run = (*alone)->train(g, reduce_sum(w * w), {.workers = 2, .steps = 1});
    BOOST_TEST(bool(run) == is_there, device);
    if (!run)
      BOOST_TEST(run.error().text().find(std::string(device) == "/node:a"
                                             ? "names and labels of nodes are for graphs"
                                             : "there is no task for device") != std::string::npos,
                 run.error().text());
  }
}

BOOST_AUTO_TEST_CASE(eight_threads_run_parts_of_a_graph_over_three_processes) {
  test::own_nodes nodes("threads", {{.streams = 2}, {}});
  auto alone = session::open({.roles = {"/job:worker/task:0", "/job:worker/task:1"}});
  BOOST_TEST_REQUIRE(bool(alone));
  graph g(nodes.client().ops()), same((*alone)->ops());
  const two_layers layers(g, "/job:worker/task:0", "/job:worker/task:1");
  const two_layers here(same, "/job:worker/task:0", "/job:worker/task:1");
  const auto there = nodes.client().runner(g);
  const auto embedded = (*alone)->runner(same);
  std::atomic<int> equal{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto x = row({float(t), float(i), 1});
        const auto name = (t + i) % 2 == 0 ? "x" : "half";
        const auto a = there->run({{name, x}}, {"y", "half"});
        const auto b = embedded->run({{name, x}}, {"y", "half"});
        if (a && b && numbers_of((*a)[0]) == numbers_of((*b)[0]) &&
            numbers_of((*a)[1]) == numbers_of((*b)[1]))
          ++equal;
      }
    });
  threads.clear();
  BOOST_TEST(equal == 8 * 20);
  BOOST_TEST(there->compiled() == 2U);
}

BOOST_AUTO_TEST_CASE(a_node_that_goes_fails_the_runs_that_need_it_and_the_next_run_is_placed_anew) {
  test::own_nodes nodes("goes", {{.name = "first"}, {.name = "second"}}, {&gates});
  graph g(nodes.client().ops());
  const auto x = input(g, {dtype::f32, {1}}, "x");
  {
    const auto there = g.device_scope("/job:worker");  // the first that there is
    g.node(g.add("gate", std::array{x}, {}, "slow", source_location::current()).node).name = "slow";
  }
  const auto run = nodes.client().runner(g);
  BOOST_TEST_REQUIRE(bool(run->run({{"x", row({1})}}, {"slow"})));
  the_gate.is_open = false;
  std::string text;
  std::jthread waits([&] {
    const auto out = run->run({{"x", row({2})}}, {"slow"});
    text = out ? "it has ended" : out.error().text();
  });
  test::wait_until("the op runs", [] { return the_gate.waiting == 1; });
  std::jthread opens([] {  // the node ends when its op has
    std::this_thread::sleep_for(50ms);
    the_gate.is_open = true;
  });
  nodes.leave(0);
  waits.join();
  opens.join();
  // Either the op had ended before the node was gone, or who and what is said.
  BOOST_TEST((text == "it has ended" || text.find("first") != std::string::npos), text);
  test::wait_until("the client knows that it is gone",
                   [&] { return nodes.client().nodes().size() == 1; });
  const auto next = run->run({{"x", row({3})}}, {"slow"}, 30s);
  BOOST_TEST_REQUIRE(bool(next), (next ? "" : next.error().text()));
  BOOST_TEST(numbers_of((*next)[0]) == std::vector<float>{3});
}

BOOST_AUTO_TEST_CASE(a_node_that_joins_later_is_found_by_the_next_set) {
  test::own_nodes nodes("later", {{.name = "a"}});
  graph g(nodes.client().ops());
  const two_layers layers(g, "/node:a", "/node:b");
  const auto run = nodes.client().runner(g);
  const auto feed = row({1, 2, 3});
  BOOST_TEST(!run->run({{"x", feed}}, {"y"}));
  BOOST_TEST(bool(run->run({{"x", feed}}, {"half"})));
  nodes.add({.name = "b"});
  BOOST_TEST(bool(run->run({{"x", feed}}, {"y"})));
}

BOOST_AUTO_TEST_CASE(an_endless_loop_on_a_node_ends_with_the_deadline_of_its_run) {
  test::own_nodes nodes("endless", {{}});
  graph g(nodes.client().ops());
  const auto x = input(g, {dtype::f32, {}}, "x");
  {
    const auto there = g.device_scope("/job:worker/task:0");
    const auto last = while_loop(
        {x}, [](auto v) { return greater(v[0], v[0] * 0.0F); },
        [](auto v) { return std::vector<value>{v[0] * 1.0F}; })[0];
    g.node(mul(last, constant(g, 1.0F)).node).name = "last";
  }
  BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                     (g.first_error() ? g.first_error()->text() : ""));
  const auto run = nodes.client().runner(g);
  const auto one = [](float v) { return tensor::of<float>(dtype::f32, {}, std::vector{v}); };
  BOOST_TEST(bool(run->run({{"x", one(-1)}}, {"last"})));
  const auto late = run->run({{"x", one(1)}}, {"last"}, 100ms);
  BOOST_TEST((!late && late.error().code() == error_code::timed_out));
  const auto next = run->run({{"x", one(-2)}}, {"last"}, 60s);
  BOOST_TEST_REQUIRE(bool(next), (next ? "" : next.error().text()));
  BOOST_TEST(*(*next)[0].data<float>() == -2);

  const value last{&g, static_cast<std::uint32_t>(g.nodes().size() - 1), 0};
  auto steps = nodes.client().compile(g, std::array{last});
  BOOST_TEST_REQUIRE(bool(steps), (steps ? "" : steps.error().text()));
  const std::array forever{std::pair<std::string_view, tensor>("x", one(1))};
  const std::array ends{std::pair<std::string_view, tensor>("x", one(-3))};
  BOOST_TEST(((*steps)->step(forever, 100ms).error().code() == error_code::timed_out));
  const auto step = (*steps)->step(ends, 60s);
  BOOST_TEST_REQUIRE(bool(step), (step ? "" : step.error().text()));
}

BOOST_AUTO_TEST_SUITE_END()
