// Quantisation: whole numbers of few bits that stand for real ones. What is computed with them is
// computed with the real numbers.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>

namespace troupe::onnx {
namespace {

// A scale or zero point in x's shape: one number, one for each place of the axis, or (block_size)
// one for each block of the axis.
value spread_scale(const node& n, value v, value x) {
  const auto s = n.sizes(x), own = n.sizes(v);
  const auto block = n.integer("block_size", 0);
  const auto given = n.integer("axis", 1);
  if (spec(v).shape.elements() == 1 && block == 0) return n.reshaped(v, {});
  const auto axis = n.axis(given, s.size());
  if (block == 0) {
    if (own != integers{s[axis]})
      n.refuse(fmt::format("scale {} does not fit axis {} of {}", to_string(spec(v)), axis,
                           to_string(spec(x))));
    integers dims(s.size(), 1);
    dims[axis] = s[axis];
    return n.reshaped(v, dims);
  }
  auto wanted = s;
  if (block > 0) wanted[axis] = s[axis] / block + (s[axis] % block != 0 ? 1 : 0);
  if (block < 1 || own != wanted)
    n.refuse(fmt::format("scale {} does not fit blocks of {} along axis {} of {}",
                         to_string(spec(v)), block, axis, to_string(spec(x))));
  const auto at = n.made<std::int64_t>(
      dtype::i64, {s[axis]}, [&](std::size_t i) { return static_cast<std::int64_t>(i) / block; });
  return gather(v, constant(n.g, at), static_cast<std::int64_t>(axis));
}

bool is_half(dtype t) { return t == dtype::f16 || t == dtype::bf16; }

value to_f32(const node& n, value v) {
  return spec(v).type == dtype::f64 ? v : n.converted(v, dtype::f32);
}

dtype wanted_type(const node& n, dtype otherwise) {
  const auto to = n.integer("output_dtype", 0);
  if (to == 0) return otherwise;
  const auto type = element_of(to);
  if (!type || !floating.has(*type))
    if (!type || !is_half(*type))
      n.refuse(fmt::format("attribute 'output_dtype': {} is not supported", name_of_element(to)));
  return *type;
}

// (x - zero) scale
values dequantize(node& n) {
  const auto x = n.in(0), scale = n.in(1);
  const auto type = wanted_type(n, spec(scale).type);
  auto y = to_f32(n, x);
  if (n.has(2)) y = sub(y, to_f32(n, spread_scale(n, n.in(2), x)));
  return {n.converted(mul(y, to_f32(n, spread_scale(n, scale, x))), type)};
}

// x / scale to the nearest whole number (halves to even), plus zero, as far as the type reaches.
values quantize(node& n) {
  n.ignore({"saturate"});  // of eight-bit floating point, which is none of our types
  const auto x = n.in(0), scale = n.in(1);
  const auto given = n.integer("output_dtype", 0), precision = n.integer("precision", 0);
  const auto own = n.has(2) ? n.narrow(2) : std::int64_t{0};
  if (own == 0 && n.has(2) && spec(n.in(2)).type != dtype::u8)
    n.refuse(fmt::format("zero points of {} are not supported", to_string(spec(n.in(2)))));
  constexpr std::int64_t number_of_u8 = 2;
  const auto to = own != 0 ? own : n.has(2) || given == 0 ? number_of_u8 : given;
  const auto narrow = narrow_of(to);
  if (!narrow && to != number_of_u8)
    n.refuse(fmt::format("element type {} is not supported", name_of_element(to)));
  const narrow_type limits = narrow ? *narrow : narrow_type{8, false};
  auto y = div(to_f32(n, x), to_f32(n, spread_scale(n, scale, x)));
  // The quotient is of the scale's type.
  if (is_half(spec(scale).type) && precision != 1) y = to_f32(n, cast(y, spec(scale).type));
  y = round(y);
  if (n.has(2)) y = add(y, n.converted(spread_scale(n, n.in(2), x), spec(y).type));
  y = clip(y, static_cast<double>(limits.least()), static_cast<double>(limits.most()));
  if (!narrow) return {cast(y, dtype::u8)};
  return {n.marked(cast(y, dtype::i32), to)};
}

// To bytes, with a scale and a zero point that x itself gives; 0 is among the numbers.
values dynamic_quantize(node& n) {
  const auto x = n.in(0);
  const auto zero = n.number_like(x, 0), most = n.number_like(x, 255);
  const auto low = minimum(reduce_min(x), zero), high = maximum(reduce_max(x), zero);
  const auto scale = div(sub(high, low), most);
  // Of zeros alone the scale is 0, and any other gives the same.
  const auto by = where(equal(scale, zero), n.number_like(x, 1), scale);
  const auto middle = clip(round(div(neg(low), by)), 0, 255);
  const auto y = clip(add(round(div(x, by)), middle), 0, 255);
  return {cast(y, dtype::u8), scale, cast(middle, dtype::u8)};
}

// Sums are exact in f64 and wrap around as i32 does.
values matmul_integer(node& n) {
  const auto real = [&](std::size_t i, std::size_t zero, bool is_row) {
    auto x = n.converted(n.in(i), dtype::f64);
    if (!n.has(zero)) return x;
    auto z = n.converted(n.in(zero), dtype::f64);
    // A zero point for each row of the left operand, or each column of the right one.
    if (is_row && spec(z).shape.rank() == 1 && spec(z).shape.elements() != 1)
      z = expand_dims(z, {1});
    return sub(x, z);
  };
  if (spec(n.in(0)).shape.rank() < 2 || spec(n.in(1)).shape.rank() < 2)
    n.refuse("operands must be matrices");
  return {cast(cast(matmul(real(0, 2, true), real(1, 3, false)), dtype::i64), dtype::i32)};
}

}  // namespace

void add_quantised(rules& r) {
  r["DequantizeLinear"] = dequantize;
  r["QuantizeLinear"] = quantize;
  r["DynamicQuantizeLinear"] = dynamic_quantize;
  r["MatMulInteger"] = matmul_integer;
}

}  // namespace troupe::onnx
