// Every op that models are made of: a model with that op, built into a graph, which the plain
// interpreter of tests/support/ runs, against numbers that stand here. And files that are none.

#include "troupe/runtime/onnx/onnx_import.hpp"

#include "tests/support/onnx_writer.hpp"
#include "tests/support/reference.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/onnx/node.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>
#include <stdlib.h>

#include <cfenv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <set>

using namespace troupe;
using reference::array;
using test::onnx_attributes;
using test::onnx_writer;

namespace {

using list = std::vector<std::int64_t>;
using elements_in = std::vector<double>;

array of(dtype type, const list& sizes, const elements_in& x) {
  std::vector<dim> dims;
  for (const auto n : sizes) dims.push_back({n, 0});
  array a{{type, *shape::from(dims)}, x};
  BOOST_REQUIRE(static_cast<std::size_t>(a.spec.shape.elements()) == x.size());
  return a;
}
array f(const list& sizes, const elements_in& x) { return of(dtype::f32, sizes, x); }
array i(const list& sizes, const elements_in& x) { return of(dtype::i64, sizes, x); }
array b(const list& sizes, const elements_in& x) { return of(dtype::boolean, sizes, x); }
array whole_numbers(const list& x) {
  return i({static_cast<std::int64_t>(x.size())}, {x.begin(), x.end()});
}
// 0, 1, 2, ...
array counted(const list& sizes, double first = 0) {
  auto n = std::int64_t{1};
  for (const auto s : sizes) n *= s;
  elements_in x;
  for (std::int64_t k = 0; k < n; ++k) x.push_back(first + static_cast<double>(k));
  return f(sizes, x);
}
array mapped(array a, double (*g)(double)) {
  for (auto& x : a.at) x = g(x);
  return a;
}

struct op_case {
  std::string op;
  std::vector<array> in;  // the first `fed` are fed, the others stand in the file
  std::size_t fed;
  onnx_attributes attrs;
  std::vector<array> out;
  std::int64_t opset = 17;
  std::vector<bool> left_out{};  // of the inputs
};

result<std::vector<array>> run(const onnx_writer& w, const std::map<std::string, array>& fed,
                               const onnx_build_options& options = {},
                               std::string* missing = nullptr) {
  const auto m = w.load();
  if (!m) return m.error();
  const auto ops = make_op_table();
  graph g(ops);
  const auto built = m->build(g, options, missing);
  if (!built) return built.error();
  reference::feeds feeds;
  for (const auto& in : built->inputs) feeds[g.node(in.at.node).name] = fed.at(in.name);
  std::vector<array> out;
  for (const auto& o : built->outputs) out.push_back(reference::evaluate(g, o.at, feeds));
  return out;
}

void check(const op_case& c) {
  onnx_writer w(c.opset);
  std::map<std::string, array> fed;
  std::vector<std::string> in, out;
  for (std::size_t k = 0; k < c.in.size(); ++k) {
    const bool is_left_out = k < c.left_out.size() && c.left_out[k];
    in.push_back(is_left_out ? "" : fmt::format("x{}", k));
    if (is_left_out) continue;
    if (k < c.fed)
      w.input(in.back(), c.in[k].spec), fed[in.back()] = c.in[k];
    else
      w.initializer(in.back(), c.in[k]);
  }
  for (std::size_t k = 0; k < c.out.size(); ++k)
    out.push_back(fmt::format("y{}", k)), w.output(out.back());
  w.node(c.op, in, out, c.attrs);
  const auto got = run(w, fed);
  BOOST_TEST_REQUIRE(bool(got), (got ? "" : got.error().text()));
  for (std::size_t k = 0; k < c.out.size(); ++k) {
    BOOST_TEST_REQUIRE(to_string((*got)[k].spec) == to_string(c.out[k].spec),
                       c.op << ", output " << k);
    for (std::size_t e = 0; e < c.out[k].at.size(); ++e) {
      const auto x = (*got)[k].at[e], y = c.out[k].at[e];
      BOOST_TEST((x == y || (std::isnan(x) && std::isnan(y)) ||
                  std::abs(x - y) <= 1e-6 * (1 + std::abs(y))),
                 c.op << ", output " << k << ", element " << e << ": " << x << ", expected " << y);
    }
  }
}

const double inf = std::numeric_limits<double>::infinity(),
             nan_value = std::numeric_limits<double>::quiet_NaN();

std::vector<op_case> elementwise_cases() {
  const auto x = f({4}, {-2, -0.5, 0.5, 3});
  const auto positive = f({3}, {0.5, 1, 4});
  const auto between = f({5}, {-1 + 0x1p-10, -0.5, 0x1p-30, 0.25, 1 - 0x1p-10});
  const auto from_one = f({3}, {1, 1 + 0x1p-20, 30});
  const auto small = f({3}, {-0x1p-20, -0x1p-30, -0x1p-40});
  const auto unary = [](const char* op, const array& in, double (*g)(double)) {
    return op_case{op, {in}, 1, {}, {mapped(in, g)}};
  };
  const auto h = of(dtype::f16, {2}, {1.5, -2});
  std::vector<op_case> all{
      unary("Abs", x, [](double v) { return std::abs(v); }),
      unary("Neg", x, [](double v) { return -v; }),
      unary("Sign", x, [](double v) { return v > 0 ? 1.0 : -1.0; }),
      unary("Exp", x, [](double v) { return std::exp(v); }),
      unary("Log", positive, [](double v) { return std::log(v); }),
      unary("Sqrt", positive, [](double v) { return std::sqrt(v); }),
      unary("Reciprocal", positive, [](double v) { return 1 / v; }),
      unary("Erf", x, [](double v) { return std::erf(v); }),
      unary("Sin", x, [](double v) { return std::sin(v); }),
      unary("Cos", x, [](double v) { return std::cos(v); }),
      unary("Tan", x, [](double v) { return std::tan(v); }),
      unary("Sinh", x, [](double v) { return std::sinh(v); }),
      unary("Cosh", x, [](double v) { return std::cosh(v); }),
      unary("Asin", between, [](double v) { return std::asin(v); }),
      unary("Acos", between, [](double v) { return std::acos(v); }),
      unary("Atan", x, [](double v) { return std::atan(v); }),
      unary("Asinh", x, [](double v) { return std::asinh(v); }),
      unary("Acosh", from_one, [](double v) { return std::acosh(v); }),
      unary("Atanh", between, [](double v) { return std::atanh(v); }),
      // Formulas of others lost these: e^x - e^-x, and e^x - 1.
      unary("Sinh", small, [](double v) { return std::sinh(v); }),
      unary("Elu", small, [](double v) { return std::expm1(v); }),
      unary("Celu", small, [](double v) { return std::expm1(v); }),
      unary("Floor", x, [](double v) { return std::floor(v); }),
      unary("Ceil", x, [](double v) { return std::ceil(v); }),
      unary("Identity", x, [](double v) { return v; }),
      unary("Tanh", x, [](double v) { return std::tanh(v); }),
      unary("Sigmoid", x, [](double v) { return 1 / (1 + std::exp(-v)); }),
      unary("Relu", x, [](double v) { return std::max(v, 0.0); }),
      unary("Softplus", x, [](double v) { return std::log1p(std::exp(v)); }),
      unary("Softsign", x, [](double v) { return v / (1 + std::abs(v)); }),
      unary("HardSwish", x, [](double v) { return v * std::clamp(v / 6 + 0.5, 0.0, 1.0); }),
      {"Round", {f({5}, {0.5, 1.5, 2.5, -1.5, 2.4})}, 1, {}, {f({5}, {0, 2, 2, -2, 2})}},
      {"LeakyRelu", {x}, 1, {{"alpha", 0.25F}}, {f({4}, {-0.5, -0.125, 0.5, 3})}},
      {"PRelu",
       {f({2, 2}, {-1, -2, 3, -4}), f({2}, {0.5, 2})},
       2,
       {},
       {f({2, 2}, {-0.5, -4, 3, -8})}},
      {"PRelu",
       {f({1, 2, 2}, {-1, -2, 3, -4}), f({2}, {0.5, 2})},
       2,
       {},
       {f({1, 2, 2}, {-0.5, -1, 3, -8})},
       6},
      {"Elu",
       {x},
       1,
       {{"alpha", 2.0F}},
       {f({4}, {2 * std::expm1(-2), 2 * std::expm1(-0.5), 0.5, 3})}},
      {"Selu",
       {f({2}, {-1, 2})},
       1,
       {{"alpha", 1.5F}, {"gamma", 2.0F}},
       {f({2}, {3 * std::expm1(-1), 4})}},
      {"Celu", {f({2}, {-1, 2})}, 1, {{"alpha", 2.0F}}, {f({2}, {2 * std::expm1(-0.5), 2})}},
      {"HardSigmoid", {x}, 1, {{"alpha", 0.5F}, {"beta", 0.25F}}, {f({4}, {0, 0, 0.5, 1})}},
      {"ThresholdedRelu", {x}, 1, {{"alpha", 0.5F}}, {f({4}, {0, 0, 0, 3})}},
      {"Shrink", {x}, 1, {{"lambd", 1.0F}, {"bias", 0.5F}}, {f({4}, {-1.5, 0, 0, 2.5})}},
      {"Add", {f({2, 1}, {1, 2}), f({2}, {10, 20})}, 2, {}, {f({2, 2}, {11, 21, 12, 22})}},
      {"Add",
       {f({1, 2, 2}, {0, 0, 0, 0}), f({2}, {1, 2})},
       2,
       {{"broadcast", std::int64_t{1}}, {"axis", std::int64_t{1}}},
       {f({1, 2, 2}, {1, 1, 2, 2})},
       6},
      {"Add",
       {of(dtype::u8, {2}, {200, 3}), of(dtype::u8, {2}, {100, 4})},
       2,
       {},
       {of(dtype::u8, {2}, {44, 7})}},
      {"Sub",
       {of(dtype::u8, {2}, {3, 9}), of(dtype::u8, {2}, {5, 4})},
       2,
       {},
       {of(dtype::u8, {2}, {254, 5})}},
      {"Mul", {h, h}, 2, {}, {of(dtype::f16, {2}, {2.25, 4})}},
      {"Div", {i({4}, {7, -7, 7, 1}), i({4}, {2, 2, -2, 0})}, 2, {}, {i({4}, {3, -3, -3, 0})}},
      {"Pow", {f({3}, {2, 3, 4}), i({3}, {3, 2, 0})}, 2, {}, {f({3}, {8, 9, 1})}},
      {"Pow", {i({2}, {2, -3}), i({2}, {5, 3})}, 2, {}, {i({2}, {32, -27})}},
      {"Mod", {i({4}, {7, -7, 7, -7}), i({4}, {3, 3, -3, -3})}, 2, {}, {i({4}, {1, 2, -2, -1})}},
      {"Mod",
       {f({3}, {5.5, -5.5, 6}), f({3}, {2, 2, -4})},
       2,
       {{"fmod", std::int64_t{1}}},
       {f({3}, {1.5, -1.5, 2})}},
      {"Mod",
       {f({5}, {5.5, -5.5, 6, -0.5, 3}), f({5}, {2, 2, -4, inf, -inf})},
       2,
       {},
       {f({5}, {1.5, 0.5, -2, inf, -inf})},
       28},
      // Quotients of more bits than a number has.
      {"Mod",
       {f({6}, {1e20F, 1e30F, 1e38F, -1e38F, 3e38F, 1}), f({6}, {7, 7, 7, 7, 1e-38F, 0})},
       2,
       {{"fmod", std::int64_t{1}}},
       {f({6}, {std::fmod(1e20F, 7), std::fmod(1e30F, 7), std::fmod(1e38F, 7), std::fmod(-1e38F, 7),
                std::fmod(3e38F, 1e-38F), nan_value})}},
      {"Mod",
       {of(dtype::f64, {4}, {1e300, -1e308, 5e-324, inf}),
        of(dtype::f64, {4}, {7, 1e-300, inf, 2})},
       2,
       {{"fmod", std::int64_t{1}}},
       {of(dtype::f64, {4}, {std::fmod(1e300, 7), std::fmod(-1e308, 1e-300), 5e-324, nan_value})}},
      {"Gelu",
       {f({2}, {-1, 2})},
       1,
       {},
       {f({2}, {-0.5 * (1 + std::erf(-std::sqrt(0.5))), 1 + std::erf(std::sqrt(2))})},
       20},
      {"Gelu",
       {f({1}, {2})},
       1,
       {{"approximate", std::string("tanh")}},
       {f({1}, {1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (2 + 0.044715 * 8))})},
       20},
      {"Swish", {f({1}, {2})}, 1, {{"alpha", 0.5F}}, {f({1}, {2 / (1 + std::exp(-1))})}, 24},
      {"SwiGLU", {f({1}, {2}), f({1}, {3})}, 2, {}, {f({1}, {6 / (1 + std::exp(-2))})}, 28},
      {"Mish", {f({1}, {2})}, 1, {}, {f({1}, {2 * std::tanh(std::log1p(std::exp(2)))})}, 18},
      {"Max", {f({2}, {1, 5}), f({2}, {2, 4}), f({}, {3})}, 3, {}, {f({2}, {3, 5})}},
      {"Min", {f({2}, {1, 5}), f({2}, {2, 4}), f({}, {3})}, 3, {}, {f({2}, {1, 3})}},
      {"Sum", {f({2}, {1, 5}), f({2}, {2, 4}), f({}, {3})}, 3, {}, {f({2}, {6, 12})}},
      {"Mean", {f({2}, {1, 5}), f({2}, {3, 4})}, 2, {}, {f({2}, {2, 4.5})}},
      {"Clip", {x, f({}, {-1}), f({}, {1})}, 3, {}, {f({4}, {-1, -0.5, 0.5, 1})}},
      {"Clip", {x, f({}, {0}), f({}, {1})}, 3, {}, {f({4}, {-2, -0.5, 0.5, 1})}, 17, {false, true}},
      {"Clip", {x}, 1, {{"min", -1.0F}}, {f({4}, {-1, -0.5, 0.5, 3})}, 6},
      {"IsNaN", {f({2}, {nan_value, 1})}, 1, {}, {b({2}, {1, 0})}},
      {"IsInf",
       {f({3}, {inf, -inf, 1})},
       1,
       {{"detect_negative", std::int64_t{0}}},
       {b({3}, {1, 0, 0})}},
      {"Equal", {i({2}, {1, 2}), i({2}, {1, 3})}, 2, {}, {b({2}, {1, 0})}},
      {"Less", {f({2}, {1, 2}), f({2}, {1, 3})}, 2, {}, {b({2}, {0, 1})}},
      {"LessOrEqual", {f({2}, {1, 4}), f({2}, {1, 3})}, 2, {}, {b({2}, {1, 0})}},
      {"Greater",
       {of(dtype::u8, {2}, {1, 4}), of(dtype::u8, {2}, {1, 3})},
       2,
       {},
       {b({2}, {0, 1})}},
      {"GreaterOrEqual", {f({2}, {1, 2}), f({2}, {1, 3})}, 2, {}, {b({2}, {1, 0})}},
      {"And", {b({4}, {0, 0, 1, 1}), b({4}, {0, 1, 0, 1})}, 2, {}, {b({4}, {0, 0, 0, 1})}},
      {"Or", {b({4}, {0, 0, 1, 1}), b({4}, {0, 1, 0, 1})}, 2, {}, {b({4}, {0, 1, 1, 1})}},
      {"Xor", {b({4}, {0, 0, 1, 1}), b({4}, {0, 1, 0, 1})}, 2, {}, {b({4}, {0, 1, 1, 0})}},
      {"Not", {b({2}, {0, 1})}, 1, {}, {b({2}, {1, 0})}},
      {"Where", {b({2}, {1, 0}), i({2}, {1, 2}), i({}, {9})}, 3, {}, {i({2}, {1, 9})}},
      {"Cast", {f({3}, {1.7, -1.7, 0})}, 1, {{"to", std::int64_t{7}}}, {i({3}, {1, -1, 0})}},
      {"Cast", {f({3}, {1.7, -1.7, 0})}, 1, {{"to", std::int64_t{9}}}, {b({3}, {1, 1, 0})}},
      {"CastLike", {i({2}, {1, 2}), f({}, {0})}, 2, {}, {f({2}, {1, 2})}},
  };
  return all;
}

