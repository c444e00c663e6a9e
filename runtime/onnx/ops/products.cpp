#include "troupe/runtime/onnx/node.hpp"

namespace troupe::onnx {
namespace {

// A vector counts as a row on the left, as a column on the right, and its dimension of 1 vanishes
// from the result.
values matmul_rule(node& n) {
  auto a = n.in(0), b = n.in(1);
  const bool is_row = spec(a).shape.rank() == 1, is_column = spec(b).shape.rank() == 1;
  if (is_row) a = expand_dims(a, {0});
  if (is_column) b = expand_dims(b, {1});
  auto y = matmul(a, b);
  if (is_column) y = reduce_sum(y, {-1}, false);
  if (is_row) y = reduce_sum(y, {is_column ? -1 : -2}, false);
  return {y};
}

values gemm(node& n) {
  const auto a = n.in(0), b = n.in(1);
  if (n.opset < 7) n.ignore({"broadcast"});
  if (spec(a).shape.rank() != 2 || spec(b).shape.rank() != 2)
    n.refuse(fmt::format("operands must be matrices, and are {} and {}", to_string(spec(a)),
                         to_string(spec(b))));
  auto y = matmul(a, b, n.integer("transA", 0) != 0, n.integer("transB", 0) != 0);
  const auto alpha = n.real("alpha", 1), beta = n.real("beta", 1);
  if (alpha != 1) y = mul(y, n.number_like(y, alpha));
  if (!n.has(std::size_t{2})) return {y};
  auto c = n.in(2);
  if (beta != 1) c = mul(c, n.number_like(c, beta));
  return {add(y, c)};
}

}  // namespace

void add_products(rules& r) {
  r["MatMul"] = widening(matmul_rule);
  r["Gemm"] = widening(gemm);
}

}  // namespace troupe::onnx
