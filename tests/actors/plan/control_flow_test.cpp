// Branches and loops, stepped by real actors: what they compute, their gradients, and what goes
// wrong.

#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/compile/compile.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using feeds = std::vector<std::pair<std::string_view, tensor>>;
using model = std::function<std::vector<value>(graph&)>;

tensor number(float x) { return tensor::of({x}, shape{}); }
tensor one_integer(std::int32_t n) {
  return tensor::of<std::int32_t>(dtype::i32, shape{}, std::array{n});
}
tensor row(std::vector<float> x) {
  return tensor::of<float>(dtype::f32, shape{static_cast<std::int64_t>(x.size())}, x);
}

const tensor_spec real{dtype::f32, shape{}}, integer{dtype::i32, shape{}};

std::vector<float> floats_of(const tensor& t) {
  if (t.type() == dtype::i32)
    return {t.data<std::int32_t>(), t.data<std::int32_t>() + t.elements()};
  return {t.data<float>(), t.data<float>() + t.elements()};
}
std::vector<std::vector<float>> floats_of(const std::vector<tensor>& all) {
  std::vector<std::vector<float>> out;
  for (const auto& t : all) out.push_back(floats_of(t));
  return out;
}

struct fixture {
  std::unique_ptr<session> s = open(2);

  static std::unique_ptr<session> open(std::uint32_t threads) {
    auto opened = session::open({.threads = threads});
    BOOST_REQUIRE(opened);
    return std::move(*opened);
  }

  // Each of `steps` computed as actors do it, and at once.
  std::vector<std::vector<std::vector<float>>> run(const model& build,
                                                   const std::vector<feeds>& steps) {
    std::vector<std::vector<std::vector<float>>> expected;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      auto e = s->eager();
      e->set_step(i);
      given_ = &steps[i];
      const auto values = build(*e);
      BOOST_TEST_REQUIRE(!e->first_error(), (e->first_error() ? e->first_error()->text() : ""));
      expected.emplace_back();
      for (const auto& v : values) expected.back().push_back(floats_of(*e->read(v)));
    }
    given_ = nullptr;
    for (const bool fuse : {true, false})
      for (const std::uint32_t credits : {1u, 2u, 5u}) {
        graph g(s->ops());
        const auto values = build(g);
        BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
        compile_options o;
        o.fuse = fuse;
        o.credits = credits;
        auto steps_of = s->compile(g, values, o);
        BOOST_TEST_REQUIRE(bool(steps_of), (steps_of ? "" : steps_of.error().text()));
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const auto got = (*steps_of)->step(steps[i], 20s);
          BOOST_TEST_REQUIRE(bool(got), (got ? "" : got.error().text()));
          BOOST_TEST(floats_of(*got) == expected[i],
                     "fuse " << fuse << ", credits " << credits << ", step " << i);
        }
        // Many in flight.
        for (const auto& f : steps)
          for (const auto& [name, t] : f) BOOST_TEST_REQUIRE(bool((*steps_of)->feed(name, t)));
        for (std::size_t i = 0; i < steps.size(); ++i)
          BOOST_TEST(floats_of(*(*steps_of)->fetch(20s)) == expected[i]);
      }
    return expected;
  }

  // An input of the graph; of one that computes, the value that is fed.
  value in(graph& g, const tensor_spec& spec, std::string_view name) {
    if (!g.computes()) return input(g, spec, name);
    for (const auto& [n, t] : *given_)
      if (n == name) return static_cast<eager&>(g).value_of(t, name);
    BOOST_FAIL("not fed");
    return {};
  }

 private:
  const feeds* given_ = nullptr;
};

