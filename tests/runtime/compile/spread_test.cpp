#include "tests/support/graph_files.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/analysis/op_times.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_library.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>

using namespace troupe;

namespace {

result<std::vector<tensor_spec>> like_the_first(const attributes&, std::span<const tensor_spec> in,
                                                const tag*) {
  return std::vector<tensor_spec>{in.empty() ? tensor_spec{dtype::f32, {4}} : in[0]};
}

// Ops of a user: one that takes a value, an element-wise one, and a reader.
void add_ops(op_table& ops, kernel_table& kernels) {
  ops.add("stage", {.inputs = 1,
                    .shapes = like_the_first,
                    .gradient = [](graph&, const graph_node&, std::span<const value> dy) {
                      return std::vector<value>{dy[0]};
                    }});
  ops.add("simple", {.inputs = 1, .shapes = like_the_first, .is_elementwise = true});
  ops.add("fetch_data", {.inputs = 0, .shapes = like_the_first, .is_source = true});
  for (const char* name : {"stage", "simple", "fetch_data"})
    kernels.add(name, {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                  return error(error_code::failed, "nothing runs here");
                }});
}

const op_table& ops() {
  static const auto table = [] {
    const op_library library{.name = "stages", .version = "1", .add = add_ops};
    auto t = make_op_table();
    kernel_table kernels;
    const auto added = troupe::add_ops(t, kernels, library);
    BOOST_REQUIRE_MESSAGE(bool(added), (added ? "" : added.error().text()));
    return t;
  }();
  return table;
}

// `number` tells ops apart that else were one: equal ops are shared.
value call(const char* type, value x, std::int64_t number = 0) {
  const std::array operands{x};
  return x.owner->add(type, operands, {{"number", number}}, type, source_location::current());
}
value read(graph& g) {
  return g.add("fetch_data", {}, {{"part", 0}, {"parts", 1}, {"global_scale", 0}}, "fetch_data",
               source_location::current());
}

