// Graphs as ONNX models: every op of the table, random graphs and layers, written and read back,
// and what cannot be written. With TROUPE_WRITE_ONNX=FOLDER the cases are written there, for
// tests/onnx/exported_models.py, which lets onnxruntime run them.

#include "troupe/runtime/onnx/onnx_export.hpp"

#include "tests/support/onnx_writer.hpp"
#include "tests/support/op_cases.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/onnx/model_writer.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace troupe;
using op_cases::drawer;
using reference::array;

namespace {

namespace fs = std::filesystem;
using named_arrays = std::vector<std::pair<std::string, array>>;
using named_weights = std::vector<std::pair<std::string, tensor>>;

void write_file(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string as_message(const array& a) {
  onnx_format::Tensor t;
  test::put_tensor(t, a);
  return t.SerializeAsString();
}

// In the layout of the format's own tests, where a folder is asked for.
void keep_case(const std::string& name, const std::string& model, const named_arrays& fed,
               const std::vector<array>& outputs) {
  const auto* folder = std::getenv("TROUPE_WRITE_ONNX");
  if (folder == nullptr) return;
  const auto to = fs::path(folder) / name;
  write_file(to / "model.onnx", model);
  for (std::size_t i = 0; i < fed.size(); ++i)
    write_file(to / "test_data_set_0" / fmt::format("input_{}.pb", i), as_message(fed[i].second));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    write_file(to / "test_data_set_0" / fmt::format("output_{}.pb", i), as_message(outputs[i]));
}

bool is_near(double x, double y) {
  return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= 1e-6 * (1 + std::abs(y));
}

// Written, read back, and run: the same numbers. Variables have the values of `weights`.
void round_trip(const std::string& name, graph& g, const std::vector<onnx_value>& outputs,
                const named_arrays& fed, const named_weights& weights = {}) {
  const auto bytes = write_onnx(g, outputs, {.variables = weights});
  BOOST_TEST_REQUIRE(bool(bytes), (bytes ? "" : bytes.error().text()));
  reference::feeds feeds, again;
  for (const auto& [input, x] : fed) feeds[input] = x;
  for (const auto& [variable, t] : weights) feeds[variable] = reference::to_array(t);
  const auto model = parse_onnx(std::as_bytes(std::span(*bytes)), "written.onnx", "");
  BOOST_TEST_REQUIRE(bool(model), (model ? "" : model.error().text()));
  graph back(g.ops());
  std::vector<std::pair<std::string, tensor_spec>> shapes;
  for (const auto& [input, x] : fed)
    if (std::ranges::any_of(model->inputs(), [&](const auto& p) { return p.name == input; }))
      shapes.emplace_back(input, x.spec);
  const auto built = model->build(back, {.shapes = shapes});
  BOOST_TEST_REQUIRE(bool(built), (built ? "" : built.error().text()));
  for (const auto& i : built->inputs)
    again[back.node(i.at.node).name] =
        std::ranges::find(fed, i.name, &named_arrays::value_type::first)->second;
  BOOST_TEST_REQUIRE(built->outputs.size() == outputs.size());
  std::vector<array> results;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    BOOST_TEST(built->outputs[o].name == outputs[o].name);
    const auto wanted = reference::evaluate(g, outputs[o].at, feeds),
               got = reference::evaluate(back, built->outputs[o].at, again);
    BOOST_TEST_REQUIRE(to_string(got.spec) == to_string(wanted.spec));
    for (std::size_t e = 0; e < wanted.at.size(); ++e)
      BOOST_TEST_REQUIRE(is_near(got.at[e], wanted.at[e]), name << ", output " << o << ", element "
                                                                << e << ": " << got.at[e]
                                                                << ", expected " << wanted.at[e]);
    results.push_back(wanted);
  }
  named_arrays of_model;
  for (const auto& p : model->inputs())
    of_model.push_back(*std::ranges::find(fed, p.name, &named_arrays::value_type::first));
  keep_case(name, *bytes, of_model, results);
}

void expect_refused(const graph& g, const std::vector<onnx_value>& outputs,
                    const onnx_save_options& options,
                    std::initializer_list<std::string_view> parts) {
  const auto bytes = write_onnx(g, outputs, options);
  BOOST_TEST_REQUIRE(!bytes);
  const auto text = bytes.error().text();
  BOOST_TEST((bytes.error().code() == error_code::usage), text);
  BOOST_TEST(text.find('\n') == std::string::npos, text);
  BOOST_TEST(text.find("onnx_export_test.cpp:") != std::string::npos, text << " has no line");
  for (const auto p : parts) BOOST_TEST(text.find(p) != std::string::npos, text << " lacks " << p);
}

struct folder_of_test {
  fs::path path = fs::temp_directory_path() / fmt::format("troupe_onnx_export_{}", ::getpid());
  folder_of_test() { fs::create_directories(path); }
  ~folder_of_test() { fs::remove_all(path); }
};

// Values of all variables of a graph, by a number.
named_weights drawn_weights(graph& g, drawer& d) {
  named_weights all;
  for (const auto& v : g.variables())
    all.emplace_back(
        g.node(v.node).name,
        reference::to_tensor(d.values(dtype::f32, op_cases::sizes_of(v.spec().shape), 0.1, 0.6)));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx_export)

BOOST_AUTO_TEST_CASE(OE_1_every_op_that_can_be_written_comes_back_with_the_same_numbers) {
  const auto ops = make_op_table();
  const auto rules = onnx::export_rules();
  for (const auto& [type, row] : ops.rows()) {
    if (!rules.contains(type)) continue;
    int tested = 0;
    for (std::uint8_t n = 0; n < dtype_count; ++n) {
      const dtype t{n};
      if (!row.types.is_empty() && !row.types.has(t)) continue;
      drawer d(n + 1);
      for (int i = 0; i < 12; ++i) {
        auto c = type == "after" ? op_cases::drawn_case{{d.values(t, {2}), d.values(t, {3})}, {}}
                                 : op_cases::draw(d, type, row, t);
        if (!c || c->attrs.integer("sum_batches") != 0) continue;
        const auto name = fmt::format("{}_{}_{}", type, to_string(t), i);
        BOOST_TEST_CONTEXT(name) {
          graph g(ops);
          named_arrays fed;
          std::vector<value> in;
          for (const auto& a : c->operands) {
            fed.emplace_back(fmt::format("x{}", in.size()), a);
            in.push_back(input(g, a.spec, fed.back().first));
          }
          const auto y = g.add(type, in, c->attrs, "op", source_location::current());
          BOOST_TEST_REQUIRE(y.is_valid());
          std::vector<onnx_value> outputs;
          const auto results = type == "softmax_cross_entropy" ? 1 : g.node(y.node).outputs.size();
          for (std::uint32_t o = 0; o < results; ++o)
            outputs.push_back({fmt::format("y{}", o), value{&g, y.node, o}});
          round_trip(name, g, outputs, fed);
          ++tested;
        }
      }
    }
    BOOST_TEST(tested > 0, type << " was not drawn");
  }
}

BOOST_AUTO_TEST_CASE(OE_2_what_cannot_be_written_is_an_error_with_op_and_line) {
  const auto ops = make_op_table();
  const auto rules = onnx::export_rules();
  const std::set<std::string> written{"input", "variable", "constant", "constant_tensor"};
  for (const auto& [type, row] : ops.rows()) {
    if (rules.contains(type) || written.contains(type) || row.types.is_empty()) continue;
    drawer d(1);
    for (int i = 0; i < 4; ++i) {
      auto c = op_cases::draw(d, type, row, row.types.has(dtype::f32) ? dtype::f32 : dtype::i32);
      if (!c) continue;
      graph g(ops);
      std::vector<value> in;
      for (const auto& a : c->operands) in.push_back(input(g, a.spec, "x"));
      const auto y = g.add(type, in, c->attrs, "op", source_location::current());
      if (!y.is_valid()) continue;  // of a collective, which needs more than these attributes
      expect_refused(g, {{"y", y}}, {}, {"save_onnx: op 'op' (" + type + ") cannot be written: "});
    }
  }
  graph g(ops);
  const auto x = input(g, {dtype::f32, {2}}, "x"), yes = input(g, {dtype::boolean, {}}, "yes");
  expect_refused(g, {{"y", dropout(x, 0.5)}}, {}, {"dropout_mask", "leave dropout out"});
  expect_refused(g, {{"y", random_normal(g, {dtype::f32, {2}})}}, {}, {"random_normal", "numbers"});
  const auto chosen =
      cond(yes, [&] { return std::vector{neg(x)}; }, [&] { return std::vector{x}; });
  expect_refused(g, {{"y", chosen[0]}}, {}, {"branches and loops are not written"});
  const auto batch = index_batch(g, 10, {.batch = 2});
  expect_refused(g, {{"y", batch.ids}}, {}, {"index_batch", "build what is saved on an input"});
  // What no output follows from does not matter.
  round_trip("beside", g, {{"y", x}}, {{"x", drawer(1).values(dtype::f32, {2})}});
}

BOOST_AUTO_TEST_CASE(OE_1_windows_that_reach_beyond_the_padding_come_back) {
  const auto ops = make_op_table();
  drawer d(4);
  // In steps of 2 a window of 2 begins behind 3 elements with one of padding in front, which counts
  // for none; along the other axis, with 4 and no padding, one of 3 reaches beyond.
  graph g(ops);
  const auto x = input(g, {dtype::f32, {1, 1, 3, 4}}, "x");
  pool2d_options o{.window = {2, 3},
                   .strides = std::array<std::int64_t, 2>{2, 2},
                   .before = {1, 0},
                   .after = {1, 0},
                   .round_up = true};
  round_trip("pool_mixed", g, {{"max", max_pool2d(x, o)}, {"mean", avg_pool2d(x, o)}},
             {{"x", d.values(dtype::f32, {1, 1, 3, 4})}});
  o.window = {3, 2}, o.strides = std::array<std::int64_t, 2>{3, 3}, o.before = {2, 1},
  o.after = {0, 1};
  for (const bool counts : {false, true}) {
    graph h(ops);
    o.count_padding = counts;
    const auto y = input(h, {dtype::f32, {1, 1, 5, 6}}, "x");
    round_trip(fmt::format("pool_up_{}", counts), h, {{"mean", avg_pool2d(y, o)}},
               {{"x", d.values(dtype::f32, {1, 1, 5, 6})}});
  }
}

BOOST_AUTO_TEST_CASE(OE_1_constants_of_every_type_and_shape_come_back) {
  const auto ops = make_op_table();
  for (std::uint8_t n = 0; n < dtype_count; ++n) {
    const dtype t{n};
    drawer d(n);
    graph g(ops);
    const auto one = constant(g, 1, t);
    const auto some = constant(g, reference::to_tensor(d.values(t, {2, 3}))),
               none = constant(g, reference::to_tensor(d.values(t, {0, 3})));
    round_trip(fmt::format("constants_{}", to_string(t)), g,
               {{"one", one}, {"some", some}, {"none", none}, {"again", some}}, {});
  }
}

BOOST_AUTO_TEST_CASE(OE_1_random_graphs_come_back_with_the_same_numbers) {
  const auto ops = make_op_table();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      drawer d(seed);
      graph g(ops);
      const std::int64_t rows = 2 + d.below(4), columns = 2 + d.below(5);
      const tensor_spec s{dtype::f32, {rows, columns}};
      std::vector<value> all{input(g, s, "a"), input(g, s, "b"), variable(g, s, {}, "weights")};
      const auto any = [&] {
        return all[static_cast<std::size_t>(d.below(static_cast<std::int64_t>(all.size())))];
      };
      for (int i = 0; i < 15; ++i) {
        const auto x = any(), y = any();
        switch (d.below(16)) {
          case 0: all.push_back(add(x, y)); break;
          case 1: all.push_back(mul(tanh(x), y)); break;
          case 2: all.push_back(maximum(x, neg(y))); break;
          case 3: all.push_back(softmax(x, d.below(2))); break;
          case 4: all.push_back(standardize(x, {d.below(2)}).y); break;
          case 5: all.push_back(matmul(matmul(x, y, false, true), softmax(y))); break;
          case 6: all.push_back(transpose(reshape(x, {columns, -1}))); break;
          case 7: all.push_back(pad(slice(x, {range{.begin = 1}}), {0, 0}, {1, 0}, 0.5)); break;
          case 8: all.push_back(sub(x, reduce_mean(y, {d.below(2)}, true))); break;
          case 9: all.push_back(where(less(x, y), gelu(x), sigmoid(y))); break;
          case 10: all.push_back(slice(concat({x, y}, 0), {range{.begin = -rows}})); break;
          case 11: all.push_back(slice(x, {range{.begin = -1, .step = -1}})); break;
          case 12:
            all.push_back(gather(x, constant(g, reference::to_tensor(d.indices({rows}, rows)))));
            break;
          case 13: all.push_back(cumulative_sum(sigmoid(x), d.below(2), d.coin(), d.coin())); break;
          case 14: all.push_back(broadcast_like(reduce_max(x, {}, true), y)); break;
          default: all.push_back(mul(silu(x), cast(cast(clip(y, -3, 3), dtype::i32), dtype::f32)));
        }
        BOOST_TEST_REQUIRE(all.back().is_valid(), (g.first_error() ? g.first_error()->text() : ""));
        if (all.back().spec() != s) all.back() = tanh(all.back()), all.pop_back();
      }
      // Casts cut off: near a whole number two computations may end on either side.
      round_trip(fmt::format("random_{}", seed), g, {{"y", all.back()}, {"z", any()}},
                 {{"a", d.values(dtype::f32, {rows, columns})},
                  {"b", d.values(dtype::f32, {rows, columns})}},
                 drawn_weights(g, d));
    }
}

