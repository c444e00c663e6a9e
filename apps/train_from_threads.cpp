// Trains on samples that the program makes itself, in a thread for each worker: asynchronous SGD by
// concurrent steps on one graph. Then many threads ask what was learnt. In this process, or over
// the nodes of a cluster, which the threads feed.

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <random>
#include <thread>

using namespace troupe;

struct spiral_options : training_flags {
  std::uint64_t steps = 1500;
  std::int64_t batch = 64;
};

// Points of two spirals that wind around each other: which of them is each one on?
struct samples {
  tensor points, spirals;  // f32 [n, 2], i32 [n]
};

static samples draw(std::mt19937_64& random, std::int64_t n) {
  samples s{tensor::make({dtype::f32, {n, 2}}), tensor::make({dtype::i32, {n}})};
  std::uniform_real_distribution<float> along(0.1F, 1.0F);
  std::normal_distribution<float> noise(0, 0.01F);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto spiral = static_cast<std::int32_t>(random() & 1);
    const auto radius = along(random),
               angle = 3 * std::numbers::pi_v<float> * radius +
                       static_cast<float>(spiral) * std::numbers::pi_v<float>;
    s.points.data<float>()[2 * i] = radius * std::cos(angle) + noise(random);
    s.points.data<float>()[2 * i + 1] = radius * std::sin(angle) + noise(random);
    s.spirals.data<std::int32_t>()[i] = spiral;
  }
  return s;
}

static value classify(value points) {
  const auto hidden = relu(dense(relu(dense(points, 64, "dense_1")), 64, "dense_2"));
  return dense(hidden, 2, "dense_3");
}

// Every thread feeds a worker of its own, from the step on that the training says. Asynchronous
// steps run at once, each on the variables as they then are.
static void feed(feeder& to, std::uint64_t seed, const spiral_options& o) {
  while (to.next_step() < o.steps) {
    // Of each step by itself, so that one that is made again has the same points.
    std::seed_seq of_step{seed, to.next_step()};
    std::mt19937_64 random(of_step);
    const auto s = draw(random, o.batch);
    const std::pair<std::string_view, tensor> feeds[] = {{"points", s.points},
                                                         {"spirals", s.spirals}};
    if (!to.feed(feeds)) return;  // the training has ended or goes back, which its events say
  }
}

static result<void> train(session& s, const spiral_options& o, training_report& report) {
  graph g(s.ops());
  auto points = input(g, {dtype::f32, {o.batch, 2}}, "points");
  auto spirals = input(g, {dtype::i32, {o.batch}}, "spirals");
  const double in_a_step = double(o.batch) * double(o.update == update_kind::sync ? o.workers : 1);
  auto loss = reduce_sum(cross_entropy(classify(points), spirals)) * (1 / in_a_step);

  auto how = o.training(o.steps);
  how.is_fed = true;
  if (!o.save_graph.empty()) return report.save_graph(g, loss, how);
  auto run = s.train(g, loss, how);
  if (!run) return run.error();
  report.begin({.samples = double(o.batch) * double(o.steps) *
                           double(o.update == update_kind::sync ? o.workers : 1),
                .steps = o.steps,
                .unit = "points"});
  // Feeders are made once the training has started, and anew when it has gone back to a step
  // before.
  std::vector<std::unique_ptr<feeder>> feeders;
  std::vector<std::thread> threads;
  const auto join = [&] {
    for (auto& t : threads) t.join();
    threads.clear();
    feeders.clear();
  };
  while (auto event = (*run)->next(report.refresh())) {
    report.heed_signals(**run);
    report.show(*event);
    if (event->type != training_event::kind::started &&
        event->type != training_event::kind::resumed)
      continue;
    join();
    for (std::uint32_t w = 0; w < o.workers; ++w) {
      auto made = (*run)->make_feeder(w);
      if (!made) {
        (*run)->stop("a worker cannot be fed");
        join();
        return made.error();
      }
      feeders.push_back(std::move(*made));
    }
    for (std::uint32_t w = 0; w < o.workers; ++w)
      threads.emplace_back(feed, std::ref(*feeders[w]), o.seed * 1'000 + w, std::cref(o));
  }
  join();
  return report.outcome();
}

// How many of new points are told right, asked by several threads at once.
static result<double> test(session& s, const spiral_options& o, training_report& report) {
  constexpr std::int64_t points_of_run = 256;
  constexpr std::uint64_t runs = 8;
  graph g(s.ops());
  auto points = input(g, {dtype::f32, {points_of_run, 2}}, "points");
  argmax(classify(points), -1);
  auto r = s.runner(g);
  for (const auto& [name, value] : report.variables())
    if (auto bound = r->bind(name, value); !bound) return bound.error();
  std::vector<std::thread> threads;
  std::vector<std::int64_t> right(o.workers);
  std::vector<result<void>> ended(o.workers);
  for (std::uint32_t w = 0; w < o.workers; ++w)
    threads.emplace_back([&, w] {
      std::mt19937_64 random(~o.seed * 1'000 + w);
      for (std::uint64_t run = 0; run < runs; ++run) {
        const auto asked = draw(random, points_of_run);
        auto told = r->run({{"points", asked.points}}, {"argmax"});
        if (!told) {
          ended[w] = told.error();
          return;
        }
        for (std::int64_t i = 0; i < points_of_run; ++i)
          right[w] += told->front().data<std::int32_t>()[i] == asked.spirals.data<std::int32_t>()[i]
                          ? 1
                          : 0;
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : ended)
    if (!e) return e.error();
  std::int64_t all = 0;
  for (const auto n : right) all += n;
  return double(all) / double(points_of_run * static_cast<std::int64_t>(runs) * o.workers);
}

int main(int argc, char** argv) {
  spiral_options o;
  o.program = "train_from_threads";
  o.name = "spirals";
  o.workers = 4;
  o.threads = 2;
  o.update = update_kind::async;
  o.parse(
      argc, argv,
      "Trains on points that the program makes and feeds, with a thread for each worker, here or "
      "over the nodes of a cluster.",
      "adam", [&](CLI::App& app) {
        app.add_option("--steps", o.steps, "Steps of each worker")
            ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
            ->capture_default_str();
        app.add_option("--batch", o.batch, "Points per step of one worker")
            ->check(CLI::Range(1, 1'000'000))
            ->capture_default_str();
      });
  training_report report(o);
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());
  auto s = session::open(o.session([&] { return report.is_interrupted(); }));
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, o, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  auto accuracy = test(**s, o, report);
  if (!accuracy) return report.fail(accuracy.error());
  return report.finish("test_accuracy", *accuracy,
                       fmt::format("{:.4f} of new points are classified correctly", *accuracy));
}
