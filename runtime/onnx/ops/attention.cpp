// Attention and rotary embeddings (opset 23), as their definitions by other ops say.

#include "troupe/runtime/onnx/node.hpp"

#include <cmath>
#include <limits>

namespace troupe::onnx {
namespace {

// q, k, v as [n, heads, t, e].
struct attention_heads {
  value q, k, v;
  bool are_flat = false;  // they were [n, t, heads * e], and so is the result
};

value split_heads(const node& n, value x, std::string_view attribute) {
  const auto s = n.sizes(x);
  if (!n.has(attribute))
    n.refuse(
        fmt::format("attribute '{}' is missing, which {} needs", attribute, to_string(spec(x))));
  const auto count = n.integer(attribute);
  if (count < 1 || s[2] % count != 0)
    n.refuse(fmt::format("{} heads do not fit {}", count, to_string(spec(x))));
  return transpose(n.reshaped(x, {s[0], s[1], count, s[2] / count}), {0, 2, 1, 3});
}

value join_heads(const node& n, value x) {
  const auto s = n.sizes(x);
  return n.reshaped(transpose(x, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
}

attention_heads heads_of(const node& n) {
  attention_heads h{n.in(0), n.in(1), n.in(2)};
  h.are_flat = spec(h.q).shape.rank() == 3;
  for (const auto& x : {h.q, h.k, h.v})
    if (spec(x).shape.rank() != (h.are_flat ? 3U : 4U))
      n.refuse(fmt::format("queries {}, keys {} and values {} must all have 3 or 4 dimensions",
                           to_string(spec(h.q)), to_string(spec(h.k)), to_string(spec(h.v))));
  if (h.are_flat) {
    h.q = split_heads(n, h.q, "q_num_heads");
    h.k = split_heads(n, h.k, "kv_num_heads");
    h.v = split_heads(n, h.v, "kv_num_heads");
  } else {
    n.ignore({"q_num_heads", "kv_num_heads"});
  }
  // What was seen before stands in front.
  if (n.has(4)) h.k = concat({n.in(4), h.k}, 2);
  if (n.has(5)) h.v = concat({n.in(5), h.v}, 2);
  return h;
}

// Each head of keys or values is that of as many heads of queries, one after the other.
value repeated_heads(const node& n, value x, std::int64_t count) {
  const auto s = n.sizes(x);
  if (s[1] == count) return x;
  if (s[1] < 1 || count % s[1] != 0)
    n.refuse(
        fmt::format("{} heads of queries cannot share the heads of {}", count, to_string(spec(x))));
  const auto times = count / s[1];
  return n.reshaped(tile(expand_dims(x, {2}), {1, 1, times, 1, 1}), {s[0], count, s[2], s[3]});
}

value counted_along(const node& n, std::int64_t count, std::size_t axis) {
  integers dims(4, 1);
  dims[axis] = count;
  return constant(n.g, n.made<std::int64_t>(dtype::i64, dims, [](std::size_t i) {
    return static_cast<std::int64_t>(i);
  }));
}

// What is added to scores [n, h, t, s]; invalid: nothing. `before`: keys of earlier steps.
value score_bias(const node& n, std::int64_t queries, std::int64_t keys, std::int64_t before,
                 dtype type) {
  const auto none_seen = -std::numeric_limits<double>::infinity();
  value bias;
  const auto also = [&](value more) { bias = bias.is_valid() ? add(bias, more) : more; };
  const auto unless_seen = [&](value is_seen) {
    return where(is_seen, n.number(0, type), n.number(none_seen, type));
  };
  if (n.has(3)) {
    auto mask = n.in(3);
    mask = spec(mask).type == dtype::boolean ? unless_seen(mask) : n.converted(mask, type);
    // A mask may be shorter than the keys: what it does not reach is not seen.
    const auto m = n.sizes(mask);
    if (!m.empty() && m.back() < keys) {
      integers none(m.size()), behind(m.size());
      behind.back() = keys - m.back();
      mask = pad(mask, none, behind, none_seen);
    }
    also(mask);
  }
  value meant;  // keys of each row of the batch
  if (n.has(6)) {
    meant = expand_dims(n.converted(n.in(6), dtype::i64), {1, 2, 3});
    also(unless_seen(less(counted_along(n, keys, 3), meant)));
  }
  const bool is_causal = n.integer("is_causal", 0) != 0;
  const auto left = n.integer("left_window_size", -1), right = n.integer("right_window_size", -1);
  if (!is_causal && left < 0 && right < 0) return bias;
  // The last query is at the last key.
  const auto whole_number = [&](std::int64_t k) {
    return n.number(static_cast<double>(k), dtype::i64);
  };
  const auto first = meant.is_valid() ? sub(meant, whole_number(queries)) : whole_number(before);
  const auto at = add(counted_along(n, queries, 2), first), key = counted_along(n, keys, 3);
  if (is_causal) also(unless_seen(less_equal(key, at)));
  if (left >= 0) also(unless_seen(greater_equal(key, sub(at, whole_number(left)))));
  if (right >= 0) also(unless_seen(less_equal(key, add(at, whole_number(right)))));
  return bias;
}

values attention_rule(node& n) {
  auto h = heads_of(n);
  const auto present_k = h.k, present_v = h.v;
  const auto q = n.sizes(h.q);
  h.k = repeated_heads(n, h.k, q[1]);
  h.v = repeated_heads(n, h.v, q[1]);
  const auto type = spec(h.q).type;
  n.ignore({"softmax_precision"});  // f32 at the least, as all is here
  // Both factors take the root of the scale, as the standard does.
  const auto scale = n.real("scale", 1 / std::sqrt(static_cast<double>(q[3])));
  const auto root = n.number(std::sqrt(scale), type);
  std::vector<value> stages{matmul(mul(h.q, root), mul(h.k, root), false, true)};
  const auto cap = n.real("softcap", 0);
  const auto limit = n.number(cap, type);
  stages.push_back(cap != 0 ? mul(tanh(div(stages[0], limit)), limit) : stages[0]);
  const auto bias = score_bias(n, q[2], n.sizes(h.k)[2], n.has(4) ? n.sizes(n.in(4))[2] : 0, type);
  stages.push_back(bias.is_valid() ? add(stages[1], bias) : stages[1]);
  // A query that sees nothing gives zeros.
  const auto& scores = stages[2];
  const auto sees_none = equal(reduce_max(scores, {3}, true),
                               n.number(-std::numeric_limits<double>::infinity(), type));
  const auto weights = softmax(where(sees_none, n.number(0, type), scores), -1);
  stages.push_back(where(sees_none, n.number(0, type), weights));
  const auto mode = n.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3)
    n.refuse(fmt::format("attribute 'qk_matmul_output_mode' is {}, expected 0 to 3", mode));
  auto y = matmul(stages[3], h.v);
  if (h.are_flat) y = join_heads(n, y);
  return {y, present_k, present_v, stages[static_cast<std::size_t>(mode)]};
}

// Pairs of features are turned by the angle whose sine and cosine are given: of the first and the
// second half, or (interleaved) of neighbours.
values rotary_rule(node& n) {
  auto x = n.in(0);
  const bool is_flat = spec(x).shape.rank() == 3;
  if (is_flat)
    x = split_heads(n, x, "num_heads");
  else
    n.ignore({"num_heads"});
  const auto s = n.sizes(x);
  if (s.size() != 4)
    n.refuse(fmt::format("operand 0 {} must have 3 or 4 dimensions", to_string(spec(x))));
  const auto part = n.integer("rotary_embedding_dim", 0);
  const auto turned = part > 0 ? part : s[3];
  if (turned % 2 != 0 || turned > s[3])
    n.refuse(fmt::format("attribute 'rotary_embedding_dim' is {}, and {} has {} features", part,
                         to_string(spec(n.in(0))), s[3]));
  auto cosines = n.in(1), sines = n.in(2);
  if (n.has(3)) {  // rows of the tables, by position
    cosines = gather(cosines, n.in(3));
    sines = gather(sines, n.in(3));
  }
  for (const auto& t : {cosines, sines})
    if (n.sizes(t) != integers{s[0], s[2], turned / 2})
      n.refuse(fmt::format("angles {} do not fit {}", to_string(spec(t)), to_string(spec(x))));
  cosines = expand_dims(cosines, {1});
  sines = expand_dims(sines, {1});
  const bool is_interleaved = n.integer("interleaved", 0) != 0;
  const auto part_of = [&](std::int64_t begin, std::int64_t end, std::int64_t step) {
    return slice(x, {range{}, range{}, range{}, range{.begin = begin, .end = end, .step = step}});
  };
  const auto a = is_interleaved ? part_of(0, turned, 2) : part_of(0, turned / 2, 1),
             b = is_interleaved ? part_of(1, turned, 2) : part_of(turned / 2, turned, 1);
  const auto c = sub(mul(cosines, a), mul(sines, b)), d = add(mul(sines, a), mul(cosines, b));
  auto y =
      is_interleaved ? n.reshaped(stack({c, d}, 4), {s[0], s[1], s[2], turned}) : concat({c, d}, 3);
  if (turned < s[3]) y = concat({y, part_of(turned, s[3], 1)}, 3);
  return {is_flat ? join_heads(n, y) : y};
}

}  // namespace

void add_attention(rules& r) {
  r["Attention"] = widening(attention_rule);
  r["RotaryEmbedding"] = widening(rotary_rule);
}

}  // namespace troupe::onnx
