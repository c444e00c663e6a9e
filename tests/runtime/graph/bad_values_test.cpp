// What a program may get wrong with values, sizes and ops of its own: an error with its line, and a
// graph that goes on.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/clipping.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <tuple>

using namespace troupe;

namespace {

constexpr auto huge = std::int64_t{1} << 61;

struct odd_kernel final : kernel {
  explicit odd_kernel(int what) : what_(what) {}
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    if (what_ == 0) throw std::bad_alloc();
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    if (what_ == 1) throw std::runtime_error("the kernel is tired");
    if (what_ == 2) out[0] = tensor();
    if (what_ == 3) out[0] = tensor::make({dtype::f32, {7}});
    return {};
  }
  int what_;
};

struct fixture {
  fixture() {
    const auto like = [](const attributes&, std::span<const tensor_spec> in,
                         const tag*) -> result<std::vector<tensor_spec>> {
      return std::vector{in[0]};
    };
    for (int i = 0; i < 5; ++i) {
      ops.add("odd_" + std::to_string(i), {.inputs = 1, .shapes = like, .types = {dtype::f32}});
      kernels.add("odd_" + std::to_string(i),
                  {[i](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                    return i == 4 ? std::unique_ptr<kernel>() : std::make_unique<odd_kernel>(i);
                  }});
    }
    ops.add("no_shapes", {.inputs = 1,
                          .shapes = [](const attributes&, std::span<const tensor_spec>,
                                       const tag*) -> result<std::vector<tensor_spec>> {
                            return std::vector<tensor_spec>();
                          }});
    ops.add("throws", {.inputs = 1,
                       .shapes = [](const attributes&, std::span<const tensor_spec>,
                                    const tag*) -> result<std::vector<tensor_spec>> {
                         throw std::runtime_error("no rule today");
                       }});
    const auto with_gradient = [&](const char* name, gradient_rule rule) {
      ops.add(name, {.inputs = 1, .shapes = like, .gradient = std::move(rule)});
      kernels.add(name, {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                    return std::unique_ptr<kernel>(std::make_unique<odd_kernel>(9));
                  }});
    };
    with_gradient("too_many", [](graph&, const graph_node&, std::span<const value> dy) {
      return std::vector{dy[0], dy[0]};
    });
    with_gradient("wrong_shape", [](graph&, const graph_node&, std::span<const value> dy) {
      return std::vector{reduce_sum(dy[0])};
    });
    with_gradient("shut",
                  [](graph&, const graph_node&, std::span<const value>) -> std::vector<value> {
                    throw std::runtime_error("the gate is shut");
                  });
    with_gradient(
        "seven",
        [](graph&, const graph_node&, std::span<const value>) -> std::vector<value> { throw 7; });
  }
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
  eager e{ops, kernels, device};
  graph g{ops};
  value five = e.value_of(tensor::of({5}, {1}));

  value add(const char* type, attributes attrs = {}) {
    return e.add(type, std::array{five}, std::move(attrs), type, source_location::current());
  }
  std::vector<float> numbers(value v) {
    const auto t = e.read(v);
    BOOST_TEST_REQUIRE(static_cast<bool>(t), (t ? "" : t.error().text()));
    return {t->data<float>(), t->data<float>() + t->elements()};
  }
  // The error, which is taken; what was there before and what comes after it is as it should be.
  std::string complaint() {
    const auto text = e.first_error() ? e.take_error()->text() : std::string("no error");
    const auto x = e.value_of(tensor::of({1, 2}, {2}));
    BOOST_TEST(numbers(x + x) == (std::vector<float>{2, 4}), boost::test_tools::per_element());
    BOOST_TEST(numbers(five) == std::vector<float>{5}, boost::test_tools::per_element());
    return text;
  }
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bad_values)

BOOST_AUTO_TEST_CASE(sizes_that_nobody_has_memory_for_are_errors) {
  const std::function<value(fixture&)> cases[] = {
      [](fixture& f) { return random_uniform(f.e, {dtype::f64, shape{huge}}); },
      [](fixture& f) { return random_uniform(f.e, {dtype::f32, shape{2 * huge}}); },
      [](fixture& f) { return tile(f.five, {2 * huge}); },
      [](fixture& f) { return pad(f.five, {2 * huge - 1}, {0}); },
      [](fixture& f) { return one_hot(cast(f.five, dtype::i32), huge, dtype::f64); },
      [](fixture& f) { return variable(f.e, {dtype::f32, shape{2 * huge}}, zeros(), "v"); },
      [](fixture& f) {
        return variable(f.e, {dtype::f32, shape{std::int64_t{1} << 39}}, zeros(), "v");
      },
      [](fixture& f) { return dense(reshape(f.five, {1, 1}), 2 * huge, "d"); },
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    fixture f;
    BOOST_TEST(!cases[i](f).is_valid(), "case " << i);
    const auto text = f.complaint();
    BOOST_TEST(has(text, "there is no memory for "), text);
    BOOST_TEST(has(text, "bad_values_test.cpp:"), text);
  }
  BOOST_CHECK_THROW(tensor::make({dtype::f64, shape{huge}}), std::bad_alloc);
  BOOST_CHECK_THROW((shape{std::numeric_limits<std::int64_t>::max(), 2}), broken_invariant);
}

