// Graphs on devices: asynchronous host devices whose order of work and delays come by seed, under the order checker, beside the same graph on the host.

#include "actors/session.hpp"
#include "devices/async_host/async_host_backend.hpp"
#include "devices/host/host_device.hpp"
#include "devices/host/safetensors.hpp"
#include "runtime/layers.hpp"
#include "tests/support/image_folder.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;

namespace {

// Devices on one chip that run late, by a seed, and whoever checks their order.
struct late_devices {
  explicit late_devices(std::uint64_t seed, std::uint32_t count = 2, std::uint64_t limit_bytes = 0, std::uint32_t delay_max_us = 100) {
    chip = std::make_shared<async_host_chip>(async_host_options{.seed = seed, .threaded = true, .delay_max_us = delay_max_us, .checker = &checker, .on_thread = [] { set_up_kernel_thread(); }});
    for (std::uint32_t i = 0; i < count; ++i) backends.push_back(make_async_host_backend("gpu:" + std::to_string(i), chip, kernels, limit_bytes));
  }
  void check() const {
    BOOST_TEST(checker.found() == 0u);
    for (const auto& r : checker.reports()) BOOST_TEST_MESSAGE(r.text());
  }
  std::unique_ptr<session> open(std::uint32_t threads = 1) const {
    auto s = session::open({.threads = threads, .gpu_backends = backends});
    BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
    return std::move(*s);
  }

  order_checker checker;
  kernel_table kernels = make_host_kernels();
  std::shared_ptr<async_host_chip> chip;
  std::vector<std::shared_ptr<device_backend>> backends;
};

struct outcome {
  std::vector<float> losses;
  std::string hash, failure;
};

outcome follow(training& run) {
  outcome out;
  while (auto e = run.next()) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) out.failure = e->text;
    if (e->type != training_event::kind::variables) continue;
    std::vector<named_tensor> tensors;
    for (auto& [name, value] : e->variables) tensors.push_back({name, value});
    out.hash = weights_hash(tensors);
  }
  return out;
}

// Layers on `first` and `second`; "": on the host.
outcome train(session& s, const std::string& folder, training_options o, const std::string& first, const std::string& second) {
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = o.workers});
  value x = b.images;
  const auto on = [&](const std::string& device) { return g.device_scope(device.empty() ? "/cpu:0" : device); };
  {
    const auto there = on(first);
    x = relu(dense(x, 16, "hidden"));
  }
  value loss;
  {
    const auto there = on(second);
    loss = softmax_cross_entropy(dense(x, 10, "out"), b.labels, b.scale);
  }
  auto run = s.train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  return follow(**run);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_FIXTURE_TEST_CASE(training_on_devices_has_the_hosts_bits_under_any_order_of_their_work, image_folder) {
  // 200 samples in batches of 48: the last one of an epoch is smaller.
  const training_options base{.workers = 2, .shards = 2, .steps = 12};
  outcome expected;
  {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    expected = train(**s, path, base, "", "");
  }
  BOOST_TEST(expected.failure == "");
  BOOST_TEST(expected.losses.size() == 12u);
  std::uint64_t seed = 0;
  for (const auto& [first, second] : {std::pair("/gpu:0", "/gpu:0"), std::pair("/gpu:0", "/gpu:1"), std::pair("/gpu:1", ""), std::pair("", "/gpu:0")})
    for (const bool fuse : {true, false})
      for (const std::uint32_t credits : {1u, 3u}) {
        late_devices late(++seed);
        auto o = base;
        o.compile.fuse = fuse;
        o.compile.credits = credits;
        auto s = late.open(1 + static_cast<std::uint32_t>(seed % 2));
        const auto got = train(*s, path, o, first, second);
        BOOST_TEST_CONTEXT("first layer on '" << first << "', second on '" << second << "', fuse " << fuse << ", credits " << credits) {
          BOOST_TEST(got.failure == "");
          BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
          BOOST_TEST(got.hash == expected.hash);
          s.reset();
          late.check();
        }
      }
}

BOOST_AUTO_TEST_CASE(steps_are_replayed_and_shapes_may_change) {
  late_devices late(7);
  auto s = late.open();
  graph g(s->ops());
  const dim batch{8, 'b'}, width{4, 0};
  const std::array dims{batch, width};
  const auto x = input(g, tensor_spec{dtype::f32, *shape::from(dims)}, "x");
  value y;
  {
    const auto on = g.device_scope("/gpu:0");
    y = tanh(x * x) + constant(g, 1.0F);
    for (int i = 0; i < 5; ++i) y = y * 0.5F + sin(y);
    y = reduce_sum(y, {1});
  }
  auto run = s->compile(g, std::span(&std::as_const(y), 1), {});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  graph h(s->ops());
  const auto hx = input(h, tensor_spec{dtype::f32, *shape::from(dims)}, "x");
  auto hy = tanh(hx * hx) + constant(h, 1.0F);
  for (int i = 0; i < 5; ++i) hy = hy * 0.5F + sin(hy);
  hy = reduce_sum(hy, {1});
  auto here = s->compile(h, std::span(&std::as_const(hy), 1), {});
  BOOST_REQUIRE(here);
  for (int step = 0; step < 40; ++step) {
    const std::int64_t rows = step % 7 == 3 ? 5 : 8;
    auto t = tensor::make({dtype::f32, {rows, 4}});
    for (std::int64_t i = 0; i < rows * 4; ++i) t.data<float>()[i] = float(i % 11) * 0.1F - float(step) * 0.01F;
    const std::vector<std::pair<std::string_view, tensor>> feeds{{"x", t}};
    auto got = (*run)->step(feeds), expected = (*here)->step(feeds);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    BOOST_REQUIRE(expected);
    BOOST_REQUIRE(got->front().spec() == expected->front().spec());
    BOOST_TEST(std::equal(got->front().bytes().begin(), got->front().bytes().end(), expected->front().bytes().begin()));
  }
  (*run).reset(), (*here).reset(), s.reset();
  late.check();
}

BOOST_AUTO_TEST_SUITE_END()
