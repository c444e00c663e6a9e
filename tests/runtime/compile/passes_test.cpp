// Each pass by itself: what it makes of a graph, before and after.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();
  graph g{ops};

  value x(const char* name = "x") { return input(g, {dtype::f32, {4}}, name); }
  troupe::passes::flow flow_of(std::vector<value> roots) {
    BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                       (g.first_error() ? g.first_error()->text() : ""));
    return troupe::passes::prune(g, roots);
  }
};

// "x = input(); add = add(x, x) -> add": a line of statements, and the roots.
std::string text_of(const troupe::passes::flow& f) {
  std::string out;
  const auto name = [&](troupe::passes::op_ref r) {
    return f.ops[r.op].name + (r.output == 0 ? "" : fmt::format(":{}", r.output));
  };
  for (const auto& op : f.ops) {
    out += fmt::format("{} = {}(", op.name, op.type);
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      out += (i == 0 ? "" : ", ") + name(op.inputs[i]);
    out += "); ";
  }
  out += "->";
  for (const auto& r : f.roots) out += " " + name(r);
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(passes)  // hides the namespace of that name: troupe::passes

// --- share ---

BOOST_AUTO_TEST_CASE(equal_ops_are_shared_and_what_follows_from_them) {
  fixture f;
  const auto x = f.x(), y = f.x("y");
  const auto first = exp(add(x, y));
  const auto before = f.flow_of({mul(first, exp(add(x, y)))});
  BOOST_TEST(
      text_of(before) ==
      "x = input(); y = input(); add = add(x, y); exp = exp(add); add_1 = add(x, y); exp_1 = exp(add_1); mul = mul(exp, exp_1); -> mul");
  BOOST_TEST(
      text_of(troupe::passes::share(before)) ==
      "x = input(); y = input(); add = add(x, y); exp = exp(add); mul = mul(exp, exp); -> mul");
}

BOOST_AUTO_TEST_CASE(what_differs_in_anything_is_not_shared) {
  fixture f;
  const auto x = f.x();
  // Operands in another order.
  std::vector<value> roots{add(x, f.x("y")),
                           add(f.g.nodes().size() > 1 ? value{&f.g, 1, 0} : x, x)};
  roots.push_back(reduce_sum(x, {0}, true));
  roots.push_back(reduce_sum(x, {0}, false));
  roots.push_back(constant(f.g, 0.0F));
  roots.push_back(constant(f.g, -0.0F));
  roots.push_back(random_uniform(f.g, {dtype::f32, {4}}));
  roots.push_back(random_uniform(f.g, {dtype::f32, {4}}));  // another stream of numbers
  roots.push_back(input(f.g, {dtype::f32, {4}}, "z"));
  {
    const auto there = f.g.device_scope("/cpu:1");
    roots.push_back(reduce_sum(x, {0}, true));
  }
  const auto before = f.flow_of(roots);
  BOOST_TEST(text_of(troupe::passes::share(before)) == text_of(before));
}

BOOST_AUTO_TEST_CASE(several_outputs_stay_apart) {
  fixture f;
  const auto a = standardize(f.x()), b = standardize(value{&f.g, 0, 0});
  const auto after = troupe::passes::share(f.flow_of({a.y, b.scale, b.mean}));
  BOOST_TEST(
      text_of(after) ==
      "x = input(); standardize = standardize(x); -> standardize standardize:2 standardize:1");
}

// --- fold ---

BOOST_AUTO_TEST_CASE(what_follows_from_constants_alone_is_one) {
  fixture f;
  const auto x = f.x();
  const auto two = constant(f.g, 2.0F, "two"), three = constant(f.g, 3.0F, "three");
  const auto before = f.flow_of({add(x, exp(mul(two, sqrt(three))))});
  const auto after = troupe::passes::fold(before, f.ops);
  BOOST_TEST(text_of(after) == "x = input(); exp = constant(); add = add(x, exp); -> add");
  // With the bits that the kernels give.
  const auto kernels = make_host_kernels();
  host_device device;
  eager e(f.ops, kernels, device);
  const auto expected = e.read(exp(mul(constant(e, 2.0F), sqrt(constant(e, 3.0F)))));
  BOOST_TEST(static_cast<float>(after.ops[1].attrs.real("value")) == *expected->data<float>());
}

BOOST_AUTO_TEST_CASE(folding_leaves_the_arithmetic_of_the_thread_as_it_was) {
  fixture f;
  const auto row = constant(f.g, tensor::of({1, 2}, {1, 2}), "row");
  const auto roots = f.flow_of({matmul(row, row, false, true)});
  std::fesetenv(FE_DFL_ENV);               // whatever tests before have left
  const volatile float small = 0x1p-130F;  // kernels take it for 0
  BOOST_TEST_REQUIRE(small * 2 != 0);
  const auto after = troupe::passes::fold(roots, f.ops);
  BOOST_TEST(text_of(after) == "matmul = constant_tensor(); -> matmul");
  BOOST_TEST(small * 2 != 0);
}

// A number that no kernel has is none when it is computed before, either.
BOOST_AUTO_TEST_CASE(what_is_folded_has_the_arithmetic_of_a_step) {
  fixture f;
  const auto row = constant(f.g, tensor::of({1e-30F, 2}, {2}), "row");
  const auto small = constant(f.g, tensor::of({1e-10F, 3}, {2}), "small");
  const auto roots = f.flow_of({mul(row, small)});
  std::fesetenv(FE_DFL_ENV);
  const auto after = troupe::passes::fold(roots, f.ops);
  BOOST_TEST_REQUIRE(after.ops.size() == 1U);
  const auto bytes = after.ops[0].attrs.data("data");
  std::array<float, 2> numbers{};
  BOOST_TEST_REQUIRE(bytes.view().size() == sizeof numbers);
  std::memcpy(numbers.data(), bytes.view().data(), sizeof numbers);
  BOOST_TEST(numbers[0] == 0.0F);
  BOOST_TEST(numbers[1] == 6.0F);
}

BOOST_AUTO_TEST_CASE(tensors_are_folded_with_their_bytes) {
  fixture f;
  const auto x = f.x();
  const auto two = constant(f.g, tensor::of({1, -2}, {2}), "t");
  const auto after =
      troupe::passes::fold(f.flow_of({add(x, concat({neg(two), square(two)}, 0))}), f.ops);
  BOOST_TEST(text_of(after) ==
             "x = input(); concat = constant_tensor(); add = add(x, concat); -> add");
  const auto bytes = after.ops[1].attrs.data("data");
  std::array<float, 4> numbers{};
  BOOST_TEST_REQUIRE(bytes.view().size() == sizeof numbers);
  std::memcpy(numbers.data(), bytes.view().data(), sizeof numbers);
  BOOST_TEST(numbers == (std::array<float, 4>{-1, 2, 1, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_drawn_fed_or_large_is_left_to_the_step) {
  fixture f;
  const auto one = constant(f.g, 1.0F, "one");
  std::vector<value> roots{random_uniform_like(tile(expand_dims(one, {0}), {4})),
                           dropout(tile(expand_dims(one, {0}), {4}), 0.5)};
  roots.push_back(tile(expand_dims(constant(f.g, 7.0F, "seven"), {0}), {100'000}));
  // An error of its step.
  roots.push_back(gather(constant(f.g, tensor::of({1, 2}, {2}), "few"),
                         constant(f.g, 5, dtype::i32, "outside"), 0));
  const auto after = troupe::passes::fold(f.flow_of(roots), f.ops);
  const auto has = [&](std::string_view type) {
    return std::any_of(after.ops.begin(), after.ops.end(),
                       [&](const auto& op) { return op.type == type; });
  };
  for (const auto* type : {"random_uniform_like", "dropout_mask", "tile", "gather"})
    BOOST_TEST(has(type), type);
}

BOOST_AUTO_TEST_CASE(numbers_of_every_kind_keep_their_bits) {
  fixture f;
  for (const float x : {-0.0F, std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::denorm_min(), std::nanf("7")}) {
    fixture one;
    const auto after = troupe::passes::fold(one.flow_of({neg(constant(one.g, x, "x"))}), one.ops);
    BOOST_TEST_REQUIRE(after.ops.size() == 1U);
    if (std::isnan(x)) {
      BOOST_TEST(after.ops[0].type == "constant_tensor");
      continue;
    }
    BOOST_TEST(after.ops[0].type == "constant");
    const auto y = static_cast<float>(after.ops[0].attrs.real("value"));
    // As a step has it, which takes numbers this small for 0.
    const auto kernels = make_host_kernels();
    host_device device;
    eager e(one.ops, kernels, device);
    const auto step = e.read(neg(constant(e, x)));
    BOOST_TEST_REQUIRE(bool(step));
    BOOST_TEST(std::bit_cast<std::uint32_t>(y) ==
               std::bit_cast<std::uint32_t>(*step->data<float>()));
    if (std::fpclassify(x) != FP_SUBNORMAL)
      BOOST_TEST((y == -x && std::signbit(y) != std::signbit(x)));
  }
}

// --- feed ---

BOOST_AUTO_TEST_CASE(what_is_fed_is_not_computed_nor_what_only_it_needs) {
  fixture f;
  const auto x = f.x(), y = f.x("y");
  const auto inner = exp(add(x, y));
  const auto before = f.flow_of({mul(inner, y), inner});  // the last root is fed
  const std::string names[] = {"exp"};
  BOOST_TEST(text_of(troupe::passes::feed(before, names)) ==
             "exp = input(); y = input(); mul = mul(exp, y); -> mul");
  const std::string input_name[] = {"y"};
  BOOST_TEST(
      text_of(troupe::passes::feed(f.flow_of({mul(inner, y), y}), input_name)) ==
      "x = input(); y = input(); add = add(x, y); exp = exp(add); mul_1 = mul(exp, y); -> mul_1");
}

BOOST_AUTO_TEST_CASE(one_output_of_several_is_fed) {
  fixture f;
  const auto image = input(f.g, {dtype::f32, {1, 1, 2, 2}}, "image");
  const auto pooled = max_pool2d(image);
  const value places{&f.g, pooled.node, 1};
  const auto before = f.flow_of({add(pooled, pooled), places, pooled});
  const std::string names[] = {"pooled"};
  BOOST_TEST(
      text_of(troupe::passes::feed(before, names)) ==
      "pooled = input(); image = input(); max_pool2d = max_pool2d(image); add = add(pooled, pooled); -> add max_pool2d:1");
}

// --- fast ---

BOOST_AUTO_TEST_CASE(kernels_that_can_cut_their_sums_may) {
  fixture f;
  const auto m = input(f.g, {dtype::f32, {4, 4}}, "m");
  const auto after = troupe::passes::fast(f.flow_of({exp(matmul(m, m))}));
  for (const auto& op : after.ops)
    BOOST_TEST((op.attrs.integer("fast") != 0) == (op.type == "matmul"), op.name);
}

// --- partition: streams of one task ---

std::string readers_of_x(int elsewhere) {
  fixture f;
  const auto x = exp(f.x());
  std::vector<value> out{neg(x)};
  for (int i = 0; i < elsewhere; ++i) {
    const auto on = f.g.device_scope("/cpu:1");
    out.push_back(abs(x));
  }
  const auto p = compile_steps(f.g, out, {.fuse = false, .share = false});
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  std::string text;
  for (const auto& a : p->actors)
    if (a.name == "exp" || (a.ops.size() == 1 && a.ops[0].type == "relay"))
      text += fmt::format("{} on {} -> {}; ", a.name, a.stream, a.outputs[0].size());
  return text;
}

BOOST_AUTO_TEST_CASE(an_item_goes_to_another_stream_once) {
  BOOST_TEST(readers_of_x(0) == "exp on 0 -> 1; ");
  // Two messages are no more than one and an actor.
  BOOST_TEST(readers_of_x(2) == "exp on 0 -> 3; ");
  BOOST_TEST(readers_of_x(5) == "exp on 0 -> 2; exp/relay/1 on 1 -> 5; ");
}

// "fetch on 0 <- 2; ": the fetches of a graph that gives `here` values on stream 0 and `there` on
// stream 1, in turns while both last.
std::string fetches_of(int here, int there) {
  fixture f;
  const auto x = f.x();
  std::vector<value> out;
  for (int i = 0; i < std::max(here, there); ++i)
    for (const int on : {0, 1}) {
      if (i >= (on == 0 ? here : there)) continue;
      const auto scope = f.g.device_scope(fmt::format("/cpu:{}", on));
      out.push_back(abs(x));
    }
  const auto p = compile_steps(f.g, out, {.fuse = false, .share = false});
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  BOOST_TEST((*decode_plan(encode(*p)) == *p));
  std::string text;
  for (const auto& a : p->actors) {
    if (a.kind != actor_kind::fetch) continue;
    text += fmt::format("{} on {} <- {}; ", a.name, a.stream, a.inputs.size());
    for (std::size_t i = 0; i < a.inputs.size(); ++i) {
      const auto& maker = p->actors[p->edges[a.inputs[i]].from.actor].name;
      const auto asked = out[a.places[i]];
      BOOST_TEST(maker == f.g.node(asked.node).name);  // the value that was asked for in that place
    }
  }
  return text;
}

BOOST_AUTO_TEST_CASE(many_values_of_another_stream_are_collected_there) {
  // A message to the program is not worth so few.
  BOOST_TEST(fetches_of(2, 15) == "fetch on 0 <- 17; ");
  BOOST_TEST(fetches_of(2, 16) == "fetch on 0 <- 2; fetch/1 on 1 <- 16; ");
  BOOST_TEST(fetches_of(0, 16) == "fetch on 1 <- 16; ");
  BOOST_TEST(fetches_of(500, 500) == "fetch on 0 <- 500; fetch/1 on 1 <- 500; ");
}

// --- credits ---

BOOST_AUTO_TEST_CASE(an_edge_has_as_many_credits_as_its_bytes_allow) {
  fixture f;
  // 16 B, 4 MiB.
  const auto small = f.x("small"), large = input(f.g, {dtype::f32, {1 << 20}}, "large");
  const auto credits = [&](std::size_t edge_bytes) {
    const std::vector<value> out{exp(small), exp(large)};
    const auto p = compile_steps(f.g, out, {.credits = 5, .edge_bytes = edge_bytes});
    BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
    std::string text;
    for (const auto& e : p->edges)
      if (p->actors[e.from.actor].kind == actor_kind::feed)
        text += fmt::format("{} {} ", p->actors[e.from.actor].name, e.credits);
    return text;
  };
  BOOST_TEST(credits(std::size_t{64} << 20) == "small 5 large 5 ");
  BOOST_TEST(credits(std::size_t{12} << 20) == "small 5 large 3 ");
  BOOST_TEST(credits(1) == "small 1 large 1 ");
}

BOOST_AUTO_TEST_SUITE_END()