// Computed at once, nothing flows to what the branch that is taken does not use.
value or_zero(const value& gradient, const value& of) {
  return gradient.is_valid() ? gradient : mul(of, constant(*of.owner, 0));
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(control_flow)

BOOST_FIXTURE_TEST_CASE(of_two_branches_one_is_computed, fixture) {
  const auto all = run(
      [&](graph& g) {
        const auto x = in(g, {dtype::f32, {3}}, "x"), zero = constant(g, 0);
        const auto y = cond(
            less(reduce_sum(x), zero), [&] { return neg(mul(x, constant(g, 2))); },
            [&] { return add(square(x), x); });
        return std::vector{y, add(y, x)};
      },
      {{{"x", row({1, 2, 3})}},
       {{"x", row({-1, -2, -3})}},
       {{"x", row({-4, 0, 1})}},
       {{"x", row({0, 0, 0})}}});
  BOOST_TEST(all[0][0] == (std::vector<float>{2, 6, 12}));
  BOOST_TEST(all[1][0] == (std::vector<float>{2, 4, 6}));
}

BOOST_FIXTURE_TEST_CASE(branches_lie_in_each_other_and_may_return_what_they_are_given, fixture) {
  const auto all = run(
      [&](graph& g) {
        const auto x = in(g, real, "x"), zero = constant(g, 0), one = constant(g, 1);
        return cond(less(x, zero), branch_function([&] { return std::vector{x, zero}; }),
                    branch_function([&] {
                      const auto inner =
                          cond(less(x, one), [&] { return add(x, x); }, [&] { return one; });
                      return std::vector{inner, mul(inner, x)};
                    }));
      },
      {{{"x", number(-5)}}, {{"x", number(0.25F)}}, {{"x", number(7)}}, {{"x", number(-1)}}});
  BOOST_TEST(all[0] == (std::vector<std::vector<float>>{{-5}, {0}}));
  BOOST_TEST(all[1] == (std::vector<std::vector<float>>{{0.5}, {0.125}}));
  BOOST_TEST(all[2] == (std::vector<std::vector<float>>{{1}, {7}}));
}

BOOST_FIXTURE_TEST_CASE(a_loop_runs_as_long_as_its_condition_holds, fixture) {
  const auto all = run(
      [&](graph& g) {
        const auto x = in(g, real, "x"), limit = in(g, real, "limit"), one = constant(g, 1);
        const auto out = while_loop(
            {x, constant(g, 0)}, [&](auto v) { return less(v[0], limit); },
            [&](auto v) { return std::vector{mul(v[0], constant(g, 2)), add(v[1], one)}; });
        return std::vector{out[0], out[1], add(out[0], x)};
      },
      {{{"x", number(1)}, {"limit", number(1000)}},
       {{"x", number(3)}, {"limit", number(2)}},
       {{"x", number(5)}, {"limit", number(6)}},
       {{"x", number(1)}, {"limit", number(1e6F)}}});
  BOOST_TEST(all[0] == (std::vector<std::vector<float>>{{1024}, {10}, {1025}}));
  BOOST_TEST(all[1] == (std::vector<std::vector<float>>{{3}, {0}, {6}}));
}

// How often Collatz's rule leads to 1, for each number up to n: a branch in a loop in a loop.
BOOST_FIXTURE_TEST_CASE(loops_and_branches_lie_in_each_other, fixture) {
  const auto collatz = [&](graph& g) {
    const auto n = in(g, integer, "n");
    const auto i32 = [&](double x) { return constant(g, x, dtype::i32); };
    const auto one = i32(1), two = i32(2);
    const auto out = while_loop(
        {one, i32(0)}, [&](auto v) { return less_equal(v[0], n); },
        [&](auto v) {
          const auto inner = while_loop(
              {v[0], i32(0)}, [&](auto w) { return not_equal(w[0], one); },
              [&](auto w) {
                const auto half = div(w[0], two);
                const auto next = cond(
                    equal(mul(half, two), w[0]), [&] { return half; },
                    [&] { return add(mul(w[0], i32(3)), one); });
                return std::vector{next, add(w[1], one)};
              });
          return std::vector{add(v[0], one), maximum(v[1], inner[1])};
        });
    return std::vector{out[1]};
  };
  const auto all = run(collatz, {{{"n", one_integer(9)}},
                                 {{"n", one_integer(0)}},
                                 {{"n", one_integer(27)}},
                                 {{"n", one_integer(1)}}});
  BOOST_TEST(all[0][0][0] == 19);
  BOOST_TEST(all[1][0][0] == 0);
  BOOST_TEST(all[2][0][0] == 111);
}

BOOST_FIXTURE_TEST_CASE(branches_and_bodies_may_stand_on_other_streams, fixture) {
  run(
      [&](graph& g) {
        const auto x = in(g, {dtype::f32, {4}}, "x"), zero = constant(g, 0), ten = constant(g, 10);
        const auto out = while_loop(
            {x, zero}, [&](auto v) { return less(v[1], ten); },
            [&](auto v) {
              const auto there = g.device_scope("/cpu:1");
              const auto y = cond(
                  less(reduce_sum(v[0]), ten), [&] { return add(v[0], v[0]); },
                  [&] {
                    const auto here = g.device_scope("/cpu:0");
                    return sub(v[0], ten);
                  });
              return std::vector{y, add(v[1], constant(g, 1))};
            });
        return out;
      },
      {{{"x", row({1, 2, 3, 4})}}, {{"x", row({0, 0, 0, 1})}}, {{"x", row({100, 2, 3, 4})}}});
}

BOOST_FIXTURE_TEST_CASE(gradients_go_through_the_branch_that_was_taken, fixture) {
  const auto all = run(
      [&](graph& g) {
        const auto x = in(g, {dtype::f32, {3}}, "x"), w = in(g, {dtype::f32, {3}}, "w"),
                   zero = constant(g, 0);
        const auto y =
            cond(less(reduce_sum(x), zero), [&] { return mul(x, w); }, [&] { return square(x); });
        const auto d = gradients(g, reduce_sum(mul(y, y)), std::array{x, w});
        return std::vector{y, d[0], or_zero(d[1], w)};
      },
      {{{"x", row({1, 2, 3})}, {"w", row({5, 6, 7})}},
       {{"x", row({-1, -2, -3})}, {"w", row({5, 6, 7})}}});
  BOOST_TEST(all[0][1] == (std::vector<float>{4, 32, 108}));
  BOOST_TEST(all[0][2] == (std::vector<float>{0, 0, 0}));
  BOOST_TEST(all[1][1] == (std::vector<float>{-50, -144, -294}));
}

// x -> x^2 w, n times, beside the same written out.
BOOST_FIXTURE_TEST_CASE(gradients_go_back_through_the_iterations, fixture) {
  const auto build = [&](graph& g) {
    const auto x = in(g, {dtype::f32, {2}}, "x"), w = in(g, {dtype::f32, {2}}, "w"),
               n = in(g, real, "n"), zero = constant(g, 0), one = constant(g, 1);
    const auto out = while_loop(
        {x, zero}, [&](auto v) { return less(v[1], n); },
        [&](auto v) { return std::vector{mul(square(v[0]), w), add(v[1], one)}; },
        {.iterations_max = 5});
    const auto d = gradients(g, reduce_sum(mul(out[0], x)), std::array{x, w});
    return std::vector{out[0], d[0], or_zero(d[1], w)};
  };
  std::vector<feeds> steps;
  for (int n = 0; n <= 5; ++n)
    steps.push_back(
        {{"x", row({0.9F, -1.1F})}, {"w", row({1.05F, 0.8F})}, {"n", number(float(n))}});
  const auto all = run(build, steps);
  for (int n = 0; n <= 5; ++n) {
    auto e = s->eager();
    const auto x = e->value_of(row({0.9F, -1.1F})), w = e->value_of(row({1.05F, 0.8F}));
    auto y = x;
    for (int i = 0; i < n; ++i) y = mul(square(y), w);
    const auto d = gradients(*e, reduce_sum(mul(y, x)), std::array{x, w});
    BOOST_TEST(all[std::size_t(n)][0] == floats_of(*e->read(y)));
    BOOST_TEST(all[std::size_t(n)][1] == floats_of(*e->read(d[0])),
               boost::test_tools::tolerance(1e-5F) << boost::test_tools::per_element());
    if (n > 0)
      BOOST_TEST(all[std::size_t(n)][2] == floats_of(*e->read(d[1])),
                 boost::test_tools::tolerance(1e-5F) << boost::test_tools::per_element());
  }
}

// A loop with a branch in a loop in a branch: the gradients are those of the program written out,
// which is what an eager computes.
BOOST_FIXTURE_TEST_CASE(gradients_go_through_loops_and_branches_in_each_other, fixture) {
  const auto build = [&](graph& g) {
    const auto x = in(g, {dtype::f32, {2}}, "x"), w = in(g, {dtype::f32, {2}}, "w"),
               n = in(g, real, "n");
    const auto c = [&](float f) { return constant(g, f); };
    const auto y = cond(
        less(n, c(0)), [&] { return mul(x, w); },
        [&] {
          const auto outer = while_loop(
              {x, c(0)}, [&](auto v) { return less(v[1], n); },
              [&](auto v) {
                const auto inner = while_loop(
                    {v[0], c(0)}, [&](auto u) { return less(u[1], v[1]); },
                    [&](auto u) {
                      const auto next = cond(
                          less(reduce_sum(u[0]), c(1)), [&] { return sin(mul(u[0], w)); },
                          [&] { return mul(u[0], c(0.5F)); });
                      return std::vector{add(next, v[0]), add(u[1], c(1))};
                    },
                    {.iterations_max = 10, .name = "inner"});
                return std::vector{tanh(inner[0]), add(v[1], c(1))};
              },
              {.iterations_max = 10, .name = "outer"});
          return mul(outer[0], x);
        });
    const auto d = gradients(g, reduce_sum(square(y)), std::array{x, w});
    return std::vector{y, d[0], or_zero(d[1], w)};
  };
  std::vector<feeds> steps;
  for (const float n : {3.0F, 0.0F, -1.0F, 1.0F, 4.0F, 2.0F})
    steps.push_back({{"x", row({0.3F, 0.9F})}, {"w", row({1.5F, -0.7F})}, {"n", number(n)}});
  run(build, steps);
}

BOOST_FIXTURE_TEST_CASE(numbers_drawn_in_a_loop_differ_by_iteration_and_are_those_of_the_step,
                        fixture) {
  graph g(s->ops());
  const auto n = input(g, real, "n");
  const auto out = while_loop(
      {constant(g, 0), constant(g, tensor::of({0, 0, 0, 0}, {4}))},
      [&](auto v) { return less(v[0], n); },
      [&](auto v) {
        const auto drawn = random_uniform(g, {dtype::f32, {1}});
        const auto at = cast(one_hot(cast(v[0], dtype::i32), 4), dtype::f32);
        return std::vector{add(v[0], constant(g, 1)), add(v[1], mul(at, drawn))};
      });
  auto steps = s->compile(g, out);
  BOOST_TEST_REQUIRE(bool(steps), (steps ? "" : steps.error().text()));
  const auto first =
      (*steps)->step(std::array<std::pair<std::string_view, tensor>, 1>{{{"n", number(4)}}});
  const auto second =
      (*steps)->step(std::array<std::pair<std::string_view, tensor>, 1>{{{"n", number(4)}}});
  BOOST_TEST_REQUIRE(bool(first));
  auto all = floats_of((*first)[1]), more = floats_of((*second)[1]);
  all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end());
  BOOST_TEST((std::adjacent_find(all.begin(), all.end()) == all.end()));
}

