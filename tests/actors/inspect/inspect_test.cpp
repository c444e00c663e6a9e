// Asking a cluster of this process what it does, and telling its jobs what to do.

#include "troupe/actors/inspect/inspect.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/events.hpp"
#include "tests/support/tcp_proxy.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/inspect/record_timeline.hpp"
#include "troupe/actors/net/tcp_socket.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/text/address.hpp"

#include <boost/test/unit_test.hpp>

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t second = 1'000'000'000;

ask_options how_to_ask(const std::string& cluster) {
  ask_options o;
  o.cluster = cluster;
  o.timeout_ns = 60 * second;  // however slow the machine is
  return o;
}
cluster_snapshot must(const result<cluster_snapshot>& r) {
  if (!r) BOOST_FAIL(r.error().text());
  return *r;
}
// What the nodes said to it.
std::vector<std::string> told(ask_options o, const std::string& request) {
  o.request = request;
  std::vector<std::string> texts;
  for (const auto& w : must(ask_cluster(o)).said)
    if (!w.text.empty()) texts.push_back(w.text);
  return texts;
}
std::string only(const std::vector<std::string>& texts) {
  BOOST_TEST_REQUIRE(texts.size() == 1U);
  return texts.front();
}

// A port of this machine where somebody listens, and never says a word; or where nobody does.
struct mute_port {
  explicit mute_port(bool listens) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    auto* where = reinterpret_cast<sockaddr*>(&at);
    BOOST_TEST_REQUIRE(::bind(fd.get(), where, size) == 0);
    BOOST_TEST_REQUIRE(::getsockname(fd.get(), where, &size) == 0);
    if (listens) BOOST_TEST_REQUIRE(::listen(fd.get(), 8) == 0);
    address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  unique_fd fd;
  std::string address;
};

struct trained {
  explicit trained(session& s, training_options o) {
    graph g(s.ops());
    const auto w = variable(g, {dtype::f32, {3}}, {}, "w");
    o.steps = 1'000'000'000;
    o.compile.name = "job";
    auto begun = s.train(g, reduce_sum(w * w), o);
    BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.error().text()));
    run = std::move(*begun);
    while (test::next_event(*run)->type != training_event::kind::loss) {
    }
  }
  training_event end() {
    training_event last;
    while (auto e = test::next_event(*run)) last = std::move(*e);
    return last;
  }
  std::unique_ptr<training> run;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(inspect)

