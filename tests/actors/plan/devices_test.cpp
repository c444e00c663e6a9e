// Graphs on devices: asynchronous host devices whose order of work and delays come by seed, under
// the order checker, beside the same graph on the host.

#include "tests/support/image_folder.hpp"
#include "tests/support/training_outcome.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using test::follow;
using test::outcome;

namespace {

// Devices on one chip that run late, by a seed, and whoever checks their order.
struct late_devices {
  explicit late_devices(std::uint64_t seed, std::uint32_t count = 2, std::uint64_t limit_bytes = 0,
                        std::uint32_t delay_max_us = 100) {
    chip = std::make_shared<async_host_chip>(
        async_host_options{.seed = seed,
                           .threaded = true,
                           .delay_max_us = delay_max_us,
                           .checker = &checker,
                           .on_thread = [] { set_up_kernel_thread(); }});
    for (std::uint32_t i = 0; i < count; ++i)
      backends.push_back(
          make_async_host_backend("gpu:" + std::to_string(i), chip, kernels, limit_bytes));
  }
  void check() const {
    BOOST_TEST(checker.found() == 0u);
    for (const auto& r : checker.reports()) BOOST_TEST_MESSAGE(r.text());
  }
  std::unique_ptr<session> open(std::uint32_t threads = 1) const {
    auto s = session::open({.threads = threads, .gpu_backends = backends});
    BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
    return std::move(*s);
  }

  order_checker checker;
  kernel_table kernels = make_host_kernels();
  std::shared_ptr<async_host_chip> chip;
  std::vector<std::shared_ptr<device_backend>> backends;
};

// Layers on `first` and `second`; "": on the host.
outcome train(session& s, const std::string& folder, training_options o, const std::string& first,
              const std::string& second) {
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = o.workers});
  value x = b.images;
  const auto on = [&](const std::string& device) {
    return g.device_scope(device.empty() ? "/cpu:0" : device);
  };
  {
    const auto there = on(first);
    x = relu(dense(x, 16, "hidden"));
  }
  value loss;
  {
    const auto there = on(second);
    loss = softmax_cross_entropy(dense(x, 10, "out"), b.labels, b.scale);
  }
  auto run = s.train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  return follow(**run);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_FIXTURE_TEST_CASE(training_on_devices_has_the_hosts_bits_under_any_order_of_their_work,
                        image_folder) {
  // 200 samples in batches of 48: the last one of an epoch is smaller.
  const training_options base{.workers = 2, .shards = 2, .steps = 12};
  outcome expected;
  {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    expected = train(**s, path, base, "", "");
  }
  BOOST_TEST(expected.failure == "");
  BOOST_TEST(expected.losses.size() == 12u);
  std::uint64_t seed = 0;
  for (const auto& [first, second] : {std::pair("/gpu:0", "/gpu:0"), std::pair("/gpu:0", "/gpu:1"),
                                      std::pair("/gpu:1", ""), std::pair("", "/gpu:0")})
    for (const bool fuse : {true, false})
      for (const std::uint32_t credits : {1u, 3u}) {
        late_devices late(++seed);
        auto o = base;
        o.compile.fuse = fuse;
        o.compile.credits = credits;
        auto s = late.open(1 + static_cast<std::uint32_t>(seed % 2));
        const auto got = train(*s, path, o, first, second);
        BOOST_TEST_CONTEXT("first layer on '" << first << "', second on '" << second << "', fuse "
                                              << fuse << ", credits " << credits) {
          BOOST_TEST(got.failure == "");
          BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
          BOOST_TEST(got.hash == expected.hash);
          s.reset();
          late.check();
        }
      }
}