std::vector<op_case> reduction_cases() {
  const auto x = f({2, 3}, {1, 2, 3, 4, 5, -6});
  const auto rows = onnx_attributes{{"axes", list{1}}, {"keepdims", std::int64_t{0}}};
  const auto lse = [](double p, double q, double r) {
    return std::log(std::exp(p) + std::exp(q) + std::exp(r));
  };
  return {
      {"ReduceSum", {x, whole_numbers({-1})}, 1, {}, {f({2, 1}, {6, 3})}},
      {"ReduceSum", {x, whole_numbers({})}, 1, {{"noop_with_empty_axes", std::int64_t{1}}}, {x}},
      {"ReduceSum", {x}, 1, {{"keepdims", std::int64_t{0}}}, {f({}, {9})}},
      {"ReduceMean", {x}, 1, rows, {f({2}, {2, 1})}},
      {"ReduceProd", {x}, 1, rows, {f({2}, {6, -120})}},
      {"ReduceMax", {x}, 1, rows, {f({2}, {3, 5})}},
      {"ReduceMax",
       {of(dtype::u8, {2}, {7, 250})},
       1,
       {{"keepdims", std::int64_t{0}}},
       {of(dtype::u8, {}, {250})}},
      {"ReduceMin", {x}, 1, rows, {f({2}, {1, -6})}},
      {"ReduceMax", {b({2, 2}, {0, 1, 0, 0}), i({1}, {1})}, 1, {}, {b({2, 1}, {1, 0})}, 20},
      {"ReduceMin", {b({2, 2}, {1, 1, 0, 1}), i({1}, {1})}, 1, {}, {b({2, 1}, {1, 0})}, 20},
      // Nothing is reduced, and what is done before and behind it is done.
      {"ReduceL1",
       {f({2}, {-3, 4})},
       1,
       {{"noop_with_empty_axes", std::int64_t{1}}},
       {f({2}, {3, 4})},
       18},
      {"ReduceL2",
       {f({2}, {-3, 4})},
       1,
       {{"noop_with_empty_axes", std::int64_t{1}}},
       {f({2}, {3, 4})},
       18},
      {"ReduceSumSquare",
       {f({2}, {-3, 4}), whole_numbers({})},
       1,
       {{"noop_with_empty_axes", std::int64_t{1}}},
       {f({2}, {9, 16})},
       18},
      {"ReduceLogSum",
       {f({2}, {3, 4})},
       1,
       {{"noop_with_empty_axes", std::int64_t{1}}},
       {f({2}, {std::log(3), std::log(4)})},
       18},
      {"ReduceMean", {x, whole_numbers({-1})}, 1, {}, {f({2, 1}, {2, 1})}, 18},
      {"ReduceL1", {x}, 1, rows, {f({2}, {6, 15})}},
      {"ReduceL2", {x}, 1, rows, {f({2}, {std::sqrt(14), std::sqrt(77)})}},
      {"ReduceSumSquare", {x}, 1, rows, {f({2}, {14, 77})}},
      {"ReduceLogSum", {x}, 1, rows, {f({2}, {std::log(6), std::log(3)})}},
      {"ReduceLogSumExp", {x}, 1, rows, {f({2}, {lse(1, 2, 3), lse(4, 5, -6)})}},
      {"ArgMax",
       {f({2, 3}, {1, 3, 3, 4, 2, 4})},
       1,
       {{"axis", std::int64_t{1}}},
       {i({2, 1}, {1, 0})}},
      {"ArgMax",
       {f({2, 3}, {1, 3, 3, 4, 2, 4})},
       1,
       {{"axis", std::int64_t{1}},
        {"select_last_index", std::int64_t{1}},
        {"keepdims", std::int64_t{0}}},
       {i({2}, {2, 2})}},
      {"ArgMin", {f({2, 2}, {1, 3, 0, 4})}, 1, {{"keepdims", std::int64_t{0}}}, {i({2}, {1, 0})}},
      {"CumSum",
       {x, i({}, {1})},
       1,
       {{"exclusive", std::int64_t{1}}, {"reverse", std::int64_t{1}}},
       {f({2, 3}, {5, 3, 0, -1, -6, 0})}},
      {"TopK",
       {f({2, 3}, {1, 9, 3, 4, 2, 6}), whole_numbers({2})},
       1,
       {},
       {f({2, 2}, {9, 3, 6, 4}), i({2, 2}, {1, 2, 2, 0})}},
      {"TopK",
       {i({3, 2}, {1, 9, 3, 4, 2, 6}), whole_numbers({2})},
       1,
       {{"axis", std::int64_t{0}}, {"largest", std::int64_t{0}}},
       {i({2, 2}, {1, 4, 2, 6}), i({2, 2}, {0, 1, 2, 2})}},
      {"Hardmax", {f({2, 2}, {1, 1, 3, 4})}, 1, {}, {f({2, 2}, {1, 0, 0, 1})}},
      {"Hardmax", {f({1, 2, 2}, {1, 1, 3, 4})}, 1, {}, {f({1, 2, 2}, {0, 0, 0, 1})}, 11},
  };
}

std::vector<op_case> dense_cases() {
  const auto a = counted({2, 3}), v = f({3}, {1, 2, 3});
  const auto image = counted({1, 1, 3, 3}), line = counted({1, 1, 4});
  const auto window = onnx_attributes{{"kernel_shape", list{2, 2}}};
  return {
      {"MatMul", {a, counted({3, 2})}, 2, {}, {f({2, 2}, {10, 13, 28, 40})}},
      {"MatMul", {a, v}, 2, {}, {f({2}, {8, 26})}},
      {"MatMul", {v, counted({3, 2})}, 2, {}, {f({2}, {16, 22})}},
      {"MatMul", {v, v}, 2, {}, {f({}, {14})}},
      {"Gemm",
       {a, counted({2, 3}), f({2}, {1, 2})},
       3,
       {{"transB", std::int64_t{1}}, {"alpha", 2.0F}, {"beta", 0.5F}},
       {f({2, 2}, {10.5, 29, 28.5, 101})}},
      {"Einsum",
       {a, counted({3, 2})},
       2,
       {{"equation", std::string("ij, jk -> ki")}},
       {f({2, 2}, {10, 28, 13, 40})}},
      {"Einsum", {v, v}, 2, {{"equation", std::string("i,i")}}, {f({}, {14})}},
      {"Einsum", {a}, 1, {{"equation", std::string("ba")}}, {f({3, 2}, {0, 3, 1, 4, 2, 5})}},
      {"Einsum", {counted({3, 3})}, 1, {{"equation", std::string("ii->i")}}, {f({3}, {0, 4, 8})}},
      {"Einsum", {counted({2, 2, 2})}, 1, {{"equation", std::string("iji->j")}}, {f({2}, {5, 9})}},
      {"Einsum",
       {counted({2, 1, 2}), counted({2, 2})},
       2,
       {{"equation", std::string("...ij,...jk->...ik")}},
       {f({2, 1, 2}, {2, 3, 6, 11})}},
      {"Einsum",
       {counted({2, 2}), counted({1, 2})},
       2,
       {{"equation", std::string("a...,b...->...")}},
       {f({2}, {0, 4})}},
      {"Einsum",
       {i({2, 2}, {1, 2, 3, 4}), i({2}, {5, 6})},
       2,
       {{"equation", std::string("ij,j->i")}},
       {i({2}, {17, 39})}},
      {"Conv",
       {image, f({1, 1, 2, 2}, {1, 0, 0, 1}), f({1}, {10})},
       3,
       {},
       {f({1, 1, 2, 2}, {14, 16, 20, 22})}},
      {"Conv",
       {image, f({1, 1, 3, 3}, {0, 0, 0, 0, 1, 0, 0, 0, 0})},
       2,
       {{"auto_pad", std::string("SAME_UPPER")}, {"strides", list{2, 2}}},
       {f({1, 1, 2, 2}, {0, 2, 6, 8})}},
      {"Conv",
       {line, f({1, 1, 2}, {1, 2})},
       2,
       {{"pads", list{1, 0}}, {"dilations", list{2}}},
       {f({1, 1, 3}, {2, 4, 7})}},
      {"Conv",
       {counted({1, 2, 2}), f({2, 1, 1}, {1, 10})},
       2,
       {{"group", std::int64_t{2}}},
       {f({1, 2, 2}, {0, 1, 20, 30})}},
      {"ConvTranspose",
       {f({1, 1, 2, 2}, {1, 2, 3, 4}), f({1, 1, 2, 2}, {1, 1, 1, 1})},
       2,
       {{"strides", list{2, 2}}},
       {f({1, 1, 4, 4}, {1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4})}},
      {"ConvTranspose",
       {f({1, 1, 2}, {1, 2}), f({1, 1, 2}, {1, 10})},
       2,
       {{"strides", list{2}}, {"output_padding", list{1}}, {"pads", list{1, 0}}},
       {f({1, 1, 4}, {10, 2, 20, 0})}},
      {"ConvTranspose",
       {f({1, 1, 2}, {1, 2}), f({1, 1, 1}, {1})},
       2,
       {{"output_shape", list{5}}, {"strides", list{2}}},
       {f({1, 1, 5}, {1, 0, 2, 0, 0})}},
      // 3 - 2 + 3 = 4 of 2: the odd one is at the end for SAME_UPPER alone.
      {"ConvTranspose",
       {f({1, 1, 3}, {1, 2, 3}), f({1, 1, 2}, {1, 10})},
       2,
       {{"output_shape", list{3}}},
       {f({1, 1, 3}, {12, 23, 30})}},
      {"ConvTranspose",
       {f({1, 1, 3}, {1, 2, 3}), f({1, 1, 2}, {1, 10})},
       2,
       {{"auto_pad", std::string("SAME_LOWER")}},
       {f({1, 1, 3}, {12, 23, 30})}},
      {"ConvTranspose",
       {f({1, 1, 3}, {1, 2, 3}), f({1, 1, 2}, {1, 10})},
       2,
       {{"auto_pad", std::string("SAME_UPPER")}},
       {f({1, 1, 3}, {1, 12, 23})}},
      {"ConvTranspose",
       {f({1, 1, 3}, {1, 2, 3}), f({1, 1, 2}, {1, 10})},
       2,
       {{"auto_pad", std::string("VALID")}, {"output_shape", list{3}}},
       {f({1, 1, 3}, {12, 23, 30})}},
      // output_padding keeps what the padding at the end would take away, and behind that are
      // zeros.
      {"ConvTranspose",
       {f({1, 1, 2}, {1, 2}), f({1, 1, 2}, {1, 10})},
       2,
       {{"dilations", list{2}}, {"output_padding", list{1}}, {"pads", list{1, 1}}},
       {f({1, 1, 3}, {2, 10, 20})}},
      {"ConvTranspose",
       {f({1, 1, 2}, {1, 2}), f({1, 1, 2}, {1, 10})},
       2,
       {{"dilations", list{2}}, {"output_padding", list{1}}, {"pads", list{1, 0}}},
       {f({1, 1, 4}, {2, 10, 20, 0})}},
      // Rounded up, also without padding (the standard's inference of shapes).
      {"MaxPool",
       {line},
       1,
       {{"kernel_shape", list{3}},
        {"strides", list{2}},
        {"ceil_mode", std::int64_t{1}},
        {"auto_pad", std::string("VALID")}},
       {f({1, 1, 2}, {2, 3})}},
      {"AveragePool",
       {counted({1, 1, 5})},
       1,
       {{"kernel_shape", list{2}}, {"dilations", list{3}}, {"pads", list{0, 1}}},
       {f({1, 1, 3}, {1.5, 2.5, 2})},
       19},
      {"MaxPool",
       {image},
       1,
       window,
       {f({1, 1, 2, 2}, {4, 5, 7, 8}), i({1, 1, 2, 2}, {4, 5, 7, 8})}},
      {"MaxPool",
       {image},
       1,
       {{"kernel_shape", list{2, 2}}, {"storage_order", std::int64_t{1}}},
       {f({1, 1, 2, 2}, {4, 5, 7, 8}), i({1, 1, 2, 2}, {4, 7, 5, 8})}},
      {"MaxPool",
       {line},
       1,
       {{"kernel_shape", list{3}}, {"strides", list{2}}, {"ceil_mode", std::int64_t{1}}},
       {f({1, 1, 2}, {2, 3})}},
      {"AveragePool",
       {image},
       1,
       {{"kernel_shape", list{2, 2}},
        {"pads", list{1, 1, 0, 0}},
        {"count_include_pad", std::int64_t{1}}},
       {f({1, 1, 3, 3}, {0, 0.25, 0.75, 0.75, 2, 3, 2.25, 5, 6})}},
      {"AveragePool",
       {image},
       1,
       {{"kernel_shape", list{2, 2}}, {"auto_pad", std::string("SAME_LOWER")}},
       {f({1, 1, 3, 3}, {0, 0.5, 1.5, 1.5, 2, 3, 4.5, 5, 6})}},
      {"GlobalAveragePool", {image}, 1, {}, {f({1, 1, 1, 1}, {4})}},
      {"GlobalMaxPool", {image}, 1, {}, {f({1, 1, 1, 1}, {8})}},
  };
}

