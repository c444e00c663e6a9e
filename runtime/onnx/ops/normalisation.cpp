#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>

namespace troupe::onnx {
namespace {

// Before opset 13, along all dimensions from `axis` on as one.
rule softmax_of(value (*f)(value, std::int64_t)) {
  return widening([f](node& n) -> values {
    const auto x = n.in(0);
    const auto rank = spec(x).shape.rank();
    const auto axis = n.axis(n.integer("axis", n.opset < 13 ? 1 : -1), rank);
    if (n.opset >= 13 || axis + 1 == rank) return {f(x, static_cast<std::int64_t>(axis))};
    const auto s = n.sizes(x);
    std::int64_t rows = 1, columns = 1;
    for (std::size_t i = 0; i < s.size(); ++i) (i < axis ? rows : columns) *= s[i];
    return {n.reshaped(f(n.reshaped(x, {rows, columns}), 1), s)};
  });
}

// A vector by channel, for [n, c, ..].
value by_channel(const node& n, value v, std::size_t rank) {
  if (spec(v).shape.rank() != 1)
    n.refuse(
        fmt::format("{} must have one dimension: a number for each channel", to_string(spec(v))));
  integers behind;
  for (std::size_t i = 2; i < rank; ++i) behind.push_back(static_cast<std::int64_t>(i) - 1);
  return behind.empty() ? v : expand_dims(v, behind);
}

// In training: with the mean and the variance of the batch, and (outputs 1, 2) what becomes of the
// averages.
values batch_normalization(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  const auto epsilon = n.real("epsilon", static_cast<double>(1e-5F)),
             momentum = n.real("momentum", static_cast<double>(0.9F));
  if (n.opset < 9 && n.integer("spatial", 1) != 1)
    n.refuse("attribute 'spatial' is 0, which is not supported");
  const bool is_training = n.opset >= 14
                               ? n.integer("training_mode", 0) != 0
                               : n.opset < 7 && n.integer("is_test", 0) == 0 && n.wants(1);
  if (!is_training) {
    for (std::size_t i = 1; i < n.outputs(); ++i)
      if (n.wants(i))
        n.refuse(fmt::format("output {} is made only in training, which is not supported", i));
    return {batch_norm(x, n.in(1), n.in(2), n.in(3), n.in(4), epsilon)};
  }
  if (n.opset < 14) n.refuse("training before opset 14 is not supported");
  const auto now = batch_norm(x, n.in(1), n.in(2), epsilon);
  const auto mixed = [&](value old, value fresh) {
    return add(mul(old, n.number_like(old, momentum)),
               mul(n.converted(fresh, spec(old).type), n.number_like(old, 1 - momentum)));
  };
  return {now.y, mixed(n.in(3), now.mean), mixed(n.in(4), now.variance)};
}

values instance_normalization(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  const auto rank = spec(x).shape.rank();
  if (rank < 3) n.refuse(fmt::format("operand 0 {} is no image", to_string(spec(x))));
  std::vector<std::int64_t> axes;
  for (std::size_t i = 2; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  const auto y = standardize(x, axes, n.real("epsilon", static_cast<double>(1e-5F))).y;
  return {add(mul(y, by_channel(n, n.in(1), rank)), by_channel(n, n.in(2), rank))};
}

// The first stage is f32 for halves, which widening() sees to; f64 stays what it is.
void check_stash(const node& n) {
  if (const auto type = n.integer("stash_type", 1); type != 1)
    n.refuse(fmt::format("attribute 'stash_type' is {}, expected 1 (float32)", type));
}

integers axes_from(const node& n, std::int64_t first, std::size_t rank) {
  integers axes;
  for (auto i = n.axis(first, rank); i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  return axes;
}

// Mean and scale are f32, whatever x is.
values layer_normalization(node& n) {
  check_stash(n);
  standardized s;
  const auto rule = widening([&s](node& m) -> values {
    const auto x = m.in(0);
    s = standardize(x, axes_from(m, m.integer("axis", -1), spec(x).shape.rank()),
                    m.real("epsilon", static_cast<double>(1e-5F)));
    auto y = mul(s.y, m.in(1));
    return {m.has(2) ? add(y, m.in(2)) : y};
  });
  auto out = rule(n);
  out.push_back(n.converted(s.mean, dtype::f32));
  out.push_back(n.converted(s.scale, dtype::f32));
  return out;
}

values rms_normalization(node& n) {
  check_stash(n);
  const auto x = n.in(0);
  const auto axes = axes_from(n, n.integer("axis", -1), spec(x).shape.rank());
  const auto mean = reduce_mean(square(x), axes, true);
  const auto scale =
      rsqrt(add(mean, n.number_like(mean, n.real("epsilon", static_cast<double>(1e-5F)))));
  return {mul(mul(x, scale), n.in(1))};
}

// Channels in groups, each of which is standardized. Before opset 21 scale and shift have a number
// for each group, since then for each channel.
values group_normalization(node& n) {
  check_stash(n);
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto groups = n.integer("num_groups");
  if (s.size() < 2 || groups < 1 || s[1] % groups != 0)
    n.refuse(fmt::format("{} groups do not fit {}", groups, to_string(spec(x))));
  const auto one_for_each = n.opset < 21 ? groups : s[1];
  for (std::size_t i = 1; i < 3; ++i)
    if (n.sizes(n.in(i)) != integers{one_for_each})
      n.refuse(fmt::format("operand {} is {}, expected {} numbers", i, to_string(spec(n.in(i))),
                           one_for_each));
  std::int64_t rest = s[1] / groups;
  for (std::size_t i = 2; i < s.size(); ++i) rest *= s[i];
  auto y = standardize(n.reshaped(x, {s[0], groups, rest}), {2},
                       n.real("epsilon", static_cast<double>(1e-5F)))
               .y;
  const auto scaled = [&](value v) {
    const auto rank = spec(v).shape.rank();
    return add(mul(v, by_channel(n, n.in(1), rank)), by_channel(n, n.in(2), rank));
  };
  if (n.opset < 21) return {n.reshaped(scaled(y), s)};
  return {scaled(n.reshaped(y, s))};
}

// x / (sum |x|^p)^(1/p); where that is 0, 0.
values lp_normalization(node& n) {
  const auto x = n.in(0);
  const auto p = n.integer("p", 2);
  if (p != 1 && p != 2) n.refuse(fmt::format("attribute 'p' is {}, expected 1 or 2", p));
  const auto axis = static_cast<std::int64_t>(n.axis(n.integer("axis", -1), spec(x).shape.rank()));
  const auto length =
      p == 1 ? reduce_sum(abs(x), {axis}, true) : sqrt(reduce_sum(square(x), {axis}, true));
  const auto zero = n.number_like(x, 0);
  return {where(equal(length, zero), zero, div(x, length))};
}

values mean_variance_normalization(node& n) {
  const auto x = n.in(0);
  // The standard adds 1e-9 to the deviation, so that equal elements become zeros.
  return {standardize(x, n.axes(n.list("axes", {0, 2, 3}), spec(x).shape.rank()), 1e-18).y};
}

// Over `size` neighbouring channels: x / (bias + alpha / size * sum of squares)^beta.
values local_response(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto size = n.integer("size");
  if (s.size() < 2 || size < 1 || size > 1024)
    n.refuse(fmt::format("attribute 'size' is {} for {}", size, to_string(spec(x))));
  integers before(s.size()), after(s.size());
  before[1] = (size - 1) / 2, after[1] = size - 1 - before[1];
  const auto padded = pad(square(x), before, after);
  value sum;
  for (std::int64_t k = 0; k < size; ++k) {
    const auto part = slice(padded, {range{}, range{.begin = k, .end = k + s[1]}});
    sum = sum.is_valid() ? add(sum, part) : part;
  }
  const auto factor =
      n.number_like(x, n.real("alpha", static_cast<double>(1e-4F)) / static_cast<double>(size));
  return {div(x, pow(add(mul(sum, factor), n.number_like(x, n.real("bias", 1))),
                     n.number_like(x, n.real("beta", 0.75))))};
}

// Without training nothing is dropped.
values dropout_rule(node& n) {
  n.ignore({"is_test", "consumed_inputs", "seed"});
  const auto x = n.in(0);
  if (n.opset < 12) n.real("ratio", 0.5);
  if (n.opset < 7 && n.integer("is_test", 0) == 0 && n.wants(1))
    n.refuse("training is not supported");
  if (n.has(2) && n.known_number(2) != 0) {
    const bool is_nothing = n.has(1) && n.known_number(1) == 0;
    if (!is_nothing)
      n.refuse(
          "operand 'training_mode' is true, and numbers drawn as ONNX draws them are not supported");
  }
  values out{x};
  if (n.wants(1)) {
    const auto kept = equal(x, x);  // of x's shape
    const auto yes = n.number(1, dtype::boolean);
    out.push_back(logical_or(kept, yes));
  }
  return out;
}

}  // namespace

void add_normalisation(rules& r) {
  r["Softmax"] = softmax_of([](value x, std::int64_t a) { return softmax(x, a); });
  r["LogSoftmax"] = softmax_of([](value x, std::int64_t a) { return log_softmax(x, a); });
  r["BatchNormalization"] = widening(batch_normalization);
  r["InstanceNormalization"] = widening(instance_normalization);
  r["LayerNormalization"] = layer_normalization;
  r["RMSNormalization"] = widening(rms_normalization);
  r["GroupNormalization"] = widening(group_normalization);
  r["LpNormalization"] = widening(lp_normalization);
  r["MeanVarianceNormalization"] = widening(mean_variance_normalization);
  r["LRN"] = widening(local_response);
  r["Dropout"] = widening(dropout_rule);
}

// --- losses ---

namespace {

// What of each target counts, and that: targets that are ignored read class 0 with weight 0.
values loss_of(node& n, value log_probabilities, value targets, value weights) {
  const auto s = n.sizes(log_probabilities);
  if (s.size() < 2)
    n.refuse(fmt::format("operand 0 {} has no classes", to_string(spec(log_probabilities))));
  const auto at = n.converted(targets, dtype::i64);
  const auto type = spec(log_probabilities).type;
  value safe = at, is_ignored;
  if (n.has("ignore_index")) {
    const auto ignored = n.number(static_cast<double>(n.integer("ignore_index", 0)), dtype::i64);
    is_ignored = equal(at, ignored);
    safe = where(is_ignored, n.number(0, dtype::i64), at);
  }
  // Classes last: [n, d.., c], of which one is taken for each target.
  const auto taken = take_last(n.moved(log_probabilities, 1, s.size() - 1),
                               expand_dims(safe, {static_cast<std::int64_t>(s.size()) - 1}));
  auto loss = neg(reduce_sum(taken, {-1}, false));
  value weight = weights.is_valid() ? gather(n.converted(weights, type), safe)
                                    : n.expanded(n.number(1, type), n.sizes(loss));
  if (is_ignored.is_valid()) weight = where(is_ignored, n.number(0, type), weight);
  loss = mul(loss, weight);
  const auto reduction = n.text("reduction", "mean");
  if (reduction == "none") return {loss};
  if (reduction == "sum") return {reduce_sum(loss)};
  if (reduction != "mean") n.refuse(fmt::format("attribute 'reduction' is '{}'", reduction));
  return {div(reduce_sum(loss), reduce_sum(weight))};
}

}  // namespace

void add_losses(rules& r) {
  r["NegativeLogLikelihoodLoss"] = widening(
      [](node& n) -> values { return loss_of(n, n.in(0), n.in(1), n.has(2) ? n.in(2) : value{}); });
  r["SoftmaxCrossEntropyLoss"] = widening([](node& n) -> values {
    const auto x = n.in(0);
    const auto logs = log_softmax(x, 1);
    auto out = loss_of(n, logs, n.in(1), n.has(2) ? n.in(2) : value{});
    out.push_back(logs);
    return out;
  });
}

}  // namespace troupe::onnx
