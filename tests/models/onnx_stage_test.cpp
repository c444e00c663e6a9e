// Models in files as stages: rows, batches, files that fix the number of rows, and what is told
// before anything runs.

#include "tests/support/onnx_writer.hpp"
#include "troupe/actors/flow/model_stage.hpp"
#include "troupe/actors/models/onnx_stage.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <thread>

using namespace troupe;
using test::onnx_writer;

namespace {

struct folder {
  std::shared_ptr<scratch_folder> where = *scratch_folder::make("onnx_stage");
  std::string write(const onnx_writer& w) const {
    auto path = where->path() + "/model.onnx";
    std::ofstream(path, std::ios::binary) << w.bytes();
    return path;
  }
};

// y = x + x, of rows of 3; `rows`: in the file, 0: "N".
onnx_writer twice(std::int64_t rows) {
  onnx_writer w;
  w.input("x", {dtype::f32, {rows > 0 ? rows : 1, 3}});
  if (rows == 0) {
    auto& d = *w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_shape();
    d.mutable_dims(0)->clear_size();
    d.mutable_dims(0)->set_symbol("N");
  }
  w.node("Add", {"x", "x"}, {"y"});
  w.output("y");
  return w;
}
// The same, by a shape that has the number of rows in it.
onnx_writer twice_as_written(std::int64_t rows) {
  auto w = twice(rows);
  auto& node = *w.graph().mutable_nodes(0);
  node.set_outputs(0, "sum");
  w.initializer("flat", {{dtype::i64, {1}}, {double(rows * 3)}});
  w.initializer("back", {{dtype::i64, {2}}, {double(rows), 3}});
  w.node("Reshape", {"sum", "flat"}, {"line"});
  w.node("Reshape", {"line", "back"}, {"y"});
  return w;
}

// sum = a + b, product = a * b, of rows of 2.
onnx_writer of_two(std::int64_t rows) {
  onnx_writer w;
  w.input("a", {dtype::f32, {rows, 2}});
  w.input("b.1", {dtype::f32, {rows, 2}});
  w.node("Add", {"a", "b.1"}, {"sum"});
  w.node("Mul", {"a", "b.1"}, {"product"});
  w.output("sum");
  w.output("product");
  return w;
}
struct pair_of_rows {
  std::string id;
  tensor a, b;
  static constexpr auto fields =
      troupe::fields<&pair_of_rows::id, &pair_of_rows::a, &pair_of_rows::b>("id", "a", "b.1");
};
struct both {
  tensor product, sum;
  std::string id;
  static constexpr auto fields =
      troupe::fields<&both::product, &both::sum, &both::id>("product", "sum", "id");
};
struct sum_only {
  tensor sum;
  static constexpr auto fields = troupe::fields<&sum_only::sum>("sum");
};
struct nothing_like_it {
  tensor z;
  static constexpr auto fields = troupe::fields<&nothing_like_it::z>("z");
};
struct one_of_them {
  tensor a;
  static constexpr auto fields = troupe::fields<&one_of_them::a>("a");
};
struct three {
  tensor a, b, c;
  static constexpr auto fields = troupe::fields<&three::a, &three::b, &three::c>("a", "b.1", "c");
};
pair_of_rows numbered(float i) {
  return {std::to_string(int(i)), tensor::of({i, i + 1}, {2}), tensor::of({2, 3}, {2})};
}
template <class M>
std::string refusal_of(M m) {
  const auto ok = m.open();
  return ok ? "" : ok.error().text();
}

tensor row(float a) { return tensor::of({a, a + 1, a + 2}, {3}); }
std::vector<float> values(const tensor& t) {
  const auto* d = t.data<float>();
  return {d, d + t.elements()};
}
std::vector<float> wanted(float a) { return {2 * a, 2 * a + 2, 2 * a + 4}; }

model opened(const std::string& path, const model_options& o = {}) {
  model m(path, o);
  const auto ok = m.open();
  BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
  return m;
}
std::string refusal(const std::string& path, const model_options& o = {}) {
  model m(path, o);
  const auto ok = m.open();
  return ok ? "" : ok.error().text();
}

std::vector<tensor> rows_of(std::size_t n) {
  std::vector<tensor> batch;
  for (std::size_t i = 0; i < n; ++i) batch.push_back(row(float(i)));
  return batch;
}
// Twice each row of a batch of so many.
void computes(const model& m, std::size_t n) {
  const auto all = m(rows_of(n));
  BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().text()));
  BOOST_REQUIRE_EQUAL(all->size(), n);
  for (std::size_t i = 0; i < n; ++i) BOOST_CHECK(values((*all)[i]) == wanted(float(i)));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx_stage)