BOOST_FIXTURE_TEST_CASE(after_hands_a_value_on_when_others_are_there_and_its_gradient_is_the_values,
                        fixture) {
  run(
      [&](graph& g) {
        const auto x = in(g, {dtype::f32, {2}}, "x"), y = in(g, {dtype::f32, {2}}, "y");
        const auto z = mul(after(x, {exp(y), neg(y)}), y);
        const auto d = gradients(g, reduce_sum(z), std::array{x, y});
        return std::vector{z, d[0], d[1]};
      },
      {{{"x", row({1, 2})}, {"y", row({3, 4})}}, {{"x", row({5, 6})}, {"y", row({7, 8})}}});
  graph g(s->ops());
  const auto x = input(g, real, "x"), y = input(g, real, "y");
  const auto p = compile_steps(g, std::array{after(x, {exp(y)})}, {});
  BOOST_TEST_REQUIRE(bool(p));
  BOOST_TEST(p->actors.size() == 5U);  // two feeds, exp, after, the fetch
}

// --- what goes wrong

BOOST_FIXTURE_TEST_CASE(a_loop_that_never_ends_is_cancelled_at_the_deadline_and_the_next_step_works,
                        fixture) {
  graph g(s->ops());
  const auto x = input(g, real, "x"), limit = input(g, real, "limit");
  const auto out = while_loop(
      {x}, [&](auto v) { return less(v[0], limit); },
      [&](auto v) { return std::vector{mul(v[0], constant(g, 2))}; });
  auto steps = s->compile(g, out);
  BOOST_TEST_REQUIRE(bool(steps));
  const auto step = [&](float from, float to, std::chrono::milliseconds deadline) {
    return (*steps)->step(
        std::array<std::pair<std::string_view, tensor>, 2>{
            {{"x", number(from)}, {"limit", number(to)}}},
        deadline);
  };
  const auto late = step(0, 1, 50ms);
  BOOST_TEST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == error_code::timed_out));
  const auto next = step(1, 100, 20s);
  BOOST_TEST_REQUIRE(bool(next), (next ? "" : next.error().text()));
  BOOST_TEST(floats_of((*next)[0])[0] == 128);
}

