#include "troupe/runtime/layers/clipping.hpp"

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/on_device.hpp"

#include <fmt/format.h>

#include <cmath>

namespace troupe {
namespace {

value number(value like, double n, const source_location& where) {
  return constant(*like.owner, n, like.spec().type, "constant", where);
}

// Records an error where the bound is none.
bool is_bound(value x, std::string_view what, double most, const source_location& where) {
  const bool is_f32 = x.spec().type != dtype::f64;
  if (most > 0 && std::isfinite(most) &&
      (!is_f32 || (std::isfinite(static_cast<float>(most)) && static_cast<float>(most) > 0)))
    return true;
  x.owner->record(
      error(error_code::usage, fmt::format("{}: the bound {} is not a finite number above 0{}",
                                           what, most, is_f32 ? " in f32" : ""))
          .at(where));
  return false;
}

value first_valid(std::span<const value> values) {
  for (const auto& v : values)
    if (v.is_valid()) return v;
  return {};
}

// 1 for norms up to `most`, and no larger.
value scale_for(value norm, double most, const source_location& where) {
  const auto bound = number(norm, most, where);
  return div(bound, maximum(norm, bound, where), where);
}

}  // namespace

value global_norm(std::span<const value> values, source_location where) {
  value sum;
  for (const auto& v : values) {
    if (!v.is_valid()) continue;
    const auto squares = on_device(*v.owner, device_of(v), where,
                                   [&] { return reduce_sum(square(v, where), {}, false, where); });
    if (!squares.is_valid()) return {};
    sum = sum.is_valid() ? on_device(*v.owner, common_device(sum, squares), where,
                                     [&] { return add(sum, squares, where); })
                         : squares;
  }
  if (!sum.is_valid()) return {};
  // The smallest normal number: the root of 0 has no gradient.
  return sqrt(
      maximum(sum, number(sum, sum.spec().type == dtype::f64 ? 0x1p-1022 : 0x1p-126, where), where),
      where);
}

value clip_by_value(value x, double most, source_location where) {
  if (!x.is_valid() || !is_bound(x, "clip_by_value", most, where)) return {};
  return clip(x, -most, most, where);
}

value clip_by_norm(value x, double most, source_location where) {
  if (!x.is_valid() || !is_bound(x, "clip_by_norm", most, where)) return {};
  const auto norm = global_norm({&x, 1}, where);
  return norm.is_valid() ? mul(x, scale_for(norm, most, where), where) : value{};
}

std::vector<value> clip_by_global_norm(std::span<const value> values, double most,
                                       source_location where) {
  std::vector<value> out(values.size());
  const auto any = first_valid(values);
  if (!any.is_valid() || !is_bound(any, "clip_by_global_norm", most, where)) return out;
  const auto norm = global_norm(values, where);
  if (!norm.is_valid()) return out;
  const auto scale = scale_for(norm, most, where);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].is_valid())
      out[i] = on_device(*values[i].owner, device_of(values[i]), where,
                         [&] { return mul(values[i], scale, where); });
  return out;
}

}  // namespace troupe
