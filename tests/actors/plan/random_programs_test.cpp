// Random programs of branches and loops in each other, with gradients: computed at once, in steps
// with and without each pass, on one stream and on two, and trained over two nodes.

#include "tests/support/events.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/session/session.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

using namespace troupe;

namespace {

constexpr std::uint64_t weights_seed = 7;
constexpr std::size_t weights = 3;

std::uint64_t seeds() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t some = 10;
#else
  constexpr std::uint64_t some = 60;
#endif
  const auto* text = std::getenv("TROUPE_SEEDS");
  return text == nullptr ? some : std::min<std::uint64_t>(some, std::strtoull(text, nullptr, 10));
}

// A function of a branch or a body may run never, once or often: what it does follows from a seed
// of its own.
class program {
 public:
  // `places`: devices that bodies and branches stand on; none: wherever.
  program(graph& g, std::uint64_t seed, std::vector<std::string> places)
      : g_(g), seed_(seed), places_(std::move(places)) {}

  // The loss, with the weights.
  value build() {
    for (std::size_t k = 0; k < weights; ++k)
      all.push_back(variable(g_, {dtype::f32, {3}}, {initializer_spec::kind::uniform, 1},
                             fmt::format("w{}", k)));
    const auto out = block(all, seed_, 0);
    value loss = reduce_sum(square(all[0]));
    for (const auto& v : out) loss = add(loss, reduce_sum(v));
    return loss;
  }
  std::vector<value> all;  // weights

 private:
  using random = std::mt19937_64;
  std::size_t draw(random& r, std::size_t n) { return r() % n; }
  value number(double x) { return constant(g_, static_cast<float>(x)); }

  std::vector<value> block(std::vector<value> known, std::uint64_t seed, int depth) {
    random r(seed);
    const auto statements = 2 + draw(r, depth == 0 ? 4 : 2);
    std::vector<value> made;
    for (std::size_t i = 0; i < statements; ++i) {
      const auto pick = [&] { return known[draw(r, known.size())]; };
      const auto kind = draw(r, depth == 0 ? 4 : depth == 1 ? 7 : 12);
      const auto a = pick(), b = pick(), c = pick();
      const auto seeds = std::array{r(), r(), r()};
      std::vector<value> out;
      if (kind == 0 || kind == 1)
        out = branches(known, a, b, seeds, depth);
      else if (kind == 2 || kind == 3)
        out = loop(known, a, b, seeds, depth);
      else
        out = {plain(kind, a, b, c)};
      for (const auto& v : out) known.push_back(v), made.push_back(v);
    }
    return {made.back(), made[draw(r, made.size())]};
  }

  // All of them stay small.
  value plain(std::size_t kind, value a, value b, value c) {
    switch (kind % 6) {
      case 0: return sin(add(a, b));
      case 1: return tanh(mul(a, b));
      case 2: return mul(sub(a, c), number(0.5));
      case 3: return where(less(a, b), b, neg(c));
      case 4: return sigmoid(sub(a, b));
      default: return add(mul(tanh(a), number(0.25)), mul(c, number(0.5)));
    }
  }

  std::vector<value> branches(const std::vector<value>& known, value a, value b,
                              const std::array<std::uint64_t, 3>& seeds, int depth) {
    if (depth > 2) return {plain(3, a, b, a)};
    const auto branch = [&, depth](std::uint64_t seed) {
      return branch_function([this, known, seed, depth] {
        const auto place = on_some_device(seed);
        return block(known, seed, depth + 1);
      });
    };
    return cond(less(reduce_sum(a), reduce_sum(b)), branch(seeds[0]), branch(seeds[1]));
  }

  std::vector<value> loop(const std::vector<value>& known, value a, value b,
                          const std::array<std::uint64_t, 3>& seeds, int depth) {
    if (depth > 2) return {plain(1, a, b, a)};
    const auto most = number(static_cast<double>(seeds[0] % 4));
    const bool looks = seeds[1] % 2 == 0;
    const auto out = while_loop(
        std::array{number(0), a, b},
        [&](std::span<const value> v) {
          const auto goes_on = less(v[0], most);
          return looks ? logical_and(goes_on, less(reduce_sum(v[1]), number(1))) : goes_on;
        },
        [&](std::span<const value> v) {
          const auto place = on_some_device(seeds[2]);
          auto inside = known;
          inside.push_back(v[1]), inside.push_back(v[2]);
          const auto out = block(inside, seeds[2], depth + 1);
          return std::vector{add(v[0], number(1)), out[0], mul(add(out[1], v[1]), number(0.5))};
        },
        {.iterations_max = 4});
    return {out[1], out[2]};
  }

  graph::scope on_some_device(std::uint64_t seed) {
    return g_.device_scope(places_.empty() ? "/cpu:0" : places_[seed % places_.size()]);
  }

  graph& g_;
  std::uint64_t seed_;
  std::vector<std::string> places_;
};

