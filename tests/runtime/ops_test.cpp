#include "runtime/compile.hpp"
#include "runtime/graph.hpp"
#include "runtime/op_table.hpp"
#include "tests/support/reference.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
#include <functional>
#include <random>

using namespace troupe;

namespace {

tensor_spec f32(std::initializer_list<std::int64_t> sizes) {
  return {dtype::f32, shape(sizes)};
}
tensor_spec i32(std::initializer_list<std::int64_t> sizes) {
  return {dtype::i32, shape(sizes)};
}
tensor_spec rows(std::int64_t bound, std::int64_t columns) {
  return {dtype::f32, *shape::from(std::array<dim, 2>{batch_of(bound), dim{columns, 0}})};
}

struct fixture {
  op_table ops = make_op_table();
  graph g{ops};
};

// One row of the table of misfits: operands, the call, and what the error must say.
struct misfit {
  std::vector<tensor_spec> operands;
  attributes attrs;
  std::string type;
  std::vector<std::string> says;
};

const std::vector<misfit>& misfits() {
  static const std::vector<misfit> all{
      {{f32({2, 3}), f32({4, 5})},
       {},
       "matmul",
       {"matmul", "f32[2, 3]", "f32[4, 5]", "columns of a (3) must be rows of b (4)"}},
      {{f32({2, 3}), f32({4, 5})},
       {{"transpose_a", std::int64_t{1}}},
       "matmul",
       {"rows of a (2) must be rows of b (4)"}},
      {{f32({2, 3}), f32({4, 5})},
       {{"transpose_b", std::int64_t{1}}},
       "matmul",
       {"columns of a (3) must be columns of b (5)"}},
      {{f32({3}), f32({3, 5})}, {}, "matmul", {"rank 2"}},
      {{f32({2, 3}), i32({3, 5})}, {}, "matmul", {"i32[3, 5]", "must be f32"}},
      {{f32({2, 128}), rows(128, 5)}, {}, "matmul", {"columns of a (128) must be rows of b (128?)"}},
      {{f32({2, 3}), f32({3, 2})}, {}, "add", {"add", "b must have a's shape"}},
      {{f32({2, 3}), f32({2})}, {}, "add", {"shape of a's last dimension"}},
      {{f32({}), f32({3})}, {}, "add", {"f32[], b f32[3]"}},
      {{rows(128, 3), rows(64, 3)}, {}, "add", {"f32[128?, 3]", "f32[64?, 3]"}},
      {{f32({2, 3}), f32({3, 2})}, {}, "sub", {"sub"}},
      {{f32({2, 3}), f32({3, 2})}, {}, "mul", {"mul"}},
      {{f32({2, 3}), i32({2, 3})}, {}, "mul", {"both must be f32, or both f64"}},
      {{i32({2, 3}), i32({2, 3})}, {}, "maximum", {"maximum", "both must be f32"}},
      {{i32({2})}, {}, "relu", {"relu", "x i32[2]", "f32 or f64"}},
      {{i32({2})}, {}, "sigmoid", {"sigmoid"}},
      {{i32({2})}, {}, "tanh", {"tanh"}},
      {{i32({2})}, {}, "neg", {"neg"}},
      {{i32({2})}, {}, "read", {"read"}},
      {{i32({2})}, {}, "after", {"after"}},
      {{f32({2}), f32({3})}, {}, "relu_grad", {"relu_grad", "dy f32[2], y f32[3]", "one shape"}},
      {{f32({2}), f32({3})}, {}, "sigmoid_grad", {"sigmoid_grad"}},
      {{f32({2}), f32({3})}, {}, "tanh_grad", {"tanh_grad"}},
      {{f32({2}), f32({3}), f32({3})}, {{"side", std::int64_t{0}}}, "maximum_grad", {"dy must be like a"}},
      {{f32({3}), f32({3}), f32({2})}, {{"side", std::int64_t{0}}}, "maximum_grad", {"b must have a's shape"}},
      {{f32({3}), f32({3}), f32({3})}, {}, "maximum_grad", {"side is -1"}},
      {{f32({3})}, {}, "reduce_sum_rows", {"reduce_sum_rows", "f32[3]", "rank 2"}},
      {{i32({3, 2})}, {}, "reduce_sum_rows", {"f32 matrix"}},
      {{i32({3})}, {}, "reduce_sum", {"reduce_sum", "must be f32"}},
      {{f32({2}), f32({2, 3})}, {}, "broadcast_like", {"x f32[2], like f32[2, 3]", "last dimension"}},
      {{i32({3}), f32({2, 3})}, {}, "broadcast_like", {"both must be f32"}},
      {{f32({3})}, {}, "argmax", {"argmax", "rank 2"}},
      {{f32({3, 0})}, {}, "argmax", {"rows must not be empty"}},
      {{f32({4, 3}), i32({5})}, {}, "count_correct", {"logits f32[4, 3], labels i32[5]", "equally many rows"}},
      {{f32({4, 3}), f32({4})}, {}, "count_correct", {"labels must be an i32 vector"}},
      {{f32({4}), i32({4})}, {}, "count_correct", {"logits must be an f32 matrix"}},
      {{f32({4, 0}), i32({4})}, {}, "count_correct", {"at least one class"}},
      {{f32({4, 3}), i32({4}), f32({1})}, {}, "softmax_cross_entropy", {"scale must be an f32 scalar"}},
      {{f32({4, 3}), i32({3}), f32({})}, {}, "softmax_cross_entropy", {"softmax_cross_entropy", "equally many rows"}},
      {{}, {}, "constant", {"constant", "needs its value"}},
      {{}, {}, "input", {"input", "dtype -1"}},
      {{}, {{"dtype", std::int64_t{0}}, {"rank", std::int64_t{1}}, {"dim0", std::int64_t{-3}}}, "input", {"negative"}},
      {{}, {{"dtype", std::int64_t{2}}, {"rank", std::int64_t{0}}}, "variable", {"variable", "is f32"}},
      {{},
       {{"dtype", std::int64_t{0}}, {"rank", std::int64_t{1}}, {"dim0", std::int64_t{3}}, {"symbol0", std::int64_t{1}}},
       "variable",
       {"exact sizes"}},
      {{}, {}, "idx_batch", {"idx_batch", "samples is -1, but must be in 1..4294967295"}},
      {{f32({2})}, {}, "add", {"add takes 2 operands, not 1"}},
      {{}, {}, "convolution", {"there is no op 'convolution'"}},
  };
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ops)

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_errors_with_op_shapes_rule_and_the_users_line) {
  for (const auto& m : misfits()) {
    fixture f;
    std::vector<value> operands;
    for (const auto& s : m.operands) operands.push_back(input(f.g, s, "x"));
    const auto line = source_location::current();
    const auto v = f.g.add(m.type, operands, m.attrs, "the_op", line);
    BOOST_TEST(!v.is_valid());
    BOOST_TEST_REQUIRE(f.g.first_error().has_value(), m.type);
    const auto text = f.g.first_error()->text();
    BOOST_TEST(text.starts_with(fmt::format("{}:{}: ", line.file_name(), line.line())), text);
    for (const auto& part : m.says)
      BOOST_TEST(text.find(part) != std::string::npos, text << "\n  should say: " << part);
    // The rule gives the same answer at run time: a kernel never sees what does not fit.
    const auto* row = f.ops.find(m.type);
    const bool is_countable = row != nullptr && row->inputs == m.operands.size();
    const tag t;
    if (is_countable) BOOST_TEST(!row->shapes(m.attrs, m.operands, &t));
  }
}

