// Models that ask for more than there is, name what is not there, or are made of nothing: errors,
// with little memory; and models that only look so.

#include "tests/support/onnx_writer.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <cmath>
#include <limits>

using namespace troupe;
using reference::array;
using test::onnx_writer;

namespace {

array of(dtype type, const std::vector<std::int64_t>& sizes, const std::vector<double>& x) {
  std::vector<dim> dims;
  for (const auto n : sizes) dims.push_back({n, 0});
  return {{type, *shape::from(dims)}, x};
}
array zeros(dtype type, const std::vector<std::int64_t>& sizes) {
  std::size_t n = 1;
  for (const auto s : sizes) n *= static_cast<std::size_t>(s);
  return of(type, sizes, std::vector<double>(n));
}

// The model's only output, computed as it is built; whatever it needs stands in the file.
result<std::vector<double>> computed(const onnx_writer& w) {
  const auto m = w.load();
  if (!m) return m.error();
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  eager e(ops, kernels, device);
  const auto built = m->build(e);
  if (!built) return built.error();
  const auto t = e.read(built->outputs.at(0).at);
  if (!t) return t.error();
  return reference::to_array(*t).at;
}

template <class T>
void expect_error(const result<T>& r, std::initializer_list<std::string_view> parts) {
  BOOST_TEST_REQUIRE(!r);
  const auto text = r.error().message();
  for (const auto p : parts) BOOST_TEST(text.find(p) != std::string::npos, text << " lacks " << p);
}

onnx_writer writer_of(const std::string& op, const std::vector<array>& in,
                      const test::onnx_attributes& attrs = {}) {
  onnx_writer w;
  std::vector<std::string> names;
  for (const auto& x : in)
    names.push_back(fmt::format("x{}", names.size())), w.initializer(names.back(), x);
  w.output("y");
  w.node(op, names, {"y"}, attrs);
  return w;
}

// --- bytes, field by field ---

std::string varint(std::uint64_t n) {
  std::string out;
  for (; n >= 128; n >>= 7U) out += static_cast<char>(n % 128 + 128);
  return out + static_cast<char>(n);
}
std::string number(std::uint64_t field, std::uint64_t n) { return varint(field << 3U) + varint(n); }
std::string piece(std::uint64_t field, const std::string& inside) {
  return varint(field << 3U | 2U) + varint(inside.size()) + inside;
}
std::string many(const std::string& one) {
  std::string out;
  for (int i = 0; i < 100'000; ++i) out += one;
  return out;
}
std::string model_of(const std::string& graph) {
  return number(1, 8) + piece(7, graph) + piece(8, number(2, 13));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx_limits)

BOOST_AUTO_TEST_CASE(a_size_that_follows_from_a_convolution_is_an_error_without_its_gigabytes) {
  // In f64 the window's columns would be 34 GB.
  onnx_writer w;
  w.initializer("a", zeros(dtype::f64, {1, 1, 131'000, 1}));
  w.initializer("w", zeros(dtype::f64, {1, 1, 65'000, 1}));
  w.initializer("one", of(dtype::i64, {1}, {1}));
  w.output("y");
  w.node("Conv", {"a", "w"}, {"c"});
  w.node("ReduceSum", {"c"}, {"s"}, {{"keepdims", std::int64_t{0}}});
  w.node("Cast", {"s"}, {"n"}, {{"to", std::int64_t{7}}});
  w.node("Expand", {"one", "n"}, {"y"});
  const auto m = w.load();
  BOOST_TEST_REQUIRE(bool(m), (m ? "" : m.error().text()));
  const auto ops = make_op_table();
  graph g(ops);
  expect_error(m->build(g), {"node 3 'Expand_node' (Expand)", "conv2d", "f64[1, 1, 131000, 1]",
                             "f64[1, 1, 65000, 1]", "only a step computes"});
}

BOOST_AUTO_TEST_CASE(an_index_outside_of_its_own_dimension_hits_no_other_element) {
  const auto x = of(dtype::f32, {2, 3}, {0, 1, 2, 3, 4, 5});
  const auto gathered = [&](const std::vector<double>& at) {
    return computed(writer_of("GatherND", {x, of(dtype::i64, {1, 2}, at)}));
  };
  const auto scattered = [&](const std::vector<double>& at, const std::string& reduction) {
    return computed(writer_of("ScatterND",
                              {x, of(dtype::i64, {1, 2}, at), of(dtype::f32, {1}, {9})},
                              {{"reduction", reduction}}));
  };
  const auto huge = static_cast<double>(std::int64_t{1} << 62);
  for (const auto& at : std::vector<std::vector<double>>{{0, 3},
                                                         {0, 5},
                                                         {1, -4},
                                                         {1, -5},
                                                         {2, 0},
                                                         {2, -1},
                                                         {-3, 0},
                                                         {-3, 2},
                                                         {2, -3},
                                                         {huge, 0},
                                                         {0, -huge}}) {
    BOOST_TEST_CONTEXT("[" << at[0] << ", " << at[1] << "]") {
      expect_error(gathered(at), {"gather: index 0"});
      expect_error(scattered(at, "none"), {"scatter_add: index 0"});
      expect_error(scattered(at, "add"), {"scatter_add: index 0"});
    }
  }
  for (int i = -2; i < 2; ++i)
    for (int j = -3; j < 3; ++j) {
      const auto place = static_cast<std::size_t>((i + 2) % 2 * 3 + (j + 3) % 3);
      const auto one = gathered({double(i), double(j)});
      BOOST_TEST_REQUIRE(bool(one), (one ? "" : one.error().text()));
      BOOST_TEST(one->at(0) == x.at[place]);
      const auto all = scattered({double(i), double(j)}, "none");
      BOOST_TEST_REQUIRE(bool(all), (all ? "" : all.error().text()));
      BOOST_TEST(all->at(place) == 9);
    }
  // With batches each has its own part: an index must not reach into the next.
  const auto in_batch = [&](double at) {
    return computed(writer_of("GatherND", {x, of(dtype::i64, {2, 1}, {at, 0})},
                              {{"batch_dims", std::int64_t{1}}}));
  };
  expect_error(in_batch(3), {"gather: index 0"});
  expect_error(in_batch(-4), {"gather: index 0"});
  BOOST_TEST(bool(in_batch(-3)));
}

BOOST_AUTO_TEST_CASE(padding_cannot_take_more_elements_than_there_are) {
  const auto x = of(dtype::f32, {4}, {1, 2, 3, 4});
  const auto padded = [&](std::int64_t before, std::int64_t after, const std::string& mode) {
    onnx_writer w;
    w.initializer("x", x);
    const std::int64_t pads[] = {before, after};
    w.initializer("pads", of(dtype::i64, {2}, {0, 0}))
        .set_raw(std::string(reinterpret_cast<const char*>(pads), sizeof pads));
    w.output("y");
    w.node("Pad", {"x", "pads"}, {"y"}, {{"mode", mode}});
    return computed(w);
  };
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  for (const auto* mode : {"constant", "reflect", "edge"})
    for (const auto& [before, after] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{least, 0},
                                                            {0, least},
                                                            {least, least},
                                                            {least, 2},
                                                            {-5, 0},
                                                            {0, -5},
                                                            {-3, -2},
                                                            {-5, 5}})
      expect_error(padded(before, after, mode),
                   {"(Pad)", "takes more than the 4 elements of axis 0"});
  const auto some = padded(-1, -2, "constant"), none = padded(-2, -2, "constant");
  BOOST_TEST_REQUIRE(bool(some));
  BOOST_TEST(*some == std::vector<double>{2}, boost::test_tools::per_element());
  BOOST_TEST_REQUIRE(bool(none));
  BOOST_TEST(none->empty());
}

BOOST_AUTO_TEST_CASE(a_reflected_padding_is_too_large_before_memory_is_taken) {
  // 2^30 places of 8 bytes.
  onnx_writer w;
  w.input("x", {dtype::u8, {std::int64_t{1} << 30}});
  w.initializer("pads", of(dtype::i64, {2}, {1, 1}));
  w.output("y");
  w.node("Pad", {"x", "pads"}, {"y"}, {{"mode", std::string("reflect")}});
  const auto m = w.load();
  BOOST_TEST_REQUIRE(bool(m));
  const auto ops = make_op_table();
  graph g(ops);
  expect_error(m->build(g), {"(Pad)", "too large here"});
}

BOOST_AUTO_TEST_CASE(a_resize_that_no_picture_needs_is_an_error_before_memory_is_taken) {
  const auto x = of(dtype::f32, {1, 2}, {1, 2});
  const auto resized = [&](const array& part, const array& scales,
                           const test::onnx_attributes& attrs) {
    return computed(writer_of("Resize", {x, part, scales}, attrs));
  };
  const auto none = of(dtype::f32, {0}, {});
  const auto inf = std::numeric_limits<double>::infinity();
  for (const auto scale : {0.0, -1.0, 1e30, inf, std::nan("")})
    expect_error(resized(none, of(dtype::f32, {2}, {1, scale}), {}), {"(Resize)", "a scale of"});
  expect_error(resized(none, of(dtype::f32, {2}, {1, 1e8}), {{"mode", std::string("linear")}}),
               {"(Resize)", "cannot become 200000000 elements"});
  for (const auto edge : {inf, -inf, std::nan("")})
    for (const auto* mode : {"nearest", "linear", "cubic"})
      expect_error(resized(of(dtype::f32, {4}, {0, edge, 1, 1}), of(dtype::f32, {2}, {1, 2}),
                           {{"mode", std::string(mode)},
                            {"coordinate_transformation_mode", std::string("tf_crop_and_resize")}}),
                   {"(Resize)", "2 elements cannot become 4"});
}

// Each level of loops makes a thousand bodies of the next one.
BOOST_AUTO_TEST_CASE(loops_in_loops_are_written_out_as_far_as_a_file_may_ask_for) {
  onnx_writer w;
  w.initializer("x", of(dtype::f32, {}, {1}));
  w.initializer("often", of(dtype::i64, {}, {1000}));
  w.output("y");
  std::optional<onnx_format::Graph> inner;
  for (int level = 0; level < 4; ++level) {
    onnx_writer body;
    body.input("i", {dtype::i64, {}}), body.input("go", {dtype::boolean, {}});
    body.input("v", {dtype::f32, {}});
    auto& n = inner ? body.node("Loop", {"often", "go", "v"}, {"r"})
                    : body.node("Identity", {"v"}, {"r"});
    if (inner) {
      auto& a = *n.add_attributes();
      a.set_name("body"), a.set_type(5);
      *a.mutable_graph() = *inner;
    }
    body.output("go"), body.output("r");
    inner = body.graph();
  }
  auto& a = *w.node("Loop", {"often", "", "x"}, {"y"}).add_attributes();
  a.set_name("body"), a.set_type(5);
  *a.mutable_graph() = *inner;
  expect_error(computed(w), {"(Loop)", "too long to be written out"});
}

BOOST_AUTO_TEST_CASE(terms_and_operands_that_do_not_fit_are_errors) {
  const auto x = of(dtype::f32, {2, 2}, {1, 2, 3, 4});
  for (const auto* equation : {"......", "i...j...", "ijk", "i", "i1", "ij->k", "ij->ii", "ij,jk"})
    expect_error(computed(writer_of("Einsum", {x}, {{"equation", std::string(equation)}})),
                 {"(Einsum)", "attribute 'equation'"});
  const auto one = of(dtype::f32, {}, {1});
  const auto steps = of(dtype::f32, {1, 1, 1}, {1});
  expect_error(computed(writer_of("RNN", {steps, steps, steps, one})),
               {"(RNN)", "expected one of each direction"});
  expect_error(computed(writer_of("LSTM", {steps, steps, steps})), {"(LSTM)", "do not fit"});
  expect_error(computed(writer_of("Attention", {steps, steps, steps})),
               {"(Attention)", "attribute 'q_num_heads' is missing"});
  expect_error(computed(writer_of("Attention", {x, x, x})), {"(Attention)", "3 or 4 dimensions"});
  const auto bytes = of(dtype::u8, {2, 2}, {1, 2, 3, 4});
  expect_error(computed(writer_of("DequantizeLinear", {bytes, of(dtype::f32, {3}, {1, 1, 1})})),
               {"(DequantizeLinear)", "does not fit axis 1"});
  for (const std::int64_t block : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 62})
    expect_error(
        computed(writer_of("DequantizeLinear", {bytes, of(dtype::f32, {2, 2}, {1, 1, 1, 1})},
                           {{"block_size", block}})),
        {"(DequantizeLinear)", "does not fit blocks"});
}

BOOST_AUTO_TEST_CASE(a_depth_that_is_no_number_of_classes_is_an_error) {
  const auto hot = [](double depth) {
    return computed(writer_of("OneHot", {of(dtype::i64, {1}, {0}), of(dtype::f32, {}, {depth}),
                                         of(dtype::f32, {2}, {0, 1})}));
  };
  for (const auto depth :
       {std::nan(""), std::numeric_limits<double>::infinity(), 1e30, -1e30, -1.0})
    expect_error(hot(depth), {"(OneHot)", "operand 1, the depth, is"});
  const auto two = hot(2);
  BOOST_TEST_REQUIRE(bool(two), (two ? "" : two.error().text()));
  BOOST_TEST(*two == (std::vector<double>{1, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(pieces_of_nothing_are_counted_whatever_they_are) {
  const auto tensor_with = [](const std::string& more) {
    return number(1, 4) + number(2, 1) + piece(8, "w") + piece(9, std::string(16, '\0')) + more;
  };
  const auto port_with = [](const std::string& dims) {
    return piece(1, "x") + piece(2, piece(1, number(1, 1) + piece(2, dims)));
  };
  const std::string relu = piece(1, "x") + piece(2, "y") + piece(4, "Relu");
  const auto attribute_with = [](const std::string& more) {
    return piece(1, piece(2, "y") + piece(4, "Constant") + piece(5, piece(1, "a") + more));
  };
  const std::pair<std::string, std::string_view> cases[] = {
      {piece(5, tensor_with(many(piece(13, "")))), "100000 entries of external data in "},
      {piece(5, tensor_with(many(piece(6, "")))), "100000 texts in lists"},
      {piece(11, port_with(many(piece(1, "")))), "100000 dimensions of inputs and outputs"},
      {piece(12, port_with(many(piece(1, "")))), "100000 dimensions of inputs and outputs"},
      {many(piece(11, "")), "100000 inputs and outputs"},
      {many(piece(1, "")), "100000 nodes"},
      {many(piece(5, "")), "100000 tensors"},
      {many(piece(15, "")), "100000 sparse tensors"},
      {piece(15, piece(1, many(piece(13, "")))), "100000 entries of external data"},
      {piece(1, relu + many(piece(1, ""))), "100002 texts in lists"},
      {piece(1, relu + many(piece(2, ""))), "100002 texts in lists"},
      {piece(1, relu + many(piece(5, ""))), "100000 attributes"},
      {attribute_with(many(piece(9, ""))), "100001 texts in lists"},
      {attribute_with(piece(5, many(piece(13, "")))), "100000 entries of external data"},
      {attribute_with(piece(6, many(piece(1, "")))), "100001 nodes"},
      // In many ports, which protobuf makes one by one.
      {many(piece(11, port_with(piece(1, "") + piece(1, "") + piece(1, "") + piece(1, "") +
                                piece(1, "") + piece(1, "") + piece(1, "") + piece(1, "")))),
       "800000 dimensions"},
  };
  for (const auto& [graph, part] : cases) {
    const auto text = model_of(graph);
    expect_error(parse_onnx(std::as_bytes(std::span(text)), "model.onnx", ""),
                 {"model.onnx: not an ONNX model: it consists of empty pieces", part});
  }
  const auto text = tensor_with(many(piece(13, "")));
  expect_error(parse_onnx_tensor(std::as_bytes(std::span(text)), "t.pb"),
               {"t.pb: not an ONNX tensor: it consists of empty pieces", "100000 entries"});
  const auto opsets = model_of("") + many(piece(8, ""));
  expect_error(parse_onnx(std::as_bytes(std::span(opsets)), "model.onnx", ""),
               {"100001 operator sets"});
}

BOOST_AUTO_TEST_CASE(fields_that_the_format_does_not_have_hide_no_pieces) {
  // A group, which protobuf would skip, and a number of a field that it would cut to 32 bits.
  const std::string group{"\x23\x24", 2},
      far = varint(std::uint64_t{1} << 35U | 1U << 3U | 2U) + varint(0);
  for (const auto& before : {group, far}) {
    const auto text = model_of(before + many(piece(1, "")));
    expect_error(parse_onnx(std::as_bytes(std::span(text)), "model.onnx", ""),
                 {"not an ONNX model: its bytes end early or are damaged"});
  }
}

BOOST_AUTO_TEST_CASE(short_names_and_many_dimensions_are_no_pieces_of_nothing) {
  // The shortest names that 4,000 values can have, and nodes without any.
  onnx_writer chain;
  const auto name = [](int i) {
    return std::string{static_cast<char>(33 + i % 64), static_cast<char>(33 + i / 64)};
  };
  chain.input(name(0), {dtype::f32, {1}});
  for (int i = 0; i < 4'000; ++i) {
    auto& n = *chain.graph().add_nodes();
    n.set_op_type("Abs");
    n.add_inputs(name(i)), n.add_outputs(name(i + 1));
  }
  chain.output(name(4'000));
  const auto c = chain.load();
  BOOST_TEST(bool(c), (c ? "" : c.error().text()));
  onnx_writer wide;
  auto& sum = wide.node("Sum", {}, {"y"});
  for (int i = 0; i < 3'000; ++i) {
    wide.input(fmt::format("i{}", i), {dtype::f32, {1, 1, 1, 1, 1, 1, 1, 1}});
    sum.add_inputs(fmt::format("i{}", i));
  }
  wide.output("y");
  const auto w = wide.load();
  BOOST_TEST(bool(w), (w ? "" : w.error().text()));
}

BOOST_AUTO_TEST_CASE(texts_that_are_shown_are_one_line_that_no_terminal_obeys) {
  using namespace troupe::onnx;
  BOOST_TEST(shown("a\x1b[31m\nb\x7f") == "a?[31m?b?");
  // CSI and NEL as one character each.
  BOOST_TEST(shown("\xc2\x9b"
                   "31m\xc2\x85\xc2\xa0\xc3\xa4") == "?31m?\xc2\xa0\xc3\xa4");
  BOOST_TEST(shown("\xff"
                   "a\xc3") == "?a?");
  BOOST_TEST(shown(std::string(100, 'a')) == std::string(80, 'a') + "...");
  BOOST_TEST(shown(std::string(79, 'a') + "\xc3\xa4"
                                          "b") == std::string(79, 'a') + "\xc3\xa4...");
  BOOST_TEST(printable("a\nb", '_') == "a_b");
  BOOST_TEST(printable(std::string(300, 'a'), '_', 200).size() == 200U);
  BOOST_TEST(printable("") == "");
}

BOOST_AUTO_TEST_SUITE_END()
