// Training on tensors that the program has.

#include "tests/support/events.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t samples = 50;

// y = 2 a - b + 1.
std::pair<tensor, tensor> line(std::int64_t samples) {
  auto x = tensor::make({dtype::f32, {samples, 2}}), y = tensor::make({dtype::f32, {samples, 1}});
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto a = static_cast<float>(std::sin(static_cast<double>(i))),
               b = static_cast<float>(std::cos(3.0 * static_cast<double>(i)));
    x.data<float>()[2 * i] = a, x.data<float>()[2 * i + 1] = b;
    y.data<float>()[i] = 2 * a - b + 1;
  }
  return {x, y};
}

struct outcome {
  std::vector<float> losses;
  std::string hash;
};

outcome train_in(session& s, const training_options& o, std::int64_t samples) {
  const auto [x, y] = line(samples);
  graph g(s.ops());
  const auto batch = index_batch(g, samples, {.batch = 8, .seed = 3, .parts = o.workers});
  const auto guess = dense(gather(constant(g, x), batch.ids, 0), 1, "line");
  const auto loss = reduce_sum(square(guess - gather(constant(g, y), batch.ids, 0))) * batch.scale;
  auto run = s.train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) BOOST_ERROR(e->text);
    if (e->type != training_event::kind::variables) continue;
    std::vector<named_tensor> tensors;
    for (auto& [name, value] : e->variables) tensors.push_back({name, value});
    out.hash = weights_hash(tensors);
  }
  return out;
}

outcome train(const training_options& o, std::uint32_t threads, std::int64_t samples = ::samples) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  return train_in(**s, o, samples);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(own_data)

BOOST_AUTO_TEST_CASE(a_program_trains_on_tensors_that_it_has) {
  const auto one = train({.optimizer = adam({.learning_rate = 0.05}), .steps = 400}, 1);
  BOOST_TEST(one.losses.back() < 1e-3F * one.losses.front());
  BOOST_TEST(train({.optimizer = adam({.learning_rate = 0.05}), .steps = 400}, 3).hash == one.hash);
  // Two workers of 8 read what one of 16 would; their sums have another order.
  const auto two =
      train({.workers = 2, .optimizer = adam({.learning_rate = 0.05}), .steps = 400}, 2);
  BOOST_TEST(two.losses.size() == 400U);
  BOOST_TEST(two.losses.back() < 1e-3F * two.losses.front());
}

// 24 MB, of each worker: more than a message has room for.
BOOST_AUTO_TEST_CASE(NO_14_nodes_train_on_large_tensors_that_the_program_has) {
  constexpr std::int64_t many = 2'000'000;
  const training_options o{.workers = 2, .optimizer = adam({.learning_rate = 0.05}), .steps = 20};
  test::own_nodes nodes("own-data", {{.job = "worker"}, {.job = "worker"}});
  const auto far = train_in(nodes.client(), o, many);
  BOOST_TEST(far.losses.size() == 20U);
  BOOST_TEST(far.hash == train(o, 2, many).hash);
}

BOOST_AUTO_TEST_CASE(steps_take_the_samples_of_their_schedule) {
  auto s = session::open({});
  graph g((*s)->ops());
  const idx_batch_options options{.batch = 8, .seed = 3, .part = 1, .parts = 2};
  const auto batch = index_batch(g, samples, options);
  const auto run = (*s)->compile(g, std::array{batch.ids, batch.scale});
  BOOST_TEST_REQUIRE(bool(run));
  BOOST_TEST(steps_per_epoch(samples, options) == 4U);
  const idx_schedule schedule{.samples = samples, .batch = 8, .parts = 2, .part = 1};
  for (std::uint64_t t = 0; t < 9; ++t) {
    const auto values = (*run)->step({});
    BOOST_TEST_REQUIRE(bool(values));
    const auto range = schedule.range(t);
    const auto order = permutation(3, range.epoch, samples);
    BOOST_TEST_REQUIRE((*values)[0].elements() == static_cast<std::int64_t>(range.count));
    for (std::uint64_t i = 0; i < range.count; ++i)
      BOOST_TEST((*values)[0].data<std::int64_t>()[i] ==
                 static_cast<std::int64_t>(order[range.first + i]));
    BOOST_TEST(*(*values)[1].data<float>() == 1.0F / static_cast<float>(range.global_count));
  }
}

BOOST_AUTO_TEST_SUITE_END()
