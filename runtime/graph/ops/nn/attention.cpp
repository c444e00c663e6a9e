// attention and its gradient: softmax(scale q k^T) v in several heads, whose scores are never a
// tensor.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace troupe {
namespace ops {
namespace {

// Queries, keys and values: three operands, or one in which they lie side by side.
struct attention_operands {
  tensor_spec q, k, v;
  std::int64_t heads = 1;
};

result<attention_operands> read_attention(const attributes& attrs,
                                          std::span<const tensor_spec> in) {
  const bool is_packed = in.size() == 1;
  const auto refuse = [&](std::string_view why) {
    return is_packed ? misfit(in, {"qkv"}, why) : misfit(in, {"q", "k", "v"}, why);
  };
  if (in.size() != 1 && in.size() != 3)
    return refuse("takes queries, keys and values, or one tensor in which they lie side by side");
  for (const auto& s : in) {
    if (!any_floating.has(s.type) || s.type != in[0].type)
      return refuse("all must be f32, or all f64, f16 or bf16");
    if (s.shape.rank() != 3)
      return refuse(is_packed ? "must have rank 3: [samples, positions, 3 x features]"
                              : "all must have rank 3: [samples, positions, features]");
    if (s.shape[2].symbol != 0 || s.shape.size(2) < 1)
      return refuse("the number of features must be exact and at least 1");
  }
  attention_operands o{in[0], in[0], in[0], attrs.integer("heads", 1)};
  if (!is_packed) {
    o.k = in[1], o.v = in[2];
  } else {
    if (in[0].shape.size(2) % 3 != 0)
      return refuse(fmt::format("{} features are not those of queries, keys and values",
                                in[0].shape.size(2)));
    const std::array dims{in[0].shape[0], in[0].shape[1], dim{in[0].shape.size(2) / 3, 0}};
    o.q.shape = o.k.shape = o.v.shape = *shape::from(dims);
  }
  if (o.q.shape[0] != o.k.shape[0] || o.q.shape[0] != o.v.shape[0])
    return refuse("queries, keys and values must be of equally many samples");
  if (o.k.shape[1] != o.v.shape[1])
    return refuse("keys and values must have equally many positions");
  if (o.q.shape[2] != o.k.shape[2])
    return refuse("queries and keys must have equally many features");
  if (o.heads < 1 || o.q.shape.size(2) % o.heads != 0 || o.v.shape.size(2) % o.heads != 0)
    return refuse(fmt::format("{} and {} features are no multiples of {} heads", o.q.shape.size(2),
                              o.v.shape.size(2), o.heads));
  if (attrs.integer("causal") != 0 && o.q.shape[1] != o.k.shape[1])
    return refuse(
        "a causal one needs as many keys as queries: a position sees itself and those before it");
  return o;
}

result<tensor_spec> attention_result(const attributes& attrs, std::span<const tensor_spec> in) {
  const auto o = read_attention(attrs, in);
  if (!o) return o.error();
  const auto y = shape::from(std::array{o->q.shape[0], o->q.shape[1], o->v.shape[2]});
  if (!y) return misfit(in, {"q", "k", "v"}, "the result has too many elements");
  return tensor_spec{o->q.type, *y};
}

result<specs> attention_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                               const tag*) {
  auto y = attention_result(attrs, in);
  if (!y) return std::move(y.error());
  return specs{*y};
}

// (dy, and what attention takes) -> a gradient for each of those.
result<specs> attention_grad_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                                    const tag*) {
  const auto y = attention_result(attrs, in.subspan(1));
  if (!y) return y.error();
  if (in[0] != *y) return misfit(in.first(1), {"dy"}, fmt::format("must be {}", to_string(*y)));
  return specs(in.begin() + 1, in.end());
}

gradients attention_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  std::vector<value> in{dy[0]};
  in.insert(in.end(), n.inputs.begin(), n.inputs.end());
  const auto first = append("attention_grad", in, n.attrs, n.source);
  if (!first.is_valid()) return gradients(n.inputs.size());
  gradients all;
  for (std::uint32_t i = 0; i < n.inputs.size(); ++i) all.push_back({&g, first.node, i});
  return all;
}

// --- the gradient of the gradient, written with other ops ---

// No value: zero, which is left out.
struct algebra {
  const source_location& where;

  value plus(value a, value b) const {
    return !a.is_valid() ? b : b.is_valid() ? add(a, b, where) : a;
  }
  value minus(value a, value b) const {
    return a.is_valid() && b.is_valid() ? sub(a, b, where)
           : a.is_valid()               ? a
           : b.is_valid()               ? neg(b, where)
                                        : b;
  }
  value times(value a, value b) const {
    return a.is_valid() && b.is_valid() ? mul(a, b, where) : value{};
  }
  value product(value a, value b, bool ta, bool tb) const {
    return a.is_valid() && b.is_valid() ? matmul(a, b, ta, tb, where) : value{};
  }
  value total(value x) const { return x.is_valid() ? reduce_sum(x, {-1}, true, where) : x; }
  // Of y = softmax(x), from that of y.
  value through_softmax(value d, value y) const {
    return d.is_valid()
               ? append("softmax_grad", {d, y}, attributes{{"axis", std::int64_t{-1}}}, where)
               : d;
  }
  // [n, t, heads * e] -> [n, heads, t, e], and back.
  value in_heads(value x, std::int64_t heads) const {
    if (!x.is_valid()) return x;
    return transpose(reshape(x, {0, 0, heads, x.spec().shape.size(2) / heads}, where), {0, 2, 1, 3},
                     where);
  }
  value side_by_side(value x) const {
    if (!x.is_valid()) return x;
    return reshape(transpose(x, {0, 2, 1, 3}, where),
                   {0, 0, x.spec().shape.size(1) * x.spec().shape.size(3)}, where);
  }
};

