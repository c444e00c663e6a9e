// Variables that follow a sample instead of descending: the statistics of batch_norm.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>
#include <map>

using namespace troupe;

namespace {

struct outcome {
  std::vector<float> losses;
  std::map<std::string, std::vector<float>> variables;
  std::string hash;
};

using model = std::function<value(graph&, value images)>;

outcome train(const std::string& folder, const training_options& o, std::uint32_t threads,
              const model& build, std::int64_t batch = 24) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  auto data = open_idx(folder, false);
  graph g((*s)->ops());
  auto b = idx_batch(g, *data, {.batch = batch, .seed = 5, .parts = o.workers});
  auto run = (*s)->train(g, softmax_cross_entropy(build(g, b.images), b.labels, b.scale), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) BOOST_ERROR(e->text);
    if (e->type != training_event::kind::variables) continue;
    std::vector<named_tensor> tensors;
    for (auto& [name, value] : e->variables) {
      tensors.push_back({name, value});
      out.variables[name] = {value.data<float>(), value.data<float>() + value.elements()};
    }
    out.hash = weights_hash(tensors);
  }
  return out;
}

value normalized(graph&, value images) {
  return dense(relu(batch_norm(dense(images, 8, "hidden"), "norm")), 10, "out");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(averages)

// Of what does not depend on the training, so that the samples can be computed apart.
BOOST_FIXTURE_TEST_CASE(it_moves_towards_the_mean_of_the_workers_samples_after_each_step,
                        image_folder) {
  const auto pixels = [](value images) { return slice(images, {{}, {300, 304}}); };
  const auto build = [&](graph&, value images) {
    (void)moving_average(reduce_mean(pixels(images), {0}), "follows",
                         {.rate = 0.25, .initial = 2, .beside = images});
    return dense(images, 10, "out");
  };
  for (const std::uint32_t workers : {1U, 2U}) {
    const std::uint64_t steps = 12;
    const auto got =
        train(path, {.workers = workers, .optimizer = adam({}), .steps = steps}, 2, build);
    std::vector<double> expected(4, 2);
    auto s = session::open({});
    auto data = open_idx(path, false);
    graph g((*s)->ops());
    std::vector<value> samples;
    for (std::uint32_t w = 0; w < workers; ++w)
      samples.push_back(reduce_mean(
          pixels(idx_batch(g, *data, {.batch = 24, .seed = 5, .part = w, .parts = workers}).images),
          {0}));
    auto run = (*s)->compile(g, samples);
    BOOST_TEST_REQUIRE(bool(run), (run ? "" : run.error().text()));
    for (std::uint64_t t = 0; t < steps; ++t) {
      const auto values = (*run)->step({});
      BOOST_TEST_REQUIRE(bool(values));
      for (std::size_t i = 0; i < 4; ++i) {
        double mean = 0;
        for (const auto& v : *values) mean += static_cast<double>(v.data<float>()[i]) / workers;
        expected[i] += 0.25 * (mean - expected[i]);
      }
    }
    for (std::size_t i = 0; i < 4; ++i)
      BOOST_TEST(std::abs(static_cast<double>(got.variables.at("follows")[i]) - expected[i]) <
                 1e-6);
  }
}

BOOST_FIXTURE_TEST_CASE(
    a_training_with_batch_norm_has_the_same_bits_on_any_threads_and_shards_and_through_a_checkpoint,
    image_folder) {
  for (const auto& optimizer :
       {optimizer_spec{}, adam({}), rmsprop({.momentum = 0.5, .centered = true})}) {
    const training_options base{.workers = 2, .optimizer = optimizer, .steps = 20};
    const auto expected = train(path, base, 1, normalized);
    BOOST_TEST(expected.losses.back() < expected.losses.front());
    for (const auto x : expected.variables.at("norm/variance")) BOOST_TEST(std::abs(x - 1) > 1e-3);
    auto o = base;
    o.shards = 3;
    o.compile.fuse = false;
    BOOST_TEST(train(path, o, 3, normalized).hash == expected.hash);
    o = base;
    o.clip_global_norm = 1e9;  // nothing, so that samples must not count
    BOOST_TEST(train(path, o, 2, normalized).hash == expected.hash);
    auto first = base, rest = base;
    first.steps = 9;
    first.checkpoints.folder = rest.checkpoints.folder = path + "/" + optimizer.type;
    rest.checkpoints.resume = true;
    (void)train(path, first, 2, normalized);
    BOOST_TEST(train(path, rest, 2, normalized).hash == expected.hash);
    o = base;
    o.update = update_kind::async;
    const auto async = train(path, o, 2, normalized);
    for (const auto x : async.variables.at("norm/variance")) BOOST_TEST(std::abs(x - 1) > 1e-3);
  }
}

BOOST_FIXTURE_TEST_CASE(samples_that_are_not_finite_leave_it_as_it_is, image_folder) {
  const auto build = [](graph&, value images) {
    const auto mean = reduce_mean(images, {0});
    (void)moving_average(sub(mean, mean), "zero", {.initial = 3});
    (void)moving_average(log(sub(mean, mean)), "infinite", {.initial = 3, .beside = images});
    (void)moving_average(sqrt(neg(add(mean, exp(mean)))), "none", {.initial = 3, .beside = images});
    return dense(images, 10, "out");
  };
  const auto got = train(path, {.steps = 3}, 1, build);
  BOOST_TEST(!got.variables.contains("zero"));  // the loss does not depend on what it is beside
  for (const auto* name : {"infinite", "none"})
    for (const auto x : got.variables.at(name)) BOOST_TEST(x == 3.0F, name);
  // The second batch of an epoch has 2 images for 9 workers.
  const auto many = train(path, {.workers = 9, .steps = 4}, 2, normalized, 22);
  for (const auto& [name, values] : many.variables)
    for (const auto x : values) BOOST_TEST(std::isfinite(x), name);
}

BOOST_FIXTURE_TEST_CASE(averages_that_are_used_as_they_are_stay_as_they_began, image_folder) {
  const auto got = train(path, {.workers = 2, .steps = 5}, 2, [](graph&, value images) {
    return dense(batch_norm(dense(images, 8, "hidden"), "norm", {.is_training = false}), 10, "out");
  });
  BOOST_TEST(got.variables.at("norm/mean") == std::vector<float>(8, 0),
             boost::test_tools::per_element());
  BOOST_TEST(got.variables.at("norm/variance") == std::vector<float>(8, 1),
             boost::test_tools::per_element());
  BOOST_TEST((got.variables.at("norm/scale") != std::vector<float>(8, 1)));
}

BOOST_AUTO_TEST_SUITE_END()
