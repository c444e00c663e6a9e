// Trainings whose inputs the program feeds, from a thread for each worker.

#include "tests/support/events.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <random>
#include <thread>

using namespace troupe;

namespace {

constexpr std::int64_t batch = 16, features = 3;

struct samples {
  tensor x, y;
};

// y = 2 x0 - x1 + 0.5 x2, of the step-th batch of a worker.
samples batch_of_step(std::uint32_t worker, std::uint64_t step) {
  std::mt19937_64 random(worker * 1'000'003 + step);
  std::uniform_real_distribution<float> number(-1, 1);
  samples s{tensor::make({dtype::f32, {batch, features}}), tensor::make({dtype::f32, {batch, 1}})};
  for (std::int64_t i = 0; i < batch; ++i) {
    auto* x = s.x.data<float>() + i * features;
    for (std::int64_t k = 0; k < features; ++k) x[k] = number(random);
    s.y.data<float>()[i] = 2 * x[0] - x[1] + 0.5F * x[2];
  }
  return s;
}

value loss_of(graph& g, std::int64_t samples_of_step) {
  auto x = input(g, {dtype::f32, {batch, features}}, "x"),
       y = input(g, {dtype::f32, {batch, 1}}, "y");
  auto error_of = dense(x, 1, "out") - y;
  return reduce_sum(error_of * error_of) * (1.0 / double(samples_of_step));
}

struct outcome {
  std::vector<float> losses;
  std::vector<std::pair<std::string, tensor>> variables;
  training_totals totals;
  std::string failure, stopped;
};

outcome follow(training& run) {
  outcome o;
  while (auto e = test::next_event(run)) {
    if (e->type == training_event::kind::loss) o.losses.push_back(e->loss);
    if (e->type == training_event::kind::variables) o.variables = e->variables;
    if (e->type == training_event::kind::failed) o.failure = e->text;
    if (e->type == training_event::kind::stopped) o.stopped = e->text;
    if (e->type == training_event::kind::finished) o.totals = e->totals;
  }
  return o;
}

void wait_for_start(training& run) {
  for (auto e = test::next_event(run); e && e->type != training_event::kind::started;
       e = test::next_event(run))
    BOOST_REQUIRE(e->type != training_event::kind::failed);
}

outcome train_fed(update_kind update, std::uint32_t workers, std::uint32_t threads,
                  std::uint64_t steps) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto loss = loss_of(g, update == update_kind::sync ? batch * workers : batch);
  auto run = (*s)->train(g, loss,
                         {.workers = workers,
                          .shards = 2,
                          .update = update,
                          .optimizer = sgd({.learning_rate = 0.05}),
                          .seed = 3,
                          .steps = steps,
                          .is_fed = true});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  wait_for_start(**run);
  std::vector<std::thread> feeding;
  std::vector<std::string> errors(workers);
  std::vector<std::unique_ptr<feeder>> feeders;
  for (std::uint32_t w = 0; w < workers; ++w) {
    auto f = (*run)->make_feeder(w);
    BOOST_REQUIRE_MESSAGE(f, (f ? "" : f.error().text()));
    feeders.push_back(std::move(*f));
  }
  for (std::uint32_t w = 0; w < workers; ++w)
    feeding.emplace_back([&, w] {
      for (std::uint64_t step = 0; step < steps; ++step) {
        const auto b = batch_of_step(w, step);
        const std::pair<std::string_view, tensor> feeds[] = {{"x", b.x}, {"y", b.y}};
        if (auto fed = feeders[w]->feed(feeds, test::hang); !fed) errors[w] = fed.error().text();
      }
    });
  auto o = follow(**run);
  const test::waiting_for named("the end of the threads that feed");
  for (auto& t : feeding) t.join();
  for (const auto& e : errors) BOOST_TEST(e == "");
  for (const auto& f : feeders) BOOST_TEST(f->steps() == steps);
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fed_training)

BOOST_AUTO_TEST_CASE(synchronous_steps_are_those_of_a_loop_written_out) {
  const auto o = train_fed(update_kind::sync, 2, 2, 40);
  BOOST_TEST(o.failure == "");
  BOOST_REQUIRE(o.losses.size() == 40U);
  // The same by hand: the sum of both workers' gradients, from the values that the first step saw.
  auto first = train_fed(update_kind::sync, 2, 1, 1);
  std::vector<double> w(features), weights;
  double bias = 0;
  auto s = session::open({});
  BOOST_REQUIRE(s);
  // Begin where training began: undo its first step.
  const auto gradient = [&](const std::vector<double>& at, double b, std::uint64_t step,
                            std::vector<double>& dw) {
    double db = 0;
    dw.assign(features, 0);
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      const auto data = batch_of_step(worker, step);
      for (std::int64_t i = 0; i < batch; ++i) {
        const auto* x = data.x.data<float>() + i * features;
        double e = b - double(data.y.data<float>()[i]);
        for (std::size_t k = 0; k < features; ++k) e += at[k] * double(x[k]);
        for (std::size_t k = 0; k < features; ++k) dw[k] += 2 * e * double(x[k]) / (2 * batch);
        db += 2 * e / (2 * batch);
      }
    }
    return db;
  };
  const auto read = [&](const outcome& from) {
    for (const auto& [name, value] : from.variables) {
      if (value.elements() == features)
        for (std::size_t k = 0; k < features; ++k) w[k] = double(value.data<float>()[k]);
      else
        bias = double(value.data<float>()[0]);
    }
  };
  read(first);
  std::vector<double> dw;
  for (std::uint64_t step = 1; step < 40; ++step) {
    const auto db = gradient(w, bias, step, dw);
    for (std::size_t k = 0; k < features; ++k) w[k] -= 0.05 * dw[k];
    bias -= 0.05 * db;
  }
  const auto by_hand = w;
  const auto bias_by_hand = bias;
  read(o);
  for (std::size_t k = 0; k < features; ++k)
    BOOST_TEST(w[k] == by_hand[k], boost::test_tools::tolerance(1e-4));
  BOOST_TEST(std::abs(bias - bias_by_hand) < 1e-5);
}

