#include "troupe/runtime/graph/ops/rules.hpp"

#include <algorithm>
#include <array>

namespace troupe::ops {

std::optional<shape> broadcast(const shape& a, const shape& b) noexcept {
  std::array<dim, shape::rank_max> dims{};
  const auto rank = std::max(a.rank(), b.rank());
  const dim one{1, 0};
  for (std::size_t from_end = 1; from_end <= rank; ++from_end) {
    const auto of = [&](const shape& s) {
      return from_end <= s.rank() ? s[s.rank() - from_end] : one;
    };
    const auto x = of(a), y = of(b);
    if (x != y && x != one && y != one) return std::nullopt;
    dims[rank - from_end] = x == one ? y : x;
  }
  return shape::from(std::span(dims).first(rank));
}

shape_rule elementwise(std::initializer_list<std::string_view> names, dtype_set types,
                       std::optional<dtype> out) {
  return [names = std::vector<std::string_view>(names), types, out](
             const attributes&, std::span<const tensor_spec> in, const tag*) -> result<specs> {
    auto spec = in[0];
    for (const auto& s : in) {
      if (s.type != spec.type) return misfit(in, names, "operands must have one element type");
      const auto both = broadcast(spec.shape, s.shape);
      if (!both)
        return misfit(
            in, names,
            "shapes cannot be broadcast: sizes, from the last dimension on, must be equal or one of them 1");
      spec.shape = *both;
    }
    if (!types.has(spec.type))
      return misfit(in, names, fmt::format("the element type must be {}", to_string(types)));
    if (out) spec.type = *out;
    return specs{spec};
  };
}

result<std::vector<std::int64_t>> axes_of(std::vector<std::int64_t> axes, std::size_t rank,
                                          bool none_is_all) {
  const auto n = static_cast<std::int64_t>(rank);
  if (axes.empty() && none_is_all)
    for (std::int64_t i = 0; i < n; ++i) axes.push_back(i);
  for (auto& a : axes) {
    if (a < -n || a >= n)
      return error(error_code::usage, fmt::format("there is no axis {} of {} dimensions", a, n));
    if (a < 0) a += n;
  }
  std::sort(axes.begin(), axes.end());
  if (const auto twice = std::adjacent_find(axes.begin(), axes.end()); twice != axes.end())
    return error(error_code::usage, fmt::format("axis {} is named twice", *twice));
  return axes;
}

tensor_spec reduced(const tensor_spec& x, const std::vector<std::int64_t>& axes, bool keep) {
  std::array<dim, shape::rank_max> dims{};
  std::size_t rank = 0;
  for (std::size_t i = 0; i < x.shape.rank(); ++i) {
    const bool is_reduced =
        std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i));
    if (!is_reduced) dims[rank++] = x.shape[i];
    if (is_reduced && keep) dims[rank++] = {1, 0};
  }
  return {x.type, *shape::from(std::span(dims).first(rank))};
}

void add_elementwise(op_table& t, const char* name,
                     std::initializer_list<std::string_view> operands, dtype_set types,
                     gradient_rule gradient, std::optional<dtype> out) {
  t.add(name, {.inputs = static_cast<std::uint32_t>(operands.size()),
               .shapes = elementwise(operands, types, out),
               .gradient = std::move(gradient),
               .is_elementwise = true,
               .types = types});
}

value number(const value& like, double n, const source_location& where) {
  return like.is_valid() ? constant(*like.owner, n, like.spec().type, "constant", where) : value{};
}

gradient_rule through_f32(gradient_rule rule) {
  return [rule = std::move(rule)](graph& g, const graph_node& n, std::span<const value> dy) {
    const auto is_half = [](const value& v) { return v.is_valid() && halves.has(v.spec().type); };
    const auto is_any = std::any_of(n.inputs.begin(), n.inputs.end(), is_half);
    if (!is_any) return rule(g, n, dy);
    const auto widened = [&](const value& v) {
      return is_half(v) ? cast(v, dtype::f32, n.source) : v;
    };
    auto wide = n;
    for (auto& in : wide.inputs) in = widened(in);
    std::vector<value> d;
    for (const auto& v : dy) d.push_back(widened(v));
    auto made = rule(g, wide, d);
    for (std::size_t i = 0; i < std::min(made.size(), n.inputs.size()); ++i)
      if (made[i].is_valid() && is_half(n.inputs[i]))
        made[i] = cast(made[i], n.inputs[i].spec().type, n.source);
    return made;
  };
}

value sum_to(value full, const value& operand, const source_location& where) {
  if (!full.is_valid()) return {};
  if (halves.has(full.spec().type) && full.spec().shape != operand.spec().shape)
    return in_f32(full, where, [&](value x) { return sum_to(x, operand, where); });
  const auto &from = full.spec().shape, &to = operand.spec().shape;
  if (from == to) return full;
  // Leading dimensions vanish, those of one element stay.
  std::vector<std::int64_t> leading, ones;
  const auto extra = from.rank() - to.rank();
  for (std::size_t i = 0; i < extra; ++i) leading.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < to.rank(); ++i)
    if (to[i] != from[extra + i]) ones.push_back(static_cast<std::int64_t>(i));
  if (!leading.empty()) full = reduce_sum(full, leading, false, where);
  if (!ones.empty()) full = reduce_sum(full, ones, true, where);
  return full;
}

}  // namespace troupe::ops
