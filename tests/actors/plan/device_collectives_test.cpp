// All-reduce among devices of several nodes, in one process: asynchronous host devices whose order
// of work and delays come by seed, under the order checker, beside shards on the host.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "tests/support/training_outcome.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/job_client.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/scoped_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;
using test::follow;
using test::outcome;

namespace {

// Its sum or gather of that number, counted from 1, fails on the device; or breaks, as NCCL's do:
// the communicator says so, and what is on the device waits until it is aborted, and leaves
// nonsense behind on a stream that is fine. 0: none does.
class failing_sum final : public device_communicator {
 public:
  failing_sum(std::unique_ptr<device_communicator> c, int fails_at, int breaks_at)
      : inner_(std::move(c)), left_(fails_at), left_to_break_(breaks_at) {}
  ~failing_sum() override { is_aborted_->test_and_set(), is_aborted_->notify_all(); }
  int rank() const noexcept override { return inner_->rank(); }
  int ranks() const noexcept override { return inner_->ranks(); }
  result<bool> is_ready() override {
    if (is_broken_) return error(error_code::failed, "the wire is cut");
    return inner_->is_ready();
  }
  void abort() noexcept override {
    is_aborted_->test_and_set();
    is_aborted_->notify_all();
    inner_->abort();
  }
  result<void> finish() override { return inner_->finish(); }
  result<void> all_reduce(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type, device_reduction how) override {
    if (must_break()) return wait_for_abort(on, op, from, to);
    return spoil(inner_->all_reduce(on, op, from, to, type, how), on, op, from, to);
  }
  result<void> reduce_scatter(device_stream& on, std::string_view op,
                              std::span<const std::byte> from, std::span<std::byte> to, dtype type,
                              device_reduction how) override {
    return inner_->reduce_scatter(on, op, from, to, type, how);
  }
  result<void> all_gather(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type) override {
    if (must_break()) return wait_for_abort(on, op, from, to);
    return spoil(inner_->all_gather(on, op, from, to, type), on, op, from, to);
  }
  result<void> broadcast(device_stream& on, std::string_view op, std::span<const std::byte> from,
                         std::span<std::byte> to, dtype type, int root) override {
    return inner_->broadcast(on, op, from, to, type, root);
  }

 private:
  result<void> spoil(result<void> ok, device_stream& on, std::string_view op,
                     std::span<const std::byte> from, std::span<std::byte> to) {
    if (!ok || left_ == 0 || --left_ > 0) return ok;
    return on.enqueue(op, {{&from, 1}, {&to, 1}}, [] {
      return result<void>(error(error_code::failed, "the last sum is broken"));
    });
  }

  bool must_break() { return left_to_break_ != 0 && --left_to_break_ == 0; }
  result<void> wait_for_abort(device_stream& on, std::string_view op,
                              std::span<const std::byte> from, std::span<std::byte> to) {
    is_broken_ = true;
    return on.enqueue(op, {{&from, 1}, {&to, 1}}, [to, aborted = is_aborted_] {
      const test::waiting_for named("the communicator to be aborted");
      aborted->wait(false);
      std::fill(to.begin(), to.end(), std::byte{0x40});  // 3.004 as a float
      return result<void>();
    });
  }

  std::unique_ptr<device_communicator> inner_;
  int left_, left_to_break_;
  bool is_broken_ = false;
  std::shared_ptr<std::atomic_flag> is_aborted_ = std::make_shared<std::atomic_flag>();
};

// Counts the communicators that its device has begun.
class counted final : public device_backend {
 public:
  counted(std::shared_ptr<device_backend> b, std::atomic<int>& begun, std::atomic<int>& fails_at,
          std::atomic<int>& breaks_at)
      : inner_(std::move(b)), begun_(begun), fails_at_(fails_at), breaks_at_(breaks_at) {}
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
    return inner_->enqueue_update(on, op, step, u, workspace);
  }
  result<communicator_id> make_communicator_id() override { return inner_->make_communicator_id(); }
  result<std::unique_ptr<device_communicator>> begin_communicator(
      const communicator_id& id, int rank, int ranks, communicator_changed changed) override {
    ++begun_;
    auto made = inner_->begin_communicator(id, rank, ranks, std::move(changed));
    if (!made) return made;
    return std::unique_ptr<device_communicator>(
        std::make_unique<failing_sum>(std::move(*made), fails_at_, breaks_at_));
  }
  void set_up_thread() noexcept override { inner_->set_up_thread(); }

 private:
  std::shared_ptr<device_backend> inner_;
  std::atomic<int>&begun_, &fails_at_, &breaks_at_;
};