BOOST_AUTO_TEST_CASE(one_answer_has_what_all_processes_do) {
  test::own_nodes nodes("ask_all", {{.job = "worker", .name = "n1"}, {.job = "ps", .name = "n2"}});
  trained job(nodes.client(), {});
  const auto seen = must(ask_cluster(how_to_ask("ask_all")));
  BOOST_TEST(seen.cluster == "ask_all");
  BOOST_TEST(seen.silent.empty());
  std::vector<std::string> names;
  for (const auto& n : seen.nodes)
    if (n.kind == "node") names.push_back(n.name);
  BOOST_TEST(names == (std::vector<std::string>{"n1", "n2"}), boost::test_tools::per_element());
  BOOST_TEST(seen.nodes.size() == 3U);
  BOOST_TEST_REQUIRE(seen.jobs.size() == 1U);
  BOOST_TEST(seen.jobs[0].name == "job");
  BOOST_TEST((seen.jobs[0].state == job_state::running));
  BOOST_TEST(!seen.actors.empty());
  for (const auto& a : seen.actors)
    BOOST_TEST(std::ranges::count(seen.nodes, a.node, &node_snapshot::name) == 1, a.node);
  // Only what was asked for.
  auto o = how_to_ask("ask_all");
  o.parts = ask_part::jobs;
  const auto jobs = must(ask_cluster(o));
  BOOST_TEST(jobs.jobs.size() == 1U);
  BOOST_TEST(jobs.actors.empty());
  BOOST_TEST(jobs.nodes.size() == 3U);
  // By an address, which leads to all the others.
  o.join = {seen.nodes[0].address};
  BOOST_TEST(must(ask_cluster(o)).nodes.size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_job_is_stopped_and_finished_by_whoever_asks) {
  test::own_nodes nodes("ask_ends", {{.name = "n1"}, {.name = "n2"}});
  const auto o = how_to_ask("ask_ends");
  BOOST_TEST(told(o, "stop job").empty());
  BOOST_TEST(told(o, "what job").empty());
  {
    trained job(nodes.client(), {.may_finish = true});
    BOOST_TEST(only(told(o, "checkpoint job")) ==
               "refused: the job writes no checkpoints (--checkpoint DIR)");
    BOOST_TEST(only(told(o, "detach job")) == "refused: the job ends with its program (--outlive)");
    BOOST_TEST(only(told(o, "finish job")) == "finishes");
    BOOST_TEST((job.end().type == training_event::kind::finished));
    // Its program may hear of that first.
    test::wait_until("the job is over",
                     [&] { return only(told(o, "checkpoint job")) == "refused: the job is over"; });
    for (const auto* what : {"checkpoint job", "stop job", "finish job"})
      BOOST_TEST(only(told(o, what)) == "refused: the job is over", what);
  }
  trained job(nodes.client(), {});
  BOOST_TEST(told(o, "stop job") == (std::vector<std::string>{"stops"}),
             boost::test_tools::per_element());
  const auto end = job.end();
  BOOST_TEST((end.type == training_event::kind::stopped));
  BOOST_TEST(end.text == "a tool has asked for that");
}

BOOST_AUTO_TEST_CASE(a_job_that_outlives_its_program_is_saved_and_detached) {
  const test::temporary_folder folder;
  test::own_nodes nodes("ask_detach", {{.name = "n1"}, {.name = "n2"}});
  const auto o = how_to_ask("ask_detach");
  training_options lasting{.on_failure = failure_policy::resume, .outlives_program = true};
  lasting.checkpoints.folder = folder.path();
  trained job(nodes.client(), lasting);
  BOOST_TEST(only(told(o, "checkpoint job")) == "saves 0");
  test::wait_until("a checkpoint is written", [&] {
    const auto seen = must(ask_cluster(o));
    return seen.jobs.size() == 1 && seen.jobs[0].checkpoints > 0;
  });
  // Whoever has it by the time that it is asked says so, too.
  BOOST_TEST(std::ranges::count(told(o, "detach job"), "detaches") >= 1);
  const auto end = job.end();
  BOOST_TEST((end.type == training_event::kind::detached), end.text);
  // A node has it now, for which that is nothing new; and any may stop it.
  const auto is_node = [&] {
    const auto seen = must(ask_cluster(o));
    return std::ranges::any_of(seen.jobs, [](const auto& j) {
      return j.state == job_state::running && (j.client == "n1" || j.client == "n2");
    });
  };
  test::wait_until("a node goes on with the job", is_node);
  BOOST_TEST(std::ranges::count(told(o, "detach job"), "detaches") >= 1);
  BOOST_TEST(std::ranges::count(told(o, "stop job"), "stops") >= 1);
  test::wait_until("the job is over", [&] {
    const auto seen = must(ask_cluster(o));
    return !seen.jobs.empty() &&
           std::ranges::all_of(seen.jobs, [](const auto& j) { return is_over(j.state); });
  });
}

BOOST_AUTO_TEST_CASE(a_graph_that_is_stepped_is_no_training) {
  test::own_nodes nodes("ask_steps", {{.name = "n1"}});
  graph g(nodes.client().ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto y = x * 2.0F;
  auto steps = nodes.client().compile(g, std::array{y}, {.name = "steps"});
  BOOST_REQUIRE_MESSAGE(steps, (steps ? "" : steps.error().text()));
  const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2}, {2})}};
  const auto out = (*steps)->step(feeds);
  BOOST_REQUIRE_MESSAGE(out, (out ? "" : out.error().text()));
  BOOST_TEST(only(told(how_to_ask("ask_steps"), "finish steps")) ==
             "refused: it is no training, and ends with its program");
}

BOOST_AUTO_TEST_CASE(a_node_leaves_when_it_is_asked_and_a_program_does_not) {
  test::own_nodes nodes("ask_leave", {{.name = "n1"}});
  process_options p;
  p.cluster = "ask_leave";
  p.name = "n2";
  p.lease = test::own_lease;
  std::atomic<int> asked{0};
  p.on_leave_asked = [&] { ++asked; };
  auto n2 = process::start(p);
  BOOST_REQUIRE_MESSAGE(n2, (n2 ? "" : n2.error().text()));
  const auto o = how_to_ask("ask_leave");
  test::wait_until("all three are seen", [&] { return must(ask_cluster(o)).nodes.size() == 3; });
  BOOST_TEST(told(o, "leave n3").empty());
  BOOST_TEST(only(told(o, "leave n1")) ==
             "refused: it is a program that runs a job, and leaves when that ends");
  BOOST_TEST(asked == 0);
  BOOST_TEST(only(told(o, "leave n2")) == "leaves");
  BOOST_TEST(asked == 1);
  const auto seen = must(ask_cluster(o));
  const auto at = std::ranges::find(seen.nodes, "n2", &node_snapshot::name);
  BOOST_TEST_REQUIRE((at != seen.nodes.end()));
  BOOST_TEST(only(told(o, "leave " + at->id)) == "leaves");
  BOOST_TEST(asked == 2);
  BOOST_TEST((*n2)->address() == at->address);
  BOOST_TEST((*n2)->drain(std::chrono::seconds(60), [] { return false; }));  // it has no work
  (*n2)->leave("it was asked to");
}

