// Every op of the table that computes something: its kernel on the host against the plain loops of
// tests/support/reference.hpp in f64, over random shapes, for every element type that it takes.
// Shapes come from the op's own rule.

#include "tests/support/op_cases.hpp"
#include "tests/support/reference.hpp"
#include "tests/support/repetitions.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <set>

using namespace troupe;
using namespace troupe::op_cases;

namespace {

constexpr int shapes_each = static_cast<int>(repetitions(100));

// In units of the last place of an f32 near the exact result, or near `scale`, where that is
// larger.
double ulp(double got, double exact, double scale = 0) {
  const auto near = static_cast<float>(std::max({std::abs(exact), scale, 1e-30}));
  return std::abs(got - exact) / static_cast<double>(std::nextafter(near, INFINITY) - near);
}

// Large numbers whose difference a result may be.
double scale_of(const std::string& type, std::span<const reference::array> operands) {
  double largest = 0;
  std::size_t most = 1;
  for (const auto& a : operands) {
    most = std::max(most, a.at.size());
    for (const auto x : a.at) largest = std::max(largest, std::abs(x));
  }
  if (type == "reduce_sum" || type == "cumulative_sum" || type == "scatter_add" ||
      type == "put_last")
    return largest * std::sqrt(static_cast<double>(most));
  // Of sums of some hundred products.
  if (type == "matmul" || type.starts_with("conv2d")) return 8 * largest * largest;
  if (type.starts_with("standardize") || type == "log_softmax" || type == "attention" ||
      type.find("_pool2d") != std::string::npos)
    return largest;
  if (type == "softmax_cross_entropy") return largest;
  if (type.ends_with("_grad")) return largest;
  return 0;
}

// Half of the distance between two numbers of f16 or bf16 near x.
double half_ulp(double x, dtype t) {
  const int digits = t == dtype::f16 ? 10 : 7, least = t == dtype::f16 ? -14 : -126;
  return std::ldexp(0.5, std::max(x == 0 ? least : std::ilogb(x), least) - digits);
}
// What computes in f16 and bf16; all other ops move their elements.
const std::set<std::string> floats_inside{
    "matmul", "conv2d", "conv2d_input_grad", "conv2d_weights_grad", "attention", "attention_grad"};

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels)

BOOST_AUTO_TEST_CASE(every_op_agrees_with_a_plain_loop_in_f64_for_every_element_type) {
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  // What reads or feeds is tested where that is at hand; random numbers and pack_rows have tests of
  // their own.
  const std::set<std::string> others{"input",     "variable",    "constant",   "constant_tensor",
                                     "idx_batch", "index_batch", "text_batch", "pack_rows"};
  for (const auto& [type, row] : ops.rows()) {
    if (row.is_forwarding || row.is_control || others.contains(type) ||
        type.starts_with("random_") || type == "dropout_mask")
      continue;
    const auto* kernel = kernels.find(type);
    BOOST_TEST_REQUIRE(kernel != nullptr, type << " has no kernel");
    BOOST_TEST_REQUIRE(!row.types.is_empty(), type << " does not say its element types");
    double worst = 0;
    for (std::uint8_t n = 0; n < dtype_count; ++n) {
      const dtype t{n};
      if (!row.types.has(t)) continue;
      drawer d(n);
      int tested = 0;
      for (int i = 0; i < shapes_each; ++i) {
        auto c = draw(d, type, row, t);
        if (!c) continue;
        std::vector<tensor_spec> specs;
        std::string text;
        for (const auto& a : c->operands) specs.push_back(a.spec), text += " " + to_string(a.spec);
        BOOST_TEST_CONTEXT(type << text << ", shapes " << i) {
          const auto expected = reference::run_op(ops, type, c->attrs, c->operands, 0);
          const tag at;
          const auto shapes = row.shapes(c->attrs, specs, &at);
          BOOST_TEST_REQUIRE(static_cast<bool>(shapes), (shapes ? "" : shapes.error().text()));
          auto k = kernel->make(c->attrs, device);
          BOOST_TEST_REQUIRE(static_cast<bool>(k));
          const auto prepared = (*k)->prepare(specs, *shapes);
          BOOST_TEST_REQUIRE(static_cast<bool>(prepared),
                             (prepared ? "" : prepared.error().text()));
          std::vector<tensor> in, out;
          for (const auto& a : c->operands) in.push_back(to_tensor(a));
          for (const auto& s : *shapes) out.push_back(tensor::make(s));
          const auto ran = (*k)->run(at, in, out);
          BOOST_TEST_REQUIRE(static_cast<bool>(ran), (ran ? "" : ran.error().text()));
          const auto scale = scale_of(type, c->operands);
          for (std::size_t o = 0; o < out.size(); ++o)
            for (std::size_t e = 0; e < expected[o].at.size(); ++e) {
              const auto got = element(out[o], e), exact = expected[o].at[e];
              if (got == exact) continue;  // infinite ones, too
              // The maximum of nothing: the least number there is.
              if (!std::isfinite(exact) && whole.has(out[o].type())) continue;
              if (halves.has(out[o].type()) && floats_inside.contains(type)) {
                // Widened, computed as f32, and rounded once.
                const auto near = static_cast<float>(std::max(scale, 1e-30)),
                           error_of_f32 = std::nextafter(near, INFINITY) - near;
                const auto off = std::abs(got - exact),
                           most = half_ulp(exact, out[o].type()) +
                                  allowed(type) * static_cast<double>(error_of_f32);
                BOOST_TEST_REQUIRE(off <= most, "element " << e << ": " << got << ", and exactly "
                                                           << exact << ": " << off << ", at most "
                                                           << most);
              } else if (out[o].type() == dtype::f32) {
                const auto off = ulp(got, exact, scale);
                worst = std::max(worst, off);
                BOOST_TEST_REQUIRE(off <= allowed(type), "element " << e << ": " << got
                                                                    << ", and exactly " << exact
                                                                    << ": " << off << " ulp");
              } else {
                BOOST_TEST_REQUIRE(std::abs(got - exact) <= 1e-13 * (std::abs(exact) + scale + 1),
                                   "element " << e << ": " << got << ", and exactly " << exact);
              }
            }
          ++tested;
        }
      }
      BOOST_TEST(tested > shapes_each / 2,
                 type << " of " << to_string(t) << ": " << tested << " cases");
    }
    BOOST_TEST_MESSAGE(fmt::format("{:20} {:.2f} ulp", type, worst));
  }
}

