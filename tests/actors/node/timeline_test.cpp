// Timelines of whole clusters: simulated, with what must be in them, and of real nodes in this
// process.

#include "tests/support/image_folder.hpp"
#include "tests/support/trace_file.hpp"
#include "tests/support/wait.hpp"
#include "tools/troupe-sim/sim_job.hpp"
#include "troupe/actors/inspect/record_timeline.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr std::int64_t s = 1000 * ms;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t seeds = 4;
#else
constexpr std::uint64_t seeds = 30;
#endif

struct fixture {
  sim_tables tables;
  sim_data data = [] {
    auto made = sim_data::make();
    BOOST_TEST_REQUIRE(bool(made));
    return std::move(*made);
  }();
  sim_reference reference{tables, data};

  std::shared_ptr<job_request> request(sim_cluster& c, const sim_job_shape& shape) {
    auto made =
        make_sim_request(tables, data, shape, nodes_in_order(c.nodes()), c.info(c.client()).id);
    BOOST_TEST_REQUIRE(bool(made));
    return *made;
  }
};

// Asks every process for what it has recorded.
class sim_recorder {
 public:
  explicit sim_recorder(sim_cluster& c) : cluster_(c) {
    recording_.cluster = "simulated";
    recording_.duration_ns = trace_duration_max_ns;
    for (std::uint32_t i = 0; i < c.processes(); ++i) {
      auto& n = recording_.nodes.emplace_back();
      n.id = c.info(i).id;
      n.name = c.info(i).name;
      n.kind = to_string(c.info(i).kind);
    }
    fetch(trace_duration_max_ns);
  }

  void fetch(std::int64_t duration_ns = 0) {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i)
      for (bool has_more = true; has_more;) {
        if (!cluster_.is_alive(i)) break;
        auto page = cluster_.trace(i, {1, 7, duration_ns, false, "the test"});
        BOOST_TEST_REQUIRE(page.error == "");
        has_more = page.has_more;
        recording_.nodes[i].add(std::move(page), trace_events_max);
      }
  }

  const cluster_recording& recording() const { return recording_; }

 private:
  sim_cluster& cluster_;
  cluster_recording recording_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(timeline)