std::vector<float> numbers(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

struct outcome {
  std::vector<std::vector<float>> weights, results;  // results: the loss and its gradients
};

outcome at_once(session& s, std::uint64_t seed) {
  const auto e = s.eager(weights_seed);
  program p(*e, seed, {});
  const auto loss = p.build();
  BOOST_TEST_REQUIRE(!e->first_error().has_value(),
                     (e->first_error() ? e->first_error()->text() : ""));
  outcome o;
  o.results.push_back(numbers(*e->read(loss)));
  for (const auto& d : gradients(*e, loss, p.all))
    o.results.push_back(d.is_valid() ? numbers(*e->read(d)) : std::vector<float>(3));
  for (const auto& w : p.all) o.weights.push_back(numbers(*e->read(w)));
  return o;
}

// What a program that has it is stepped for, three times with all steps in flight.
std::vector<std::vector<float>> in_steps(session& s, std::uint64_t seed, const outcome& expected,
                                         const compile_options& options,
                                         std::vector<std::string> places) {
  graph g(s.ops());
  program p(g, seed, std::move(places));
  const auto loss = p.build();
  std::vector<value> fetches{loss};
  for (const auto& d : gradients(g, loss, p.all)) fetches.push_back(d);
  BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                     (g.first_error() ? g.first_error()->text() : ""));
  auto steps = s.compile(g, fetches, options);
  BOOST_TEST_REQUIRE(bool(steps), (steps ? "" : steps.error().text()));
  constexpr int count = 3;
  for (int i = 0; i < count; ++i)
    for (std::size_t k = 0; k < weights; ++k)
      BOOST_TEST_REQUIRE(bool((*steps)->feed(
          fmt::format("w{}", k), tensor::of<float>(dtype::f32, {3}, expected.weights[k]))));
  std::vector<std::vector<float>> first;
  for (int i = 0; i < count; ++i) {
    const auto values = (*steps)->fetch(std::chrono::seconds(60));
    BOOST_TEST_REQUIRE(bool(values), (values ? "" : values.error().text()));
    std::vector<std::vector<float>> now;
    for (const auto& v : *values) now.push_back(numbers(v));
    if (i == 0) first = now;
    BOOST_TEST(now == first);
  }
  return first;
}

// Weights after one step of plain SGD with a rate of 1.
std::map<std::string, std::vector<float>> trained(session& s, std::uint64_t seed,
                                                  std::vector<std::string> places) {
  graph g(s.ops());
  program p(g, seed, std::move(places));
  const auto loss = p.build();
  auto run =
      s.train(g, loss, {.optimizer = sgd({.learning_rate = 1}), .seed = weights_seed, .steps = 1});
  BOOST_TEST_REQUIRE(bool(run), (run ? "" : run.error().text()));
  std::map<std::string, std::vector<float>> after;
  while (auto e = test::next_event(**run)) {
    BOOST_TEST_REQUIRE((e->type != training_event::kind::failed), e->text);
    if (e->type == training_event::kind::variables)
      for (const auto& [name, t] : e->variables) after[name] = numbers(t);
  }
  return after;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(random_programs)

BOOST_AUTO_TEST_CASE(
    branches_and_loops_compute_what_the_program_written_out_does_wherever_they_run) {
  test::two_nodes nodes("programs");
  auto alone = session::open({.threads = 2, .gpus = "host:2"});
  BOOST_TEST_REQUIRE(bool(alone));
  const std::vector<std::string> streams{"/cpu:0", "/cpu:1"}, places{"/job:worker", "/job:ps"},
      mixed{"/cpu:0", "/gpu:0", "/gpu:1", "/cpu:1"};
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      const auto expected = at_once(**alone, seed);
      const auto first = in_steps(**alone, seed, expected, {}, {});
      BOOST_TEST(first[0] == expected.results[0]);
      // A value that two uses in a branch have in common gets their sum, which the program written
      // out does not compute.
      for (std::size_t k = 1; k < first.size(); ++k)
        for (std::size_t i = 0; i < 3; ++i)
          BOOST_TEST(
              std::abs(first[k][i] - expected.results[k][i]) <= 1e-5F * (1 + std::abs(first[k][i])),
              "gradient of w" << k - 1 << ": " << first[k][i] << " and " << expected.results[k][i]);
      std::vector<compile_options> others{
          {.fuse = false}, {.credits = 1},      {.credits = 4, .share_memory = false},
          {.fold = false}, {.simplify = false}, {.share = false}};
      BOOST_TEST(in_steps(**alone, seed, expected, others[seed % others.size()], {}) == first);
      BOOST_TEST(in_steps(**alone, seed, expected, {}, streams) == first);
      // Branches and loops stay on the host, with what else no device runs.
      BOOST_TEST(in_steps(**alone, seed, expected, {.device = seed % 2 == 0 ? "/gpu:0" : ""},
                          mixed) == first);
      BOOST_TEST(in_steps(nodes.client(), seed, expected,
                          {.credits = 1 + static_cast<std::uint32_t>(seed % 3)},
                          {"/job:worker", "/job:client", "/job:ps"}) == first);
      const auto after = trained(nodes.client(), seed, places);
      for (std::size_t k = 0; k < weights; ++k)
        for (std::size_t i = 0; i < 3; ++i)
          BOOST_TEST(after.at(fmt::format("w{}", k))[i] ==
                     expected.weights[k][i] - first[1 + k][i]);
    }
}

BOOST_AUTO_TEST_SUITE_END()
