// What nodes with devices send each other: read into page-locked memory, and sent out of it, with
// no further copy on the host. Asynchronous host devices, which count such copies.

#include "tests/support/image_folder.hpp"
#include "tests/support/training_outcome.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using test::follow;
using test::outcome;

namespace {

constexpr std::uint64_t steps = 30;
// Two layers: of each a gradient goes to the shards in every step, and a version comes back.
constexpr std::size_t variables = 4;

// Two nodes, a worker and a place for shards, each with a device of its own chip, and a client.
struct device_nodes {
  device_nodes() {
    for (int i = 0; i < 2; ++i) {
      chips.push_back(std::make_shared<async_host_chip>(async_host_options{
          .seed = 3, .threaded = true, .delay_max_us = 20, .checker = nullptr, .on_thread = [] {
            set_up_kernel_thread();
          }}));
      backends.push_back(make_async_host_backend("gpu:0", chips.back(), kernels));
      process_options o;
      o.cluster = cluster;
      o.job = i == 0 ? "worker" : "ps";
      o.gpu_backends = {backends.back()};
      auto node = process::start(o);
      BOOST_TEST_REQUIRE(bool(node), (node ? "" : node.error().text()));
      nodes.push_back(std::move(*node));
    }
    auto opened = session::open({.cluster = cluster, .timeout = std::chrono::seconds(30)});
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    client = std::move(*opened);
    test::wait_until("the client is linked to all nodes",
                     [this] { return client->nodes().size() >= nodes.size(); });
  }
  ~device_nodes() {
    client.reset();
    for (auto& n : nodes) n->leave("the test is over");
  }

  memory_stats memory(std::size_t node) const { return backends[node]->device().memory(); }
  // What was page-locked for a job is given back, once its actors have ended.
  bool gives_everything_back() const {
    for (int i = 0; i < 6000; ++i) {
      if (memory(0).pinned_bytes == 0 && memory(1).pinned_bytes == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  test::runtime_folder folder;
  const std::string cluster = fmt::format("landing-{}", ::getpid());
  kernel_table kernels = make_host_kernels();
  std::vector<std::shared_ptr<async_host_chip>> chips;
  std::vector<std::shared_ptr<device_backend>> backends;
  std::vector<std::unique_ptr<process>> nodes;
  std::unique_ptr<session> client;
};

outcome train(session& s, const std::string& images, const std::string& device) {
  const auto data = open_idx(images, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  const auto b = idx_batch(g, *data, {.batch = 24, .seed = 5});
  value loss;
  {
    const auto there = g.device_scope(device);
    loss = softmax_cross_entropy(dense(relu(dense(b.images, 16, "hidden")), 10, "out"), b.labels,
                                 b.scale);
  }
  auto run = s.train(g, loss, {.steps = steps, .compile = {.device = device}});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  return follow(**run);
}

outcome on_the_host(const std::string& images) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  return train(**s, images, "/cpu:0");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(landing)

BOOST_FIXTURE_TEST_CASE(
    CY_4_what_devices_of_two_nodes_send_each_other_is_copied_no_further_on_the_host, image_folder) {
  const auto expected = on_the_host(path);
  device_nodes n;
  const auto got = train(*n.client, path, "/gpu:0");
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
  BOOST_TEST(got.hash == expected.hash);
  // Staged: the shards' first values with their velocities. Of what a reader of the host makes
  // (images, labels, scale), or came from the other node, at most as many as a pool of buffers is
  // larger than when it began, which is less than 8 for an edge; batches would be 3 for each step,
  // gradients and versions one for each variable.
  constexpr std::uint64_t grown = 8 * variables;
  static_assert(grown < steps * variables / 3);
  BOOST_TEST_MESSAGE("copies by way of staging: worker " << n.memory(0).staged_copies << ", shards "
                                                         << n.memory(1).staged_copies);
  BOOST_TEST(n.memory(0).staged_copies <= 3 * 8 + grown);
  static_assert(3 * 8 + grown < 3 * steps);
  BOOST_TEST(n.memory(1).staged_copies >= 2 * variables);
  BOOST_TEST(n.memory(1).staged_copies <= 2 * variables + grown);
  BOOST_TEST(n.gives_everything_back());
}

BOOST_FIXTURE_TEST_CASE(a_job_that_follows_one_that_failed_lands_in_page_locked_memory_too,
                        image_folder) {
  const auto expected = on_the_host(path);
  device_nodes n;
  for (const std::uint64_t k : {2, 25, 60}) {
    BOOST_TEST_CONTEXT("work " << k) {
      n.chips[k % 2]->fail_work(k);
      const auto failed = train(*n.client, path, "/gpu:0");
      n.chips[k % 2]->fail_work(0);
      BOOST_TEST(failed.failure.find("a failure that was injected") != std::string::npos,
                 failed.failure);
      BOOST_TEST(n.gives_everything_back());
      const auto before = n.memory(1).staged_copies;
      const auto next = train(*n.client, path, "/gpu:0");
      BOOST_TEST(next.failure == "");
      BOOST_TEST(next.losses == expected.losses, boost::test_tools::per_element());
      BOOST_TEST(next.hash == expected.hash);
      BOOST_TEST(n.memory(1).staged_copies - before <= 10 * variables);
      BOOST_TEST(n.gives_everything_back());
    }
  }
}

BOOST_FIXTURE_TEST_CASE(nodes_that_copy_nothing_to_a_device_take_no_page_locked_memory,
                        image_folder) {
  const auto expected = on_the_host(path);
  device_nodes n;
  const auto got = train(*n.client, path, "/cpu:0");
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.hash == expected.hash);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST(n.memory(i).pinned_bytes == 0u);
    BOOST_TEST(n.memory(i).staged_copies == 0u);
  }
}

BOOST_AUTO_TEST_SUITE_END()