// A node whose device gpu:0 runs late, by a seed.
struct late_node {
  late_node(const std::string& cluster, std::uint64_t seed) {
    chip = std::make_shared<async_host_chip>(async_host_options{
        .seed = seed, .threaded = true, .delay_max_us = 50, .checker = &checker, .on_thread = [] {
          set_up_kernel_thread();
        }});
    process_options o;
    o.cluster = cluster;
    o.gpu_backends = {std::make_shared<counted>(make_async_host_backend("gpu:0", chip, kernels),
                                                communicators, fails_at, breaks_at)};
    auto started = process::start(o);
    BOOST_TEST_REQUIRE(bool(started), (started ? "" : started.error().text()));
    node = std::move(*started);
  }
  ~late_node() {
    node->leave("the test is over");
    node.reset();
    BOOST_TEST(checker.found() == 0u);
    for (const auto& r : checker.reports()) BOOST_TEST_MESSAGE(r.text());
  }

  order_checker checker;
  kernel_table kernels = make_host_kernels();
  std::atomic<int> communicators = 0, fails_at = 0, breaks_at = 0;  // at which sum of a job
  std::shared_ptr<async_host_chip> chip;
  std::unique_ptr<process> node;
};

struct late_nodes {
  late_nodes(std::size_t count, std::uint64_t seed) {
    const auto cluster = fmt::format("devices-{}", seed);
    for (std::size_t i = 0; i < count; ++i)
      nodes.push_back(std::make_unique<late_node>(cluster, seed * 10 + i));
    auto opened =
        session::open({.cluster = cluster, .gpus = "none", .timeout = std::chrono::seconds(30)});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    client = std::move(*opened);
    test::wait_until("the client is linked to all nodes",
                     [&] { return client->nodes().size() >= count; });
  }
  int communicators() const {
    int n = 0;
    for (const auto& node : nodes) n += node->communicators;
    return n;
  }

  test::runtime_folder folder;
  std::vector<std::unique_ptr<late_node>> nodes;
  std::unique_ptr<session> client;
};

std::unique_ptr<training> start(session& s, const std::string& folder, training_options o,
                                std::int64_t width = 16) {
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  const auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = o.workers});
  const auto x = relu(dense(b.images, width, "hidden"));
  auto run = s.train(g, softmax_cross_entropy(dense(x, 10, "out"), b.labels, b.scale), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  return std::move(*run);
}
outcome train(session& s, const std::string& folder, const training_options& o,
              std::int64_t width = 16) {
  return follow(*start(s, folder, o, width));
}

// Shards on the host, in one process.
outcome on_host(const std::string& folder, training_options o, std::int64_t width = 16) {
  o.all_reduce = false;
  o.compile.device.clear();
  auto s = session::open({.gpus = "none"});
  BOOST_REQUIRE(s);
  return train(**s, folder, o, width);
}

training_options among_devices(std::uint32_t workers, std::uint64_t steps) {
  training_options o{.workers = workers, .all_reduce = true, .steps = steps};
  o.compile.device = "/gpu:0";
  return o;
}

view_changed look(process& p) {
  caf::scoped_actor self{p.system()};
  view_changed view;
  tell(nullptr, p.node(), get_view{caf::actor_cast<caf::actor>(self)});
  self->receive([&](view_changed& v) { view = std::move(v); },
                caf::after(test::hang) >> [] { BOOST_FAIL("waited for the view of a node"); });
  after_message();
  return view;
}

void is_same(const outcome& got, const outcome& expected) {
  BOOST_TEST(expected.failure == "");
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
  BOOST_TEST(got.hash == expected.hash);
  BOOST_TEST(!got.hash.empty());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_collectives)

BOOST_FIXTURE_TEST_CASE(gradients_of_devices_are_added_up_there_with_the_bits_of_shards_on_the_host,
                        image_folder) {
  const std::vector<std::pair<std::string, optimizer_spec>> all{
      {"sgd",
       sgd({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3})},
      {"adam", adam({.learning_rate = 0.01, .clip_norm = 0.5})},
      {"rmsprop", rmsprop({.learning_rate = 0.01})}};
  for (const std::uint32_t workers : {2U, 3U}) {
    late_nodes cluster(workers, workers);
    for (const auto& [name, optimizer] : all)
      for (const std::size_t bucket :
           {0, 1, 700}) {  // all together, each alone, small ones together
        auto o = among_devices(workers, 10);
        o.optimizer = optimizer;
        o.observe_every = 5;
        o.compile.bucket_bytes = bucket;
        o.compile.credits = bucket == 1 ? 1 : 3;
        const auto expected = on_host(path, o);
        const auto before = cluster.communicators();
        const auto got = train(*cluster.client, path, o);
        BOOST_TEST_CONTEXT(name << ", " << workers << " workers, buckets of " << bucket) {
          is_same(got, expected);
          // One on each device, for all buckets.
          BOOST_TEST(cluster.communicators() == before + static_cast<int>(workers));
        }
      }
  }
}

