// Variables that live on, and steps that a program composes.

#include "tests/support/training_outcome.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

tensor row(const std::vector<float>& values) {
  return tensor::of<float>(dtype::f32, {static_cast<std::int64_t>(values.size())}, values);
}
std::vector<float> numbers_in(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

template <class T>
T must(result<T> r, std::source_location where = std::source_location::current()) {
  BOOST_TEST_REQUIRE(bool(r), where.line() << ": " << (r ? "" : r.error().text()));
  return std::move(*r);
}
void must(const result<void>& r, std::source_location where = std::source_location::current()) {
  BOOST_TEST_REQUIRE(bool(r), where.line() << ": " << (r ? "" : r.error().text()));
}

std::string hash_of(const troupe::variable_store& store) {
  std::vector<named_tensor> all;
  for (auto& [name, value] : store.snapshot().variables) all.push_back({name, value});
  return weights_hash(all);
}

std::unique_ptr<session> alone(std::uint32_t threads = 1) {
  auto s = session::open(
      {.roles = {"/job:worker/task:0", "/job:worker/task:1"}, .threads = threads, .gpus = "none"});
  BOOST_TEST_REQUIRE(bool(s));
  return std::move(*s);
}

constexpr std::int64_t samples = 60;

// Points and what they are to become, in the graph; a perceptron with a normalization, which has a
// moving average.
value perceptron(graph& g, const std::string& first = "", const std::string& second = "") {
  auto x = tensor::make({dtype::f32, {samples, 3}});
  auto y = tensor::make({dtype::f32, {samples, 2}});
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.data<float>()[i] = static_cast<float>(std::sin(double(i) * 1.7));
  for (std::int64_t i = 0; i < y.elements(); ++i)
    y.data<float>()[i] = static_cast<float>(std::cos(double(i) * 0.3));
  const auto batch = index_batch(g, samples, {.batch = 8, .seed = 3});
  const auto on = [&](const std::string& device, auto&& make) {
    if (device.empty()) return make();
    const auto there = g.device_scope(device);
    return make();
  };
  const auto hidden = on(first, [&] {
    return tanh(batch_norm(dense(gather(constant(g, x), batch.ids), 5, "one"), "norm"));
  });
  const auto guess = on(second, [&] { return dense(hidden, 2, "two"); });
  const auto loss = reduce_sum(square(guess - gather(constant(g, y), batch.ids))) * batch.scale;
  g.node(loss.node).name = "loss";
  return loss;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(variable_store)

// A loop of the program's own computes what train() does, bit by bit, here and over nodes.
BOOST_AUTO_TEST_CASE(a_loop_of_ones_own_has_the_bits_of_a_training) {
  constexpr std::uint64_t steps = 40;
  const auto o = adamw({.learning_rate = 0.01});
  const auto schedule = cosine({.steps = steps, .warmup = 5});
  test::outcome trained;
  {
    auto s = alone();
    graph g(s->ops());
    const auto loss = perceptron(g);
    auto run = must(s->train(
        g, loss, {.optimizer = o, .schedule = schedule, .clip_global_norm = 0.5, .steps = steps}));
    trained = test::follow(*run);
  }
  BOOST_TEST_REQUIRE(trained.losses.size() == steps);
  const auto loop = [&](session& s, const std::string& first, const std::string& second) {
    graph g(s.ops());
    const auto loss = perceptron(g, first, second);
    minimize(loss, o, {.schedule = schedule, .clip_global_norm = 0.5});
    BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
    const auto store = s.make_store();
    must(store->initialize(g));
    const auto r = s.runner(g, *store);
    for (std::uint64_t i = 0; i < steps; ++i) {
      std::uint64_t version = 0;
      const auto out =
          must(r->step(std::span<const graph_runner::feed>(),
                       std::array<std::string_view, 2>{"loss", "train/norm"},
                       std::array<std::string_view, 1>{"train"}, {.version = &version}));
      BOOST_TEST(*out[0].data<float>() == trained.losses[i]);
      BOOST_TEST(*out[1].data<float>() > 0);
      BOOST_TEST(version == i + 1);  // the first commit made the variables
    }
    BOOST_TEST(hash_of(*store) == trained.hash);
  };
  for (const auto threads : {1U, 2U}) {
    auto s = alone(threads);
    loop(*s, "", "");
    loop(*s, "/job:worker/task:0", "/job:worker/task:1");
  }
  test::own_nodes nodes("loop", {{}, {}});
  loop(nodes.client(), "/job:worker/task:0", "/job:worker/task:1");
}

BOOST_AUTO_TEST_CASE(a_run_makes_all_of_its_updates_or_none) {
  auto s = alone();
  graph g(s->ops());
  const auto w = variable(g, {dtype::f32, {2}}, filled_with(1), "w");
  const auto n = variable(g, {dtype::f32, {2}}, {}, "n");
  const auto frozen = variable(g, {dtype::f32, {2}}, filled_with(3), "frozen");
  const auto ids = input(g, {dtype::i64, {2}}, "ids");
  assign(w, gather(w * frozen, ids), "train");  // fails where an index is outside
  assign_add(n, constant(g, row({1, 1})), "train");
  const auto store = s->make_store();
  must(store->initialize(g));
  const auto r = s->runner(g, *store);
  const auto at = [](std::int64_t a, std::int64_t b) {
    return tensor::of<std::int64_t>(dtype::i64, {2}, std::array{a, b});
  };
  must(r->step({{"ids", at(0, 1)}}, {}, {"train"}));
  BOOST_TEST(!r->step({{"ids", at(0, 2)}}, {}, {"train"}));
  BOOST_TEST(numbers_in(must(store->get("w"))) == (std::vector<float>{3, 3}));
  BOOST_TEST(numbers_in(must(store->get("n"))) == (std::vector<float>{1, 1}));
  const auto before = must(r->step({{"ids", at(1, 0)}}, {"w", "n"}, {"train"}));
  BOOST_TEST(numbers_in(before[0]) == (std::vector<float>{3, 3}));  // of the version that it read
  BOOST_TEST(numbers_in(must(store->get("w"))) == (std::vector<float>{9, 9}));
  BOOST_TEST(numbers_in(must(store->get("n"))) == (std::vector<float>{2, 2}));
  BOOST_TEST(numbers_in(must(store->get("frozen"))) == (std::vector<float>{3, 3}));
  BOOST_TEST(store->version() == 3U);
}

// Two losses, two optimizers, each with variables of its own; k batches before one update; an
// optimizer that is a graph.
BOOST_AUTO_TEST_CASE(what_a_step_does_is_the_programs_choice) {
  auto s = alone();
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto a = variable(g, {dtype::f32, {2}}, filled_with(1), "a");
  const auto b = variable(g, {dtype::f32, {2}}, filled_with(2), "b");
  const auto sum = variable(g, {dtype::f32, {2}}, {}, "sum");
  minimize(reduce_sum(a * b * x), {a}, sgd({.learning_rate = 0.5}), {.name = "down"});
  minimize(neg(reduce_sum(a * b * x)), {b}, sgd({.learning_rate = 0.5}), {.name = "up"});
  assign_add(sum, gradients(g, reduce_sum(a * x), std::array{a})[0], "accumulate");
  assign(a, a - sum * 0.25F, "apply");
  assign(sum, sum * 0.0F, "apply");
  const auto store = s->make_store();
  must(store->initialize(g));
  const auto r = s->runner(g, *store);
  const auto is = [&](const std::string& name, std::vector<float> values) {
    BOOST_TEST(numbers_in(must(store->get(name))) == values, name);
  };
  must(r->step({{"x", row({1, 2})}}, {}, {"down"}));
  is("a", {0, -1}), is("b", {2, 2});
  must(r->step({{"x", row({1, 2})}}, {}, {"up"}));
  is("a", {0, -1}), is("b", {2, 1});
  must(r->step({{"x", row({1, 2})}}, {}, {"down", "up"}));  // both from one version
  is("a", {-1, -2}), is("b", {2, 0});
  for (int i = 0; i < 4; ++i) must(r->step({{"x", row({1, float(i)})}}, {}, {"accumulate"}));
  is("sum", {4, 6});
  must(r->step({}, {}, {"apply"}));
  is("a", {-2, -3.5F}), is("sum", {0, 0});
}

BOOST_AUTO_TEST_CASE(gradients_of_many_threads_are_applied_once_each) {
  constexpr int threads = 8, steps = 50;
  for (const auto update : {update_kind::sync, update_kind::async}) {
    auto s = alone(2);
    graph g(s->ops());
    const auto x = input(g, {dtype::f32, {2}}, "x");
    const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
    minimize(neg(reduce_sum(w * x)), sgd({.learning_rate = 1}));
    const auto store = s->make_store();
    must(store->initialize(g));
    const auto r = s->runner(g, *store);
    std::atomic<int> done{0};
    std::vector<std::jthread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([&, t] {
        for (int i = 0; i < steps; ++i)
          if (r->step({{"x", row({1, float(t)})}}, {}, {"train"}, {.update = update})) ++done;
      });
    all.clear();
    BOOST_TEST(done == threads * steps);
    BOOST_TEST(numbers_in(must(store->get("w"))) ==
               (std::vector<float>{threads * steps, steps * threads * (threads - 1) / 2}));
    BOOST_TEST(store->version() == threads * steps + 1U);
  }
}

// Four threads evaluate while one trains: what they read is of one version, never of two.
BOOST_AUTO_TEST_CASE(who_reads_while_another_trains_reads_one_version) {
  auto s = alone(2);
  graph g(s->ops()), other(s->ops());
  std::vector<value> all;
  for (int i = 0; i < 5; ++i) {
    const auto w = variable(g, {dtype::f32, {100}}, {}, "w" + std::to_string(i));
    assign_add(w, constant(g, 1.0F) + w * 0.0F, "train");
    all.push_back(variable(other, {dtype::f32, {100}}, {}, "w" + std::to_string(i)));
  }
  const auto spread = reduce_max(stack(all)) - reduce_min(stack(all));
  other.node(spread.node).name = "spread";
  const auto store = s->make_store();
  must(store->initialize(g));
  const auto trains = s->runner(g, *store);
  const auto reads = s->runner(other, *store);
  std::atomic<bool> is_over{false};
  std::atomic<int> torn{0}, read{0}, older{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::uint64_t last = 0, version = 0;
      while (!is_over) {
        const auto out = reads->step(std::span<const graph_runner::feed>(),
                                     std::array<std::string_view, 2>{"spread", "w0"},
                                     std::span<const std::string_view>(), {.version = &version});
        ++read;
        if (!out || *(*out)[0].data<float>() != 0 ||
            *(*out)[1].data<float>() != static_cast<float>(version - 1))
          ++torn;
        if (version < last) ++older;
        last = version;
        for (const auto& [name, value] : store->snapshot().variables)
          if (numbers_in(value) != std::vector<float>(100, *value.data<float>())) ++torn;
      }
    });
  const auto end = std::chrono::steady_clock::now() + test::hang;
  result<void> trained;
  while (trained && read < 200 && std::chrono::steady_clock::now() < end)
    if (auto out = trains->step({}, {}, {"train"}); !out) trained = out.error();
  is_over = true;
  threads.clear();
  must(trained);
  BOOST_TEST(read >= 200);
  BOOST_TEST(torn == 0);
  BOOST_TEST(older == 0);
}

// With numbers that are drawn, and samples that are chosen, by the step.
BOOST_AUTO_TEST_CASE(a_step_whose_node_goes_changes_nothing_and_is_made_again_with_equal_bits) {
  constexpr std::uint64_t steps = 400;
  const auto build = [](graph& g) {
    const auto there = g.device_scope("/job:worker");  // the first that there is
    const auto loss = perceptron(g);
    const auto noise = reduce_sum(random_uniform(g, {dtype::f32, {4}}));
    minimize(loss * (noise + 1.0F), adam({.learning_rate = 0.01}));
    BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  };
  const auto step = [](graph_runner& r) { return r.step({}, {"loss"}, {"train"}); };
  std::string undisturbed;
  {
    auto s = alone();
    graph g(s->ops());
    build(g);
    const auto store = s->make_store();
    must(store->initialize(g));
    const auto r = s->runner(g, *store);
    for (std::uint64_t i = 0; i < steps; ++i) must(step(*r));
    undisturbed = hash_of(*store);
  }
  test::own_nodes nodes("again", {{.name = "first"}, {.name = "second"}});
  graph g(nodes.client().ops());
  build(g);
  const auto store = nodes.client().make_store();
  must(store->initialize(g));
  const auto r = nodes.client().runner(g, *store);
  std::atomic<std::uint64_t> done{0}, failures{0}, changed{0};
  std::string last;  // failure
  std::jthread trains([&] {
    auto end = std::chrono::steady_clock::now() + test::hang;  // without a step that goes well
    while (done < steps && std::chrono::steady_clock::now() < end) {
      const auto before = store->version();
      const auto out = step(*r);
      if (out) {
        ++done;
        end = std::chrono::steady_clock::now() + test::hang;
        continue;
      }
      if (store->version() != before) ++changed;
      last = out.error().text();
      ++failures;
      std::this_thread::sleep_for(1ms);  // the client may not know yet
    }
  });
  test::wait_until("some steps were made", [&] { return done >= 20; });
  nodes.leave(0);
  trains.join();
  BOOST_TEST(done == steps, last);
  BOOST_TEST(changed == 0U);
  BOOST_TEST_MESSAGE("failures: " << failures);
  BOOST_TEST(hash_of(*store) == undisturbed);
}

BOOST_AUTO_TEST_CASE(a_run_that_is_late_gives_its_turn_up) {
  auto s = alone();
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {}}, "x");
  const auto w = variable(g, {dtype::f32, {}}, {}, "w");
  const auto last = while_loop(
      {x}, [](auto v) { return greater(v[0], v[0] * 0.0F); },
      [](auto v) { return std::vector<value>{v[0] * 1.0F}; })[0];
  assign(w, last, "set");
  BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  const auto store = s->make_store();
  must(store->initialize(g));
  const auto r = s->runner(g, *store);
  const auto one = [](float v) { return tensor::of<float>(dtype::f32, {}, std::array{v}); };
  must(r->step({{"x", one(-1)}}, {}, {"set"}));
  const auto late = r->step({{"x", one(1)}}, {}, {"set"}, {.deadline = 50ms});
  BOOST_TEST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == error_code::timed_out));
  must(r->step({{"x", one(-3)}}, {}, {"set"}, {.deadline = test::hang}));
  BOOST_TEST(*must(store->get("w")).data<float>() == -3);
  // One that waits for its turn is late, too, and the one in front of it is not.
  std::jthread slow([&] { (void)r->step({{"x", one(1)}}, {}, {"set"}, {.deadline = 300ms}); });
  for (const auto update : {update_kind::sync, update_kind::async}) {
    const auto waits = r->step({{"x", one(1)}}, {}, {"set"}, {.deadline = 50ms, .update = update});
    BOOST_TEST_REQUIRE(!waits);
    BOOST_TEST((waits.error().code() == error_code::timed_out));
  }
  slow.join();
  must(r->step({{"x", one(-4)}}, {}, {"set"}, {.deadline = test::hang}));
  BOOST_TEST(*must(store->get("w")).data<float>() == -4);
}