BOOST_FIXTURE_TEST_CASE(a_loop_with_too_many_iterations_fails_with_its_line, fixture) {
  graph g(s->ops());
  const auto x = input(g, real, "x");
  const auto out = while_loop(
      {x}, [&](auto v) { return less(v[0], constant(g, 100)); },
      [&](auto v) { return std::vector{mul(v[0], constant(g, 2))}; },
      {.iterations_max = 3, .name = "doubling"});
  auto steps = s->compile(g, out);
  BOOST_TEST_REQUIRE(bool(steps));
  const auto step = [&](float from) {
    return (*steps)->step(std::array<std::pair<std::string_view, tensor>, 1>{{{"x", number(from)}}},
                          20s);
  };
  BOOST_TEST(bool(step(20)));
  const auto failed = step(1);
  BOOST_TEST_REQUIRE(!failed);
  BOOST_TEST(contains(failed.error().text(), "doubling"));
  BOOST_TEST(contains(failed.error().text(), "3 iterations"));
  BOOST_TEST(contains(failed.error().text(), "control_flow_test.cpp"));
}

BOOST_FIXTURE_TEST_CASE(mistakes_are_told_with_the_line_that_made_them, fixture) {
  const auto error_of = [&](const model& build) {
    graph g(s->ops());
    build(g);
    return g.first_error() ? g.first_error()->text() : std::string("none");
  };
  const auto x = [](graph& g) { return input(g, {dtype::f32, {2}}, "x"); };
  const auto goes_on = [](graph& g) {
    return less(reduce_sum(input(g, {dtype::f32, {2}}, "y")), constant(g, 1));
  };
  std::map<std::string, model> wrong;
  wrong["the condition is f32[2], and must be bool[]"] = [&](graph& g) {
    return std::vector{cond(x(g), [&] { return x(g); }, [&] { return x(g); })};
  };
  wrong["value 0 is f32[2] of one branch, and f32[] of the other one"] = [&](graph& g) {
    return std::vector{cond(goes_on(g), [&] { return x(g); }, [&] { return constant(g, 1); })};
  };
  wrong["one branch returns 1 values, the other one 0"] = [&](graph& g) {
    return cond(goes_on(g), branch_function([&] { return std::vector{x(g)}; }),
                branch_function([&] { return std::vector<value>(); }));
  };
  wrong["is made in a branch of cond() and used outside of it"] = [&](graph& g) {
    value leaked;
    const auto a = x(g);
    (void)cond(goes_on(g), [&] { return leaked = neg(a); }, [&] { return a; });
    return std::vector{neg(leaked)};
  };
  wrong["is made in a loop's body and used outside of it"] = [&](graph& g) {
    value leaked;
    (void)while_loop(
        {x(g)}, [&](auto) { return goes_on(g); },
        [&](auto v) { return std::vector{leaked = neg(v[0])}; });
    return std::vector{neg(leaked)};
  };
  wrong["variable 0 is f32[2], but f32[] after an iteration"] = [&](graph& g) {
    return while_loop(
        {x(g)}, [&](auto) { return goes_on(g); },
        [&](auto v) { return std::vector{reduce_sum(v[0])}; });
  };
  wrong["has 1 variables, and its body returns 2 values"] = [&](graph& g) {
    return while_loop(
        {x(g)}, [&](auto) { return goes_on(g); }, [&](auto v) { return std::vector{v[0], v[0]}; });
  };
  wrong["its condition is f32[2], and must be bool[]"] = [&](graph& g) {
    return while_loop(
        {x(g)}, [&](auto v) { return v[0]; }, [&](auto v) { return std::vector{v[0]}; });
  };
  wrong["made in a loop's condition and used in its body"] = [&](graph& g) {
    value leaked;
    return while_loop(
        {x(g)}, [&](auto v) { return less(leaked = reduce_sum(v[0]), constant(g, 1)); },
        [&](auto v) { return std::vector{add(v[0], leaked)}; });
  };
  wrong["set iterations_max to the most iterations that it may make"] = [&](graph& g) {
    const auto a = x(g);
    const auto out = while_loop(
        {a}, [&](auto v) { return less(reduce_sum(v[0]), constant(g, 1)); },
        [&](auto v) { return std::vector{square(v[0])}; });
    return gradients(g, reduce_sum(out[0]), std::array{a});
  };
  wrong["at most 4 loops may be nested"] = [&](graph& g) {
    const std::function<value(value, int)> nest = [&](value v, int depth) -> value {
      return while_loop(
          {v}, [&](auto u) { return less(reduce_sum(u[0]), constant(g, 1)); },
          [&](auto u) { return std::vector{depth == 0 ? neg(u[0]) : nest(u[0], depth - 1)}; })[0];
    };
    return std::vector{nest(x(g), 4)};
  };
  for (const auto& [text, build] : wrong) {
    const auto got = error_of(build);
    BOOST_TEST(contains(got, text), got << " | " << text);
    BOOST_TEST(contains(got, "control_flow_test.cpp"), got);
  }
}