std::vector<op_case> normalisation_cases() {
  const auto e = [](double x) { return std::exp(x); };
  const auto x = f({1, 2, 2}, {0, 1, 2, 3});
  const auto all = e(0) + e(1) + e(2) + e(3);
  const auto nll = f({2, 3}, {-1, -2, -3, -4, -5, -6});
  const auto nd = -1 / std::sqrt(1 + 1e-5);  // of two numbers that are 2 apart
  const auto p1 = std::log(e(0) + e(1));
  return {
      {"Softmax",
       {x},
       1,
       {},
       {f({1, 2, 2}, {e(0) / (e(0) + e(1)), e(1) / (e(0) + e(1)), e(0) / (e(0) + e(1)),
                      e(1) / (e(0) + e(1))})}},
      {"Softmax", {x}, 1, {}, {f({1, 2, 2}, {e(0) / all, e(1) / all, e(2) / all, e(3) / all})}, 11},
      {"LogSoftmax",
       {x},
       1,
       {{"axis", std::int64_t{-1}}},
       {f({1, 2, 2}, {-p1, 1 - p1, -p1, 1 - p1})}},
      {"LogSoftmax",
       {x},
       1,
       {},
       {f({1, 2, 2}, {-std::log(all), 1 - std::log(all), 2 - std::log(all), 3 - std::log(all)})},
       7},
      {"BatchNormalization",
       {f({1, 2, 2}, {1, 2, 3, 4}), f({2}, {1, 2}), f({2}, {0, 1}), f({2}, {1, 3}), f({2}, {4, 1})},
       5,
       {{"epsilon", 0.0F}},
       {f({1, 2, 2}, {0, 0.5, 1, 3})}},
      {"BatchNormalization",
       {f({1, 1, 2}, {1, 3}), f({1}, {1}), f({1}, {0}), f({1}, {0}), f({1}, {2})},
       5,
       {{"training_mode", std::int64_t{1}}, {"momentum", 0.5F}},
       {f({1, 1, 2}, {nd, -nd}), f({1}, {1}), f({1}, {1.5})}},
      {"RMSNormalization",
       {f({1, 2}, {3, 4}), f({2}, {1, 2})},
       2,
       {{"epsilon", 0.0F}},
       {f({1, 2}, {3 / std::sqrt(12.5), 8 / std::sqrt(12.5)})},
       23},
      {"GroupNormalization",
       {f({1, 4, 1}, {1, 3, 5, 7}), f({2}, {1, 2}), f({2}, {0, 1})},
       3,
       {{"num_groups", std::int64_t{2}}},
       {f({1, 4, 1}, {nd, -nd, 2 * nd + 1, 1 - 2 * nd})},
       18},
      {"GroupNormalization",
       {f({1, 4, 1}, {1, 3, 5, 7}), f({4}, {1, 2, 3, 4}), f({4}, {0, 1, 2, 3})},
       3,
       {{"num_groups", std::int64_t{2}}},
       {f({1, 4, 1}, {nd, 1 - 2 * nd, 2 + 3 * nd, 3 - 4 * nd})},
       21},
      {"LpNormalization", {f({2, 2}, {3, 4, 0, 0})}, 1, {}, {f({2, 2}, {0.6, 0.8, 0, 0})}},
      {"LpNormalization",
       {f({2, 2}, {3, -4, 1, 4})},
       1,
       {{"p", std::int64_t{1}}, {"axis", std::int64_t{0}}},
       {f({2, 2}, {0.75, -0.5, 0.25, 0.5})}},
      {"InstanceNormalization",
       {f({1, 2, 2}, {1, 3, 5, 7}), f({2}, {1, 2}), f({2}, {0, 1})},
       3,
       {},
       {f({1, 2, 2}, {nd, -nd, 2 * nd + 1, -2 * nd + 1})}},
      {"LayerNormalization",
       {f({2, 2}, {1, 3, 5, 7}), f({2}, {1, 2}), f({2}, {0, 1})},
       3,
       {},
       {f({2, 2}, {nd, -2 * nd + 1, nd, -2 * nd + 1}), f({2, 1}, {2, 6}), f({2, 1}, {-nd, -nd})}},
      {"MeanVarianceNormalization", {f({1, 1, 1, 2}, {1, 3})}, 1, {}, {f({1, 1, 1, 2}, {-1, 1})}},
      {"LRN",
       {f({1, 3, 1}, {1, 2, 3})},
       1,
       {{"size", std::int64_t{3}}, {"alpha", 3.0F}, {"beta", 1.0F}, {"bias", 1.0F}},
       {f({1, 3, 1}, {1.0 / 6, 2.0 / 15, 3.0 / 14})}},
      {"Dropout", {f({2}, {1, 2})}, 1, {}, {f({2}, {1, 2}), b({2}, {1, 1})}},
      {"Dropout",
       {f({2}, {1, nan_value}), f({}, {0}), b({}, {1})},
       1,
       {},
       {f({2}, {1, nan_value}), b({2}, {1, 1})}},
      {"NegativeLogLikelihoodLoss", {nll, i({2}, {0, 2})}, 2, {}, {f({}, {3.5})}},
      {"NegativeLogLikelihoodLoss",
       {nll, i({2}, {0, 2}), f({3}, {1, 1, 3})},
       3,
       {},
       {f({}, {4.75})}},
      {"NegativeLogLikelihoodLoss",
       {nll, i({2}, {0, -1})},
       2,
       {{"ignore_index", std::int64_t{-1}}, {"reduction", std::string("none")}},
       {f({2}, {1, 0})}},
      {"NegativeLogLikelihoodLoss",
       {nll, i({2}, {0, -1})},
       2,
       {{"ignore_index", std::int64_t{-1}}},
       {f({}, {1})}},
      {"SoftmaxCrossEntropyLoss",
       {f({1, 2}, {0, 1}), i({1}, {1})},
       2,
       {{"reduction", std::string("sum")}},
       {f({}, {p1 - 1}), f({1, 2}, {-p1, 1 - p1})}},
  };
}

std::vector<op_case> layout_cases() {
  const auto x = counted({2, 3});
  const auto depth = counted({1, 4, 1, 2});
  return {
      {"Reshape", {x, whole_numbers({0, -1, 1})}, 1, {}, {counted({2, 3, 1})}},
      {"Reshape",
       {f({0, 3}, {}), whole_numbers({3, 0})},
       1,
       {{"allowzero", std::int64_t{1}}},
       {f({3, 0}, {})}},
      {"Reshape", {f({0, 3}, {}), whole_numbers({0, 3, 1})}, 1, {}, {f({0, 3, 1}, {})}},
      {"Flatten", {counted({2, 1, 3})}, 1, {{"axis", std::int64_t{2}}}, {counted({2, 3})}},
      {"Squeeze", {counted({1, 2, 1}), whole_numbers({0})}, 1, {}, {counted({2, 1})}},
      {"Squeeze", {counted({1, 2, 1})}, 1, {}, {counted({2})}},
      {"Unsqueeze", {counted({2}), whole_numbers({0, -1})}, 1, {}, {counted({1, 2, 1})}},
      {"Unsqueeze", {counted({2})}, 1, {{"axes", list{1}}}, {counted({2, 1})}, 11},
      {"Transpose", {x}, 1, {{"perm", list{1, 0}}}, {f({3, 2}, {0, 3, 1, 4, 2, 5})}},
      {"Concat",
       {x, f({2, 1}, {8, 9})},
       2,
       {{"axis", std::int64_t{-1}}},
       {f({2, 4}, {0, 1, 2, 8, 3, 4, 5, 9})}},
      {"Split",
       {x, whole_numbers({1, 2})},
       1,
       {{"axis", std::int64_t{1}}},
       {f({2, 1}, {0, 3}), f({2, 2}, {1, 2, 4, 5})}},
      {"Split", {x}, 1, {}, {counted({1, 3}), counted({1, 3}, 3)}, 11},
      {"Slice",
       {x, whole_numbers({-1, 0}), whole_numbers({-100, 2}), whole_numbers({1, 0}),
        whole_numbers({-1, 1})},
       1,
       {},
       {f({2, 3}, {2, 1, 0, 5, 4, 3})}},
      {"Slice",
       {x},
       1,
       {{"starts", list{1}}, {"ends", list{1000}}, {"axes", list{1}}},
       {f({2, 2}, {1, 2, 4, 5})},
       9},
      {"Slice",
       {x, whole_numbers({2}), whole_numbers({std::int64_t{1} << 62}), whole_numbers({1}),
        whole_numbers({-1})},
       1,
       {},
       {f({2, 0}, {})}},
      {"Pad",
       {counted({1, 2}), whole_numbers({0, 1, 1, 0}), f({}, {7})},
       1,
       {},
       {f({2, 3}, {7, 0, 1, 7, 7, 7})}},
      {"Pad",
       {counted({3}), whole_numbers({2, 1})},
       1,
       {{"mode", std::string("reflect")}},
       {f({6}, {2, 1, 0, 1, 2, 1})}},
      {"Pad",
       {counted({3}), whole_numbers({2, -1})},
       1,
       {{"mode", std::string("edge")}},
       {f({4}, {0, 0, 0, 1})}},
      {"Tile",
       {counted({1, 2}), whole_numbers({2, 2})},
       1,
       {},
       {f({2, 4}, {0, 1, 0, 1, 0, 1, 0, 1})}},
      {"Expand",
       {f({2, 1}, {1, 2}), whole_numbers({2, 1, 3})},
       1,
       {},
       {f({2, 2, 3}, {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2})}},
      {"DepthToSpace",
       {depth},
       1,
       {{"blocksize", std::int64_t{2}}},
       {f({1, 1, 2, 4}, {0, 2, 1, 3, 4, 6, 5, 7})}},
      {"DepthToSpace",
       {counted({1, 8, 1, 1})},
       1,
       {{"blocksize", std::int64_t{2}}, {"mode", std::string("CRD")}},
       {counted({1, 2, 2, 2})}},
      {"SpaceToDepth",
       {f({1, 1, 2, 4}, {0, 2, 1, 3, 4, 6, 5, 7})},
       1,
       {{"blocksize", std::int64_t{2}}},
       {depth}},
      {"Trilu", {counted({2, 3}, 1), i({}, {1})}, 1, {}, {f({2, 3}, {0, 2, 3, 0, 0, 6})}},
      {"Trilu",
       {i({2, 2}, {1, 2, 3, 4})},
       1,
       {{"upper", std::int64_t{0}}},
       {i({2, 2}, {1, 0, 3, 4})}},
      {"Gather", {x, i({2}, {-1, 0})}, 2, {{"axis", std::int64_t{1}}}, {f({2, 2}, {2, 0, 5, 3})}},
      {"GatherElements", {x, i({1, 2}, {1, 0})}, 2, {}, {f({1, 2}, {3, 1})}},
      {"GatherND", {x, i({2, 2}, {0, -1, 1, 0})}, 2, {}, {f({2}, {2, 3})}},
      {"GatherND", {x, i({2, 1}, {2, 0})}, 2, {{"batch_dims", std::int64_t{1}}}, {f({2}, {2, 3})}},
      {"Scatter", {counted({3}), i({1}, {1}), f({1}, {9})}, 3, {}, {f({3}, {0, 9, 2})}, 10},
      {"ScatterElements",
       {x, i({1, 2}, {1, 0}), f({1, 2}, {8, 9})},
       3,
       {},
       {f({2, 3}, {0, 9, 2, 8, 4, 5})}},
      {"ScatterElements",
       {counted({3}), i({2}, {1, 1}), f({2}, {8, 9})},
       3,
       {{"reduction", std::string("add")}},
       {f({3}, {0, 18, 2})}},
      {"ScatterElements",
       {f({3}, {5, 1, 2}), i({3}, {1, 1, -3}), f({3}, {8, 9, 2})},
       3,
       {{"reduction", std::string("mul")}},
       {f({3}, {10, 72, 2})},
       18},
      {"ScatterElements",
       {f({2, 3}, {5, 1, 2, 0, 3, 4}), i({2, 1}, {2, 2}), f({2, 1}, {8, 1})},
       3,
       {{"reduction", std::string("max")}, {"axis", std::int64_t{1}}},
       {f({2, 3}, {5, 1, 8, 0, 3, 4})},
       18},
      {"ScatterElements",
       {b({3}, {1, 1, 0}), i({2}, {0, 2}), b({2}, {0, 1})},
       3,
       {},
       {b({3}, {0, 1, 1})},
       18},
      {"ScatterND",
       {i({2, 2}, {5, 6, 7, 8}), i({2, 1}, {0, 0}), i({2, 2}, {9, 3, 4, 7})},
       3,
       {{"reduction", std::string("min")}},
       {i({2, 2}, {4, 3, 7, 8})},
       18},
      {"ScatterND",
       {x, i({1, 1}, {1}), f({1, 3}, {7, 0, 9})},
       3,
       {},
       {f({2, 3}, {0, 1, 2, 7, 0, 9})}},
      {"ScatterND",
       {x, i({2, 2}, {0, 0, 0, 0}), f({2}, {1, 2})},
       3,
       {{"reduction", std::string("add")}},
       {f({2, 3}, {3, 1, 2, 3, 4, 5})}},
      {"Split",
       {f({5}, {1, 2, 3, 4, 5})},
       1,
       {{"num_outputs", std::int64_t{3}}},
       {f({2}, {1, 2}), f({2}, {3, 4}), f({1}, {5})},
       18},
      {"Pad",
       {f({2, 2}, {1, 2, 3, 4}), whole_numbers({1, 0}), f({}, {9}), whole_numbers({-1})},
       1,
       {},
       {f({2, 3}, {9, 1, 2, 9, 3, 4})},
       18},
      {"Pad",
       {f({3}, {1, 2, 3}), whole_numbers({4, 2})},
       1,
       {{"mode", std::string("wrap")}},
       {f({9}, {3, 1, 2, 3, 1, 2, 3, 1, 2})},
       19},
      // More than there is to reflect: to and fro.
      {"Pad",
       {f({3}, {1, 2, 3}), whole_numbers({3, 5})},
       1,
       {{"mode", std::string("reflect")}},
       {f({11}, {2, 3, 2, 1, 2, 3, 2, 1, 2, 3, 2})},
       19},
      {"SpaceToDepth",
       {counted({1, 2, 2, 2})},
       1,
       {{"blocksize", std::int64_t{2}}, {"mode", std::string("CRD")}},
       {counted({1, 8, 1, 1})},
       28},
      {"Range",
       {of(dtype::f16, {}, {1}), of(dtype::f16, {}, {3}), of(dtype::f16, {}, {0.75})},
       0,
       {},
       {of(dtype::f16, {3}, {1, 1.75, 2.5})},
       27},
      {"OneHot",
       {i({3}, {1, -1, 5}), i({}, {3}), f({2}, {2, 5})},
       1,
       {},
       {f({3, 3}, {2, 5, 2, 2, 2, 5, 2, 2, 2})}},
      {"OneHot",
       {i({2}, {1, 0}), i({}, {3}), i({2}, {0, 1})},
       1,
       {{"axis", std::int64_t{0}}},
       {i({3, 2}, {0, 1, 1, 0, 0, 0})}},
      {"Constant", {}, 0, {{"value", i({2}, {4, 5})}}, {i({2}, {4, 5})}},
      {"Constant", {}, 0, {{"value_floats", std::vector<float>{1.5F, 2}}}, {f({2}, {1.5, 2})}},
      {"Constant", {}, 0, {{"value_ints", list{7}}}, {i({1}, {7})}},
      {"Shape", {x}, 1, {{"start", std::int64_t{-1}}}, {i({1}, {3})}},
      {"Size", {x}, 1, {}, {i({}, {6})}},
      {"ConstantOfShape",
       {whole_numbers({2, 1})},
       0,
       {{"value", i({1}, {3})}},
       {i({2, 1}, {3, 3})}},
      {"ConstantOfShape", {whole_numbers({0, 2})}, 0, {}, {f({0, 2}, {})}},
      {"Range", {i({}, {10}), i({}, {4}), i({}, {-2})}, 0, {}, {i({3}, {10, 8, 6})}},
      {"Range", {f({}, {1}), f({}, {2}), f({}, {0.5})}, 0, {}, {f({2}, {1, 1.5})}},
      {"EyeLike",
       {x},
       1,
       {{"k", std::int64_t{1}}, {"dtype", std::int64_t{7}}},
       {i({2, 3}, {0, 1, 0, 0, 0, 1})}},
  };
}