BOOST_FIXTURE_TEST_CASE(every_firing_and_every_item_of_a_job_is_there_also_across_nodes, fixture) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      sim_job_shape shape{.workers = 2, .steps = 6};
      shape.update = seed % 3 == 0 ? update_kind::async : update_kind::sync;
      if (shape.update == update_kind::async) shape.observe_every = 0;
      if (seed % 4 == 0)
        shape.on_failure = failure_policy::resume, shape.has_replicas = true,
        shape.observe_every = 0;
      sim_cluster c(tables, {.seed = seed, .nodes = shape.has_replicas ? 3U : 2U});
      BOOST_TEST_REQUIRE(c.form());
      sim_recorder recorder(c);
      c.run_job(request(c, shape));
      // Often enough that no tool is held gone.
      while (!c.program().is_over()) {
        BOOST_TEST_REQUIRE(c.now_ns() < 100 * s);
        c.run_until([&] { return c.program().is_over(); }, 500 * ms);
        recorder.fetch();
      }
      c.run_for(100 * ms);
      recorder.fetch();
      BOOST_TEST_REQUIRE(c.program().finished.has_value());
      if (shape.update == update_kind::sync)
        BOOST_TEST(difference(collect(c.program()), reference.of(shape)) == "");

      const auto file = test::read_timeline(recorder.recording());
      BOOST_TEST(file.summary.lost == 0u);
      BOOST_TEST(file.arrows_across() > 0u);
      BOOST_TEST(file.count("transfer") > 0u);
      // An item of an edge from one process to another was sent once, on the way once, and received
      // once.
      BOOST_TEST(file.count("transfer") == file.count("send"));
      BOOST_TEST(file.count("receive") == file.count("send"));
      BOOST_TEST(file.arrows_across() == file.count("send"));
      // Ops fire once for each step, and all that they take was emitted by somebody.
      std::map<std::string, std::multiset<std::uint64_t>> fired;
      std::size_t taken = 0;
      for (const auto& n : recorder.recording().nodes)
        for (const auto& l : n.lanes)
          for (const auto& e : l.events) {
            const auto at = n.actors.find(e.actor);
            if (e.kind != trace_kind::firing && e.kind != trace_kind::apply) continue;
            BOOST_TEST_REQUIRE((at != n.actors.end() && !at->second.name.empty()));
            if (at->second.kind == actor_kind::op) fired[at->second.name].insert(e.step);
            taken += e.where == trace_event::everywhere ? at->second.inputs.size() : 1;
          }
      BOOST_TEST(!fired.empty());
      for (const auto& [name, steps] : fired) {
        BOOST_TEST(steps.size() == shape.steps, name);
        BOOST_TEST((std::set(steps.begin(), steps.end()).size() == shape.steps), name);
      }
      BOOST_TEST(file.arrows.size() == taken);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(ranks_of_collectives_are_there_once_for_each_step, fixture) {
  for (std::uint64_t seed = 1; seed <= seeds; seed += 3) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      const sim_job_shape shape{.workers = 2, .steps = 6, .all_reduce = true};
      sim_cluster c(tables, {.seed = seed, .nodes = 2});
      BOOST_TEST_REQUIRE(c.form());
      sim_recorder recorder(c);
      c.run_job(request(c, shape));
      while (!c.program().is_over()) {
        BOOST_TEST_REQUIRE(c.now_ns() < 100 * s);
        c.run_until([&] { return c.program().is_over(); }, 500 * ms);
        recorder.fetch();
      }
      c.run_for(100 * ms);
      recorder.fetch();
      BOOST_TEST_REQUIRE(c.program().finished.has_value());
      std::map<std::string, std::multiset<std::uint64_t>> fired;
      for (const auto& n : recorder.recording().nodes)
        for (const auto& l : n.lanes)
          for (const auto& e : l.events)
            if (const auto at = n.actors.find(e.actor); at != n.actors.end() &&
                                                        at->second.kind == actor_kind::collective &&
                                                        e.kind == trace_kind::firing)
              fired[at->second.name].insert(e.step);
      BOOST_TEST(fired.size() >= 2U);  // a rank on each node
      for (const auto& [name, steps] : fired) {
        BOOST_TEST(steps.size() == shape.steps, name);
        BOOST_TEST((std::set(steps.begin(), steps.end()).size() == shape.steps), name);
      }
      BOOST_TEST(test::read_timeline(recorder.recording()).summary.lost == 0u);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_job_that_goes_on_after_a_death_is_recorded_in_both_epochs, fixture) {
  for (std::uint64_t seed = 1; seed <= seeds; seed += 3) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      sim_job_shape shape{
          .workers = 2, .steps = 12, .observe_every = 0, .on_failure = failure_policy::resume};
      sim_cluster c(tables, {.seed = seed, .nodes = 3});
      BOOST_TEST_REQUIRE(c.form());
      sim_recorder recorder(c);
      c.run_job(request(c, shape));
      BOOST_TEST_REQUIRE(c.run_until([&] { return c.program().losses.size() >= 4; }, 20 * s));
      recorder.fetch();
      c.kill(0);
      while (!c.program().is_over()) {
        BOOST_TEST_REQUIRE(c.now_ns() < 100 * s);
        c.run_until([&] { return c.program().is_over(); }, 500 * ms);
        recorder.fetch();
      }
      BOOST_TEST(c.program().finished.has_value());
      std::set<std::uint32_t> epochs;
      for (const auto& n : recorder.recording().nodes)
        for (const auto& [number, p] : n.parts) epochs.insert(p.epoch);
      BOOST_TEST(epochs.size() >= 2u);
      const auto file = test::read_timeline(recorder.recording());
      BOOST_TEST(file.arrows_across() > 0u);
    }
  }
}

namespace {

// A cluster of two nodes in this process, and a program that trains over it until it is told to
// stop.
struct real_cluster : image_folder {
  real_cluster() {
    ::setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
    for (int i = 0; i < 2; ++i) {
      process_options o;
      o.cluster = cluster;
      auto node = process::start(o);
      BOOST_TEST_REQUIRE(bool(node), (node ? "" : node.error().text()));
      nodes.push_back(std::move(*node));
    }
    how.ask.cluster = cluster;
    how.ask.timeout_ns = 60 * s;  // however slow the machine is
    how.duration_ns = s / 2;
    test::wait_until("both nodes are alive", [this] { return count_alive() >= 2; });
  }
  ~real_cluster() {
    is_over = true;
    const test::waiting_for named("the end of the thread that trains");
    if (program.joinable()) program.join();
    for (auto& n : nodes) n->leave("the test is over");
    ::unsetenv("XDG_RUNTIME_DIR");
  }

