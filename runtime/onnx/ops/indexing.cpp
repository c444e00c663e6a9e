#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>

namespace troupe::onnx {
namespace {

// Indices along an axis of x, of which the standard counts negative ones from the end.
value from_start(const node& n, value indices, value x, std::size_t axis) {
  const auto type = spec(indices).type;
  const auto size = spec(x).shape[axis].symbol == 0
                        ? n.number(static_cast<double>(spec(x).shape.size(axis)), type)
                        : n.converted(element_count(x, {static_cast<std::int64_t>(axis)}), type);
  return where(less(indices, n.number(0, type)), add(indices, size), indices);
}

values gather_rule(node& n) {
  const auto x = n.in(0);
  const auto axis = n.axis(n.integer("axis", 0), spec(x).shape.rank());
  return {gather(x, from_start(n, n.in(1), x, axis), static_cast<std::int64_t>(axis))};
}

// Of x, the part whose other axes are as long as those of the indices, with `axis` as the last one.
value rows_along(const node& n, value x, value indices, std::size_t axis) {
  const auto s = n.sizes(x), at = n.sizes(indices);
  if (s.size() != at.size())
    n.refuse(fmt::format("{} and indices {} must have equally many dimensions", to_string(spec(x)),
                         to_string(spec(indices))));
  std::vector<range> part(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (i == axis || at[i] == s[i]) continue;
    if (at[i] > s[i])
      n.refuse(fmt::format("indices {} are longer than {}", to_string(spec(indices)),
                           to_string(spec(x))));
    part[i].end = at[i];
  }
  return n.moved(slice(x, part), axis, s.size() - 1);
}

values gather_elements(node& n) {
  const auto x = n.in(0), indices = n.in(1);
  const auto rank = spec(x).shape.rank();
  const auto axis = n.axis(n.integer("axis", 0), rank);
  const auto rows = rows_along(n, x, indices, axis);
  const auto at = from_start(n, indices, x, axis);
  return {n.moved(take_last(rows, n.moved(at, axis, rank - 1)), rank - 1, axis)};
}

// How an update and what is there become one.
enum class scattering : std::uint8_t { put, add, multiply, largest, least };

scattering scattering_of(const node& n) {
  const auto name = n.text("reduction", "none");
  constexpr std::pair<std::string_view, scattering> all[] = {{"none", scattering::put},
                                                             {"add", scattering::add},
                                                             {"mul", scattering::multiply},
                                                             {"max", scattering::largest},
                                                             {"min", scattering::least}};
  for (const auto& [known, how] : all)
    if (name == known) return how;
  n.refuse(fmt::format("attribute 'reduction' is '{}', expected none, add, mul, max or min", name));
}

// x [.., m] with updates [.., k] multiplied in, or as extrema, at places [.., k] of the last axis:
// each place looks at all updates, and those that are not for it count as nothing. Time and memory
// are m times k, so a limit keeps that small.
value combined(const node& n, scattering how, value x, value places, value updates) {
  constexpr std::int64_t compared_max = std::int64_t{1} << 26;
  const auto at = n.sizes(places);
  const auto rank = at.size();
  const auto m = n.sizes(x).back();
  auto all = spec(places).shape.elements();
  if (__builtin_mul_overflow(all, m, &all) || all > compared_max || rank >= shape::rank_max)
    n.refuse(fmt::format(
        "attribute 'reduction': {} updates for {} places are too many for mul, max and min",
        at.back(), m));
  const auto type = spec(x).type;
  const auto from_0 = n.converted(places, dtype::i64);
  integers columns(rank + 1, 1);
  columns[rank - 1] = m;
  const auto each = n.made<std::int64_t>(
      dtype::i64, columns, [](std::size_t i) { return static_cast<std::int64_t>(i); });
  const auto last = static_cast<std::int64_t>(rank);
  const auto is_here = equal(expand_dims(from_0, {last - 1}), constant(n.g, each));
  value nothing;
  if (how == scattering::multiply) {
    nothing = n.number(1, type);
  } else {  // what an extremum of no elements is
    const auto none = n.filled(type, {0}, 0);
    nothing = how == scattering::largest ? reduce_max(none) : reduce_min(none);
  }
  const auto spread = where(is_here, expand_dims(updates, {last - 1}), nothing);
  switch (how) {
    case scattering::multiply: return mul(x, reduce_prod(spread, {last}));
    case scattering::largest: return maximum(x, reduce_max(spread, {last}));
    default: return minimum(x, reduce_min(spread, {last}));
  }
}

// Elements of x with updates put in, added, multiplied in or as extrema: equal indices are all
// taken, and without a reduction the standard leaves them open.
values scatter_elements(node& n) {
  const auto x = n.in(0), indices = n.in(1), updates = n.in(2);
  const auto rank = spec(x).shape.rank();
  const auto axis = n.axis(n.integer("axis", 0), rank);
  const auto how = scattering_of(n);
  if (n.sizes(indices) != n.sizes(updates))
    n.refuse(fmt::format("updates {} and indices {} must have one shape", to_string(spec(updates)),
                         to_string(spec(indices))));
  const auto rows = rows_along(n, x, indices, axis);
  const auto at = n.moved(from_start(n, indices, x, axis), axis, rank - 1);
  const auto moved = n.moved(updates, axis, rank - 1);
  // In place, with zeros around what the indices do not reach.
  const auto s = n.sizes(x), part = n.sizes(n.moved(rows, rank - 1, axis));
  integers none(rank), behind(rank);
  for (std::size_t i = 0; i < rank; ++i) behind[i] = s[i] - part[i];
  const auto in_x = [&](value v) { return pad(n.moved(v, rank - 1, axis), none, behind); };
  const auto placed = in_x(n.put_last(moved, at, rows));
  if (how == scattering::add) return {add(x, placed)};
  const auto ones = n.expanded(n.number_like(x, 1), n.sizes(at));
  const auto is_placed = greater(in_x(n.put_last(ones, at, rows)), n.number_like(x, 0));
  if (how == scattering::put) return {where(is_placed, placed, x)};
  return {where(is_placed, in_x(combined(n, how, rows, at, moved)), x)};
}

// The places of index tuples [.., k] in x, whose first dimensions (behind `batch` of them) they are
// for: [..], in x with these as one. A tuple with an index that its own dimension does not have is
// at `nowhere`, which must be a place behind all elements: the step fails there.
value linear(const node& n, value indices, const integers& s, std::size_t batch, std::size_t k,
             std::int64_t nowhere) {
  const auto at = n.converted(indices, dtype::i64);
  const auto rank = spec(at).shape.rank();
  const auto zero = n.number(0, dtype::i64);
  value sum, is_outside;
  std::int64_t step = 1;
  for (std::size_t i = k; i-- > 0;) {
    std::vector<range> part(rank);
    part[rank - 1] = {.begin = static_cast<std::int64_t>(i),
                      .end = static_cast<std::int64_t>(i) + 1};
    auto one = reduce_sum(slice(at, part), {-1}, false);
    const auto size = n.number(static_cast<double>(s[batch + i]), dtype::i64);
    one = where(less(one, zero), add(one, size), one);
    const auto misses = logical_or(less(one, zero), greater_equal(one, size));
    is_outside = is_outside.is_valid() ? logical_or(is_outside, misses) : misses;
    one = mul(one, n.number(static_cast<double>(step), dtype::i64));
    sum = sum.is_valid() ? add(sum, one) : one;
    step *= s[batch + i];
  }
  return where(is_outside, n.number(static_cast<double>(nowhere), dtype::i64), sum);
}

values gather_nd(node& n) {
  const auto x = n.in(0), indices = n.in(1);
  const auto s = n.sizes(x), at = n.sizes(indices);
  const auto batch = n.integer("batch_dims", 0);
  if (at.empty() || batch < 0 || static_cast<std::size_t>(batch) >= at.size() || at.back() < 1 ||
      static_cast<std::size_t>(batch + at.back()) > s.size())
    n.refuse(fmt::format("indices {} do not fit {}", to_string(spec(indices)), to_string(spec(x))));
  const auto b = static_cast<std::size_t>(batch), k = static_cast<std::size_t>(at.back());
  std::int64_t batches = 1, places = 1;
  integers result(at.begin(), at.end() - 1), flat;
  for (std::size_t i = 0; i < b; ++i) batches *= s[i];
  for (std::size_t i = b; i < b + k; ++i) places *= s[i];
  flat.push_back(batches * places);
  for (std::size_t i = b + k; i < s.size(); ++i) flat.push_back(s[i]), result.push_back(s[i]);
  auto place = linear(n, indices, s, b, k, flat[0]);
  if (b > 0) {  // each batch has its own part
    auto dims = n.sizes(place);
    std::fill(dims.begin() + static_cast<std::ptrdiff_t>(b), dims.end(), 1);
    const auto first = n.made<std::int64_t>(
        dtype::i64, dims, [&](std::size_t i) { return static_cast<std::int64_t>(i) * places; });
    place = add(place, constant(n.g, first));
  }
  return {n.reshaped(gather(n.reshaped(x, flat), place), result)};
}

values scatter_nd(node& n) {
  const auto x = n.in(0), indices = n.in(1), updates = n.in(2);
  const auto s = n.sizes(x), at = n.sizes(indices);
  const auto how = scattering_of(n);
  if (at.empty() || at.back() < 1 || static_cast<std::size_t>(at.back()) > s.size())
    n.refuse(fmt::format("indices {} do not fit {}", to_string(spec(indices)), to_string(spec(x))));
  const auto k = static_cast<std::size_t>(at.back());
  integers flat{1}, put(at.begin(), at.end() - 1);
  for (std::size_t i = 0; i < k; ++i) flat[0] *= s[i];
  for (std::size_t i = k; i < s.size(); ++i) flat.push_back(s[i]), put.push_back(s[i]);
  if (n.sizes(updates) != put)
    n.refuse(
        fmt::format("updates {} must be [{}]", to_string(spec(updates)), fmt::join(put, ", ")));
  const auto place = linear(n, indices, s, 0, k, flat[0]);
  const auto rows = n.reshaped(x, flat);
  if (how == scattering::add) return {n.reshaped(scatter_add(rows, place, updates), s)};
  const auto zeros = n.filled(spec(x).type, flat, 0);
  const auto placed = scatter_add(zeros, place, updates);
  const auto is_placed =
      greater(scatter_add(zeros, place, n.filled(spec(x).type, put, 1)), n.number_like(x, 0));
  if (how == scattering::put) return {n.reshaped(where(is_placed, placed, rows), s)};
  // All updates of a place, which are compared with the elements in front of it: [slice, places].
  std::int64_t updated = 1, slice_size = 1;
  for (std::size_t i = 0; i + 1 < at.size(); ++i) updated *= at[i];
  for (std::size_t i = k; i < s.size(); ++i) slice_size *= s[i];
  const auto columns = transpose(n.reshaped(rows, {flat[0], slice_size}), {1, 0});
  const auto together =
      combined(n, how, columns, n.expanded(n.reshaped(place, {1, updated}), {slice_size, updated}),
               transpose(n.reshaped(updates, {updated, slice_size}), {1, 0}));
  return {n.reshaped(where(is_placed, n.reshaped(transpose(together, {1, 0}), flat), rows), s)};
}

// Nothing adds truth values up, so they are numbers for the rule.
rule of_any(rule r) {
  return [r = widening(std::move(r))](node& n) {
    if (spec(n.in(0)).type != dtype::boolean) return r(n);
    n.replace(0, cast(n.in(0), dtype::i32));
    n.replace(2, cast(n.in(2), dtype::i32));
    auto out = r(n);
    out[0] = cast(out[0], dtype::boolean);
    return out;
  };
}

// Negative indices count from the end; others that are outside give no 1.
values one_hot_rule(node& n) {
  const auto indices = n.converted(n.in(0), dtype::i64), between = n.in(2);
  const auto classes = n.known_number(1);
  constexpr double most = 0x1p31;  // more than a result may have; NaN is outside, too
  if (!(classes >= 0 && classes <= most))
    n.refuse(fmt::format("operand 1, the depth, is {}, expected a number from 0 to 2^31", classes));
  const auto depth = static_cast<std::int64_t>(classes);
  const auto rank = spec(indices).shape.rank();
  if (spec(between).shape.elements() != 2)
    n.refuse(fmt::format("operand 2 must be two numbers, and is {}", to_string(spec(between))));
  const auto at = where(less(indices, n.number(0, dtype::i64)),
                        add(indices, n.number(static_cast<double>(depth), dtype::i64)), indices);
  const auto is_hot = equal(one_hot(at, depth, dtype::i32), n.number(1, dtype::i32));
  const auto pick = [&](std::int64_t i) {
    return n.reshaped(slice(between, {range{.begin = i, .end = i + 1}}), {});
  };
  return {n.moved(where(is_hot, pick(1), pick(0)), rank, n.axis(n.integer("axis", -1), rank + 1))};
}

// The first elements of each sequence along an axis, as many as it is long, from the last one on.
values reverse_sequence(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto batch = n.axis(n.integer("batch_axis", 1), s.size()),
             time = n.axis(n.integer("time_axis", 0), s.size());
  const auto lengths = n.converted(n.in(1), dtype::i64);
  if (batch == time || n.sizes(lengths) != integers{s[batch]})
    n.refuse(fmt::format("lengths {} do not fit axes {} and {} of {}", to_string(spec(n.in(1))),
                         batch, time, to_string(spec(x))));
  integers along_batch(s.size(), 1), along_time(s.size(), 1);
  along_batch[batch] = s[batch], along_time[time] = s[time];
  const auto at = constant(n.g, n.made<std::int64_t>(dtype::i64, along_time, [](std::size_t i) {
    return static_cast<std::int64_t>(i);
  }));
  const auto length = n.reshaped(lengths, along_batch);
  const auto from = where(less(at, length), sub(sub(length, at), n.number(1, dtype::i64)), at);
  const auto places = n.moved(n.expanded(from, s), time, s.size() - 1);
  return {n.moved(take_last(n.moved(x, time, s.size() - 1), places), s.size() - 1, time)};
}

}  // namespace

void add_indexing(rules& r) {
  r["ReverseSequence"] = reverse_sequence;
  r["Gather"] = gather_rule;
  r["GatherElements"] = gather_elements;
  r["GatherND"] = gather_nd;
  r["Scatter"] = of_any(scatter_elements);
  r["ScatterElements"] = of_any(scatter_elements);
  r["ScatterND"] = of_any(scatter_nd);
  r["OneHot"] = one_hot_rule;
}

}  // namespace troupe::onnx