BOOST_AUTO_TEST_CASE(rules_and_kernels_that_throw_or_make_something_else_are_errors) {
  const std::pair<const char*, const char*> cases[] = {
      {"odd_0", "no memory"},
      {"odd_1", "the kernel is tired"},
      {"odd_2", "made nothing as output 0"},
      {"odd_3", "made f32[7] as output 0, which must be f32[1]"},
      {"odd_4", "returned no kernel for this op"},
      {"no_shapes", "shape rule returned no outputs"},
      {"throws", "no rule today"}};
  for (const auto& [type, says] : cases) {
    fixture f;
    BOOST_TEST(!f.add(type).is_valid());
    const auto text = f.complaint();
    BOOST_TEST(has(text, says), text);
  }
}

BOOST_AUTO_TEST_CASE(gradient_rules_that_do_not_fit_are_errors_with_the_op) {
  for (const auto& [type, says] :
       {std::pair("too_many", "makes 2 gradients for 1 operands"),
        std::pair("wrong_shape", "makes f32[] for operand 0, which is f32[2]"),
        std::pair("shut", "shut 'shut': its gradient rule failed: the gate is shut"),
        std::pair("seven", "its gradient rule failed: an exception of unknown type")}) {
    fixture f;
    const auto x = input(f.g, {dtype::f32, {2}}, "x");
    BOOST_TEST(to_string(input(f.g, {dtype::f32, batch_of(4, {2})}, "batch").spec()) ==
               "f32[4?, 2]");
    const auto y = f.g.add(type, std::array{x}, {}, type, source_location::current());
    (void)gradients(f.g, reduce_sum(y), std::array{x});
    BOOST_TEST_REQUIRE(f.g.first_error().has_value());
    BOOST_TEST(has(f.g.first_error()->text(), says), f.g.first_error()->text());
    BOOST_TEST(has(f.g.first_error()->text(), "bad_values_test.cpp:"));
  }
}

