// Timelines of what ran on the streams of devices: a node with asynchronous host devices in this
// process, trained over and recorded as `troupe timeline` does.

#include "tests/support/image_folder.hpp"
#include "tests/support/trace_file.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/inspect/record_timeline.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr int recordings_max = 100;  // until what is looked for was seen

// A node with a device, and a program that trains on it until it is told to stop.
struct device_cluster : image_folder {
  device_cluster() {
    ::setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
    process_options o;
    o.cluster = cluster;
    o.gpu_backends = {make_async_host_backend("gpu:0", chip, kernels)};
    auto made = process::start(o);
    BOOST_TEST_REQUIRE(bool(made), (made ? "" : made.error().text()));
    node = std::move(*made);
    how.ask.cluster = cluster;
    how.ask.timeout_ns = 60 * second;
    how.duration_ns = second / 5;
    program = std::thread([this] { train(); });
    try {
      test::wait_until("the training has done 5 steps",
                       [this] { return steps >= 5 || has_failed; });
      BOOST_TEST_REQUIRE(!has_failed);
    } catch (...) {  // what has no end of its own ends also without a destructor
      end();
      throw;
    }
  }
  ~device_cluster() { end(); }

  void end() {
    is_over = true;
    const test::waiting_for named("the end of the thread that trains");
    if (program.joinable()) program.join();
    node->leave("the test is over");
    ::unsetenv("XDG_RUNTIME_DIR");
  }

  void train() {
    auto opened = session::open({.cluster = cluster, .timeout = std::chrono::seconds(60)});
    if (!opened) return void(has_failed = true);
    auto& session = **opened;
    graph g(session.ops());
    const auto info = open_idx(path, false);
    const auto batch = idx_batch(g, *info, {.batch = 48, .seed = 5});
    value loss;
    {
      const auto on = g.device_scope("/gpu:0");
      loss = softmax_cross_entropy(dense(relu(dense(batch.images, 64, "hidden")), 10, "out"),
                                   batch.labels, batch.scale);
    }
    auto run = session.train(g, loss,
                             {.steps = 1'000'000, .compile = {.name = "job", .device = "/gpu:0"}});
    if (!run) return void(has_failed = true);
    while (auto e = (*run)->next(std::chrono::milliseconds(20))) {
      if (e->type == training_event::kind::loss) steps = e->step;
      if (e->type == training_event::kind::failed) has_failed = true;
      if (is_over) (*run)->stop("the test is over");
    }
  }

  cluster_recording record() {
    auto r = record_cluster(how);
    BOOST_TEST_REQUIRE(bool(r), (r ? "" : r.error().text()));
    return std::move(*r);
  }

  const std::string cluster = fmt::format("device-timeline-{}", ::getpid());
  kernel_table kernels = make_host_kernels();
  std::shared_ptr<async_host_chip> chip = std::make_shared<async_host_chip>(
      async_host_options{.threaded = true, .delay_max_us = 0, .checker = nullptr, .on_thread = [] {
                           set_up_kernel_thread();
                         }});
  std::unique_ptr<process> node;
  std::thread program;
  std::atomic<bool> is_over{false}, has_failed{false};
  std::atomic<std::uint64_t> steps{0};
  record_options how;
};

const std::vector<test::trace_file::slice>* row(const test::trace_file& f,
                                                const std::string& name) {
  for (const auto& [at, thread] : f.threads)
    if (thread == name) {
      const auto found = f.slices.find(at);
      return found != f.slices.end() ? &found->second : nullptr;
    }
  return nullptr;
}

bool overlap(const std::vector<test::trace_file::slice>& a,
             const std::vector<test::trace_file::slice>& b) {
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].begin_ns < b[k].end_ns && b[k].begin_ns < a[i].end_ns) return true;
    ++(a[i].end_ns < b[k].end_ns ? i : k);
  }
  return false;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_timeline)

BOOST_FIXTURE_TEST_CASE(each_stream_of_a_device_has_a_row_of_what_it_ran_and_a_replay_is_one_slice,
                        device_cluster) {
  for (int n = 0;; ++n) {
    BOOST_TEST_REQUIRE(n < recordings_max);
    const auto f = test::read_timeline(record());
    BOOST_TEST(f.summary.lost == 0u);
    const auto *compute = row(f, "gpu:0/compute"), *in = row(f, "gpu:0/copy_in"),
               *out = row(f, "gpu:0/copy_out");
    // The machine was busy with something else.
    if (compute == nullptr || in == nullptr || out == nullptr || f.count("replay") < 10) continue;
    std::map<std::string, std::multiset<std::uint64_t>> replays, kernels;
    for (const auto& s : *compute) {
      BOOST_TEST((s.category == "replay" || s.category == "kernel"), s.category);
      BOOST_TEST(s.args.at("job") == "job");
      (s.category == "replay" ? replays : kernels)[s.name].insert(
          s.args.at("step").get<std::uint64_t>());
      if (s.category == "replay") BOOST_TEST(s.args.at("kernels").get<int>() > 1);
    }
    // A replay is one slice for a step of its segment, and an update one for a variable.
    for (const auto* all : {&replays, &kernels})
      for (const auto& [name, of] : *all)
        BOOST_TEST((std::set(of.begin(), of.end()).size() == of.size()), name);
    BOOST_TEST(kernels.size() >= 4u);
    // A batch goes in, and a loss comes out.
    std::set<std::int64_t> sizes;
    for (const auto& s : *in) sizes.insert(s.args.at("bytes").get<std::int64_t>());
    BOOST_TEST(sizes.contains(48 * 784 * 4));
    for (const auto& s : *out) {
      BOOST_TEST(s.category == "memcpy");
      BOOST_TEST(s.args.at("bytes") == 4);
    }
    // Each has an arrow to or from the row of the worker that enqueues.
    std::size_t enqueued = 0;
    for (const auto& [id, a] : f.arrows)
      enqueued += f.threads.at({a.first.process, a.first.thread}) == "gpu:0" &&
                  f.threads.at({a.second.process, a.second.thread}).starts_with("gpu:0/");
    BOOST_TEST(enqueued >= f.count("replay") / 2);
    break;
  }
  // What was on is off again, and the job goes on.
  const auto before = steps.load();
  test::wait_until("the training has done 3 more steps",
                   [&] { return steps >= before + 3 || has_failed; });
  BOOST_TEST(!has_failed);
}

BOOST_FIXTURE_TEST_CASE(copies_and_kernels_overlap_in_the_times_that_are_recorded, device_cluster) {
  for (int n = 0;; ++n) {
    BOOST_TEST_REQUIRE(n < recordings_max);
    const auto f = test::read_timeline(record());
    const auto *compute = row(f, "gpu:0/compute"), *in = row(f, "gpu:0/copy_in");
    if (compute != nullptr && in != nullptr && overlap(*compute, *in)) break;
  }
}

BOOST_AUTO_TEST_SUITE_END()
