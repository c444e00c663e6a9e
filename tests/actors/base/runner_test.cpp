// Parts of a graph by name, from many threads.

#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cmath>
#include <thread>

using namespace troupe;

namespace {

tensor scalar(float x) {
  auto t = tensor::make({dtype::f32, {}});
  *t.data<float>() = x;
  return t;
}
tensor index_of(std::int32_t i) {
  auto t = tensor::make({dtype::i32, {1}});
  *t.data<std::int32_t>() = i;
  return t;
}
float number(const result<std::vector<tensor>>& r, std::size_t i = 0) {
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  return *r->at(i).data<float>();
}

// double = 2 x, sum = double + y, product = sum * w.
struct arithmetic {
  std::unique_ptr<session> s = std::move(*session::open({.threads = 2}));
  graph g{s->ops()};
  arithmetic() {
    auto x = input(g, {dtype::f32, {}}, "x"), y = input(g, {dtype::f32, {}}, "y"),
         w = variable(g, {dtype::f32, {}}, {}, "w");
    auto two_x =
        g.add("mul", std::vector{x, constant(g, 2.0F)}, {}, "double", source_location::current());
    auto sum = g.add("add", std::vector{two_x, y}, {}, "sum", source_location::current());
    g.add("mul", std::vector{sum, w}, {}, "product", source_location::current());
    BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  }
};

void says(const result<std::vector<tensor>>& r, error_code code, std::string_view text) {
  BOOST_REQUIRE(!r);
  BOOST_TEST((r.error().code() == code));
  BOOST_TEST(r.error().text().find(text) != std::string::npos, r.error().text());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(runner)

BOOST_FIXTURE_TEST_CASE(any_value_is_fed_and_fetched_by_its_name, arithmetic) {
  auto r = s->runner(g);
  BOOST_TEST(number(r->run({{"x", scalar(3)}}, {"double"})) == 6);
  const auto both = r->run({{"x", scalar(3)}, {"y", scalar(1)}}, {"sum", "double"});
  BOOST_TEST(number(both) == 7);
  BOOST_TEST(number(both, 1) == 6);
  // From the middle on.
  BOOST_TEST(number(r->run({{"double", scalar(10)}, {"y", scalar(1)}}, {"sum"})) == 11);
  BOOST_TEST(number(r->run({{"sum", scalar(4)}, {"w", scalar(3)}}, {"product"})) == 12);
  // Fed and fetched.
  BOOST_TEST(number(r->run({{"sum", scalar(4)}}, {"sum"})) == 4);
  // More than is needed.
  BOOST_TEST(number(r->run({{"x", scalar(3)}, {"sum", scalar(1)}}, {"double"})) == 6);
  const auto sets = r->compiled();
  // The same set in another order.
  BOOST_TEST(number(r->run({{"y", scalar(2)}, {"double", scalar(10)}}, {"sum"})) == 12);
  BOOST_TEST(r->compiled() == sets);
}

BOOST_FIXTURE_TEST_CASE(what_is_bound_is_fed_unless_a_run_feeds_it, arithmetic) {
  auto r = s->runner(g);
  BOOST_REQUIRE(r->bind("w", scalar(5)));
  BOOST_TEST(number(r->run({{"sum", scalar(4)}}, {"product"})) == 20);
  BOOST_TEST(number(r->run({{"sum", scalar(4)}, {"w", scalar(1)}}, {"product"})) == 4);
  BOOST_TEST(!r->bind("nobody", scalar(1)));
  BOOST_TEST(!r->bind("w", index_of(1)));
}

BOOST_FIXTURE_TEST_CASE(many_threads_run_at_once_and_each_gets_its_own, arithmetic) {
  auto r = s->runner(g);
  BOOST_REQUIRE(r->bind("w", scalar(2)));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const auto x = static_cast<float>(t * 1'000 + i);
        const auto kind = (t + i) % 3;
        const auto got = kind == 0 ? r->run({{"x", scalar(x)}}, {"double"})
                         : kind == 1
                             ? r->run({{"x", scalar(x)}, {"y", scalar(1)}}, {"product"})
                             : r->run({{"double", scalar(x)}, {"y", scalar(1)}}, {"product"});
        const auto expected = kind == 0 ? 2 * x : kind == 1 ? 2 * (2 * x + 1) : 2 * (x + 1);
        if (!got || *got->front().data<float>() != expected) ++wrong;
      }
    });
  {
    const test::waiting_for named("the end of the threads that run the graph");
    for (auto& t : threads) t.join();
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(r->compiled() == 3U);
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_run_is_said_with_the_name, arithmetic) {
  auto r = s->runner(g);
  using enum error_code;
  says(r->run({}, {}), usage, "nothing is fetched");
  says(r->run({}, {"double"}), usage, "depends on input 'x', which is not fed");
  says(r->run({{"x", scalar(1)}}, {"nobody"}), usage, "the graph has no 'nobody'");
  says(r->run({{"x", scalar(1)}}, {"dobule"}), usage,
       "the graph has no 'dobule', perhaps 'double'");
  says(r->run({{"x", scalar(1)}}, {"prod"}), usage, "perhaps 'product'");
  says(r->run({{"nobody", scalar(1)}}, {"double"}), usage, "the graph has no 'nobody'");
  says(r->run({{"x", scalar(1)}}, {"double:1"}), usage, "has 1 outputs");
  says(r->run({{"x", index_of(1)}}, {"double"}), usage, "'x' takes f32[]");
  says(r->run({{"x", tensor()}}, {"double"}), usage, "was given no tensor");
  says(r->run({{"x", scalar(1)}, {"x", scalar(1)}}, {"double"}), usage, "fed twice");
  BOOST_TEST(number(r->run({{"x", scalar(3)}}, {"double"})) == 6);
}

BOOST_AUTO_TEST_CASE(outputs_have_numbers) {
  auto s = std::move(*session::open({}));
  graph g(s->ops());
  auto x = input(g, {dtype::f32, {1, 1, 2, 2}}, "x");
  (void)g.add("max_pool2d", std::vector{x}, {{"window", std::vector<std::int64_t>{2, 2}}}, "pool",
              source_location::current());
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  auto t = tensor::make({dtype::f32, {1, 1, 2, 2}});
  std::copy_n(std::vector<float>{1, 2, 9, 4}.data(), 4, t.data<float>());
  auto r = s->runner(g);
  const auto got = r->run({{"x", t}}, {"pool:1", "pool"});
  BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  BOOST_TEST(*got->at(0).data<std::int32_t>() == 2);
  BOOST_TEST(*got->at(1).data<float>() == 9);
}

BOOST_AUTO_TEST_CASE(a_run_that_fails_leaves_the_others_and_the_next) {
  auto s = std::move(*session::open({.threads = 2}));
  graph g(s->ops());
  auto table = constant(g, 3.0F) * input(g, {dtype::f32, {4, 1}}, "table");
  auto row = gather(table, input(g, {dtype::i32, {1}}, "index"));
  (void)g.add("mul", std::vector{row, constant(g, 1.5F)}, {}, "row", source_location::current());
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  auto r = s->runner(g);
  auto rows = tensor::make({dtype::f32, {4, 1}});
  std::fill_n(rows.data<float>(), 4, 2.0F);
  BOOST_REQUIRE(r->bind("table", rows));
  BOOST_TEST(number(r->run({{"index", index_of(1)}}, {"row"})) == 9);
  const auto bad = r->run({{"index", index_of(70)}}, {"row"});
  BOOST_REQUIRE(!bad);
  BOOST_TEST((bad.error().code() == error_code::failed));
  BOOST_TEST(number(r->run({{"index", index_of(2)}}, {"row"})) == 9);
  // Threads whose runs were under way with a bad one fail with it; all others are answered with
  // their values.
  std::atomic<int> good = 0, failed = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const auto got = r->run({{"index", index_of(t == 0 && i % 5 == 0 ? 70 : i % 4)}}, {"row"});
        if (!got)
          ++failed;
        else if (*got->front().data<float>() != 9)
          ++wrong;
        else
          ++good;
      }
    });
  {
    const test::waiting_for named("the end of the threads that run the graph");
    for (auto& t : threads) t.join();
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(failed >= 5);
  BOOST_TEST(good > 0);
  BOOST_TEST(number(r->run({{"index", index_of(2)}}, {"row"})) == 9);
}