BOOST_AUTO_TEST_CASE(OE_1_layers_come_back_for_any_batch_that_the_bound_allows) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto image = input(g, {dtype::f32, batch_of(8, {2, 9, 7})}, "image");
  auto x = conv2d(image, variable(g, {dtype::f32, {4, 2, 3, 3}}, {}, "conv/weights"),
                  {.strides = {2, 1}, .before = {1, 1}, .after = {1, 1}});
  const auto of_channels = [&](const char* name) {
    return variable(g, {dtype::f32, {4}}, {}, name);
  };
  x = batch_norm(x, of_channels("scale"), of_channels("shift"), of_channels("mean"),
                 of_channels("variance"));
  x = max_pool2d(relu(x), {.window = {2, 2}, .round_up = true});
  x = avg_pool2d(x, {.window = {2, 2}, .strides = std::array<std::int64_t, 2>{1, 1}});
  const auto shape_of = x.spec().shape;
  x = reshape(x, {0, -1});
  const auto width = x.spec().shape.size(1);
  BOOST_TEST(shape_of.rank() == 4U);
  x = matmul(x, variable(g, {dtype::f32, {width, 12}}, {}, "dense/weights"));
  x = layer_norm(gelu(x), variable(g, {dtype::f32, {12}}, {}, "norm/scale"),
                 variable(g, {dtype::f32, {12}}, {}, "norm/shift"));
  const auto positions = reshape(x, {0, 3, 4});
  const auto seen = attention(positions, positions, positions, {.heads = 2, .causal = true});
  const auto logits = reduce_mean(seen, {1});
  const auto mean = reduce_mean(logits);  // over a batch whose size is open
  const auto like = broadcast_like(mean, logits);
  BOOST_TEST_REQUIRE(like.is_valid(), (g.first_error() ? g.first_error()->text() : ""));
  drawer d(3);
  const auto weights = drawn_weights(g, d);
  for (const std::int64_t n : {1, 3, 8})
    round_trip(fmt::format("layers_{}", n), g, {{"logits", logits}, {"like", like}},
               {{"image", d.values(dtype::f32, {n, 2, 9, 7})}}, weights);
}