BOOST_FIXTURE_TEST_CASE(what_lies_in_a_branch_or_loop_cannot_be_fetched, fixture) {
  graph g(s->ops());
  const auto x = input(g, real, "x");
  value in_branch, in_body, in_condition;
  const auto one = constant(g, 1.0F), hundred = constant(g, 100.0F);
  const auto y = cond(less(x, one), [&] { return in_branch = x * 2; }, [&] { return x; });
  const auto z = while_loop(
      {x}, [&](auto v) { return in_condition = less(v[0], hundred); },
      [&](auto v) { return std::vector{in_body = v[0] * 10}; })[0];
  BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  for (const auto& [v, place] : {std::pair{in_branch, "branch of cond()"},
                                 {in_body, "loop's body"},
                                 {in_condition, "loop's condition"}}) {
    const auto refused = s->compile(g, {&v, 1});
    BOOST_TEST_REQUIRE(!refused, place);
    const auto text = refused.error().text();
    BOOST_TEST((refused.error().code() == error_code::usage));
    BOOST_TEST(text.find(std::string("is made in a ") + place + " and fetched outside of it") !=
                   std::string::npos,
               text);
    BOOST_TEST(text.find("control_flow_test.cpp:") != std::string::npos, text);
  }
  BOOST_TEST(bool(s->compile(g, std::array{y, z})));
}

BOOST_AUTO_TEST_SUITE_END()