BOOST_FIXTURE_TEST_CASE(who_has_no_time_leaves_nobody_waiting, arithmetic) {
  auto r = s->runner(g);
  const std::vector<graph_runner::feed> feeds{{"x", scalar(3)}};
  const std::vector<std::string_view> fetches{"double"};
  for (int i = 0; i < 50; ++i) {
    // May end before it is asked to compile.
    (void)r->run(feeds, fetches, std::chrono::milliseconds(0));
    BOOST_TEST(number(r->run(feeds, fetches)) == 6);
    r = s->runner(g);
  }
}

BOOST_AUTO_TEST_CASE(a_graph_that_needs_more_memory_than_there_is_fails_each_time) {
  auto s = std::move(*session::open({}));
  graph g(s->ops());
  auto x = input(g, {dtype::f32, {}}, "x");
  auto sum = reduce_sum(random_uniform(g, {dtype::f32, {std::int64_t{1} << 44}}) * x);
  (void)g.add("mul", std::vector{sum, x}, {}, "large", source_location::current());
  (void)g.add("add", std::vector{x, x}, {}, "small", source_location::current());
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  auto r = s->runner(g);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(!r->run({{"x", scalar(1)}}, {"large"}));
    BOOST_TEST(number(r->run({{"x", scalar(1)}}, {"small"})) == 2);
  }
}

BOOST_AUTO_TEST_CASE(a_loop_that_does_not_end_is_cancelled_at_its_deadline) {
  auto s = std::move(*session::open({}));
  graph g(s->ops());
  auto limit = input(g, {dtype::f32, {}}, "limit");
  const auto out = while_loop(
      {constant(g, 0.0F)}, [&](auto v) { return less(v[0], limit); },
      [&](auto v) { return std::vector{v[0] + 1.0F}; });
  (void)g.add("mul", std::vector{out[0], constant(g, 2.0F)}, {}, "out", source_location::current());
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  auto r = s->runner(g);
  BOOST_TEST(number(r->run({{"limit", scalar(5)}}, {"out"})) == 10);
  says(r->run(std::vector<graph_runner::feed>{{"limit", scalar(INFINITY)}},
              std::vector<std::string_view>{"out"}, std::chrono::milliseconds(100)),
       error_code::timed_out, "cancelled");
  BOOST_TEST(number(r->run({{"limit", scalar(7)}}, {"out"})) == 14);
  // One that is behind another which does not end, either.
  std::thread first([&] {
    (void)r->run(std::vector<graph_runner::feed>{{"limit", scalar(INFINITY)}},
                 std::vector<std::string_view>{"out"}, std::chrono::milliseconds(300));
  });
  (void)r->run(std::vector<graph_runner::feed>{{"limit", scalar(INFINITY)}},
               std::vector<std::string_view>{"out"}, std::chrono::milliseconds(100));
  {
    const test::waiting_for named("the end of the first run, at its deadline");
    first.join();
  }
  BOOST_TEST(number(r->run({{"limit", scalar(9)}}, {"out"})) == 18);
}

BOOST_AUTO_TEST_SUITE_END()
