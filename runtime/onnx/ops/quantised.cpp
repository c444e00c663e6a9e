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

// Whole numbers less their zero point, in f64, where sums of products are exact. A zero point for
// each place along `axis` of x (none: it is broadcast as it is).
value from_zero_point(const node& n, std::size_t i, std::size_t zero,
                      std::optional<std::size_t> axis = {}) {
  const auto x = n.in(i);
  if (!n.has(zero)) return n.converted(x, dtype::f64);
  auto z = n.converted(n.in(zero), dtype::f64);
  if (spec(z).shape.elements() == 1) z = n.reshaped(z, {});
  if (axis && spec(z).shape.rank() == 1) {
    if (*axis >= spec(x).shape.rank())
      n.refuse(fmt::format("operand {} is {}, and has several zero points", i, to_string(spec(x))));
    integers dims(spec(x).shape.rank(), 1);
    dims.at(*axis) = spec(z).shape.elements();
    z = n.reshaped(z, dims);
  }
  return sub(n.converted(x, dtype::f64), z);
}

// A convolution of these without a bias, with this node's attributes.
value convolved(node& n, value x, value w) {
  n.drop_from(2);  // zero points and scales, where a convolution has its bias
  n.replace(0, x), n.replace(1, w);
  return conv_of(n).at(0);
}

values conv_integer(node& n) {
  const auto x = from_zero_point(n, 0, 2), w = from_zero_point(n, 1, 3, 0);
  return {cast(cast(convolved(n, x, w), dtype::i64), dtype::i32)};
}

// Exact sums times a factor, to whole numbers of operand `zero`'s type.
value requantized(const node& n, value sum, value factor, value zero) {
  const auto type = n.narrow(zero);
  if (type == 0 && spec(zero).type != dtype::u8)
    n.refuse(fmt::format("zero points of {} are not supported", to_string(spec(zero))));
  const auto narrow = narrow_of(type);
  const narrow_type limits = narrow ? *narrow : narrow_type{8, false};
  auto y = round(mul(cast(sum, dtype::f32), factor));
  y = add(y, n.reshaped(n.converted(zero, dtype::f32), {}));
  y = clip(y, static_cast<double>(limits.least()), static_cast<double>(limits.most()));
  return narrow ? n.marked(cast(y, dtype::i32), type) : cast(y, dtype::u8);
}

value one_number(const node& n, std::size_t i) {
  const auto v = n.in(i);
  if (spec(v).shape.elements() != 1)
    n.refuse(fmt::format("operand {} must be one number, and is {}", i, to_string(spec(v))));
  return n.reshaped(n.converted(v, dtype::f32), {});
}

// x, its scale and zero point, w, its scale (one, or one for each channel) and zero point, those of
// the result, bias.
values linear_conv(node& n) {
  const auto x = from_zero_point(n, 0, 2), w = from_zero_point(n, 3, 5, 0);
  auto scale = n.converted(n.in(4), dtype::f32);
  const auto rank = spec(n.in(0)).shape.rank();
  if (spec(scale).shape.elements() == 1) {
    scale = n.reshaped(scale, {});
  } else {
    integers dims(rank, 1);
    if (rank > 1) dims[1] = spec(scale).shape.elements();
    scale = n.reshaped(scale, dims);
  }
  const auto factor = div(mul(one_number(n, 1), scale), one_number(n, 6));
  const auto zero = n.in(7);
  const auto bias = n.has(8) ? n.converted(n.in(8), dtype::f64) : value{};
  auto sum = convolved(n, x, w);
  if (bias.is_valid()) {
    integers dims(rank, 1);
    if (rank > 1) dims[1] = spec(bias).shape.elements();
    sum = add(sum, n.reshaped(bias, dims));
  }
  return {requantized(n, sum, factor, zero)};
}

values linear_matmul(node& n) {
  for (const std::size_t i : {0U, 3U})
    if (spec(n.in(i)).shape.rank() < 2) n.refuse("operands must be matrices");
  const auto rows = spec(n.in(0)).shape.rank() - 2, columns = spec(n.in(3)).shape.rank() - 1;
  const auto a = from_zero_point(n, 0, 2, rows), b = from_zero_point(n, 3, 5, columns);
  const auto spread = [&](std::size_t i, bool is_row) {
    const auto s = n.converted(n.in(i), dtype::f32);
    if (spec(s).shape.elements() == 1) return n.reshaped(s, {});
    return is_row && spec(s).shape.rank() == 1 ? expand_dims(s, {1}) : s;
  };
  const auto factor = div(mul(spread(1, true), spread(4, false)), one_number(n, 6));
  return {requantized(n, matmul(a, b), factor, n.in(7))};
}

}  // namespace

void add_quantised(rules& r) {
  r["DequantizeLinear"] = dequantize;
  r["QuantizeLinear"] = quantize;
  r["DynamicQuantizeLinear"] = dynamic_quantize;
  r["MatMulInteger"] = matmul_integer;
  r["ConvInteger"] = conv_integer;
  r["QLinearConv"] = linear_conv;
  r["QLinearMatMul"] = linear_matmul;
}

}  // namespace troupe::onnx