BOOST_FIXTURE_TEST_CASE(large_gradients_are_gathered_piece_by_piece, image_folder) {
  late_nodes cluster(3, 11);
  // More than 4 Mi elements in one variable, and the rest of it is no multiple of 16.
  constexpr std::int64_t width = 5351;
  const auto o = among_devices(3, 2);
  is_same(train(*cluster.client, path, o, width), on_host(path, o, width));
}

BOOST_FIXTURE_TEST_CASE(without_device_collectives_gradients_go_by_links_with_the_same_bits,
                        image_folder) {
  late_nodes cluster(2, 21);
  auto o = among_devices(2, 6);
  o.compile.device_collectives = false;
  is_same(train(*cluster.client, path, o), on_host(path, o));
  BOOST_TEST(cluster.communicators() == 0);
}

BOOST_FIXTURE_TEST_CASE(what_is_fast_may_have_another_order_and_every_copy_the_same_one,
                        image_folder) {
  late_nodes cluster(3, 31);
  auto o = among_devices(3, 8);
  o.compile.fast = true;
  const auto got = train(*cluster.client, path, o), again = train(*cluster.client, path, o),
             expected = on_host(path, o);
  is_same(again, got);
  BOOST_REQUIRE_EQUAL(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i)
    BOOST_TEST(std::abs(got.losses[i] - expected.losses[i]) < 1e-4F);
}

// Where nothing else is there, workers share a node: they are parts of its rank.
BOOST_FIXTURE_TEST_CASE(workers_of_one_device_are_parts_of_its_rank, image_folder) {
  late_nodes cluster(2, 41);
  auto client = process::start([] {
    process_options o;
    o.cluster = "devices-41";
    o.kind = member_kind::client;
    o.gpus = "none";
    return o;
  }());
  BOOST_REQUIRE_MESSAGE(client, (client ? "" : client.error().text()));
  const auto ids = cluster.client->nodes();
  // Both nodes, that is: another client's process is linked, too.
  test::wait_until("the client is linked to both nodes", [&] {
    const auto linked = look(**client).linked;
    return std::ranges::all_of(ids, [&](const auto& n) {
      return std::ranges::any_of(linked, [&](const auto& l) { return l == n.id; });
    });
  });
  const auto self = look(**client).self.id;
  for (const bool fast : {false, true})
    for (const std::size_t bucket : {0, 1}) {
      auto o = among_devices(3, 6);
      o.compile.bucket_bytes = bucket;
      o.compile.fast = fast;
      auto data = open_idx(path, false);
      graph g((*client)->ops());
      const auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = 3});
      const auto x = relu(dense(b.images, 16, "hidden"));
      const auto loss = softmax_cross_entropy(dense(x, 10, "out"), b.labels, b.scale);
      auto request = std::make_shared<job_request>();
      request->roles = {{ids[0].id, ids[1].id, ids[0].id}, {ids[0].id}, {}, true};
      const auto where = place_roles(request->roles, self);
      auto spec = spec_of(o);
      spec.tasks = static_cast<std::uint32_t>(where.task_names.size());
      spec.task_names = where.task_names, spec.worker_task = where.worker_task,
      spec.shard_task = where.shard_task, spec.client_task = where.client_task;
      auto program = compile_program(g, loss, spec, o.compile);
      BOOST_REQUIRE_MESSAGE(program, (program ? "" : program.error().text()));
      request->program = std::move(*program);
      const auto got = follow(*make_training(**client, std::move(request), {}, false));
      const auto expected = on_host(path, o);
      BOOST_TEST_CONTEXT("fast " << fast << ", buckets of " << bucket) {
        BOOST_TEST(got.failure == "");
        BOOST_REQUIRE_EQUAL(got.losses.size(), expected.losses.size());
        for (std::size_t i = 0; i < got.losses.size(); ++i)
          BOOST_TEST(std::abs(got.losses[i] - expected.losses[i]) < 1e-4F);
        if (!fast) is_same(got, expected);
      }
    }
  (*client)->leave("the test is over");
}

// --- what goes wrong ---

// The k-th piece of a device's work fails: one line names it, no rank is left waiting, and the next
// job finds its devices in order.
BOOST_FIXTURE_TEST_CASE(work_that_fails_on_one_device_ends_the_job_on_all_of_them_and_no_other_job,
                        image_folder) {
  late_nodes cluster(3, 51);
  auto o = among_devices(3, 16);
  o.compile.bucket_bytes = 1;
  const auto expected = on_host(path, o);
  for (const std::uint64_t k : {5, 24, 43, 62, 81, 100}) {
    auto& chip = *cluster.nodes[k % 3]->chip;
    chip.fail_work(k);
    const auto got = train(*cluster.client, path, o);
    chip.fail_work(0);
    BOOST_TEST_CONTEXT("work " << k) {
      BOOST_TEST(got.failure.find("a failure that was injected") != std::string::npos, got.failure);
      BOOST_TEST(got.failure.find("gpu:0/") != std::string::npos, got.failure);
      // What was made of sums that never came about reaches nobody.
      BOOST_REQUIRE(got.losses.size() < expected.losses.size());
      BOOST_TEST(got.losses ==
                     std::vector<float>(
                         expected.losses.begin(),
                         expected.losses.begin() + static_cast<std::ptrdiff_t>(got.losses.size())),
                 boost::test_tools::per_element());
      is_same(train(*cluster.client, path, o), expected);
    }
  }
}

