// The loss of a classifier, and how often it is right.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>

namespace troupe {
namespace ops {
namespace {

// The first two operands of both ops: logits [n, c] f32, labels [n] i32.
result<void> check_rows(std::span<const tensor_spec> in,
                        std::initializer_list<std::string_view> names) {
  const auto &logits = in[0], &labels = in[1];
  if (!floating.has(logits.type) || logits.shape.rank() != 2)
    return misfit(in, names, "logits must be an f32 or f64 matrix (rank 2)");
  if (logits.shape.size(1) < 1) return misfit(in, names, "logits need at least one class");
  if (labels.type != dtype::i32 || labels.shape.rank() != 1)
    return misfit(in, names, "labels must be an i32 vector (rank 1)");
  if (labels.shape[0] != logits.shape[0])
    return misfit(in, names, "logits and labels must have equally many rows");
  return {};
}

result<specs> cross_entropy_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (auto ok = check_rows(in, {"logits", "labels", "scale"}); !ok) return std::move(ok.error());
  if (in[2] != scalar(in[0].type))
    return misfit(in, {"logits", "labels", "scale"}, "scale must be a scalar of the logits' type");
  return specs{scalar(in[0].type), in[0]};
}

result<specs> count_correct_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (auto ok = check_rows(in, {"logits", "labels"}); !ok) return std::move(ok.error());
  return specs{scalar(dtype::i64)};
}

// Output 1 is d loss / d logits already: scale (softmax - one_hot). Labels are no numbers. The loss
// is its scale times what it would be with 1, and so is output 1.
std::vector<value> cross_entropy_gradient(graph& g, const graph_node& n,
                                          std::span<const value> dy) {
  const auto& where = n.source;
  const auto &logits = n.inputs[0], &scale = n.inputs[2];
  value of_logits, of_scale;
  const auto plus = [&](value& sum, value more) {
    sum = sum.is_valid() ? add(sum, more, where) : more;
  };
  if (dy[0].is_valid()) {
    plus(of_logits, mul(value{&g, n.index, 1}, dy[0], where));
    plus(of_scale, mul(dy[0], div(value{&g, n.index, 0}, scale, where), where));
  }
  if (dy[1].is_valid()) {
    plus(of_logits, append("softmax_grad", {mul(dy[1], scale, where), softmax(logits, -1, where)},
                           attributes{{"axis", std::int64_t{-1}}}, where));
    plus(of_scale,
         reduce_sum(mul(dy[1], div(value{&g, n.index, 1}, scale, where), where), {}, false, where));
  }
  return {of_logits, value{}, of_scale};
}

}  // namespace

void add_losses(op_table& t) {
  t.add("softmax_cross_entropy", {.inputs = 3,
                                  .shapes = cross_entropy_shapes,
                                  .gradient = cross_entropy_gradient,
                                  .types = floating});
  t.add("count_correct",
        {.inputs = 2, .shapes = count_correct_shapes, .gradient = no_gradient, .types = floating});
}

}  // namespace ops

value count_correct(value logits, value labels, source_location where) {
  return ops::append("count_correct", {logits, labels}, {}, where);
}

value cross_entropy(value logits, value labels, source_location where) {
  if (!logits.is_valid() || !labels.is_valid()) return {};
  const auto& s = labels.spec().shape;
  if (!whole.has(labels.spec().type) || logits.spec().shape.rank() != s.rank() + 1) {
    logits.owner->record(
        ops::misfit(std::array{logits.spec(), labels.spec()}, {"logits", "labels"},
                    "labels must be i32 or i64 of the logits' shape without the last dimension")
            .while_doing("cross_entropy")
            .at(where));
    return {};
  }
  const auto of_label =
      take_last(log_softmax(logits, -1, where), expand_dims(labels, {-1}, where), where);
  return neg(reduce_sum(of_label, {-1}, false, where), where);  // over one
}

value cross_entropy(value logits, value labels, std::int64_t ignored, source_location where) {
  if (!logits.is_valid() || !labels.is_valid() || !whole.has(labels.spec().type))
    return cross_entropy(logits, labels, where);  // which says why
  const auto counts =
      not_equal(labels, ops::number(labels, static_cast<double>(ignored), where), where);
  const auto of_all = cross_entropy(
      logits, troupe::where(counts, labels, ops::number(labels, 0, where), where), where);
  return of_all.is_valid() ? troupe::where(counts, of_all, ops::number(of_all, 0, where), where)
                           : value{};
}

value masked_mean(value x, value mask, source_location where) {
  if (!x.is_valid() || !mask.is_valid()) return {};
  const auto zero = ops::number(x, 0, where), one = ops::number(x, 1, where);
  const auto sum = reduce_sum(troupe::where(mask, x, zero, where), {}, false, where);
  const auto count =
      reduce_sum(troupe::where(mask, broadcast_like(one, x, where), zero, where), {}, false, where);
  return div(sum, maximum(count, one, where), where);
}

value sigmoid_cross_entropy(value logits, value targets, source_location where) {
  return sub(softplus(logits, where), mul(logits, targets, where), where);
}

value softmax_cross_entropy(value logits, value labels, value scale, source_location where) {
  return ops::append("softmax_cross_entropy", {logits, labels, scale}, {}, where);
}

}  // namespace troupe
