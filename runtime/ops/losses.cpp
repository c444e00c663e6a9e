// The loss of a classifier, and how often it is right.

#include "runtime/ops/op_rows.hpp"

namespace troupe {
namespace ops {
namespace {

// The first two operands of both ops: logits [n, c] f32, labels [n] i32.
result<void> check_rows(std::span<const tensor_spec> in, std::initializer_list<std::string_view> names) {
  const auto &logits = in[0], &labels = in[1];
  if (logits.type != dtype::f32 || logits.shape.rank() != 2)
    return misfit(in, names, "logits must be an f32 matrix (rank 2)");
  if (logits.shape.size(1) < 1) return misfit(in, names, "logits need at least one class");
  if (labels.type != dtype::i32 || labels.shape.rank() != 1)
    return misfit(in, names, "labels must be an i32 vector (rank 1)");
  if (labels.shape[0] != logits.shape[0]) return misfit(in, names, "logits and labels must have equally many rows");
  return {};
}

result<specs> cross_entropy_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (auto ok = check_rows(in, {"logits", "labels", "scale"}); !ok) return std::move(ok.error());
  if (in[2] != scalar(dtype::f32)) return misfit(in, {"logits", "labels", "scale"}, "scale must be an f32 scalar");
  return specs{scalar(dtype::f32), in[0]};
}

result<specs> count_correct_shapes(const attributes&, std::span<const tensor_spec> in, const tag*) {
  if (auto ok = check_rows(in, {"logits", "labels"}); !ok) return std::move(ok.error());
  return specs{scalar(dtype::i64)};
}

// Output 1 is d loss / d logits already. Labels are no numbers; the scale of a loss is not learned.
std::vector<value> cross_entropy_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  if (dy[1].is_valid()) {
    g.record(error(error_code::usage, fmt::format("softmax_cross_entropy '{}' is differentiable once only", n.name))
                 .at(n.source));
    return {value{}, value{}, value{}};
  }
  return {append("mul", {value{&g, n.index, 1}, dy[0]}, {}, n.source), value{}, value{}};
}

}  // namespace

void add_losses(op_table& t) {
  t.add("softmax_cross_entropy", {.inputs = 3, .shapes = cross_entropy_shapes, .gradient = cross_entropy_gradient});
  t.add("count_correct", {.inputs = 2, .shapes = count_correct_shapes, .gradient = {}});
}

}  // namespace ops

value count_correct(value logits, value labels, source_location where) {
  return ops::append("count_correct", {logits, labels}, {}, where);
}

value softmax_cross_entropy(value logits, value labels, value scale, source_location where) {
  return ops::append("softmax_cross_entropy", {logits, labels, scale}, {}, where);
}

}  // namespace troupe
