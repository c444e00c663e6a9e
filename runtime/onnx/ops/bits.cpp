// Bits of whole numbers, which no op here takes apart: along a new last axis each number becomes
// its bits, of which the result is put together again.

#include "troupe/runtime/onnx/node.hpp"

namespace troupe::onnx {
namespace {

// x as a sign and bits, [.., bits - 1] of 0 and 1, which are turned round where the sign is: those
// of -x - 1 are, and that is never negative.
struct bits_of_number {
  value is_negative, bits;
};

std::int64_t bits_behind_sign(dtype type) { return type == dtype::i64 ? 63 : 31; }

value powers_of_two(const node& n, dtype type) {
  const auto count = bits_behind_sign(type);
  return n.converted(
      constant(n.g, n.made<std::int64_t>(dtype::i64, {count},
                                         [](std::size_t k) { return std::int64_t{1} << k; })),
      type);
}

bits_of_number bits_of(const node& n, value x) {
  const auto type = spec(x).type;
  const auto zero = n.number(0, type), one = n.number(1, type), two = n.number(2, type);
  const auto is_negative = less(x, zero);
  const auto positive = where(is_negative, sub(neg(x), one), x);
  const auto high = div(expand_dims(positive, {-1}), powers_of_two(n, type));
  return {is_negative, logical_xor(not_equal(sub(high, mul(div(high, two), two)), zero),
                                   expand_dims(is_negative, {-1}))};
}

rule bitwise(value (*f)(value, value)) {
  return widening([f](node& n) -> values {
    const auto a = n.in(0), b = n.in(1);
    const auto type = spec(a).type;
    if (!whole.has(type) || spec(b).type != type)
      n.refuse(fmt::format("operands {} and {} must be whole numbers of one type",
                           to_string(spec(a)), to_string(spec(b))));
    const auto x = bits_of(n, a), y = bits_of(n, b);
    const auto is_negative = f(x.is_negative, y.is_negative);
    const auto bits = logical_xor(f(x.bits, y.bits), expand_dims(is_negative, {-1}));
    const auto sum = reduce_sum(mul(cast(bits, type), powers_of_two(n, type)), {-1}, false);
    return {where(is_negative, sub(neg(sum), n.number(1, type)), sum)};
  });
}

// Of bytes, the one type without a sign here: a product with a power of two, or what is left of a
// division by it; by eight bits and more, nothing is left.
values bit_shift(node& n) {
  const auto direction = n.text("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    n.refuse(fmt::format("attribute 'direction' is '{}', expected LEFT or RIGHT", direction));
  const auto x = n.in(0), by = minimum(n.in(1), n.number(8, dtype::i32));
  const auto power = gather(
      constant(n.g, n.made<std::int32_t>(dtype::i32, {9}, [](std::size_t k) { return 1 << k; })),
      by);
  return {direction == "LEFT" ? mul(x, power) : div(x, power)};
}

}  // namespace

void add_bits(rules& r) {
  r["BitwiseAnd"] = bitwise([](value a, value b) { return logical_and(a, b); });
  r["BitwiseOr"] = bitwise([](value a, value b) { return logical_or(a, b); });
  r["BitwiseXor"] = bitwise([](value a, value b) { return logical_xor(a, b); });
  r["BitwiseNot"] = widening([](node& n) -> values {
    const auto x = n.in(0);
    if (!whole.has(spec(x).type))
      n.refuse(fmt::format("operand 0 must be of whole numbers, and is {}", to_string(spec(x))));
    return {sub(neg(x), n.number_like(x, 1))};
  });
  r["BitShift"] = [](node& n) -> values {
    if (spec(n.in(0)).type != dtype::u8)
      n.refuse(fmt::format("operand 0 must be uint8, and is {}", to_string(spec(n.in(0)))));
    return widening(bit_shift)(n);
  };
}

}  // namespace troupe::onnx
