// Trainings in halves: losses near those of f32, the same bits however they run, and what a scale
// of the loss does about numbers that are not finite.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>

using namespace troupe;

namespace {

struct outcome {
  std::vector<float> losses;
  std::map<std::string, std::vector<float>> variables;
  std::string hash, failure;
  training_totals totals;
};

void take(outcome& out, training_event& e) {
  if (e.type == training_event::kind::loss) out.losses.push_back(e.loss);
  if (e.type == training_event::kind::failed) out.failure = e.text;
  if (e.type == training_event::kind::finished) out.totals = e.totals;
  if (e.type != training_event::kind::variables) return;
  std::vector<named_tensor> tensors;
  for (auto& [name, value] : e.variables) {
    tensors.push_back({name, value});
    out.variables[name] = {value.data<float>(), value.data<float>() + value.elements()};
  }
  out.hash = weights_hash(tensors);
}

using model = std::function<value(graph&, value images)>;

value perceptron(graph&, value images) {
  return dense(relu(dense(images, 32, "hidden")), 10, "out");
}
value small_cnn(graph&, value images) {
  auto x = relu(conv2d(reshape(images, {0, 1, 28, 28}), 4, {3, 3}, "conv_1"));
  x = relu(conv2d(max_pool2d(x), 8, {3, 3}, "conv_2"));
  return dense(reshape(max_pool2d(x), {0, -1}), 10, "out");
}

outcome train(session& s, const std::string& folder, const training_options& o, const model& build,
              std::int64_t batch = 25) {
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  auto b = idx_batch(g, *data, {.batch = batch, .seed = 5, .parts = o.workers});
  auto run = s.train(g, softmax_cross_entropy(build(g, b.images), b.labels, b.scale), o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  while (auto e = test::next_event(**run)) take(out, *e);
  BOOST_TEST(out.failure == "");
  return out;
}
outcome train(const std::string& folder, const training_options& o, const model& build,
              std::uint32_t threads = 2, std::int64_t batch = 25) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  return train(**s, folder, o, build, batch);
}

training_options in(precision_kind p, std::uint64_t steps,
                    std::optional<loss_scale_spec> scale = {}) {
  training_options o{.optimizer = troupe::sgd({.learning_rate = 0.05, .momentum = 0.9}),
                     .steps = steps};
  o.compile.precision = p;
  o.compile.loss_scale = scale;
  return o;
}

double mean_of_last(const outcome& o, std::size_t n = 8) {
  return std::accumulate(o.losses.end() - static_cast<std::ptrdiff_t>(n), o.losses.end(), 0.0) /
         static_cast<double>(n);
}

// Workers whose x is (worker, step) -> a number; the gradient of w is a product of it.
outcome train_fed(const training_options& how,
                  const std::function<float(std::uint32_t, std::uint64_t)>& number) {
  auto s = session::open({.threads = 2});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto x = input(g, {dtype::f32, {2, 4}}, "x");
  auto w = variable(g, {dtype::f32, {4, 3}}, filled_with(0.5), "w"),
       v = variable(g, {dtype::f32, {3}}, {}, "v");
  auto loss = reduce_sum(matmul(x, w) * v) + reduce_sum(square(v - 1.0F));
  auto o = how;
  o.is_fed = true;
  auto run = (*s)->train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  std::vector<std::unique_ptr<feeder>> feeders;
  while (auto e = test::next_event(**run)) {
    take(out, *e);
    if (e->type != training_event::kind::started) continue;
    for (std::uint32_t k = 0; k < o.workers; ++k)
      feeders.push_back(std::move(*(*run)->make_feeder(k)));
    for (std::uint64_t step = 0; step < o.steps; ++step)
      for (std::uint32_t k = 0; k < o.workers; ++k) {
        auto t = tensor::make({dtype::f32, {2, 4}});
        std::fill_n(t.data<float>(), 8, 0.25F);
        t.data<float>()[3] = number(k, step);
        const std::pair<std::string_view, tensor> feeds[] = {{"x", t}};
        if (!feeders[k]->feed(feeds, test::hang)) break;
      }
  }
  return out;
}

float fine(std::uint32_t, std::uint64_t) { return 0.25F; }

}  // namespace

BOOST_AUTO_TEST_SUITE(mixed_precision)

