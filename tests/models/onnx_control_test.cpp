// Branches and loops of models whose way is known only when they run: as branches and loops of the
// graph, in a session. (Known ones: tests/runtime/onnx/onnx_test.cpp.)

#include "tests/support/onnx_writer.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/graph.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;
using test::onnx_writer;

namespace {

using numbers = std::vector<float>;

onnx_format::Attribute& graph_of(onnx_format::Node& n, const std::string& name,
                                 const onnx_writer& w) {
  auto& a = *n.add_attributes();
  a.set_name(name), a.set_type(5);
  *a.mutable_graph() = w.model.graph();
  return a;
}

reference::array number_of(dtype type, double x) { return {{type, {}}, {x}}; }

// What the model gives for each of these x, from one compiled graph.
std::vector<numbers> runs(const onnx_writer& w, const std::vector<numbers>& all) {
  const auto m = w.load();
  BOOST_REQUIRE_MESSAGE(m, (m ? "" : m.error().text()));
  const auto s = session::open({});
  BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
  graph g((*s)->ops());
  const auto built = m->build(g);
  BOOST_REQUIRE_MESSAGE(built, (built ? "" : built.error().text()));
  BOOST_REQUIRE(built->fixed.empty());
  const value fetch = built->outputs.at(0).at;
  auto run = (*s)->compile(g, std::span(&fetch, 1), {.name = "control"});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::vector<numbers> out;
  for (const auto& x : all) {
    const auto fed = (*run)->feed(g.node(built->inputs.at(0).at.node).name,
                                  tensor::of<float>(dtype::f32, {2}, std::span<const float>(x)));
    BOOST_REQUIRE_MESSAGE(fed, (fed ? "" : fed.error().text()));
    const auto got = (*run)->fetch();
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    const auto* d = got->at(0).data<float>();
    out.emplace_back(d, d + got->at(0).elements());
  }
  return out;
}

// is_large = sum(x) > 10
onnx_writer with_condition() {
  onnx_writer w(18);
  w.input("x", {dtype::f32, {2}});
  w.initializer("ten", number_of(dtype::f32, 10));
  w.node("ReduceSum", {"x"}, {"sum"}, {{"keepdims", std::int64_t{0}}});
  w.node("Greater", {"sum", "ten"}, {"is_large"});
  w.output("y");
  return w;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx_control)

BOOST_AUTO_TEST_CASE(a_branch_is_taken_by_what_is_fed) {
  auto w = with_condition();
  // Both branches have a value 'r', and read what is around them.
  onnx_writer then, otherwise;
  then.node("Sub", {"x", "ten"}, {"r"}), then.output("r");
  otherwise.initializer("own", {{dtype::f32, {2}}, {1, 2}});
  otherwise.node("Mul", {"x", "own"}, {"r"}), otherwise.output("r");
  auto& n = w.node("If", {"is_large"}, {"y"});
  graph_of(n, "then_branch", then), graph_of(n, "else_branch", otherwise);
  BOOST_CHECK(runs(w, {{1, 2}, {10, 20}, {3, 4}}) ==
              (std::vector<numbers>{{1, 4}, {0, 10}, {3, 8}}));
}

// x is doubled until its sum is above 10, five times at most.
BOOST_AUTO_TEST_CASE(a_loop_runs_as_often_as_what_is_fed_says) {
  auto w = with_condition();
  w.initializer("five", number_of(dtype::i64, 5));
  w.node("Not", {"is_large"}, {"is_small"});
  onnx_writer body(18);
  body.input("i", {dtype::i64, {}}), body.input("go", {dtype::boolean, {}});
  body.input("v", {dtype::f32, {2}});
  body.node("Add", {"v", "v"}, {"twice"});
  body.node("ReduceSum", {"twice"}, {"total"}, {{"keepdims", std::int64_t{0}}});
  body.node("LessOrEqual", {"total", "ten"}, {"on"});
  body.output("on"), body.output("twice");
  graph_of(w.node("Loop", {"five", "is_small", "x"}, {"y"}), "body", body);
  BOOST_CHECK(runs(w, {{1, 2}, {10, 20}, {0, 0.25F}, {0, 0}}) ==
              (std::vector<numbers>{{4, 8}, {10, 20}, {0, 8}, {0, 0}}));
}

BOOST_AUTO_TEST_SUITE_END()