BOOST_AUTO_TEST_CASE(rows_and_batches_of_any_number_are_computed) {
  const folder f;
  for (const auto& w : {twice(0), twice(1), twice(2)}) {
    const auto m = opened(f.write(w), {.batch_max = 4});
    const auto one = m(row(1));
    BOOST_REQUIRE(one);
    BOOST_CHECK(one->spec() == (tensor_spec{dtype::f32, {3}}));
    BOOST_CHECK(values(*one) == wanted(1));
    for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 11U}) {
      computes(m, n);
      const auto stacked = m(*stack(rows_of(n)));
      BOOST_REQUIRE(stacked);
      BOOST_CHECK(stacked->spec() == (tensor_spec{dtype::f32, {std::int64_t(n), 3}}));
      BOOST_CHECK(values(unstack(*stacked)->back()) == wanted(float(n - 1)));
    }
    BOOST_CHECK(m(std::vector<tensor>())->empty());
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_fixes_the_rows_is_run_with_so_many) {
  const folder f;
  for (const std::int64_t rows : {1, 2, 5}) {
    const auto m = opened(f.write(twice_as_written(rows)));
    for (const std::size_t n : {1U, 4U, 10U}) computes(m, n);
  }
}

// As torch exports x.view(-1, 3) of a batch of any size.
BOOST_AUTO_TEST_CASE(ops_that_need_the_number_of_rows_have_it) {
  const folder f;
  auto w = twice(0);
  w.graph().mutable_nodes(0)->set_outputs(0, "sum");
  w.initializer("line", {{dtype::i64, {1}}, {-1}});
  w.initializer("rows", {{dtype::i64, {2}}, {-1, 3}});
  w.node("Reshape", {"sum", "line"}, {"flat"});
  w.node("Reshape", {"flat", "rows"}, {"y"});
  const auto m = opened(f.write(w), {.batch_max = 6});
  for (const std::size_t n : {1U, 2U, 3U, 5U, 6U, 9U, 20U}) computes(m, n);
}

// x / N: rows that fill a batch up would change what comes of the others.
BOOST_AUTO_TEST_CASE(rows_that_see_each_other_are_run_with_no_others) {
  const folder f;
  auto w = twice(0);
  w.graph().mutable_nodes(0)->set_op_type("Shape");
  w.graph().mutable_nodes(0)->clear_inputs();
  w.graph().mutable_nodes(0)->add_inputs("x");
  w.graph().mutable_nodes(0)->set_outputs(0, "shape");
  w.initializer("first", {{dtype::i64, {}}, {0}});
  w.node("Gather", {"shape", "first"}, {"n"});
  w.node("Cast", {"n"}, {"rows"}, {{"to", std::int64_t{1}}});
  w.node("Div", {"x", "rows"}, {"y"});
  const auto m = opened(f.write(w), {.batch_max = 8});
  for (const std::size_t n : {1U, 3U, 5U, 6U, 7U, 8U, 3U, 2U}) {
    const auto all = m(rows_of(n));
    BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().text()));
    for (std::size_t i = 0; i < n; ++i)
      BOOST_CHECK_CLOSE(values((*all)[i])[1], float(i + 1) / float(n), 1e-3F);
  }
}

BOOST_AUTO_TEST_CASE(rows_of_many_shapes_are_computed) {
  const folder f;
  onnx_writer w;
  w.input("x", {dtype::f32, {1, 1}});
  auto& d = *w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_shape();
  for (int i = 0; i < 2; ++i) {
    d.mutable_dims(i)->clear_size();
    d.mutable_dims(i)->set_symbol(i == 0 ? "N" : "L");
  }
  w.node("Add", {"x", "x"}, {"y"});
  w.output("y");
  const auto m = opened(f.write(w));
  for (int turn = 0; turn < 2; ++turn)
    for (std::int64_t length = 1; length <= 40; ++length) {
      auto x = tensor::make({dtype::f32, {length}});
      std::ranges::fill(x.data<float>(), x.data<float>() + length, 3.0F);
      const auto y = m(x);
      BOOST_REQUIRE(y);
      BOOST_CHECK(values(*y) == std::vector<float>(std::size_t(length), 6));
    }
}

