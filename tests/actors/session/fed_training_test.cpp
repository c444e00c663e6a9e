// Trainings whose inputs the program feeds, from a thread for each worker.

#include "tests/support/events.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>
#include <memory>
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

// Else the others would wait for it for ever.
BOOST_AUTO_TEST_CASE(a_feeder_that_goes_ends_the_training_behind_the_last_step_that_all_have) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    auto s = troupe::session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    auto run = (*s)->train(g, loss_of(g, batch),
                           {.workers = 2, .update = update, .steps = 10, .is_fed = true});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    wait_for_start(**run);
    std::vector<std::thread> threads;
    for (std::uint32_t w = 0; w < 2; ++w) {
      auto made = (*run)->make_feeder(w);
      BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
      threads.emplace_back([w, f = std::move(*made)]() mutable {
        for (std::uint64_t step = 0; step < (w == 1 ? 5U : 10U); ++step) {
          const auto b = batch_of_step(w, step);
          const std::pair<std::string_view, tensor> feeds[] = {{"x", b.x}, {"y", b.y}};
          if (!f->feed(feeds, test::hang)) break;
        }
        f.reset();  // it has no more
      });
    }
    const auto o = follow(**run);
    const test::waiting_for named("the end of the threads that feed");
    for (auto& t : threads) t.join();
    BOOST_TEST(o.failure == "");
    BOOST_TEST(o.stopped == "worker 1 has no more data: it was fed 5 of its 10 steps");
    BOOST_TEST(o.losses.size() == (update == update_kind::sync ? 5U : 15U));
  }
}

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
  // Without waiting it sees what has come meanwhile, too.
  auto other = (*run)->make_feeder(1);
  BOOST_REQUIRE(other);
  BOOST_REQUIRE((*other)->feed(feeds, test::hang));
  test::wait_until("one that does not wait finds room",
                   [&] { return bool((*f)->feed(feeds, std::chrono::milliseconds(0))); });
  std::thread waits([&] { fed = (*f)->feed(feeds, test::hang); });
  (*run)->stop("enough");
  const auto o = follow(**run);
  waits.join();
  BOOST_TEST(o.stopped == "enough");
  BOOST_REQUIRE(!fed);
  BOOST_TEST((fed.error().code() == error_code::failed));
}

namespace {

// Feeds every worker from a thread of its own, from the step on that the training says.
class feeding_threads {
 public:
  ~feeding_threads() { join(); }
  void begin(training& run, std::uint32_t workers, std::uint64_t steps) {
    join();
    first_steps.clear();
    for (std::uint32_t w = 0; w < workers; ++w) {
      auto f = run.make_feeder(w);
      BOOST_REQUIRE_MESSAGE(f, (f ? "" : f.error().text()));
      first_steps.push_back((*f)->next_step());
      feeders_.push_back(std::move(*f));
    }
    for (std::uint32_t w = 0; w < workers; ++w)
      threads_.emplace_back([&to = *feeders_[w], w, steps] {
        while (to.next_step() < steps) {
          const auto b = batch_of_step(w, to.next_step());
          const std::pair<std::string_view, tensor> feeds[] = {{"x", b.x}, {"y", b.y}};
          if (!to.feed(feeds, test::hang)) return;
        }
      });
  }
  void join() {
    const test::waiting_for named("the end of the threads that feed");
    for (auto& t : threads_) t.join();
    threads_.clear();
    feeders_.clear();
  }
  std::vector<std::uint64_t> first_steps;

 private:
  std::vector<std::unique_ptr<feeder>> feeders_;
  std::vector<std::thread> threads_;
};

struct fed_outcome : outcome {
  std::uint64_t begun_at = 0;
  std::vector<std::uint64_t> went_back_to;
};

// Until its end; `look` sees each event.
fed_outcome feed_and_follow(training& run, std::uint32_t workers, std::uint64_t steps,
                            const std::function<void(const training_event&)>& look = {}) {
  fed_outcome o;
  feeding_threads feeding;
  while (auto e = test::next_event(run)) {
    using kind = training_event::kind;
    if (e->type == kind::started || e->type == kind::resumed) feeding.begin(run, workers, steps);
    if (e->type == kind::started) o.begun_at = e->step;
    if (e->type == kind::resumed) {
      o.went_back_to.push_back(e->step);
      for (const auto first : feeding.first_steps) BOOST_TEST(first == e->step);
    }
    if (e->type == kind::loss) {
      BOOST_TEST(e->step == o.begun_at + o.losses.size());
      o.losses.push_back(e->loss);
    }
    if (e->type == kind::variables) o.variables = e->variables;
    if (e->type == kind::failed) o.failure = e->text;
    if (e->type == kind::stopped) o.stopped = e->text;
    if (look) look(*e);
  }
  return o;
}

void expect_equal(const outcome& got, const outcome& expected) {
  BOOST_TEST(got.failure == "");
  BOOST_REQUIRE(got.variables.size() == expected.variables.size());
  for (std::size_t i = 0; i < got.variables.size(); ++i) {
    const auto& a = std::as_const(got.variables[i].second);
    const auto& b = std::as_const(expected.variables[i].second);
    BOOST_TEST(std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end()));
  }
}

