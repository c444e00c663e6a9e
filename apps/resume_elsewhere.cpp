// A training that is stopped goes on in another program, which has a loop of its own: bit by bit
// what the training would have done. train() writes checkpoints; variable_store::load() takes the
// newest one, with what the optimizer keeps, and says of which step it is; the loop makes the steps
// that are left, on the same samples. Here or over nodes, each part where it likes.
//
//   resume_elsewhere --part train --checkpoint DIR --steps 2000  # end it as you like: Ctrl-C, ...
//   resume_elsewhere --part loop --checkpoint DIR --steps 2000   # goes on where it was
//   resume_elsewhere --part whole --steps 2000                   # what it is compared with
//
// Without --part all three of them run in this process, and the bits are compared.

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

using namespace troupe;

namespace {

struct resume_options : cluster_program {
  std::string part = "all", checkpoint, on = "/job:worker/task:0";
  std::uint64_t steps = 2000, stop_after = 700, checkpoint_every = 100, seed = 1;
  std::int64_t batch = 64;
};

constexpr std::int64_t samples = 1000;  // so that the last batch of an epoch is a smaller one

// A wave over two dimensions, which a small perceptron learns.
struct data {
  tensor points = tensor::make({dtype::f32, {samples, 2}});
  tensor heights = tensor::make({dtype::f32, {samples, 1}});

  explicit data(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto part = [&] { return 2 * (static_cast<float>(random() >> 40U) * 0x1p-24F) - 1; };
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto x = points.data<float>()[2 * i] = part();
      const auto y = points.data<float>()[2 * i + 1] = part();
      heights.data<float>()[i] = std::sin(3 * x) * std::cos(2 * y);
    }
  }
};

// What both programs agree on: the model, the loss (`scale` is 1 / rows), the optimizer, its
// schedule, and the order of the samples.
value loss_of(value points, value heights, value scale) {
  const auto hidden = tanh(dense(tanh(dense(points, 24, "one")), 24, "two"));
  return named(reduce_sum(square(dense(hidden, 1, "out") - heights)) * scale, "loss");
}
optimizer_spec optimizer() { return adamw({.learning_rate = 1e-2, .weight_decay = 1e-3}); }
learning_rate_schedule schedule(const resume_options& o) {
  return cosine({.steps = o.steps, .warmup = o.steps / 10});
}

struct outcome {
  std::uint64_t begun = 0, done = 0;  // steps
  double loss = 0;                    // of the last step
  std::string hash;                   // of the variables, at the end
};

bool has_checkpoint(session& s, const std::string& folder) {
  return bool(s.make_store()->load(folder + "/resumed"));
}

// The usual training. `stop_after`: it is given up after so many steps, once it has a checkpoint;
// what it has done since that one is lost. 0: never.
result<outcome> train(session& s, const resume_options& o, const std::string& checkpoint,
                      std::uint64_t stop_after) {
  graph g(s.ops());
  const data d(o.seed);
  const auto batch = index_batch(g, samples, {.batch = o.batch, .seed = o.seed});
  const auto loss = loss_of(gather(constant(g, d.points), batch.ids),
                            gather(constant(g, d.heights), batch.ids), batch.scale);
  auto run = s.train(g, loss,
                     {.optimizer = optimizer(),
                      .schedule = schedule(o),
                      .seed = o.seed,
                      .steps = o.steps,
                      .on_failure = failure_policy::resume,
                      .checkpoints = {.folder = checkpoint, .every_steps = o.checkpoint_every},
                      .compile = {.name = "resumed"}});
  if (!run) return run.error();
  outcome told;
  bool is_stopped = false;
  while (auto event = (*run)->next()) {
    switch (event->type) {
      case training_event::kind::loss:
        told.done = event->step + 1, told.loss = double(event->loss);
        if (told.done % 200 == 0)
          say_error(fmt::format("train(): step {}: loss {:.5f}", told.done, told.loss));
        if (stop_after != 0 && told.done >= stop_after && !is_stopped &&
            has_checkpoint(s, checkpoint))
          (*run)->stop("it is time to go"), is_stopped = true;
        break;
      case training_event::kind::variables: {
        std::vector<named_tensor> all;
        for (auto& [name, value] : event->variables) all.push_back({name, value});
        told.hash = weights_hash(all);
        break;
      }
      case training_event::kind::failed: return error(error_code::failed, event->text);
      default: break;
    }
  }
  return told;
}