BOOST_AUTO_TEST_CASE(items_may_have_the_dimension_of_the_batch) {
  const folder f;
  const auto m = opened(f.write(twice(0)));
  std::vector<tensor> batch;
  for (int i = 0; i < 3; ++i) batch.push_back(row(float(i)).part(0, {dtype::f32, {1, 3}}));
  const auto all = m(batch);
  BOOST_REQUIRE(all);
  BOOST_CHECK((*all)[2].spec() == (tensor_spec{dtype::f32, {1, 3}}));
  BOOST_CHECK(values((*all)[2]) == wanted(2));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_a_model_is_told_before_anything_runs) {
  const folder f;
  const auto says = [](const std::string& text, const std::string& part) {
    BOOST_CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  says(refusal("no such.onnx"), "no such.onnx");
  const auto path = f.write(twice(0));
  BOOST_CHECK_EQUAL(refusal(path, {.batch_max = std::numeric_limits<std::uint64_t>::max()}), "");
  says(refusal(path, {.output = "z"}), "it has no output 'z': there are y");
  auto two = twice(0);
  two.input("w", {dtype::f32, {3}});
  two.node("Add", {"y", "w"}, {"v"});
  two.output("v");
  says(refusal(f.write(two)), "a model feeds one input, and there are x, w: use model_of<In, Out>");
  auto odd = twice(2);
  odd.graph().mutable_nodes(0)->set_op_type("NoSuchOp");
  says(refusal(f.write(odd)), "NoSuchOp");

  // With the stage and its line, and no item taken.
  flow_graph g;
  int made = 0;
  const auto rows = source(g, [&made]() -> std::optional<tensor> {
    ++made;
    return std::nullopt;
  });
  collect(map(rows, model("no such.onnx"), {.name = "score"}));
  const auto done = drain(g);
  BOOST_REQUIRE(!done);
  says(done.error().text(), "score (onnx_stage_test.cpp:");
  says(done.error().text(), "no such.onnx");
  BOOST_CHECK_EQUAL(made, 0);
}

BOOST_AUTO_TEST_CASE(items_that_do_not_fit_are_told) {
  const folder f;
  const auto m = opened(f.write(twice(0)));
  const auto bad = m(tensor::of({1, 2, 3, 4}, {1, 2, 2}));
  BOOST_REQUIRE(!bad);
  BOOST_CHECK_MESSAGE(bad.error().text().find("'x' has 2 dimensions") != std::string::npos,
                      bad.error().text());
  BOOST_CHECK(!m(tensor::of({1, 2, 3, 4}, {4})));
  BOOST_CHECK(!m(std::vector{row(1), tensor::of({1, 2}, {2})}));
  BOOST_CHECK(m(row(1)));  // and it goes on
}

BOOST_AUTO_TEST_CASE(several_inputs_and_outputs_are_the_fields_of_structs) {
  const folder f;
  for (const std::int64_t rows : {1, 2, 4}) {
    const auto path = f.write(of_two(rows));
    flow_graph g;
    const auto items =
        from(g, std::vector{numbered(0), numbered(1), numbered(2), numbered(3), numbered(4)});
    const auto batched = collect(unbatch(
        map(batch(items, {.count = 3}), model_of<pair_of_rows, both>(path, {.batch_max = 4}))));
    const auto alone = collect(map(items, model_of<pair_of_rows, sum_only>(path)));
    const auto done = drain(g);
    BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
    BOOST_REQUIRE_EQUAL(batched->size(), 5U);
    BOOST_REQUIRE_EQUAL(alone->size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
      const auto x = float(i);
      BOOST_CHECK_EQUAL((*batched)[i].id, std::to_string(i));  // it goes along
      BOOST_CHECK((values((*batched)[i].sum) == std::vector{x + 2, x + 4}));
      BOOST_CHECK((values((*batched)[i].product) == std::vector{2 * x, 3 * (x + 1)}));
      BOOST_CHECK((values((*alone)[i].sum) == std::vector{x + 2, x + 4}));
    }
  }
}

// As exporters leave them: they are fed, and nothing is done with it.
BOOST_AUTO_TEST_CASE(an_input_that_nothing_needs_may_be_there) {
  const folder f;
  auto w = of_two(1);
  w.input("c", {dtype::f32, {1, 2}});
  model_of<three, sum_only> m(f.write(w));
  const auto ok = m.open();
  BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
  const auto one = tensor::of({1, 2}, {2});
  const auto y = m(three{one, one, one});
  BOOST_REQUIRE_MESSAGE(y, (y ? "" : y.error().text()));
  BOOST_CHECK((values(y->sum) == std::vector<float>{2, 4}));
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_a_model_of_structs_is_told) {
  const folder f;
  const auto says = [](const std::string& text, const std::string& part) {
    BOOST_CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  const auto path = f.write(of_two(1));
  says(refusal_of(model_of<one_of_them, sum_only>(path)), "nobody feeds 'b.1'");
  says(refusal_of(model_of<nothing_like_it, sum_only>(path)),
       "it has no input 'z': there are a, b.1");
  says(refusal_of(model_of<pair_of_rows, nothing_like_it>(path)),
       "it has no output 'z': there are sum, product");
  model_of<pair_of_rows, sum_only> m(path);
  says(m(numbered(1)).error().text(), "open() was not called");
  BOOST_REQUIRE(m.open());
  auto odd = numbered(1);
  odd.b = tensor::of({1, 2, 3, 4}, {2, 2});
  says(m(odd).error().text(), "an item has one row for 'a', and the batch's dimension for 'b.1'");
  odd.a = tensor::of({1, 2, 3, 4, 5, 6}, {3, 2});
  says(m(odd).error().text(), "'a' has 3 rows, and 'b.1' has 2");
  says(m(std::vector{numbered(1), odd}).error().text(), "'a': a batch of different tensors");
  BOOST_CHECK(m(numbered(1)));  // and it goes on
  says(m(pair_of_rows{"1", numbered(1).a, {}}).error().text(), "'b.1' of an item is no tensor");
  says(m(std::vector{numbered(1), pair_of_rows{}}).error().text(), "'a' of an item is no tensor");
  // The batch's dimension in all of them.
  odd.a = odd.b;
  const auto stacked = m(odd);
  BOOST_REQUIRE(stacked);
  BOOST_CHECK((values(stacked->sum) == std::vector<float>{2, 4, 6, 8}));
  auto uneven = of_two(2);
  uneven.input("c", {dtype::f32, {3, 2}});
  uneven.node("Add", {"sum", "c"}, {"other"});
  uneven.output("other");
  says(refusal_of(model_of<three, sum_only>(f.write(uneven))), "'c' has 3 rows, and others have 2");
}

BOOST_AUTO_TEST_CASE(replicas_of_threads_share_it) {
  const folder f;
  const auto path = f.write(twice(0));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      model m(path, {.batch_max = 8});
      if (!m.open()) return;
      for (int i = 0; i < 50; ++i) {
        const auto y = m(row(float(t * 100 + i)));
        right += y && values(*y) == wanted(float(t * 100 + i)) ? 1 : 0;
      }
    });
  for (auto& t : threads) t.join();
  BOOST_CHECK_EQUAL(right.load(), 200);
}

BOOST_AUTO_TEST_CASE(it_travels_with_its_options) {
  const auto travels = travels_as<std::vector<tensor>, std::vector<tensor>>(
      model("resnet.onnx", {.batch_max = 16, .output = "logits"}));
  BOOST_CHECK(travels.keeps_nothing);
  BOOST_REQUIRE(travels.library != nullptr);
  const auto* there = travels.library->find(travels.who);
  BOOST_REQUIRE(there != nullptr);
  BOOST_CHECK_EQUAL(there->name, "model_of_batches");
  BOOST_CHECK_EQUAL(there->members, travels.members);
  BOOST_CHECK(there->make(*travels.prototype) != nullptr);
  BOOST_CHECK(check_library(model::library()));
}

BOOST_AUTO_TEST_SUITE_END()