BOOST_AUTO_TEST_CASE(steps_are_replayed_and_shapes_may_change) {
  late_devices late(7);
  auto s = late.open();
  graph g(s->ops());
  const dim batch{8, 'b'}, width{4, 0};
  const std::array dims{batch, width};
  const auto x = input(g, tensor_spec{dtype::f32, *shape::from(dims)}, "x");
  value y;
  {
    const auto on = g.device_scope("/gpu:0");
    y = tanh(x * x) + constant(g, 1.0F);
    for (int i = 0; i < 5; ++i) y = y * 0.5F + sin(y);
    y = reduce_sum(y, {1});
  }
  auto run = s->compile(g, std::span(&std::as_const(y), 1), {});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  graph h(s->ops());
  const auto hx = input(h, tensor_spec{dtype::f32, *shape::from(dims)}, "x");
  auto hy = tanh(hx * hx) + constant(h, 1.0F);
  for (int i = 0; i < 5; ++i) hy = hy * 0.5F + sin(hy);
  hy = reduce_sum(hy, {1});
  auto here = s->compile(h, std::span(&std::as_const(hy), 1), {});
  BOOST_REQUIRE(here);
  for (int step = 0; step < 40; ++step) {
    const std::int64_t rows = step % 7 == 3 ? 5 : 8;
    auto t = tensor::make({dtype::f32, {rows, 4}});
    for (std::int64_t i = 0; i < rows * 4; ++i)
      t.data<float>()[i] = float(i % 11) * 0.1F - float(step) * 0.01F;
    const std::vector<std::pair<std::string_view, tensor>> feeds{{"x", t}};
    auto got = (*run)->step(feeds), expected = (*here)->step(feeds);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    BOOST_REQUIRE(expected);
    BOOST_REQUIRE(got->front().spec() == expected->front().spec());
    BOOST_TEST(std::equal(got->front().bytes().begin(), got->front().bytes().end(),
                          expected->front().bytes().begin()));
  }
  (*run).reset(), (*here).reset(), s.reset();
  late.check();
}

BOOST_AUTO_TEST_CASE(what_is_fetched_from_a_device_may_be_kept_beyond_its_session) {
  std::vector<tensor> kept;
  {
    auto s = session::open({.gpus = "host:1"});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    const auto y = input(g, tensor_spec{dtype::f32, {16}}, "x") * 2.0F;
    auto run = (*s)->compile(g, std::span(&y, 1), {.device = "/gpu:0"});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    for (int step = 0; step < 12; ++step) {
      auto x = tensor::make({dtype::f32, {16}});
      std::fill_n(x.data<float>(), 16, static_cast<float>(step));
      auto got = (*run)->step({{{"x", x}}});
      BOOST_REQUIRE(got);
      kept.push_back(std::move(got->front()));
    }
  }
  // As many as the pool has are page-locked, the others are not, and each has its own numbers.
  BOOST_TEST(kept.front().is_pinned());
  BOOST_TEST(!kept.back().is_pinned());
  for (std::size_t i = 0; i < kept.size(); ++i)
    for (int k = 0; k < 16; ++k)
      BOOST_TEST(std::as_const(kept[i]).data<float>()[k] == 2.0F * static_cast<float>(i));
}

// --- variables on devices ---

BOOST_FIXTURE_TEST_CASE(every_optimizer_has_the_hosts_bits_with_its_variables_on_a_device,
                        image_folder) {
  const std::vector<std::pair<std::string, optimizer_spec>> all{
      {"sgd",
       troupe::sgd(
           {.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3})},
      {"adam", adam({.learning_rate = 0.01, .clip_norm = 0.5})},
      {"rmsprop", rmsprop({.learning_rate = 0.01})},
      {"adagrad", adagrad({.learning_rate = 0.01, .clip_value = 0.1})}};
  std::uint64_t seed = 100;
  for (const auto& [name, optimizer] : all)
    for (const auto update : {update_kind::sync, update_kind::async}) {
      training_options o{.workers = update == update_kind::sync ? 3u : 1u,
                         .shards = 2,
                         .update = update,
                         .optimizer = optimizer,
                         .steps = 10};
      o.observe_every = update == update_kind::sync ? 5 : 0;
      auto host = session::open({});
      BOOST_REQUIRE(host);
      const auto expected = train(**host, path, o, "", "");
      late_devices late(++seed);
      auto s = late.open();
      o.compile.device = "/gpu:1";
      const auto got = train(*s, path, o, "/gpu:0", "/gpu:1");
      s.reset();
      BOOST_TEST_CONTEXT(name << (update == update_kind::sync ? ", sync" : ", async")) {
        BOOST_TEST(expected.failure == "");
        BOOST_TEST(got.failure == "");
        BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
        BOOST_TEST(got.hash == expected.hash);
        late.check();
      }
    }
}

// --- what goes wrong ---