BOOST_AUTO_TEST_CASE(every_op_that_takes_operands_is_in_the_table_of_misfits) {
  const auto table = make_op_table();
  for (const auto& [type, row] : table.rows()) {
    const bool is_tested =
        std::any_of(misfits().begin(), misfits().end(), [&, name = type](const misfit& m) { return m.type == name; });
    BOOST_TEST(is_tested, type);
  }
}

BOOST_AUTO_TEST_CASE(builders_name_the_line_of_their_caller) {
  fixture f;
  const auto x = input(f.g, f32({2, 3}), "x");
  const auto line = source_location::current().line() + 1;
  const auto y = matmul(x, x);
  BOOST_TEST(!y.is_valid());
  BOOST_TEST(f.g.first_error()->text().find(fmt::format("ops_test.cpp:{}: matmul: a f32[2, 3], b f32[2, 3]", line)) !=
                 std::string::npos,
             f.g.first_error()->text());
}

BOOST_AUTO_TEST_CASE(symbolic_rows_stay_a_bound_and_become_exact_at_run_time) {
  fixture f;
  const auto x = input(f.g, rows(128, 20), "x");
  const auto w = variable(f.g, f32({20, 10}), {}, "w");
  BOOST_TEST(to_string(matmul(x, w).spec()) == "f32[128?, 10]");
  BOOST_TEST(to_string(relu(x).spec()) == "f32[128?, 20]");
  BOOST_TEST(to_string(reduce_sum_rows(x).spec()) == "f32[20]");
  BOOST_TEST(to_string(argmax(x).spec()) == "i32[128?]");
  BOOST_TEST(to_string(matmul(x, x, true).spec()) == "f32[20, 20]");
  const tag t;
  const std::array concrete{f32({96, 20}), f32({20, 10})};
  BOOST_TEST(to_string(f.ops.find("matmul")->shapes({}, concrete, &t)->at(0)) == "f32[96, 10]");
  const std::array none{f32({0, 20}), f32({20, 10})};
  BOOST_TEST(to_string(f.ops.find("matmul")->shapes({}, none, &t)->at(0)) == "f32[0, 10]");
}

