// Who reads a version when its gradient is made, and the gates that put it in order.

#include "troupe/runtime/analysis/read_order.hpp"

#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

using namespace troupe;

namespace {

using model = std::function<value(graph&)>;

// The weights of the second layer are just large enough to wait.
value layers_of(graph& g, std::int64_t width) {
  const auto x = input(g, {dtype::f32, {4, 512}}, "x");
  return reduce_sum(dense(relu(dense(x, 512, "first")), width, "second"));
}
value two_layers(graph& g) { return layers_of(g, 512); }

plan trained(const model& m, bool order_reads, training_spec spec = {}) {
  const auto ops = make_op_table();
  graph g(ops);
  spec.steps = 10;
  const auto p = compile_training(g, m(g), spec, {.order_reads = order_reads});
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  return *p;
}

std::string to_string(read_order o) {
  return o == read_order::ordered ? "ordered" : o == read_order::late ? "late" : "unknown";
}

// "first/bias ordered; first/weights late; ": of each variable, all workers.
std::string orders(const plan& p) {
  std::map<std::string, std::string> by_name;
  for (const auto& r : reads_of_versions(p))
    by_name[p.actors[r.shard].shard.variable] += " " + to_string(r.order);
  std::string text;
  for (const auto& [name, order] : by_name) text += name + order + "; ";
  return text;
}

std::string gates(const plan& p) {
  std::string text;
  for (const auto& a : p.actors)
    if (a.name.ends_with("/after_reads")) text += fmt::format("{}({}) ", a.name, a.inputs.size());
  return text;
}

const planned_actor& shard_of(const plan& p, std::string_view variable) {
  return *std::find_if(p.actors.begin(), p.actors.end(), [&](const auto& a) {
    return a.kind == actor_kind::shard && a.shard.variable == variable;
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(read_order)

BOOST_AUTO_TEST_CASE(the_product_that_goes_on_to_the_layer_below_is_waited_for) {
  const auto before = trained(two_layers, false), after = trained(two_layers, true);
  BOOST_TEST(
      orders(before) ==
      "first/bias ordered; first/weights ordered; second/bias ordered; second/weights late; ");
  BOOST_TEST(gates(before) == "");
  BOOST_TEST(
      orders(after) ==
      "first/bias ordered; first/weights ordered; second/bias ordered; second/weights ordered; ");
  BOOST_TEST(gates(after) == "worker/0/second/weights/after_reads(2) ");
}

BOOST_AUTO_TEST_CASE(a_small_gradient_does_not_wait) {
  const auto p = trained([](graph& g) { return layers_of(g, 511); }, true);
  BOOST_TEST(gates(p) == "");
  BOOST_TEST(orders(p).ends_with("second/weights late; "), orders(p));
}

BOOST_AUTO_TEST_CASE(each_worker_waits_for_its_own_readers) {
  training_spec s;
  s.workers = 3;
  const auto p = trained(two_layers, true, s);
  BOOST_TEST(
      gates(p) ==
      "worker/0/second/weights/after_reads(2) worker/1/second/weights/after_reads(2) worker/2/second/weights/after_reads(2) ");
  BOOST_TEST(orders(p).find("second/weights ordered ordered ordered; ") != std::string::npos,
             orders(p));
}

// A gradient that is made of the variable itself: what reads it is the actor that sends it.
BOOST_AUTO_TEST_CASE(what_reads_and_makes_the_gradient_is_done_when_a_gate_runs) {
  const model decay = [](graph& g) {
    return reduce_sum(square(variable(g, {dtype::f32, {1 << 18}}, {}, "w")));
  };
  BOOST_TEST(orders(trained(decay, false)) == "w late; ");
  const auto p = trained(decay, true);
  BOOST_TEST(orders(p) == "w ordered; ");
  BOOST_TEST(gates(p) == "worker/0/w/after_reads(1) ");
}

BOOST_AUTO_TEST_CASE(what_cannot_be_seen_is_not_said_and_gets_no_gate) {
  const model other_stream = [](graph& g) {
    const auto w = variable(g, {dtype::f32, {1 << 18}}, {}, "w");
    const auto there = g.device_scope("/cpu:1");
    return reduce_sum(mul(w, input(g, {dtype::f32, {1 << 18}}, "x")));
  };
  const model in_a_branch = [](graph& g) {
    const auto w = variable(g, {dtype::f32, {1 << 18}}, {}, "w");
    const auto x = input(g, {dtype::f32, {1 << 18}}, "x");
    const auto chosen = cond(
        less(reduce_sum(x), constant(g, 0.0F)), [&] { return mul(w, w); },
        [&] { return add(w, x); });
    return reduce_sum(add(chosen, w));
  };
  for (const auto& m : {other_stream, in_a_branch}) {
    const auto p = trained(m, true);
    BOOST_TEST(orders(p) != "w ordered; ", orders(p));
    BOOST_TEST(gates(p) == "");
  }
  training_spec apart;
  apart.tasks = 3;
  apart.task_names = {"/job:worker/task:0", "/job:ps/task:0", "/job:client/task:0"};
  apart.worker_task = {0};
  apart.shard_task = {1};
  apart.client_task = 2;
  BOOST_TEST(gates(trained(two_layers, true, apart)) == "");
  BOOST_TEST(orders(trained(two_layers, true, apart)).find(" ordered") == std::string::npos);
  training_spec async;
  async.update = update_kind::async;
  BOOST_TEST(orders(trained(two_layers, true, async)) == "");
}

BOOST_AUTO_TEST_CASE(more_readers_than_bits_in_a_word) {
  const model many = [](graph& g) {
    auto y = input(g, {dtype::f32, {512, 512}}, "x");
    for (int i = 0; i < 100; ++i)
      y = matmul(y, variable(g, {dtype::f32, {512, 512}}, {}, fmt::format("w{}", i)));
    return reduce_sum(y);
  };
  const auto before = orders(trained(many, false)), after = orders(trained(many, true));
  const auto count = [](const std::string& text, std::string_view what) {
    std::size_t n = 0;
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  BOOST_TEST(count(before, " late;") == 99U);
  BOOST_TEST(count(before, "w0 ordered;") == 1U);
  BOOST_TEST(count(after, " ordered;") == 100U);
}

BOOST_AUTO_TEST_CASE(a_shard_in_order_needs_one_version_and_one_gradient) {
  const auto bytes_of = [](const plan& p, const auto& is) {
    const auto needs = memory_by_actor(p);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < p.actors.size(); ++i)
      if (is(p.actors[i])) sum += needs[i];
    return sum;
  };
  const model big = [](graph& g) {
    return reduce_sum(
        dense(relu(dense(input(g, {dtype::f32, {1, 100}}, "x"), 1000, "first")), 1000, "second"));
  };
  const auto before = trained(big, false), after = trained(big, true);
  const auto is_shard = [](const planned_actor& a) {
    return a.kind == actor_kind::shard && a.shard.variable == "second/weights";
  };
  const std::uint64_t w = 4'000'000;
  // The version, its slot, and what is out.
  BOOST_TEST(bytes_of(before, is_shard) == (1 + 1 + 2) * w);
  BOOST_TEST(bytes_of(after, is_shard) == (1 + 1) * w);
  const auto makes_gradient = [](const plan& p) {
    return [&p](const planned_actor& a) {
      const auto e = shard_of(p, "second/weights").inputs[0];
      const auto* maker = &p.actors[p.edges[e].from.actor];
      if (maker->forwards_input) maker = &p.actors[p.edges[maker->inputs[0]].from.actor];
      return &a == maker;
    };
  };
  BOOST_TEST(bytes_of(before, makes_gradient(before)) == 2 * w);
  BOOST_TEST(bytes_of(after, makes_gradient(after)) == w);
}

// shard -> read -> reader; a source that knows nothing of them -> gate, which waits for the
// reader -> shard.
BOOST_AUTO_TEST_CASE(a_gradient_that_waits_for_a_version_may_be_made_before_it_came) {
  std::vector<planned_actor> a(5);
  a[0].kind = actor_kind::shard;
  a[0].shard.steps = {10};
  a[0].shard.readers = {{.worker = 0}};
  for (std::size_t i = 1; i < a.size(); ++i) a[i].ops = {{"neg", "op", {}, {}, {}}};
  const auto made_of_it = [&](bool knows) {
    const std::vector<port_ref> shard{{4, 0}}, read{{0, 0}}, reader{{1, 0}}, gate{{3, 0}, {2, 0}},
        source = knows ? reader : std::vector<port_ref>{};
    const std::vector<actor_view> views{
        {&a[0], shard}, {&a[1], read, true}, {&a[2], reader}, {&a[3], source}, {&a[4], gate, true}};
    const auto reads = reads_of_versions(views);
    BOOST_TEST_REQUIRE(reads.size() == 1U);
    BOOST_TEST(to_string(reads[0].order) == "ordered");
    return reads[0].is_made_of_it;
  };
  BOOST_TEST(!made_of_it(false));
  BOOST_TEST(made_of_it(true));
}

BOOST_AUTO_TEST_CASE(a_plan_that_is_not_whole_says_nothing) {
  auto p = trained(two_layers, true);
  p.actors.resize(3);
  BOOST_TEST(reads_of_versions(p).empty());
  BOOST_TEST(reads_of_versions(plan{}).empty());
}

BOOST_AUTO_TEST_SUITE_END()
