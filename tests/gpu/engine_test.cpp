// The engine on CUDA devices: the same programs as on the host, on one device and on two virtual
// ones that share a chip. Skipped where there is none (main.cpp).

#include "tests/gpu/driver_calls.hpp"
#include "tests/support/events.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/nccl/communicator.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

std::unique_ptr<session> open(const std::string& gpus) {
  auto s = session::open({.gpus = gpus});
  BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
  return std::move(*s);
}

// Learns y of x, both kept in the graph, so that losses follow from the seed alone.
std::vector<float> losses_of(session& s, const std::string& first, const std::string& second,
                             const optimizer_spec& optimizer) {
  constexpr std::int64_t samples = 64, width = 16;
  graph g(s.ops());
  auto x = tensor::make({dtype::f32, {samples, width}}),
       y = tensor::make({dtype::f32, {samples, 1}});
  for (std::int64_t i = 0; i < samples * width; ++i)
    x.data<float>()[i] = std::sin(static_cast<float>(i));
  for (std::int64_t i = 0; i < samples; ++i)
    y.data<float>()[i] = std::cos(static_cast<float>(3 * i));
  value h, loss;
  {
    const auto on = g.device_scope(first);
    h = gelu(dense(constant(g, x), 32, "first"));
  }
  {
    const auto on = g.device_scope(second);
    const auto error = dense(tanh(h), 1, "second") - constant(g, y);
    loss = reduce_mean(error * error);
  }
  auto run = s.train(g, loss, {.optimizer = optimizer, .seed = 3, .steps = 60});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::vector<float> out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.push_back(e->loss);
    BOOST_REQUIRE_MESSAGE(e->type != training_event::kind::failed, e->text);
  }
  return out;
}

