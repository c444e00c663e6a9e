#include "troupe/runtime/onnx/node.hpp"

#include <limits>

namespace troupe::onnx {
namespace {

using reducer = value (*)(value, std::vector<std::int64_t>, bool);
using mapper = value (*)(value);

value as_it_is(value x) { return x; }

// `before` and `behind` are done also where nothing is reduced (noop_with_empty_axes).
rule reduction(reducer f, mapper before = as_it_is, mapper behind = as_it_is) {
  return widening([=](node& n) -> values {
    const auto x = before(n.in(0));
    const auto axes = n.axes(n.has(1) ? n.known_integers(1) : n.list("axes"), spec(x).shape.rank());
    const bool keep = n.integer("keepdims", 1) != 0;
    if (n.integer("noop_with_empty_axes", 0) != 0 && axes.empty()) return {behind(x)};
    return {behind(f(x, axes, keep))};
  });
}

// Since opset 20 also of bool, where false is less than true.
rule extremum(reducer f, reducer of_bool) {
  return [f, of_bool](node& n) {
    return reduction(spec(n.in(0)).type == dtype::boolean ? of_bool : f)(n);
  };
}

// argmax and argmin give the first one; the last one is the first of the reversed axis.
rule arg_of(value (*f)(value, std::int64_t)) {
  return widening([f](node& n) -> values {
    auto x = n.in(0);
    const auto axis = n.axis(n.integer("axis", 0), spec(x).shape.rank());
    const auto at = static_cast<std::int64_t>(axis);
    const bool is_last = n.integer("select_last_index", 0) != 0;
    if (is_last) {
      std::vector<range> all(axis + 1);
      all[axis] = {.begin = -1, .end = std::numeric_limits<std::int64_t>::max(), .step = -1};
      x = slice(x, all);
    }
    auto y = cast(f(x, at), dtype::i64);
    if (is_last) y = sub(n.number(static_cast<double>(n.sizes(x)[axis] - 1), dtype::i64), y);
    return {n.integer("keepdims", 1) != 0 ? expand_dims(y, {at}) : y};
  });
}

values cumulative(node& n) {
  const auto x = n.in(0);
  const auto axis = n.axis(n.known_integer(1), spec(x).shape.rank());
  return {cumulative_sum(x, static_cast<std::int64_t>(axis), n.integer("exclusive", 0) != 0,
                         n.integer("reverse", 0) != 0)};
}

values top(node& n) {
  auto x = n.in(0);
  const auto rank = spec(x).shape.rank();
  const auto axis = n.axis(n.integer("axis", -1), rank);
  const auto k = n.opset >= 10 ? n.known_integer(1) : n.integer("k");
  const bool is_largest = n.integer("largest", 1) != 0;
  n.integer("sorted", 1);  // they always are
  x = n.moved(x, axis, rank - 1);
  // The smallest are the largest of those with the other sign; -1 - x has it for whole numbers,
  // also for the least one.
  const auto other = [&](value v) {
    return whole.has(spec(v).type) ? sub(n.number_like(v, -1), v) : neg(v);
  };
  const auto found = top_k(is_largest ? x : other(x), k);
  const auto best = is_largest ? found.values : other(found.values);
  return {n.moved(best, rank - 1, axis), n.moved(cast(found.indices, dtype::i64), rank - 1, axis)};
}

// Products of all elements up to each: of two, then of four, and so on.
values cumulative_product(node& n) {
  auto y = n.in(0);
  const auto rank = spec(y).shape.rank();
  const auto axis = n.axis(n.known_integer(1), rank);
  const auto size = n.sizes(y)[axis];
  const bool is_exclusive = n.integer("exclusive", 0) != 0, is_back = n.integer("reverse", 0) != 0;
  const auto shifted = [&](value v, std::int64_t by) {
    std::vector<range> part(rank);
    part[axis].end = std::max<std::int64_t>(size - by, 0);
    integers before(rank);
    before[axis] = std::min(by, size);
    return pad(slice(v, part), before, integers(rank), 1);
  };
  const auto turned = [&](value v) {
    std::vector<range> part(rank);
    part[axis] = {.begin = -1, .end = std::numeric_limits<std::int64_t>::min(), .step = -1};
    return is_back ? slice(v, part) : v;
  };
  y = turned(y);
  if (is_exclusive) y = shifted(y, 1);
  for (std::int64_t by = 1; by < size; by *= 2) y = mul(y, shifted(y, by));
  return {turned(y)};
}

// 1 at the first largest of an axis.
values hardmax(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto axis = n.axis(n.integer("axis", n.opset < 13 ? 1 : -1), s.size());
  if (n.opset >= 13)
    return {n.moved(one_hot(argmax(x, static_cast<std::int64_t>(axis)), s[axis], spec(x).type),
                    s.size() - 1, axis)};
  std::int64_t rows = 1, columns = 1;
  for (std::size_t i = 0; i < s.size(); ++i) (i < axis ? rows : columns) *= s[i];
  return {n.reshaped(one_hot(argmax(n.reshaped(x, {rows, columns}), 1), columns, spec(x).type), s)};
}

}  // namespace

void add_reductions(rules& r) {
  const reducer sum = [](value x, std::vector<std::int64_t> a, bool k) {
    return reduce_sum(x, a, k);
  };
  const mapper squared = [](value x) { return square(x); };
  r["ReduceSum"] = reduction(sum);
  r["ReduceMean"] =
      reduction([](value x, std::vector<std::int64_t> a, bool k) { return reduce_mean(x, a, k); });
  r["ReduceProd"] =
      reduction([](value x, std::vector<std::int64_t> a, bool k) { return reduce_prod(x, a, k); });
  r["ReduceMax"] =
      extremum([](value x, std::vector<std::int64_t> a, bool k) { return reduce_max(x, a, k); },
               [](value x, std::vector<std::int64_t> a, bool k) { return reduce_any(x, a, k); });
  r["ReduceMin"] =
      extremum([](value x, std::vector<std::int64_t> a, bool k) { return reduce_min(x, a, k); },
               [](value x, std::vector<std::int64_t> a, bool k) { return reduce_all(x, a, k); });
  r["ReduceL1"] = reduction(sum, [](value x) { return abs(x); });
  r["ReduceL2"] = reduction(sum, squared, [](value x) { return sqrt(x); });
  r["ReduceSumSquare"] = reduction(sum, squared);
  r["ReduceLogSum"] = reduction(sum, as_it_is, [](value x) { return log(x); });
  r["ReduceLogSumExp"] = reduction(
      [](value x, std::vector<std::int64_t> a, bool k) { return reduce_log_sum_exp(x, a, k); });
  r["ArgMax"] = arg_of([](value x, std::int64_t a) { return argmax(x, a); });
  r["ArgMin"] = arg_of([](value x, std::int64_t a) { return argmin(x, a); });
  r["CumSum"] = cumulative;
  r["CumProd"] = widening(cumulative_product);
  r["TopK"] = widening(top);
  r["Hardmax"] = widening(hardmax);
}

}  // namespace troupe::onnx