// A step that failed, as when a node dies, has changed nothing, and is made again; once the graph
// has run, also after a usage error: the node that a device names may be missing for a while.
template <class Step>
auto again(Step step, bool has_run = true) {
  for (int attempt = 0;; ++attempt) {
    auto out = step();
    if (out || attempt == 50 || (!has_run && out.error().code() == error_code::usage)) return out;
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
}

// The same steps in a loop of one's own, from the newest checkpoint on.
result<outcome> go_on(session& s, const resume_options& o, const std::string& checkpoint) {
  graph g(s.ops());
  {
    const auto there = g.device_scope(o.on);
    const auto loss = loss_of(input(g, {dtype::f32, batch_of(o.batch, {2})}, "points"),
                              input(g, {dtype::f32, batch_of(o.batch, {1})}, "heights"),
                              input(g, {dtype::f32, {}}, "scale"));
    minimize(loss, optimizer(), {.schedule = schedule(o)});
  }
  const auto store = s.make_store();
  const auto loaded = store->load(checkpoint + "/resumed");
  if (!loaded) return loaded.error();
  outcome told{.begun = loaded->step, .done = loaded->step, .hash = {}};
  say_error(fmt::format("the loop goes on with step {}", told.begun));

  const auto r = s.runner(g, *store, {.name = "loop"});
  const data d(o.seed);
  // In the order in which index_batch() takes them.
  const auto batches = batches_of({{"points", d.points}, {"heights", d.heights}}, o.batch, o.seed);
  const auto in_an_epoch = steps_per_epoch(samples, {.batch = o.batch});
  for (; told.done < o.steps; ++told.done) {
    const auto next = batches(told.done / in_an_epoch, told.done % in_an_epoch);
    if (next.failure) return *next.failure;
    const auto& [points, heights] = std::tie((*next.batch)[0].second, (*next.batch)[1].second);
    const auto scale = tensor::of({1 / static_cast<float>(points.shape().size(0))}, {});
    auto out =
        r->step({{"points", points}, {"heights", heights}, {"scale", scale}}, {"loss"}, {"train"});
    if (!out) return out.error();
    told.loss = double(*(*out)[0].data<float>());
  }
  std::vector<named_tensor> all;
  for (auto& [name, value] : store->snapshot().variables) all.push_back({name, value});
  told.hash = weights_hash(all);
  return told;
}

int tell(const resume_options& o, const result<outcome>& told) {
  if (!told) return o.fail(told.error());
  o.tell(fmt::format("{}: steps {} to {}, last loss {:.6f}, variables {}", o.part, told->begun,
                     told->done, told->loss, told->hash),
         fmt::format("{{\"begun\":{},\"done\":{},\"loss\":{},\"weights_hash\":\"{}\"}}",
                     told->begun, told->done, told->loss, told->hash));
  return 0;
}

// Stops a training, goes on with it, and makes the same without a stop.
int all_parts(session& s, const resume_options& o) {
  auto folder = scratch_folder::make("resume");
  if (!folder) return o.fail(folder.error());
  const auto path = o.checkpoint.empty() ? (*folder)->path() : o.checkpoint;
  const auto stopped = train(s, o, path, o.stop_after);
  if (!stopped) return o.fail(stopped.error());
  const auto resumed = go_on(s, o, path);
  if (!resumed) return o.fail(resumed.error());
  const auto whole = train(s, o, "", 0);
  if (!whole) return o.fail(whole.error());
  const bool is_equal = resumed->hash == whole->hash && resumed->loss == whole->loss;
  o.tell(fmt::format(
             "stopped after {} steps, gone on with step {}: after {} steps the loss is {:.6f}, "
             "without a stop {:.6f}; the variables are {}",
             stopped->done, resumed->begun, resumed->done, resumed->loss, whole->loss,
             is_equal ? "equal, bit by bit" : "NOT equal"),
         fmt::format("{{\"stopped_after\":{},\"begun\":{},\"done\":{},\"loss\":{},\"equal\":{},"
                     "\"weights_hash\":\"{}\"}}",
                     stopped->done, resumed->begun, resumed->done, resumed->loss, is_equal,
                     resumed->hash));
  return is_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  resume_options o;
  o.program = "resume_elsewhere";
  o.roles = {"/job:worker/task:0", "/job:worker/task:1"};
  o.parse(
      argc, argv, "Goes on with a training that was stopped, in a loop of its own.",
      [&](CLI::App& app) {
        app.add_option("--part", o.part, "What this program does")
            ->check(CLI::IsMember({"all", "train", "loop", "whole"}))
            ->capture_default_str();
        app.add_option("--checkpoint", o.checkpoint, "Folder that every node reaches");
        app.add_option("--steps", o.steps, "Of the training, and the loop, together")
            ->check(CLI::Range(1, 1'000'000'000))
            ->capture_default_str();
        app.add_option("--stop-after", o.stop_after, "Part all: the training is stopped then")
            ->capture_default_str();
        app.add_option("--checkpoint-every", o.checkpoint_every, "Steps between checkpoints")
            ->check(CLI::Range(1, 1'000'000'000))
            ->capture_default_str();
        app.add_option("--batch", o.batch, "Rows of a step")
            ->check(CLI::Range(std::int64_t{1}, samples))
            ->capture_default_str();
        app.add_option("--on", o.on, "Device of the loop's graph")->capture_default_str();
        app.add_option("--seed", o.seed, "Of samples and initial values")->capture_default_str();
      });
  if (o.checkpoint.empty() && (o.part == "train" || o.part == "loop"))
    return o.fail(error(error_code::usage, fmt::format("--part {} needs --checkpoint", o.part)));
  if (o.part == "all" && (o.stop_after <= o.checkpoint_every || o.stop_after >= o.steps))
    return o.fail(
        error(error_code::usage,
              fmt::format("--stop-after {}: give a step between the first checkpoint, {}, "
                          "and the last step, {}",
                          o.stop_after, o.checkpoint_every, o.steps)));
  auto s = o.open();
  if (!s) return o.fail(s.error());
  if (o.part == "all") return all_parts(**s, o);
  return tell(o, o.part == "loop"    ? go_on(**s, o, o.checkpoint)
                 : o.part == "train" ? train(**s, o, o.checkpoint, 0)
                                     : train(**s, o, "", 0));
}