// What a program takes by number is there, whatever was wrong before.
BOOST_AUTO_TEST_CASE(
    after_a_mistake_calls_return_as_many_invalid_values_as_they_would_return_values) {
  using many = std::vector<value>;
  struct operands {
    graph& g;
    value good, bad, yes;
  };
  const auto small = [](operands& o) {
    return [&o](std::span<const value> v) { return less(reduce_sum(v[0]), constant(o.g, 9.0F)); };
  };
  const std::tuple<const char*, std::size_t, std::function<many(operands&)>> cases[] = {
      {"a condition that is none", 2,
       [](operands& o) {
         return cond(
             o.bad, [&] { return many{o.good, o.good}; }, [&] { return many{o.good, o.good}; });
       }},
      {"a condition of another type", 2,
       [](operands& o) {
         return cond(
             o.good, [&] { return many{o.good, o.good}; }, [&] { return many{o.good, o.good}; });
       }},
      {"a branch with a mistake", 3,
       [](operands& o) {
         return cond(
             o.yes, [&] { return many{o.good, o.bad, o.good}; },
             [&] { return many{o.good, o.good, o.good}; });
       }},
      {"another branch with a mistake", 1,
       [](operands& o) {
         return cond(o.yes, [&] { return many{o.good}; }, [&] { return many{o.bad}; });
       }},
      {"branches of different numbers", 2,
       [](operands& o) {
         return cond(o.yes, [&] { return many{o.good, o.good}; }, [&] { return many{o.good}; });
       }},
      {"branches of different shapes", 1,
       [](operands& o) {
         return cond(o.yes, [&] { return many{o.good}; }, [&] { return many{reduce_sum(o.good)}; });
       }},
      {"branches in a branch", 2,
       [](operands& o) {
         const auto inner = [&] {
           return cond(
               o.bad, [&] { return many{o.good, o.good}; }, [&] { return many{o.good, o.good}; });
         };
         return cond(o.yes, inner, inner);
       }},
      {"a loop over nothing but a mistake", 1,
       [&](operands& o) {
         return while_loop({o.bad}, small(o), [](auto v) { return many{square(v[0])}; });
       }},
      {"a loop over two mistakes", 2,
       [&](operands& o) {
         return while_loop({o.bad, o.bad}, small(o), [](auto v) { return many{v[0], v[1]}; });
       }},
      {"a loop whose body makes another number", 1,
       [&](operands& o) {
         return while_loop({o.good}, small(o), [](auto v) { return many{v[0], v[0]}; });
       }},
      {"a loop without variables", 1,
       [](operands& o) {
         return while_loop(
             std::span<const value>(), [&](auto) { return o.yes; }, [](auto) { return many(); });
       }},
      {"a loop without variables, which are used", 1,
       [&](operands& o) {
         return while_loop(std::span<const value>(), small(o), [](auto) { return many(); });
       }},
      {"parts of a mistake", 2, [](operands& o) { return split(o.bad, {1, 1}); }},
      {"parts that do not fit", 3, [](operands& o) { return split(o.good, {1, 1, 1}); }},
      {"gradients of a mistake", 2,
       [](operands& o) { return gradients(o.g, o.bad, std::array{o.good, o.good}); }},
      {"gradients of what is no loss", 1,
       [](operands& o) { return gradients(o.g, o.good, std::array{o.good}); }},
      {"clipping of a mistake", 2,
       [](operands& o) { return clip_by_global_norm(std::array{o.bad, o.bad}, 1.0); }},
  };
  for (const auto& [what, count, make] : cases)
    for (const bool has_mistake : {false, true}) {
      fixture f;
      operands o{f.g, input(f.g, {dtype::f32, {2}}, "x"), {}, {}};
      o.yes = less(reduce_sum(o.good), constant(f.g, 1.0F));
      if (has_mistake) o.bad = matmul(o.good, o.good);
      BOOST_TEST_CONTEXT(what << (has_mistake ? ", in a graph with a mistake" : "")) {
        BOOST_TEST(f.g.first_error().has_value() == has_mistake);
        const auto made = make(o);
        BOOST_TEST(made.size() == count);
        for (const auto& v : made) BOOST_TEST(!v.is_valid());
      }
    }
}

BOOST_AUTO_TEST_CASE(a_loop_without_variables_is_told) {
  fixture f;
  const auto yes = less(input(f.g, {dtype::f32, {}}, "x"), constant(f.g, 1.0F));
  (void)while_loop(
      std::span<const value>(), [&](auto) { return yes; },
      [](auto) { return std::vector<value>(); }, {.name = "empty"});
  BOOST_TEST_REQUIRE(f.g.first_error().has_value());
  BOOST_TEST(has(f.g.first_error()->text(), "loop 'empty' has no variables"),
             f.g.first_error()->text());
  BOOST_TEST(has(f.g.first_error()->text(), "bad_values_test.cpp:"));
}

BOOST_AUTO_TEST_CASE(a_loop_at_once_takes_as_many_values_as_it_has_variables) {
  fixture f;
  const auto out = while_loop(
      {f.five, f.five}, [](auto v) { return less(reduce_sum(v[1]), constant(*v[0].owner, 9.0F)); },
      [](auto v) { return std::vector{v[0] + 1.0F}; }, {.name = "short"});
  BOOST_TEST(out.size() == 2U);
  BOOST_TEST(has(f.complaint(), "loop 'short' has 2 variables, and its body returns 1 values"));
}

// A function that adds a branch with itself inside, for good.
BOOST_AUTO_TEST_CASE(branches_without_end_end_also_after_a_mistake) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, {2}}, "x");
  (void)matmul(x, x);
  std::function<std::vector<value>()> deeper = [&] {
    return cond(less(reduce_sum(x), constant(f.g, 1.0F)), deeper, deeper);
  };
  BOOST_TEST(deeper().size() == 1U);
}

// Twice in one branch: calls would double with each level.
BOOST_AUTO_TEST_CASE(branches_that_call_themselves_twice_end_too_after_a_mistake) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, {2}}, "x");
  (void)matmul(x, x);
  std::size_t calls = 0;
  std::function<value(value)> one = [&](value n) {
    ++calls;
    return cond(
        less(constant(f.g, 1.0F), n), [&] { return one(n - 1.0F) + one(n - 2.0F); },
        [&] { return n; });
  };
  BOOST_TEST(!one(input(f.g, {dtype::f32, {}}, "n")).is_valid());
  std::function<std::vector<value>(value)> several = [&](value n) {
    ++calls;
    return cond(
        less(constant(f.g, 1.0F), n),
        [&] { return std::vector{several(n - 1.0F)[0] + several(n - 2.0F)[0], n}; },
        [&] { return std::vector{n, n}; });
  };
  BOOST_TEST(several(input(f.g, {dtype::f32, {}}, "m")).size() == 2U);
  BOOST_TEST(calls < 1000U);
  BOOST_TEST(has(f.g.first_error()->text(), "matmul"));
}

