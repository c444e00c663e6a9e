// Collectives that a program calls, in a training in this process: what they give beside plain
// loops, and 64 of them at once.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

using namespace troupe;

namespace {

constexpr std::int64_t width = 12;

struct outcome {
  std::map<std::string, std::vector<float>> variables;
  std::vector<float> losses;
};

// Of each worker: a row that is its own, f32[12].
using build = std::function<value(value own)>;

// A moving average of rate 1 is the mean of what the workers made in the last step.
value seen(value sample, std::string_view name, value beside) {
  return moving_average(sample, name, {.rate = 1, .beside = beside});
}

outcome train(const std::string& folder, std::uint32_t workers,
              const std::function<void(value own, value images)>& more, std::uint64_t steps = 2,
              std::uint32_t threads = 2) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  auto data = open_idx(folder, false);
  graph g((*s)->ops());
  const auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = workers});
  const auto own = reduce_sum(slice(b.images, {{}, {300, 300 + width}}), {0});
  more(own, b.images);
  auto run = (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                         {.workers = workers, .steps = steps});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) BOOST_ERROR(e->text);
    if (e->type != training_event::kind::variables) continue;
    for (auto& [name, v] : e->variables)
      out.variables[name] = {v.data<float>(), v.data<float>() + v.elements()};
  }
  return out;
}

// Each worker's row in the last of two steps: rows of all, gathered the plain way by who is told
// which part to read.
std::vector<std::vector<float>> rows_of(const std::string& folder, std::uint32_t workers) {
  std::vector<std::vector<float>> rows;
  auto s = session::open({});
  auto data = open_idx(folder, false);
  for (std::uint32_t w = 0; w < workers; ++w) {
    graph g((*s)->ops());
    const auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .part = w, .parts = workers});
    const auto own = reduce_sum(slice(b.images, {{}, {300, 300 + width}}), {0});
    auto run = (*s)->compile(g, {&own, 1});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    auto values = (*run)->step({});
    values = (*run)->step({});
    BOOST_REQUIRE(values);
    const auto& t = values->front();
    rows.emplace_back(t.data<float>(), t.data<float>() + t.elements());
  }
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(collectives)

BOOST_FIXTURE_TEST_CASE(each_gives_what_plain_loops_give, image_folder) {
  for (const std::uint32_t n : {1U, 2U, 3U, 4U}) {
    const auto rows = rows_of(path, n);
    const auto got = train(path, n, [&](value own, value images) {
      seen(all_reduce(own), "sum", images);
      seen(all_reduce(own, reduction_kind::mean), "mean", images);
      seen(all_reduce(own, reduction_kind::min), "min", images);
      seen(all_reduce(own, reduction_kind::max), "max", images);
      seen(all_gather(own, all_workers(n)), "gathered", images);
      seen(all_gather(reduce_scatter(own, all_workers(n)), all_workers(n)), "scattered", images);
      seen(all_gather(reduce_scatter(own, all_workers(n), reduction_kind::max), all_workers(n)),
           "greatest", images);
      seen(broadcast(own, n - 1), "told", images);
      seen(barrier(own), "waited", images);
      if (n > 2)
        seen(all_gather(all_reduce(own, reduction_kind::sum, {{{2, 0}}}), all_workers(n)), "some",
             images);
    });
    const auto check = [&](const std::string& name, const std::function<float(std::size_t)>& wanted,
                           std::size_t size = width, float tolerance = 0) {
      const auto& values = got.variables.at(name);
      BOOST_REQUIRE_EQUAL(values.size(), size);
      for (std::size_t i = 0; i < size; ++i)
        BOOST_REQUIRE_MESSAGE(std::abs(values[i] - wanted(i)) <= tolerance,
                              fmt::format("{} of {} workers, element {}: {} instead of {}", name, n,
                                          i, values[i], wanted(i)));
    };
    const auto fold = [&](std::size_t i, auto&& f) {
      float x = rows[0][i];
      for (std::uint32_t w = 1; w < n; ++w) x = f(x, rows[w][i]);
      return x;
    };
    // The same on every worker: their mean has its bits, but for what three thirds of it are.
    const auto tolerance = n == 3 ? 1e-2F : 0.0F;
    const auto sum = [&](std::size_t i) { return fold(i, [](float a, float b) { return a + b; }); };
    const auto max = [&](std::size_t i) {
      return fold(i, [](float a, float b) { return std::max(a, b); });
    };
    check("sum", sum, width, tolerance);
    check("mean", [&](auto i) { return sum(i) / static_cast<float>(n); }, width, tolerance);
    check(
        "min", [&](auto i) { return fold(i, [](float a, float b) { return std::min(a, b); }); },
        width, tolerance);
    check("max", max, width, tolerance);
    check("gathered", [&](auto i) { return rows[i / width][i % width]; }, n * width, tolerance);
    check("scattered", sum, width, tolerance);
    check("greatest", max, width, tolerance);
    check("told", [&](auto i) { return rows[n - 1][i]; }, width, tolerance);
    check("waited", [&](auto i) { return sum(i) / static_cast<float>(n); }, width, 1e-2F);
    if (n > 2)
      check(
          "some",
          [&](auto i) {
            const auto w = i / width;
            return w == 0 || w == 2 ? rows[2][i % width] + rows[0][i % width] : rows[w][i % width];
          },
          n * width, tolerance);
  }
}