// Other readers take no axis that is counted from the end there.
BOOST_AUTO_TEST_CASE(axes_of_a_transpose_are_counted_from_the_beginning) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {2, 3, 4}}, "x");
  const auto bytes = write_onnx(g, std::vector<onnx_value>{{"y", transpose(x, {-1, 0, -2})}});
  BOOST_TEST_REQUIRE(bool(bytes), (bytes ? "" : bytes.error().text()));
  onnx_format::Model m;
  BOOST_TEST_REQUIRE(m.ParseFromString(*bytes));
  std::vector<std::int64_t> order;
  for (const auto& n : m.graph().nodes())
    for (const auto& a : n.attributes())
      if (a.name() == "perm") order.assign(a.integers().begin(), a.integers().end());
  BOOST_TEST(order == (std::vector<std::int64_t>{2, 0, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(names_are_those_that_are_asked_for) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {2}}, "x"), z = input(g, {dtype::f32, {2}}, "logits");
  const auto y = add(x, z);
  // An output called as an input's op is, and inputs of other names in another order.
  const auto bytes = write_onnx(g, std::vector<onnx_value>{{"x", y}, {"twice", y}},
                                {.inputs = {{"other name?", z}, {"first", x}}});
  BOOST_TEST_REQUIRE(bool(bytes), (bytes ? "" : bytes.error().text()));
  const auto model = parse_onnx(std::as_bytes(std::span(*bytes)), "m.onnx", "");
  BOOST_TEST_REQUIRE(bool(model), (model ? "" : model.error().text()));
  BOOST_TEST_REQUIRE(model->inputs().size() == 2U);
  BOOST_TEST(model->inputs()[0].name == "other name?");
  BOOST_TEST(model->inputs()[1].name == "first");
  BOOST_TEST(model->outputs()[0].name == "x");
  BOOST_TEST(model->outputs()[1].name == "twice");
}