BOOST_AUTO_TEST_CASE(a_condition_that_is_no_value_is_a_mistake_of_the_graph) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, {2}}, "x");
  const auto out =
      cond(value(), [&] { return std::vector{x, x + 1.0F}; }, [&] { return std::vector{x, x}; });
  BOOST_TEST(out.size() == 2U);
  BOOST_TEST(has(f.g.first_error()->text(), "the condition is not a value"));
}

BOOST_AUTO_TEST_CASE(an_invalid_value_has_an_empty_spec) {
  BOOST_TEST(value().spec().shape.rank() == 0U);
  BOOST_TEST(value().spec().shape.size(1) == 0);
}

BOOST_AUTO_TEST_CASE(element_types_beside_those_of_the_row_are_refused) {
  fixture f;
  const auto x = f.e.value_of(tensor::of<std::int32_t>(dtype::i32, {1}, std::array{1}));
  BOOST_TEST(!f.e.add("odd_2", std::array{x}, {}, "odd_2", source_location::current()).is_valid());
  BOOST_TEST(has(f.complaint(), "operand 0 is i32[1], but must be f32"));
}

BOOST_AUTO_TEST_CASE(values_whose_tape_has_ended_are_errors_wherever_they_are_used) {
  const std::function<value(value, value)> uses[] = {
      [](value y, value) { return y + 1; },
      [](value y, value) { return 2 * y; },
      [](value y, value five) { return five + y; },
      [](value y, value) { return slice(y, {{0}}); },
      [](value y, value) { return dense(y, 3, "d"); },
      [](value y, value) { return dropout(y, 0.5); },
      [](value y, value) { return layer_norm(y, "n"); }};
  for (const auto& use : uses) {
    fixture f;
    value y;
    {
      eager::tape t(f.e);
      y = relu(relu(relu(f.five)));
    }
    BOOST_TEST(!use(y, f.five).is_valid());
    const auto text = f.complaint();
    BOOST_TEST((has(text, "its tape has ended") || has(text, "names an output that no op has")),
               text);
  }
}

BOOST_AUTO_TEST_CASE(values_of_another_graph_are_told_to_both) {
  fixture f;
  graph other(f.ops);
  const auto a = input(f.g, {dtype::f32, {2}}, "a"), b = input(other, {dtype::f32, {2}}, "b");
  BOOST_TEST(!(a + b).is_valid());
  for (const auto* g : {&f.g, &other}) {
    BOOST_TEST_REQUIRE(g->first_error().has_value());
    BOOST_TEST(has(g->first_error()->text(), "belongs to another graph"));
    BOOST_TEST(has(g->first_error()->text(), "bad_values_test.cpp:"));
  }
}

BOOST_AUTO_TEST_CASE(numbers_that_a_type_does_not_have_are_refused) {
  const std::pair<std::function<value(fixture&)>, const char*> cases[] = {
      {[](fixture& f) { return pad(cast(f.five, dtype::i32), {1}, {1}, std::nan("")); },
       "i32 has no number nan to pad with"},
      {[](fixture& f) { return pad(cast(f.five, dtype::u8), {1}, {1}, 300); },
       "u8 has no number 300"},
      {[](fixture& f) { return clip_by_norm(f.five, 1e39); },
       "bound 1e+39 is not a finite number above 0 in f32"},
      {[](fixture& f) { return random_uniform(f.e, {dtype::f32, {2}}, -1e308, 1e308); },
       "is wider than f32"},
      {[](fixture& f) { return random_uniform(f.e, {dtype::f64, {2}}, -1.7e308, 1.7e308); },
       "is wider than f64"},
      {[](fixture& f) { return variable(f.e, {dtype::f32, {2}}, filled_with(1e300), "v"); },
       "not a finite number"},
      {[](fixture& f) { return variable(f.e, {dtype::f32, {2}}, normal(1e308), "v"); },
       "not a finite number"},
      {[](fixture& f) { return one_hot(cast(f.five, dtype::i32), 3, dtype::boolean); },
       "the result must be f32"},
      {[](fixture& f) {
         return max_pool2d(reshape(f.five, {1, 1, 1, 1}),
                           {.window = {1, 1}, .strides = std::array{huge, huge}, .same = true});
       },
       "2^31"},
  };
  for (const auto& [make, says] : cases) {
    fixture f;
    BOOST_TEST(!make(f).is_valid(), says);
    const auto text = f.complaint();
    BOOST_TEST(has(text, says), text);
  }
}