  // They announce themselves after they have started.
  std::size_t count_alive() const {
    const auto seen = ask_cluster(how.ask);
    return seen ? static_cast<std::size_t>(
                      std::ranges::count(seen->nodes, node_state::alive, &node_snapshot::state))
                : 0;
  }

  void train() {
    program = std::thread([this] {
      auto opened = session::open({.cluster = cluster, .timeout = std::chrono::seconds(60)});
      if (!opened) return;
      auto& session = **opened;
      while (session.nodes().size() < 2 && !is_over)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      graph g(session.ops());
      const auto info = open_idx(path, false);
      const auto batch = idx_batch(g, *info, {.batch = 24, .seed = 5, .parts = 2});
      const auto loss = softmax_cross_entropy(
          dense(relu(dense(batch.images, 16, "hidden")), 10, "out"), batch.labels, batch.scale);
      auto run = session.train(
          g, loss, {.workers = 2, .shards = 2, .steps = 1'000'000, .compile = {.name = "job"}});
      if (!run) return;
      while (auto e = (*run)->next(std::chrono::milliseconds(20))) {
        if (e->type == training_event::kind::loss) steps = e->step;
        if (is_over) (*run)->stop("the test is over");
      }
    });
    test::wait_until("the training has done 5 steps", [this] { return steps >= 5; });
  }

  const std::string cluster = fmt::format("timeline-{}", ::getpid());
  std::vector<std::unique_ptr<process>> nodes;
  std::thread program;
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> steps{0};
  record_options how;
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_training_over_two_nodes_is_recorded_by_two_tools_at_once, real_cluster) {
  train();
  std::vector<result<cluster_recording>> got;
  for (int i = 0; i < 2; ++i) got.emplace_back(error(error_code::failed, ""));
  std::size_t reports = 0;
  how.on_progress = [&](const record_progress&) { ++reports; };
  auto other = how;
  other.on_progress = {};
  std::thread second([&] { got[1] = record_cluster(other); });
  got[0] = record_cluster(how);
  {
    const test::waiting_for named("the end of the second recording");
    second.join();
  }
  BOOST_TEST(reports > 0u);
  for (auto& r : got) {
    BOOST_TEST_REQUIRE(bool(r), (r ? "" : r.error().text()));
    BOOST_TEST(r->silent.empty());
    BOOST_TEST_REQUIRE(r->nodes.size() == 3u);  // with the program
    for (const auto& n : r->nodes) BOOST_TEST(n.is_whole);
    const auto file = test::read_timeline(*r);
    BOOST_TEST(file.count("op") > 0u);
    BOOST_TEST(file.count("shard") > 0u);
    BOOST_TEST(file.count("transfer") > 0u);
    BOOST_TEST(file.count("wait") > 0u);
    BOOST_TEST(file.count("actor") > 0u);
    BOOST_TEST(file.arrows_across() > 0u);
  }
  // What was on is off again, and the job goes on.
  const auto before = steps.load();
  test::wait_until("the training has done 3 more steps", [&] { return steps >= before + 3; });
}

BOOST_FIXTURE_TEST_CASE(nothing_runs_and_the_recording_has_threads_that_wait, real_cluster) {
  how.duration_ns = s / 10;
  const auto r = record_cluster(how);
  BOOST_TEST_REQUIRE(bool(r), (r ? "" : r.error().text()));
  const auto file = test::read_timeline(*r);
  BOOST_TEST(file.count("op") == 0u);
  BOOST_TEST(file.arrows.empty());
  BOOST_TEST(file.count("wait") > 0u);
  for (const auto& [at, name] : file.threads)
    if (name == "cpu:0") {
      BOOST_TEST_REQUIRE((file.slices.contains(at)));
      const auto& all = file.slices.at(at);
      BOOST_TEST(all.size() == 1u);
      BOOST_TEST(all.front().end_ns - all.front().begin_ns == how.duration_ns);
    }
}

BOOST_FIXTURE_TEST_CASE(a_recording_has_no_more_events_than_there_is_room_for, real_cluster) {
  train();
  how.events_max = 50;
  const auto r = record_cluster(how);
  BOOST_TEST_REQUIRE(bool(r), (r ? "" : r.error().text()));
  std::size_t events = 0;
  for (const auto& n : r->nodes) events += n.events();
  BOOST_TEST(events == 50u);
  BOOST_TEST(test::read_timeline(*r).summary.lost > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
