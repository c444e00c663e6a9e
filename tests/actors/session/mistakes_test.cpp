// Typical mistakes, and what Troupe says: the code of each runs here, and docs of it are made here
// (TROUPE_WRITE_DOCS=1).

#include "tests/support/mistake_page.hpp"
#include "tests/support/source_folder.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::string page = test::source_folder() + "/runtime/ERRORS.md";

struct place {
  session& s;
  graph g;
  explicit place(session& opened) : s(opened), g(opened.ops()) {}

  // The error of the graph, or of what is done with it.
  std::string built() const { return g.first_error() ? g.first_error()->text() : "no error"; }
  template <class T>
  static std::string of(const result<T>& r) {
    return r ? "no error" : r.error().text();
  }
};

struct mistake {
  const char *title, *code;
  std::function<std::string(place&)> make;
};

tensor row(std::vector<float> x) {
  return tensor::of<float>(dtype::f32, {static_cast<std::int64_t>(x.size())}, x);
}
tensor whole_row(std::vector<std::int32_t> x) {
  return tensor::of<std::int32_t>(dtype::i32, {static_cast<std::int64_t>(x.size())}, x);
}
using fed = std::vector<std::pair<std::string_view, tensor>>;

// In `code`: graph g, session s, p for what is at hand. It returns a text.
#define MISTAKE(title, ...)                            \
  mistake {                                            \
    title, #__VA_ARGS__, [](place& p) -> std::string { \
      auto& g = p.g;                                   \
      auto& s = p.s;                                   \
      (void)g, (void)s;                                \
      __VA_ARGS__                                      \
    }                                                  \
  }

const std::vector<mistake>& mistakes() {
  // Each on one line: the page shows its text, blanks included.
  // clang-format off
  static const std::vector<mistake> all{
      MISTAKE("Shapes that do not fit", matmul(input(g, {dtype::f32, {32, 784}}, "x"), input(g, {dtype::f32, {10, 784}}, "w")); return p.built();),
      MISTAKE("Shapes that cannot be broadcast", input(g, {dtype::f32, {2, 3}}, "x") + input(g, {dtype::f32, {2}}, "b"); return p.built();),
      MISTAKE("Element types that differ", input(g, {dtype::f32, {3}}, "x") + input(g, {dtype::i32, {3}}, "n"); return p.built();),
      MISTAKE("An axis that is not there", reduce_sum(input(g, {dtype::f32, {2, 3}}, "x"), {2}); return p.built();),
      MISTAKE("A value of another graph", graph other(s.ops()); relu(input(g, {dtype::f32, {3}}, "x")) + input(other, {dtype::f32, {3}}, "y"); return p.built();),
      MISTAKE("A name with a blank", input(g, {dtype::f32, {3}}, "my input"); return p.built();),
      MISTAKE("A device that is written wrongly", auto here = g.device_scope("gpu0"); return p.built();),
      MISTAKE("A loss that is no scalar", auto w = variable(g, {dtype::f32, {3}}, {}, "w"); return p.of(s.train(g, square(w), {}));),
      MISTAKE("A loss without variables", return p.of(s.train(g, reduce_sum(input(g, {dtype::f32, {3}}, "x")), {}));),
      MISTAKE("An op without a gradient on the way", auto w = variable(g, {dtype::f32, {3}}, {}, "w"); return p.of(s.train(g, reduce_sum(one_hot(cast(w, dtype::i32), 4)), {}));),
      MISTAKE("An input that nobody feeds in a training", auto y = dense(input(g, {dtype::f32, {8, 4}}, "x"), 2, "out"); return p.of(s.train(g, reduce_sum(y), {}));),
      MISTAKE("Nothing is fetched", return p.of(s.compile(g, {}));),
      MISTAKE("An input that the graph does not have", auto steps = *s.compile(g, std::array{relu(input(g, {dtype::f32, {3}}, "x"))}); return p.of(steps->feed("images", row({1, 2, 3})));),
      MISTAKE("A shape that is not the input's", auto steps = *s.compile(g, std::array{relu(input(g, {dtype::f32, {3}}, "x"))}); return p.of(steps->feed("x", row({1, 2})));),
      MISTAKE("An element type that is not the input's", auto steps = *s.compile(g, std::array{relu(input(g, {dtype::f32, {3}}, "x"))}); return p.of(steps->feed("x", whole_row({1, 2, 3})));),
      MISTAKE("A step without one of its inputs", auto steps = *s.compile(g, std::array{input(g, {dtype::f32, {1}}, "x") + input(g, {dtype::f32, {1}}, "y")}); return p.of(steps->step(fed{{"x", row({1})}}));),
      MISTAKE("An input fed twice", auto steps = *s.compile(g, std::array{relu(input(g, {dtype::f32, {1}}, "x"))}); return p.of(steps->step(fed{{"x", row({1})}, {"x", row({2})}}));),
      MISTAKE("A fetch before its step is fed", auto steps = *s.compile(g, std::array{relu(input(g, {dtype::f32, {1}}, "x"))}); return p.of(steps->fetch());),
      MISTAKE("An index that is outside", auto steps = *s.compile(g, std::array{gather(input(g, {dtype::f32, {3}}, "table"), input(g, {dtype::i32, {2}}, "rows"))}); return p.of(steps->step(fed{{"table", row({1, 2, 3})}, {"rows", whole_row({0, 7})}}));),
      MISTAKE("Branches that return different shapes", auto x = input(g, {dtype::f32, {3}}, "x"); cond(less(reduce_sum(x), constant(g, 0)), [&] { return x; }, [&] { return reduce_sum(x); }); return p.built();),
      MISTAKE("A value of a branch, used outside", auto x = input(g, {dtype::f32, {}}, "x"); value y; cond(less(x, constant(g, 0)), [&] { return y = neg(x); }, [&] { return x; }); relu(y); return p.built();),
      MISTAKE("A variable of a loop that changes its shape", while_loop({input(g, {dtype::f32, {3}}, "x")}, [&](auto v) { return less(reduce_sum(v[0]), constant(g, 9)); }, [&](auto v) { return std::vector{reduce_sum(v[0])}; }); return p.built();),
      MISTAKE("Gradients of a loop without a limit", auto x = input(g, {dtype::f32, {}}, "x"); auto y = while_loop({x}, [&](auto v) { return less(v[0], constant(g, 9)); }, [&](auto v) { return std::vector{square(v[0])}; }); gradients(g, y[0], std::array{x}); return p.built();),
      MISTAKE("A loop with more iterations than it may have", auto x = input(g, {dtype::f32, {1}}, "x"); auto steps = *s.compile(g, while_loop({x}, [&](auto v) { return less(reduce_sum(v[0]), constant(g, 9)); }, [&](auto v) { return std::vector{neg(v[0])}; }, {.iterations_max = 100})); return p.of(steps->step(fed{{"x", row({1})}}));),
      MISTAKE("A loop that never ends", auto x = input(g, {dtype::f32, {1}}, "x"); auto steps = *s.compile(g, while_loop({x}, [&](auto v) { return less(reduce_sum(v[0]), constant(g, 9)); }, [&](auto v) { return std::vector{neg(v[0])}; })); return p.of(steps->step(fed{{"x", row({1})}}, 50ms));),
      MISTAKE("Credits that no edge can have", return p.of(s.compile(g, std::array{relu(input(g, {dtype::f32, {1}}, "x"))}, {.credits = 0}));),
      MISTAKE("A learning rate that is none", auto w = variable(g, {dtype::f32, {3}}, {}, "w"); return p.of(s.train(g, reduce_sum(square(w)), {.optimizer = sgd({.learning_rate = -0.1})}));),
      MISTAKE("Data that are not where they are said to be", return p.of(open_idx("no/such/folder", false));),
      MISTAKE("A file that is no graph", return p.of(decode_graph(std::vector<std::byte>(100), s.ops()));),
      MISTAKE("A cluster that is not there", return p.of(session::open({.cluster = "nobody", .timeout = 50ms}));),
  };
  // clang-format on
  return all;
}