// Resize takes its operands as: x, part, scales, sizes.
std::vector<op_case> resize_cases() {
  const auto two = f({2}, {1, 2}), four = f({4}, {1, 2, 3, 4}), five = f({5}, {1, 2, 4, 8, 16});
  const auto none = f({0}, {});
  const auto text = [](const char* t) { return std::string(t); };
  return {
      {"Resize", {two, none, f({1}, {2})}, 1, {}, {f({4}, {1, 1, 2, 2})}, 18, {false, true}},
      {"Resize",
       {two, none, f({1}, {2})},
       1,
       {{"nearest_mode", text("ceil")}, {"coordinate_transformation_mode", text("asymmetric")}},
       {f({4}, {1, 2, 2, 2})},
       18,
       {false, true}},
      {"Resize",
       {two, none, none, whole_numbers({4})},
       1,
       {{"mode", text("linear")}, {"coordinate_transformation_mode", text("asymmetric")}},
       {f({4}, {1, 1.5, 2, 2})},
       13,
       {false, true, true}},
      // The length before it is cut off: 2.4.
      {"Resize",
       {four, none, f({1}, {0.6F})},
       1,
       {{"mode", text("linear")}, {"coordinate_transformation_mode", text("align_corners")}},
       {f({2}, {1, 1 + 3 / 1.4})},
       19,
       {false, true}},
      {"Resize",
       {four, none, f({1}, {0.6F})},
       1,
       {{"mode", text("linear")}, {"coordinate_transformation_mode", text("half_pixel_symmetric")}},
       {f({2}, {1 + 2 * (1 - 2 / 2.4) + 0.5 / 0.6 - 0.5, 1 + 2 * (1 - 2 / 2.4) + 1.5 / 0.6 - 0.5})},
       19,
       {false, true}},
      {"Resize",
       {four, none, none, whole_numbers({1})},
       1,
       {{"mode", text("linear")}, {"coordinate_transformation_mode", text("pytorch_half_pixel")}},
       {f({1}, {1})},
       19,
       {false, true, true}},
      {"Resize",
       {four, f({2}, {0.5, 2}), none, whole_numbers({3})},
       1,
       {{"mode", text("linear")},
        {"coordinate_transformation_mode", text("tf_crop_and_resize")},
        {"extrapolation_value", 9.0F}},
       {f({3}, {2.5, 9, 9})},
       19,
       {false, false, true}},
      {"Resize",
       {four, none, f({1}, {0.5})},
       1,
       {{"mode", text("linear")}, {"antialias", std::int64_t{1}}},
       {f({2}, {1.625, 3.375})},
       18,
       {false, true}},
      {"Resize",
       {five, none, none, whole_numbers({3})},
       1,
       {{"mode", text("cubic")}},
       {f({3}, {1.203702688217163, 4, 13.703701972961426})},
       19,
       {false, true, true}},
      {"Resize",
       {five, none, none, whole_numbers({3})},
       1,
       {{"mode", text("cubic")}, {"exclude_outside", std::int64_t{1}}, {"cubic_coeff_a", -0.5F}},
       {f({3}, {1.206897497177124, 4, 13.931031227111816})},
       19,
       {false, true, true}},
      {"Resize",
       {five, none, none, whole_numbers({3})},
       1,
       {{"mode", text("cubic")}, {"antialias", std::int64_t{1}}},
       {f({3}, {1.1301204819277073, 3.904761904761909, 13.137349397590357})},
       19,
       {false, true, true}},
      // Of 2 x 4 at most 3 x 4 in its proportions: 2 x 4.
      {"Resize",
       {counted({1, 2, 4}), none, none, whole_numbers({3, 4})},
       1,
       {{"axes", list{1, 2}}, {"keep_aspect_ratio_policy", text("not_larger")}},
       {counted({1, 2, 4})},
       18,
       {false, true, true}},
      {"Resize",
       {f({1, 2}, {1, 2}), none, none, whole_numbers({2, 2})},
       1,
       {{"axes", list{1, 0}}, {"keep_aspect_ratio_policy", text("not_smaller")}},
       {f({2, 4}, {1, 1, 2, 2, 1, 1, 2, 2})},
       18,
       {false, true, true}},
      {"Resize", {two, f({1}, {2})}, 1, {}, {f({4}, {1, 1, 2, 2})}, 10},
      {"Upsample", {two, f({1}, {2})}, 1, {{"mode", text("linear")}}, {f({4}, {1, 1.5, 2, 2})}, 9},
      {"Upsample", {two}, 1, {{"scales", std::vector<float>{2}}}, {f({4}, {1, 1, 2, 2})}, 7},
  };
}

std::vector<op_case> attention_cases() {
  const auto q = f({1, 1, 2, 1}, {0, 0}), k = f({1, 1, 2, 1}, {5, 7}), v = f({1, 1, 2, 1}, {1, 3});
  const auto none = f({0}, {});
  const auto x = f({1, 1, 1, 4}, {1, 2, 3, 4}), angles = f({1, 1, 2}, {0, 0.5});
  const auto sines = f({1, 1, 2}, {1, 2});
  const std::int64_t yes = 1;
  return {
      {"Attention", {q, k, v}, 3, {}, {f({1, 1, 2, 1}, {2, 2})}, 23},
      {"Attention", {q, k, v}, 3, {{"is_causal", yes}}, {f({1, 1, 2, 1}, {1, 2})}, 23},
      {"Attention",
       {f({1, 1, 1, 1}, {4}), f({1, 1, 1, 1}, {3}), f({1, 1, 1, 1}, {1})},
       3,
       {{"scale", 0.5F}, {"softcap", 2.0F}, {"qk_matmul_output_mode", yes}},
       {f({1, 1, 1, 1}, {1}), f({1, 1, 1, 1}, {3}), f({1, 1, 1, 1}, {1}),
        f({1, 1, 1, 1}, {2 * std::tanh(3)})},
       23},
      // Two heads of queries share one of keys and values.
      {"Attention",
       {f({1, 1, 2}, {0, 0}), f({1, 2, 1}, {5, 7}), f({1, 2, 1}, {1, 3})},
       3,
       {{"q_num_heads", std::int64_t{2}}, {"kv_num_heads", yes}},
       {f({1, 1, 2}, {2, 2})},
       23},
      // A query that sees nothing gives 0.
      {"Attention", {q, k, v, b({2, 2}, {0, 1, 0, 0})}, 4, {}, {f({1, 1, 2, 1}, {3, 0})}, 23},
      {"Attention", {q, k, v, f({2, 1}, {0, 0})}, 4, {}, {f({1, 1, 2, 1}, {1, 1})}, 24},
      // With what was seen before, the first query sees two keys, the second one three.
      {"Attention",
       {q, k, v, none, f({1, 1, 1, 1}, {9}), f({1, 1, 1, 1}, {5})},
       6,
       {{"is_causal", yes}},
       {f({1, 1, 2, 1}, {3, 3}), f({1, 1, 3, 1}, {9, 5, 7}), f({1, 1, 3, 1}, {5, 1, 3})},
       23,
       {false, false, false, true}},
      {"Attention",
       {q, k, v, none, none, none, whole_numbers({1})},
       7,
       {},
       {f({1, 1, 2, 1}, {1, 1})},
       24,
       {false, false, false, true, true, true}},
      {"Attention",
       {q, k, v},
       3,
       {{"left_window_size", std::int64_t{0}}, {"right_window_size", std::int64_t{0}}},
       {f({1, 1, 2, 1}, {1, 3})},
       25},
      {"RotaryEmbedding", {x, angles, sines}, 3, {}, {f({1, 1, 1, 4}, {-3, -7, 1, 6})}, 23},
      {"RotaryEmbedding",
       {x, angles, sines},
       3,
       {{"interleaved", yes}},
       {f({1, 1, 1, 4}, {-2, 1, -6.5, 8})},
       23},
      // The first two of the features of each head, at places that are given.
      {"RotaryEmbedding",
       {f({1, 1, 3}, {1, 2, 3}), f({2, 1}, {7, 0}), f({2, 1}, {7, 1}), i({1, 1}, {1})},
       4,
       {{"rotary_embedding_dim", std::int64_t{2}}, {"num_heads", yes}},
       {f({1, 1, 3}, {-2, 1, 3})},
       23},
  };
}