BOOST_FIXTURE_TEST_CASE(a_device_that_is_not_there_is_named_with_the_op_and_what_there_is,
                        image_folder) {
  {
    auto s = session::open({.gpus = "none"});
    BOOST_REQUIRE(s);
    const auto got = train(**s, path, {.steps = 2}, "/gpu:0", "");
    BOOST_TEST(got.failure.find("there is no gpu:0 for") != std::string::npos, got.failure);
    BOOST_TEST(got.failure.find("has no GPU: this process was started with --gpus none") !=
                   std::string::npos,
               got.failure);
    BOOST_TEST(got.failure.find("devices_test.cpp") != std::string::npos, got.failure);
  }
  late_devices late(1);
  auto s = late.open();
  const auto got = train(*s, path, {.steps = 2}, "/gpu:7", "/gpu:0");
  BOOST_TEST(got.failure.find("there is no gpu:7 for") != std::string::npos, got.failure);
  BOOST_TEST(got.failure.find("has gpu:0 to gpu:1") != std::string::npos, got.failure);
  // Healthy jobs of the same process go on.
  BOOST_TEST(train(*s, path, {.steps = 2}, "/gpu:0", "/gpu:1").failure == "");
  BOOST_TEST(!session::open({.gpus = "many"}));
  BOOST_TEST(!session::open({.gpus = "host:0"}));
}

// Three nodes of this process and a client; a node has as many devices as its number says.
struct nodes_with_devices : image_folder {
  std::unique_ptr<session> start(std::vector<std::uint32_t> devices) {
    for (const auto n : devices) {
      process_options o;
      o.cluster = "with-devices";
      o.gpus = n == 0 ? std::string("none") : "host:" + std::to_string(n);
      auto node = process::start(o);
      BOOST_TEST_REQUIRE(bool(node), (node ? "" : node.error().text()));
      nodes.push_back(std::move(*node));
    }
    auto opened = session::open({.cluster = "with-devices", .timeout = std::chrono::seconds(30)});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    test::wait_until("the client is linked to all nodes",
                     [&] { return (*opened)->nodes().size() >= nodes.size(); });
    return std::move(*opened);
  }
  ~nodes_with_devices() {
    for (auto& n : nodes) n->leave("the test is over");
  }
  test::runtime_folder folder;
  std::vector<std::unique_ptr<process>> nodes;
};

BOOST_FIXTURE_TEST_CASE(over_a_cluster_work_goes_to_the_nodes_that_have_its_device,
                        nodes_with_devices) {
  outcome expected;
  {
    auto host = session::open({.gpus = "none"});
    BOOST_REQUIRE(host);
    expected = train(**host, path, {.steps = 6}, "", "");
  }
  const auto s = start({0, 1, 0});
  std::size_t with = 0;
  for (const auto& n : s->nodes()) with += count_of(n.devices);
  BOOST_TEST(with == 1u);
  const auto got = train(*s, path, {.steps = 6}, "/gpu:0", "/gpu:0");
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.hash == expected.hash);
  // A wish of one layer is enough; what no wish is about may go anywhere.
  BOOST_TEST(train(*s, path, {.steps = 6}, "", "/gpu:0").hash == expected.hash);
  BOOST_TEST(train(*s, path, {.steps = 6}, "", "").hash == expected.hash);
  const auto refused = [&](training_options o, const char* device) {
    auto data = open_idx(path, false);
    BOOST_REQUIRE(data);
    graph g(s->ops());
    auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = o.workers});
    const auto on = g.device_scope(device);
    const auto run =
        s->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale), o);
    BOOST_REQUIRE(!run);
    BOOST_TEST((run.error().code() == error_code::usage));
    BOOST_TEST(run.error().text().find("devices_test.cpp:") != std::string::npos,
               run.error().text());
    BOOST_TEST(run.error().text().find("has gpu:0 (asynchronous host)") != std::string::npos,
               run.error().text());
    return run.error().text();
  };
  const auto few = refused({.workers = 2, .steps = 2}, "/gpu:0"),
             none = refused({.steps = 2}, "/gpu:3");
  BOOST_TEST(
      few.find("each of 2 workers that wish for devices needs a node of its own that has them") !=
          std::string::npos,
      few);
  BOOST_TEST(
      none.find("is to run on gpu:3, and no node that takes workers has it") != std::string::npos,
      none);
  // Workers that may share a node share its device.
  const auto shared =
      train(*s, path, {.workers = 2, .steps = 6, .on_failure = failure_policy::resume}, "/gpu:0",
            "/gpu:0");
  BOOST_TEST(shared.failure == "");
  BOOST_TEST(shared.losses.size() == 6u);
}