#undef MISTAKE

std::string written(session& s) {
  std::string text =
      "# What Troupe says of typical mistakes\n\n"
      "Made by `tests/actors/session/mistakes_test.cpp`, which runs each line and compares what it says\n"
      "with this page (with `TROUPE_WRITE_DOCS=1` it makes the page anew). `g` is a graph, `s` a session;\n"
      "each line stands in `model.cpp`. After any of them the process lives on and the session works.\n";
  for (const auto& m : mistakes()) {
    place p(s);
    text += fmt::format("\n**{}**\n\n```cpp\n{}\n```\n```text\n{}\n```\n", m.title,
                        test::shown_on_page(m.code), test::told_on_page(m.make(p), __FILE__));
  }
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mistakes)

BOOST_AUTO_TEST_CASE(the_page_of_mistakes_is_what_troupe_says) {
  const test::runtime_folder folder;  // who looks for a cluster leaves a token there
  auto s = session::open({});
  BOOST_TEST_REQUIRE(bool(s));
  const auto now = written(**s);
  BOOST_TEST(now.find("no error") == std::string::npos);
  if (std::getenv("TROUPE_WRITE_DOCS") != nullptr) std::ofstream(page) << now;
  std::stringstream there;
  there << std::ifstream(page).rdbuf();
  BOOST_TEST((there.str() == now),
             page << " is not what Troupe says: run this test with TROUPE_WRITE_DOCS=1; now:\n"
                  << now);
  // The engine is as good as before.
  graph g((*s)->ops());
  auto steps = (*s)->compile(g, std::array{relu(input(g, {dtype::f32, {1}}, "x"))});
  BOOST_TEST_REQUIRE(bool(steps));
  BOOST_TEST(bool((*steps)->step(fed{{"x", row({1})}})));
}

BOOST_AUTO_TEST_SUITE_END()
