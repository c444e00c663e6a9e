// Ops that move elements and compute nothing: shapes, order, parts, padding, repetition.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace troupe {
namespace ops {
namespace {

using integers = std::vector<std::int64_t>;

std::string text_of(const integers& all) { return fmt::format("[{}]", fmt::join(all, ", ")); }

// --- reshape ---

// "dims": sizes of the result; 0: as x has there, also a bound; -1, once: what is left.
result<specs> reshape_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto& x = in[0].shape;
  const auto wanted = attrs.integers("dims");
  const auto refuse = [&](std::string_view why) {
    return misfit(in, {"x"}, fmt::format("cannot become {}: {}", text_of(wanted), why));
  };
  if (wanted.size() > shape::rank_max) return refuse("more than 8 dimensions");
  std::array<dim, shape::rank_max> dims{};
  std::optional<std::size_t> open;
  std::int64_t known = 1;
  std::vector<bool> is_kept(x.rank());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] < -1) return refuse(fmt::format("a size cannot be {}", wanted[i]));
    if (wanted[i] == -1) {
      if (open) return refuse("only one size can be left open");
      open = i;
      continue;
    }
    if (wanted[i] == 0 && i >= x.rank())
      return refuse(fmt::format("0 stands for a size of x, which has no dimension {}", i));
    dims[i] = wanted[i] == 0 ? x[i] : dim{wanted[i], 0};
    if (wanted[i] == 0) is_kept[i] = true;
    if (__builtin_mul_overflow(known, dims[i].size, &known)) return refuse("too many elements");
  }
  for (std::size_t i = 0; i < x.rank(); ++i)
    if (x[i].symbol != 0 && !is_kept[i])
      return refuse(fmt::format(
          "dimension {} is a bound (a symbolic size): keep it with a 0 in its place", i));
  const auto elements = x.elements();
  if (open) {
    if (known == 0 || elements % known != 0)
      return refuse(fmt::format("{} elements are no multiple of {}", elements, known));
    dims[*open] = {elements / known, 0};
  } else if (known != elements) {
    return refuse(fmt::format("{} elements are not {}", known, elements));
  }
  const auto out = shape::from(std::span(dims).first(wanted.size()));
  if (!out) return refuse("too many elements");
  return specs{{in[0].type, *out}};
}

// Back to x's sizes; a bound of x is one of the result, too, and where it stood.
gradients reshape_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& x = n.inputs[0].spec().shape;
  integers dims;
  for (std::size_t i = 0; i < x.rank(); ++i) dims.push_back(x[i].symbol != 0 ? 0 : x.size(i));
  // A 0 there would mean something else. Of nothing all gradients are alike.
  if (!x.is_symbolic() && x.elements() == 0)
    return {broadcast_like(number(n.inputs[0], 0, n.source), n.inputs[0], n.source)};
  return {append("reshape", {dy[0]}, attributes{{"dims", std::move(dims)}}, n.source)};
}

// --- transpose ---

// nullopt: no order of `rank` axes. None given: the reverse.
std::optional<std::vector<std::size_t>> order_of(const integers& given, std::size_t rank) {
  std::vector<std::size_t> order(rank);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  if (given.empty()) return order;
  if (given.size() != rank) return std::nullopt;
  std::vector<bool> is_there(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const auto a = given[i] < 0 ? given[i] + static_cast<std::int64_t>(rank) : given[i];
    if (a < 0 || a >= static_cast<std::int64_t>(rank) || is_there[static_cast<std::size_t>(a)])
      return std::nullopt;
    order[i] = static_cast<std::size_t>(a);
    is_there[order[i]] = true;
  }
  return order;
}

result<specs> transpose_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                               const tag*) {
  const auto order = order_of(attrs.integers("order"), in[0].shape.rank());
  if (!order)
    return misfit(
        in, {"x"},
        fmt::format("{} is not a permutation of its axes", text_of(attrs.integers("order"))));
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < order->size(); ++i) dims[i] = in[0].shape[(*order)[i]];
  return specs{{in[0].type, *shape::from(std::span(dims).first(order->size()))}};
}

gradients transpose_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto order = *order_of(n.attrs.integers("order"), n.inputs[0].spec().shape.rank());
  integers back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<std::int64_t>(i);
  return {append("transpose", {dy[0]}, attributes{{"order", std::move(back)}}, n.source)};
}

// --- slice ---