BOOST_FIXTURE_TEST_CASE(too_little_memory_names_the_largest_and_the_device_stays_usable,
                        image_folder) {
  late_devices late(1, 1, 64 << 10);
  auto s = late.open();
  const auto got = train(*s, path, {.steps = 2}, "/gpu:0", "");
  BOOST_TEST(got.failure.find("gpu:0") != std::string::npos, got.failure);
  BOOST_TEST(got.failure.find("the plan needs") != std::string::npos, got.failure);
  BOOST_TEST(got.failure.find("outputs of '") != std::string::npos, got.failure);
  BOOST_TEST(train(*s, path, {.steps = 2}, "", "/gpu:0").failure == "");
}

// The k-th piece of a device's work fails after it was enqueued: the job ends with one line that
// names the op, and the next one runs.
BOOST_FIXTURE_TEST_CASE(work_that_fails_later_ends_its_job_with_the_ops_name_and_no_other,
                        image_folder) {
  outcome expected;
  {
    auto host = session::open({});
    expected = train(**host, path, {.steps = 6}, "", "");
  }
  for (std::uint64_t k = 1; k <= 61; k += 4) {
    late_devices late(5 + k, 1);  // whose memory nobody has written
    auto s = late.open();
    late.chip->fail_work(k);
    const auto got = train(*s, path, {.steps = 6}, "/gpu:0", "/gpu:0");
    BOOST_TEST_CONTEXT("work " << k) {
      BOOST_TEST(got.failure.find("a failure that was injected") != std::string::npos, got.failure);
      BOOST_TEST(got.failure.find("gpu:0/") != std::string::npos, got.failure);
      late.chip->fail_work(0);
      const auto next = train(*s, path, {.steps = 6}, "/gpu:0", "/gpu:0");
      BOOST_TEST(next.failure == "");
      BOOST_TEST(next.hash == expected.hash);
    }
  }
}

// Once told to, puts two pieces of work behind the next update of a variable: one waits, the one
// behind it fails.
class failing_late final : public device_backend {
 public:
  explicit failing_late(std::shared_ptr<device_backend> b) : inner_(std::move(b)) {}
  troupe::device& device() noexcept override { return inner_->device(); }
  result<std::unique_ptr<device_kernel>> make_kernel(std::span<const kernel_step> steps) override {
    return inner_->make_kernel(steps);
  }
  std::size_t update_workspace_bytes(const optimizer_step& step,
                                     std::size_t elements) const noexcept override {
    return inner_->update_workspace_bytes(step, elements);
  }
  result<void> enqueue_update(device_stream& on, std::string_view op, const optimizer_step& step,
                              const device_update& u, std::span<std::byte> workspace) override {
    auto ok = inner_->enqueue_update(on, op, step, u, workspace);
    if (!ok || !is_armed.exchange(false)) return ok;
    ok = on.enqueue("the late failure", {}, [this]() -> result<void> {
      is_waiting = true;
      const test::waiting_for named("the flag of the test");
      may_fail.wait(false);
      return {};
    });
    if (!ok) return ok;
    return on.enqueue("the late failure", {},
                      []() -> result<void> { return error(error_code::failed, "it fails late"); });
  }
  result<communicator_id> make_communicator_id() override { return inner_->make_communicator_id(); }
  result<std::unique_ptr<device_communicator>> begin_communicator(
      const communicator_id& id, int rank, int ranks, communicator_changed changed) override {
    return inner_->begin_communicator(id, rank, ranks, std::move(changed));
  }
  void set_up_thread() noexcept override { inner_->set_up_thread(); }

  std::atomic<bool> is_armed = false, is_waiting = false;
  std::atomic<bool> may_fail = false;

 private:
  std::shared_ptr<device_backend> inner_;
};