std::vector<op_case> quantised_cases() {
  const auto bytes = [](const list& sizes, const elements_in& x) {
    return of(dtype::u8, sizes, x);
  };
  return {
      {"QuantizeLinear",
       {f({4}, {-1, 0, 1.25, 300}), f({}, {0.5}), bytes({}, {10})},
       3,
       {},
       {bytes({4}, {8, 10, 12, 255})},
       13},
      {"QuantizeLinear",
       {f({2, 2}, {3, 3, -1, 4}), f({2}, {1, 2})},
       2,
       {{"axis", std::int64_t{0}}},
       {bytes({2, 2}, {3, 3, 0, 2})},
       21},
      {"DequantizeLinear",
       {bytes({2, 2}, {0, 3, 128, 255}), f({2}, {2, 0.5}), bytes({2}, {128, 1})},
       3,
       {},
       {f({2, 2}, {-256, 1, 0, 127})},
       13},
      {"DequantizeLinear",
       {bytes({1, 3}, {1, 2, 3}), f({1, 2}, {2, 10})},
       2,
       {{"block_size", std::int64_t{2}}},
       {f({1, 3}, {2, 4, 30})},
       21},
      {"DequantizeLinear",
       {of(dtype::i32, {2}, {-3, 4}), of(dtype::f16, {}, {0.5})},
       2,
       {},
       {of(dtype::f16, {2}, {-1.5, 2})},
       23},
      {"DynamicQuantizeLinear",
       {f({4}, {0, 2, -3, 1.34F})},
       1,
       {},
       {bytes({4}, {153, 255, 0, 221}), f({}, {5.0 / 255}), bytes({}, {153})},
       11},
      {"DynamicQuantizeLinear",
       {f({2}, {0, 0})},
       1,
       {},
       {bytes({2}, {0, 0}), f({}, {0}), bytes({}, {0})},
       11},
      {"MatMulInteger",
       {bytes({1, 2}, {11, 7}), bytes({2, 1}, {1, 4}), bytes({}, {12}), bytes({1}, {0})},
       4,
       {},
       {of(dtype::i32, {1, 1}, {-21})},
       10},
  };
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// One number as input, one as state, so that the standard's equations stand here as they are.
std::vector<op_case> recurrent_cases() {
  const auto x = f({2, 1, 1}, {1, -2});
  const auto w = f({1, 4, 1}, {0.1, 0.2, 0.3, 0.4}), r = f({1, 4, 1}, {0.5, 0.6, 0.7, 0.8});
  const auto bias = f({1, 8}, {0.1, 0.2, 0.3, 0.4, 0.01, 0.02, 0.03, 0.04});
  const auto none = f({0}, {});
  // Gates: input, output, forget, cell; p: peepholes of the first three.
  const auto lstm = [](const elements_in& in, double h, double c, const elements_in& p) {
    elements_in all;
    for (const auto t : in) {
      const auto sum = [&](int k) {
        return (k + 1) * 0.1 * t + (k + 5) * 0.1 * h + (k + 1) * 0.11;
      };
      const auto i = logistic(sum(0) + p[0] * c), forget = logistic(sum(2) + p[2] * c);
      c = forget * c + i * std::tanh(sum(3));
      h = logistic(sum(1) + p[1] * c) * std::tanh(c);
      all.push_back(h);
    }
    all.push_back(c);
    return all;
  };
  const auto plain = lstm({1, -2}, 0, 0, {0, 0, 0}), back = lstm({-2, 1}, 0, 0, {0, 0, 0}),
             peeped = lstm({1, -2}, 0.5, 0.25, {1, 2, 3}), one = lstm({1}, 0, 0, {0, 0, 0});
  const auto twice = [](const array& a) {
    auto sizes = list(a.spec.shape.sizes().begin(), a.spec.shape.sizes().end());
    auto at = a.at;
    sizes[0] = 2, at.insert(at.end(), a.at.begin(), a.at.end());
    return f(sizes, at);
  };
  // Gates: update, reset, hidden.
  const auto gru = [](double t, double h, bool is_linear_first) {
    const auto z = logistic(0.1 * t + 0.5 * h + 0.11), q = logistic(0.2 * t + 0.6 * h + 0.22);
    const auto seen = is_linear_first ? q * (0.7 * h + 0.03) : 0.7 * q * h + 0.03;
    return (1 - z) * std::tanh(0.3 * t + 0.3 + seen) + z * h;
  };
  const auto gw = f({1, 3, 1}, {0.1, 0.2, 0.3}), gr = f({1, 3, 1}, {0.5, 0.6, 0.7});
  const auto gb = f({1, 6}, {0.1, 0.2, 0.3, 0.01, 0.02, 0.03});
  const auto first = f({1, 1, 1}, {0.5});
  const auto step = [](double t, double h) { return std::tanh(0.1 * t + 0.5 * h + 0.11); };
  return {
      {"LSTM",
       {x, w, r, bias},
       1,
       {{"hidden_size", std::int64_t{1}}},
       {f({2, 1, 1, 1}, {plain[0], plain[1]}), f({1, 1, 1}, {plain[1]}), f({1, 1, 1}, {plain[2]})}},
      {"LSTM",
       {x, w, r, bias, none, first, f({1, 1, 1}, {0.25}), f({1, 3}, {1, 2, 3})},
       1,
       {},
       {f({2, 1, 1, 1}, {peeped[0], peeped[1]}), f({1, 1, 1}, {peeped[1]}),
        f({1, 1, 1}, {peeped[2]})},
       22,
       {false, false, false, false, true}},
      {"LSTM",
       {x, twice(w), twice(r), twice(bias)},
       1,
       {{"direction", std::string("bidirectional")}},
       {f({2, 2, 1, 1}, {plain[0], back[1], plain[1], back[0]}), f({2, 1, 1}, {plain[1], back[1]}),
        f({2, 1, 1}, {plain[2], back[2]})}},
      // Behind its end a row gives zeros, and keeps its state.
      {"LSTM",
       {x, w, r, bias, of(dtype::i32, {1}, {1})},
       1,
       {},
       {f({2, 1, 1, 1}, {one[0], 0}), f({1, 1, 1}, {one[0]}), f({1, 1, 1}, {one[1]})}},
      {"GRU",
       {x, gw, gr, gb, none, first},
       1,
       {},
       {f({2, 1, 1, 1}, {gru(1, 0.5, false), gru(-2, gru(1, 0.5, false), false)}),
        f({1, 1, 1}, {gru(-2, gru(1, 0.5, false), false)})},
       14,
       {false, false, false, false, true}},
      {"GRU",
       {f({1, 2, 1}, {1, -2}), gw, gr, gb, none, first},
       1,
       {{"linear_before_reset", std::int64_t{1}},
        {"layout", std::int64_t{1}},
        {"direction", std::string("reverse")}},
       {f({1, 2, 1, 1}, {gru(1, gru(-2, 0.5, true), true), gru(-2, 0.5, true)}),
        f({1, 1, 1}, {gru(1, gru(-2, 0.5, true), true)})},
       14,
       {false, false, false, false, true}},
      {"RNN",
       {x, f({1, 1, 1}, {0.1}), f({1, 1, 1}, {0.5}), f({1, 2}, {0.1, 0.01})},
       1,
       {},
       {f({2, 1, 1, 1}, {step(1, 0), step(-2, step(1, 0))}), f({1, 1, 1}, {step(-2, step(1, 0))})}},
      // Limits and numbers of an activation.
      {"RNN",
       {f({1, 1, 1}, {9}), f({1, 1, 1}, {1}), f({1, 1, 1}, {0})},
       1,
       {{"activations", std::vector<std::string>{"scaledtanh"}},
        {"activation_alpha", std::vector<float>{3}},
        {"activation_beta", std::vector<float>{0.5F}},
        {"clip", 2.0F}},
       {f({1, 1, 1, 1}, {3 * std::tanh(1)}), f({1, 1, 1}, {3 * std::tanh(1)})}},
  };
}

// Numbers as another runtime gives them.
std::vector<op_case> volume_and_grid_cases() {
  const auto five = f({5}, {2, 3, 1, -1, 4});
  const auto cumulated = [&](std::int64_t exclusive, std::int64_t reverse, const elements_in& y) {
    return op_case{"CumProd",   {five, i({}, {0})},
                   1,           {{"exclusive", exclusive}, {"reverse", reverse}},
                   {f({5}, y)}, 26};
  };
  return {
      cumulated(0, 0, {2, 6, 6, -6, -24}),
      cumulated(1, 0, {1, 2, 6, 6, -6}),
      cumulated(0, 1, {-24, -12, -4, -4, 4}),
      cumulated(1, 1, {-12, -4, -4, 4, 1}),
      {"CumProd", {f({2, 2}, {2, 3, 4, 5}), i({}, {-1})}, 1, {}, {f({2, 2}, {2, 6, 4, 20})}, 26},
      {"Transpose", {f({2}, {1, 2})}, 1, {{"perm", list{0}}}, {f({2}, {1, 2})}},
      {"CumProd", {f({0}, {}), i({}, {0})}, 1, {}, {f({0}, {})}, 26},
      {"Conv",
       {f({1, 2, 3, 3, 2}, {2,  -3, -2, -2, -2, 2, 3,  1, -3, -3, -1, 0, 1, 0, -2, -2, 1,  2,
                            -3, -3, 0,  -1, 3,  0, -1, 0, 1,  1,  -2, 2, 2, 3, 2,  -2, -1, 1}),
        f({2, 1, 2, 2, 1}, {1, 1, 3, -1, 3, -3, -3, 3}), f({2}, {3, -1})},
       1,
       {{"group", std::int64_t{2}}, {"pads", list{1, 0, 0, 0, 1, 1}}, {"strides", list{2, 1, 2}}},
       {f({1, 2, 2, 3, 2},
          {11, 3, -1, 3, -3, 3, 8, 3, -8, 3, 5, 3, 8, -1, 8, -1, -10, -1, -7, -1, -1, -1, -4, -1})},
       20},
      {"Conv",
       {f({1, 1, 5, 2, 2}, {-3, -1, -3, 3, 1, 1, -2, 0, -2, 2, 0, -3, -2, 1, 0, -1, -2, -3, 1, 1}),
        f({1, 1, 2, 1, 1}, {0, 3})},
       2,
       {{"dilations", list{3, 1, 1}}},
       {f({1, 1, 2, 2, 2}, {-6, 3, 0, -3, -6, -9, 3, 3})},
       20},
      {"ConvTranspose",
       {f({1, 2, 2, 1, 2}, {3, -2, 1, 1, -2, -1, 0, 2}),
        f({2, 1, 2, 2, 1}, {-1, 2, 1, -2, -1, 2, 2, 1}), f({2}, {-3, 1})},
       1,
       {{"group", std::int64_t{2}},
        {"strides", list{3, 1, 2}},
        {"dilations", list{2, 1, 1}},
        {"pads", list{1, 0, 0, 0, 0, 1}},
        {"output_padding", list{1, 0, 1}}},
       {f({1, 2, 6, 2, 3},
          {-3, -3, -3, -3, -3, -3, 0,  -3, -5, -9, -3, 1,  -4, -3, -4, -1, -3, -1,
           -3, -3, -3, -3, -3, -3, -2, -3, -2, -5, -3, -5, -3, -3, -3, -3, -3, -3,
           1,  1,  1,  1,  1,  1,  -3, 1,  -1, -1, 1,  0,  1,  1,  -1, 1,  1,  5,
           1,  1,  1,  1,  1,  1,  1,  1,  5,  1,  1,  3,  1,  1,  1,  1,  1,  1})},
       20},
      {"ConvTranspose",
       {f({1, 1, 2, 2, 1}, {-2, 2, 3, 0}), f({1, 1, 1, 2, 1}, {3, 2})},
       1,
       {{"strides", list{2, 1, 1}}, {"output_shape", list{4, 3, 1}}},
       {f({1, 1, 4, 3, 1}, {-6, 2, 4, 0, 0, 0, 9, 6, 0, 0, 0, 0})},
       20},
      {"MaxPool",
       {f({1, 1, 4, 3, 3}, {-1, 3,  -1, -3, 1,  2,  1,  -1, 3, 0,  -1, -2, -2, 1, 2,  -1, 1,  3,
                            -2, -2, 0,  0,  -1, -1, -3, 1,  3, -2, 2,  -2, -3, 2, -2, 2,  -1, 0})},
       1,
       {{"kernel_shape", list{2, 2, 3}},
        {"strides", list{2, 1, 1}},
        {"pads", list{1, 0, 1, 1, 0, 1}}},
       {f({1, 1, 3, 2, 3}, {3, 3, 3, 1, 3, 3, 1, 2, 2, 1, 3, 3, 2, 2, 2, 2, 2, 2})},
       20},
      {"AveragePool",
       {f({1, 1, 4, 2, 3},
          {3, 3, 0, -2, -2, 2, 1, -2, 3, 3, 3, 1, 3, 1, 0, 3, 1, 2, -1, 2, 3, -3, 0, -1})},
       1,
       {{"kernel_shape", list{3, 1, 2}},
        {"strides", list{2, 1, 2}},
        {"pads", list{1, 0, 0, 0, 0, 0}},
        {"ceil_mode", std::int64_t{1}}},
       {f({1, 1, 2, 2, 2}, {1.25, 1.5, 0.5, 1.5, 0.666666687, 2, 1.16666663, 0.666666687})},
       20},
      {"AveragePool",
       {f({1, 1, 2, 2, 2}, {-3, -3, -2, -2, 2, -2, 1, 3})},
       1,
       {{"kernel_shape", list{2, 2, 2}},
        {"pads", list{1, 0, 0, 0, 0, 1}},
        {"count_include_pad", std::int64_t{1}}},
       {f({1, 1, 2, 1, 2}, {-1.25, -0.625, -0.75, -0.5})},
       20},
      {"LpPool",
       {f({1, 1, 3, 4}, {0, -3, -3, -1, -1, 0, -1, 2, 0, 3, 3, 1})},
       1,
       {{"kernel_shape", list{2, 3}}, {"p", std::int64_t{2}}, {"pads", list{1, 0, 0, 1}}},
       {f({1, 1, 3, 3}, {4.2426405, 4.35889912, 3.1622777, 4.47213602, 4.89897966, 3.87298346,
                         4.47213602, 4.89897966, 3.87298346})},
       20},
      {"LpPool",
       {f({1, 2, 5}, {-3, -2, 2, 0, 3, 1, 2, -3, -1, 1})},
       1,
       {{"kernel_shape", list{2}}, {"p", std::int64_t{1}}, {"strides", list{2}}},
       {f({1, 2, 2}, {5, 2, 3, 4})},
       20},
      // No window begins behind the image.
      {"LpPool",
       {f({1, 1, 2}, {3, -4})},
       1,
       {{"kernel_shape", list{1}}, {"strides", list{2}}, {"ceil_mode", std::int64_t{1}}},
       {f({1, 1, 1}, {3})},
       22},
      {"GlobalLpPool",
       {f({1, 2, 2, 3}, {1, -1, -2, 1, -3, 1, 2, 1, -3, 0, -1, 0})},
       1,
       {{"p", std::int64_t{2}}},
       {f({1, 2, 1, 1}, {4.12310553, 3.87298346})},
       20},
      {"Col2Im",
       {f({1, 4, 6},
          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}),
        i({2}, {3, 4}), i({2}, {2, 2})},
       1,
       {},
       {f({1, 1, 3, 4}, {1, 9, 11, 9, 17, 48, 52, 33, 16, 39, 41, 24})},
       20},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"align_corners", std::int64_t{0}}},
       {f({1, 1, 2, 2}, {0.25, 5, 0, 0})},
       16},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"mode", std::string("linear")},
        {"padding_mode", std::string("border")},
        {"align_corners", std::int64_t{1}}},
       {f({1, 1, 2, 2}, {1, 4.25, 4.875, 4})},
       20},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"mode", std::string("linear")},
        {"padding_mode", std::string("reflection")},
        {"align_corners", std::int64_t{0}}},
       {f({1, 1, 2, 2}, {1, 5, 5, 4.5})},
       20},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"mode", std::string("nearest")},
        {"padding_mode", std::string("reflection")},
        {"align_corners", std::int64_t{1}}},
       {f({1, 1, 2, 2}, {1, 5, 6, 3})},
       20},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"mode", std::string("cubic")},
        {"padding_mode", std::string("zeros")},
        {"align_corners", std::int64_t{0}}},
       {f({1, 1, 2, 2}, {0.0625, 5, -0.63899231, 0})},
       20},
      {"GridSample",
       {f({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), f({1, 2, 2, 2}, {-1, -1, 0, 0.5, 1.5, 0.25, -3, 2})},
       2,
       {{"mode", std::string("cubic")},
        {"padding_mode", std::string("border")},
        {"align_corners", std::int64_t{0}}},
       {f({1, 1, 2, 2}, {0.625, 5, 5.3203125, 4})},
       20},
      {"GridSample",
       {f({1, 1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
        f({1, 1, 1, 3, 3}, {0.5, 0, -1, 1, 1, 1, 3, 0, 0})},
       2,
       {{"mode", std::string("linear")}, {"align_corners", std::int64_t{1}}},
       {f({1, 1, 1, 1, 3}, {2.75, 8, 0})},
       20},
      {"AffineGrid",
       {f({1, 2, 3}, {1, 0, 0.5, 0, 2, 0}), i({4}, {1, 1, 2, 3})},
       1,
       {{"align_corners", std::int64_t{0}}},
       {f({1, 2, 3, 2},
          {-0.166666687, -1, 0.5, -1, 1.16666675, -1, -0.166666687, 1, 0.5, 1, 1.16666675, 1})},
       20},
      {"AffineGrid",
       {f({1, 2, 3}, {1, 0, 0.5, 0.5, 2, 0}), i({4}, {1, 1, 2, 2})},
       1,
       {{"align_corners", std::int64_t{1}}},
       {f({1, 2, 2, 2}, {-0.5, -2.5, 1.5, -1.5, -0.5, 1.5, 1.5, 2.5})},
       20},
      {"BitwiseAnd",
       {i({5}, {5, -6, 0, -1, 2147483655}), i({5}, {3, 3, -1, 12, -5})},
       2,
       {},
       {i({5}, {1, 2, 0, 12, 2147483651})},
       18},
      {"BitwiseAnd",
       {of(dtype::i32, {4}, {7, -8, 2147483647, -2147483648}), of(dtype::i32, {1}, {2})},
       2,
       {},
       {of(dtype::i32, {4}, {2, 0, 2, 0})},
       18},
      {"BitwiseAnd",
       {of(dtype::u8, {2}, {200, 7}), of(dtype::u8, {2}, {129, 12})},
       2,
       {},
       {of(dtype::u8, {2}, {128, 4})},
       18},
      {"BitwiseOr",
       {i({5}, {5, -6, 0, -1, 2147483655}), i({5}, {3, 3, -1, 12, -5})},
       2,
       {},
       {i({5}, {7, -5, -1, -1, -1})},
       18},
      {"BitwiseOr",
       {of(dtype::i32, {4}, {7, -8, 2147483647, -2147483648}), of(dtype::i32, {1}, {2})},
       2,
       {},
       {of(dtype::i32, {4}, {7, -6, 2147483647, -2147483646})},
       18},
      {"BitwiseOr",
       {of(dtype::u8, {2}, {200, 7}), of(dtype::u8, {2}, {129, 12})},
       2,
       {},
       {of(dtype::u8, {2}, {201, 15})},
       18},
      {"BitwiseXor",
       {i({5}, {5, -6, 0, -1, 2147483655}), i({5}, {3, 3, -1, 12, -5})},
       2,
       {},
       {i({5}, {6, -7, -1, -13, -2147483652})},
       18},
      {"BitwiseXor",
       {of(dtype::i32, {4}, {7, -8, 2147483647, -2147483648}), of(dtype::i32, {1}, {2})},
       2,
       {},
       {of(dtype::i32, {4}, {5, -6, 2147483645, -2147483646})},
       18},
      {"BitwiseXor",
       {of(dtype::u8, {2}, {200, 7}), of(dtype::u8, {2}, {129, 12})},
       2,
       {},
       {of(dtype::u8, {2}, {73, 11})},
       18},
      {"BitwiseNot",
       {i({5}, {5, -6, 0, -1, 2147483655})},
       1,
       {},
       {i({5}, {-6, 5, -1, 0, -2147483656})},
       18},
      {"BitwiseNot", {of(dtype::u8, {2}, {0, 200})}, 1, {}, {of(dtype::u8, {2}, {255, 55})}, 18},
      {"BitShift",
       {of(dtype::u8, {3}, {200, 3, 255}), of(dtype::u8, {3}, {1, 4, 7})},
       2,
       {{"direction", std::string("LEFT")}},
       {of(dtype::u8, {3}, {144, 48, 128})},
       11},
      {"BitShift",
       {of(dtype::u8, {3}, {200, 3, 255}), of(dtype::u8, {3}, {1, 4, 7})},
       2,
       {{"direction", std::string("RIGHT")}},
       {of(dtype::u8, {3}, {100, 0, 1})},
       11},
      {"NonZero", {f({2, 3}, {0, 2, 0, -1, 0, 0.5})}, 0, {}, {i({2, 3}, {0, 1, 1, 1, 0, 2})}, 13},
      {"NonZero", {b({3}, {1, 0, 1})}, 0, {}, {i({1, 2}, {0, 2})}, 13},
      {"Compress",
       {f({2, 3}, {0, 1, 2, 3, 4, 5}), b({3}, {0, 1, 1})},
       1,
       {{"axis", std::int64_t{1}}},
       {f({2, 2}, {1, 2, 4, 5})},
       11},
      {"Compress",
       {f({2, 3}, {0, 1, 2, 3, 4, 5}), b({5}, {0, 1, 1, 0, 1})},
       1,
       {},
       {f({3}, {1, 2, 4})},
       11},
      {"ReverseSequence",
       {f({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7}), i({2}, {3, 1})},
       2,
       {{"batch_axis", std::int64_t{1}}, {"time_axis", std::int64_t{0}}},
       {f({4, 2}, {4, 1, 2, 3, 0, 5, 6, 7})},
       10},
      {"ReverseSequence",
       {f({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}), i({2}, {2, 4})},
       2,
       {{"batch_axis", std::int64_t{0}}, {"time_axis", std::int64_t{1}}},
       {f({2, 4}, {1, 0, 2, 3, 7, 6, 5, 4})},
       10},
      {"CenterCropPad",
       {f({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), i({2}, {3, 2})},
       1,
       {},
       {f({3, 2}, {1, 2, 6, 7, 0, 0})},
       18},
      {"CenterCropPad",
       {f({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), i({1}, {2})},
       1,
       {{"axes", list{-1}}},
       {f({2, 2}, {1, 2, 6, 7})},
       18},
      {"ConvInteger",
       {of(dtype::u8, {1, 1, 3, 3}, {6, 1, 0, 4, 5, 1, 8, 4, 8}),
        of(dtype::u8, {1, 1, 2, 2}, {4, 6, 6, 4}), of(dtype::u8, {}, {2}), of(dtype::u8, {}, {1})},
       2,
       {},
       {of(dtype::i32, {1, 1, 2, 2}, {26, -1, 57, 32})},
       10},
      {"QLinearConv",
       {of(dtype::u8, {1, 1, 3, 3}, {3, 6, 0, 5, 4, 1, 1, 0, 6}), f({}, {0.5}),
        of(dtype::u8, {}, {3}), of(dtype::u8, {2, 1, 2, 2}, {6, 3, 8, 3, 2, 8, 0, 3}),
        f({2}, {0.25, 0.5}), of(dtype::u8, {2}, {1, 2}), f({}, {0.75}), of(dtype::u8, {}, {100}),
        of(dtype::i32, {2}, {4, -8})},
       1,
       {},
       {of(dtype::u8, {1, 2, 2, 2}, {104, 103, 99, 98, 102, 90, 100, 96})},
       10},
      {"QLinearMatMul",
       {of(dtype::u8, {2, 3}, {0, 3, 6, 3, 4, 4}), f({}, {0.5}), of(dtype::u8, {}, {3}),
        of(dtype::u8, {3, 2}, {0, 0, 2, 4, 0, 8}), f({}, {0.25}), of(dtype::u8, {}, {1}),
        f({}, {0.100000001}), of(dtype::u8, {}, {90})},
       1,
       {},
       {of(dtype::u8, {2, 2}, {90, 120, 90, 102})},
       10},
      {"Resize",
       {f({2}, {1, 2}), f({0}, {}), f({1}, {2})},
       1,
       {{"keep_aspect_ratio_policy", std::string("stretch")}},
       {f({4}, {1, 1, 2, 2})},
       18},
  };
}

std::vector<op_case> all_cases() {
  auto all = elementwise_cases();
  for (auto* more : {reduction_cases, dense_cases, normalisation_cases, layout_cases, resize_cases,
                     attention_cases, quantised_cases, recurrent_cases, volume_and_grid_cases})
    for (auto& c : more()) all.push_back(std::move(c));
  return all;
}

std::string text_of(const auto& r) { return r ? "no error" : r.error().text(); }

// Each part must be in the text, which is one line.
void expect_error(const auto& r, std::initializer_list<std::string_view> parts) {
  BOOST_TEST_REQUIRE(!r);
  BOOST_TEST((r.error().code() == error_code::usage || r.error().code() == error_code::not_found));
  const auto text = r.error().message();
  BOOST_TEST(text.starts_with("model.onnx: "), text);
  BOOST_TEST(text.find('\n') == std::string::npos, text);
  for (const auto p : parts) BOOST_TEST(text.find(p) != std::string::npos, text << " lacks " << p);
}

// x -> Relu -> y
onnx_writer small_model() {
  onnx_writer w;
  w.input("x", {dtype::f32, {2}});
  w.output("y");
  w.node("Relu", {"x"}, {"y"});
  return w;
}

result<onnx_graph> build(const onnx_writer& w, const onnx_build_options& o = {}) {
  const auto m = w.load();
  if (!m) return m.error();
  static const auto ops = make_op_table();
  graph g(ops);
  return m->build(g, o);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(onnx)

BOOST_AUTO_TEST_CASE(every_op_gives_the_numbers_that_the_standard_says) {
  std::set<std::string> tested;
  int number = 0;
  for (const auto& c : all_cases()) {
    tested.insert(c.op);
    BOOST_TEST_CONTEXT("case " << number++ << ", " << c.op) { check(c); }
  }
  troupe::onnx::rules rules;
  for (auto* add :
       {troupe::onnx::add_elementwise,   troupe::onnx::add_logic,     troupe::onnx::add_activations,
        troupe::onnx::add_reductions,    troupe::onnx::add_products,  troupe::onnx::add_einsum,
        troupe::onnx::add_windows,       troupe::onnx::add_resizing,  troupe::onnx::add_attention,
        troupe::onnx::add_quantised,     troupe::onnx::add_recurrent, troupe::onnx::add_control,
        troupe::onnx::add_normalisation, troupe::onnx::add_losses,    troupe::onnx::add_layout,
        troupe::onnx::add_indexing,      troupe::onnx::add_sources,   troupe::onnx::add_grids,
        troupe::onnx::add_bits,          troupe::onnx::add_chosen})
    add(rules);
  // They have graphs as attributes: the next cases, and tests/models/onnx_control_test.cpp.
  for (const auto* op : {"If", "Loop", "Scan"}) tested.insert(op);
  tested.insert("Unique");  // it is always refused, which has a case of its own
  for (const auto& [op, rule] : rules) BOOST_TEST(tested.contains(op), op << " has no case here");
}

// A body as an attribute of a node.
void put_body(onnx_format::Node& n, const std::string& name, const onnx_writer& w) {
  auto& a = *n.add_attributes();
  a.set_name(name), a.set_type(5);
  *a.mutable_graph() = w.model.graph();
}

BOOST_AUTO_TEST_CASE(a_branch_that_is_known_is_taken_while_the_graph_is_built) {
  for (const bool is_square : {true, false}) {
    onnx_writer w, square, line;
    w.input("x", {dtype::f32, {4}});
    w.initializer("is_square", b({}, {is_square ? 1.0 : 0.0}));
    w.initializer("two", whole_numbers({2, 2}));
    // Of other shapes; a name of the branch is not that of the graph around it.
    square.node("Abs", {"x"}, {"h"}), square.node("Reshape", {"h", "two"}, {"r"});
    square.output("r");
    line.initializer("r", f({1}, {7})), line.output("r");
    w.node("Neg", {"x"}, {"h"});
    auto& n = w.node("If", {"is_square"}, {"y"});
    put_body(n, "then_branch", square), put_body(n, "else_branch", line);
    w.output("y"), w.output("h");
    const auto got = run(w, {{"x", f({4}, {1, -2, 3, -4})}});
    BOOST_TEST_REQUIRE(bool(got), text_of(got));
    BOOST_TEST(((*got)[0] == (is_square ? f({2, 2}, {1, 2, 3, 4}) : f({1}, {7}))));
    BOOST_TEST(((*got)[1] == f({4}, {-1, 2, -3, 4})));
  }
}

BOOST_AUTO_TEST_CASE(a_loop_whose_iterations_are_known_collects_what_each_gives) {
  onnx_writer w, body;
  w.input("x", {dtype::f32, {1}});
  w.initializer("three", i({}, {3}));
  w.initializer("yes", b({}, {1}));
  body.input("i", {dtype::i64, {}}), body.input("go", {dtype::boolean, {}});
  body.input("v", {dtype::f32, {1}});
  body.node("Cast", {"i"}, {"at"}, {{"to", std::int64_t{1}}});
  body.node("Add", {"v", "at"}, {"sum"}), body.node("Identity", {"go"}, {"on"});
  body.output("on"), body.output("sum"), body.output("sum");
  put_body(w.node("Loop", {"three", "yes", "x"}, {"last", "all"}), "body", body);
  w.output("last"), w.output("all");
  const auto got = run(w, {{"x", f({1}, {10})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == f({1}, {13})));
  BOOST_TEST(((*got)[1] == f({3, 1}, {10, 11, 13})));
  // How often: what is fed says it, and results cannot be collected.
  w.graph().clear_initializers();
  w.initializer("yes", b({}, {1}));
  w.input("three", {dtype::i64, {}});
  expect_error(build(w), {"(Loop)", "its iterations must be known"});
}

BOOST_AUTO_TEST_CASE(a_scan_goes_along_its_sequences_in_either_direction) {
  onnx_writer w, body;
  w.input("x", {dtype::f32, {2, 3}}), w.input("s", {dtype::f32, {2}});
  body.input("state", {dtype::f32, {2}}), body.input("one", {dtype::f32, {2}});
  body.node("Add", {"state", "one"}, {"sum"}), body.node("Neg", {"sum"}, {"other"});
  body.output("sum"), body.output("other");
  put_body(w.node("Scan", {"s", "x"}, {"last", "all"},
                  {{"num_scan_inputs", std::int64_t{1}},
                   {"scan_input_axes", list{1}},
                   {"scan_input_directions", list{1}},
                   {"scan_output_axes", list{-1}},
                   {"scan_output_directions", list{1}}}),
           "body", body);
  w.output("last"), w.output("all");
  const auto got = run(w, {{"x", counted({2, 3})}, {"s", f({2}, {10, 20})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == f({2}, {13, 32})));
  BOOST_TEST(((*got)[1] == f({2, 3}, {-13, -13, -12, -32, -29, -25})));
}

BOOST_AUTO_TEST_CASE(mistakes_in_a_body_name_the_node_and_its_graph) {
  onnx_writer w, body;
  w.input("x", {dtype::f32, {1}});
  w.initializer("yes", b({}, {1}));
  body.model.mutable_graph()->set_name("inner");
  body.node("Det", {"x"}, {"r"}), body.output("r");
  auto& n = w.node("If", {"yes"}, {"y"});
  put_body(n, "then_branch", body);
  w.output("y");
  expect_error(build(w), {"(If)", "attribute 'else_branch' is missing"});
  put_body(n, "else_branch", body);
  expect_error(build(w),
               {"node 0 'If_node' (If)", "node 0 (Det) of its graph 'inner'", "not supported"});
  auto& inner = *n.mutable_attributes(0)->mutable_graph()->mutable_nodes(0);
  inner.set_op_type("Abs"), inner.set_inputs(0, "nobody");
  expect_error(build(w), {"(If)", "'nobody' was never made"});
}

BOOST_AUTO_TEST_CASE(shapes_are_computed_from_constants_while_the_graph_is_built) {
  // Reshape to [Shape(x)[1], 2 * 3 / Shape(x)[1]].
  onnx_writer w;
  w.input("x", {dtype::f32, {2, 3}});
  w.output("y");
  w.initializer("one", whole_numbers({1}));
  w.initializer("six", whole_numbers({6}));
  w.node("Shape", {"x"}, {"shape"});
  w.node("Gather", {"shape", "one"}, {"columns"});
  w.node("Div", {"six", "columns"}, {"rows"});
  w.node("Concat", {"columns", "rows"}, {"wanted"}, {{"axis", std::int64_t{0}}});
  w.node("Reshape", {"x", "wanted"}, {"y"});
  const auto got = run(w, {{"x", counted({2, 3})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == counted({3, 2})));
}

BOOST_AUTO_TEST_CASE(computing_shapes_leaves_the_arithmetic_of_the_thread_as_it_was) {
  onnx_writer w;
  w.input("x", {dtype::f32, {2, 3}});
  w.initializer("a", f({1, 2}, {2, 1})), w.initializer("b", f({2, 1}, {2, 2}));
  w.node("MatMul", {"a", "b"}, {"product"});
  w.node("Reshape", {"product", "one"}, {"row"});
  w.initializer("one", whole_numbers({1}));
  w.node("Cast", {"row"}, {"shape"}, {{"to", std::int64_t{7}}});
  w.node("Reshape", {"x", "shape"}, {"y"});
  w.output("y");
  std::fesetenv(FE_DFL_ENV);               // whatever tests before have left
  const volatile float small = 0x1p-130F;  // kernels take it for 0
  BOOST_TEST_REQUIRE(small * 2 != 0);
  const auto built = build(w);
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  BOOST_TEST(small * 2 != 0);
}

BOOST_AUTO_TEST_CASE(the_largest_end_is_behind_all_elements_in_either_direction) {
  for (const bool is_backward : {false, true}) {
    onnx_writer w;
    w.input("x", {dtype::f32, {3}});
    w.output("y");
    const auto largest = std::numeric_limits<std::int64_t>::max();
    w.initializer("begin", whole_numbers({is_backward ? 2 : 1}));
    w.initializer("end", whole_numbers({0}))
        .set_raw(std::string(reinterpret_cast<const char*>(&largest), sizeof largest));
    w.initializer("axes", whole_numbers({0}));
    w.initializer("steps", whole_numbers({is_backward ? -1 : 1}));
    w.node("Slice", {"x", "begin", "end", "axes", "steps"}, {"y"});
    const auto got = run(w, {{"x", counted({3})}});
    BOOST_TEST_REQUIRE(bool(got), text_of(got));
    BOOST_TEST(((*got)[0].at == (is_backward ? elements_in{} : elements_in{1, 2})));
  }
}

BOOST_AUTO_TEST_CASE(a_shape_that_is_fed_is_taken_from_the_values_that_will_be_fed) {
  onnx_writer w;
  w.input("x", {dtype::f32, {4}});
  w.input("wanted", {dtype::i64, {2}});
  w.output("y");
  w.node("Reshape", {"x", "wanted"}, {"y"});
  expect_error(build(w), {"node 0 'Reshape_node' (Reshape)",
                          "operand 1 must be known while the graph is built"});
  const auto m = w.load();
  BOOST_TEST_REQUIRE(bool(m), text_of(m));
  const auto ops = make_op_table();
  graph g(ops);
  const auto built =
      m->build(g, {.values = {{"wanted", reference::to_tensor(whole_numbers({2, 2}))}}});
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  BOOST_TEST_REQUIRE(built->fixed.size() == 1U);
  BOOST_TEST(built->fixed[0] == "wanted");
  BOOST_TEST_REQUIRE(built->inputs.size() == 1U);
  BOOST_TEST(built->inputs[0].name == "x");
  BOOST_TEST(to_string(built->outputs[0].at.spec()) == "f32[2, 2]");
}

BOOST_AUTO_TEST_CASE(a_batch_may_have_a_bound) {
  onnx_writer w;
  w.input("x", {dtype::f32, {1, 2}});
  w.graph()
      .mutable_inputs(0)
      ->mutable_type()
      ->mutable_tensor()
      ->mutable_shape()
      ->mutable_dims(0)
      ->clear_size();
  w.graph()
      .mutable_inputs(0)
      ->mutable_type()
      ->mutable_tensor()
      ->mutable_shape()
      ->mutable_dims(0)
      ->set_symbol("N");
  w.initializer("w", f({2, 3}, {1, 2, 3, 4, 5, 6}));
  w.output("y");
  w.node("Gemm", {"x", "w"}, {"h"});
  w.node("Softmax", {"h"}, {"y"});
  expect_error(build(w), {"input 'x'", "f32[N, 2] leaves a size open"});
  const std::array dims{batch_of(128), dim{2, 0}};
  const auto built = build(w, {.shapes = {{"x", {dtype::f32, *shape::from(dims)}}}});
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  expect_error(build(w, {.shapes = {{"x", {dtype::f32, {2, 3}}}}}),
               {"input 'x'", "f32[2, 3] does not fit f32[N, 2]"});
  expect_error(build(w, {.shapes = {{"x", {dtype::f64, {2, 2}}}}}), {"input 'x'", "does not fit"});
}

BOOST_AUTO_TEST_CASE(a_long_chain_of_shapes_takes_time_in_proportion) {
  // Each of 20,000 sums is asked for; walking back to the first each time would be 200 million
  // steps.
  onnx_writer w;
  w.input("x", {dtype::f32, {1}});
  w.output("y");
  w.initializer("s0", whole_numbers({1}));
  w.initializer("zero", whole_numbers({0}));
  constexpr int links = 20'000;
  for (int k = 0; k < links; ++k) {
    w.node("Add", {fmt::format("s{}", k), "zero"}, {fmt::format("s{}", k + 1)});
    w.node("Expand", {"x", fmt::format("s{}", k + 1)},
           {k + 1 == links ? "y" : fmt::format("e{}", k)});
  }
  const auto built = build(w);
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  BOOST_TEST(built->inputs.size() == 1U);
}

BOOST_AUTO_TEST_CASE(names_that_a_graph_does_not_take_are_no_obstacle_and_equal_ones_stay_apart) {
  onnx_writer w;
  w.input("x:0", {dtype::f32, {1}});
  w.input("x 0", {dtype::f32, {1}});
  w.output("\xc3\xa4");
  w.node("Sub", {"x:0", "x 0"}, {"\xc3\xa4"});
  const auto got = run(w, {{"x:0", f({1}, {5})}, {"x 0", f({1}, {3})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST((*got)[0].at[0] == 2);
}

// The same graph but for where its weights come from: they are fed, as the runs of a store do.
BOOST_AUTO_TEST_CASE(weights_can_be_variables) {
  onnx_writer w;
  w.input("x", {dtype::f32, {2, 3}});
  w.initializer("layer.weight", counted({3, 4}));
  w.initializer("layer.bias", counted({4}));
  w.initializer("sizes", whole_numbers({4, 2}));
  w.initializer("scale", f({4}, {1, 2, 3, 4}));
  w.initializer("shift", f({4}, {0, 1, 0, 1}));
  w.initializer("mean", f({4}, {1, 1, 1, 1}));
  w.initializer("variance", f({4}, {1, 4, 1, 4}));
  w.initializer("odd name", f({1}, {2}));
  w.node("Gemm", {"x", "layer.weight", "layer.bias"}, {"h"});
  w.node("BatchNormalization", {"h", "scale", "shift", "mean", "variance"}, {"n"});
  w.node("Mul", {"n", "odd name"}, {"m"});
  w.node("Reshape", {"m", "sizes"}, {"y"});
  w.output("y");
  const auto model = w.load();
  BOOST_TEST_REQUIRE(bool(model));
  const auto ops = make_op_table();
  graph g(ops);
  const auto built = model->build(g, {.weights_are_variables = true});
  BOOST_TEST_REQUIRE(bool(built), (built ? "" : built.error().text()));
  std::vector<std::string> names;
  for (const auto& [name, t] : built->weights) names.push_back(name);
  BOOST_TEST(names == (std::vector<std::string>{"layer.weight", "layer.bias", "scale", "shift",
                                                "odd_name"}));
  BOOST_TEST(g.variables().size() == names.size());
  BOOST_TEST(built->fixed.empty());
  for (const auto& [name, t] : built->weights) {
    const auto v = std::ranges::find(g.nodes(), name, &graph_node::name);
    BOOST_TEST_REQUIRE((v != g.nodes().end()));
    BOOST_TEST(v->type == "variable");
    BOOST_TEST((v->outputs[0] == t.spec()));
  }
  BOOST_TEST(built->weights[0].second.data<float>()[5] == 5);
  const auto of = gradients(g, reduce_sum(built->outputs[0].at), g.variables());
  for (const auto& d : of) BOOST_TEST(d.is_valid());
  graph as_constants(ops);
  const auto plain = model->build(as_constants);
  BOOST_TEST_REQUIRE(bool(plain));
  BOOST_TEST(plain->weights.empty());
  BOOST_TEST(as_constants.variables().empty());
}

BOOST_AUTO_TEST_CASE(a_built_model_compiles_to_a_plan) {
  auto w = small_model();
  w.output("c");
  w.initializer("c", f({2}, {1, 2}));
  const auto m = w.load();
  BOOST_TEST_REQUIRE(bool(m), text_of(m));
  const auto ops = make_op_table();
  graph g(ops);
  const auto built = m->build(g);
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  BOOST_TEST_REQUIRE(built->outputs.size() == 2U);
  std::vector<value> fetches;
  for (const auto& o : built->outputs) fetches.push_back(o.at);
  const auto p = compile_steps(g, fetches, {});
  BOOST_TEST_REQUIRE(bool(p), text_of(p));
  // The program's line is where it called build().
  BOOST_TEST(std::string(g.nodes().front().source.file_name()).find("onnx_test.cpp") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_has_no_counterpart_is_an_error_that_names_it) {
  std::string missing;
  const auto refused = [&](const onnx_writer& w, std::initializer_list<std::string_view> parts,
                           std::string_view op) {
    missing.clear();
    const auto got = run(w, {}, {}, &missing);
    expect_error(got, parts);
    BOOST_TEST(missing == op);
  };
  auto w = small_model();
  w.graph().mutable_nodes(0)->set_op_type("Det");
  refused(w, {"node 0 'Relu_node' (Det)", "this op is not supported"}, "Det");
  w = small_model();
  w.graph().mutable_nodes(0)->set_domain("com.example");
  refused(w, {"(Relu)", "ops of 'com.example' are not supported"}, "Relu");
  w = small_model();
  auto& a = *w.graph().mutable_nodes(0)->add_attributes();
  a.set_name("novelty"), a.set_integer(1);
  refused(w, {"(Relu)", "attribute 'novelty' is not supported"}, "Relu");
  w = small_model();
  w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->set_element(12);
  refused(w, {"input 'x'", "element type uint32 is not supported"}, "Relu");
  w = small_model();
  w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->set_element(777);
  refused(w, {"input 'x'", "element type 777 (unknown) is not supported"}, "Relu");
  w = small_model();
  w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->set_element(9);
  refused(w, {"node 0 'Relu_node' (Relu)", "bool[2]", "must be f32 or f64"}, "Relu");
  w = small_model();
  w.graph().mutable_nodes(0)->add_outputs("z");
  w.output("z");
  refused(w, {"(Relu)", "output 1 is not supported"}, "Relu");
  w = small_model();
  w.graph().mutable_nodes(0)->clear_inputs();
  refused(w, {"(Relu)", "operand 0 is missing"}, "Relu");
  onnx_writer leaky = small_model();
  leaky.graph().clear_nodes();
  leaky.node("LeakyRelu", {"x"}, {"y"}, {{"alpha", std::int64_t{1}}});
  refused(leaky, {"(LeakyRelu)", "attribute 'alpha' is of another type"}, "LeakyRelu");
}

BOOST_AUTO_TEST_CASE(a_size_that_follows_from_values_of_a_step_is_an_error_that_says_what_to_do) {
  for (const auto* op : {"NonZero", "Compress", "Unique"}) {
    onnx_writer w(13);
    w.input("x", {dtype::boolean, {3}});
    w.node(op,
           op == std::string("Compress") ? std::vector<std::string>{"x", "x"}
                                         : std::vector<std::string>{"x"},
           {"y"});
    w.output("y");
    expect_error(build(w),
                 {"node 0", op, "how many elements its result has follows from the values",
                  "compute it outside of the model"});
  }
  // What will be fed is known.
  onnx_writer w(13);
  w.input("x", {dtype::boolean, {3}});
  w.node("NonZero", {"x"}, {"y"});
  w.output("y");
  const auto x = b({3}, {1, 0, 1});
  const auto got = run(w, {{"x", x}}, {.values = {{"x", reference::to_tensor(x)}}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == i({1, 2}, {0, 2})));
}

BOOST_AUTO_TEST_CASE(misfits_of_volumes_and_grids_are_errors_that_say_which_operand) {
  const auto refused = [](const char* op, std::vector<shape> in, const onnx_attributes& attrs,
                          std::initializer_list<std::string_view> parts) {
    onnx_writer w(20);
    std::vector<std::string> names;
    for (const auto& s : in)
      names.push_back(fmt::format("x{}", names.size())), w.input(names.back(), {dtype::f32, s});
    w.node(op, names, {"y"}, attrs);
    w.output("y");
    expect_error(build(w), parts);
  };
  const shape image{1, 1, 3, 3, 3};
  refused("Conv", {image, {1, 1, 2, 2}}, {}, {"(Conv)", "operand 1 is f32[1, 1, 2, 2]"});
  refused("Conv", {image, {1, 1, 4, 1, 1}}, {}, {"(Conv)", "a window of 4"});
  refused("Conv", {image, {1, 1, 2, 2, 2}}, {{"strides", list{1, 1}}},
          {"'strides' has 2 numbers for 3 dimensions"});
  refused("Conv", {image, {1, 1, 2, 2, 2}}, {{"pads", list{1, 1, 1, 0, 0, -1}}},
          {"'pads': -1 is not supported"});
  refused("ConvTranspose", {image, {1, 1, 1, 1, 1}}, {{"pads", list{4, 0, 0, 0, 0, 0}}},
          {"the padding is larger than the result"});
  refused("MaxPool", {image}, {}, {"attribute 'kernel_shape' is missing"});
  refused("GridSample", {{1, 1, 2, 2}, {2, 3, 3, 2}}, {}, {"(GridSample)", "does not fit"});
  refused("GridSample", {image, {1, 2, 2, 2, 3}}, {{"mode", std::string("cubic")}},
          {"attribute 'mode' is cubic"});
  refused("BitShift", {{2}, {2}}, {{"direction", std::string("LEFT")}}, {"must be uint8"});
}

BOOST_AUTO_TEST_CASE(a_number_alone_refuses_nothing) {
  for (std::int64_t ir = 1; ir <= 14; ++ir)
    for (std::int64_t opset = 1; opset <= 28; ++opset) {
      auto w = small_model();
      w.model.set_ir_version(ir);
      w.model.mutable_operator_sets(0)->set_version(opset);
      const auto got = run(w, {{"x", f({2}, {-1, 2})}});
      BOOST_TEST_REQUIRE(bool(got), "IR " << ir << ", opset " << opset << ": " << text_of(got));
      BOOST_TEST(((*got)[0] == f({2}, {0, 2})));
    }
}

BOOST_AUTO_TEST_CASE(a_node_of_an_opset_that_is_not_known_is_refused_by_its_name) {
  auto w = small_model();
  w.model.mutable_operator_sets(0)->set_version(29);
  expect_error(build(w), {"node 0 'Relu_node' (Relu)", "opset 29", "newest known one is 28"});
  w.model.mutable_operator_sets(0)->set_domain("else");
  expect_error(build(w), {"node 0 'Relu_node' (Relu)", "does not say of which opset"});
  // Nothing is asked of a model without nodes.
  w.graph().clear_nodes();
  w.initializer("y", f({1}, {2}));
  const auto got = build(w);
  BOOST_TEST(bool(got), text_of(got));
}

BOOST_AUTO_TEST_CASE(what_no_output_needs_is_not_looked_at) {
  auto w = small_model();
  w.input("idle", {dtype::f32, {2}});
  w.graph().mutable_inputs(1)->mutable_type()->mutable_tensor()->set_element(8);
  w.initializer("words", f({2}, {1, 2})).set_type(8);
  w.initializer("far", f({2}, {1, 2})).set_location(1);
  w.graph().add_sparse_initializers()->mutable_values()->set_name("sparse");
  w.node("Fancy", {"x", "words", "far"}, {"a"}).set_domain("com.example");
  w.node("NonZero", {"a", "sparse", "idle"}, {"b"});
  // Of a node that is needed, the outputs that are not.
  w.graph().mutable_nodes(0)->add_outputs("more");
  w.node("Abs", {"more"}, {"c"});
  const auto got = run(w, {{"x", f({2}, {-1, 2})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == f({2}, {0, 2})));
  w.output("b");
  expect_error(build(w), {"initializer 'sparse'"});
}

BOOST_AUTO_TEST_CASE(files_that_break_a_rule_are_errors_that_name_the_rule) {
  using spoiler = std::function<void(onnx_writer&)>;
  const auto one_more = [](onnx_writer& w) -> onnx_format::Tensor& {
    if (w.graph().outputs_size() == 1) w.output("t");  // else nobody looks at it
    return w.initializer("t", f({2}, {1, 2}));
  };
  const std::pair<spoiler, std::vector<std::string_view>> cases[] = {
      {[](auto& w) { w.model.clear_graph(); }, {"there is no graph"}},
      {[](auto& w) { w.model.set_ir_version(99); },
       {"the format's version (ir_version) is 99, and 1 to 14 are known"}},
      {[](auto& w) { w.graph().mutable_nodes(0)->set_inputs(0, "nobody"); },
       {"node 0 'Relu_node' (Relu)", "reads 'nobody', which nobody makes"}},
      {[](auto& w) { w.graph().mutable_nodes(0)->set_inputs(0, "y"); },
       {"reads 'y', which it makes", "cycles"}},
      {[](auto& w) {
         w.node("Abs", {"y"}, {"z"});
         w.graph().mutable_nodes(0)->set_inputs(0, "z");
       },
       {"node 0 'Relu_node' (Relu) reads 'z', which node 1 'Abs_node' (Abs) makes"}},
      {[](auto& w) { w.node("Abs", {"x"}, {"y"}); },
       {"node 1 'Abs_node' (Abs) makes 'y', which is there already"}},
      {[](auto& w) { w.node("Abs", {"x"}, {"x"}); }, {"makes 'x', which is there already"}},
      {[](auto& w) { w.input("x", {dtype::f32, {2}}); }, {"there are two inputs 'x'"}},
      {[&](auto& w) { one_more(w), one_more(w); },
       {"initializer 't' makes 't', which is there already"}},
      {[](auto& w) { w.output("elsewhere"); }, {"output 'elsewhere' is made by no node"}},
      {[](auto& w) { w.graph().mutable_inputs(0)->set_name(""); }, {"input has no name"}},
      {[](auto& w) {
         w.graph()
             .mutable_inputs(0)
             ->mutable_type()
             ->mutable_tensor()
             ->mutable_shape()
             ->mutable_dims(0)
             ->set_size(-2);
       },
       {"input 'x' has a dimension of size -2"}},
      {[](auto& w) { w.graph().mutable_nodes(0)->set_name("\xff\n"); },
       {"the name of node 0 '?\?' is not UTF-8"}},
      {[](auto& w) { w.graph().mutable_nodes(0)->set_op_type("\xc3"); }, {"is not UTF-8"}},
      {[](auto& w) { w.graph().mutable_nodes(0)->set_inputs(0, "\xed\xa0\x80"); },
       {"is not UTF-8"}},
      {[](auto& w) {
         for (int k = 0; k < 2; ++k)
           w.graph().mutable_nodes(0)->add_attributes()->set_name("twice");
       },
       {"has two attributes 'twice'"}},
      {[&](auto& w) { one_more(w).set_type(0); },
       {"initializer 't'", "element type undefined is not supported"}},
      {[&](auto& w) { one_more(w).set_type(8); }, {"element type string is not supported"}},
      {[&](auto& w) { one_more(w).set_type(-3); }, {"element type -3 (unknown) is not supported"}},
      {[&](auto& w) { one_more(w).set_dims(0, -1); },
       {"initializer 't'", "dimension 0 has size -1"}},
      {[&](auto& w) { one_more(w).set_dims(0, 1'000'000'000); },
       {"initializer 't'", "f32[1000000000] has 4000000000 bytes, and the file 8"}},
      {[&](auto& w) {
         auto& t = one_more(w);
         t.clear_raw(), t.set_dims(0, 1'000'000'000);
       },
       {"f32[1000000000] has 1000000000 elements, and the file 0"}},
      {[&](auto& w) {
         auto& t = one_more(w);
         for (int k = 0; k < 7; ++k) t.add_dims(1 << 30);
       },
       {"multiply to too many elements"}},
      {[&](auto& w) {
         auto& t = one_more(w);
         for (int k = 0; k < 8; ++k) t.add_dims(1);
       },
       {"9 dimensions, at most 8 are supported"}},
      {[&](auto& w) { one_more(w).mutable_raw()->push_back('x'); },
       {"f32[2] has 8 bytes, and the file 9"}},
      {[&](auto& w) { one_more(w).mutable_segment()->set_begin(0); }, {"segments"}},
      {[&](auto& w) { one_more(w).set_location(7); }, {"there is no data location 7"}},
      {[&](auto& w) { one_more(w).set_location(1); }, {"initializer 't'", "no folder to look in"}},
      {[](auto& w) {
         w.graph().add_sparse_initializers()->mutable_values()->set_name("t"), w.output("t");
       },
       {"initializer 't': sparse tensors are not supported"}},
      {[](auto& w) {
         for (int k = 0; k < 1000; ++k) w.graph().add_nodes();
       },
       {"it consists of empty pieces"}},
  };
  for (const auto& [spoil, parts] : cases) {
    auto w = small_model();
    spoil(w);
    const auto m = w.load();
    BOOST_TEST_CONTEXT(parts.front()) {
      expect_error(m, {});
      if (!m)
        for (const auto p : parts)
          BOOST_TEST(m.error().message().find(p) != std::string::npos, m.error().message()
                                                                           << " lacks " << p);
    }
  }
  BOOST_TEST(bool(small_model().load()));
}

BOOST_AUTO_TEST_CASE(a_result_that_is_too_large_is_an_error_before_memory_is_taken) {
  onnx_writer w;
  w.output("y");
  w.initializer("shape", whole_numbers({1 << 20, 1 << 20}));
  w.node("ConstantOfShape", {"shape"}, {"y"});
  expect_error(build(w), {"(ConstantOfShape)", "has more than 2147483648 bytes"});
  auto big = small_model();
  big.graph()
      .mutable_inputs(0)
      ->mutable_type()
      ->mutable_tensor()
      ->mutable_shape()
      ->mutable_dims(0)
      ->set_size(std::int64_t{1} << 61);
  expect_error(build(big), {"input 'x'", "bytes"});
  onnx_writer range;
  range.output("y");
  range.initializer("a", i({}, {0})), range.initializer("b", i({}, {4e18})),
      range.initializer("c", i({}, {1}));
  range.node("Range", {"a", "b", "c"}, {"y"});
  expect_error(build(range), {"(Range)", "too many elements"});
}

BOOST_AUTO_TEST_CASE(every_cut_and_ten_thousand_damaged_files_are_errors_or_models) {
  onnx_writer w;
  w.input("x", {dtype::f32, {1, 1, 4, 4}});
  w.initializer("kernel", f({1, 1, 2, 2}, {1, 2, 3, 4}));
  w.initializer("shape", whole_numbers({1, -1}));
  w.output("y");
  w.node("Conv", {"x", "kernel"}, {"c"}, {{"pads", list{1, 1, 0, 0}}, {"group", std::int64_t{1}}});
  w.node("Relu", {"c"}, {"r"});
  w.node("Reshape", {"r", "shape"}, {"s"});
  w.node("Constant", {}, {"k"}, {{"value", f({1}, {2})}});
  w.node("Mul", {"s", "k"}, {"m"});
  w.node("ReduceMean", {"m"}, {"y"}, {{"axes", list{1}}});
  const auto good = w.bytes();
  const auto ops = make_op_table();
  int models = 0;
  const auto try_one = [&](const std::string& text) {
    const auto m = parse_onnx(std::as_bytes(std::span(text)), "model.onnx", "");
    if (!m) return expect_error(m, {});
    graph g(ops);
    const auto built = m->build(g);
    if (!built) return expect_error(built, {});
    ++models;
  };
  for (std::size_t n = 0; n < good.size(); ++n) try_one(good.substr(0, n));
  std::mt19937_64 bits(1);
  for (int k = 0; k < 10'000; ++k) {
    auto text = good;
    for (auto n = 1 + bits() % 4; n > 0; --n) {
      const auto at = bits() % text.size();
      switch (bits() % 4) {
        case 0: text[at] = static_cast<char>(bits()); break;
        case 1: text[at] = static_cast<char>(text[at] ^ (1 << bits() % 8)); break;
        case 2: text.erase(at, 1 + bits() % 8); break;
        default: text.insert(at, text.substr(bits() % text.size(), bits() % 16)); break;
      }
      if (text.empty()) break;
    }
    try_one(text);
  }
  BOOST_TEST(models > 100);  // damage of a weight or a name harms nobody
  try_one(good);
}

// Numbers of few bits are written as 8, 16 and twice 4 bits, in bytes or in fields.
BOOST_AUTO_TEST_CASE(whole_numbers_of_few_bits_are_dequantised_moved_and_cast) {
  const auto with = [](int type, const std::string& raw, std::int64_t count) {
    onnx_writer w(21);
    auto& t = w.initializer("w", f({1}, {0}));
    t.set_type(type), t.set_dims(0, count), t.set_raw(raw);
    w.initializer("scale", f({}, {0.5}));
    return w;
  };
  const auto numbers_of = [](onnx_writer& w) {
    w.output("y");
    w.node("DequantizeLinear", {"w", "scale"}, {"y"});
    const auto got = run(w, {});
    BOOST_TEST_REQUIRE(bool(got), text_of(got));
    return (*got)[0].at;
  };
  const std::tuple<int, std::string, elements_in> kinds[] = {
      {3, "\x01\xff\x80", {0.5, -0.5, -64}},
      {4, std::string("\x01\x00\xff\xff", 4), {0.5, 32767.5}},
      {5, std::string("\x00\x80\xff\x7f", 4), {-16384, 16383.5}},
      {21, "\xf1\x08", {0.5, 7.5, 4}},
      {22, "\xf1\x08", {0.5, -0.5, -4}},
  };
  for (const auto& [type, raw, numbers] : kinds) {
    auto w = with(type, raw, static_cast<std::int64_t>(numbers.size()));
    BOOST_TEST((numbers_of(w) == numbers), "type " << type);
  }
  auto fields = with(3, "", 2);
  auto& t = *fields.graph().mutable_initializers(0);
  t.clear_raw(), t.add_integers32(-7), t.add_integers32(9);
  BOOST_TEST((numbers_of(fields) == elements_in{-3.5, 4.5}));
  auto short_one = with(22, "\x11", 3);
  short_one.output("w");
  expect_error(build(short_one), {"initializer 'w'", "2 bytes, and the file 1"});
  // There and back, through what moves them.
  onnx_writer back(21);
  back.input("x", {dtype::f32, {2, 1}});
  back.output("y"), back.output("z");
  back.initializer("scale", f({}, {0.5}));
  back.initializer("zero", f({}, {0})).set_type(3);
  back.graph().mutable_initializers(1)->set_raw("\xfe");
  back.node("QuantizeLinear", {"x", "scale", "zero"}, {"q"});
  back.node("Transpose", {"q"}, {"t"});
  back.node("DequantizeLinear", {"t", "scale", "zero"}, {"y"});
  back.node("Cast", {"q"}, {"z"}, {{"to", std::int64_t{6}}});
  const auto got = run(back, {{"x", f({2, 1}, {100, 3})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == f({1, 2}, {64.5, 3})));
  BOOST_TEST(((*got)[1] == of(dtype::i32, {2, 1}, {127, 4})));
  auto out = with(3, "\xff", 1);
  out.output("w");
  const auto taken = run(out, {});
  BOOST_TEST_REQUIRE(bool(taken), text_of(taken));
  BOOST_TEST(((*taken)[0] == of(dtype::i32, {1}, {-1})));
}

BOOST_AUTO_TEST_CASE(whole_numbers_of_few_bits_wrap_around_at_their_bits) {
  const std::tuple<int, elements_in, elements_in> kinds[] = {
      // x, and x + x, -x, x * 3, x to int8
      {3, {100, -128, 5}, {-56, 0, 10, -100, -128, -5, 44, -128, 15, 100, -128, 5}},
      {4, {65535, 256, 5}, {65534, 512, 10, 1, 65280, 65531, 65533, 768, 15, -1, 0, 5}},
      {5, {32767, -32768, 5}, {-2, 0, 10, -32767, -32768, -5, 32765, -32768, 15, -1, 0, 5}},
  };
  for (const auto& [type, x, wanted] : kinds) {
    onnx_writer w(21);
    w.input("x", {dtype::i32, {3}});
    w.graph().mutable_inputs(0)->mutable_type()->mutable_tensor()->set_element(type);
    w.node("Constant", {}, {"three"}, {{"value", of(dtype::i32, {}, {3})}});
    w.node("CastLike", {"three", "x"}, {"narrow_three"});
    w.node("Add", {"x", "x"}, {"sum"});
    w.node("Neg", {"x"}, {"negative"});
    w.node("Mul", {"x", "narrow_three"}, {"product"});
    w.node("Cast", {"x"}, {"byte"}, {{"to", std::int64_t{3}}});
    w.node("Concat", {"sum", "negative", "product"}, {"together"}, {{"axis", std::int64_t{0}}});
    w.node("Cast", {"together"}, {"wide"}, {{"to", std::int64_t{7}}});
    w.node("Less", {"x", "narrow_three"}, {"is_less"});
    for (const auto* o : {"wide", "byte", "is_less"}) w.output(o);
    const auto m = w.load();
    BOOST_TEST_REQUIRE(bool(m), text_of(m));
    BOOST_TEST((m->inputs()[0].element == dtype::i32));
    const auto got = run(w, {{"x", of(dtype::i32, {3}, x)}});
    BOOST_TEST_REQUIRE(bool(got), text_of(got));
    BOOST_TEST(((*got)[0] == i({9}, elements_in(wanted.begin(), wanted.begin() + 9))));
    BOOST_TEST(((*got)[1] == of(dtype::i32, {3}, elements_in(wanted.begin() + 9, wanted.end()))));
    elements_in less;
    for (const auto k : x) less.push_back(k < 3 ? 1 : 0);
    BOOST_TEST(((*got)[2] == b({3}, less)));
  }
  // Of floats the fraction is cut off.
  onnx_writer w(21);
  w.input("x", {dtype::f32, {3}});
  w.node("Cast", {"x"}, {"y"}, {{"to", std::int64_t{3}}});
  w.output("y");
  const auto got = run(w, {{"x", f({3}, {-3.7F, 127.2F, 130})}});
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST(((*got)[0] == of(dtype::i32, {3}, {-3, 127, -126})));
}

BOOST_AUTO_TEST_CASE(external_data_lie_in_the_folder_of_the_model_or_nowhere) {
  namespace fs = std::filesystem;
  auto pattern = (fs::temp_directory_path() / "troupe-onnx-XXXXXX").string();
  BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  const fs::path root = pattern, folder = root / "model";
  fs::create_directories(folder / "parts");
  const auto write = [](const fs::path& p, const std::string& bytes) {
    std::ofstream(p, std::ios::binary) << bytes;
  };
  const float values[] = {9, 1, 2};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
  write(folder / "parts" / "w", bytes);
  write(root / "secret", bytes);
  fs::create_symlink(root / "secret", folder / "link");
  const auto with = [&](const std::map<std::string, std::string>& entries) {
    auto w = small_model();
    auto& t = w.initializer("t", f({2}, {0, 0}));
    t.clear_raw(), t.set_location(1);
    for (const auto& [key, text] : entries) {
      auto& e = *t.add_external();
      e.set_key(key), e.set_text(text);
    }
    w.output("t");
    return w;
  };
  const auto m =
      with({{"location", "parts/w"}, {"offset", "4"}, {"length", "8"}}).load(folder.string());
  BOOST_TEST_REQUIRE(bool(m), text_of(m));
  const auto ops = make_op_table();
  graph g(ops);
  const auto built = m->build(g);
  BOOST_TEST_REQUIRE(bool(built), text_of(built));
  BOOST_TEST((reference::evaluate(g, built->outputs[1].at, {}).at == elements_in{1, 2}));
  const auto refused = [&](const std::map<std::string, std::string>& entries,
                           std::string_view why) {
    expect_error(with(entries).load(folder.string()), {"initializer 't'", why});
  };
  refused({{"location", "../secret"}, {"length", "8"}}, "leaves the folder of the model");
  refused({{"location", "parts/../../secret"}, {"length", "8"}}, "leaves the folder of the model");
  refused({{"location", (root / "secret").string()}, {"length", "8"}}, "must be relative");
  refused({{"location", "link"}, {"length", "8"}}, "a link leads out");
  refused({{"location", "nowhere"}, {"length", "8"}}, "no such file");
  refused({{"location", "parts"}, {"length", "8"}}, "not a regular file");
  refused({{"location", ""}}, "name is missing");
  refused({{"location", "parts/w"}, {"offset", "8"}}, "lie beyond its end");
  refused({{"location", "parts/w"}, {"offset", "18446744073709551615"}}, "lie beyond its end");
  refused({{"location", "parts/w"}, {"offset", "-4"}}, "no number");
  refused({{"location", "parts/w"}, {"length", "7"}},
          "f32[2] has 8 bytes, but its external data have 7");
  fs::remove_all(root);
}

BOOST_AUTO_TEST_CASE(external_data_in_a_hubs_cache_are_links_that_end_beside_the_models) {
  namespace fs = std::filesystem;
  auto pattern = (fs::temp_directory_path() / "troupe-onnx-XXXXXX").string();
  BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  const fs::path root = pattern, named = root / "snapshots" / "rev" / "onnx";
  for (const auto& folder : {named / "parts", root / "blobs", root / "other"})
    fs::create_directories(folder);
  const auto write = [](const fs::path& p, const std::string& bytes) {
    std::ofstream(p, std::ios::binary) << bytes;
  };
  const float values[] = {1, 2};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
  const auto model_with = [&](const std::string& location) {
    auto w = small_model();
    auto& t = w.initializer("t", f({2}, {0, 0}));
    t.clear_raw(), t.set_location(1);
    auto& e = *t.add_external();
    e.set_key("location"), e.set_text(location);
    w.output("t");
    return w.bytes();
  };
  write(root / "blobs" / "3a", bytes);
  write(root / "other" / "secret", bytes);
  const auto to_blob = [&](const fs::path& link, const char* blob) {
    fs::create_symlink(fs::relative(root / "blobs" / blob, link.parent_path()), link);
  };
  to_blob(named / "data", "3a");
  to_blob(named / "parts" / "data", "3a");
  fs::create_symlink(root / "other" / "secret", named / "leak");
  fs::create_symlink(root / "other" / "secret", root / "blobs" / "leak");
  const auto loaded = [&](const std::string& location) {
    write(root / "blobs" / "7f", model_with(location));
    fs::remove(named / "model.onnx");
    to_blob(named / "model.onnx", "7f");
    return load_onnx((named / "model.onnx").string());
  };
  const auto is_refused = [&](const result<onnx_model>& m, std::string_view why) {
    BOOST_TEST_REQUIRE(!m);
    BOOST_TEST(m.error().message().find(why) != std::string::npos, m.error().message());
  };
  for (const auto* location : {"data", "parts/data"}) {
    const auto m = loaded(location);
    BOOST_TEST_REQUIRE(bool(m), text_of(m));
    const auto ops = make_op_table();
    graph g(ops);
    const auto built = m->build(g);
    BOOST_TEST_REQUIRE(bool(built), text_of(built));
    BOOST_TEST((reference::evaluate(g, built->outputs[1].at, {}).at == elements_in{1, 2}));
  }
  is_refused(loaded("leak"), "a link leads out of the folder of the model");
  is_refused(loaded("../../../blobs/3a"), "leaves the folder of the model");
  is_refused(loaded((root / "blobs" / "3a").string()), "must be relative");
  is_refused(loaded("nowhere"), "no such file");
  // Only the model is a link: its data lie beside its file, and what leads away from there is not
  // followed.
  const auto m = loaded("3a");
  BOOST_TEST(bool(m), text_of(m));
  fs::remove(named / "leak");
  is_refused(loaded("leak"), "a link leads out of the folder of the model");
  // The model is no link: a folder of blobs is any other place.
  fs::remove(named / "model.onnx");
  write(named / "model.onnx", model_with("data"));
  is_refused(load_onnx((named / "model.onnx").string()), "a link leads out of the folder");
  fs::remove_all(root);
}

BOOST_AUTO_TEST_CASE(tensors_alone_are_read_like_those_in_models) {
  onnx_format::Tensor t;
  test::put_tensor(t, i({2}, {3, -4}));
  const auto text = t.SerializeAsString();
  const auto got = parse_onnx_tensor(std::as_bytes(std::span(text)), "t.pb");
  BOOST_TEST_REQUIRE(bool(got), text_of(got));
  BOOST_TEST((reference::to_array(*got) == i({2}, {3, -4})));
  t.clear_raw();
  t.add_integers64(3), t.add_integers64(-4);
  const auto fields = t.SerializeAsString();
  const auto same = parse_onnx_tensor(std::as_bytes(std::span(fields)), "t.pb");
  BOOST_TEST_REQUIRE(bool(same), text_of(same));
  BOOST_TEST((reference::to_array(*same) == i({2}, {3, -4})));
  const auto cut =
      parse_onnx_tensor(std::as_bytes(std::span(fields)).first(fields.size() - 1), "t.pb");
  BOOST_TEST_REQUIRE(!cut);
  BOOST_TEST(cut.error().message().starts_with("t.pb: "));
  onnx_format::Tensor half_words;
  half_words.set_type(4);
  half_words.add_dims(1);
  half_words.set_raw(std::string("\x80\x3f", 2));
  const auto bits = half_words.SerializeAsString();
  const auto plain = parse_onnx_tensor(std::as_bytes(std::span(bits)), "t.pb");
  BOOST_TEST_REQUIRE(bool(plain), text_of(plain));
  BOOST_TEST((reference::to_array(*plain) == of(dtype::i32, {1}, {0x3f80})));
  const auto one = parse_onnx_tensor(std::as_bytes(std::span(bits)), "t.pb", true);
  BOOST_TEST_REQUIRE(bool(one), text_of(one));
  BOOST_TEST(reference::to_array(*one).at[0] == 1);
}

BOOST_AUTO_TEST_SUITE_END()