// Its event comes all the same, and nothing is behind it.
BOOST_FIXTURE_TEST_CASE(DR_6_a_last_sum_that_fails_is_no_good_end, image_folder) {
  late_nodes cluster(2, 55);
  const auto o = among_devices(2, 4);
  const auto expected = on_host(path, o);
  for (const std::size_t at : {0, 1}) {
    cluster.nodes[at]->fails_at = 4;
    const auto got = train(*cluster.client, path, o);
    cluster.nodes[at]->fails_at = 0;
    BOOST_TEST(got.failure.find("the last sum is broken") != std::string::npos, got.failure);
    is_same(train(*cluster.client, path, o), expected);
  }
}

BOOST_FIXTURE_TEST_CASE(DR_5_what_a_communicator_that_breaks_leaves_behind_reaches_nobody,
                        image_folder) {
  late_nodes cluster(2, 57);
  const auto o = among_devices(2, 4);
  const auto expected = on_host(path, o);
  for (const int sum : {1, 2, 4})  // 4: the last, of which an update is all that follows
    for (const std::size_t at : {0, 1}) BOOST_TEST_CONTEXT("sum " << sum << " of node " << at) {
        cluster.nodes[at]->breaks_at = sum;
        const auto got = train(*cluster.client, path, o);
        cluster.nodes[at]->breaks_at = 0;
        // DR-7. The other rank meets the abort, and may be the first to say so: which is not the
        // cause.
        BOOST_TEST(got.failure.find("the wire is cut") != std::string::npos, got.failure);
        BOOST_REQUIRE(got.losses.size() <= expected.losses.size());
        BOOST_TEST(
            got.losses == std::vector<float>(expected.losses.begin(),
                                             expected.losses.begin() +
                                                 static_cast<std::ptrdiff_t>(got.losses.size())),
            boost::test_tools::per_element());
        is_same(train(*cluster.client, path, o), expected);
      }
}

BOOST_FIXTURE_TEST_CASE(a_device_adds_up_for_one_job_at_a_time, image_folder) {
  late_nodes cluster(2, 61);
  auto o = among_devices(2, 1'000'000);
  o.compile.name = "endless";
  auto endless = start(*cluster.client, path, o);
  for (auto e = test::next_event(*endless); e && e->type != training_event::kind::loss;
       e = test::next_event(*endless))
    BOOST_REQUIRE(e->type != training_event::kind::failed);
  o.compile.name = "second";
  o.steps = 6;
  const auto refused = train(*cluster.client, path, o);
  BOOST_TEST(refused.failure.find("gpu:0 of ") != std::string::npos, refused.failure);
  BOOST_TEST(refused.failure.find("adds up gradients of job 'endless'") != std::string::npos,
             refused.failure);
  o.compile.device_collectives = false;
  BOOST_TEST(train(*cluster.client, path, o).failure == "");
  endless->stop("enough");
  BOOST_TEST(follow(*endless).stopped == "enough");
  // What was under way is broken off, and its device is none the worse.
  o.compile.device_collectives = true;
  is_same(train(*cluster.client, path, o), on_host(path, o));
}

BOOST_FIXTURE_TEST_CASE(
    a_node_that_leaves_in_the_middle_is_named_and_the_others_go_on_with_the_next_job,
    image_folder) {
  late_nodes cluster(3, 71);
  auto o = among_devices(3, 1'000'000);
  auto run = start(*cluster.client, path, o);
  for (auto e = test::next_event(*run); e && e->type != training_event::kind::loss;
       e = test::next_event(*run))
    BOOST_REQUIRE(e->type != training_event::kind::failed);
  const auto name = cluster.client->nodes()[1].name;
  cluster.nodes[1]->node->leave("it is needed elsewhere");
  const auto ended = follow(*run);
  BOOST_TEST(ended.failure.find(name) != std::string::npos, ended.failure);
  test::wait_until("the node that left is not linked any more",
                   [&] { return cluster.client->nodes().size() <= 2; });
  o = among_devices(2, 6);
  is_same(train(*cluster.client, path, o), on_host(path, o));
}

BOOST_AUTO_TEST_SUITE_END()