// "begin", "size", "step": by axis; a size of -1: to the end. Steps may be negative: begin is then
// the first element taken.
result<specs> slice_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto& x = in[0].shape;
  const auto begin = attrs.integers("begin"), size = attrs.integers("size");
  const auto step = attrs.integers("step", integers(x.rank(), 1));
  if (begin.size() != x.rank() || size.size() != x.rank() || step.size() != x.rank())
    return misfit(in, {"x"},
                  fmt::format("begin {}, size {} and step {} must have a number for each dimension",
                              text_of(begin), text_of(size), text_of(step)));
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const auto refuse = [&](std::string_view why) {
      return misfit(in, {"x"},
                    fmt::format("dimension {}: {} from {} in steps of {}: {}", i, size[i], begin[i],
                                step[i], why));
    };
    if (begin[i] == 0 && size[i] == -1 && step[i] == 1) {
      dims[i] = x[i];
      continue;
    }
    if (x[i].symbol != 0) return refuse("a dimension that is a bound can only be taken whole");
    if (step[i] == 0) return refuse("a step cannot be 0");
    if (begin[i] < 0 || begin[i] > x.size(i) || size[i] < 0)
      return refuse("it begins or ends outside");
    // The last element: begin + (size - 1) step.
    std::int64_t last = 0;
    if (size[i] > 0 && (__builtin_mul_overflow(size[i] - 1, step[i], &last) ||
                        __builtin_add_overflow(last, begin[i], &last) || last < 0 ||
                        last >= x.size(i) || begin[i] >= x.size(i)))
      return refuse("it begins or ends outside");
    dims[i] = {size[i], 0};
  }
  return specs{{in[0].type, *shape::from(std::span(dims).first(x.rank()))}};
}

// put_slice(dy, like): dy in its place, zeros around.
result<specs> put_slice_shapes(const attributes& attrs, std::span<const tensor_spec> in,
                               const tag* at) {
  const std::array like{in[1]};
  const auto part = slice_shapes(attrs, like, at);
  if (!part) return misfit(in, {"dy", "like"}, part.error().message());
  if (part->front() != in[0])
    return misfit(in, {"dy", "like"}, fmt::format("dy must be {}", to_string(part->front())));
  return specs{in[1]};
}

gradients slice_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  return {append("put_slice", {dy[0], n.inputs[0]}, n.attrs, n.source)};
}
gradients put_slice_gradient(graph&, const graph_node& n, std::span<const value> d) {
  return {append("slice", {d[0]}, n.attrs, n.source), value{}};
}

// --- pad ---

// "before", "after": by axis, elements of "value".
result<specs> pad_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto& x = in[0].shape;
  const auto before = attrs.integers("before"), after = attrs.integers("after");
  if (before.size() != x.rank() || after.size() != x.rank())
    return misfit(in, {"x"},
                  fmt::format("{} before and {} after must have a number for each dimension",
                              text_of(before), text_of(after)));
  if (!is_number_of(in[0].type, attrs.real("value")))
    return misfit(
        in, {"x"},
        fmt::format("{} has no number {} to pad with", to_string(in[0].type), attrs.real("value")));
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const bool is_none = before[i] == 0 && after[i] == 0;
    if (before[i] < 0 || after[i] < 0)
      return misfit(in, {"x"}, "padding cannot be negative: take a slice");
    if (!is_none && x[i].symbol != 0)
      return misfit(in, {"x"}, fmt::format("dimension {} is a bound, which cannot be padded", i));
    dims[i] = x[i];
    if (__builtin_add_overflow(dims[i].size, before[i], &dims[i].size) ||
        __builtin_add_overflow(dims[i].size, after[i], &dims[i].size))
      return misfit(in, {"x"}, "the result has too many elements");
  }
  const auto out = shape::from(std::span(dims).first(x.rank()));
  if (!out) return misfit(in, {"x"}, "the result has too many elements");
  return specs{{in[0].type, *out}};
}

gradients pad_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto& x = n.inputs[0].spec().shape;
  const auto before = n.attrs.integers("before"), after = n.attrs.integers("after");
  integers size;
  for (std::size_t i = 0; i < x.rank(); ++i)
    size.push_back(before[i] == 0 && after[i] == 0 ? -1 : x.size(i));
  return {
      append("slice", {dy[0]}, attributes{{"begin", before}, {"size", std::move(size)}}, n.source)};
}

// --- concat ---

result<specs> concat_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  auto out = in[0];
  const auto rank = static_cast<std::int64_t>(out.shape.rank());
  auto axis = attrs.integer("axis");
  if (axis < -rank || axis >= rank)
    return misfit(in, {}, fmt::format("there is no axis {} of {} dimensions", axis, rank));
  const auto along = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  std::int64_t sum = 0;
  for (const auto& x : in) {
    if (x.type != out.type) return misfit(in, {}, "operands must have one element type");
    if (x.shape.rank() != out.shape.rank())
      return misfit(in, {}, "operands must have equally many dimensions");
    for (std::size_t i = 0; i < x.shape.rank(); ++i)
      if (i != along && x.shape[i] != out.shape[i])
        return misfit(in, {}, fmt::format("sizes of dimension {} differ", i));
    if (x.shape[along].symbol != 0 && in.size() > 1)
      return misfit(
          in, {}, fmt::format("dimension {} is a bound, along which nothing can be joined", along));
    if (__builtin_add_overflow(sum, x.shape.size(along), &sum))
      return misfit(in, {}, "the result has too many elements");
  }
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < out.shape.rank(); ++i)
    dims[i] = i == along ? dim{sum, out.shape[i].symbol} : out.shape[i];
  const auto joined = shape::from(std::span(dims).first(out.shape.rank()));
  if (!joined) return misfit(in, {}, "the result has too many elements");
  return specs{{out.type, *joined}};
}

