// matmul, and the dense layer made of it.

#include "runtime/ops/op_rows.hpp"

#include <array>
#include <cmath>

namespace troupe {
namespace ops {
namespace {

struct transposes {
  bool a, b;
};
transposes transposes_of(const attributes& attrs) {
  return {attrs.integer("transpose_a") != 0, attrs.integer("transpose_b") != 0};
}

result<specs> shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto [ta, tb] = transposes_of(attrs);
  const auto& [a, b] = std::pair(in[0], in[1]);
  if (a.type != dtype::f32 || b.type != dtype::f32) return misfit(in, {"a", "b"}, "both must be f32");
  if (a.shape.rank() != 2 || b.shape.rank() != 2) return misfit(in, {"a", "b"}, "both must be matrices (rank 2)");
  const auto rows = a.shape[ta ? 1 : 0], inner_a = a.shape[ta ? 0 : 1];
  const auto inner_b = b.shape[tb ? 1 : 0], columns = b.shape[tb ? 0 : 1];
  if (inner_a != inner_b)
    return misfit(in, {"a", "b"},
                  fmt::format("{} of a ({}{}) must be {} of b ({}{})", ta ? "rows" : "columns", inner_a.size,
                              inner_a.symbol != 0 ? "?" : "", tb ? "columns" : "rows", inner_b.size,
                              inner_b.symbol != 0 ? "?" : ""));
  const auto out = shape::from(std::array<dim, 2>{rows, columns});
  if (!out) return misfit(in, {"a", "b"}, "the product has too many elements");
  return specs{tensor_spec{dtype::f32, *out}};
}

value product(value a, value b, bool ta, bool tb, const source_location& where) {
  return append("matmul", {a, b}, attributes{{"transpose_a", std::int64_t{ta}}, {"transpose_b", std::int64_t{tb}}},
                where);
}

// C = op(A) op(B). With op(A) = A: dA = dC op(B)^T; with op(A) = A^T: dA = op(B) dC^T; and so for B.
std::vector<value> gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto [ta, tb] = transposes_of(n.attrs);
  const auto &a = n.inputs[0], &b = n.inputs[1], &dc = dy[0];
  const auto da = ta ? product(b, dc, tb, true, n.source) : product(dc, b, false, !tb, n.source);
  const auto db = tb ? product(dc, a, true, ta, n.source) : product(a, dc, !ta, false, n.source);
  return {da, db};
}

}  // namespace

void add_matmul(op_table& t) {
  t.add("matmul", {.inputs = 2, .shapes = shapes, .gradient = gradient});
}

}  // namespace ops

value matmul(value a, value b, bool transpose_a, bool transpose_b, source_location where) {
  return ops::product(a, b, transpose_a, transpose_b, where);
}

value dense(value x, std::int64_t units, std::string_view name, source_location where) {
  if (!x.is_valid()) return {};
  auto& g = *x.owner;
  const auto refuse = [&](std::string_view rule) {
    g.record(ops::misfit(std::array{x.spec()}, {"x"}, rule).while_doing(fmt::format("dense '{}'", name)).at(where));
    return value{};
  };
  const auto s = x.spec().shape;
  if (x.spec().type != dtype::f32 || s.rank() != 2) return refuse("must be an f32 matrix [samples, features]");
  if (s[1].symbol != 0 || s.size(1) < 1) return refuse("the number of features must be exact and at least 1");
  if (units < 1) return refuse(fmt::format("{} units, but at least 1 is needed", units));
  const auto in_scope = g.name_scope(name, where);
  const initializer_spec init{initializer_spec::kind::uniform, 1.0 / std::sqrt(static_cast<double>(s.size(1)))};
  const auto weights_shape = shape::from(std::array<dim, 2>{dim{s.size(1), 0}, dim{units, 0}});
  if (!weights_shape) return refuse(fmt::format("{} units make too many weights", units));
  const auto weights = variable(g, tensor_spec{dtype::f32, *weights_shape}, init, "weights", where);
  const auto bias = variable(g, tensor_spec{dtype::f32, {units}}, init, "bias", where);
  return add(matmul(x, weights, false, false, where), bias, where);
}

}  // namespace troupe
