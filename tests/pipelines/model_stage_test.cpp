// Graphs as stages: tensor by tensor, and in batches that are computed at once.

#include "troupe/actors/flow/model_stage.hpp"

#include "troupe/actors/flow/topology.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

using namespace troupe;

namespace {

tensor pair_of(float a, float b) { return tensor::of({a, b}, {2}); }
std::vector<float> numbers_of(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

// y = 2 x for one tensor, rows = 2 x for any number of them, sum = all of those together.
struct doubling {
  doubling() {
    const auto x = input(g, {dtype::f32, {2}}, "x");
    name(x * 2.0F, "y");
    const auto many = input(g, {dtype::f32, {3, 2}}, "many");
    name(many * 2.0F, "rows");
    name(reduce_sum(many, {1}) * 1.0F, "sums");
    name(reduce_sum(many), "sum");
    name(transpose(many, {1, 0}), "columns");
    BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  }
  void name(value v, const std::string& n) { g.node(v.node).name = n; }
  std::string failure(const std::string& fetch, std::vector<tensor> batch) {
    const auto done = graph_stage(*s, g, "many", fetch)(std::move(batch));
    return done ? "" : done.error().text();
  }

  std::unique_ptr<session> s = std::move(*session::open({.gpus = "none"}));
  graph g{s->ops()};
};

struct fed {
  int number;
  tensor x, many;
  static constexpr auto fields =
      troupe::fields<&fed::number, &fed::x, &fed::many>("number", "x", "many");
};
struct fetched {
  tensor rows, y;
  int number;
  static constexpr auto fields =
      troupe::fields<&fetched::rows, &fetched::y, &fetched::number>("rows", "y", "number");
};
struct halves {
  tensor many;
  static constexpr auto fields = troupe::fields<&halves::many>("many");
};
struct summed {
  tensor sums, rows;
  static constexpr auto fields = troupe::fields<&summed::sums, &summed::rows>("sums", "rows");
};

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(model_stage)

BOOST_FIXTURE_TEST_CASE(a_graph_is_a_stage, doubling) {
  topology t({.threads = 1});
  const auto all = collect(map(from(t, std::vector<tensor>{pair_of(1, 2), pair_of(3, 4)}),
                               graph_stage(*s, g, "x", "y")));
  const auto done = t.run_to_end();
  BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
  BOOST_TEST_REQUIRE(all->size() == 2U);
  BOOST_TEST((numbers_of((*all)[0]) == std::vector<float>{2, 4}));
  BOOST_TEST((numbers_of((*all)[1]) == std::vector<float>{6, 8}));
}

BOOST_FIXTURE_TEST_CASE(a_batch_is_computed_at_once_and_comes_back_one_by_one, doubling) {
  const std::shared_ptr<graph_runner> runner = s->runner(g);
  const auto done =
      graph_stage(runner, "many", "rows")(std::vector{pair_of(1, 2), pair_of(3, 4), pair_of(5, 6)});
  BOOST_REQUIRE_MESSAGE(done, (done ? "" : done.error().text()));
  BOOST_TEST_REQUIRE(done->size() == 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto first = 2 * static_cast<float>(2 * i + 1);
    BOOST_TEST((numbers_of((*done)[i]) == std::vector<float>{first, first + 2}));
    BOOST_TEST(((*done)[i].spec() == tensor_spec{dtype::f32, {2}}));
  }
  // One number of each.
  const auto sums =
      graph_stage(runner, "many", "sums")(std::vector{pair_of(1, 2), pair_of(3, 4), pair_of(5, 6)});
  BOOST_TEST_REQUIRE(bool(sums));
  BOOST_TEST_REQUIRE(sums->size() == 3U);
  BOOST_TEST((numbers_of((*sums)[2]) == std::vector<float>{11}));
}

BOOST_FIXTURE_TEST_CASE(several_feeds_and_fetches_are_the_fields_of_structs, doubling) {
  auto one = graph_stage_of<fed, fetched>(*s, g);
  const auto y = one(fed{7, pair_of(1, 2), tensor::of({1, 2, 3, 4, 5, 6}, {3, 2})});
  BOOST_REQUIRE_MESSAGE(y, (y ? "" : y.error().text()));
  BOOST_TEST((numbers_of(y->y) == std::vector<float>{2, 4}));
  BOOST_TEST((numbers_of(y->rows) == std::vector<float>{2, 4, 6, 8, 10, 12}));
  BOOST_TEST(y->number == 7);  // it goes along
  // Of a batch each has its rows of all fetches.
  auto many = graph_stage_of<halves, summed>(*s, g);
  const auto all = many(std::vector<halves>{{pair_of(1, 2)}, {pair_of(3, 4)}, {pair_of(5, 6)}});
  BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().text()));
  BOOST_TEST_REQUIRE(all->size() == 3U);
  BOOST_TEST((numbers_of((*all)[2].rows) == std::vector<float>{10, 12}));
  BOOST_TEST((numbers_of((*all)[2].sums) == std::vector<float>{11}));
  const auto uneven = many(std::vector<halves>{{pair_of(1, 2)}, {tensor::of({1}, {1})}});
  BOOST_TEST_REQUIRE(!uneven);
  BOOST_TEST(says(uneven.error().text(), "'many': a batch of different tensors"));
}

BOOST_FIXTURE_TEST_CASE(what_does_not_fit_is_an_error, doubling) {
  const std::vector<tensor> three{pair_of(1, 2), pair_of(3, 4), pair_of(5, 6)};
  BOOST_TEST(says(failure("rows", {}), "a batch of no tensors"));
  BOOST_TEST(says(failure("rows", {pair_of(1, 2), tensor::of({1}, {1})}),
                  "a batch of different tensors: number 0 is f32[2], number 1 is f32[1]"));
  BOOST_TEST(says(failure("rows", {pair_of(1, 2)}), "'many'"));
  BOOST_TEST(says(failure("sum", three), "a single number is no batch"));
  BOOST_TEST(says(failure("columns", three), "'columns' has 2 rows for a batch of 3"));
  const auto one = graph_stage(*s, g, "x", "nobody")(pair_of(1, 2));
  BOOST_TEST_REQUIRE(!one);
  BOOST_TEST(says(one.error().text(), "the graph has no 'nobody'"), one.error().text());
  // As many dimensions as a shape has, and then one more.
  std::vector<dim> most(shape::rank_max, dim{1, 0});
  const auto deep = shape::from(most);
  BOOST_TEST_REQUIRE(bool(deep));
  const auto stacked = stack({tensor::make({dtype::f32, *deep})});
  BOOST_TEST_REQUIRE(!stacked);
  BOOST_TEST(says(stacked.error().text(), "1 tensors of f32["), stacked.error().text());
  BOOST_TEST(says(stacked.error().text(), "are too many for one"), stacked.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