std::map<std::string, std::uint32_t> streams_of(const graph& g, value fetch, compile_options o) {
  const auto p = compile_steps(g, {&fetch, 1}, o);
  BOOST_REQUIRE_MESSAGE(bool(p), (p ? "" : p.error().text()));
  std::map<std::string, std::uint32_t> out;
  for (const auto& a : p->actors) out[a.name] = a.stream;
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(spread)

BOOST_AUTO_TEST_CASE(a_reader_and_its_stages_have_a_stream_each) {
  graph g(ops());
  const auto last = call("stage", call("stage", call("stage", read(g))));
  auto at = streams_of(g, last, {.streams = 4});
  // A reader that is not measured is guessed by its bytes, and stays; stages are guessed to be
  // long.
  BOOST_TEST((std::set{at["stage"], at["stage_1"], at["stage_2"]}).size() == 3U);
  for (const auto& [name, stream] : streams_of(g, last, {.streams = 1}))
    BOOST_TEST(stream == 0U, name);
  for (const auto& [name, stream] : streams_of(g, last, {.spread = false, .streams = 4}))
    BOOST_TEST(stream == 0U, name);
  auto times = std::make_shared<op_times>();
  planned_op op;
  op.type = "fetch_data", op.name = "fetch_data";
  const tensor_spec made{dtype::f32, {4}};
  times->add(op_times::key_of({&op, 1}, {}, {&made, 1}), 1, 30e6);
  at = streams_of(g, last, {.streams = 4, .times = times});
  BOOST_TEST((std::set{at["fetch_data"], at["stage"], at["stage_1"], at["stage_2"]}).size() == 4U);
}

BOOST_AUTO_TEST_CASE(what_is_small_stays_with_what_it_takes_from) {
  graph g(ops());
  const auto x = input(g, {dtype::f32, {4}}, "x");
  const auto one = relu(call("stage", x));
  const auto other = exp(call("stage", x, 1)) * 2;
  const auto at = streams_of(g, one + other, {.fuse = false, .streams = 2});
  BOOST_TEST(at.at("stage") != at.at("stage_1"));
  BOOST_TEST(at.at("relu") == at.at("stage"));
  BOOST_TEST(at.at("exp") == at.at("stage_1"));
  BOOST_TEST(at.at("mul") == at.at("stage_1"));
}

// Ops that ship with Troupe share streams by tiles; those of users that are element-wise are fused.
BOOST_AUTO_TEST_CASE(what_is_cut_into_tiles_stays) {
  graph g(ops());
  const auto x = input(g, {dtype::f32, {256, 256}}, "x");
  const auto y = matmul(x, x) + matmul(relu(x), x) + call("simple", matmul(x, exp(x)));
  for (const auto& [name, stream] : streams_of(g, y, {.streams = 4}))
    BOOST_TEST(stream == 0U, name);
}

BOOST_AUTO_TEST_CASE(long_ones_go_where_the_least_is_to_do) {
  graph g(ops());
  const auto x = input(g, {dtype::f32, {512, 512}}, "x");
  auto busy = x;  // some 130 ms of products, by shapes
  for (int i = 0; i < 16; ++i) busy = matmul(busy, x);
  const auto y = reduce_sum(busy) + reduce_sum(call("stage", x)) + reduce_sum(call("stage", x, 1));
  const auto at = streams_of(g, y, {.streams = 2});
  BOOST_TEST(at.at("stage") == 1U);
  BOOST_TEST(at.at("stage_1") == 1U);
}

// In step with a variable, a stage and the one before it cannot overlap; two that part can.
BOOST_AUTO_TEST_CASE(what_waits_for_a_variable_stays_with_what_it_waits_for) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    graph g(ops());
    const auto w = variable(g, {dtype::f32, {4}}, {}, "w");
    const auto first = call("stage", call("stage", w * 2));
    const auto loss = reduce_sum(call("stage", first) + call("stage", first, 1));
    training_spec spec;
    spec.update = update;
    const auto p = compile_training(g, loss, spec, {.fuse = false, .streams = 4});
    BOOST_REQUIRE_MESSAGE(bool(p), (p ? "" : p.error().text()));
    std::map<std::string, std::uint32_t> at;
    for (const auto& a : p->actors) at[a.name.substr(a.name.rfind('/') + 1)] = a.stream;
    if (update == update_kind::sync) {
      BOOST_TEST(at.at("stage_1") == at.at("stage"));
      BOOST_TEST((at.at("stage_2") == at.at("stage_1") || at.at("stage_3") == at.at("stage_1")));
    }
    BOOST_TEST(at.at("stage_2") != at.at("stage_3"));
  }
}

// What several workers have beside their long ops is not gathered on one stream.
BOOST_AUTO_TEST_CASE(workers_keep_streams_of_their_own) {
  graph g(ops());
  const auto w = variable(g, {dtype::f32, {4}}, {}, "w");
  const auto loss = reduce_sum(exp(call("stage", call("stage", w * 2), 1)));
  training_spec spec;
  spec.workers = 2;
  const auto p = compile_training(g, loss, spec, {.fuse = false, .streams = 2});
  BOOST_REQUIRE_MESSAGE(bool(p), (p ? "" : p.error().text()));
  std::map<std::string, std::uint32_t> at;
  for (const auto& a : p->actors) at[a.name] = a.stream % 2;
  BOOST_TEST(at.at("worker/0/mul") != at.at("worker/1/mul"));
}

BOOST_AUTO_TEST_CASE(wishes_and_loops_are_left_alone) {
  graph g(ops());
  const auto x = input(g, {dtype::f32, {4}}, "x");
  value here;
  {
    const auto scope = g.device_scope("/cpu:0");
    here = call("stage", x);
  }
  const auto n = while_loop(
      std::array{x, here}, [&](auto v) { return less(reduce_sum(v[0]), reduce_sum(v[1])); },
      [&](auto v) { return std::vector{call("stage", v[0]), v[1]}; }, {.iterations_max = 5});
  const auto at = streams_of(g, n[0], {.streams = 4});
  for (const auto& [name, stream] : at) BOOST_TEST(stream == 0U, name);
}

BOOST_AUTO_TEST_SUITE_END()