BOOST_AUTO_TEST_CASE(idx_batch_has_exact_rows_for_every_tag) {
  fixture f;
  const idx_info data{.path = "p", .samples = 257, .rows = 4, .columns = 5};
  const idx_batch_options options{.batch = 64, .part = 1, .parts = 2};
  const auto v = idx_batch(f.g, data, options);
  BOOST_TEST(to_string(v.images.spec()) == "f32[64?, 20]");
  BOOST_TEST(to_string(v.labels.spec()) == "i32[64?]");
  BOOST_TEST(to_string(v.scale.spec()) == "f32[]");
  BOOST_TEST(steps_per_epoch(data, options) == 3U);
  const auto& n = f.g.node(v.images.node);
  const auto rows_at = [&](std::uint64_t step) {
    const tag t{.step = step};
    return f.ops.find("idx_batch")->shapes(n.attrs, {}, &t)->at(0).shape.size(0);
  };
  BOOST_TEST(rows_at(0) == 64);
  BOOST_TEST(rows_at(2) == 1);  // the last sample of 257 is part 1's
  BOOST_TEST(rows_at(5) == 1);
  auto attrs = n.attrs;
  attrs.set("part", std::int64_t{0});
  const tag last{.step = 2};
  BOOST_TEST(f.ops.find("idx_batch")->shapes(attrs, {}, &last)->at(0).shape.size(0) == 0);
}