BOOST_AUTO_TEST_CASE(who_does_not_answer_is_named_with_the_reason) {
  test::own_nodes nodes("ask_silent", {{.name = "n1"}, {.name = "n2"}});
  auto o = how_to_ask("ask_silent");
  auto seen = must(ask_cluster(o));
  const auto address_of = [&](const std::string& name) {
    return std::ranges::find(seen.nodes, name, &node_snapshot::name)->address;
  };
  const mute_port nobody(false);
  o.join = {address_of("n1"), nobody.address};
  const auto with_nobody = must(ask_cluster(o));
  BOOST_TEST_REQUIRE(with_nobody.silent.size() == 1U);
  BOOST_TEST(with_nobody.silent[0].name == nobody.address);
  BOOST_TEST(!with_nobody.silent[0].reason.empty());
  BOOST_TEST(with_nobody.nodes.size() == 3U);
  // One that has left is no riddle.
  const auto n2 = address_of("n2");
  o.join = {address_of("n1"), n2};
  nodes.leave(1);
  test::wait_until("everybody knows that n2 has left",
                   [&] { return must(ask_cluster(o)).silent.empty(); });
}

// Its hello, its proof, its identity, and the answer: the connection breaks within each.
BOOST_AUTO_TEST_CASE(a_node_that_lets_go_of_a_tool_is_asked_again) {
  test::own_nodes nodes("ask_again", {{.name = "n1"}});
  auto o = how_to_ask("ask_again");
  const auto seen = must(ask_cluster(o));
  const auto n1 =
      *parse_address(std::ranges::find(seen.nodes, "n1", &node_snapshot::name)->address);
  for (std::uint64_t frame = 0; frame < 4; ++frame) {
    test::tcp_proxy proxy(n1);
    proxy.add(
        {test::proxy_direction::from_target, test::proxy_action::cut, test::at_frame(frame, 5)});
    o.join = {to_string(proxy.listens_on())};
    const auto again = must(ask_cluster(o));
    BOOST_TEST(again.silent.empty());
    BOOST_TEST(again.nodes.size() == 2U);
    BOOST_TEST(proxy.connections() == 2U);
    // What would be done twice is asked once, unless it has not been asked yet.
    test::tcp_proxy other(n1);
    other.add(
        {test::proxy_direction::from_target, test::proxy_action::cut, test::at_frame(frame, 5)});
    auto change = o;
    change.join = {to_string(other.listens_on())};
    change.request = "leave nobody";
    BOOST_TEST(bool(ask_cluster(change)) == (frame < 3));
    BOOST_TEST(other.connections() == (frame < 3 ? 2U : 1U));
  }
  // Nor for ever.
  test::tcp_proxy proxy(n1);
  proxy.refuse(true);
  o.join = {to_string(proxy.listens_on())};
  const auto refused = ask_cluster(o);
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == error_code::unreachable), refused.error().text());
  BOOST_TEST(proxy.connections() <= 3U);
}

BOOST_AUTO_TEST_CASE(where_nobody_answers_that_is_an_error) {
  const test::runtime_folder folder;
  auto o = how_to_ask("ask_nobody");
  const auto failure = [&] {
    const auto seen = ask_cluster(o);
    BOOST_TEST_REQUIRE(!seen);
    return seen.error();
  };
  BOOST_TEST((failure().code() == error_code::unreachable));
  BOOST_TEST(failure().message().find("no node of cluster 'ask_nobody' runs for this user") == 0U);
  const mute_port nobody(false);
  o.join = {nobody.address};
  BOOST_TEST((failure().code() == error_code::unreachable));
  o.join = {"no address"};
  BOOST_TEST((failure().code() == error_code::usage));
  const mute_port mute(true);
  o.join = {mute.address};
  o.timeout_ns = second / 20;  // it never answers
  auto late = failure();
  test::wait_until("it is connected in time, and not answered", [&] {
    if (late.message().find(" did not answer within") != std::string::npos) return true;
    o.timeout_ns *= 2;
    late = failure();
    return false;
  });
  BOOST_TEST((late.code() == error_code::timed_out));
  BOOST_TEST(late.message().find(mute.address + " of cluster 'ask_nobody' did not answer within") ==
             0U);
}

BOOST_AUTO_TEST_CASE(whose_cluster_or_token_is_another_one_is_denied) {
  test::own_nodes nodes("ask_ours", {{.name = "n1"}});
  const auto seen = must(ask_cluster(how_to_ask("ask_ours")));
  auto o = how_to_ask("ask_theirs");
  o.join = {seen.nodes[0].address};
  const auto denied = ask_cluster(o);
  BOOST_TEST_REQUIRE(!denied);
  BOOST_TEST((denied.error().code() == error_code::denied));
  // A recording asks first, and says the same.
  const auto recorded = record_cluster({.ask = o});
  BOOST_TEST_REQUIRE(!recorded);
  BOOST_TEST((recorded.error().code() == error_code::denied));
}

BOOST_AUTO_TEST_SUITE_END()