BOOST_AUTO_TEST_CASE(mistakes_of_the_caller_are_errors_that_name_what_is_wrong) {
  const auto ops = make_op_table();
  graph g(ops), other(ops);
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
  const auto y = mul(x, w);
  const auto of = [](const shape& s) { return tensor::make({dtype::f32, s}); };
  expect_refused(g, {}, {}, {"at least one output"});
  expect_refused(g, {{"y", value{}}}, {}, {"output 'y' is no value of the graph"});
  expect_refused(g, {{"y", input(other, {dtype::f32, {2}}, "x")}}, {}, {"no value of the graph"});
  expect_refused(g, {{"", y}}, {}, {"has no name"});
  expect_refused(g, {{"y", y}, {"y", x}}, {}, {"two inputs or outputs have the name 'y'"});
  expect_refused(g, {{"y", y}}, {}, {"variable 'w' has no value", "variables"});
  expect_refused(g, {{"y", y}}, {.variables = {{"w", of({3})}}}, {"'w' is f32[2]", "f32[3]"});
  expect_refused(g, {{"y", y}}, {.inputs = {{"a", w}}}, {"input 'a' is a variable"});
  expect_refused(g, {{"y", y}}, {.variables = {{"w", of({2})}}, .file_bytes_max = 4},
                 {"8 bytes", "file_bytes_max is 4"});
  BOOST_TEST(
      bool(write_onnx(g, std::vector<onnx_value>{{"y", y}}, {.variables = {{"w", of({2})}}})));
  (void)reshape(x, {3});
  BOOST_TEST(write_onnx(g, std::vector<onnx_value>{{"y", x}}).error().message() ==
             g.first_error()->message());
}