BOOST_AUTO_TEST_CASE(idx_batch_refuses_what_it_cannot_read) {
  const std::pair<std::function<void(idx_info&, idx_batch_options&)>, const char*> cases[] = {
      {[](auto& i, auto&) { i.samples = 0; }, "samples is 0"},
      {[](auto& i, auto&) { i.samples = std::int64_t{1} << 32; }, "samples is 4294967296"},
      {[](auto&, auto& o) { o.batch = 0; }, "batch is 0"},
      {[](auto&, auto& o) { o.part = 2, o.parts = 2; }, "part is 2, but must be in 0..1"},
      {[](auto&, auto& o) { o.parts = 0; }, "parts is 0"},
      {[](auto& i, auto&) { i.rows = 1 << 20, i.columns = 1 << 20; }, "are too large"},
      {[](auto& i, auto&) { i.classes = 0; }, "classes is 0"},
  };
  for (const auto& [spoil, says] : cases) {
    fixture f;
    idx_info data{.path = "p", .samples = 257, .rows = 4, .columns = 5};
    idx_batch_options options;
    spoil(data, options);
    BOOST_TEST(!idx_batch(f.g, data, options).images.is_valid());
    BOOST_TEST(f.g.first_error()->text().find(says) != std::string::npos, f.g.first_error()->text());
    BOOST_TEST(f.g.first_error()->text().find("ops_test.cpp") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(dense_refuses_what_is_no_matrix_of_features) {
  const std::pair<tensor_spec, std::int64_t> cases[] = {
      {f32({3}), 4}, {i32({3, 2}), 4}, {f32({3, 0}), 4}, {f32({3, 2}), 0}};
  for (const auto& [spec, units] : cases) {
    fixture f;
    BOOST_TEST(!dense(input(f.g, spec, "x"), units, "layer").is_valid());
    BOOST_TEST(f.g.first_error()->text().find("dense 'layer': x " + to_string(spec)) != std::string::npos,
               f.g.first_error()->text());
  }
}

// --- gradients
// ---------------------------------------------------------------------------------------------------------

namespace {

// Compares the gradients of `loss` in `in` with central differences of the naive interpreter.
void check_gradients(fixture& f, value loss, const std::vector<value>& in, const reference::feeds& all) {
  auto fed = all;
  const auto derivatives = gradients(f.g, loss, in);
  BOOST_TEST_REQUIRE(!f.g.first_error().has_value(), (f.g.first_error() ? f.g.first_error()->text() : ""));
  constexpr double h = 1e-6;
  for (std::size_t k = 0; k < in.size(); ++k) {
    BOOST_TEST_REQUIRE(derivatives[k].is_valid());
    const auto name = f.g.node(in[k].node).name;
    BOOST_TEST((derivatives[k].spec() == in[k].spec()));
    const auto exact = reference::evaluate(f.g, derivatives[k], fed);
    auto& x = fed.at(name).at;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto before = x[i];
      x[i] = before + h;
      const auto up = reference::evaluate(f.g, loss, fed).at[0];
      x[i] = before - h;
      const auto down = reference::evaluate(f.g, loss, fed).at[0];
      x[i] = before;
      const auto numeric = (up - down) / (2 * h);
      BOOST_TEST(std::abs(exact.at[i] - numeric) <= 1e-6 * (1 + std::abs(numeric)),
                 name << "[" << i << "]: " << exact.at[i] << " against " << numeric);
    }
  }
}

struct random_feeds {
  std::mt19937_64 random;
  reference::feeds all;

  // Away from 0, where relu and maximum have no derivative; steps of h never reach it.
  value add(graph& g, const tensor_spec& spec, const std::string& name) {
    std::uniform_real_distribution<double> size(0.1, 1.0);
    all[name] = reference::make(spec, [&](std::size_t) { return (random() % 2 == 0 ? 1 : -1) * size(random); });
    return input(g, spec, name);
  }
};

// A scalar that weighs every element of `y` differently.
value weighed(fixture& f, random_feeds& r, value y) {
  return reduce_sum(mul(y, r.add(f.g, y.spec(), "weights_of_y")));
}

}  // namespace

BOOST_AUTO_TEST_CASE(gradients_of_unary_ops_agree_with_finite_differences) {
  using unary = value (*)(value, source_location);
  for (const unary op : {unary{relu}, unary{sigmoid}, unary{troupe::tanh}}) {
    fixture f;
    random_feeds r{std::mt19937_64(1), {}};
    const auto x = r.add(f.g, f32({3, 4}), "x");
    check_gradients(f, weighed(f, r, op(x, source_location::current())), {x}, r.all);
  }
  fixture f;
  random_feeds r{std::mt19937_64(2), {}};
  const auto x = r.add(f.g, f32({3, 4}), "x");
  const auto negative = f.g.add("neg", std::array{x}, {}, "neg", source_location::current());
  check_gradients(f, weighed(f, r, negative), {x}, r.all);
}

BOOST_AUTO_TEST_CASE(gradients_of_binary_ops_agree_with_finite_differences_also_where_b_is_broadcast) {
  using binary = value (*)(value, value, source_location);
  for (const binary op : {binary{add}, binary{sub}, binary{mul}, binary{maximum}})
    for (const auto& b_spec : {f32({3, 4}), f32({4}), f32({})}) {
      fixture f;
      random_feeds r{std::mt19937_64(3), {}};
      const auto a = r.add(f.g, f32({3, 4}), "a"), b = r.add(f.g, b_spec, "b");
      check_gradients(f, weighed(f, r, op(a, b, source_location::current())), {a, b}, r.all);
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_matmul_agree_with_finite_differences_for_every_transposition) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      fixture f;
      random_feeds r{std::mt19937_64(4), {}};
      const auto a = r.add(f.g, ta ? f32({3, 2}) : f32({2, 3}), "a"),
                 b = r.add(f.g, tb ? f32({4, 3}) : f32({3, 4}), "b");
      check_gradients(f, weighed(f, r, matmul(a, b, ta, tb)), {a, b}, r.all);
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_reductions_agree_with_finite_differences) {
  fixture f;
  random_feeds r{std::mt19937_64(5), {}};
  const auto x = r.add(f.g, f32({3, 4}), "x"), v = r.add(f.g, f32({4}), "v"), s = r.add(f.g, f32({}), "s");
  const auto like = [&](value what) {
    return f.g.add("broadcast_like", std::array{what, x}, {}, "spread", source_location::current());
  };
  auto sum = weighed(f, r, reduce_sum_rows(x));
  sum = add(sum, reduce_sum(mul(like(v), x)));
  sum = add(sum, reduce_sum(mul(like(s), x)));
  sum = add(sum, reduce_sum(mul(like(x), x)));
  check_gradients(f, sum, {x, v, s}, r.all);
}

BOOST_AUTO_TEST_CASE(gradients_of_cross_entropy_agree_with_finite_differences) {
  fixture f;
  random_feeds r{std::mt19937_64(6), {}};
  const auto logits = r.add(f.g, f32({4, 3}), "logits"), factor = r.add(f.g, f32({}), "factor");
  const auto labels = input(f.g, i32({4}), "labels"), scale = input(f.g, f32({}), "scale");
  r.all["labels"] = reference::make(i32({4}), [](std::size_t i) { return static_cast<double>(i % 3); });
  r.all["scale"] = reference::make(f32({}), [](std::size_t) { return 0.25; });
  check_gradients(f, mul(softmax_cross_entropy(logits, labels, scale), factor), {logits, factor}, r.all);
}

BOOST_AUTO_TEST_CASE(gradients_of_random_perceptrons_agree_with_finite_differences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      fixture f;
      random_feeds r{std::mt19937_64(seed), {}};
      const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(1 + r.random() % n); };
      const auto samples = below(4), classes = below(4);
      auto x = r.add(f.g, f32({samples, below(5)}), "x");
      const auto layers = below(3);
      for (std::int64_t i = 0; i < layers; ++i) {
        x = dense(x, i + 1 == layers ? classes : below(5), fmt::format("layer_{}", i));
        if (i + 1 == layers) break;
        const auto kind = r.random() % 4;
        if (kind == 0) x = relu(x);
        if (kind == 1) x = sigmoid(x);
        if (kind == 2) x = troupe::tanh(x);
        if (kind == 3) x = maximum(x, mul(x, constant(f.g, 0.1F)));  // a leaky relu; x is used twice
      }
      const auto labels = input(f.g, i32({samples}), "labels"), scale = input(f.g, f32({}), "scale");
      r.all["labels"] = reference::make(
          i32({samples}), [&](std::size_t i) { return static_cast<double>(i % static_cast<std::size_t>(classes)); });
      r.all["scale"] = reference::make(f32({}), [&](std::size_t) { return 1.0 / static_cast<double>(samples); });
      std::uniform_real_distribution<double> uniform(-1, 1);
      for (const auto& v : f.g.variables())
        r.all[f.g.node(v.node).name] = reference::make(v.spec(), [&](std::size_t) { return uniform(r.random); });
      check_gradients(f, softmax_cross_entropy(x, labels, scale), f.g.variables(), r.all);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_the_loss_does_not_depend_on_has_no_gradient) {
  fixture f;
  const auto a = variable(f.g, f32({3}), {}, "a"), b = variable(f.g, f32({3}), {}, "b");
  const auto derivatives = gradients(f.g, reduce_sum(a), std::array{a, b});
  BOOST_TEST(derivatives[0].is_valid());
  BOOST_TEST(!derivatives[1].is_valid());
  BOOST_TEST(!f.g.first_error().has_value());
}

BOOST_AUTO_TEST_CASE(a_loss_that_is_no_scalar_and_an_op_without_gradient_are_errors_with_the_users_line) {
  {
    fixture f;
    const auto a = variable(f.g, f32({3}), {}, "a");
    gradients(f.g, a, std::array{a});
    BOOST_TEST(f.g.first_error()->text().find("loss 'a' is f32[3], but must be a scalar") != std::string::npos);
    BOOST_TEST(f.g.first_error()->text().find("ops_test.cpp:") != std::string::npos);
  }
  fixture f;
  const auto a = variable(f.g, f32({3}), {}, "a");
  const auto once = gradients(f.g, reduce_sum(sigmoid(a)), std::array{a});
  gradients(f.g, reduce_sum(once[0]), std::array{a});  // sigmoid_grad has no gradient of its own
  BOOST_TEST_REQUIRE(f.g.first_error().has_value());
  BOOST_TEST(f.g.first_error()->text().find("sigmoid_grad 'gradients/sigmoid/sigmoid_grad' is not differentiable") !=
                 std::string::npos,
             f.g.first_error()->text());
}

BOOST_AUTO_TEST_SUITE_END()