BOOST_AUTO_TEST_CASE(whole_numbers_keep_their_digits_and_steps_may_be_as_large_as_they_are) {
  fixture f;
  const auto x =
      f.e.value_of(tensor::of<std::int64_t>(dtype::i64, {1}, std::array{std::int64_t{0}}));
  const auto y = f.e.read(x + 9007199254740993LL);
  BOOST_TEST_REQUIRE(bool(y));
  BOOST_TEST(y->data<std::int64_t>()[0] == 9007199254740993LL);
  const auto last = slice(f.e.value_of(tensor::of({1, 2, 3}, {3})),
                          {{.begin = -1,
                            .end = std::numeric_limits<std::int64_t>::max(),
                            .step = std::numeric_limits<std::int64_t>::min()}});
  BOOST_TEST(f.numbers(last) == std::vector<float>{3}, boost::test_tools::per_element());
  // A whole number is a real attribute.
  BOOST_TEST((attributes{{"beta", std::int64_t{2}}}.real("beta", 1)) == 2.0);
}

BOOST_AUTO_TEST_CASE(gradients_of_shapes_with_nothing_in_them_have_these_shapes) {
  for (const shape& s : {shape{3, 0}, shape{0, 0}, shape{2, 0, 4}}) {
    fixture f;
    const auto x = f.e.value_of(tensor::make({dtype::f32, s}));
    const auto dx = gradients(f.e, reduce_sum(reshape(x, {-1})), std::array{x});
    BOOST_TEST(!f.e.first_error().has_value(),
               (f.e.first_error() ? f.e.first_error()->text() : ""));
    BOOST_TEST((dx[0].spec() == x.spec()));
  }
  fixture f;
  const auto x = f.e.value_of(tensor::of({1, 2, 3}, {3}));
  const auto dx = gradients(f.e, reduce_sum(square(expand_dims(x, {}))), std::array{x});
  BOOST_TEST(f.numbers(dx[0]) == (std::vector<float>{2, 4, 6}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(rounds_of_a_tape_are_equal_whatever_came_before_it) {
  for (const bool has_one_before : {false, true}) {
    fixture f;
    const auto x = f.e.value_of(tensor::make({dtype::f32, {64}}));
    const auto ones = broadcast_like(constant(f.e, 1.0F), x);
    if (has_one_before) (void)dropout(ones, 0.5);
    std::vector<float> first;
    for (int round = 0; round < 3; ++round) {
      eager::tape t(f.e);
      const auto mask = f.numbers(dropout(ones, 0.5));
      if (round == 0) first = mask;
      BOOST_TEST(mask == first, boost::test_tools::per_element());
      (void)dropout(ones, 0.5);
    }
  }
}

BOOST_AUTO_TEST_CASE(tensors_of_numbers_need_as_many_as_their_shape_has) {
  BOOST_CHECK_THROW(tensor::of({1, 2}, {4}), broken_invariant);
  BOOST_CHECK_THROW(tensor::of({1, 2, 3}, {2}), broken_invariant);
  BOOST_CHECK_THROW(tensor::of<double>(dtype::f32, {1}, std::array{1.0}), broken_invariant);
}

BOOST_AUTO_TEST_CASE(layers_of_an_eager_compute_with_variables_that_were_set) {
  fixture f;
  f.e.set_variable("d/weights", tensor::of({1, 2, 3, 4}, {2, 2}));
  f.e.set_variable("d/bias", tensor::of({10, 20}, {2}));
  f.e.set_variable("wrong/weights", tensor::of({1}, {1}));
  const auto x = f.e.value_of(tensor::of({1, 1}, {1, 2}));
  BOOST_TEST(f.numbers(dense(x, 2, "d")) == (std::vector<float>{14, 26}),
             boost::test_tools::per_element());
  BOOST_TEST(!dense(x, 2, "wrong").is_valid());
  BOOST_TEST(has(f.complaint(), "the variable is f32[2, 2], but was set to f32[1]"));
}

BOOST_AUTO_TEST_CASE(assignments_of_operators_put_another_value_in_its_place) {
  fixture f;
  auto x = f.five;
  x += 1;
  x *= x;
  x -= 6;
  x /= 2;
  BOOST_TEST(f.numbers(x) == std::vector<float>{15}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
