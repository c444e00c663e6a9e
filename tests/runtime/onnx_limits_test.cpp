// Models that ask for more than there is, or name what is not there: errors.

#include "devices/host/host_device.hpp"
#include "runtime/eager.hpp"
#include "runtime/onnx/onnx_import.hpp"
#include "runtime/op_table.hpp"
#include "tests/support/onnx_writer.hpp"

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

onnx_writer writer_of(const std::string& op, const std::vector<array>& in, const test::onnx_attributes& attrs = {}) {
  onnx_writer w;
  std::vector<std::string> names;
  for (const auto& x : in) names.push_back(fmt::format("x{}", names.size())), w.initializer(names.back(), x);
  w.output("y");
  w.node(op, names, {"y"}, attrs);
  return w;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx_limits)

BOOST_AUTO_TEST_CASE(an_index_outside_of_its_own_dimension_hits_no_other_element) {
  const auto x = of(dtype::f32, {2, 3}, {0, 1, 2, 3, 4, 5});
  const auto gathered = [&](const std::vector<double>& at) { return computed(writer_of("GatherND", {x, of(dtype::i64, {1, 2}, at)})); };
  const auto scattered = [&](const std::vector<double>& at, const std::string& reduction) {
    return computed(writer_of("ScatterND", {x, of(dtype::i64, {1, 2}, at), of(dtype::f32, {1}, {9})}, {{"reduction", reduction}}));
  };
  const auto huge = static_cast<double>(std::int64_t{1} << 62);
  for (const auto& at : std::vector<std::vector<double>>{{0, 3}, {0, 5}, {1, -4}, {1, -5}, {2, 0}, {2, -1}, {-3, 0}, {-3, 2}, {2, -3}, {huge, 0}, {0, -huge}}) {
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
  const auto in_batch = [&](double at) { return computed(writer_of("GatherND", {x, of(dtype::i64, {2, 1}, {at, 0})}, {{"batch_dims", std::int64_t{1}}})); };
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
    w.initializer("pads", of(dtype::i64, {2}, {0, 0})).set_raw(std::string(reinterpret_cast<const char*>(pads), sizeof pads));
    w.output("y");
    w.node("Pad", {"x", "pads"}, {"y"}, {{"mode", mode}});
    return computed(w);
  };
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  for (const auto* mode : {"constant", "reflect", "edge"})
    for (const auto& [before, after] : std::vector<std::pair<std::int64_t, std::int64_t>>{{least, 0}, {0, least}, {least, least}, {least, 2}, {-5, 0}, {0, -5}, {-3, -2}, {-5, 5}})
      expect_error(padded(before, after, mode), {"(Pad)", "takes more than the 4 elements of axis 0"});
  const auto some = padded(-1, -2, "constant"), none = padded(-2, -2, "constant");
  BOOST_TEST_REQUIRE(bool(some));
  BOOST_TEST(*some == std::vector<double>{2}, boost::test_tools::per_element());
  BOOST_TEST_REQUIRE(bool(none));
  BOOST_TEST(none->empty());
}

BOOST_AUTO_TEST_CASE(a_reflected_padding_is_too_large_before_memory_is_taken) {
  // 2^27 places of 8 bytes.
  onnx_writer w;
  w.input("x", {dtype::u8, {std::int64_t{1} << 27}});
  w.initializer("pads", of(dtype::i64, {2}, {1, 1}));
  w.output("y");
  w.node("Pad", {"x", "pads"}, {"y"}, {{"mode", std::string("reflect")}});
  expect_error(computed(w), {});
  const auto m = w.load();
  BOOST_TEST_REQUIRE(bool(m));
  const auto ops = make_op_table();
  graph g(ops);
  expect_error(m->build(g), {"(Pad)", "too large here"});
}

BOOST_AUTO_TEST_CASE(a_depth_that_is_no_number_of_classes_is_an_error) {
  const auto hot = [](double depth) { return computed(writer_of("OneHot", {of(dtype::i64, {1}, {0}), of(dtype::f32, {}, {depth}), of(dtype::f32, {2}, {0, 1})})); };
  for (const auto depth : {std::nan(""), std::numeric_limits<double>::infinity(), 1e30, -1e30, -1.0}) expect_error(hot(depth), {"(OneHot)", "operand 1, the depth, is"});
  const auto two = hot(2);
  BOOST_TEST_REQUIRE(bool(two), (two ? "" : two.error().text()));
  BOOST_TEST(*two == (std::vector<double>{1, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