BOOST_AUTO_TEST_CASE(a_constant_of_any_element_type_has_the_bytes_that_it_was_made_of) {
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  drawer d(1);
  for (std::uint8_t n = 0; n < dtype_count; ++n)
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {0}, {3}, {2, 5, 7}}) {
      graph g(ops);
      const auto made = to_tensor(d.values(dtype{n}, sizes));
      const auto c = constant(g, made, "table");
      BOOST_TEST_REQUIRE(c.is_valid());
      BOOST_TEST((c.spec() == made.spec()));
      auto k = kernels.find("constant_tensor")->make(g.node(c.node).attrs, device);
      BOOST_TEST_REQUIRE(static_cast<bool>(k));
      BOOST_TEST_REQUIRE(static_cast<bool>((*k)->prepare({}, std::array{c.spec()})));
      std::array out{tensor::make(c.spec())};
      BOOST_TEST_REQUIRE(static_cast<bool>((*k)->run(tag{}, {}, out)));
      BOOST_TEST(std::ranges::equal(out[0].bytes(), made.bytes()));
      BOOST_TEST(!(*k)->prepare({}, std::array{tensor_spec{dtype{n}, {1000}}}));
    }
}

BOOST_AUTO_TEST_CASE(indices_that_are_outside_fail_the_step_and_say_which) {
  const auto kernels = make_host_kernels();
  host_device device;
  const auto x = tensor::of({1, 2, 3}, {3});
  const auto updates = tensor::of({1, 2}, {2});
  // None counts from the end: -1 of data is a mistake, or a "none".
  for (const std::int32_t wrong : {3, -1, -4}) {
    const std::int32_t places[] = {0, wrong};
    const auto at = tensor::of<std::int32_t>(dtype::i32, {2}, places);
    for (const std::string type : {"gather", "take_last", "scatter_add", "put_last"}) {
      auto k = kernels.find(type)->make({}, device);
      std::vector<tensor> in{x, at};
      if (type == "scatter_add") in.push_back(updates);
      if (type == "put_last") in = {updates, at, x};
      std::vector<tensor_spec> specs;
      for (const auto& t : in) specs.push_back(t.spec());
      const auto out = in.size() == 2 ? tensor_spec{dtype::f32, {2}} : x.spec();
      BOOST_TEST_REQUIRE(static_cast<bool>((*k)->prepare(specs, std::array{out})));
      std::array results{tensor::make(out)};
      const auto ran = (*k)->run(tag{}, in, results);
      BOOST_TEST_REQUIRE(!ran, type);
      BOOST_TEST(ran.error().message() ==
                 fmt::format("{}: index 1 is {}, expected 0 to 2", type, wrong));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
