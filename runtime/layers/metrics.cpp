#include "troupe/runtime/layers/metrics.hpp"

#include "troupe/runtime/graph/build.hpp"

#include <utility>

namespace troupe {

value accuracy(value logits, value labels, source_location where) {
  if (!logits.is_valid()) return {};
  const auto right = cast(count_correct(logits, labels, where), dtype::f32, where);
  if (!right.is_valid()) return {};
  return div(right, element_count(cast(labels, dtype::f32, where), {}, where), where);
}

value confusion(value logits, value labels, source_location where) {
  if (!logits.is_valid() || !labels.is_valid()) return {};
  const auto& sizes = logits.spec().shape;
  const auto classes = sizes.rank() == 0 ? 0 : sizes.size(sizes.rank() - 1);
  const auto is = one_hot(labels, classes, dtype::f32, where);
  const auto taken = one_hot(argmax(logits, -1, where), classes, dtype::f32, where);
  if (!is.is_valid() || !taken.is_valid()) return {};
  return matmul(transpose(is, {}, where), taken, false, false, where);
}

value perplexity(value logits, value labels, source_location where) {
  const auto each = cross_entropy(logits, labels, where);
  return each.is_valid() ? exp(reduce_mean(each, {}, false, where), where) : value{};
}

value area_under_curve(value scores, value labels, source_location where) {
  if (!scores.is_valid() || !labels.is_valid()) return {};
  auto& g = *scores.owner;
  const auto of = [&](value v, std::int64_t axis) { return expand_dims(v, {axis}, where); };
  const auto half = constant(g, 0.5F, "half", where), one = constant(g, 1.0F, "one", where);
  const auto a = of(scores, 1), b = of(scores, 0);
  const auto wins = add(cast(greater(a, b, where), dtype::f32, where),
                        mul(cast(equal(a, b, where), dtype::f32, where), half, where), where);
  const auto pairs = mul(of(labels, 1), of(sub(one, labels, where), 0), where);
  if (!wins.is_valid() || !pairs.is_valid()) return {};
  return div(reduce_sum(mul(wins, pairs, where), {}, false, where),
             reduce_sum(pairs, {}, false, where), where);
}

}  // namespace troupe