training_options fed_options(std::uint32_t workers, std::uint64_t steps) {
  return {.workers = workers,
          .shards = 2,
          .optimizer = adam({.learning_rate = 0.01}),
          .seed = 3,
          .steps = steps,
          .is_fed = true};
}

}  // namespace

// Nodes leave and others come while it runs: it goes back to a step before, is fed from there on,
// and has the bits of an undisturbed run.
BOOST_AUTO_TEST_CASE(a_training_that_goes_back_is_fed_again_from_that_step) {
  constexpr std::uint64_t steps = 300;
  auto o = fed_options(2, steps);
  outcome expected;
  {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    auto run = (*s)->train(g, loss_of(g, 2 * batch), o);
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    expected = feed_and_follow(**run, 2, steps);
    BOOST_TEST(expected.failure == "");
  }
  test::runtime_folder folder;
  std::vector<std::unique_ptr<process>> nodes;
  const auto start = [&] {
    process_options of_node;
    of_node.cluster = "fed";
    of_node.gpus = "none";
    auto node = process::start(of_node);
    BOOST_REQUIRE_MESSAGE(node, (node ? "" : node.error().text()));
    nodes.push_back(std::move(*node));
  };
  for (int i = 0; i < 3; ++i) start();
  auto s = session::open({.cluster = "fed", .timeout = std::chrono::seconds(30)});
  BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
  test::wait_until("the client is linked to all nodes",
                   [&] { return (*s)->nodes().size() >= nodes.size(); });
  graph g((*s)->ops());
  o.on_failure = failure_policy::resume;
  auto run = (*s)->train(g, loss_of(g, 2 * batch), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  const auto got = feed_and_follow(**run, 2, steps, [&](const training_event& e) {
    if (e.type != training_event::kind::loss) return;
    if (e.step == 40) nodes[0]->leave("the test wants it");
    if (e.step == 120) start();
    if (e.step == 180) nodes[1]->leave("the test wants it");
  });
  for (auto& n : nodes) n->leave("the test is over");
  BOOST_TEST(got.losses.size() == steps);
  BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
  BOOST_TEST(got.went_back_to.size() >= 2U);
  expect_equal(got, expected);
}

// A program that was stopped begins where its checkpoint is.
BOOST_AUTO_TEST_CASE(a_training_that_begins_with_a_checkpoint_is_fed_from_its_step) {
  constexpr std::uint64_t steps = 40;
  auto o = fed_options(2, steps);
  const auto train = [&](const std::function<void(training&, const training_event&)>& look) {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    auto run = (*s)->train(g, loss_of(g, 2 * batch), o);
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    return feed_and_follow(**run, 2, steps, [&](const training_event& e) { look(**run, e); });
  };
  const auto expected = train([](training&, const training_event&) {});
  test::runtime_folder folder;
  o.on_failure = failure_policy::resume;
  o.checkpoints = {.folder = folder.path, .every_steps = 5, .resume = true};
  const auto first = train([](training& run, const training_event& e) {
    if (e.type == training_event::kind::loss && e.step == 17) run.stop("the test wants it");
  });
  BOOST_TEST(first.stopped == "the test wants it");
  const auto second = train([](training&, const training_event&) {});
  BOOST_TEST(second.begun_at >= 5U);
  BOOST_TEST(second.begun_at % 5 == 0U);
  BOOST_TEST(second.losses.size() == steps - second.begun_at);
  expect_equal(second, expected);
}

// It ends where its workers have got to, which is fed again, too.
BOOST_AUTO_TEST_CASE(a_fed_training_ends_in_good_order) {
  auto o = fed_options(1, 100'000);
  o.may_finish = true;
  auto s = session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto run = (*s)->train(g, loss_of(g, batch), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  const auto got = feed_and_follow(**run, 1, o.steps, [&](const training_event& e) {
    if (e.type == training_event::kind::loss && e.step == 10) (*run)->finish();
  });
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.losses.size() < 100'000U);
  o = fed_options(1, got.losses.size());
  graph h((*s)->ops());
  auto again = (*s)->train(h, loss_of(h, batch), o);
  BOOST_REQUIRE(again);
  expect_equal(got, feed_and_follow(**again, 1, o.steps));
}

BOOST_AUTO_TEST_SUITE_END()