// With S = scale Q K^T, P = softmax(S), dP = dY V^T and dS = P (dP - sum(dP P)), the gradient is
// dQ = scale dS K, dK = scale dS^T Q, dV = P^T dY. For gradients a, b, c of these, backwards
// through the same lines.
gradients attention_grad_gradient(graph&, const graph_node& n, std::span<const value> d) {
  const algebra m{n.source};
  const auto& where = n.source;
  const auto heads = n.attrs.integer("heads", 1);
  const bool is_packed = n.inputs.size() == 2;
  const auto parts = [&](value x) {
    if (!is_packed || !x.is_valid()) return std::array{m.in_heads(x, heads), value{}, value{}};
    const auto w = x.spec().shape.size(2) / 3;
    const auto all = split(x, {w, w, w}, 2, where);
    return std::array{m.in_heads(all[0], heads), m.in_heads(all[1], heads),
                      m.in_heads(all[2], heads)};
  };
  auto [q, k, v] = parts(n.inputs[1]);
  auto [a, b, c] = parts(d[0]);
  if (!is_packed)
    k = m.in_heads(n.inputs[2], heads), v = m.in_heads(n.inputs[3], heads),
    b = m.in_heads(d[1], heads), c = m.in_heads(d[2], heads);
  if (!q.is_valid() || !k.is_valid() || !v.is_valid()) return gradients(n.inputs.size());
  const auto dy = m.in_heads(n.inputs[0], heads);
  auto scale_of = n.attrs.real("scale");
  if (scale_of == 0) scale_of = 1 / std::sqrt(static_cast<double>(q.spec().shape.size(3)));
  const auto scale = number(q, scale_of, where);

  auto s = mul(matmul(q, k, false, true, where), scale, where);
  if (n.attrs.integer("causal") != 0) {
    const auto ones = broadcast_like(number(q, 1, where), s, where);
    const auto is_later = greater(cumulative_sum(ones, 3, false, false, where),
                                  cumulative_sum(ones, 2, false, false, where), where);
    s = troupe::where(is_later, number(q, -std::numeric_limits<double>::infinity(), where), s,
                      where);
  }
  const auto p = softmax(s, -1, where);
  const auto dp = matmul(dy, v, false, true, where);
  const auto ds = m.through_softmax(dp, p);

  const auto of_ds =
      m.times(m.plus(m.product(a, k, false, true), m.product(q, b, false, true)), scale);
  const auto of_dp = m.through_softmax(of_ds, p);
  auto of_p = m.minus(m.times(of_ds, sub(dp, m.total(mul(dp, p, where)), where)),
                      m.times(dp, m.total(m.times(of_ds, p))));
  of_p = m.plus(of_p, m.product(dy, c, false, true));
  const auto of_s = m.through_softmax(of_p, p);
  const auto of_q =
      m.times(m.plus(m.product(of_s, k, false, false), m.product(ds, b, false, false)), scale);
  const auto of_k =
      m.times(m.plus(m.product(of_s, q, true, false), m.product(ds, a, true, false)), scale);
  const auto of_v = m.product(of_dp, dy, true, false);
  const auto of_dy =
      m.side_by_side(m.plus(m.product(of_dp, v, false, false), m.product(p, c, false, false)));
  if (!is_packed) return {of_dy, m.side_by_side(of_q), m.side_by_side(of_k), m.side_by_side(of_v)};
  if (!of_q.is_valid() || !of_k.is_valid() || !of_v.is_valid()) return {of_dy, {}};
  return {of_dy,
          concat({m.side_by_side(of_q), m.side_by_side(of_k), m.side_by_side(of_v)}, 2, where)};
}

attributes attention_attributes(const attention_options& o) {
  attributes attrs{{"heads", o.heads}, {"causal", std::int64_t{o.causal}}};
  if (o.scale != 0) attrs.set("scale", o.scale);
  return attrs;
}

}  // namespace

void add_attention(op_table& t) {
  t.add("attention", {.inputs = 1,
                      .shapes = attention_shapes,
                      .gradient = attention_gradient,
                      .types = any_floating,
                      .inputs_max = 3});
  t.add("attention_grad", {.inputs = 2,
                           .shapes = attention_grad_shapes,
                           .gradient = through_f32(attention_grad_gradient),
                           .types = any_floating,
                           .inputs_max = 4});
}

}  // namespace ops

value attention(value q, value k, value v, const attention_options& options,
                source_location where) {
  return ops::append("attention", {q, k, v}, ops::attention_attributes(options), where);
}
value attention(value qkv, const attention_options& options, source_location where) {
  return ops::append("attention", {qkv}, ops::attention_attributes(options), where);
}

}  // namespace troupe
