// Resize and Upsample: along each axis that changes, every place of the result is a sum of a few
// places of x with weights that follow from the sizes alone. So an axis is a few gathers with a
// weight for each place, or, where many places count (antialias), a product with a matrix.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::onnx {
namespace {

struct resizing {
  std::string mode, transformation, nearest;
  double cubic = -0.75, outside = 0;
  bool leaves_out = false, is_smooth = false;  // exclude_outside, antialias
};

// One axis: its sizes, how much larger it becomes, and the part of x that is shown (0 to 1).
struct resized_axis {
  std::int64_t from, to;
  double scale, begin = 0, end = 1;
};

// Where the result's place i is in x. Formulas: the standard's attribute
// coordinate_transformation_mode.
double place_in_x(const resizing& r, const resized_axis& a, std::int64_t i) {
  // The length is what the scale says, before it is cut off to a whole number.
  const auto x = static_cast<double>(i), from = static_cast<double>(a.from), to = a.scale * from;
  if (r.transformation == "asymmetric") return x / a.scale;
  if (r.transformation == "align_corners") return a.to == 1 ? 0 : x * (from - 1) / (to - 1);
  if (r.transformation == "pytorch_half_pixel") return a.to == 1 ? 0 : (x + 0.5) / a.scale - 0.5;
  if (r.transformation == "tf_half_pixel_for_nn") return (x + 0.5) / a.scale;
  if (r.transformation == "tf_crop_and_resize")
    return to != 1 ? a.begin * (from - 1) + x * (a.end - a.begin) * (from - 1) / (to - 1)
                   : 0.5 * (a.begin + a.end) * (from - 1);
  if (r.transformation == "half_pixel_symmetric") {
    // What of the result was cut off by its whole size is taken from both ends.
    const auto middle = from / 2, shown_part = static_cast<double>(a.to) / to;
    return middle * (1 - shown_part) + (x + 0.5) / a.scale - 0.5;
  }
  return (x + 0.5) / a.scale - 0.5;
}

double rounded(const resizing& r, double x) {
  if (r.nearest == "floor") return std::floor(x);
  if (r.nearest == "ceil") return std::ceil(x);
  if (r.nearest == "round_prefer_ceil") return std::floor(x + 0.5);
  return std::ceil(x - 0.5);
}

// Of a place that is `distance` away. Keys: Cubic Convolution Interpolation for Digital Image
// Processing, 1981.
double weight_of(const resizing& r, double distance) {
  const auto x = std::abs(distance);
  if (r.mode == "linear") return std::max(0.0, 1 - x);
  const auto a = r.cubic;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

struct weighted {
  std::int64_t place;
  double weight;
};

// What counts for the result's place that is `at` in x: each place of x once.
std::vector<weighted> taps_of(const resizing& r, const resized_axis& a, double at) {
  const double reach = r.mode == "linear" ? 1 : 2;
  // Where x becomes smaller, as many more places count.
  const double stretch = r.is_smooth ? std::min(a.scale, 1.0) : 1;
  const auto last_place = static_cast<double>(a.from - 1);
  std::vector<weighted> all;
  double sum = 0;
  const auto last = std::ceil(at + reach / stretch);
  for (auto k = std::floor(at - reach / stretch); k <= last; ++k) {
    const auto w = weight_of(r, (k - at) * stretch);
    if (w == 0 || (r.leaves_out && (k < 0 || k > last_place))) continue;
    sum += w;
    const auto place = static_cast<std::int64_t>(std::clamp(k, 0.0, last_place));
    if (!all.empty() && all.back().place == place)
      all.back().weight += w;
    else
      all.push_back({place, w});
  }
  for (auto& t : all) t.weight /= sum;
  return all;
}

value summed_taps(const node& n, value x, std::size_t axis,
                  const std::vector<std::vector<weighted>>& all, std::size_t taps) {
  const auto size = static_cast<std::int64_t>(all.size());
  integers dims(spec(x).shape.rank(), 1);
  dims[axis] = size;
  value sum;
  for (std::size_t k = 0; k < taps; ++k) {
    const auto tap = [&](std::size_t i) {  // one that a place lacks weighs nothing
      return k < all[i].size() ? all[i][k] : weighted{all[i].empty() ? 0 : all[i][0].place, 0};
    };
    const auto at =
        n.made<std::int64_t>(dtype::i64, {size}, [&](std::size_t i) { return tap(i).place; });
    const auto weights =
        n.made<double>(dtype::f64, dims, [&](std::size_t i) { return tap(i).weight; });
    const auto part = mul(gather(x, constant(n.g, at), static_cast<std::int64_t>(axis)),
                          n.converted(constant(n.g, weights), spec(x).type));
    sum = sum.is_valid() ? add(sum, part) : part;
  }
  return sum;
}

value summed_product(const node& n, value x, std::size_t axis,
                     const std::vector<std::vector<weighted>>& all, std::int64_t from) {
  const auto size = static_cast<std::int64_t>(all.size());
  auto weights = n.made<double>(dtype::f64, {size, from}, [](std::size_t) { return 0.0; });
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto& t : all[i])
      weights
          .data<double>()[i * static_cast<std::size_t>(from) + static_cast<std::size_t>(t.place)] =
          t.weight;
  const auto w = n.converted(constant(n.g, weights), spec(x).type);
  const auto rank = spec(x).shape.rank();
  if (rank == 1) return n.reshaped(matmul(n.reshaped(x, {1, from}), w, false, true), {size});
  return n.moved(matmul(n.moved(x, axis, rank - 1), w, false, true), rank - 1, axis);
}

value resized(const node& n, value x, std::size_t axis, const resizing& r, const resized_axis& a) {
  constexpr std::size_t gathered_max = 8;
  std::vector<double> places;
  for (std::int64_t i = 0; i < a.to; ++i) {
    places.push_back(place_in_x(r, a, i));
    if (!(std::abs(places.back()) < 0x1p40) || (r.is_smooth && a.scale < 0x1p-20))
      n.refuse(fmt::format("{} elements cannot become {} by a scale of {}", a.from, a.to, a.scale));
  }
  if (r.mode == "nearest" || places.empty()) {
    const auto at = n.made<std::int64_t>(dtype::i64, {a.to}, [&](std::size_t i) {
      return static_cast<std::int64_t>(
          std::clamp(rounded(r, places[i]), 0.0, static_cast<double>(a.from - 1)));
    });
    x = gather(x, constant(n.g, at), static_cast<std::int64_t>(axis));
  } else {
    std::vector<std::vector<weighted>> all;
    std::size_t most = 1, together = 0;
    for (const auto at : places) {
      all.push_back(taps_of(r, a, at));
      most = std::max(most, all.back().size());
      together += all.back().size();
      if (together > std::size_t{1} << 23U)
        n.refuse(fmt::format("{} elements cannot become {} here: too many count for each", a.from,
                             a.to));
    }
    x = most <= gathered_max ? summed_taps(n, x, axis, all, most)
                             : summed_product(n, x, axis, all, a.from);
  }
  if (r.transformation != "tf_crop_and_resize") return x;
  // What lies outside of x has a value of its own.
  integers dims(spec(x).shape.rank(), 1);
  dims[axis] = a.to;
  const auto is_outside = n.made<std::uint8_t>(dtype::u8, dims, [&](std::size_t i) {
    return std::uint8_t{places[i] < 0 || places[i] > static_cast<double>(a.from - 1)};
  });
  return where(cast(constant(n.g, is_outside), dtype::boolean), n.number_like(x, r.outside), x);
}

value resized_all(const node& n, value x, const resizing& r, std::vector<resized_axis> all,
                  const std::vector<bool>& is_changed) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!is_changed[i]) continue;
    if (all[i].from < 1 || all[i].to < 0 || all[i].to > (std::int64_t{1} << 22))
      n.refuse(
          fmt::format("axis {} of {} cannot become {} elements", i, to_string(spec(x)), all[i].to));
    x = resized(n, x, i, r, all[i]);
  }
  return x;
}