BOOST_AUTO_TEST_CASE(asynchronous_steps_of_several_threads_are_all_applied) {
  const auto o = train_fed(update_kind::async, 3, 2, 200);
  BOOST_TEST(o.failure == "");
  BOOST_TEST(o.losses.size() == 600U);
  BOOST_REQUIRE(o.totals.workers.size() == 3U);
  for (const auto& w : o.totals.workers) {
    BOOST_TEST(w.fed == 200U);
    BOOST_TEST(w.applied == 200U);
    BOOST_TEST(w.dropped == 0U);
  }
  BOOST_TEST(o.losses.back() < 0.1F * o.losses.front());
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_a_feed_is_said_and_nothing_is_fed) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto loss = loss_of(g, batch);
  const auto refuse = [&](const training_options& o, std::string_view text) {
    auto run = (*s)->train(g, loss, o);
    BOOST_REQUIRE(!run);
    BOOST_TEST((run.error().code() == error_code::usage));
    BOOST_TEST(run.error().text().find(text) != std::string::npos, run.error().text());
  };
  refuse({}, "set training_options::is_fed");
  refuse({.on_failure = failure_policy::resume, .is_fed = true}, "cannot go on after a failure");
  auto run = (*s)->train(g, loss, {.steps = 2, .is_fed = true});
  BOOST_REQUIRE(run);
  auto early = (*run)->make_feeder(0);
  BOOST_TEST(!early);
  wait_for_start(**run);
  BOOST_TEST(!(*run)->make_feeder(1));
  auto f = (*run)->make_feeder(0);
  BOOST_REQUIRE(f);
  BOOST_TEST(!(*run)->make_feeder(0));
  const auto b = batch_of_step(0, 0);
  using feed = std::pair<std::string_view, tensor>;
  const auto says = [&](std::vector<feed> feeds, std::string_view text) {
    auto fed = (*f)->feed(feeds, test::hang);
    BOOST_REQUIRE(!fed);
    BOOST_TEST((fed.error().code() == error_code::usage));
    BOOST_TEST(fed.error().text().find(text) != std::string::npos, fed.error().text());
  };
  says({}, "is not fed");
  says({{"x", b.x}}, "input 'y' is not fed");
  says({{"x", b.x}, {"y", b.y}, {"y", b.y}}, "given twice");
  says({{"x", b.x}, {"z", b.y}}, "no input 'z'");
  says({{"x", b.y}, {"y", b.y}}, "input 'x' takes");
  says({{"x", b.x}, {"y", tensor()}}, "was given no tensor");
  BOOST_TEST((*f)->steps() == 0U);
  for (int step = 0; step < 2; ++step)
    BOOST_TEST(bool((*f)->feed(std::vector<feed>{{"x", b.x}, {"y", b.y}}, test::hang)));
  const auto o = follow(**run);
  BOOST_TEST(o.failure == "");
  BOOST_TEST(o.losses.size() == 2U);
  // There is nobody to take more.
  auto late = result<void>();
  for (int step = 0; step < 10 && late; ++step)
    late = (*f)->feed(std::vector<feed>{{"x", b.x}, {"y", b.y}}, test::hang);
  BOOST_REQUIRE(!late);
  BOOST_TEST(late.error().text().find("the training has ended") != std::string::npos,
             late.error().text());
}

BOOST_AUTO_TEST_CASE(a_feeder_waits_for_room_until_its_deadline_or_the_end) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto run = (*s)->train(g, loss_of(g, 2 * batch), {.workers = 2, .steps = 1'000, .is_fed = true});
  BOOST_REQUIRE(run);
  wait_for_start(**run);
  auto f = (*run)->make_feeder(0);
  BOOST_REQUIRE(f);
  const auto b = batch_of_step(0, 0);
  const std::pair<std::string_view, tensor> feeds[] = {{"x", b.x}, {"y", b.y}};
  // The other worker is fed by nobody, so that no step ends.
  auto fed = result<void>();
  for (int step = 0; step < 100 && fed; ++step)
    fed = (*f)->feed(feeds, std::chrono::milliseconds(50));
  BOOST_REQUIRE(!fed);
  BOOST_TEST((fed.error().code() == error_code::timed_out));
  std::thread waits([&] { fed = (*f)->feed(feeds, test::hang); });
  (*run)->stop("enough");
  const auto o = follow(**run);
  waits.join();
  BOOST_TEST(o.stopped == "enough");
  BOOST_REQUIRE(!fed);
  BOOST_TEST((fed.error().code() == error_code::failed));
}

BOOST_AUTO_TEST_SUITE_END()
