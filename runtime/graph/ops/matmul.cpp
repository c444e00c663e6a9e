// matmul.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>

namespace troupe {
namespace ops {
namespace {

struct form {
  bool a, b;    // transposed
  bool is_sum;  // of all batches
};
form form_of(const attributes& attrs) {
  return {attrs.integer("transpose_a") != 0, attrs.integer("transpose_b") != 0,
          attrs.integer("sum_batches") != 0};
}

shape batches_of(const shape& s) {
  std::array<dim, shape::rank_max> dims{};
  const auto rank = s.rank() - 2;
  for (std::size_t i = 0; i < rank; ++i) dims[i] = s[i];
  return *shape::from(std::span(dims).first(rank));
}

result<specs> shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto [ta, tb, is_sum] = form_of(attrs);
  const auto& [a, b] = std::pair(in[0], in[1]);
  const auto refuse = [&](std::string_view why) { return misfit(in, {"a", "b"}, why); };
  if (!any_floating.has(a.type) || a.type != b.type)
    return refuse("both must be f32, or both f64, f16 or bf16");
  const auto ra = a.shape.rank(), rb = b.shape.rank();
  if (ra < 2 || rb < 2)
    return refuse("both must be matrices (rank 2), or batches of them (rank 3 to 8)");
  const auto rows = a.shape[ta ? ra - 1 : ra - 2], inner_a = a.shape[ta ? ra - 2 : ra - 1];
  const auto inner_b = b.shape[tb ? rb - 1 : rb - 2], columns = b.shape[tb ? rb - 2 : rb - 1];
  if (inner_a != inner_b)
    return refuse(fmt::format("{} of a ({}{}) must be {} of b ({}{})", ta ? "rows" : "columns",
                              inner_a.size, inner_a.symbol != 0 ? "?" : "", tb ? "columns" : "rows",
                              inner_b.size, inner_b.symbol != 0 ? "?" : ""));
  const auto batches = broadcast(batches_of(a.shape), batches_of(b.shape));
  if (!batches)
    return refuse("batches, the dimensions in front of the last two, cannot be broadcast");
  std::array<dim, shape::rank_max> dims{};
  std::size_t rank = 0;
  if (!is_sum)
    for (; rank < batches->rank(); ++rank) dims[rank] = (*batches)[rank];
  dims[rank++] = rows;
  dims[rank++] = columns;
  const auto out = shape::from(std::span(dims).first(rank));
  if (!out) return refuse("the product has too many elements");
  return specs{tensor_spec{a.type, *out}};
}

value product(value a, value b, bool ta, bool tb, const source_location& where,
              bool is_sum = false) {
  attributes attrs{{"transpose_a", std::int64_t{ta}}, {"transpose_b", std::int64_t{tb}}};
  if (is_sum) attrs.set("sum_batches", std::int64_t{1});
  return append("matmul", {a, b}, std::move(attrs), where);
}

// The gradient of an operand: where that is a single matrix for all batches, their sum, which is
// made as one product; else the product, summed over those dimensions in which the operand was
// broadcast.
value for_operand(const value& operand, value a, value b, bool ta, bool tb,
                  const source_location& where) {
  if (!a.is_valid() || !b.is_valid()) return {};
  const bool has_batches = a.spec().shape.rank() > 2 || b.spec().shape.rank() > 2;
  if (operand.spec().shape.rank() == 2) return product(a, b, ta, tb, where, has_batches);
  auto p = product(a, b, ta, tb, where);
  if (!p.is_valid()) return p;
  // A batch of the operand that several share, and (of a sum) one that the product does not know
  // of.
  const auto rank = operand.spec().shape.rank(), of_p = p.spec().shape.rank();
  if (of_p > rank) return sum_to(p, operand, where);
  std::vector<std::int64_t> shared;
  for (std::size_t i = 0; i + 2 < of_p; ++i)
    if (operand.spec().shape[rank - of_p + i] == dim{1, 0} && p.spec().shape[i] != dim{1, 0})
      shared.push_back(static_cast<std::int64_t>(i));
  if (!shared.empty())
    p = in_f32(p, where, [&](value x) { return reduce_sum(x, shared, true, where); });
  return p.spec().shape == operand.spec().shape ? p : broadcast_like(p, operand, where);
}

// C = op(A) op(B). With op(A) = A: dA = dC op(B)^T; with op(A) = A^T: dA = op(B) dC^T; and so for
// B.
std::vector<value> gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto [ta, tb, is_sum] = form_of(n.attrs);
  const auto &a = n.inputs[0], &b = n.inputs[1], &dc = dy[0];
  const auto da =
      ta ? for_operand(a, b, dc, tb, true, n.source) : for_operand(a, dc, b, false, !tb, n.source);
  const auto db =
      tb ? for_operand(b, dc, a, true, ta, n.source) : for_operand(b, a, dc, !ta, false, n.source);
  return {da, db};
}

}  // namespace

void add_matmul(op_table& t) {
  t.add("matmul", {.inputs = 2, .shapes = shapes, .gradient = gradient, .types = any_floating});
}

}  // namespace ops

value matmul(value a, value b, bool transpose_a, bool transpose_b, source_location where) {
  return ops::product(a, b, transpose_a, transpose_b, where);
}

}  // namespace troupe
