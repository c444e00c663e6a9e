// Arithmetic and mathematics, element by element.

#include "troupe/runtime/onnx/node.hpp"

#include <cmath>
#include <limits>

namespace troupe::onnx {
namespace {

// Before opset 7 an operand was broadcast only where an attribute said so, from `axis` on.
std::pair<value, value> two(node& n) {
  const auto a = n.in(0);
  auto b = n.in(1);
  if (n.opset >= 7) return {a, b};
  n.ignore({"consumed_inputs"});
  const auto rank = spec(a).shape.rank(), own = spec(b).shape.rank();
  const bool is_broadcast = n.integer("broadcast", 0) != 0;
  if (const auto at = n.integer("axis", -1); is_broadcast && at >= 0 && own > 0) {
    const auto first = n.axis(at, rank);
    if (first + own > rank)
      n.refuse(fmt::format("operands {} and {} do not fit at axis {}", to_string(spec(a)),
                           to_string(spec(b)), first));
    auto dims = n.sizes(b);
    dims.resize(dims.size() + rank - first - own, 1);
    b = n.reshaped(b, dims);
  }
  return {a, b};
}

rule unary(value (*f)(value)) {
  return [f](node& n) -> values {
    n.ignore({"consumed_inputs"});
    return {f(n.in(0))};
  };
}
rule binary(value (*f)(value, value)) {
  return [f](node& n) -> values {
    const auto [a, b] = two(n);
    return {f(a, b)};
  };
}
// Of one operand or more.
rule folded(value (*f)(value, value)) {
  return [f](node& n) -> values {
    n.ignore({"consumed_inputs"});
    auto y = n.in(0);
    for (std::size_t i = 1; i < n.inputs(); ++i) y = f(y, n.in(i));
    return {y};
  };
}

// What is left of a / b: with the sign of a, or (is_floor) of b.
value remainder_of(const node& n, value a, value b, bool is_floor) {
  const auto type = spec(a).type;
  value rest;
  if (whole.has(type)) {
    rest = sub(a, mul(div(a, b), b));
  } else {
    rest = fmod(a, b);
  }
  if (!is_floor) return rest;
  const auto zero = n.number_like(rest, 0);
  const auto is_other =
      logical_and(not_equal(rest, zero), logical_xor(less(rest, zero), less(b, zero)));
  return where(is_other, add(rest, b), rest);
}

values mod(node& n) {
  const bool is_floor = n.integer("fmod", 0) == 0;
  if (is_floor && n.opset < 28 && !whole.has(spec(n.in(0)).type))
    n.refuse(fmt::format("before opset 28 fmod 0 is for whole numbers, and operand 0 is {}",
                         to_string(spec(n.in(0)))));
  return {remainder_of(n, n.in(0), n.in(1), is_floor)};
}

// The type of the result is that of the base.
values power(node& n) {
  const auto [a, b] = two(n);
  const auto type = spec(a).type;
  if (floating.has(type)) return {pow(a, n.converted(b, type))};
  return {n.converted(pow(n.converted(a, dtype::f64), n.converted(b, dtype::f64)), type)};
}

values is_inf(node& n) {
  const auto x = n.in(0);
  const auto limit = std::numeric_limits<double>::infinity();
  const auto above = equal(x, n.number_like(x, limit)), below = equal(x, n.number_like(x, -limit));
  const bool sees_above = n.integer("detect_positive", 1) != 0,
             sees_below = n.integer("detect_negative", 1) != 0;
  if (sees_above && sees_below) return {logical_or(above, below)};
  if (!sees_above && !sees_below) return {logical_and(above, below)};
  return {sees_above ? above : below};
}

// min(max(x, low), high): where the limits cross, the upper one counts.
values clip_rule(node& n) {
  auto x = n.in(0);
  n.ignore({"consumed_inputs"});
  if (n.opset < 11) {
    if (n.has("min")) x = maximum(x, n.number_like(x, n.real("min", 0)));
    if (n.has("max")) x = minimum(x, n.number_like(x, n.real("max", 0)));
    return {x};
  }
  if (n.has(1)) x = maximum(x, n.in(1));
  if (n.has(2)) x = minimum(x, n.in(2));
  return {x};
}

values mean(node& n) {
  auto y = n.in(0);
  for (std::size_t i = 1; i < n.inputs(); ++i) y = add(y, n.in(i));
  return {div(y, n.number_like(y, static_cast<double>(n.inputs())))};
}

}  // namespace

void add_elementwise(rules& r) {
  r["Add"] = widening(binary([](value a, value b) { return add(a, b); }));
  r["Sub"] = widening(binary([](value a, value b) { return sub(a, b); }));
  r["Mul"] = widening(binary([](value a, value b) { return mul(a, b); }));
  r["Div"] = widening(binary([](value a, value b) { return div(a, b); }));
  r["Max"] = widening(folded([](value a, value b) { return maximum(a, b); }));
  r["Min"] = widening(folded([](value a, value b) { return minimum(a, b); }));
  r["Sum"] = widening(folded([](value a, value b) { return add(a, b); }));
  r["Mean"] = widening(mean);
  r["Mod"] = widening(mod);
  r["Pow"] = widening(power);
  r["Neg"] = widening(unary([](value x) { return neg(x); }));
  r["Abs"] = widening(unary([](value x) { return abs(x); }));
  r["Sign"] = widening(unary([](value x) { return sign(x); }));
  r["Reciprocal"] = widening(unary([](value x) { return reciprocal(x); }));
  r["Exp"] = widening(unary([](value x) { return exp(x); }));
  r["Log"] = widening(unary([](value x) { return log(x); }));
  r["Sqrt"] = widening(unary([](value x) { return sqrt(x); }));
  r["Erf"] = widening(unary([](value x) { return erf(x); }));
  r["Sin"] = widening(unary([](value x) { return sin(x); }));
  r["Cos"] = widening(unary([](value x) { return cos(x); }));
  r["Tan"] = widening(unary([](value x) { return tan(x); }));
  r["Asin"] = widening(unary([](value x) { return asin(x); }));
  r["Acos"] = widening(unary([](value x) { return acos(x); }));
  r["Atan"] = widening(unary([](value x) { return atan(x); }));
  r["Sinh"] = widening(unary([](value x) { return sinh(x); }));
  r["Cosh"] = widening(unary([](value x) { return cosh(x); }));
  r["Asinh"] = widening(unary([](value x) { return asinh(x); }));
  r["Acosh"] = widening(unary([](value x) { return acosh(x); }));
  r["Atanh"] = widening(unary([](value x) { return atanh(x); }));
  r["Floor"] = widening(unary([](value x) { return floor(x); }));
  r["Ceil"] = widening(unary([](value x) { return ceil(x); }));
  r["Round"] = widening(unary([](value x) { return round(x); }));
  r["IsNaN"] = widening(unary([](value x) { return is_nan(x); }));
  r["IsInf"] = widening(is_inf);
  r["Clip"] = widening(clip_rule);
}

// --- comparison, logic, choice, conversion ---

namespace {

values cast_to(node& n, std::int64_t to) {
  const auto narrow = narrow_of(to);
  const auto type = narrow ? std::optional(dtype::i32) : element_of(to);
  if (!type) n.refuse(fmt::format("element type {} is not supported", name_of_element(to)));
  n.ignore({"saturate", "round_mode"});  // of eight bits, which are none of our types
  // A value of its own, which is not of the narrow type.
  const auto x = n.narrow(std::size_t{0}) != 0 ? add(n.in(0), n.number(0, dtype::i32)) : n.in(0);
  if (!narrow) return {n.converted(x, *type)};
  // Fractions are cut off first; whole numbers keep their low bits.
  const auto whole_one = n.converted(x, dtype::i32);
  return {n.marked(wrapped(n, whole_one, *narrow), to)};
}

}  // namespace

void add_logic(rules& r) {
  const auto compared = [&](const char* name, value (*f)(value, value)) {
    r[name] = widening(binary(f));
  };
  compared("Equal", [](value a, value b) { return equal(a, b); });
  compared("Less", [](value a, value b) { return less(a, b); });
  compared("LessOrEqual", [](value a, value b) { return less_equal(a, b); });
  compared("Greater", [](value a, value b) { return greater(a, b); });
  compared("GreaterOrEqual", [](value a, value b) { return greater_equal(a, b); });
  r["And"] = binary([](value a, value b) { return logical_and(a, b); });
  r["Or"] = binary([](value a, value b) { return logical_or(a, b); });
  r["Xor"] = binary([](value a, value b) { return logical_xor(a, b); });
  r["Not"] = unary([](value x) { return logical_not(x); });
  r["Where"] = [](node& n) -> values { return {where(n.in(0), n.in(1), n.in(2))}; };
  r["Cast"] = [](node& n) -> values { return cast_to(n, n.integer("to")); };
  r["CastLike"] = [](node& n) -> values {
    n.ignore({"saturate", "round_mode"});
    if (n.narrow(1) != 0) return cast_to(n, n.narrow(1));
    const auto type = spec(n.in(1)).type;
    return {n.narrow(std::size_t{0}) != 0 && type == dtype::i32
                ? add(n.in(0), n.number(0, dtype::i32))  // no longer of the narrow type
                : n.converted(n.in(0), type)};
  };
  r["Identity"] = unary([](value x) { return x; });
}

}  // namespace troupe::onnx
