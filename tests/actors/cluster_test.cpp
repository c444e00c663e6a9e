#include "tests/support/sim_cluster.hpp"

#include "apps/support/scratch_folder.hpp"
#include "runtime/compile.hpp"
#include "runtime/placement.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr std::int64_t s = 1000 * ms;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t seeds_default = 100;
#else
constexpr std::uint64_t seeds_default = 1000;
#endif

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Runs `one` for seeds 1 .. TROUPE_SEEDS / share, or for TROUPE_SEED alone. What it answers is wrong; "": nothing.
template <class One>
void for_seeds(std::uint64_t share, One&& one) {
  const auto only = number_from("TROUPE_SEED", 0);
  const auto last = only != 0 ? only : std::max<std::uint64_t>(1, number_from("TROUPE_SEEDS", seeds_default) / share);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t failures = 0;
  for (auto seed = only != 0 ? only : 1; seed <= last; ++seed) {
    const std::string wrong = one(seed);
    if (wrong.empty()) continue;
    BOOST_ERROR(fmt::format("TROUPE_SEED={}: {}", seed, wrong));
    if (++failures == 5) break;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  BOOST_TEST_MESSAGE(fmt::format("{}: {} seeds, {:.1f} ms each", boost::unit_test::framework::current_test_case().p_name.get(),
                                 only != 0 ? 1 : last, took.count() / double(only != 0 ? 1 : last)));
}

// --- the job ---------------------------------------------------------------------------------------------------------------------

void write_idx(const std::string& path, std::vector<std::uint8_t> sizes, std::size_t bytes, std::uint32_t below) {
  std::string out{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (auto n : sizes) out += std::string{'\0', '\0', '\0', static_cast<char>(n)};
  std::mt19937 random(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(random() % below);
  std::ofstream(path, std::ios::binary) << out;
}

// Ten images of six pixels, three classes: an epoch of global batches of eight ends with a part that is empty.
struct data_folder {
  std::shared_ptr<scratch_folder> folder;
  idx_info info;

  data_folder() {
    auto made = scratch_folder::make("troupe-cluster-test");
    BOOST_TEST_REQUIRE(bool(made));
    folder = *made;
    write_idx(folder->path() + "/train-images-idx3-ubyte", {10, 2, 3}, 60, 256);
    write_idx(folder->path() + "/train-labels-idx1-ubyte", {10}, 10, 3);
    auto opened = open_idx(folder->path(), false, 3);
    BOOST_TEST_REQUIRE(bool(opened));
    info = *opened;
  }
};

struct job_shape {
  std::uint32_t workers = 2, shards = 2;
  update_kind update = update_kind::sync;
  std::uint64_t steps = 6, observe_every = 2;
};

constexpr double counter_rate = 1.0 / 64;  // sums of it are exact

// Two layers, and a variable of which every gradient is 1: it counts how many were applied.
std::shared_ptr<const job_request> make_job(const sim_tables& tables, const data_folder& data, const job_shape& shape,
                                            const std::vector<member_info>& nodes, node_id client) {
  graph g(tables.ops);
  const auto batch = idx_batch(g, data.info, {.batch = 4});
  const auto x = dense(relu(dense(batch.images, 5, "hidden")), 3, "logits");
  const auto counter = variable(g, {dtype::f32, {3}}, {}, "counter");
  const auto loss = add(softmax_cross_entropy(x, batch.labels, batch.scale), reduce_sum(counter));
  auto placed = place_training(nodes, client, shape.workers, shape.shards);
  BOOST_TEST_REQUIRE(bool(placed));
  training_spec t;
  t.workers = shape.workers;
  t.shards = shape.shards;
  t.update = shape.update;
  t.optimizer.learning_rate = counter_rate;
  t.optimizer.momentum = shape.update == update_kind::sync ? 0.9 : 0;
  t.steps = shape.steps;
  t.observe_every = shape.observe_every;
  t.tasks = static_cast<std::uint32_t>(placed->nodes.size());
  t.task_names = placed->task_names;
  t.worker_task = placed->worker_task;
  t.shard_task = placed->shard_task;
  t.client_task = placed->client_task;
  auto compiled = compile_training(g, loss, t, {.name = "training"});
  BOOST_TEST_REQUIRE(bool(compiled), (compiled ? "" : compiled.error().text()));
  return std::make_shared<job_request>(job_request{std::move(*compiled), placed->nodes, false});
}

// --- what a run gave -------------------------------------------------------------------------------------------------------------

// Every loss and every observed variable, bit by bit.
struct outcome {
  std::vector<float> losses;
  std::vector<std::pair<std::string, std::vector<float>>> variables;
};

std::vector<float> floats(const tensor& t) {
  const auto* from = std::as_const(t).data<float>();
  return {from, from + t.elements()};
}

outcome collect(const sim_program& p) {
  outcome out;
  for (const auto& l : p.losses) out.losses.push_back(l.loss);
  for (const auto& item : p.variables)
    for (const auto& [name, value] : item.values) out.variables.emplace_back(name, floats(value));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string difference(const outcome& got, const outcome& wanted) {
  if (got.losses.size() != wanted.losses.size()) return fmt::format("{} losses instead of {}", got.losses.size(), wanted.losses.size());
  if (!same_bits(got.losses, wanted.losses)) return "the losses differ from those of one process";
  if (got.variables.size() != wanted.variables.size()) return "another number of variables was observed";
  for (std::size_t i = 0; i < got.variables.size(); ++i)
    if (got.variables[i].first != wanted.variables[i].first || !same_bits(got.variables[i].second, wanted.variables[i].second))
      return fmt::format("observation {} of variable {} differs from that of one process", i, wanted.variables[i].first);
  return {};
}

std::string check_ledger(const job_totals& totals, const job_shape& shape, bool is_complete) {
  if (totals.workers.size() != shape.workers) return "the ledger lacks a worker";
  for (const auto& w : totals.workers) {
    if (w.fed != w.applied + w.dropped + w.in_flight)
      return fmt::format("fed {} is not applied {} + dropped {} + in flight {}", w.fed, w.applied, w.dropped, w.in_flight);
    if (is_complete && (w.fed != shape.steps || w.applied != shape.steps))
      return fmt::format("of {} steps {} were fed and {} applied", shape.steps, w.fed, w.applied);
  }
  return {};
}

// How many gradients the counter has seen, all workers together; -1: no whole number.
[[maybe_unused]] double applied_by_counter(const sim_program& p) {
  for (const auto& [name, value] : p.variables.back().values)
    if (name == "counter") return -double(floats(value).at(0)) / counter_rate;
  return -1;
}

// Credits are conserved: once all is quiet every output holds all of its credits, here and across processes.
std::string check_credits(sim_cluster& c) {
  for (std::uint32_t i = 0; i <= c.client(); ++i)
    for (const auto& a : c.ask(i).actors) {
      if (a.job_id.empty() || a.kind == "job") continue;
      for (const auto& port : a.ports) {
        if (port.queued != 0) return fmt::format("{} of {} items wait at port {} of {}", port.queued, a.name, port.name, a.name);
        if (!port.is_input() && port.peer != "program" && port.credits != port.credits_max)
          return fmt::format("port {} of {} has {} of {} credits after the job", port.name, a.name, port.credits, port.credits_max);
      }
    }
  return {};
}

std::string left_over(sim_cluster& c) {
  for (std::uint32_t i = 0; i <= c.client(); ++i)
    if (c.is_alive(i))
      if (const auto n = c.job_actors(i); n > 0) return fmt::format("{} actors of the job are left on process {}", n, i);
  return {};
}

// All in one process: what every other run is compared with.
outcome run_embedded(sim_tables& tables, const data_folder& data, const job_shape& shape) {
  sim_cluster alone(tables, {.seed = 1, .nodes = 0});
  BOOST_TEST_REQUIRE(alone.form());
  alone.run_job(make_job(tables, data, shape, {}, alone.info(0).id));
  BOOST_TEST_REQUIRE(alone.run_until([&] { return alone.program().is_over(); }, 10 * s));
  BOOST_TEST_REQUIRE(alone.program().finished.has_value(), (alone.program().failed ? alone.program().failed->line : "the job hangs"));
  auto out = collect(alone.program());
  BOOST_TEST(out.losses.size() == shape.steps);
  BOOST_TEST(out.variables.size() == 5 * (shape.steps / shape.observe_every));
  BOOST_TEST(alone.finish());
  return out;
}

struct fixture {
  sim_tables tables;
  data_folder data;
  std::map<std::uint32_t, outcome> embedded_;  // by workers

  const outcome& embedded(const job_shape& shape) {
    auto at = embedded_.find(shape.workers);
    if (at == embedded_.end()) at = embedded_.emplace(shape.workers, run_embedded(tables, data, shape)).first;
    return at->second;
  }

  void start(sim_cluster& c, const job_shape& shape) {
    c.run_job(make_job(tables, data, shape, nodes_in_order(c.nodes()), c.info(c.client()).id));
  }
};

// What every process noted, for a person who looks at one seed.
void tell_story(sim_cluster& c) {
  if (number_from("TROUPE_SEED", 0) == 0) return;
  for (std::uint32_t i = 0; i <= c.client(); ++i) {
    if (!c.is_alive(i)) continue;
    for (const auto& e : c.ask(i).events) BOOST_TEST_MESSAGE(fmt::format("{}: {:.3f} s ago: {}", c.info(i).name, e.since_seconds, e.text));
  }
}

// The whole life of a job that nothing disturbs for good; `disturb` is called before every message and event.
std::string run_whole(fixture& f, sim_cluster& c, const job_shape& shape, const std::function<void()>& disturb = [] {}) {
  if (!c.form()) return "the processes did not find each other";
  c.hold("stop_part_actors");  // the end of the parts, for a look at the credits
  f.start(c, shape);
  auto& p = c.program();
  const auto losses = shape.update == update_kind::sync ? shape.steps : shape.steps * shape.workers;
  const auto items = shape.steps / shape.observe_every;
  const bool is_over = c.run_until(
      [&] {
        disturb();
        return p.is_over();
      },
      20 * s);
  if (p.failed) return p.failed->line;
  if (!is_over) return fmt::format("the job hangs after {} losses and {} observations", p.losses.size(), p.variables.size());
  if (p.losses.size() != losses || p.variables.size() != items)
    return fmt::format("the job ended with {} losses and {} observations", p.losses.size(), p.variables.size());
  c.run_for(50 * ms);
  if (auto wrong = check_credits(c); !wrong.empty()) return wrong;
  c.hold("");
  c.run_for(50 * ms);
  if (auto wrong = left_over(c); !wrong.empty()) return wrong;
  return check_ledger(*p.finished, shape, true);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cluster)

BOOST_FIXTURE_TEST_CASE(SC_1_one_seed_is_one_history, fixture) {
  std::set<std::uint64_t> orders;
  for (int repeat = 0; repeat < 3; ++repeat) {
    sim_cluster c(tables, {.seed = 7});
    BOOST_TEST(run_whole(*this, c, {}) == "");
    orders.insert(c.orders());
  }
  BOOST_TEST(orders.size() == 1U);
}

BOOST_FIXTURE_TEST_CASE(synchronous_training_gives_the_bits_of_one_process_in_every_order_of_messages, fixture) {
  std::set<std::uint64_t> orders;
  std::uint64_t messages = 0;
  for_seeds(1, [&](std::uint64_t seed) -> std::string {
    const job_shape shape{.workers = 2 + static_cast<std::uint32_t>(seed % 2)};
    sim_cluster c(tables, {.seed = seed});
    auto wrong = run_whole(*this, c, shape);
    if (wrong.empty()) wrong = difference(collect(c.program()), embedded(shape));
    if (!wrong.empty()) tell_story(c);
    if (!c.finish() && wrong.empty()) wrong = "an actor outlives its process";
    orders.insert(c.orders());
    messages += c.messages();
    return wrong;
  });
  BOOST_TEST_MESSAGE(fmt::format("{} distinct orders of messages, {} messages", orders.size(), messages));
}

BOOST_AUTO_TEST_SUITE_END()