gradients concat_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  if (n.inputs.size() == 1) return {dy[0]};
  const auto rank = n.outputs[0].shape.rank();
  const auto axis = n.attrs.integer("axis");
  const auto along =
      static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis);
  gradients parts;
  std::int64_t at = 0;
  for (const auto& x : n.inputs) {
    integers begin(rank), size(rank, -1);
    begin[along] = at;
    size[along] = x.spec().shape.size(along);
    at += size[along];
    parts.push_back(append("slice", {dy[0]},
                           attributes{{"begin", std::move(begin)}, {"size", std::move(size)}},
                           n.source));
  }
  return parts;
}

// --- tile ---

result<specs> tile_shapes(const attributes& attrs, std::span<const tensor_spec> in, const tag*) {
  const auto& x = in[0].shape;
  const auto times = attrs.integers("times");
  if (times.size() != x.rank())
    return misfit(in, {"x"},
                  fmt::format("{} must have a number of times for each dimension", text_of(times)));
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (times[i] < 0) return misfit(in, {"x"}, "a number of times cannot be negative");
    if (times[i] != 1 && x[i].symbol != 0)
      return misfit(in, {"x"}, fmt::format("dimension {} is a bound, which cannot be repeated", i));
    dims[i] = x[i];
    if (__builtin_mul_overflow(dims[i].size, times[i], &dims[i].size))
      return misfit(in, {"x"}, "the result has too many elements");
  }
  const auto out = shape::from(std::span(dims).first(x.rank()));
  if (!out) return misfit(in, {"x"}, "the result has too many elements");
  return specs{{in[0].type, *out}};
}

// One axis after the other, outermost first: [.., times * size, ..] -> [.., times, size, ..],
// summed over the times.
gradients tile_gradient(graph&, const graph_node& n, std::span<const value> dy) {
  const auto times = n.attrs.integers("times");
  const auto& x = n.inputs[0].spec().shape;
  auto sum = dy[0];
  if (sum.spec().shape.elements() == 0)
    return {broadcast_like(number(n.inputs[0], 0, n.source), n.inputs[0], n.source)};
  for (std::size_t i = 0; i < times.size() && sum.is_valid(); ++i) {
    if (times[i] == 1) continue;
    const auto& now = sum.spec().shape;
    if (now.is_symbolic() && now.rank() == shape::rank_max) {
      sum.owner->record(
          error(
              error_code::usage,
              fmt::format("tile '{}': no gradient in 8 dimensions with a bound among them", n.name))
              .at(n.source));
      return {value{}};
    }
    integers split, back;
    for (std::size_t k = 0; k < now.rank(); ++k) {
      const auto kept = now[k].symbol != 0 ? 0 : now.size(k);
      if (k == i) split.push_back(times[i]);
      split.push_back(k == i ? x.size(k) : kept);
    }
    if (now.rank() == shape::rank_max) {
      // All in front of the axis as one, all behind it as one.
      std::int64_t front = 1, behind = 1;
      for (std::size_t k = 0; k < now.rank(); ++k)
        (k < i ? front : behind) *= k == i ? 1 : now.size(k);
      split = {front, times[i], x.size(i), behind};
      for (std::size_t k = 0; k < now.rank(); ++k) back.push_back(k == i ? x.size(i) : now.size(k));
      sum = reduce_sum(append("reshape", {sum}, attributes{{"dims", split}}, n.source), {1}, false,
                       n.source);
      sum = append("reshape", {sum}, attributes{{"dims", back}}, n.source);
      continue;
    }
    // A 0 keeps the size in its place; behind the split axis places have moved by one, and a bound
    // there is an error of reshape.
    sum = reduce_sum(append("reshape", {sum}, attributes{{"dims", split}}, n.source),
                     {static_cast<std::int64_t>(i)}, false, n.source);
  }
  return {sum};
}

}  // namespace

