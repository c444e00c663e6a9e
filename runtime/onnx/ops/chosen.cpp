// Ops whose result has as many elements as values say (NonZero, Compress, Unique). No plan has room
// for that, so the values must be known while the graph is built; then the result is, too.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace troupe::onnx {
namespace {

tensor known_or_refused(const node& n, std::size_t i) {
  auto t = n.known_if_any(n.in(i));
  if (!t)
    n.refuse(fmt::format(
        "how many elements its result has follows from the values of operand {}, which "
        "only a step computes, and a graph's shapes are known before: compute it outside "
        "of the model, or give these values as an input",
        i));
  return std::move(*t);
}

std::vector<bool> truths_of(const node& n, const tensor& t) {
  std::vector<bool> all(static_cast<std::size_t>(t.elements()));
  const auto each = size_of(t.type());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto* at = t.bytes().data() + i * each;
    switch (t.type()) {
      case dtype::f32: all[i] = t.data<float>()[i] != 0; break;
      case dtype::f64: all[i] = t.data<double>()[i] != 0; break;
      case dtype::f16:
      case dtype::bf16: {  // but for the sign, no bit
        std::uint16_t bits = 0;
        std::memcpy(&bits, at, sizeof bits);
        all[i] = (bits & 0x7fffU) != 0;
        break;
      }
      default: all[i] = std::any_of(at, at + each, [](std::byte b) { return b != std::byte{0}; });
    }
  }
  if (all.size() > (std::size_t{1} << 26U)) n.refuse("operand 0 has too many elements");
  return all;
}

// Indices of what is not 0: [rank, count].
values non_zero(node& n) {
  const auto t = known_or_refused(n, 0);
  const auto is_there = truths_of(n, t);
  const auto s = t.shape().sizes();
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < is_there.size(); ++i)
    if (is_there[i]) found.push_back(static_cast<std::int64_t>(i));
  const auto rank = static_cast<std::int64_t>(s.size()),
             count = static_cast<std::int64_t>(found.size());
  return {constant(n.g, n.made<std::int64_t>(dtype::i64, {rank, count}, [&](std::size_t i) {
    std::int64_t behind = 1;
    const auto axis = i / found.size();
    for (auto k = axis + 1; k < s.size(); ++k) behind *= s[k];
    return found[i % found.size()] / behind % s[axis];
  }))};
}

// Elements of x, whatever they are, where the condition holds, along an axis or of all in a row.
values compress(node& n) {
  const auto is_taken = truths_of(n, known_or_refused(n, 1));
  const bool has_axis = n.has("axis");
  auto x = n.in(0);
  const auto axis = has_axis ? n.axis(n.integer("axis"), spec(x).shape.rank()) : std::size_t{0};
  if (!has_axis) x = n.reshaped(x, {spec(x).shape.elements()});
  const auto size = spec(x).shape.size(axis);
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < is_taken.size() && static_cast<std::int64_t>(i) < size; ++i)
    if (is_taken[i]) found.push_back(static_cast<std::int64_t>(i));
  const auto at = n.made<std::int64_t>(dtype::i64, {static_cast<std::int64_t>(found.size())},
                                       [&](std::size_t i) { return found[i]; });
  return {gather(x, constant(n.g, at), static_cast<std::int64_t>(axis))};
}

}  // namespace

void add_chosen(rules& r) {
  r["NonZero"] = non_zero;
  r["Compress"] = compress;
  r["Unique"] = [](node& n) -> values {
    n.refuse(
        "how many elements its result has follows from the values of operand 0, and a graph's "
        "shapes are known before: compute it outside of the model");
  };
}

}  // namespace troupe::onnx