std::vector<double> known_reals(const node& n, std::size_t i) {
  std::vector<double> out;
  if (!n.has(i)) return out;
  const auto t = n.known(i);
  for (std::int64_t k = 0; k < t.elements(); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (t.type() == dtype::f32)
      out.push_back(static_cast<double>(t.data<float>()[at]));
    else if (t.type() == dtype::f64)
      out.push_back(t.data<double>()[at]);
    else
      n.refuse(
          fmt::format("operand {} must be of real numbers, and is {}", i, to_string(t.spec())));
  }
  return out;
}

std::int64_t grown(const node& n, std::int64_t size, double scale) {
  const auto to = std::floor(static_cast<double>(size) * scale);
  if (!(scale > 0) || !(to < 0x1p31))
    n.refuse(fmt::format("a scale of {} is not supported for {} elements", scale, size));
  return static_cast<std::int64_t>(to);
}

resizing attributes_of(const node& n) {
  resizing r;
  r.mode = n.text("mode", "nearest");
  if (r.mode == "bilinear" && n.opset < 7) r.mode = "linear";
  r.transformation =
      n.opset < 11 ? "asymmetric" : n.text("coordinate_transformation_mode", "half_pixel");
  r.nearest = n.opset < 11 ? "floor" : n.text("nearest_mode", "round_prefer_floor");
  r.cubic = n.real("cubic_coeff_a", -0.75);
  r.outside = n.real("extrapolation_value", 0);
  r.leaves_out = n.integer("exclude_outside", 0) != 0;
  r.is_smooth = n.integer("antialias", 0) != 0;
  const auto one_of = [&](std::string_view name, const std::string& is,
                          std::initializer_list<std::string_view> all) {
    if (std::ranges::find(all, is) == all.end())
      n.refuse(fmt::format("attribute '{}' is '{}', expected one of {}", name, is,
                           fmt::join(all, ", ")));
  };
  one_of("mode", r.mode, {"nearest", "linear", "cubic"});
  one_of("coordinate_transformation_mode", r.transformation,
         {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
          "tf_half_pixel_for_nn", "tf_crop_and_resize"});
  one_of("nearest_mode", r.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  return r;
}

// Sizes keep the proportions of x where they are bounds.
void keep_proportions(const node& n, const std::string& policy, integers& to, const integers& axes,
                      const integers& s, std::vector<double>& scales) {
  if (policy != "stretch" && policy != "not_larger" && policy != "not_smaller")
    n.refuse(fmt::format(
        "attribute 'keep_aspect_ratio_policy' is '{}', expected stretch, not_larger or not_smaller",
        policy));
  for (std::size_t i = 0; i < axes.size(); ++i)
    scales.push_back(static_cast<double>(to[i]) /
                     static_cast<double>(s[static_cast<std::size_t>(axes[i])]));
  if (policy == "stretch" || scales.empty()) return;
  const auto scale = policy == "not_larger" ? *std::ranges::min_element(scales)
                                            : *std::ranges::max_element(scales);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    scales[i] = scale;
    to[i] = grown(
        n, 1, std::floor(scale * static_cast<double>(s[static_cast<std::size_t>(axes[i])]) + 0.5));
  }
}