void are_close(const std::vector<float>& got, const std::vector<float>& expected) {
  BOOST_REQUIRE_EQUAL(got.size(), expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    most = std::max(most, std::abs(double(got[i]) - double(expected[i])) /
                              (1e-3 + std::abs(double(expected[i]))));
  BOOST_TEST_MESSAGE("largest relative difference of a loss: " << most);
  BOOST_TEST(most < 1e-3);
}

tensor waves(const tensor_spec& spec, float first) {
  auto t = tensor::make(spec);
  for (std::int64_t i = 0; i < t.elements(); ++i)
    t.data<float>()[i] = 0.1F * std::sin(first + static_cast<float>(i));
  return t;
}

// What the driver was asked between two moments of a job that has found its pace. Nothing:
// driver_calls.so is not there, which the test then says.
std::optional<test::driver_calls> driver_calls_now() {
  test::driver_calls c;
  if (test::driver_calls_now(c)) return c;
  BOOST_TEST_MESSAGE("not run: driver calls are counted with LD_PRELOAD=driver_calls.so alone");
  return std::nullopt;
}
void none_waits(const test::driver_calls& from, const test::driver_calls& to, std::uint64_t steps,
                const std::string& what) {
  BOOST_TEST_MESSAGE(fmt::format(
      "{}: {} waiting driver calls in {} steps; {:.1f} calls enqueued a step; {} of {} host functions were enqueued before an earlier one was called",
      what, to.waits - from.waits, steps, double(to.enqueues - from.enqueues) / double(steps),
      to.overlaps - from.overlaps, to.host_functions - from.host_functions));
  BOOST_TEST(to.waits == from.waits, "the last one is " << to.last_wait);
  BOOST_TEST(to.enqueues > from.enqueues);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(engine)

BOOST_AUTO_TEST_CASE(trainings_have_the_hosts_losses_on_one_device_and_on_two_virtual_ones) {
  for (const auto& [name, optimizer] :
       {std::pair("sgd", sgd({.learning_rate = 0.05, .momentum = 0.9})),
        std::pair("adam", adam({.learning_rate = 0.01, .clip_norm = 0.5}))}) {
    BOOST_TEST_CONTEXT(name) {
      auto host = open("none");
      const auto expected = losses_of(*host, "/cpu:0", "/cpu:0", optimizer);
      BOOST_TEST(expected.back() < expected.front());
      auto one = open("1");
      are_close(losses_of(*one, "/gpu:0", "/gpu:0", optimizer), expected);
      one.reset();
      auto two = open("2");
      are_close(losses_of(*two, "/gpu:0", "/gpu:1", optimizer), expected);
      are_close(losses_of(*two, "/gpu:1", "/cpu:0", optimizer), expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(
    steps_that_are_replayed_compute_what_the_first_one_did_with_new_random_numbers) {
  auto s = open("1");
  const auto build = [](graph& g) {
    const auto x = input(g, tensor_spec{dtype::f32, {64, 64}}, "x");
    auto y = x;
    for (int i = 0; i < 10; ++i) y = tanh(matmul(y, x) * 0.01F);
    return y + random_uniform(g, tensor_spec{dtype::f32, {64, 64}}, 0, 1, 5);
  };
  graph on_device(s->ops()), on_host(s->ops());
  const auto there = build(on_device), here = build(on_host);
  auto device = s->compile(on_device, std::span(&there, 1), {.device = "/gpu:0"});
  auto host = s->compile(on_host, std::span(&here, 1), {});
  BOOST_REQUIRE_MESSAGE(device, (device ? "" : device.error().text()));
  BOOST_REQUIRE(host);
  for (int step = 0; step < 30; ++step) {
    auto x = tensor::make({dtype::f32, {64, 64}});
    for (std::int64_t i = 0; i < x.elements(); ++i)
      x.data<float>()[i] = std::sin(static_cast<float>(i + step));
    const std::vector<std::pair<std::string_view, tensor>> feeds{{"x", x}};
    auto got = (*device)->step(feeds), expected = (*host)->step(feeds);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    BOOST_REQUIRE(expected);
    float most = 0;
    for (std::int64_t i = 0; i < x.elements(); ++i)
      most = std::max(most,
                      std::abs(got->front().data<float>()[i] - expected->front().data<float>()[i]));
    BOOST_TEST(most < 1e-4F);
  }
  (*device).reset();
  (*host).reset();
}

BOOST_AUTO_TEST_CASE(
    a_training_makes_no_waiting_driver_call_and_enqueues_a_step_before_the_one_before_has_ended) {
  if (!driver_calls_now()) return;
  // Some milliseconds a step, of which the host needs less than one.
  constexpr std::int64_t samples = 1024, width = 2048;
  constexpr std::uint64_t from = 40, to = 80, steps = 120;
  auto s = open("1");
  graph g(s->ops());
  auto h = constant(g, waves({dtype::f32, {samples, width}}, 0));
  for (const char* name : {"first", "second", "third", "fourth"}) h = gelu(dense(h, width, name));
  const auto error = dense(h, 1, "last") - constant(g, waves({dtype::f32, {samples, 1}}, 1));
  const auto loss = reduce_mean(error * error);
  auto run = s->train(g, loss,
                      {.optimizer = sgd({.learning_rate = 1e-3}),
                       .seed = 3,
                       .steps = steps,
                       .compile = {.device = "/gpu:0"}});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::optional<test::driver_calls> first, last;
  while (auto e = test::next_event(**run)) {
    BOOST_REQUIRE_MESSAGE(e->type != training_event::kind::failed, e->text);
    if (e->type != training_event::kind::loss) continue;
    if (e->step == from) first = driver_calls_now();
    if (e->step == to) last = driver_calls_now();
  }
  BOOST_REQUIRE((first && last));
  none_waits(*first, *last, to - from, "training");
  // A step has one host function, behind the copy of its loss, so that what overlaps is two steps.
  BOOST_TEST(last->host_functions - first->host_functions <= to - from + 2);
  BOOST_TEST((last->overlaps - first->overlaps) * 2 > to - from);
}

BOOST_AUTO_TEST_CASE(steps_that_a_program_feeds_and_fetches_make_no_waiting_driver_call) {
  if (!driver_calls_now()) return;
  constexpr std::uint64_t from = 40, to = 140;
  auto s = open("1");
  graph g(s->ops());
  const auto x = input(g, tensor_spec{dtype::f32, {256, 256}}, "x");
  const auto y = tanh(matmul(gelu(x), x));
  auto run = s->compile(g, std::span(&y, 1), {.device = "/gpu:0"});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  const auto fed = waves({dtype::f32, {256, 256}}, 0);
  std::optional<test::driver_calls> first;
  for (std::uint64_t step = 0; step < to; ++step) {
    if (step == from) first = driver_calls_now();
    BOOST_REQUIRE((*run)->feed("x", fed));
    if (step > 0) BOOST_REQUIRE((*run)->fetch());
  }
  const auto last = driver_calls_now();
  BOOST_REQUIRE((*run)->fetch());
  BOOST_REQUIRE((first && last));
  none_waits(*first, *last, to - from, "feeding and fetching");
}

// --- gradients that several processes' devices add up ---

namespace {

constexpr const char* node_variable = "TROUPE_GPU_NODE";  // the cluster of who is a node

// Processes of this program that are nodes, each with the same chip as its gpu:0, and what makes
// NCCL take them for ranks of different hosts: for results, order and abort, not speed.
class node_processes {
 public:
  node_processes(const std::string& cluster, int count) {
    for (int i = 0; i < count; ++i) start(cluster, i);
    auto opened =
        session::open({.cluster = cluster, .gpus = "none", .timeout = std::chrono::seconds(60)});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    client_ = std::move(*opened);
    await(static_cast<std::size_t>(count));
  }
  ~node_processes() {
    client_.reset();
    for (auto& c : children_) ::close(c.to);
    const test::waiting_for named("the processes that are nodes to end");
    for (auto& c : children_) ::waitpid(c.pid, nullptr, 0);
  }
  session& client() { return *client_; }
  void await(std::size_t count) {
    test::wait_until(fmt::format("{} nodes are linked", count),
                     [&] { return client_->nodes().size() == count; });
  }
  int kill(std::size_t i) {
    const auto pid = children_[i].pid;
    ::kill(pid, SIGKILL);
    return pid;
  }

 private:
  struct child {
    pid_t pid;
    int to;
  };
  void start(const std::string& cluster, int number) {
    int to[2];
    BOOST_REQUIRE(::pipe2(to, O_CLOEXEC) == 0);
    std::vector<std::string> texts{std::string(node_variable) + "=" + cluster,
                                   "NCCL_HOSTID=troupe-" + std::to_string(number),
                                   "NCCL_P2P_DISABLE=1",
                                   "NCCL_SHM_DISABLE=1",
                                   "NCCL_NET=Socket",
                                   "NCCL_SOCKET_IFNAME=lo"};
    std::vector<char*> environment;
    for (auto& t : texts) environment.push_back(t.data());
    for (auto** e = environ; *e != nullptr; ++e) environment.push_back(*e);
    environment.push_back(nullptr);
    // What this process was called as: one program has several names (programs.cpp).
    const char* const arguments[] = {boost::unit_test::framework::master_test_suite().argv[0],
                                     "--run_test=engine/serves_as_a_node", nullptr};
    const auto pid = ::fork();
    if (pid == 0) {
      ::dup2(to[0], 0);
      ::execve("/proc/self/exe", const_cast<char* const*>(arguments), environment.data());
      ::_exit(127);
    }
    ::close(to[0]);
    children_.push_back({pid, to[1]});
  }

  test::runtime_folder folder_;
  std::vector<child> children_;
  std::unique_ptr<session> client_;
};

// As losses_of, each worker with the whole batch.
struct shared_outcome {
  std::vector<float> losses;
  std::string failure;
};
shared_outcome train_among(session& s, std::uint32_t workers, bool all_reduce,
                           const std::string& device, std::uint64_t steps,
                           const std::function<void(std::uint64_t)>& at_loss = {}) {
  constexpr std::int64_t samples = 64, width = 16;
  graph g(s.ops());
  auto x = tensor::make({dtype::f32, {samples, width}}),
       y = tensor::make({dtype::f32, {samples, 1}});
  for (std::int64_t i = 0; i < samples * width; ++i)
    x.data<float>()[i] = std::sin(static_cast<float>(i));
  for (std::int64_t i = 0; i < samples; ++i)
    y.data<float>()[i] = std::cos(static_cast<float>(3 * i));
  const auto h = gelu(dense(constant(g, x), 32, "first"));
  const auto error = dense(tanh(h), 1, "second") - constant(g, y);
  training_options o{.workers = workers,
                     .all_reduce = all_reduce,
                     .optimizer = adam({.learning_rate = 0.01}),
                     .seed = 3,
                     .steps = steps};
  o.compile.device = device;
  o.compile.bucket_bytes = 1024;
  auto run = s.train(g, reduce_mean(error * error) * (1.0F / static_cast<float>(workers)), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  shared_outcome out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::loss && at_loss) at_loss(e->step);
    if (e->type == training_event::kind::failed) out.failure = e->text;
  }
  return out;
}

}  // namespace

// Not a test by itself: a process of the tests below.
BOOST_AUTO_TEST_CASE(serves_as_a_node) {
  const char* cluster = std::getenv(node_variable);
  if (cluster == nullptr) return;
  process_options o;
  o.cluster = cluster;
  o.gpus = "1";
  o.gpu_memory_bytes = std::uint64_t{1} << 30;
  auto node = process::start(o);
  BOOST_REQUIRE_MESSAGE(node, (node ? "" : node.error().text()));
  for (char c; ::read(0, &c, 1) > 0;) {
  }
  (*node)->leave("the test is over");
}

BOOST_AUTO_TEST_CASE(devices_of_several_processes_add_up_gradients_by_nccl) {
  if (const auto v = nccl::version(); !v) {
    BOOST_TEST_MESSAGE("skipped: " << v.error().text());
    return;
  }
  for (const int ranks : {2, 3}) {
    auto host = open("none");
    const auto workers = static_cast<std::uint32_t>(ranks);
    const auto expected = train_among(*host, workers, false, "", 40);
    node_processes nodes("gpu-" + std::to_string(ranks), ranks);
    const auto got = train_among(nodes.client(), workers, true, "/gpu:0", 40);
    BOOST_TEST(got.failure == "");
    are_close(got.losses, expected.losses);
  }
}

BOOST_AUTO_TEST_CASE(
    a_process_that_is_killed_in_the_middle_is_named_and_the_other_devices_go_on_with_the_next_job) {
  if (const auto v = nccl::version(); !v) {
    BOOST_TEST_MESSAGE("skipped: " << v.error().text());
    return;
  }
  node_processes nodes("gpu-killed", 3);
  int victim = 0;
  const auto ended =
      train_among(nodes.client(), 3, true, "/gpu:0", 1'000'000, [&](std::uint64_t step) {
        if (step == 20) victim = nodes.kill(1);
      });
  BOOST_TEST(ended.failure.find("pid " + std::to_string(victim)) != std::string::npos,
             ended.failure);
  nodes.await(2);
  auto host = open("none");
  const auto got = train_among(nodes.client(), 2, true, "/gpu:0", 40);
  BOOST_TEST(got.failure == "");
  are_close(got.losses, train_among(*host, 2, false, "", 40).losses);
}

BOOST_AUTO_TEST_SUITE_END()
