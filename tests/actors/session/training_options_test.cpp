// What a session and a training refuse before anything runs.

#include "tests/support/image_folder.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <optional>
#include <string>

using namespace troupe;

namespace {

template <class R>
void says_usage(const R& done, std::string_view text, error_code code = error_code::usage) {
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST((done.error().code() == code));
  BOOST_TEST(done.error().text().find(text) != std::string::npos, done.error().text());
}

// A loss of a variable, and of an input where there is to be one.
result<std::unique_ptr<training>> begin(session& s, const training_options& o,
                                        bool has_input = false) {
  graph g(s.ops());
  auto w = variable(g, {dtype::f32, {3}}, {}, "w");
  if (has_input) w = w * input(g, {dtype::f32, {3}}, "x");
  return s.train(g, reduce_sum(w), o);
}

result<std::vector<tensor_spec>> same_shape(const attributes&, std::span<const tensor_spec> in,
                                            const tag*) {
  return std::vector{in[0]};
}
void add_lacked(op_table& ops, kernel_table& kernels) {
  ops.add("lacked", {.inputs = 1, .shapes = same_shape, .gradient = {}});
  kernels.add("lacked", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return error(error_code::failed, "nobody runs it");
              }});
}
const op_library lacked{.name = "lacked_ops", .version = "3", .add = add_lacked};

}  // namespace

BOOST_AUTO_TEST_SUITE(training_options)

BOOST_AUTO_TEST_CASE(copies_of_variables_need_a_cluster_and_are_one_at_most) {
  auto s = session::open({});
  BOOST_TEST_REQUIRE(bool(s));
  says_usage(begin(**s, {.replicas = 2}), "2 replicas: a variable has 0 or 1");
  says_usage(begin(**s, {.on_failure = failure_policy::resume, .replicas = 1}),
             "replicas are for jobs of a cluster that go on after failures");
  test::own_nodes nodes("options_replicas", {{.name = "n1"}, {.name = "n2"}});
  says_usage(begin(nodes.client(), {.replicas = 1}),
             "replicas are for jobs of a cluster that go on after failures");
}

BOOST_AUTO_TEST_CASE(what_outlives_its_program_is_resumed_and_has_checkpoints) {
  test::own_nodes nodes("options_outlive", {{.name = "n1"}});
  says_usage(begin(nodes.client(), {.outlives_program = true}),
             "set on_failure to failure_policy::resume");
  says_usage(
      begin(nodes.client(), {.on_failure = failure_policy::resume, .outlives_program = true}),
      "set checkpoints.folder");
}

BOOST_AUTO_TEST_CASE(what_is_fed_has_inputs_and_does_not_outlive_its_program) {
  auto s = session::open({});
  BOOST_TEST_REQUIRE(bool(s));
  says_usage(begin(**s, {.is_fed = true}), "is_fed is set, and the loss depends on no input");
  says_usage(begin(**s, {.outlives_program = true, .is_fed = true}, true),
             "outlives_program: the program feeds this training, and nobody would without it");
}

BOOST_AUTO_TEST_CASE(roles_are_for_a_session_alone) {
  for (const auto* role : {"worker", "/job:worker", "/job:worker/task:0/gpu:0", "/task:1"})
    says_usage(session::open({.roles = {role}}),
               "session_options::roles: '" + std::string(role) + "' is no role");
  says_usage(session::open({.cluster = "any", .roles = {"/job:worker/task:0"}}),
             "session_options::roles are for a session alone");
}

BOOST_AUTO_TEST_CASE(nodes_that_lack_an_op_are_named) {
  test::own_nodes nodes("options_lacked", {{.name = "n1"}, {.name = "n2"}});
  auto opened = session::open({.cluster = "options_lacked",
                               .timeout = std::chrono::seconds(30),
                               .lease = test::own_lease,
                               .libraries = {&lacked}});
  BOOST_TEST_REQUIRE(bool(opened));
  auto& s = **opened;
  test::wait_until("the program is linked to both nodes", [&] { return s.nodes().size() == 2; });
  graph g(s.ops());
  const auto w = variable(g, {dtype::f32, {3}}, {}, "w");
  const std::array operands{w};
  const auto y = g.add("lacked", operands, {}, "lacked", source_location::current());
  const auto refused = s.train(g, reduce_sum(y), {});
  says_usage(refused, "no node can take the work: ");
  for (const auto* part : {"n1", "n2", "lacked_ops 3"})
    BOOST_TEST(refused.error().text().find(part) != std::string::npos, refused.error().text());
}

BOOST_AUTO_TEST_CASE(a_cluster_without_nodes_takes_no_work) {
  test::own_nodes nodes("options_empty", {{.name = "n1"}});
  nodes.leave(0);
  test::wait_until("the node is gone", [&] { return nodes.client().nodes().empty(); });
  says_usage(begin(nodes.client(), {}), "the cluster has no node that takes work",
             error_code::unreachable);
}

BOOST_AUTO_TEST_CASE(looking_for_a_cluster_is_given_up_or_denied) {
  const test::runtime_folder folder;
  int asked = 0;
  says_usage(session::open({.cluster = "options_none",
                            .timeout = std::chrono::minutes(10),
                            .is_cancelled = [&] { return ++asked > 2; }}),
             "interrupted while it looked for the cluster", error_code::failed);
  BOOST_TEST(asked > 2);
  test::own_nodes nodes("options_ours", {{.name = "n1"}});
  const auto address = nodes.client().nodes().at(0).address;
  // As soon as it has had time enough to hear that.
  auto time = std::chrono::milliseconds(100);
  std::optional<error> why;
  test::wait_until("the nodes of another cluster deny it", [&] {
    auto s = session::open({.cluster = "options_theirs", .join = {address}, .timeout = time *= 2});
    BOOST_TEST_REQUIRE(!s);
    why = s.error();
    return why->code() == error_code::denied;
  });
  BOOST_TEST(why->text().find("no node of cluster 'options_theirs' lets this program in: ") !=
                 std::string::npos,
             why->text());
}

BOOST_AUTO_TEST_SUITE_END()