// Batch normalisation over the batches of all workers: several learn what one learns of the whole
// batch.
BOOST_FIXTURE_TEST_CASE(gradients_flow_through_sums_of_all_workers, image_folder) {
  const auto learn = [&](std::uint32_t workers, std::int64_t batch) {
    auto s = session::open({.threads = 2});
    auto data = open_idx(path, false);
    graph g((*s)->ops());
    const auto b = idx_batch(g, *data, {.batch = batch, .seed = 5, .parts = workers});
    const auto x = dense(b.images, 8, "hidden");
    const auto count = all_reduce(element_count(x, {0}));
    const auto centred = x - all_reduce(reduce_sum(x, {0})) / count;
    const auto variance = all_reduce(reduce_sum(centred * centred, {0})) / count;
    const auto normal = centred / sqrt(variance + constant(g, 1e-3F));
    auto run =
        (*s)->train(g, softmax_cross_entropy(dense(relu(normal), 10, "out"), b.labels, b.scale),
                    {.workers = workers, .optimizer = sgd({.learning_rate = 0.1}), .steps = 6});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    outcome out;
    while (auto e = test::next_event(**run)) {
      if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
      if (e->type == training_event::kind::failed) BOOST_ERROR(e->text);
      if (e->type == training_event::kind::variables)
        for (auto& [name, v] : e->variables)
          out.variables[name] = {v.data<float>(), v.data<float>() + v.elements()};
    }
    return out;
  };
  const auto one = learn(1, 48), three = learn(3, 16);
  for (const auto& [name, values] : one.variables)
    for (std::size_t i = 0; i < values.size(); ++i)
      BOOST_REQUIRE_SMALL(values[i] - three.variables.at(name)[i], 2e-4F);
  BOOST_TEST(one.losses.back() < one.losses.front());
}

BOOST_FIXTURE_TEST_CASE(sixty_four_at_once_finish_on_one_thread, image_folder) {
  const auto began = std::chrono::steady_clock::now();
  const std::uint64_t steps = 20;
  const auto got = train(
      path, 4,
      [&](value own, value images) {
        for (int k = 0; k < 64; ++k)
          seen(all_reduce(own * constant(*own.owner, static_cast<float>(k)), reduction_kind::max),
               fmt::format("of_{}", k), images);
      },
      steps, 1);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  BOOST_TEST_MESSAGE(fmt::format(
      "64 collectives of 4 workers on one thread: {:.0f} ms for {} steps", took.count(), steps));
  BOOST_TEST(got.losses.size() == steps);
  for (int k = 2; k < 64; k *= 2)
    for (std::size_t i = 0; i < width; ++i)
      BOOST_TEST(got.variables.at(fmt::format("of_{}", k))[i] ==
                 static_cast<float>(k) * got.variables.at("of_1")[i]);
}

BOOST_FIXTURE_TEST_CASE(what_does_not_fit_is_one_line_with_the_place_and_harms_no_other_job,
                        image_folder) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  graph g((*s)->ops());
  const auto b = idx_batch(g, *data, {.batch = 24, .parts = 2});
  const auto x =
      all_reduce(reduce_sum(dense(b.images, 10, "out"), {0}), reduction_kind::sum, {{{0, 7}}});
  const auto run = (*s)->train(g, reduce_sum(x), {.workers = 2, .steps = 2});
  BOOST_REQUIRE(!run);
  const auto text = run.error().text();
  for (const auto* wanted : {"all_reduce", "worker 7", "the job has 2", "collectives_test.cpp:"})
    BOOST_TEST(text.find(wanted) != std::string::npos, text);
  BOOST_TEST(text.find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
