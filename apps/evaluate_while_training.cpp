// One graph trains, another one over the same variables evaluates and answers requests meanwhile. A
// thread makes training steps; four ask for classes, as those who serve a model do; the main thread
// evaluates on points that were held back.
//
// A request reads one version of all variables, never half of a step. This program checks that,
// in two ways. Every step changes two variables, "steps" and "twice", by 1 and by 2, and each
// request fetches both beside its classes; of one step they fit together. And requests with the
// same points that read the same version, from whichever thread, have to have the same logits to
// the last bit.
//
//   troupe-node & troupe-node &
//   evaluate_while_training --cluster default

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

using namespace troupe;

namespace {

struct serving_options : cluster_program {
  std::string training_on = "/job:worker/task:0", serving_on = "/job:worker/task:1";
  std::uint32_t readers = 4;
  std::uint64_t steps = 600, seed = 1;
  std::int64_t batch = 64, width = 32;
  double goal = 0.9;
};

constexpr std::int64_t rows = 16, held = 512;  // of a request; of an evaluation

value model(value points, const serving_options& o) {
  const auto hidden = relu(dense(relu(dense(points, o.width, "one")), o.width, "two"));
  return dense(hidden, 2, "out");
}

// The update "train".
void build_training(graph& g, const serving_options& o) {
  const auto there = g.device_scope(o.training_on);
  const auto points = input(g, {dtype::f32, {o.batch, 2}}, "points");
  const auto classes = input(g, {dtype::i32, {o.batch}}, "classes");
  minimize(reduce_mean(cross_entropy(model(points, o), classes)), adam({.learning_rate = 5e-3}));
  assign_add(variable(g, {dtype::f32, {}}, zeros(), "steps"), constant(g, 1.0F), "train");
  assign_add(variable(g, {dtype::f32, {}}, zeros(), "twice"), constant(g, 2.0F), "train");
}

void build_serving(graph& g, const serving_options& o) {
  const auto there = g.device_scope(o.serving_on);
  const auto points = input(g, {dtype::f32, batch_of(held, {2})}, "points");
  const auto classes = input(g, {dtype::i32, batch_of(held, {})}, "classes");
  const auto logits = named(model(points, o), "logits");
  named(argmax(logits), "answers");
  named(accuracy(logits, classes), "accuracy");
  named(variable(g, {dtype::f32, {}}, zeros(), "steps") * 1.0F, "steps_read");
  named(variable(g, {dtype::f32, {}}, zeros(), "twice") * 1.0F, "twice_read");
}

// Points of a square; which of two classes each is of depends on its quarter.
struct batch {
  tensor points, classes;
};
batch draw(std::mt19937_64& random, std::int64_t n) {
  batch b{tensor::make({dtype::f32, {n, 2}}), tensor::make({dtype::i32, {n}})};
  const auto part = [&] { return 2 * (static_cast<float>(random() >> 40U) * 0x1p-24F) - 1; };
  for (std::int64_t i = 0; i < n; ++i) {
    const auto x = b.points.data<float>()[2 * i] = part();
    const auto y = b.points.data<float>()[2 * i + 1] = part();
    b.classes.data<std::int32_t>()[i] = x * y > 0 ? 1 : 0;
  }
  return b;
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

// What a thread that asks has seen.
struct seen {
  std::uint64_t answered = 0, mixed = 0;
  std::map<std::uint64_t, std::vector<float>> logits;  // by version
  result<void> ended;
};

void ask(graph_runner& r, const serving_options& o, const std::atomic<bool>& is_over, seen& to) {
  std::mt19937_64 random(o.seed + 77);  // of all threads the same points
  const auto asked = draw(random, rows);
  while (!is_over) {
    std::uint64_t version = 0;
    const auto out =
        r.step({{"points", asked.points}}, {"answers", "logits", "steps_read", "twice_read"}, {},
               {.version = &version});
    if (!out) {
      to.ended = out.error();
      return;
    }
    ++to.answered;
    const auto* of = (*out)[1].data<float>();
    std::vector<float> logits(of, of + (*out)[1].elements());
    const bool is_of_one_step = 2 * *(*out)[2].data<float>() == *(*out)[3].data<float>();
    const auto [first, is_new] = to.logits.emplace(version, logits);
    if (!is_of_one_step || (!is_new && first->second != logits)) ++to.mixed;
  }
}

// Steps per second.
result<double> train(graph_runner& r, const serving_options& o, std::uint64_t steps,
                     std::mt19937_64& random, bool has_run = true) {
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < steps; ++i) {
    const auto b = draw(random, o.batch);
    auto made =
        again([&] { return r.step({{"points", b.points}, {"classes", b.classes}}, {}, {"train"}); },
              has_run || i > 0);
    if (!made) return made.error();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  return double(steps) / took.count();
}

result<double> evaluate(graph_runner& r, const batch& b, bool has_run = true) {
  auto out = again(
      [&] { return r.run({{"points", b.points}, {"classes", b.classes}}, {"accuracy"}); }, has_run);
  if (!out) return out.error();
  return double(*out->front().data<float>());
}

struct outcome {
  double alone = 0, beside = 0;  // training steps per second, without and with those who ask
  double requests_per_second = 0, accuracy = 0;
  std::uint64_t answered = 0, mixed = 0, versions = 0, compared = 0, evaluations = 0;
};

result<outcome> run(session& s, const serving_options& o) {
  graph training(s.ops()), serving(s.ops());
  build_training(training, o);
  build_serving(serving, o);
  const auto store = s.make_store();
  if (auto ready = store->initialize(training, o.seed); !ready) return ready.error();
  const auto trainer = s.runner(training, *store, {.name = "training"});
  const auto server = s.runner(serving, *store, {.name = "serving"});
  std::mt19937_64 random(o.seed);
  const auto held_back = draw(random, held);
  outcome told;

  // What is run first is compiled, which is not to be measured.
  if (auto first = train(*trainer, o, 10, random, false); !first) return first.error();
  if (auto first = evaluate(*server, held_back, false); !first) return first.error();
  auto alone = train(*trainer, o, o.steps, random);
  if (!alone) return alone.error();
  told.alone = *alone;

  std::atomic<bool> is_over = false;
  std::vector<seen> of(o.readers);
  result<double> beside = 0.0;
  result<void> evaluated;
  const auto began = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (auto& one : of) threads.emplace_back([&] { ask(*server, o, is_over, one); });
    threads.emplace_back([&] {
      beside = train(*trainer, o, o.steps, random);
      is_over = true;
    });
    for (; !is_over && evaluated; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
      auto now = evaluate(*server, held_back);
      if (!now)
        evaluated = now.error();
      else
        ++told.evaluations, told.accuracy = *now;
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (!beside) return beside.error();
  if (!evaluated) return evaluated.error();
  told.beside = *beside;
  std::map<std::uint64_t, std::vector<float>> logits;
  for (const auto& one : of) {
    if (!one.ended) return one.ended.error();
    told.answered += one.answered;
    told.mixed += one.mixed;
    for (const auto& [version, values] : one.logits) {
      const auto [first, is_new] = logits.emplace(version, values);
      if (is_new) continue;
      ++told.compared;
      if (first->second != values) ++told.mixed;
    }
  }
  told.versions = logits.size();
  told.requests_per_second = double(told.answered) / took.count();
  auto after = evaluate(*server, held_back);
  if (!after) return after.error();
  told.accuracy = *after;
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  serving_options o;
  o.program = "evaluate_while_training";
  o.roles = {"/job:worker/task:0", "/job:worker/task:1"};
  o.threads = 2;
  o.parse(argc, argv, "Trains, evaluates and serves at once, on the same variables.",
          [&](CLI::App& app) {
            app.add_option("--training-on", o.training_on, "Device of the graph that trains")
                ->capture_default_str();
            app.add_option("--serving-on", o.serving_on, "Device of the graph that answers")
                ->capture_default_str();
            app.add_option("--readers", o.readers, "Threads that ask")
                ->check(CLI::Range(1, 256))
                ->capture_default_str();
            app.add_option("--steps", o.steps,
                           "Training steps, without and again with those who ask")
                ->check(CLI::Range(1, 1 << 23))  // so far "twice" counts, in f32
                ->capture_default_str();
            app.add_option("--batch", o.batch, "Points of a training step")
                ->check(CLI::Range(1, 1 << 20))
                ->capture_default_str();
            app.add_option("--width", o.width, "Units of each layer")
                ->check(CLI::Range(1, 1 << 14))
                ->capture_default_str();
            app.add_option("--goal", o.goal, "Share of held-back points to tell right")
                ->check(CLI::Range(0.0, 1.0))
                ->capture_default_str();
            app.add_option("--seed", o.seed, "Of initial values and points")->capture_default_str();
          });
  auto s = o.open();
  if (!s) return o.fail(s.error());
  const auto told = run(**s, o);
  if (!told) return o.fail(told.error());
  const bool is_good = told->mixed == 0 && told->answered > 0 && told->accuracy >= o.goal;
  o.tell(
      fmt::format(
          "training alone: {:.0f} steps/s; beside {} threads that ask: {:.0f} steps/s, and "
          "{:.0f} requests/s\n"
          "{} requests read {} versions; {} of them saw two steps mixed ({} answers of one "
          "version were compared between threads)\n"
          "{} evaluations meanwhile; in the end {:.1f} % of points held back are told right",
          told->alone, o.readers, told->beside, told->requests_per_second, told->answered,
          told->versions, told->mixed == 0 ? "none" : fmt::format("{}", told->mixed),
          told->compared, told->evaluations, 100 * told->accuracy),
      fmt::format("{{\"good\":{},\"steps_per_second_alone\":{:.1f},\"steps_per_second\":{:.1f},"
                  "\"requests_per_second\":{:.1f},\"answered\":{},\"versions\":{},\"mixed\":{},"
                  "\"compared\":{},\"evaluations\":{},\"accuracy\":{:.4f}}}",
                  is_good, told->alone, told->beside, told->requests_per_second, told->answered,
                  told->versions, told->mixed, told->compared, told->evaluations, told->accuracy));
  return is_good ? 0 : 1;
}
