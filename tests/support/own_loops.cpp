// Loops of a program's own over a small perceptron, for tests/own_loops_vs_torch.py:
//
//   own_loops SCENARIO STEPS FOLDER
//
// Writes FOLDER/begin.safetensors, the variables before the first step, and FOLDER/end.safetensors;
// prints what the scenario fetches, a line per step. Data are functions of the step (see
// samples()).

#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/layers/clipping.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t rows = 8;

tensor samples(std::int64_t width, double from) {
  auto t = tensor::make({dtype::f32, {rows, width}});
  for (std::int64_t i = 0; i < t.elements(); ++i)
    t.data<float>()[i] = static_cast<float>(std::sin(from + 0.7 * static_cast<double>(i)));
  return t;
}

value perceptron(value x, std::int64_t out, const std::string& name) {
  const auto scope = x.owner->name_scope(name);
  return dense(tanh(dense(x, 5, "one")), out, "two");
}
value mean_square(value a, value b) { return reduce_mean(square(a - b)); }

struct loop {
  // Adds ops and updates; x is f32[8, 3], y f32[8, 2].
  std::function<void(graph&, value x, value y)> build;
  std::vector<std::string_view> fetches;
  // Of a step, one run after the other; each fetches what it has of `fetches`.
  std::function<std::vector<std::vector<std::string_view>>(std::uint64_t step)> updates;
};

value loss_of(value x, value y) { return named(mean_square(perceptron(x, 2, "net"), y), "loss"); }

std::vector<std::vector<std::string_view>> always(std::uint64_t) { return {{"train"}}; }

std::map<std::string, loop> loops() {
  std::map<std::string, loop> all;
  all["frozen"] = {[](graph& g, value x, value y) {
                     const auto loss = loss_of(x, y);
                     minimize(loss, variables_in(g, "net/two"),
                              sgd({.learning_rate = 0.1, .momentum = 0.9}));
                   },
                   {"loss"},
                   always};
  all["groups"] = {[](graph& g, value x, value y) {
                     const auto loss = loss_of(x, y);
                     minimize(loss, variables_in(g, "net/one"),
                              adamw({.learning_rate = 0.02, .weight_decay = 0.1}));
                     minimize(loss, variables_in(g, "net/two"), sgd({.learning_rate = 0.3}));
                   },
                   {"loss"},
                   always};
  all["clipping"] = {[](graph&, value x, value y) {
                       minimize(loss_of(x, y), sgd({.learning_rate = 0.5}),
                                {.clip_global_norm = 0.25});
                     },
                     {"loss", "train/norm"},
                     always};
  all["accumulation"] = {[](graph& g, value x, value y) {
                           const auto loss = loss_of(x, y);
                           const auto of = variables_in(g, "net/");
                           const auto d = gradients(g, loss, of);
                           for (std::size_t i = 0; i < of.size(); ++i) {
                             const auto sum = variable(g, of[i].spec(), zeros(), "sum");
                             assign_add(sum, d[i], "add");
                             apply(adam({.learning_rate = 0.05}), of[i], sum * 0.25);
                             assign(sum, broadcast_like(constant(g, 0.0F), sum), "train");
                           }
                         },
                         {"loss"},
                         [](std::uint64_t step) {
                           std::vector<std::vector<std::string_view>> out{{"add"}};
                           if (step % 4 == 3) out.push_back({"train"});
                           return out;
                         }};
  // Sign of a momentum, with a decay (Chen et al.: Symbolic discovery of optimization algorithms,
  // 2023).
  all["own_optimizer"] = {
      [](graph& g, value x, value y) {
        const auto loss = loss_of(x, y);
        const auto of = variables_in(g, "net/");
        const auto d = gradients(g, loss, of);
        for (std::size_t i = 0; i < of.size(); ++i) {
          const auto m = variable(g, of[i].spec(), zeros(), "moment");
          assign(of[i], of[i] * (1 - 0.01 * 0.1) - sign(m * 0.9 + d[i] * 0.1) * 0.01, "train");
          assign(m, m * 0.99 + d[i] * 0.01, "train");
        }
      },
      {"loss"},
      always};
  all["average_of_weights"] = {[](graph& g, value x, value y) {
                                 const auto loss = loss_of(x, y);
                                 for (const auto& w : variables_in(g, "net/")) {
                                   const auto mean = variable(g, w.spec(), zeros(), "mean");
                                   assign(mean, mean * 0.9 + w * 0.1, "train");
                                 }
                                 minimize(loss, adam({.learning_rate = 0.05}));
                               },
                               {"loss"},
                               always};
  all["gan"] = {
      [](graph& g, value x, value y) {
        const auto made = perceptron(x, 2, "generator");
        value told_made, told_true;
        {
          const auto shared = g.share_variables();
          told_made = perceptron(made, 1, "judge");
          told_true = perceptron(y, 1, "judge");
        }
        const auto loss_of_judge =
            named(reduce_mean(softplus(neg(told_true))) + reduce_mean(softplus(told_made)), "loss");
        const auto loss_of_generator =
            named(reduce_mean(softplus(neg(told_made))), "generator_loss");
        minimize(loss_of_judge, variables_in(g, "judge/"),
                 adam({.learning_rate = 0.01, .beta1 = 0.5}), {.name = "judge"});
        minimize(loss_of_generator, variables_in(g, "generator/"),
                 adam({.learning_rate = 0.02, .beta1 = 0.5}), {.name = "generator"});
      },
      {"loss", "generator_loss"},
      [](std::uint64_t) {
        return std::vector<std::vector<std::string_view>>{{"judge"}, {"generator"}};
      }};
  return all;
}

int fail(const error& e) {
  fmt::print(stderr, "own_loops: {}\n", e.text());
  return static_cast<int>(e.code());
}

}  // namespace

int main(int argc, char** argv) {
  const auto all = loops();
  if (argc != 4 || !all.contains(argv[1]))
    return fail(error(error_code::usage, "SCENARIO STEPS FOLDER"));
  const auto& l = all.at(argv[1]);
  const auto steps = std::strtoull(argv[2], nullptr, 10);
  const std::string folder = argv[3];
  const auto s = session::open({});
  if (!s) return fail(s.error());
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {rows, 3}}, "x"), y = input(g, {dtype::f32, {rows, 2}}, "y");
  l.build(g, x, y);
  if (g.first_error()) return fail(*g.first_error());
  const auto store = (*s)->make_store();
  auto done = store->initialize(g);
  if (done) done = store->save(folder + "/begin.safetensors");
  if (!done) return fail(done.error());
  const auto r = (*s)->runner(g, *store);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto from = static_cast<double>(step);
    const graph_runner::feed feeds[] = {{"x", samples(3, from)}, {"y", samples(2, 2 * from)}};
    for (const auto& updates : l.updates(step)) {
      const auto out = r->step(feeds, l.fetches, updates);
      if (!out) return fail(out.error());
      for (const auto& v : *out) fmt::print("{:.9g} ", *v.data<float>());
    }
    fmt::print("\n");
  }
  if (auto saved = store->save(folder + "/end.safetensors"); !saved) return fail(saved.error());
  return 0;
}