// Bounds that a training with wrong gradients, or with none in f16, does not keep: f32 falls from
// 2.3 to less than half of it.
BOOST_FIXTURE_TEST_CASE(losses_are_nearly_those_of_f32, image_folder) {
  struct trained {
    const char* name;
    model build;
    std::uint64_t steps;  // until it has learned something, and not all
  };
  for (const auto& [name, build, steps] :
       {trained{"perceptron", perceptron, 180}, trained{"cnn", small_cnn, 70}}) {
    const auto exact = train(path, in(precision_kind::f32, steps), build);
    const auto last = mean_of_last(exact);
    BOOST_TEST(last < exact.losses.front() / 2, name);
    for (const auto p : {precision_kind::bf16, precision_kind::f16}) {
      const auto got = train(path, in(p, steps), build);
      BOOST_TEST_REQUIRE(got.losses.size() == exact.losses.size());
      BOOST_TEST(got.losses != exact.losses, name << ": nothing was computed in " << to_string(p));
      BOOST_TEST(
          std::abs(mean_of_last(got) - last) < 0.05 * last + 0.01,
          name << " in " << to_string(p) << ": " << mean_of_last(got) << ", in f32 " << last);
      BOOST_TEST(std::abs(got.losses[0] - exact.losses[0]) < 0.02F, name);
      BOOST_TEST_MESSAGE(fmt::format("{}: {} {:.4f}, f32 {:.4f}, from {:.4f}", name, to_string(p),
                                     mean_of_last(got), last, exact.losses.front()));
      for (const auto& w : got.totals.workers) BOOST_TEST(w.applied + w.dropped == w.fed);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(threads_passes_shards_and_deployments_change_no_bit, image_folder) {
  const auto scale = dynamic_loss_scale(0x1p24, 4);  // steps are left out at the start, and again
  for (const auto p : {precision_kind::bf16, precision_kind::f16}) {
    auto base = in(p, 14, p == precision_kind::f16 ? std::optional(scale) : std::nullopt);
    base.workers = 2;
    base.shards = 2;
    for (const auto& build : {model(perceptron), model(small_cnn)}) {
      const auto expected = train(path, base, build, 1);
      if (p == precision_kind::f16) BOOST_TEST(expected.totals.workers[0].dropped > 0U);
      const auto same = [&](const char* what, const training_options& o, std::uint32_t threads) {
        const auto got = train(path, o, build, threads);
        BOOST_TEST(got.hash == expected.hash, what << " in " << to_string(p));
        BOOST_TEST(got.losses == expected.losses, what << " in " << to_string(p));
      };
      same("threads", base, 3);
      auto o = base;
      o.compile.fuse = false;
      same("no groups", o, 2);
      for (bool compile_options::* pass :
           {&compile_options::fold, &compile_options::simplify, &compile_options::share,
            &compile_options::share_memory, &compile_options::order_reads}) {
        o = base;
        o.compile.*pass = false;
        same("a pass", o, 2);
      }
      o = base;
      o.shards = 3;
      o.compile.credits = 1;
      same("shards", o, 2);
      o = base;
      o.all_reduce = true;
      same("all-reduce", o, 2);
    }
  }
}

// By messages between processes' worth of nodes: a worker and a place for shards.
BOOST_FIXTURE_TEST_CASE(two_nodes_give_the_bits_of_one_process, image_folder) {
  auto o = in(precision_kind::f16, 12, dynamic_loss_scale(0x1p24, 4));
  o.clip_global_norm = 1;
  const auto expected = train(path, o, perceptron);
  test::two_nodes nodes("mixed");
  o.compile.name = "over-nodes";
  BOOST_TEST(train(nodes.client(), path, o, perceptron).hash == expected.hash);
  o.all_reduce = true;
  o.compile.name = "all-reduced";
  BOOST_TEST(train(nodes.client(), path, o, perceptron).hash == expected.hash);
}

BOOST_FIXTURE_TEST_CASE(the_scale_goes_on_with_a_checkpoint_and_another_precision_is_refused,
                        image_folder) {
  auto base = in(precision_kind::f16, 20, dynamic_loss_scale(0x1p24, 3));
  const auto expected = train(path, base, perceptron);
  auto first = base, rest = base;
  first.steps = 9;
  first.checkpoints.folder = rest.checkpoints.folder = path + "/checkpoints";
  rest.checkpoints.resume = true;
  (void)train(path, first, perceptron);
  for (const auto p : {precision_kind::f32, precision_kind::bf16}) {
    auto other = rest;
    other.compile.precision = p;
    auto s = session::open({});
    auto data = open_idx(path, false);
    graph g((*s)->ops());
    auto b = idx_batch(g, *data, {.batch = 25, .seed = 5});
    const auto refused =
        (*s)->train(g, softmax_cross_entropy(perceptron(g, b.images), b.labels, b.scale), other);
    BOOST_TEST_REQUIRE(!refused);
    BOOST_TEST(refused.error().text().find("precision: the checkpoint was made with f16") !=
                   std::string::npos,
               refused.error().text());
  }
  const auto got = train(path, rest, perceptron);
  BOOST_TEST(got.hash == expected.hash);
  BOOST_TEST(got.variables.at("loss_scale") == expected.variables.at("loss_scale"),
             boost::test_tools::per_element());
}

// Powers of 2 change no bit of what is finite and far from the ends, in f32 and bf16.
BOOST_FIXTURE_TEST_CASE(a_scale_that_is_a_power_of_2_changes_no_bit_of_f32_and_bf16, image_folder) {
  for (const auto p : {precision_kind::f32, precision_kind::bf16}) {
    const auto plain = train(path, in(p, 10), perceptron),
               scaled = train(path, in(p, 10, fixed_loss_scale(1024)), perceptron);
    BOOST_TEST(plain.hash == scaled.hash, to_string(p));
    BOOST_TEST(plain.losses == scaled.losses, to_string(p));
  }
}

// What f16 cannot have: gradients of 1e-9 are 0 without a scale.
BOOST_AUTO_TEST_CASE(gradients_below_what_f16_has_need_a_scale) {
  const auto change = [](const std::optional<loss_scale_spec>& scale, precision_kind p) {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    auto x = constant(g, tensor::of({1, 2, 3, 4, 5, 6}, {2, 3}), "x"),
         w = variable(g, {dtype::f32, {3, 2}}, filled_with(0.5), "w");
    training_options o{.optimizer = troupe::sgd({.learning_rate = 1e6, .momentum = 0}), .steps = 1};
    o.compile.precision = p;
    o.compile.loss_scale = scale;
    auto run = (*s)->train(g, reduce_sum(matmul(x, w)) * 1e-9F, o);
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    outcome out;
    while (auto e = test::next_event(**run)) take(out, *e);
    BOOST_TEST(out.failure == "");
    return 0.5 - out.variables.at("w")[0];
  };
  const auto exact = change({}, precision_kind::f32);  // the sum of x's first column, 5, times 1e-3
  BOOST_TEST(std::abs(exact - 5e-3) < 1e-5);
  BOOST_TEST(change(fixed_loss_scale(1), precision_kind::f16) == 0);
  BOOST_TEST(std::abs(change(fixed_loss_scale(0x1p20), precision_kind::f16) - exact) < 1e-4);
  BOOST_TEST(std::abs(change(fixed_loss_scale(1), precision_kind::bf16) - exact) < 1e-4);
}

// LSC-1: one worker's overflow leaves out the step of all, and of all variables.
BOOST_AUTO_TEST_CASE(LSC_1_a_step_that_is_not_finite_on_one_worker_is_left_out_by_all) {
  // 1e5 is no number of f16; bad in step 3 of worker 1.
  const auto overflow_once = [](std::uint32_t worker, std::uint64_t step) {
    return worker == 1 && step == 3 ? 1e5F : 0.25F;
  };
  for (const bool all_reduce : {false, true}) {
    auto o = in(precision_kind::f16, 10, dynamic_loss_scale(64, 100));
    o.optimizer = troupe::sgd({.learning_rate = 0.01, .momentum = 0.5});
    o.workers = 2;
    o.shards = 2;
    o.all_reduce = all_reduce;
    const auto got = train_fed(o, overflow_once);
    o.steps = 9;
    const auto nine = train_fed(o, fine);
    BOOST_TEST(got.failure == "");
    BOOST_TEST_REQUIRE(got.totals.workers.size() == 2U);
    for (const auto& w : got.totals.workers) {
      BOOST_TEST(w.fed == 10U);
      BOOST_TEST(w.applied == 9U);
      BOOST_TEST(w.dropped == 1U);
    }
    for (const auto* name : {"w", "v"})
      BOOST_TEST(got.variables.at(name) == nine.variables.at(name),
                 boost::test_tools::per_element());
    BOOST_TEST(got.variables.at("loss_scale") == (std::vector<float>{32, 6}),
               boost::test_tools::per_element());
    BOOST_TEST(nine.variables.at("loss_scale") == (std::vector<float>{64, 9}),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(a_scale_that_is_too_large_falls_until_training_goes_on_and_grows_again) {
  auto o = in(precision_kind::f16, 40, dynamic_loss_scale(0x1p30, 5));
  o.optimizer = troupe::sgd({.learning_rate = 0.01, .momentum = 0});
  const auto got = train_fed(o, fine);
  BOOST_TEST(got.failure == "");
  const auto& scale = got.variables.at("loss_scale");
  BOOST_TEST(scale[0] < 0x1p24F);
  BOOST_TEST(scale[0] > 1.0F);
  const auto& w = got.totals.workers.at(0);
  BOOST_TEST(w.dropped > 6U);
  BOOST_TEST(w.dropped < 30U);
  BOOST_TEST(w.applied + w.dropped == 40U);
  BOOST_TEST(got.losses.back() < got.losses.front());
  for (const auto& [name, values] : got.variables)
    for (const auto x : values) BOOST_TEST(std::isfinite(x), name);
  // A fixed one stays, leaves out every step, and harms nothing.
  auto fixed = o;
  fixed.compile.loss_scale = fixed_loss_scale(0x1p30);
  const auto stuck = train_fed(fixed, fine);
  BOOST_TEST(stuck.failure == "");
  // at first v is 0, and with it what is scaled.
  BOOST_TEST(stuck.totals.workers.at(0).dropped == 39U);
  BOOST_TEST(stuck.variables.at("w") == std::vector<float>(12, 0.5F),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(asynchronous_workers_leave_out_their_own_steps) {
  auto o = in(precision_kind::f16, 10, dynamic_loss_scale(64, 1'000));
  o.optimizer = troupe::sgd({.learning_rate = 0.01, .momentum = 0});
  o.workers = 2;
  o.update = update_kind::async;
  const auto got = train_fed(o, [](std::uint32_t worker, std::uint64_t step) {
    return worker == 0 && step == 3 ? 1e5F : 0.25F;
  });
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.totals.workers.at(0).dropped == 1U);
  BOOST_TEST(got.totals.workers.at(0).applied == 9U);
  BOOST_TEST(got.totals.workers.at(1).dropped == 0U);
  BOOST_TEST(got.totals.workers.at(1).applied == 10U);
  BOOST_TEST(got.variables.at("loss_scale")[0] == 32.0F);
}

// Graphs that are stepped compute in halves, too; loops and branches among them.
BOOST_AUTO_TEST_CASE(a_stepped_graph_computes_in_halves_through_branches_and_loops) {
  auto s = std::move(*session::open({.threads = 2}));
  graph g(s->ops());
  auto x = input(g, {dtype::f32, {4, 4}}, "x"), w = input(g, {dtype::f32, {4, 4}}, "w");
  auto n = constant(g, 3, dtype::i32), one = constant(g, 1, dtype::i32),
       none = constant(g, 0, dtype::i32);
  const auto looped = while_loop(
      {n, x}, [&](auto v) { return greater(v[0], none); },
      [&](auto v) { return std::vector<value>{sub(v[0], one), tanh(matmul(v[1], w))}; },
      {.iterations_max = 9})[1];
  const auto y = cond(
      greater(reduce_sum(looped), constant(g, 0.0F)), [&] { return matmul(looped, w); },
      [&] { return neg(matmul(w, looped)); });
  auto roots = gradients(g, reduce_sum(y), std::vector{x, w});
  roots.insert(roots.begin(), y);
  auto exact = s->compile(g, roots),
       half = s->compile(g, roots, {.precision = precision_kind::bf16}),
       f16 = s->compile(g, roots, {.fuse = false, .precision = precision_kind::f16});
  BOOST_TEST_REQUIRE((exact && half && f16), (half ? "" : half.error().text()));
  for (int step = 0; step < 4; ++step) {
    auto a = tensor::make({dtype::f32, {4, 4}}), b = tensor::make({dtype::f32, {4, 4}});
    for (int i = 0; i < 16; ++i)
      a.data<float>()[i] = 0.1F * static_cast<float>((i * 7 + step) % 5 - 2),
      b.data<float>()[i] = 0.2F * static_cast<float>((i * 3 + step) % 7 - 3);
    const std::pair<std::string_view, tensor> feeds[] = {{"x", a}, {"w", b}};
    const auto wanted = (*exact)->step(feeds), got = (*half)->step(feeds),
               finer = (*f16)->step(feeds);
    BOOST_TEST_REQUIRE((wanted && got && finer), (got ? "" : got.error().text()));
    bool is_rounded = false;
    for (std::size_t k = 0; k < wanted->size(); ++k)
      for (int i = 0; i < 16; ++i) {
        const auto e = (*wanted)[k].data<float>()[i], h = (*got)[k].data<float>()[i],
                   f = (*finer)[k].data<float>()[i];
        BOOST_TEST(std::abs(h - e) < 0.05F * (1 + std::abs(e)));
        BOOST_TEST(std::abs(f - e) < 0.01F * (1 + std::abs(e)));
        is_rounded = is_rounded || h != e;
      }
    BOOST_TEST(is_rounded);
  }
}

BOOST_AUTO_TEST_SUITE_END()
