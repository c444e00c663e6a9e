// Each pass by itself: what it makes of a graph, before and after.

#include "devices/host/host_device.hpp"
#include "runtime/eager.hpp"
#include "runtime/op_table.hpp"
#include "runtime/passes/passes.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
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
    BOOST_TEST_REQUIRE(!g.first_error().has_value(), (g.first_error() ? g.first_error()->text() : ""));
    return troupe::passes::prune(g, roots);
  }
};

// "x = input(); add = add(x, x) -> add": a line of statements, and the roots.
std::string text_of(const troupe::passes::flow& f) {
  std::string out;
  const auto name = [&](troupe::passes::op_ref r) { return f.ops[r.op].name + (r.output == 0 ? "" : fmt::format(":{}", r.output)); };
  for (const auto& op : f.ops) {
    out += fmt::format("{} = {}(", op.name, op.type);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) out += (i == 0 ? "" : ", ") + name(op.inputs[i]);
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
  BOOST_TEST(text_of(before) == "x = input(); y = input(); add = add(x, y); exp = exp(add); add_1 = add(x, y); exp_1 = exp(add_1); mul = mul(exp, exp_1); -> mul");
  BOOST_TEST(text_of(troupe::passes::share(before)) == "x = input(); y = input(); add = add(x, y); exp = exp(add); mul = mul(exp, exp); -> mul");
}

BOOST_AUTO_TEST_CASE(what_differs_in_anything_is_not_shared) {
  fixture f;
  const auto x = f.x();
  std::vector<value> roots{add(x, f.x("y")), add(f.g.nodes().size() > 1 ? value{&f.g, 1, 0} : x, x)};  // operands in another order
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
  BOOST_TEST(text_of(after) == "x = input(); standardize = standardize(x); -> standardize standardize:2 standardize:1");
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

BOOST_AUTO_TEST_CASE(tensors_are_folded_with_their_bytes) {
  fixture f;
  const auto x = f.x();
  const auto two = constant(f.g, tensor::of({1, -2}, {2}), "t");
  const auto after = troupe::passes::fold(f.flow_of({add(x, concat({neg(two), square(two)}, 0))}), f.ops);
  BOOST_TEST(text_of(after) == "x = input(); concat = constant_tensor(); add = add(x, concat); -> add");
  const auto bytes = after.ops[1].attrs.data("data");
  std::array<float, 4> numbers{};
  BOOST_TEST_REQUIRE(bytes.view().size() == sizeof numbers);
  std::memcpy(numbers.data(), bytes.view().data(), sizeof numbers);
  BOOST_TEST(numbers == (std::array<float, 4>{-1, 2, 1, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_drawn_fed_or_large_is_left_to_the_step) {
  fixture f;
  const auto one = constant(f.g, 1.0F, "one");
  std::vector<value> roots{random_uniform_like(tile(expand_dims(one, {0}), {4})), dropout(tile(expand_dims(one, {0}), {4}), 0.5)};
  roots.push_back(tile(expand_dims(constant(f.g, 7.0F, "seven"), {0}), {100'000}));
  roots.push_back(gather(constant(f.g, tensor::of({1, 2}, {2}), "few"), constant(f.g, 5, dtype::i32, "outside"), 0));  // an error of its step
  const auto after = troupe::passes::fold(f.flow_of(roots), f.ops);
  const auto has = [&](std::string_view type) {
    return std::any_of(after.ops.begin(), after.ops.end(), [&](const auto& op) { return op.type == type; });
  };
  for (const auto* type : {"random_uniform_like", "dropout_mask", "tile", "gather"}) BOOST_TEST(has(type), type);
}

BOOST_AUTO_TEST_CASE(numbers_of_every_kind_keep_their_bits) {
  fixture f;
  for (const float x : {-0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::denorm_min(), std::nanf("7")}) {
    fixture one;
    const auto after = troupe::passes::fold(one.flow_of({neg(constant(one.g, x, "x"))}), one.ops);
    BOOST_TEST_REQUIRE(after.ops.size() == 1U);
    if (std::isnan(x)) {
      BOOST_TEST(after.ops[0].type == "constant_tensor");
      continue;
    }
    BOOST_TEST(after.ops[0].type == "constant");
    const auto y = static_cast<float>(after.ops[0].attrs.real("value"));
    BOOST_TEST((y == -x && std::signbit(y) != std::signbit(x)));
  }
}

BOOST_AUTO_TEST_SUITE_END()