// Before opset 11 the scales are operand 1; since then that is the part of x that is shown.
values resize(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto r = attributes_of(n);
  const auto policy = n.text("keep_aspect_ratio_policy", "stretch");  // of sizes alone
  integers axes = n.list("axes");
  if (axes.empty()) {
    axes.resize(s.size());
    std::iota(axes.begin(), axes.end(), std::int64_t{0});
  }
  n.axes(axes, s.size());  // each once
  for (auto& a : axes) a = static_cast<std::int64_t>(n.axis(a, s.size()));
  auto scales = known_reals(n, n.opset < 11 ? 1 : 2);
  auto to = n.opset >= 11 && n.has(3) ? n.known_integers(3) : integers{};
  if (scales.empty() == to.empty() && !axes.empty())
    n.refuse("either scales or sizes must be given, and not both");
  if ((to.empty() ? scales.size() : to.size()) != axes.size())
    n.refuse(
        fmt::format("{} numbers for {} axes", to.empty() ? scales.size() : to.size(), axes.size()));
  for (const auto a : axes)
    if (s[static_cast<std::size_t>(a)] < 1)
      n.refuse(fmt::format("axis {} of {} has no elements", a, to_string(spec(x))));
  if (to.empty())
    for (std::size_t i = 0; i < axes.size(); ++i)
      to.push_back(grown(n, s[static_cast<std::size_t>(axes[i])], scales[i]));
  else
    keep_proportions(n, policy, to, axes, s, scales);
  std::vector<double> shown_part;
  if (r.transformation == "tf_crop_and_resize") {
    shown_part = known_reals(n, 1);
    if (shown_part.size() != 2 * axes.size())
      n.refuse(fmt::format("{} numbers of a part for {} axes", shown_part.size(), axes.size()));
  }
  std::vector<resized_axis> all(s.size());
  std::vector<bool> is_changed(s.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto at = static_cast<std::size_t>(axes[i]);
    all[at] = {s[at], to[i], scales[i]};
    if (!shown_part.empty())
      all[at].begin = shown_part[i], all[at].end = shown_part[axes.size() + i];
    is_changed[at] = to[i] != s[at] || scales[i] != 1 || all[at].begin != 0 || all[at].end != 1;
  }
  return {resized_all(n, x, r, all, is_changed)};
}

// What Resize was before opset 10: with scales as an attribute before opset 9.
values upsample(node& n) {
  if (n.opset >= 10) n.refuse("since opset 10 it is Resize");
  if (n.opset >= 9) return resize(n);
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  std::vector<double> scales;
  if (n.opset < 7)
    scales = {1, 1, n.real("height_scale", 1), n.real("width_scale", 1)};
  else
    for (const auto k : n.reals("scales")) scales.push_back(static_cast<double>(k));
  if (scales.size() != s.size())
    n.refuse(fmt::format("{} scales for {}", scales.size(), to_string(spec(x))));
  std::vector<resized_axis> all(s.size());
  std::vector<bool> is_changed(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    all[i] = {s[i], grown(n, s[i], scales[i]), scales[i]};
    is_changed[i] = scales[i] != 1;
  }
  return {resized_all(n, x, attributes_of(n), all, is_changed)};
}

}  // namespace

void add_resizing(rules& r) {
  r["Resize"] = widening(resize);
  r["Upsample"] = widening(upsample);
}

}  // namespace troupe::onnx
