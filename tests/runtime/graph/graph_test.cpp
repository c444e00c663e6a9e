#include "troupe/runtime/layers/layers.hpp"

#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>

using namespace troupe;

namespace {

const tensor_spec matrix{dtype::f32, {2, 3}};

struct fixture {
  op_table ops = make_op_table();
  troupe::graph g{ops};
  const std::string& name(value v) const { return g.node(v.node).name; }
  const std::string& device(value v) const { return g.node(v.node).device; }
  std::string error_text() const { return g.first_error() ? g.first_error()->text() : "no error"; }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(graph)

BOOST_AUTO_TEST_CASE(names_are_scoped_and_unique) {
  fixture f;
  const auto a = input(f.g, matrix, "x"), b = input(f.g, matrix, "x"),
             c = input(f.g, matrix, "x_1"), d = input(f.g, matrix, "x");
  BOOST_TEST(f.name(a) == "x");
  BOOST_TEST(f.name(b) == "x_1");
  BOOST_TEST(f.name(c) == "x_1_1");
  BOOST_TEST(f.name(d) == "x_2");
  {
    const auto outer = f.g.name_scope("outer");
    const auto inner = f.g.name_scope("inner");
    BOOST_TEST(f.name(relu(a)) == "outer/inner/relu");
    BOOST_TEST(f.name(relu(a)) == "outer/inner/relu_1");
  }
  BOOST_TEST(f.name(relu(a)) == "relu");
}

BOOST_AUTO_TEST_CASE(towers_share_variables_whose_names_and_devices_are_their_own) {
  fixture f;
  const auto x = input(f.g, matrix, "x");
  std::vector<value> towers;
  for (const auto* tower : {"tower_0", "tower_1"}) {
    const auto on = f.g.device_scope(tower == std::string_view("tower_0") ? "/cpu:0" : "/cpu:1");
    const auto in = f.g.name_scope(tower);
    const auto shared = f.g.share_variables();
    const auto model = f.g.name_scope("model");
    towers.push_back(dense(x, 4, "layer"));
    const auto placed = f.g.device_scope("/job:worker");
    towers.push_back(variable(f.g, matrix, zeros(), "placed"));
  }
  BOOST_TEST(f.error_text() == "no error");
  BOOST_TEST(f.name(towers[0]) == "tower_0/model/layer/add");
  BOOST_TEST(f.name(towers[2]) == "tower_1/model/layer/add");
  BOOST_TEST(f.device(towers[2]) == "/cpu:1");
  const auto variables = f.g.variables();
  BOOST_TEST_REQUIRE(variables.size() == 3U);
  BOOST_TEST(f.name(variables[0]) == "model/layer/weights");
  BOOST_TEST(f.device(variables[0]) == "");
  BOOST_TEST(f.name(variables[2]) == "model/placed");
  BOOST_TEST(f.device(variables[2]) == "/job:worker");
  BOOST_TEST(towers[1].node == towers[3].node);
  // Behind the scopes all is as before.
  BOOST_TEST(f.name(dense(x, 4, "layer")) == "layer/add");
  BOOST_TEST(f.name(dense(x, 4, "layer")) == "layer/add_1");
  BOOST_TEST(f.g.variables().size() == 7U);
}

BOOST_AUTO_TEST_CASE(variables_that_cannot_be_shared_are_errors_with_both_lines) {
  const auto says = [](auto&& second, std::string_view text) {
    fixture f;
    const auto x = input(f.g, matrix, "x");
    const auto shared = f.g.share_variables();
    variable(f.g, matrix, zeros(), "w");
    BOOST_TEST(!second(f.g, x).is_valid());
    BOOST_TEST(f.error_text().find(text) != std::string::npos, f.error_text());
    BOOST_TEST(f.error_text().find("graph_test.cpp:") != f.error_text().rfind("graph_test.cpp:"),
               f.error_text());
  };
  says([](auto& g, value) { return variable(g, {dtype::f32, {3, 3}}, zeros(), "w"); },
       "variable 'w' is to be shared, but it is f32[3, 3] here and f32[2, 3] at ");
  says([](auto& g, value) { return variable(g, matrix, uniform(1), "w"); },
       "its initial values differ from those at ");
  says([](auto& g, value) { return variable(g, matrix, zeros(), "x"); }, "the input of ");
  says(
      [](auto& g, value x) {
        return moving_average(x, "m").is_valid()
                   ? moving_average(x, "m")
                   : (g.record(error(error_code::usage, "the first cannot fail")), value{});
      },
      "the average 'm' is shared, and ");
}

BOOST_AUTO_TEST_CASE(a_dense_layer_names_its_parts) {
  fixture f;
  const auto y = dense(input(f.g, matrix, "x"), 4, "layer");
  BOOST_TEST(f.name(y) == "layer/add");
  BOOST_TEST(to_string(y.spec()) == "f32[2, 4]");
  const auto variables = f.g.variables();
  BOOST_TEST_REQUIRE(variables.size() == 2U);
  BOOST_TEST(f.name(variables[0]) == "layer/weights");
  BOOST_TEST(f.name(variables[1]) == "layer/bias");
  const auto init = f.g.node(variables[0].node).initializer;
  BOOST_TEST((init->type == initializer_spec::kind::uniform));
  BOOST_TEST(std::abs(init->limit - 1 / std::sqrt(3.0)) < 1e-12);
}

BOOST_AUTO_TEST_CASE(inner_device_scopes_refine_outer_ones_until_they_end) {
  fixture f;
  const auto x = input(f.g, matrix, "x");
  {
    const auto outer = f.g.device_scope("/job:worker/cpu:1");
    BOOST_TEST(f.device(relu(x)) == "/job:worker/cpu:1");
    {
      const auto inner = f.g.device_scope("/task:2/cpu:0");
      BOOST_TEST(f.device(relu(x)) == "/job:worker/task:2/cpu:0");
    }
    BOOST_TEST(f.device(relu(x)) == "/job:worker/cpu:1");
  }
  BOOST_TEST(f.device(relu(x)) == "");
}

BOOST_AUTO_TEST_CASE(an_unknown_device_is_an_error_with_the_users_line) {
  fixture f;
  const auto line = std::to_string(source_location::current().line() + 1);
  const auto scope = f.g.device_scope("/tpu:0");
  BOOST_TEST(f.error_text().find("graph_test.cpp:" + line +
                                 ": device '/tpu:0': there is no 'tpu'") != std::string::npos,
             f.error_text());
}

BOOST_AUTO_TEST_CASE(the_first_error_is_kept_and_what_follows_from_it_is_silent) {
  fixture f;
  const auto x = input(f.g, matrix, "x");
  const auto bad = matmul(x, x);
  const auto first = f.error_text();
  BOOST_TEST(!bad.is_valid());
  BOOST_TEST(!relu(bad).is_valid());
  BOOST_TEST(!add(x, bad).is_valid());
  BOOST_TEST(!dense(bad, 3, "layer").is_valid());
  matmul(x, x);
  BOOST_TEST(f.error_text() == first);
  BOOST_TEST(add(x, x).is_valid());  // what does not depend on the error still builds
}

BOOST_AUTO_TEST_CASE(operands_of_no_graph_or_another_one_are_errors) {
  fixture f, other;
  const auto x = input(f.g, matrix, "x");
  BOOST_TEST(!add(x, value{}).is_valid());
  BOOST_TEST(
      f.error_text().find("operand 1 of add is not a value of any graph") != std::string::npos,
      f.error_text());
  fixture h;
  BOOST_TEST(!add(input(other.g, matrix, "y"), input(h.g, matrix, "x")).is_valid());
  BOOST_TEST(h.error_text().find("operand 0 of add belongs to another graph") != std::string::npos,
             h.error_text());
  fixture k;
  const auto z = input(k.g, matrix, "z");
  BOOST_TEST(!relu(value{&k.g, z.node, 1}).is_valid());
  BOOST_TEST(k.error_text().find("names an output that no op has") != std::string::npos,
             k.error_text());
  BOOST_TEST(!relu(value{}).is_valid());
}

BOOST_AUTO_TEST_CASE(names_of_other_characters_are_errors) {
  for (const auto* name : {"", "a b", "a+b", "a:0", "\n"}) {
    fixture f;
    BOOST_TEST(!input(f.g, matrix, name).is_valid());
    BOOST_TEST(f.error_text().find("use letters, digits") != std::string::npos, f.error_text());
    fixture s;
    const auto scope = s.g.name_scope(name);
    BOOST_TEST(s.error_text().find("graph_test.cpp") != std::string::npos, s.error_text());
  }
}

BOOST_AUTO_TEST_CASE(a_variable_needs_a_finite_limit) {
  fixture f;
  BOOST_TEST(!variable(f.g, matrix, {initializer_spec::kind::uniform, -1}, "w").is_valid());
  BOOST_TEST(f.error_text().find("variable 'w': the limit -1") != std::string::npos,
             f.error_text());
}

BOOST_AUTO_TEST_CASE(a_constant_without_a_tensor_or_with_too_many_bytes_is_an_error) {
  const auto ops = make_op_table();
  troupe::graph empty(ops);
  BOOST_TEST(!constant(empty, tensor(), "none").is_valid());
  BOOST_TEST_REQUIRE(empty.first_error().has_value());
  BOOST_TEST(
      empty.first_error()->text().find("constant 'none': there is no tensor") != std::string::npos,
      empty.first_error()->text());
  troupe::graph large(ops);
  BOOST_TEST(
      !constant(large,
                tensor::make({dtype::u8, {static_cast<std::int64_t>(constant_bytes_max) + 1}}),
                "large")
           .is_valid());
  BOOST_TEST_REQUIRE(large.first_error().has_value());
  BOOST_TEST(
      large.first_error()->text().find(
          "constant 'large': 536870912 bytes, at most 536870911 are allowed") != std::string::npos,
      large.first_error()->text());
}

BOOST_AUTO_TEST_SUITE_END()