// What a job has given a stream fails after its actors have ended: the next job begins behind that,
// on a stream that works.
BOOST_FIXTURE_TEST_CASE(DS_9_what_a_job_leaves_behind_on_its_streams_fails_no_other, image_folder) {
  outcome expected;
  {
    auto host = session::open({});
    expected = train(**host, path, {.steps = 6}, "", "");
  }
  late_devices late(11, 1);
  const auto backend = std::make_shared<failing_late>(late.backends[0]);
  late.backends[0] = backend;
  auto s = late.open();
  auto data = open_idx(path, false);
  BOOST_REQUIRE(data);
  graph g(s->ops());
  auto b = idx_batch(g, *data, {.batch = 24, .seed = 5});
  const auto on = g.device_scope("/gpu:0");
  const auto loss = softmax_cross_entropy(dense(relu(dense(b.images, 16, "hidden")), 10, "out"),
                                          b.labels, b.scale);
  training_options o{.steps = 100'000};
  o.compile.device = "/gpu:0";
  auto first = s->train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(first, (first ? "" : first.error().text()));
  backend->is_armed = true;
  test::wait_until("the stream stands at what the test put there",
                   [&] { return backend->is_waiting.load(); });
  (*first)->stop("the test has seen enough");
  // Had the part ended with its actors, the second job would begin now, and fail soon.
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    backend->may_fail = true;
    backend->may_fail.notify_all();
  });
  const auto second = train(*s, path, {.steps = 6}, "/gpu:0", "/gpu:0");
  later.join();
  BOOST_TEST(second.failure == "");
  BOOST_TEST(second.hash == expected.hash);
  const auto ended = follow(**first);
  BOOST_TEST(ended.stopped == "the test has seen enough");
  first->reset();
  s.reset();
  late.check();
}

// The device's work fails while copies and captured steps are on their way: what it might still
// have read or written comes back while the process lives, also where no further job runs there.
BOOST_FIXTURE_TEST_CASE(DS_5_memory_of_the_host_comes_back_after_a_failure, image_folder) {
  late_devices late(5, 1);
  auto s = late.open();
  const auto pinned = [&] { return late.backends[0]->device().memory().pinned_bytes; };
  std::size_t was_pinned = 0, failed = 0;
  for (std::uint64_t k = 1; k <= 80; k += 3) {
    late.chip->fail_work(k);
    // What goes to the second layer lies in pinned memory.
    const auto got = train(*s, path, {.steps = 6}, "/gpu:0", "");
    failed += !got.failure.empty();
    was_pinned += pinned() > 0;
    if (got.failure.empty()) late.chip->fail_work(0);  // it had less work than that
    // The actors end, and what they leave behind goes when their streams are through.
    test::wait_until(fmt::format("no memory is page-locked after a failure of work {}", k),
                     [&] { return pinned() == 0; });
  }
  BOOST_TEST(failed > 10u);
  BOOST_TEST(was_pinned > 0u);  // else this would show nothing
}

// Whichever piece of work fails, of whichever device: what the program gets is right, or an error.
// It may be the last thing that this device is given.
BOOST_AUTO_TEST_CASE(DS_8_a_failure_on_one_device_is_seen_where_values_leave_from_another) {
  late_devices late(9);
  auto s = late.open();
  std::size_t failed = 0, fine = 0;
  for (std::uint64_t k = 1; k <= 14; ++k) {
    graph g(s->ops());
    const auto x = input(g, tensor_spec{dtype::f32, {2, 3}}, "x");
    value y, z;
    {
      const auto on = g.device_scope("/gpu:0");
      y = reduce_sum(x * x, {1});
    }
    {
      const auto on = g.device_scope("/gpu:1");
      z = reduce_sum(y, {0}) + constant(g, 1.0F);
    }
    auto run = s->compile(g, std::span(&std::as_const(z), 1), {});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    late.chip->fail_work(k);
    const auto got = (*run)->step(std::vector<std::pair<std::string_view, tensor>>{
        {"x", tensor::of({1, 2, 3, 4, 5, 6}, {2, 3})}});
    late.chip->fail_work(0);
    BOOST_TEST_CONTEXT("work " << k) {
      if (got) {
        BOOST_TEST(got->front().data<float>()[0] == 92.0F);
        ++fine;
      } else {
        BOOST_TEST(got.error().text().find("a failure that was injected") != std::string::npos,
                   got.error().text());
        ++failed;
      }
    }
  }
  BOOST_TEST(failed >= 4u);  // two copies in, or more, and two segments
  BOOST_TEST(fine > 0u);     // the last ones had less work than that
}

BOOST_FIXTURE_TEST_CASE(
    DS_5_a_process_that_leaves_in_the_middle_of_a_step_waits_for_what_its_devices_have_been_given,
    image_folder) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    late_devices late(seed, 2, 0, 400);
    auto s = late.open();
    auto data = open_idx(path, false);
    BOOST_REQUIRE(data);
    graph g(s->ops());
    auto b = idx_batch(g, *data, {.batch = 24, .seed = 5});
    const auto on = g.device_scope("/gpu:0");
    const auto loss = softmax_cross_entropy(dense(relu(dense(b.images, 16, "hidden")), 10, "out"),
                                            b.labels, b.scale);
    training_options o{.steps = 100'000};
    o.compile.device = "/gpu:1";
    {
      const auto run = s->train(g, loss, o);
      BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + 7 * seed));
    }
    s.reset();
    late.check();
  }
}