// Whatever is wrong with one of several updates, none is made, and others have their turn.
BOOST_AUTO_TEST_CASE(an_update_that_cannot_be_made_gives_its_turn_up) {
  auto s = alone();
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto v = variable(g, {dtype::f32, {2}}, {}, "v");
  const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
  assign(v, x, "set");
  assign(w, x, "set");
  const auto y = neg(v + w);
  const auto store = s->make_store();
  must(store->set({{"v", row({1, 1})}, {"w", row({1, 2, 3})}}));  // of another graph
  const auto r = s->runner(g, *store);
  for (const auto update : {update_kind::sync, update_kind::async}) {
    const auto refused = r->step({{"x", row({5, 6})}}, {}, {"set"}, {.update = update});
    BOOST_TEST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == error_code::usage));
    BOOST_TEST(refused.error().text().find("variable 'w' is f32[2] in this graph, and f32[3] in "
                                           "the store") != std::string::npos,
               refused.error().text());
    BOOST_TEST(numbers_in(must(store->get("v"))) == (std::vector<float>{1, 1}));
  }
  const auto read = r->run({}, {g.node(y.node).name});
  BOOST_TEST_REQUIRE(!read);
  BOOST_TEST(read.error().text().find("variable 'w' is f32[2] in this graph") != std::string::npos,
             read.error().text());
  must(store->set("w", row({7, 8, 9})));
  // What the program gave, and what it got, is its own.
  auto given = row({4, 4, 4});
  must(store->set("w", given));
  given.data<float>()[0] = 0;
  BOOST_TEST(numbers_in(must(store->get("w"))) == (std::vector<float>{4, 4, 4}));
}

