#include "troupe/runtime/compile/graph_file.hpp"

#include "tests/support/graph_files.hpp"
#include "tests/support/repetitions.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <random>

using namespace troupe;
using test::loss_of;
using test::sealed;

namespace {

std::string error_of(const auto& r) { return r ? "no error" : r.error().text(); }

// A perceptron in two scopes, one of them on a device; a convolutional net with batch
// normalisation; a transformer's block; tables.
value convolutional(graph& g) {
  const auto data = idx_batch(g, test::images(), {.batch = 16});
  auto x = reshape(data.images, {0, 1, 28, 28});
  x = batch_norm(conv2d(x, 4, {5, 5}, "conv_1", {.same = true}), "norm_1");
  x = max_pool2d(relu(x));
  return softmax_cross_entropy(dense(reshape(x, {0, 4 * 14 * 14}), 10, "dense_1"), data.labels,
                               data.scale);
}

value language_model(graph& g) {
  const auto batch =
      text_batch(g, {.path = "a text", .bytes = 100'000}, {.batch = 4, .context = 16, .seed = 3});
  auto x = embedding(batch.tokens, 256, 32, "bytes") +
           variable(g, {dtype::f32, {16, 32}}, normal(0.02), "places");
  {
    const auto block = g.name_scope("block_1");
    x = x +
        dropout(self_attention(layer_norm(x, "norm_1"), {.heads = 4, .causal = true}, "attention"),
                0.1);
  }
  moving_average(reduce_mean(x), "mean_of_features", {.rate = 0.25, .beside = x});
  const auto logits = dense(layer_norm(x, "norm"), 256, "logits");
  return reduce_sum(cross_entropy(logits, batch.targets)) * batch.scale;
}

value with_constants(graph& g) {
  const std::vector<float> numbers{1, 2, 3, 4, 5, 6};
  auto t = tensor::make({dtype::f32, {3, 2}});
  std::copy(numbers.begin(), numbers.end(), t.data<float>());
  const auto table = constant(g, t, "table") * constant(g, 2.5F) + constant(g, 1.0F);
  const auto w = variable(g, {dtype::f32, {3, 2}}, filled_with(0.5), "w");
  return reduce_sum(square(w * table - constant(g, -0.0F, "zero")));
}

struct sample {
  const char* name;
  std::function<value(graph&)> build;
};
const std::vector<sample> samples{{"perceptron", [](graph& g) { return loss_of(g); }},
                                  {"cnn", convolutional},
                                  {"language model", language_model},
                                  {"constants", with_constants}};

training_spec two_workers() {
  training_spec s;
  s.workers = 2;
  s.shards = 3;
  s.steps = 12;
  s.optimizer = adam({.learning_rate = 0.01});
  s.schedule = cosine({.steps = 12, .warmup = 2});
  s.clip_global_norm = 2;
  s.is_recoverable = true;
  return s;
}

std::vector<std::byte> bytes_of(graph& g, const graph_use& use) {
  auto bytes = encode_graph(g, use);
  BOOST_TEST_REQUIRE(bool(bytes), error_of(bytes));
  return std::move(*bytes);
}

saved_graph read(std::span<const std::byte> bytes, const op_table& ops) {
  auto g = decode_graph(bytes, ops);
  BOOST_TEST_REQUIRE(bool(g), error_of(g));
  return std::move(*g);
}

bool is_one_line(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(graph_file)

BOOST_AUTO_TEST_CASE(GF_1_updates_come_back_too) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {2, 3}}, "x");
  const auto w = variable(g, {dtype::f32, {3}}, {}, "w");
  const auto rate = input(g, {dtype::f32, {}}, "rate");
  const auto when = input(g, {dtype::boolean, {}}, "when");
  const auto mean = moving_average(reduce_mean(x, {0}), "mean");
  const auto loss = reduce_sum(x * w - mean);
  minimize(loss, adamw({.learning_rate = 0.25, .weight_decay = 0.5}),
           {.schedule = cosine({.steps = 9, .warmup = 2}),
            .rate = rate,
            .when = when,
            .state = "mine",
            .clip_global_norm = 2});
  assign(w, w * 2.0F, "set");
  assign_add(w, reduce_mean(x, {0}), "add");
  BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  const graph_use use{.name = "updates", .loss = loss};
  const auto bytes = bytes_of(g, use);
  const auto back = read(bytes, ops);
  BOOST_TEST((bytes_of(*back.graph, back.use) == bytes));
  BOOST_TEST_REQUIRE(back.graph->updates().size() == g.updates().size());
  BOOST_TEST(g.updates().size() == 4U);
  for (std::size_t i = 0; i < g.updates().size(); ++i) {
    const auto &a = g.updates()[i], &b = back.graph->updates()[i];
    BOOST_TEST(a.name == b.name);
    BOOST_TEST((a.type == b.type && a.optimizer == b.optimizer && a.schedule == b.schedule));
    BOOST_TEST((a.state == b.state && a.average_rate == b.average_rate));
    BOOST_TEST(a.variable.node == b.variable.node);
    BOOST_TEST(a.operand.node == b.operand.node);
    BOOST_TEST((a.rate.is_valid() == b.rate.is_valid() && a.when.is_valid() == b.when.is_valid()));
    BOOST_TEST(a.source.line() == b.source.line());
  }
  // Changed ones are errors, or graphs that can be saved again.
  std::size_t graphs = 0;
  const auto tries = repetitions(5'000);
  for (std::uint64_t seed = 0; seed < tries; ++seed) {
    std::mt19937_64 random(seed);
    const auto made = decode_graph(
        sealed(test::mutated({bytes.begin() + test::message_at, bytes.end()}, random)), ops);
    if (!made)
      BOOST_REQUIRE_MESSAGE(is_one_line(made.error().text()),
                            "seed " << seed << ": " << made.error().text());
    else
      BOOST_REQUIRE_MESSAGE(bool(encode_graph(*made->graph, made->use)), "seed " << seed);
    graphs += bool(made);
  }
  BOOST_TEST(graphs > tries / 50);
}

BOOST_AUTO_TEST_CASE(GF_1_a_graph_comes_back_as_it_was_with_the_same_bytes_and_plans) {
  const auto ops = make_op_table();
  for (const auto& s : samples) {
    graph g(ops);
    const auto loss = s.build(g);
    BOOST_TEST_REQUIRE(!g.first_error(),
                       s.name << ": " << (g.first_error() ? g.first_error()->text() : ""));
    const graph_use use{.name = s.name,
                        .loss = loss,
                        .fetches = {{"the loss", loss}, {"first", {&g, 0, 0}}},
                        .training = graph_training{two_workers(),
                                                   {.name = s.name,
                                                    .credits = 3,
                                                    .edge_bytes = 12'345'678,
                                                    .simplify = false,
                                                    .share_memory = false,
                                                    .order_reads = false,
                                                    .order_pushes = false,
                                                    .device_collectives = false,
                                                    .bucket_bytes = 777,
                                                    .on_nan = nan_policy::warn,
                                                    .fast = true,
                                                    .precision = precision_kind::f16,
                                                    .loss_scale = dynamic_loss_scale(512, 7)}}};
    const auto bytes = bytes_of(g, use);
    auto back = read(bytes, ops);
    BOOST_TEST((bytes_of(*back.graph, back.use) == bytes), s.name);

    BOOST_TEST_REQUIRE(back.graph->nodes().size() == g.nodes().size());
    for (std::uint32_t i = 0; i < g.nodes().size(); ++i) {
      const auto &a = g.node(i), &b = back.graph->node(i);
      BOOST_TEST(a.name == b.name);
      BOOST_TEST(a.type == b.type);
      BOOST_TEST(a.device == b.device);
      BOOST_TEST((a.attrs == b.attrs), a.name);
      BOOST_TEST((a.outputs == b.outputs), a.name);
      BOOST_TEST((a.initializer == b.initializer && a.average_rate == b.average_rate), a.name);
      BOOST_TEST(std::string(a.source.file_name()) == b.source.file_name());
      BOOST_TEST(a.source.line() == b.source.line());
    }
    BOOST_TEST(back.graph->averages().size() == g.averages().size());
    BOOST_TEST(back.use.name == s.name);
    BOOST_TEST(back.use.fetches.at(1).name == "first");
    const auto& options = back.use.training->options;
    BOOST_TEST(options.credits == 3U);
    BOOST_TEST(options.edge_bytes == 12'345'678U);
    BOOST_TEST((options.fuse && options.fold && !options.simplify && options.share &&
                !options.share_memory && !options.order_reads && !options.order_pushes &&
                !options.device_collectives && options.bucket_bytes == 777 &&
                options.sparse_pushes && options.fast));
    BOOST_TEST((options.on_nan == nan_policy::warn));
    BOOST_TEST((options.precision == precision_kind::f16 &&
                options.loss_scale == dynamic_loss_scale(512, 7)));
    BOOST_TEST((back.use.training->spec.optimizer == two_workers().optimizer &&
                back.use.training->spec.schedule == two_workers().schedule));

    // Steps first: a training adds ops.
    const auto fetch = *back.use.loss;
    const auto steps = compile_steps(g, {&loss, 1}, {}),
               steps_back = compile_steps(*back.graph, {&fetch, 1}, {});
    BOOST_TEST_REQUIRE(bool(steps), error_of(steps));
    BOOST_TEST_REQUIRE(bool(steps_back), error_of(steps_back));
    BOOST_TEST((*steps == *steps_back), s.name);
    const auto p = compile_training(g, loss, use.training->spec, use.training->options);
    const auto q =
        compile_training(*back.graph, fetch, back.use.training->spec, back.use.training->options);
    BOOST_TEST_REQUIRE(bool(p), s.name << ": " << error_of(p));
    BOOST_TEST_REQUIRE(bool(q), s.name << ": " << error_of(q));
    BOOST_TEST((*p == *q), s.name);
  }
}

BOOST_AUTO_TEST_CASE(
    GF_1_ops_that_are_added_to_a_graph_that_was_read_get_the_names_that_they_would_have_got) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto loss = loss_of(g);
  auto back = read(bytes_of(g, {.loss = loss}), ops);
  for (const char* base : {"constant", "dense_1/matmul", "tower/add", "relu_1", "relu"})
    BOOST_TEST(g.name_for(base) == back.graph->name_for(base));
}

BOOST_AUTO_TEST_CASE(
    GF_1_a_graph_without_roots_with_those_of_another_or_with_an_error_is_not_saved) {
  const auto ops = make_op_table();
  graph g(ops), other(ops);
  const auto loss = loss_of(g);
  BOOST_TEST(error_of(encode_graph(g, {})).find("a loss, or values to fetch") != std::string::npos);
  BOOST_TEST(error_of(encode_graph(g, {.loss = loss_of(other)})).find("not a value of the graph") !=
             std::string::npos);
  BOOST_TEST(error_of(encode_graph(g, {.fetches = {{"y", value{}}}})).find("'y'") !=
             std::string::npos);
  matmul(loss, loss);
  BOOST_TEST(error_of(encode_graph(g, {.loss = loss})).find("graph_file_test.cpp") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(GF_1_a_name_that_a_reader_would_refuse_is_not_saved) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto loss = loss_of(g);
  BOOST_TEST(error_of(encode_graph(g, {.name = "a\nb", .loss = loss})).find("'a?b' is no name") !=
             std::string::npos);
  BOOST_TEST(error_of(encode_graph(g, {.name = std::string(2000, 'a'), .loss = loss}))
                 .find("is no name") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(GF_1_an_eager_is_saved_where_its_shapes_are_those_of_every_step) {
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  eager e(ops, kernels, device);
  const auto y = relu(constant(e, 2.0F) * constant(e, -3.0F));
  BOOST_TEST(bool(decode_graph(bytes_of(e, {.fetches = {{"y", y}}}), ops)));
  const auto batch = index_batch(e, 10, {.batch = 4});
  const auto refused = encode_graph(e, {.fetches = {{"ids", batch.ids}}});
  BOOST_TEST(
      error_of(refused).find(
          "the graph would not be the same when it is read: index_batch 'index_batch' makes i64[4?]") !=
          std::string::npos,
      error_of(refused));
}

BOOST_AUTO_TEST_CASE(
    GF_2_a_shape_rule_that_says_something_else_now_is_an_error_with_the_users_line) {
  auto ops = make_op_table();
  graph g(ops);
  const auto bytes = bytes_of(g, {.loss = loss_of(g)});
  auto changed = make_op_table();
  auto row = *changed.find("relu");
  row.shapes = [](const attributes&, std::span<const tensor_spec>,
                  const tag*) -> result<std::vector<tensor_spec>> {
    return std::vector<tensor_spec>{{dtype::f32, {7}}};
  };
  changed.add("relu", row);
  const auto text = error_of(decode_graph(bytes, changed));
  BOOST_TEST(text.find("graph_files.hpp:") != std::string::npos, text);
  BOOST_TEST(text.find("relu 'tower/relu' makes f32[7] here, but f32[16?, 8] in the file") !=
                 std::string::npos,
             text);
}

BOOST_AUTO_TEST_CASE(GF_2_an_unknown_op_is_named_with_the_library_that_it_came_from) {
  auto ops = make_op_table();
  graph g(ops);
  const auto bytes = bytes_of(g, {.loss = loss_of(g)});
  op_table fewer;
  for (const auto& [type, row] : ops.rows())
    if (type != "relu") fewer.add(type, row);
  const auto unknown = error_of(decode_graph(bytes, fewer));
  BOOST_TEST(unknown.find("op 'tower/relu' is a relu, which Troupe ") != std::string::npos,
             unknown);

  auto row = *ops.find("relu");
  row.library = std::make_shared<const library_id>(library_id{"gates", "1.2", 7});
  ops.add("own_relu", row);
  graph own(ops);
  const auto x = relu(input(own, {dtype::f32, {2}}, "x"));
  const auto y = own.add("own_relu", {&x, 1}, {}, "own_relu", source_location::current());
  const auto own_bytes = bytes_of(own, {.fetches = {{"y", y}}});
  BOOST_TEST(bool(decode_graph(own_bytes, ops)));
  const auto missing = error_of(decode_graph(own_bytes, make_op_table()));
  BOOST_TEST(
      missing.find("op 'own_relu' is a own_relu, of library gates 1.2, which is not loaded") !=
          std::string::npos,
      missing);
  row.library = std::make_shared<const library_id>(library_id{"gates", "1.3", 7});
  auto newer = make_op_table();
  newer.add("own_relu", row);
  const auto version = error_of(decode_graph(own_bytes, newer));
  BOOST_TEST(
      version.find("of library gates 1.2, and this program has gates 1.3") != std::string::npos,
      version);
}

BOOST_AUTO_TEST_CASE(GF_3_a_file_that_ends_anywhere_or_goes_on_is_an_error) {
  const auto ops = make_op_table();
  graph g(ops);
  auto bytes = bytes_of(g, {.loss = loss_of(g)});
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const auto cut = decode_graph(std::span(bytes).first(n), ops);
    BOOST_REQUIRE_MESSAGE(!cut, n << " bytes of " << bytes.size() << " are read as a graph");
    BOOST_REQUIRE_MESSAGE(is_one_line(cut.error().text()), n);
  }
  bytes.push_back(std::byte{0});
  BOOST_TEST(error_of(decode_graph(bytes, ops)).find("damaged") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(GF_3_every_flipped_bit_is_an_error) {
  const auto ops = make_op_table();
  graph g(ops);
  auto bytes = bytes_of(g, {.loss = loss_of(g)});
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= std::byte(1U << (i % 8));
    BOOST_REQUIRE_MESSAGE(!decode_graph(bytes, ops), "bit " << i);
    bytes[i / 8] ^= std::byte(1U << (i % 8));
  }
  BOOST_TEST(bool(decode_graph(bytes, ops)));
}

BOOST_AUTO_TEST_CASE(
    GF_2_a_changed_file_whose_hash_is_right_is_an_error_or_a_graph_that_compiles_or_says_why_not) {
  const auto ops = make_op_table();
  graph g(ops);
  auto use = graph_use{.loss = loss_of(g), .training = graph_training{two_workers(), {}}};
  use.fetches = {{"loss", *use.loss}};
  const auto good = bytes_of(g, use);
  std::size_t graphs = 0, plans = 0;
  const auto tries = repetitions(20'000);
  for (std::uint64_t seed = 0; seed < tries; ++seed) {
    std::mt19937_64 random(seed);
    const auto bytes = sealed(test::mutated({good.begin() + test::message_at, good.end()}, random));
    auto made = decode_graph(bytes, ops);
    if (!made) {
      BOOST_REQUIRE_MESSAGE(is_one_line(made.error().text()),
                            "seed " << seed << ": " << made.error().text());
      continue;
    }
    ++graphs;
    const auto again = encode_graph(*made->graph, made->use);
    BOOST_REQUIRE_MESSAGE(bool(again), "seed " << seed << ": " << error_of(again));
    const auto third = decode_graph(*again, ops);
    BOOST_REQUIRE_MESSAGE(bool(third), "seed " << seed);
    BOOST_REQUIRE_MESSAGE(encode_graph(*third->graph, third->use)
                              ? *encode_graph(*third->graph, third->use) == *again
                              : false,
                          "seed " << seed);
    if (made->use.loss && made->use.training && made->use.training->spec.workers < 10 &&
        made->use.training->spec.shards < 10)
      plans += bool(compile_training(*made->graph, *made->use.loss, made->use.training->spec,
                                     made->use.training->options));
  }
  // The mutations reach what lies behind the format.
  BOOST_TEST(graphs > tries / 20);
  BOOST_TEST(plans > tries / 50);
}

BOOST_AUTO_TEST_CASE(GF_3_random_bytes_are_no_graph) {
  const auto ops = make_op_table();
  for (std::uint64_t seed = 0; seed < repetitions(3'000); ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(8 * (random() % 60));
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    BOOST_REQUIRE(!decode_graph(bytes, ops));
    BOOST_REQUIRE(!decode_graph(sealed(bytes), ops));
  }
}

BOOST_AUTO_TEST_CASE(GF_4_a_newer_format_is_refused_whatever_stands_behind_it) {
  const auto ops = make_op_table();
  graph g(ops);
  auto bytes = bytes_of(g, {.loss = loss_of(g)});
  bytes[8] = std::byte{2};
  bytes.resize(bytes.size() - 100);
  BOOST_TEST(error_of(decode_graph(bytes, ops)).find("this graph has version 2 of the format") !=
             std::string::npos);
  BOOST_TEST(error_of(decode_graph(bytes, ops)).find("read it with a newer Troupe") !=
             std::string::npos);
  bytes[8] = std::byte{0};
  BOOST_TEST(error_of(decode_graph(bytes, ops)).find("there is no version 0") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(GF_6_a_graph_is_written_over_a_graph_and_over_nothing_else) {
  const auto folder = scratch_folder::make("troupe-graph-file");
  BOOST_TEST_REQUIRE(bool(folder), error_of(folder));
  const auto d = make_host_disk();
  const auto ops = make_op_table();
  graph g(ops);
  const graph_use use{.loss = loss_of(g)};
  const auto path = (*folder)->path() + "/model.troupe";
  BOOST_TEST(error_of(load_graph(*d, path, ops)).find("model.troupe") != std::string::npos);
  BOOST_TEST((load_graph(*d, path, ops).error().code() == error_code::not_found));
  for (int i = 0; i < 2; ++i) {
    const auto saved = save_graph(*d, path, g, use);
    BOOST_TEST(bool(saved), error_of(saved));
    BOOST_TEST(bool(load_graph(*d, path, ops)));
  }
  BOOST_TEST(d->list((*folder)->path())->size() == 1U);  // nothing temporary stays

  const auto notes = (*folder)->path() + "/notes";
  const std::string text = "dear diary";
  const auto bytes = std::as_bytes(std::span(text));
  BOOST_TEST(bool(write_whole(*d, notes, {&bytes, 1})));
  const auto refused = save_graph(*d, notes, g, use);
  BOOST_TEST(error_of(refused).find("notes exists and is not a graph, so it is not overwritten") !=
                 std::string::npos,
             error_of(refused));
  BOOST_TEST((refused.error().code() == error_code::usage));
  BOOST_TEST(d->read(notes, 100)->size() == text.size());
  BOOST_TEST(error_of(load_graph(*d, notes, ops)).find("/notes: not a graph") != std::string::npos);
  BOOST_TEST(bool(write_whole(*d, notes, {})));
  BOOST_TEST(bool(save_graph(*d, notes, g, use)));  // an empty file has nothing to lose
  BOOST_TEST((save_graph(*d, (*folder)->path(), g, use).error().code() == error_code::usage));
  BOOST_TEST((save_graph(*d, (*folder)->path() + "/none/x", g, use).error().code() ==
              error_code::not_found));
}

BOOST_AUTO_TEST_CASE(a_trial_leaves_a_graph_as_it_was) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto loss = loss_of(g);
  const auto before = bytes_of(g, {.loss = loss});
  const auto name = g.name_for("gradients/one");
  {
    const graph::trial t(g);
    BOOST_TEST(bool(compile_training(g, loss, {}, {})));
    BOOST_TEST(g.nodes().size() > 20U);
    matmul(loss, loss);
    BOOST_TEST(g.first_error().has_value());
  }
  BOOST_TEST(!g.first_error().has_value());
  BOOST_TEST((bytes_of(g, {.loss = loss}) == before));
  BOOST_TEST(g.name_for("gradients/one") == name);
}

BOOST_AUTO_TEST_SUITE_END()