BOOST_AUTO_TEST_CASE(what_no_device_runs_stands_on_the_host_or_is_an_error) {
  late_devices late(2);
  auto s = late.open();
  const auto build = [&](graph& g) {
    const auto x = input(g, tensor_spec{dtype::f32, {3}}, "x");
    const auto on = g.device_scope("/gpu:0");
    return cond(
               less(reduce_sum(x), constant(g, 1.0F)), [&] { return std::vector{x * 2.0F}; },
               [&] { return std::vector{x * 3.0F}; })[0] +
           1.0F;
  };
  graph g(s->ops());
  const auto y = build(g);
  auto run = s->compile(g, std::span(&y, 1), {});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  for (const float first : {-1.0F, 5.0F}) {
    const auto got = (*run)->step(
        std::vector<std::pair<std::string_view, tensor>>{{"x", tensor::of({first, 0, 0}, {3})}});
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    BOOST_TEST(got->front().data<float>()[0] == (first < 1 ? first * 2 + 1 : first * 3 + 1));
  }
  run->reset();
  graph h(s->ops());
  const auto z = build(h);
  const auto refused = s->compile(h, std::span(&z, 1), {.soft_placement = false});
  BOOST_REQUIRE(!refused);
  // One line: who, where, why and what to do.
  BOOST_TEST(refused.error().text().find("cannot run on '/gpu:0': ") != std::string::npos,
             refused.error().text());
  const auto says_why = [](const std::string& text) {
    return text.find("it is an op of control flow, which runs on the host") != std::string::npos ||
           text.find("it is in a branch or loop, which runs on the host") != std::string::npos;
  };
  BOOST_TEST(says_why(refused.error().text()), refused.error().text());
  BOOST_TEST(
      refused.error().text().find(
          "or allow soft placement (compile_options::soft_placement; no --hard-placement)") !=
          std::string::npos,
      refused.error().text());
  BOOST_TEST(refused.error().text().find('\n') == std::string::npos);
  BOOST_TEST(refused.error().text().find("devices_test.cpp:") != std::string::npos,
             refused.error().text());
  // What stands on the host silently is told by the plan, each op with its line.
  compile_report told;
  BOOST_REQUIRE(bool(compile_steps(g, std::span(&y, 1), {.device = "/gpu:0", .report = &told})));
  const auto of_devices = std::find_if(told.passes.begin(), told.passes.end(),
                                       [](const auto& p) { return p.pass == "devices"; });
  BOOST_REQUIRE((of_devices != told.passes.end() && !of_devices->changes.empty()));
  for (const auto& c : of_devices->changes) {
    BOOST_TEST(c.text().find("is placed on the host, not on '/gpu:0': ") != std::string::npos,
               c.text());
    BOOST_TEST(says_why(c.text()), c.text());
    BOOST_TEST(c.text().find("devices_test.cpp:") != std::string::npos, c.text());
  }
  const auto wrong = s->compile(h, std::span(&z, 1), {.device = "/gpu:many"});
  BOOST_REQUIRE(!wrong);
  BOOST_TEST(wrong.error().text().find("'many' is no number") != std::string::npos,
             wrong.error().text());
}

BOOST_FIXTURE_TEST_CASE(what_leaves_a_device_is_looked_at_for_numbers_that_are_none, image_folder) {
  late_devices late(3);
  auto s = late.open();
  graph g(s->ops());
  const auto x = input(g, tensor_spec{dtype::f32, {2}}, "x");
  value y;
  {
    const auto on = g.device_scope("/gpu:1");
    y = log(x);
  }
  auto run = s->compile(g, std::span(&std::as_const(y), 1), {.on_nan = nan_policy::stop});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  const auto got = (*run)->step(
      std::vector<std::pair<std::string_view, tensor>>{{"x", tensor::of({1, -1}, {2})}});
  BOOST_REQUIRE(!got);
  BOOST_TEST(got.error().text().find("on gpu:1 gives") != std::string::npos, got.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
