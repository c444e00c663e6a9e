// Sums, their opposite (broadcast_like), and the index of the largest.

#include "runtime/ops/op_rows.hpp"

#include <array>

namespace troupe {
namespace ops {
namespace {

tensor_spec without_first(const tensor_spec& s) {
  return {s.type, *shape::from(std::array{s.shape[1]})};
}

result<specs> sum_rows_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (in[0].type != dtype::f32 || in[0].shape.rank() != 2) return misfit(in, {"x"}, "must be an f32 matrix (rank 2)");
  return specs{without_first(in[0])};
}

result<specs> sum_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (in[0].type != dtype::f32) return misfit(in, {"x"}, "must be f32");
  return specs{scalar(dtype::f32)};
}

result<specs> broadcast_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  const auto &x = in[0].shape, &like = in[1].shape;
  if (in[0].type != dtype::f32 || in[1].type != dtype::f32) return misfit(in, {"x", "like"}, "both must be f32");
  const bool fits = x == like || x.rank() == 0 || (x.rank() == 1 && like.rank() >= 1 && like[like.rank() - 1] == x[0]);
  if (!fits)
    return misfit(in, {"x", "like"}, "x must be a scalar, or have the shape of the other or of its last dimension");
  return specs{in[1]};
}

result<specs> argmax_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (in[0].type != dtype::f32 || in[0].shape.rank() != 2) return misfit(in, {"x"}, "must be an f32 matrix (rank 2)");
  if (in[0].shape.size(1) < 1) return misfit(in, {"x"}, "rows must not be empty");
  return specs{tensor_spec{dtype::i32, *shape::from(std::array{in[0].shape[0]})}};
}

std::vector<value> sum_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {append("broadcast_like", {dy[0], n.inputs[0]}, {}, n.source)};
}

std::vector<value> broadcast_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto &x = n.inputs[0].spec().shape, &like = n.inputs[1].spec().shape;
  if (x == like) return {dy[0], value{}};
  return {x.rank() == 0 ? reduce_sum(dy[0], n.source) : reduce_sum_rows(dy[0], n.source), value{}};
}

}  // namespace

void add_reductions(op_table& t) {
  t.add("reduce_sum_rows", {.inputs = 1, .shapes = sum_rows_shapes, .gradient = sum_gradient});
  t.add("reduce_sum", {.inputs = 1, .shapes = sum_shapes, .gradient = sum_gradient});
  t.add("broadcast_like", {.inputs = 2, .shapes = broadcast_shapes, .gradient = broadcast_gradient});
  t.add("argmax", {.inputs = 1, .shapes = argmax_shapes, .gradient = {}});
}

}  // namespace ops

value reduce_sum_rows(value x, source_location where) {
  return ops::append("reduce_sum_rows", {x}, {}, where);
}
value reduce_sum(value x, source_location where) {
  return ops::append("reduce_sum", {x}, {}, where);
}
value argmax(value x, source_location where) {
  return ops::append("argmax", {x}, {}, where);
}

}  // namespace troupe
