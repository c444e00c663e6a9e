// What each pass of the compiler gives: a training step of three models, and a step of a random
// graph, with all passes, and in turns with it without each of them, and without all.

#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/random_values.hpp"
#include "tools/troupe-bench/trained_steps.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/devices/files/text_file.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <fmt/format.h>

#include <fstream>

namespace troupe {

namespace {

struct pass_choice {
  const char* name;
  compile_options options;
};

const std::vector<pass_choice>& choices() {
  static const std::vector<pass_choice> all{{"fuse", {.fuse = false}},
                                            {"fold", {.fold = false}},
                                            {"simplify", {.simplify = false}},
                                            {"share", {.share = false}},
                                            {"share_memory", {.share_memory = false}},
                                            {"order_reads", {.order_reads = false}},
                                            {"all of them",
                                             {.fuse = false,
                                              .fold = false,
                                              .simplify = false,
                                              .share = false,
                                              .share_memory = false,
                                              .order_reads = false}}};
  return all;
}

// Microseconds a step with these passes.
using step_time = std::function<result<double>(const compile_options&, std::uint64_t& actors)>;

result<void> measure(const bench_options& o, bench_report& report, const std::string& model,
                     const step_time& step) {
  std::uint64_t actors_with = 0;
  std::vector<std::uint64_t> actors_without(choices().size());
  std::vector<contender> contenders{[&] { return step({}, actors_with); }};
  for (std::size_t i = 0; i < choices().size(); ++i)
    contenders.emplace_back([&, i] { return step(choices()[i].options, actors_without[i]); });
  auto figures = take_turns(o.runs, contenders);
  if (!figures) return figures.error();
  for (std::size_t i = 0; i < choices().size(); ++i)
    report.add({"passes", fmt::format("{}, without {}", model, choices()[i].name), "us",
                (*figures)[1 + i], actors_without[i], "all passes", (*figures)[0],
                bench_ratio::ours_to_baseline, ""});
  return {};
}

constexpr std::uint64_t warm_steps = 5;

// `loss`: adds a model to a graph.
step_time trained(session& s, std::uint64_t steps, std::function<value(graph&)> loss) {
  return [&s, steps, loss = std::move(loss)](const compile_options& options,
                                             std::uint64_t& actors) -> result<double> {
    graph g(s.ops());
    training_options how;
    how.steps = warm_steps + steps;
    how.compile = options;
    auto run = s.train(g, loss(g), how);
    if (!run) return run.error();
    auto seconds = time_steps(**run, warm_steps, steps, actors, [](std::uint64_t, float) {});
    if (!seconds) return seconds;
    return *seconds * 1e6;
  };
}

value cnn_loss(graph& g, const idx_info& data, const idx_batch_options& reading) {
  const auto batch = idx_batch(g, data, reading);
  auto x = reshape(batch.images, {0, 1, data.rows, data.columns});
  x = max_pool2d(relu(conv2d(x, 32, {5, 5}, "conv_1", {.same = true})));
  x = max_pool2d(relu(conv2d(x, 64, {5, 5}, "conv_2", {.same = true})));
  const auto& image = x.spec().shape;
  x = relu(dense(reshape(x, {0, image.size(1) * image.size(2) * image.size(3)}), 512, "dense_1"));
  return softmax_cross_entropy(dense(x, 10, "dense_2"), batch.labels, batch.scale);
}

value language_model_loss(graph& g, const text_info& text, std::int64_t samples) {
  constexpr std::int64_t context = 64, width = 64;
  const auto batch = text_batch(g, text, {.batch = samples, .context = context, .seed = 1});
  auto x = embedding(batch.tokens, 256, width, "bytes") +
           variable(g, {dtype::f32, {context, width}}, normal(0.02), "places");
  for (int i = 1; i <= 2; ++i) {
    const auto block = g.name_scope(fmt::format("block_{}", i));
    x = x + self_attention(layer_norm(x, "norm_1"), {.heads = 4, .causal = true}, "attention");
    x = x + dense(gelu(dense(layer_norm(x, "norm_2"), 4 * width, "dense_1")), width, "dense_2");
  }
  return reduce_sum(cross_entropy(dense(layer_norm(x, "norm"), 256, "logits"), batch.targets)) *
         batch.scale;
}

step_time random_steps(std::uint32_t ops, std::uint64_t steps) {
  return [=](const compile_options& options, std::uint64_t& actors) -> result<double> {
    auto p = process::start({});
    if (!p) return p.error();
    graph g((*p)->ops());
    const auto fetches = random_values(g, ops);
    auto compiled = compile_steps(g, fetches, options);
    if (!compiled) return compiled.error();
    auto driver = graph_driver::start(**p, std::move(*compiled), {view_of(**p).self.id});
    if (!driver) return driver.error();
    actors = (*driver)->actors();
    if (auto warm = (*driver)->run(warm_steps, 1); !warm) return warm.error();
    auto seconds = (*driver)->run(steps, 1);
    if (!seconds) return seconds;
    return *seconds / double(steps) * 1e6;
  };
}

}  // namespace

result<void> bench_passes(const bench_options& o, bench_report& report) {
  bench_folder folder;
  const auto path = folder.path();
  if (!path) return path.error();
  auto data = o.data;
  if (data.empty()) {
    data = *path;
    if (auto written = write_synthetic_images(data, {.train = 1'000, .test = 10}); !written)
      return written;
  }
  const auto images = open_idx(data, false);
  if (!images) return images.error();
  const auto document = *path + "/text";
  {
    std::ofstream file(document);
    for (int i = 0; i < 2'000; ++i)
      file << "the quick brown fox jumps over the lazy dog " << i << ". ";
  }
  const auto text = open_text(document);
  if (!text) return text.error();
  auto s = session::open({});
  if (!s) return s.error();
  const auto some = [&](std::uint64_t steps) { return o.is_quick ? 3 : steps; };
  for (const std::int64_t batch : {128, 16})
    if (auto done = measure(o, report, fmt::format("perceptron, batch {}", batch),
                            trained(**s, some(batch == 128 ? 100 : 400),
                                    [&](graph& g) {
                                      return perceptron_loss(g, *images,
                                                             {.batch = batch, .seed = 1});
                                    }));
        !done)
      return done;
  if (auto done = measure(
          o, report, "cnn, batch 16",
          trained(**s, some(20),
                  [&](graph& g) { return cnn_loss(g, *images, {.batch = 16, .seed = 1}); }));
      !done)
    return done;
  if (auto done = measure(
          o, report, "language model, batch 2",
          trained(**s, some(40), [&](graph& g) { return language_model_loss(g, *text, 2); }));
      !done)
    return done;
  return measure(o, report, "random graph of 10,000 ops",
                 random_steps(o.is_quick ? 1'000 : 10'000, some(20)));
}

}  // namespace troupe