void add_layout(op_table& t) {
  const auto row = [&](const char* name, std::uint32_t inputs, shape_rule shapes,
                       gradient_rule gradient) {
    t.add(name, {.inputs = inputs,
                 .shapes = std::move(shapes),
                 .gradient = std::move(gradient),
                 .types = all_types});
  };
  row("reshape", 1, reshape_shapes, reshape_gradient);
  row("transpose", 1, transpose_shapes, transpose_gradient);
  row("slice", 1, slice_shapes, slice_gradient);
  row("put_slice", 2, put_slice_shapes, put_slice_gradient);
  row("pad", 1, pad_shapes, pad_gradient);
  row("tile", 1, tile_shapes, tile_gradient);
  t.add("concat", {.inputs = 1,
                   .shapes = concat_shapes,
                   .gradient = concat_gradient,
                   .types = all_types,
                   .inputs_max = 4096});
}

}  // namespace ops

value reshape(value x, std::vector<std::int64_t> dims, source_location where) {
  return ops::append("reshape", {x}, attributes{{"dims", std::move(dims)}}, where);
}
value transpose(value x, std::vector<std::int64_t> order, source_location where) {
  attributes attrs;
  if (!order.empty()) attrs.set("order", std::move(order));
  return ops::append("transpose", {x}, std::move(attrs), where);
}
value slice(value x, std::vector<range> ranges, source_location where) {
  if (!x.is_valid()) return {};
  const auto& s = x.spec().shape;
  if (ranges.size() > s.rank()) {
    x.owner->record(error(error_code::usage, fmt::format("slice: {} ranges for {} dimensions",
                                                         ranges.size(), s.rank()))
                        .at(where));
    return {};
  }
  std::vector<std::int64_t> begin(s.rank()), size(s.rank(), -1), step(s.rank(), 1);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& r = ranges[i];
    const auto n = s.size(i);
    if (r.begin == 0 && r.end == std::numeric_limits<std::int64_t>::max() && r.step == 1) continue;
    // Backwards they may stop one before the first.
    const std::int64_t low = r.step < 0 ? -1 : 0, high = r.step < 0 ? n - 1 : n;
    const auto moved = [&](std::int64_t at) {
      return std::clamp<std::int64_t>(at < 0 ? std::max(at, -n - 1) + n : at, low,
                                      std::max<std::int64_t>(low, high));
    };
    const auto first = moved(r.begin);
    const auto last =
        r.end == std::numeric_limits<std::int64_t>::max() ? (r.step < 0 ? -1 : n) : moved(r.end);
    step[i] = r.step;
    if (r.step > 0) size[i] = last > first ? (last - first - 1) / r.step + 1 : 0;
    if (r.step < 0) size[i] = first > last ? (last + 1 - first) / r.step + 1 : 0;
    begin[i] = size[i] > 0 ? first : 0;
    if (size[i] == 1) step[i] = 1;  // of one element no step counts
  }
  return ops::append(
      "slice", {x},
      attributes{{"begin", std::move(begin)}, {"size", std::move(size)}, {"step", std::move(step)}},
      where);
}

value concat(std::vector<value> parts, std::int64_t axis, source_location where) {
  return ops::append("concat", std::span<const value>(parts), attributes{{"axis", axis}}, where);
}

std::vector<value> split(value x, std::vector<std::int64_t> sizes, std::int64_t axis,
                         source_location where) {
  std::vector<value> parts(sizes.size());
  if (!x.is_valid()) return parts;
  const auto& s = x.spec().shape;
  const auto rank = static_cast<std::int64_t>(s.rank());
  const auto refuse = [&](std::string_view why) {
    x.owner->record(
        error(error_code::usage, fmt::format("split: x {}: {}", to_string(x.spec()), why))
            .at(where));
  };
  if (axis < -rank || axis >= rank) return refuse(fmt::format("there is no axis {}", axis)), parts;
  const auto along = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  std::int64_t sum = 0;
  for (const auto n : sizes)
    if (n < 0 || __builtin_add_overflow(sum, n, &sum))
      return refuse("sizes of parts cannot be negative"), parts;
  if (sum != s.size(along))
    return refuse(fmt::format("parts of {} elements together, along an axis of {}", sum,
                              s.size(along))),
           parts;
  std::int64_t at = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    std::vector<std::int64_t> begin(s.rank()), size(s.rank(), -1);
    begin[along] = at;
    size[along] = sizes[k];
    at += sizes[k];
    parts[k] = ops::append(
        "slice", {x}, attributes{{"begin", std::move(begin)}, {"size", std::move(size)}}, where);
  }
  return parts;
}

value stack(std::vector<value> parts, std::int64_t axis, source_location where) {
  for (auto& p : parts) p = expand_dims(p, {axis}, where);
  return concat(std::move(parts), axis, where);
}

value pad(value x, std::vector<std::int64_t> before, std::vector<std::int64_t> after, double with,
          source_location where) {
  return ops::append(
      "pad", {x},
      attributes{{"before", std::move(before)}, {"after", std::move(after)}, {"value", with}},
      where);
}
value tile(value x, std::vector<std::int64_t> times, source_location where) {
  return ops::append("tile", {x}, attributes{{"times", std::move(times)}}, where);
}

}  // namespace troupe
