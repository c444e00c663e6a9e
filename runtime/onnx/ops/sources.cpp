// Ops that make a tensor of nothing, or of shapes.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace troupe::onnx {
namespace {

template <class T>
tensor scalar_of(dtype type, T x) {
  return tensor::of<T>(type, shape{}, std::span<const T>(&x, 1));
}

values constant_rule(node& n) {
  std::int64_t narrow = 0;
  if (const auto t = n.tensor_of("value", &narrow)) return {n.marked(constant(n.g, *t), narrow)};
  if (n.has("value_float"))
    return {constant(n.g, scalar_of(dtype::f32, static_cast<float>(n.real("value_float", 0))))};
  if (n.has("value_int")) return {constant(n.g, scalar_of(dtype::i64, n.integer("value_int")))};
  if (n.has("value_floats")) {
    const auto all = n.reals("value_floats");
    return {constant(n.g, n.made<float>(dtype::f32, {static_cast<std::int64_t>(all.size())},
                                        [&](std::size_t i) { return all[i]; }))};
  }
  if (n.has("value_ints")) {
    const auto all = n.list("value_ints");
    return {constant(n.g, n.made<std::int64_t>(dtype::i64, {static_cast<std::int64_t>(all.size())},
                                               [&](std::size_t i) { return all[i]; }))};
  }
  n.refuse("its value is of a kind that is not supported");
}

values shape_rule_of(node& n) {
  const auto s = n.sizes(n.in(0));
  const auto rank = static_cast<std::int64_t>(s.size());
  const auto moved = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? std::max(at, -rank) + rank : at, 0, rank);
  };
  const auto begin = moved(n.integer("start", 0)),
             end = std::max(begin, moved(n.integer("end", rank)));
  return {constant(n.g, n.made<std::int64_t>(dtype::i64, {end - begin}, [&](std::size_t i) {
    return s[static_cast<std::size_t>(begin) + i];
  }))};
}

values size_rule(node& n) {
  std::int64_t all = 1;
  for (const auto k : n.sizes(n.in(0))) all *= k;
  return {constant(n.g, scalar_of<std::int64_t>(dtype::i64, all))};
}

values constant_of_shape(node& n) {
  const auto dims = n.known_integers(0);
  const auto given = n.tensor_of("value");
  if (given && given->elements() != 1)
    n.refuse(
        fmt::format("attribute 'value' must be one number, and is {}", to_string(given->spec())));
  const auto one = given ? n.reshaped(constant(n.g, *given), {}) : n.number(0, dtype::f32);
  return {n.expanded(one, dims)};
}

values range_rule(node& n) {
  const auto type = spec(n.in(0)).type;
  const auto counted = [&](auto first, auto last, auto step) {
    using T = decltype(first);
    if (step == 0) n.refuse("a step cannot be 0");
    double count = 0;
    if constexpr (std::is_integral_v<T>) {
      // Apart as unsigned: the difference of two whole numbers may not fit.
      const bool is_up = step > 0;
      const auto room =
          is_up
              ? (last > first ? static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first)
                              : 0)
              : (last < first ? static_cast<std::uint64_t>(first) - static_cast<std::uint64_t>(last)
                              : 0);
      const auto by =
          is_up ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
      count = static_cast<double>(room == 0 ? 0 : (room - 1) / by + 1);
    } else {
      count = std::max(0.0, std::ceil((static_cast<double>(last) - static_cast<double>(first)) /
                                      static_cast<double>(step)));
    }
    if (!(count <= 1e9)) n.refuse("it has too many elements");
    return n.made<T>(type, {static_cast<std::int64_t>(count)}, [&](std::size_t i) {
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::uint64_t>(first) +
                              static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step));
      else
        return static_cast<T>(first + static_cast<T>(i) * step);
    });
  };
  for (std::size_t i = 0; i < 3; ++i)
    if (spec(n.in(i)).type != type || spec(n.in(i)).shape.elements() != 1)
      n.refuse(fmt::format("operand {} must be one number of operand 0's type, and is {}", i,
                           to_string(spec(n.in(i)))));
  if (const auto stash = n.integer("stash_type", 1); stash != 1)
    n.refuse(fmt::format("attribute 'stash_type' is {}, expected 1 (float32)", stash));
  // Halves are counted in f32 (opset 27).
  if (type == dtype::f16 || type == dtype::bf16) return widening(range_rule)(n);
  const auto a = n.known(0), b = n.known(1), c = n.known(2);
  const auto of = [&]<class T>(T) {
    return values{constant(n.g, counted(*a.data<T>(), *b.data<T>(), *c.data<T>()))};
  };
  switch (type) {
    case dtype::f32: return of(float{});
    case dtype::f64: return of(double{});
    case dtype::i32: return of(std::int32_t{});
    case dtype::i64: return of(std::int64_t{});
    default: n.refuse(fmt::format("element type {} is not supported", to_string(type)));
  }
}

values eye_like(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  if (s.size() != 2) n.refuse(fmt::format("operand 0 {} is no matrix", to_string(spec(x))));
  const auto to = n.integer("dtype", 0);
  const auto type = to == 0 ? std::optional(spec(x).type) : element_of(to);
  if (!type) n.refuse(fmt::format("element type {} is not supported", name_of_element(to)));
  const auto k = std::clamp(n.integer("k", 0), -s[0], s[1]);
  const auto ones = n.made<std::uint8_t>(dtype::u8, s, [&](std::size_t i) {
    return static_cast<std::uint8_t>(
        static_cast<std::int64_t>(i) % s[1] - static_cast<std::int64_t>(i) / s[1] == k ? 1 : 0);
  });
  return {n.converted(constant(n.g, ones), *type)};
}

}  // namespace

void add_sources(rules& r) {
  r["Constant"] = constant_rule;
  r["Shape"] = shape_rule_of;
  r["Size"] = size_rule;
  r["ConstantOfShape"] = constant_of_shape;
  r["Range"] = range_rule;
  r["EyeLike"] = eye_like;
}

}  // namespace troupe::onnx
