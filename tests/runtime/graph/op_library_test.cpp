// Libraries of users' ops: what is added, what is refused, and what a node says of a plan whose
// libraries it lacks.

#include "troupe/runtime/graph/op_library.hpp"

#include "apps/own_op/own_ops.cpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/layers/eager.hpp"

#include <boost/test/unit_test.hpp>

#include <stdexcept>
#include <string>

namespace {

value swish_gate(value a, value b, double beta,
                 source_location where = source_location::current()) {
  const value operands[] = {a, b};
  return a.owner->add("swish_gate", operands, {{"beta", beta}}, "swish_gate", where);
}

struct tables {
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;

  result<void> add(const op_library& l) { return add_ops(ops, kernels, l, "file.so"); }
  std::string refused(const op_library& l) {
    const auto rows = ops.rows().size(), kernel_rows = kernels.rows().size();
    const auto done = add(l);
    BOOST_TEST(ops.rows().size() == rows);  // OL-2
    BOOST_TEST(kernels.rows().size() == kernel_rows);
    return done ? "not refused" : done.error().text();
  }
  troupe::plan steps() {
    graph g(ops);
    const auto a = input(g, {dtype::f32, {2, 3}}, "a"), b = input(g, {dtype::f32, {2, 3}}, "b");
    const value fetches[] = {relu(swish_gate(a, b, 2))};
    auto p = compile_steps(g, fetches, {});
    BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
    return *p;
  }
};

const op_library& own() { return *troupe_op_library(); }

op_library named(const char* name, const char* version) {
  auto l = own();
  l.name = name, l.version = version;
  return l;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Sum of swish_gate(a, b) in f64, and its gradients.
double sum_at(tables& t, std::vector<double> a, std::vector<double> b, double beta,
              std::vector<tensor>* gradients_out = nullptr) {
  eager e(t.ops, t.kernels, t.device);
  const eager::tape tape(e);
  const auto n = static_cast<std::int64_t>(a.size());
  const value x[] = {e.value_of(tensor::of<double>(dtype::f64, {n}, a)),
                     e.value_of(tensor::of<double>(dtype::f64, {n}, b))};
  const auto sum = reduce_sum(swish_gate(x[0], x[1], beta));
  if (gradients_out != nullptr)
    for (const auto g : gradients(e, sum, x)) gradients_out->push_back(*e.read(g));
  return e.read(sum)->data<double>()[0];
}

}  // namespace

BOOST_AUTO_TEST_SUITE(op_library)

BOOST_FIXTURE_TEST_CASE(an_op_that_is_added_says_which_library_it_comes_from, tables) {
  BOOST_TEST_REQUIRE(bool(add(own())));
  BOOST_TEST_REQUIRE(ops.find("swish_gate") != nullptr);
  BOOST_TEST((*ops.find("swish_gate")->library == library_id{"own_ops", "1.0", op_library_abi()}));
  BOOST_TEST((ops.find("relu")->library == nullptr));
  BOOST_TEST((libraries_of(ops) == std::vector<library_id>{{"own_ops", "1.0", op_library_abi()}}));
}

BOOST_FIXTURE_TEST_CASE(its_values_and_gradients_are_those_of_the_formula, tables) {
  BOOST_TEST_REQUIRE(bool(add(own())));
  const std::vector<double> a{0.5, -2, 3, 0, 1e3}, b{-1, 0, 2.5, 40, -40};
  constexpr double beta = 1.7, h = 1e-6;
  double expected = 0;
  for (std::size_t i = 0; i < a.size(); ++i) expected += a[i] / (1 + std::exp(-beta * b[i]));
  std::vector<tensor> d;
  BOOST_TEST(sum_at(*this, a, b, beta, &d) == expected, boost::test_tools::tolerance(1e-14));
  BOOST_TEST_REQUIRE(d.size() == 2U);
  for (std::size_t i = 0; i < a.size(); ++i)
    for (const bool is_b : {false, true}) {
      auto up_a = a, up_b = b, down_a = a, down_b = b;
      (is_b ? up_b : up_a)[i] += h, (is_b ? down_b : down_a)[i] -= h;
      const auto slope =
          (sum_at(*this, up_a, up_b, beta) - sum_at(*this, down_a, down_b, beta)) / (2 * h);
      BOOST_TEST(
          std::abs(std::as_const(d[is_b]).data<double>()[i] - slope) < 1e-6 * (1 + std::abs(slope)),
          "operand " << is_b << ", element " << i);
    }
}

BOOST_FIXTURE_TEST_CASE(an_element_has_the_same_bits_wherever_it_stands, tables) {  // K-2, K-3
  BOOST_TEST_REQUIRE(bool(add(own())));
  eager e(ops, kernels, device);
  const auto all = [&](std::int64_t n) {
    const auto t =
        tensor::of<float>(dtype::f32, {n}, std::vector<float>(static_cast<std::size_t>(n), 0.3F));
    const auto u =
        tensor::of<float>(dtype::f32, {n}, std::vector<float>(static_cast<std::size_t>(n), -0.7F));
    return *e.read(swish_gate(e.value_of(t), e.value_of(u), 1.3));
  };
  const float alone = *all(1).data<float>();
  const tensor many = all(37);
  for (int i = 0; i < 37; ++i) BOOST_TEST(many.data<float>()[i] == alone);
  BOOST_TEST(all(0).elements() == 0);
}

BOOST_FIXTURE_TEST_CASE(operands_that_do_not_fit_are_an_error_at_the_users_line, tables) {
  BOOST_TEST_REQUIRE(bool(add(own())));
  graph g(ops);
  swish_gate(input(g, {dtype::f32, {2}}, "a"), input(g, {dtype::f32, {3}}, "b"), 1);
  BOOST_TEST_REQUIRE(bool(g.first_error()));
  BOOST_TEST(has(g.first_error()->text(), "op_library_test.cpp"), g.first_error()->text());
  BOOST_TEST(has(g.first_error()->text(), "both have one shape and one type"),
             g.first_error()->text());
}

BOOST_FIXTURE_TEST_CASE(OL_1_of_another_abi_nothing_is_touched, tables) {
  const troupe::op_library other{op_library_abi(op_interface + 1), reinterpret_cast<const char*>(1),
                                 reinterpret_cast<const char*>(1), nullptr};
  const auto text = refused(other);
  BOOST_TEST(has(text, "op library file.so: "), text);
  BOOST_TEST(has(text, "ABI"), text);
}

BOOST_FIXTURE_TEST_CASE(OL_2_what_does_not_fit_is_refused_whole, tables) {
  const auto with = [](void (*add)(op_table&, kernel_table&)) {
    auto l = own();
    l.add = add;
    return l;
  };
  BOOST_TEST(has(refused(named(nullptr, "1")), "its name and its version"));
  BOOST_TEST(has(refused(named("", "1")), "its name and its version"));
  BOOST_TEST(has(refused(named("own", "1\n2")), "its name and its version"));
  BOOST_TEST(has(refused(named("own", std::string(65, '1').c_str())), "its name and its version"));
  BOOST_TEST(has(refused(with(nullptr)), "no function"));
  BOOST_TEST(has(refused(with([](op_table&, kernel_table&) {})), "it adds no op"));
  BOOST_TEST(has(refused(with([](op_table& o, kernel_table&) {
                   o.add("x", {.shapes = shapes_of, .gradient = {}});
                 })),
                 "op 'x' has no kernel"));
  BOOST_TEST(has(refused(with([](op_table& o, kernel_table& k) {
                   o.add("x", {}), k.add("x", {make_kernel});
                 })),
                 "op 'x' has no shape rule"));
  BOOST_TEST(has(refused(with([](op_table& o, kernel_table& k) {
                   add_own_ops(o, k), k.add("y", {make_kernel});
                 })),
                 "kernel 'y' belongs to no op"));
  BOOST_TEST(has(refused(with([](op_table& o, kernel_table& k) {
                   add_own_ops(o, k), throw std::runtime_error("why");
                 })),
                 "adding its ops failed: why"));
  BOOST_TEST(has(refused(with([](op_table& o, kernel_table& k) { add_own_ops(o, k), throw 1; })),
                 "not a std::exception"));
}

BOOST_FIXTURE_TEST_CASE(OL_3_no_op_is_replaced, tables) {
  auto taker = own();
  taker.name = "taker";
  taker.add = [](op_table& o, kernel_table& k) {
    add_own_ops(o, k), o.add("relu", {.shapes = shapes_of, .gradient = {}}),
        k.add("relu", {make_kernel});
  };
  BOOST_TEST(has(refused(taker), "op 'relu' is taken: it ships with Troupe"));
  BOOST_TEST_REQUIRE(bool(add(own())));
  BOOST_TEST(has(refused(named("copy", "1.0")),
                 "op 'swish_gate' is taken: it is one of library own_ops 1.0"));
  BOOST_TEST(has(refused(named("own_ops", "2.0")),
                 "a library of that name is there already, own_ops 1.0"));
}

BOOST_FIXTURE_TEST_CASE(a_plan_names_the_libraries_that_it_uses_and_no_others, tables) {
  BOOST_TEST_REQUIRE(bool(add(own())));
  const auto p = steps();
  BOOST_TEST((p.libraries == std::vector<planned_library>{
                                 {{"own_ops", "1.0", op_library_abi()}, {"swish_gate"}}}));
  BOOST_TEST(lack_of(p, 0, ops, "n1") == "");
  graph g(ops);
  const value fetches[] = {relu(input(g, {dtype::f32, {2}}, "a"))};
  const auto plain = compile_steps(g, fetches, {});
  BOOST_TEST_REQUIRE(bool(plain));
  BOOST_TEST(plain->libraries.empty());
  BOOST_TEST(lack_of(*plain, 0, make_op_table(), "n1") == "");
}

BOOST_FIXTURE_TEST_CASE(a_node_that_lacks_the_library_says_what_it_has_instead, tables) {
  BOOST_TEST_REQUIRE(bool(add(own())));
  auto p = steps();
  BOOST_TEST(
      lack_of(p, 0, make_op_table(), "n1") ==
      "op 'swish_gate' needs library own_ops 1.0, and n1 has no library of that name: start it with troupe-node --load");
  tables other;
  BOOST_TEST_REQUIRE(bool(other.add(named("own_ops", "2.0"))));
  BOOST_TEST(lack_of(p, 0, other.ops, "n1") ==
             "op 'swish_gate' needs library own_ops 1.0, and n1 has own_ops 2.0");
  p.libraries[0].library.abi = 7;
  BOOST_TEST(has(lack_of(p, 0, ops, "n1"),
                 "needs library own_ops 1.0, and n1 has it from another build: its ABI is"));
  BOOST_TEST(has(lack_of(p, 0, ops, "n1"), "0000000000000007 is needed"));
}

BOOST_FIXTURE_TEST_CASE(a_plan_whose_ops_are_something_else_here_is_refused, tables) {
  const auto plain = ops;
  BOOST_TEST_REQUIRE(bool(add(own())));
  const auto good = steps();
  auto p = good;
  p.libraries.clear();  // it would run an op that it does not say
  BOOST_TEST(
      has(lack_of(p, 0, ops, "n1"),
          "op 'swish_gate' ships with Troupe for the plan, but on n1 it is one of library own_ops 1.0"),
      lack_of(p, 0, ops, "n1"));
  BOOST_TEST(has(lack_of(p, 0, plain, "n1"), "op 'swish_gate' is unknown on n1"));
  p = good;
  p.libraries[0].ops.push_back("relu");
  BOOST_TEST(
      has(lack_of(p, 0, ops, "n1"),
          "op 'relu' is one of library own_ops 1.0 for the plan, but on n1 it ships with Troupe"));
  p = good;
  p.libraries[0].ops.push_back("other_gate");
  BOOST_TEST(
      has(lack_of(p, 0, ops, "n1"), "op 'other_gate' of library own_ops 1.0 is unknown on n1"));
}

BOOST_AUTO_TEST_CASE(PM_4_who_lacks_a_library_is_left_out_with_the_reason) {
  const library_id wanted{"own_ops", "1.0", 5};
  std::vector<member_info> nodes(3);
  nodes[0].name = "n0", nodes[1].name = "n1", nodes[2].name = "n2";
  nodes[1].libraries = {{"a", "1", 5}, wanted};
  nodes[2].libraries = {{"own_ops", "0.9", 5}};
  const std::vector<planned_library> needed{{wanted, {"swish_gate"}}};
  const auto able = with_libraries(nodes, needed);
  BOOST_TEST_REQUIRE(able.nodes.size() == 1U);
  BOOST_TEST(able.nodes[0].name == "n1");
  BOOST_TEST_REQUIRE(able.left_out.size() == 2U);
  BOOST_TEST(has(able.left_out[0], "n0 has no library of that name"));
  BOOST_TEST(has(able.left_out[1], "n2 has own_ops 0.9"));
  BOOST_TEST(with_libraries(nodes, {}).nodes.size() == 3U);
}

BOOST_AUTO_TEST_SUITE_END()