// Two losses move one average: once in a run of both.
BOOST_AUTO_TEST_CASE(two_losses_over_one_average_are_minimized_in_one_run) {
  auto s = alone();
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {4, 2}}, "x");
  const auto y = batch_norm(dense(x, 3, "layer"), "norm");
  minimize(reduce_sum(square(y)), {g.variables()[0]}, sgd({}), {.name = "a"});
  minimize(reduce_sum(abs(y)), {g.variables()[1]}, sgd({}), {.name = "b"});
  BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  const auto store = s->make_store();
  must(store->initialize(g));
  const auto r = s->runner(g, *store);
  auto feed = tensor::make({dtype::f32, {4, 2}});
  for (int i = 0; i < 8; ++i) feed.data<float>()[i] = static_cast<float>(i * i);
  must(r->step({{"x", feed}}, {}, {"a", "b"}));
  must(r->step({{"x", feed}}, {}, {"b"}));
}

BOOST_AUTO_TEST_CASE(a_store_is_of_one_session) {
  auto one = alone(), two = alone();
  graph g(one->ops());
  variable(g, {dtype::f32, {2}}, {}, "w");
  const auto store = two->make_store();
  must(store->initialize(g));
  const auto refused = one->runner(g, *store)->run({}, {"w"});
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST(refused.error().text().find("another session") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(mistakes_are_told_and_change_nothing) {
  auto s = alone();
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
  const auto v = variable(g, {dtype::f32, {2}}, {}, "v");
  minimize(reduce_sum(w * x), sgd({}));
  assign(w, x, "set");
  const auto y = w + v;
  g.node(y.node).name = "y";
  const auto store = s->make_store();
  const auto r = s->runner(g, *store);
  const auto has = [](const auto& out, error_code code, const std::string& part) {
    BOOST_TEST_REQUIRE(!out);
    BOOST_TEST((out.error().code() == code));
    BOOST_TEST(out.error().text().find(part) != std::string::npos, out.error().text());
  };
  const auto feed = row({1, 2});
  has(r->step({{"x", feed}}, {}, {"train"}), error_code::not_found,
      "the store has no variable 'w'");
  has(r->run({}, {"y"}), error_code::not_found, "'w', 'v'");
  must(store->initialize(g));
  has(r->step({{"x", feed}}, {}, {"train", "set"}), error_code::usage,
      "one run cannot make two updates of variable 'w'");
  has(r->step({{"x", feed}}, {}, {"count"}), error_code::usage,
      "no update 'count'; there are 'set', 'train'");
  has(r->run({{"x", feed}}, {"train"}), error_code::usage, "'train' is an update");
  must(r->step({{"x", feed}}, {}, {"set"}, {.deadline = std::chrono::milliseconds::max()}));
  must(store->set("w", row({0, 0})));
  has(r->step({{"x", feed}}, {}, {"trian"}), error_code::usage,
      "no update 'trian', perhaps 'train'");
  has(r->step({}, {}, {"train"}), error_code::usage, "input 'x', which is not fed");
  has(r->step({{"x", row({1, 2, 3})}}, {}, {"train"}), error_code::usage, "f32[3]");
  has(s->runner(g)->step({{"x", feed}}, {}, {"train"}), error_code::usage,
      "a runner without a store has no updates");
  has(store->get("z"), error_code::not_found, "the store has no variable 'z'");
  has(store->set("w", row({1})), error_code::usage, "variable 'w' is f32[2], and was given f32[1]");
  has(store->set({{"w", row({5, 5})}, {"v", row({1})}}), error_code::usage, "variable 'v'");
  has(store->set("a#b", feed), error_code::usage, "no name of a variable");
  graph same(s->ops());
  variable(same, {dtype::f32, {3}}, {}, "w");
  has(store->initialize(same), error_code::usage,
      "variable 'w' is f32[3], and the store has it as");
  BOOST_TEST(numbers_in(must(store->get("w"))) == (std::vector<float>{0, 0}));
  BOOST_TEST(store->version() == 3U);
  for (const auto* name : {"__metadata__", "a b", "", "a\xff"})
    has(store->set(name, feed), error_code::usage, "is no name of a variable");
  has(store->set({{"w", feed}, {"w", feed}}), error_code::usage, "variable 'w' is set twice");
  has(store->set("w", tensor()), error_code::usage, "variable 'w' was given no tensor, but takes");
  has(store->set("w", tensor::of<std::int64_t>(dtype::i64, {2}, std::array<std::int64_t, 2>{1, 2})),
      error_code::usage, "variable 'w' was given i64[2], but takes f32 in the host's memory");
  must(store->set(std::vector<std::pair<std::string, tensor>>{}));  // nothing to set
  graph odd(s->ops());
  variable(odd, {dtype::f32, {2}}, {}, "a#b");
  has(store->initialize(odd), error_code::usage, "name 'a#b': use letters");
  const auto all = store->variables();
  BOOST_TEST_REQUIRE(all.size() == 2U);
  BOOST_TEST(all[0].name == "v");
  BOOST_TEST(all[1].name == "w");
  BOOST_TEST((all[1].spec == tensor_spec{dtype::f32, {2}}));
  BOOST_TEST(all[1].version > all[0].version);
  auto empty = must(scratch_folder::make("stores"));
  has(store->load(empty->path()), error_code::not_found, "there is no whole checkpoint of a job");
  auto own = must(store->get("w"));
  own.data<float>()[0] = 9;
  BOOST_TEST(numbers_in(must(store->get("w"))) == (std::vector<float>{0, 0}));
  const auto twice = w * 5.0F;
  g.node(twice.node).name = "y";
  has(s->runner(g, *store)->run({}, {"y"}), error_code::usage, "two ops are named 'y'");
}

BOOST_AUTO_TEST_CASE(variables_are_saved_and_loaded_by_name) {
  auto folder = must(scratch_folder::make("stores"));
  const auto file = folder->path() + "/model.safetensors";
  auto s = alone();
  const auto build = [](graph& g) {
    const auto x = input(g, {dtype::f32, {2}}, "x");
    const auto w = variable(g, {dtype::f32, {2}}, filled_with(1), "w");
    const auto v = variable(g, {dtype::f32, {2}}, filled_with(2), "v");
    minimize(reduce_sum(square(w * x + v)), adam({.learning_rate = 0.1}));
  };
  const auto train = [&](const graph& g, troupe::variable_store& store, int steps) {
    const auto r = s->runner(g, store);
    for (int i = 0; i < steps; ++i) must(r->step({{"x", row({1, 2})}}, {}, {"train"}));
  };
  graph g(s->ops());
  build(g);
  const auto one = s->make_store(), two = s->make_store(), three = s->make_store();
  must(one->initialize(g));
  train(g, *one, 5);
  must(one->save(file, {.optimizers = true}));
  train(g, *one, 5);
  // It goes on where it was, moments and counts too.
  must(two->load(file));
  train(g, *two, 5);
  BOOST_TEST(hash_of(*two) == hash_of(*one));

  // Names of somebody else's file.
  must(one->save(file));
  must(three->set({{"w", row({0, 0})}, {"bias", row({0, 0})}}));
  const auto refused = three->load(file);
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST(refused.error().text().find(
                 "it lacks 'bias' of the store, and the store has no 'v'") != std::string::npos,
             refused.error().text());
  BOOST_TEST(numbers_in(must(three->get("w"))) == (std::vector<float>{0, 0}));
  const auto some = must(three->load(file, {.strict = false}));
  BOOST_TEST(some.loaded == std::vector<std::string>{"w"});
  BOOST_TEST(some.missing == std::vector<std::string>{"bias"});
  BOOST_TEST(some.unused == std::vector<std::string>{"v"});
  must(three->load(file, {.names = {{"v", "bias"}}}));
  BOOST_TEST(numbers_in(must(three->get("bias"))) == numbers_in(must(one->get("v"))));
  must(three->load(file, {.names = {{"v", "w"}, {"w", "bias"}}}));
  BOOST_TEST(numbers_in(must(three->get("bias"))) == numbers_in(must(one->get("w"))));
  BOOST_TEST(!three->load(file, {.names = {{"u", "w"}}}));
  BOOST_TEST(!three->load(file, {.names = {{"v", "bias"}, {"v", "w"}}}));
  BOOST_TEST(!three->load(file, {.names = {{"v", "w#sgd/sgd/velocity"}}}));
  const auto four = s->make_store();
  must(four->set("other", row({1})));
  BOOST_TEST(must(four->load(file, {.strict = false})).loaded.empty());
  BOOST_TEST((three->load(folder->path() + "/none").error().code() == error_code::not_found));
}

// What train() has made goes on in a loop of one's own, bit by bit, moments and counts too.
BOOST_AUTO_TEST_CASE(checkpoints_of_a_training_go_on_in_ones_own_loop) {
  auto folder = must(scratch_folder::make("stores"));
  auto s = alone();
  const auto o = adam({.learning_rate = 0.01});
  // Of all samples in each step, so that both see the same.
  const auto build = [](graph& g) {
    const auto x = random_normal(g, {dtype::f32, {8, 3}});
    const auto loss = reduce_sum(square(dense(x * 0.0F + 1.0F, 2, "layer") - 3.0F));
    g.node(loss.node).name = "loss";
    return loss;
  };
  const auto train = [&](const std::string& name, std::uint64_t steps) {
    graph g(s->ops());
    auto run = must(s->train(g, build(g),
                             {.optimizer = o,
                              .steps = steps,
                              .checkpoints = {.folder = folder->path()},
                              .compile = {.name = name}}));
    const auto told = test::follow(*run);
    BOOST_TEST_REQUIRE(told.failure == "");
    return told;
  };
  const auto half = train("half", 20), whole = train("whole", 40);
  graph g(s->ops());
  minimize(build(g), o);
  const auto store = s->make_store();
  const auto report = must(store->load(folder->path() + "/half"));
  BOOST_TEST(report.loaded.size() == 2U);
  BOOST_TEST(report.step == 20U);
  BOOST_TEST(hash_of(*store) == half.hash);
  const auto r = s->runner(g, *store);
  for (std::size_t i = 20; i < 40; ++i)
    BOOST_TEST(*must(r->step({}, {"loss"}, {"train"}))[0].data<float>() == whole.losses[i]);
  BOOST_TEST(hash_of(*store) == whole.hash);
}

BOOST_AUTO_TEST_SUITE_END()
