// What happens when an op makes a NaN or an infinity: nan_policy.

#include "tests/support/events.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>

using namespace troupe;

namespace {

constexpr std::int64_t batch = 4;

struct outcome {
  std::vector<float> losses;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, tensor>> variables;
  training_totals totals;
  std::string failure;
};

// Workers whose x is (worker, step) -> a number; the loss is the sum of log(x) * w, so that x = 0
// makes -inf and x < 0 NaN.
outcome train(std::uint32_t workers, std::uint64_t steps, update_kind update, nan_policy policy,
              const std::function<float(std::uint32_t, std::uint64_t)>& number, bool fuse = true) {
  auto s = session::open({.threads = 2});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto x = input(g, {dtype::f32, {batch}}, "x");
  auto w = variable(g, {dtype::f32, {batch}}, {}, "w"),
       v = variable(g, {dtype::f32, {batch}}, {}, "v");
  auto loss = reduce_sum(log(x) * w) + reduce_sum(x * v);
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  training_options o{.workers = workers,
                     .shards = 2,
                     .update = update,
                     .optimizer = sgd({.learning_rate = 1, .momentum = 0.5}),
                     .steps = steps,
                     .is_fed = true};
  o.compile.on_nan = policy;
  o.compile.fuse = fuse;
  auto run = (*s)->train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  std::vector<std::unique_ptr<feeder>> feeders;
  while (auto e = test::next_event(**run)) {
    using kind = training_event::kind;
    if (e->type == kind::loss) out.losses.push_back(e->loss);
    if (e->type == kind::note) out.notes.push_back(e->text);
    if (e->type == kind::variables) out.variables = e->variables;
    if (e->type == kind::finished) out.totals = e->totals;
    if (e->type == kind::failed) out.failure = e->text;
    if (e->type != kind::started) continue;
    for (std::uint32_t k = 0; k < workers; ++k)
      feeders.push_back(std::move(*(*run)->make_feeder(k)));
    for (std::uint64_t step = 0; step < steps; ++step)
      for (std::uint32_t k = 0; k < workers; ++k) {
        auto t = tensor::make({dtype::f32, {batch}});
        std::fill_n(t.data<float>(), batch, 1.0F);
        t.data<float>()[2] = number(k, step);
        const std::pair<std::string_view, tensor> feeds[] = {{"x", t}};
        if (!feeders[k]->feed(feeds, test::hang)) break;  // it has failed
      }
  }
  return out;
}

float fine(std::uint32_t, std::uint64_t) { return 1; }
float zero_once(std::uint32_t worker, std::uint64_t step) {
  return worker == 0 && step == 3 ? 0.0F : 1.0F;
}

const tensor& named(const outcome& o, std::string_view name) {
  for (const auto& [n, t] : o.variables)
    if (n == name) return t;
  BOOST_FAIL("no variable " << name);
  return o.variables.front().second;
}

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(not_finite)

BOOST_AUTO_TEST_CASE(every_number_that_is_none_is_found) {
  for (const float bad : {INFINITY, -INFINITY, NAN})
    for (const std::int64_t at : {0, 1, 1'023, 1'024, 2'999}) {
      auto t = tensor::make({dtype::f32, {3'000}});
      std::fill_n(t.data<float>(), 3'000, std::numeric_limits<float>::max());
      BOOST_TEST(!first_not_finite(t));
      t.data<float>()[at] = bad;
      BOOST_REQUIRE(first_not_finite(t));
      BOOST_TEST(*first_not_finite(t) == at);
      BOOST_TEST(bool(first_nan(t)) == std::isnan(bad));
      BOOST_TEST(not_finite_text(t, at) == (std::isnan(bad) ? "nan" : bad > 0 ? "inf" : "-inf"));
    }
  auto d = tensor::make({dtype::f64, {2}});
  d.data<double>()[0] = 1e300;
  d.data<double>()[1] = -INFINITY;
  BOOST_TEST((first_not_finite(d) == 1));
  BOOST_TEST(!first_nan(d));
  auto whole = tensor::make({dtype::i32, {1}});
  *whole.data<std::int32_t>() = -1;
  BOOST_TEST(!first_not_finite(whole));
}

BOOST_AUTO_TEST_CASE(stop_names_the_op_that_was_the_first) {
  for (const bool fuse : {true, false}) {
    const auto o = train(1, 10, update_kind::sync, nan_policy::stop, zero_once, fuse);
    BOOST_TEST(says(o.failure, "log"), o.failure);
    BOOST_TEST(says(o.failure, "step 3"), o.failure);
    BOOST_TEST(says(o.failure, "-inf, element 2 of f32[4]"), o.failure);
    BOOST_TEST(says(o.failure, "its inputs are finite"), o.failure);
    BOOST_TEST(says(o.failure, "not_finite_test.cpp:"), o.failure);
  }
  BOOST_TEST(train(1, 10, update_kind::sync, nan_policy::stop, fine).failure == "");
}

BOOST_AUTO_TEST_CASE(what_is_fed_is_named_where_it_is_none) {
  const auto o = train(1, 5, update_kind::sync, nan_policy::stop,
                       [](std::uint32_t, std::uint64_t step) { return step == 2 ? NAN : 1.0F; });
  BOOST_TEST(says(o.failure, "so does its input 'x'"), o.failure);
  BOOST_TEST(says(o.failure, "step 2"), o.failure);
}

BOOST_AUTO_TEST_CASE(warn_says_so_once_and_goes_on) {
  const auto o = train(1, 10, update_kind::sync, nan_policy::warn,
                       [](std::uint32_t, std::uint64_t step) { return step >= 3 ? 0.0F : 1.0F; });
  BOOST_TEST(o.failure == "");
  BOOST_TEST(o.losses.size() == 10U);
  BOOST_TEST(std::isnan(o.losses.back()) + std::isinf(o.losses.back()) > 0);
  std::size_t about_log = 0;
  for (const auto& n : o.notes)
    about_log += says(n, "log") && says(n, "step 3") && says(n, "its inputs are finite") ? 1 : 0;
  BOOST_TEST(about_log == 1U);
  const auto ignored = train(1, 10, update_kind::sync, nan_policy::ignore, zero_once);
  BOOST_TEST(ignored.failure == "");
  BOOST_TEST(ignored.notes.empty());
}

BOOST_AUTO_TEST_CASE(skip_leaves_out_all_that_the_worker_made_of_the_step) {
  // Nine steps of a worker that are fine, and one that is left out, are nine steps.
  const auto o = train(1, 10, update_kind::sync, nan_policy::skip, zero_once),
             nine = train(1, 9, update_kind::sync, nan_policy::ignore, fine);
  BOOST_TEST(o.failure == "");
  BOOST_TEST(o.losses.size() == 10U);
  BOOST_REQUIRE(o.totals.workers.size() == 1U);
  BOOST_TEST(o.totals.workers[0].fed == 10U);
  BOOST_TEST(o.totals.workers[0].applied == 9U);
  BOOST_TEST(o.totals.workers[0].dropped == 1U);
  for (const auto* name : {"v", "w"})
    BOOST_TEST(std::ranges::equal(named(o, name).bytes(), named(nine, name).bytes()), name);
  BOOST_REQUIRE(o.notes.size() == 1U);
  BOOST_TEST(says(o.notes[0], "are left out"), o.notes[0]);
}

BOOST_AUTO_TEST_CASE(skip_leaves_the_other_workers_their_part) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    const auto o = train(2, 10, update, nan_policy::skip, zero_once);
    BOOST_TEST(o.failure == "");
    BOOST_REQUIRE(o.totals.workers.size() == 2U);
    BOOST_TEST(o.totals.workers[0].applied == 9U);
    BOOST_TEST(o.totals.workers[0].dropped == 1U);
    BOOST_TEST(o.totals.workers[1].applied == 10U);
    for (const auto& [name, t] : o.variables) BOOST_TEST(!first_not_finite(t), name);
  }
}

// Gradients are f32 all the same.
BOOST_AUTO_TEST_CASE(skip_knows_a_loss_of_f64) {
  auto s = std::move(*session::open({}));
  graph g(s->ops());
  auto w = variable(g, {dtype::f32, {batch}}, filled_with(2), "w");
  training_options o{.steps = 3};
  o.compile.on_nan = nan_policy::skip;
  auto run = s->train(g, reduce_sum(cast(square(w), dtype::f64)), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::size_t losses = 0;
  while (auto e = test::next_event(**run)) {
    BOOST_TEST((e->type != training_event::kind::failed), e->text);
    losses += e->type == training_event::kind::loss ? 1 : 0;
  }
  BOOST_TEST(losses == 3U);
}

BOOST_AUTO_TEST_CASE(a_loss_of_f64_is_told_as_what_it_is) {
  const auto losses_of = [](dtype type, std::uint32_t workers, update_kind update) {
    auto s = std::move(*session::open({}));
    graph g(s->ops());
    auto w = variable(g, {dtype::f32, {batch}}, filled_with(2), "w");
    auto run = s->train(g, reduce_sum(cast(w, type)),
                        {.workers = workers,
                         .update = update,
                         .optimizer = sgd({.learning_rate = 0.25}),
                         .steps = 3});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    std::vector<float> losses;
    while (auto e = (*run)->next()) {
      BOOST_TEST((e->type != training_event::kind::failed), e->text);
      if (e->type == training_event::kind::loss) losses.push_back(e->loss);
    }
    return losses;
  };
  for (const auto type : {dtype::f32, dtype::f64}) {
    BOOST_TEST(losses_of(type, 1, update_kind::sync) == (std::vector<float>{8, 7, 6}),
               boost::test_tools::per_element());
    BOOST_TEST(losses_of(type, 2, update_kind::sync) == (std::vector<float>{16, 12, 8}),
               boost::test_tools::per_element());
    BOOST_TEST(losses_of(type, 1, update_kind::async) == (std::vector<float>{8, 7, 6}),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(a_step_of_a_stepped_graph_fails_and_the_next_graph_works) {
  auto s = std::move(*session::open({}));
  graph g(s->ops());
  const value y = sqrt(input(g, {dtype::f32, {batch}}, "x"));
  BOOST_TEST(!s->compile(g, {&y, 1}, {.on_nan = nan_policy::skip}));
  auto negative = tensor::make({dtype::f32, {batch}});
  std::fill_n(negative.data<float>(), batch, -1.0F);
  const std::pair<std::string_view, tensor> feeds[] = {{"x", negative}};
  auto careless = s->compile(g, {&y, 1});
  BOOST_REQUIRE(careless);
  BOOST_TEST(bool((*careless)->step(feeds)));
  auto careful = s->compile(g, {&y, 1}, {.on_nan = nan_policy::stop});
  BOOST_REQUIRE(careful);
  const auto failed = (*careful)->step(feeds);
  BOOST_REQUIRE(!failed);
  BOOST_TEST(says(failed.error().text(), "nan, element 0"), failed.error().text());
  const auto again = (*careful)->step(feeds);  // it has ended, and says why
  BOOST_REQUIRE(!again);
  BOOST_TEST(says(again.error().text(), "nan, element 0"), again.error().text());
}

BOOST_AUTO_TEST_CASE(ops_that_were_made_one_are_named_together) {
  for (const int ops : {3, 12}) {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    auto y = log(input(g, {dtype::f32, {batch}}, "x"));
    g.node(y.node).name = "op_0";
    for (int i = 1; i < ops; ++i) {
      y = i % 2 == 0 ? tanh(y) : sigmoid(y);
      g.node(y.node).name = "op_" + std::to_string(i);
    }
    compile_options o{.name = "chain"};
    o.on_nan = nan_policy::stop;
    auto steps = (*s)->compile(g, std::array{y}, o);
    BOOST_REQUIRE_MESSAGE(steps, (steps ? "" : steps.error().text()));
    auto t = tensor::make({dtype::f32, {batch}});
    std::fill_n(t.data<float>(), batch, 1.0F);
    t.data<float>()[1] = -1;
    const std::pair<std::string_view, tensor> feeds[] = {{"x", t}};
    const auto out = (*steps)->step(feeds);
    BOOST_TEST_REQUIRE(!out);
    const auto text = out.error().text();
    BOOST_TEST(says(text, "element 1 of f32[4]; it is a group of 'op_0', 'op_1', 'op_2'"), text);
    BOOST_TEST(says(text, "; its inputs are finite"), text);
    BOOST_TEST(says(text, "'op_7' and 4 more; ") == (ops == 12), text);
  }
}

BOOST_AUTO_TEST_SUITE_END()
