// The engine on CUDA devices: the same programs as on the host, on one device and on two virtual ones that share a chip. Skipped where there is none (main.cpp).

#include "actors/session.hpp"
#include "runtime/layers.hpp"
#include "runtime/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

std::unique_ptr<session> open(const std::string& gpus) {
  auto s = session::open({.gpus = gpus});
  BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
  return std::move(*s);
}

// Learns y of x, both kept in the graph, so that losses follow from the seed alone.
std::vector<float> losses_of(session& s, const std::string& first, const std::string& second, const optimizer_spec& optimizer) {
  constexpr std::int64_t samples = 64, width = 16;
  graph g(s.ops());
  auto x = tensor::make({dtype::f32, {samples, width}}), y = tensor::make({dtype::f32, {samples, 1}});
  for (std::int64_t i = 0; i < samples * width; ++i) x.data<float>()[i] = std::sin(static_cast<float>(i));
  for (std::int64_t i = 0; i < samples; ++i) y.data<float>()[i] = std::cos(static_cast<float>(3 * i));
  value h, loss;
  {
    const auto on = g.device_scope(first);
    h = gelu(dense(constant(g, x), 32, "first"));
  }
  {
    const auto on = g.device_scope(second);
    const auto error = dense(tanh(h), 1, "second") - constant(g, y);
    loss = reduce_mean(error * error);
  }
  auto run = s.train(g, loss, {.optimizer = optimizer, .seed = 3, .steps = 60});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::vector<float> out;
  while (auto e = (*run)->next()) {
    if (e->type == training_event::kind::loss) out.push_back(e->loss);
    BOOST_REQUIRE_MESSAGE(e->type != training_event::kind::failed, e->text);
  }
  return out;
}

void are_close(const std::vector<float>& got, const std::vector<float>& expected) {
  BOOST_REQUIRE_EQUAL(got.size(), expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - double(expected[i])) / (1e-3 + std::abs(double(expected[i]))));
  BOOST_TEST_MESSAGE("largest relative difference of a loss: " << most);
  BOOST_TEST(most < 1e-3);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(engine)

BOOST_AUTO_TEST_CASE(trainings_have_the_hosts_losses_on_one_device_and_on_two_virtual_ones) {
  for (const auto& [name, optimizer] : {std::pair("sgd", sgd({.learning_rate = 0.05, .momentum = 0.9})), std::pair("adam", adam({.learning_rate = 0.01, .clip_norm = 0.5}))}) {
    BOOST_TEST_CONTEXT(name) {
      auto host = open("none");
      const auto expected = losses_of(*host, "/cpu:0", "/cpu:0", optimizer);
      BOOST_TEST(expected.back() < expected.front());
      auto one = open("1");
      are_close(losses_of(*one, "/gpu:0", "/gpu:0", optimizer), expected);
      one.reset();
      auto two = open("2");
      are_close(losses_of(*two, "/gpu:0", "/gpu:1", optimizer), expected);
      are_close(losses_of(*two, "/gpu:1", "/cpu:0", optimizer), expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_that_are_replayed_compute_what_the_first_one_did_with_new_random_numbers) {
  auto s = open("1");
  const auto build = [](graph& g) {
    const auto x = input(g, tensor_spec{dtype::f32, {64, 64}}, "x");
    auto y = x;
    for (int i = 0; i < 10; ++i) y = tanh(matmul(y, x) * 0.01F);
    return y + random_uniform(g, tensor_spec{dtype::f32, {64, 64}}, 0, 1, 5);
  };
  graph on_device(s->ops()), on_host(s->ops());
  const auto there = build(on_device), here = build(on_host);
  auto device = s->compile(on_device, std::span(&there, 1), {.device = "/gpu:0"});
  auto host = s->compile(on_host, std::span(&here, 1), {});
  BOOST_REQUIRE_MESSAGE(device, (device ? "" : device.error().text()));
  BOOST_REQUIRE(host);
  for (int step = 0; step < 30; ++step) {
    auto x = tensor::make({dtype::f32, {64, 64}});
    for (std::int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = std::sin(static_cast<float>(i + step));
    const std::vector<std::pair<std::string_view, tensor>> feeds{{"x", x}};
    auto got = (*device)->step(feeds), expected = (*host)->step(feeds);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    BOOST_REQUIRE(expected);
    float most = 0;
    for (std::int64_t i = 0; i < x.elements(); ++i) most = std::max(most, std::abs(got->front().data<float>()[i] - expected->front().data<float>()[i]));
    BOOST_TEST(most < 1e-4F);
  }
  (*device).reset();
  (*host).reset();
}

BOOST_AUTO_TEST_SUITE_END()