BOOST_AUTO_TEST_CASE(OE_3_large_data_lie_beside_the_model_and_a_file_is_replaced_as_a_whole) {
  const folder_of_test folder;
  const auto ops = make_op_table();
  graph g(ops);
  drawer d(5);
  const auto x = input(g, {dtype::f32, {2, 3}}, "x");
  // The shape stays in the model: other readers cannot look into a second file for it.
  const auto y = reshape(add(matmul(x, variable(g, {dtype::f32, {3, 300}}, {}, "w")),
                             variable(g, {dtype::f32, {300}}, {}, "b")),
                         {20, 30});
  const auto weights = drawn_weights(g, d);
  const std::vector<onnx_value> outputs{{"y", y}};
  const auto fed = d.values(dtype::f32, {2, 3});
  const auto path = (folder.path / "m.onnx").string();
  for (const std::uint64_t limit : {std::uint64_t{1} << 20U, std::uint64_t{10}}) {
    const auto saved = save_onnx(g, outputs, path, {.variables = weights, .file_bytes_max = limit});
    BOOST_TEST_REQUIRE(bool(saved), (saved ? "" : saved.error().text()));
    BOOST_TEST_REQUIRE(fs::exists(path + ".data") == (limit == 10));
    if (limit == 10) BOOST_TEST(fs::file_size(path + ".data") == 4U * (3 * 300 + 300));
    const auto model = load_onnx(path);
    BOOST_TEST_REQUIRE(bool(model), (model ? "" : model.error().text()));
    graph back(ops);
    const auto built = model->build(back);
    BOOST_TEST_REQUIRE(bool(built), (built ? "" : built.error().text()));
    reference::feeds feeds{{"x", fed}};
    for (const auto& [name, t] : weights) feeds[name] = reference::to_array(t);
    BOOST_TEST((reference::evaluate(back, built->outputs[0].at, {{"x", fed}}) ==
                reference::evaluate(g, y, feeds)));
  }
  // Nothing is written where something is missing, or the place is none.
  const auto size = fs::file_size(path);
  BOOST_TEST(!save_onnx(g, outputs, path));
  BOOST_TEST(fs::file_size(path) == size);
  BOOST_TEST(bool(can_save_onnx(path)));
  BOOST_TEST(!can_save_onnx(folder.path.string()));
  BOOST_TEST(!can_save_onnx((folder.path / "none" / "m.onnx").string()));
  const auto nowhere =
      save_onnx(g, outputs, (folder.path / "none" / "m.onnx").string(), {.variables = weights});
  BOOST_TEST_REQUIRE(!nowhere);
  BOOST_TEST(nowhere.error().message().find("cannot write") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
