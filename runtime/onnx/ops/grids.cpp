// GridSample and AffineGrid: images that are read at places which other values say.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::onnx {
namespace {

struct sampling {
  std::string mode, outside;
  bool aligns = false;  // -1 and 1 are the middles of the first and the last element
};

sampling sampling_of(const node& n, std::size_t dims) {
  sampling s{n.text("mode", n.opset < 20 ? "bilinear" : "linear"), n.text("padding_mode", "zeros"),
             n.integer("align_corners", 0) != 0};
  if (s.mode == "bilinear") s.mode = "linear";
  if (s.mode == "bicubic") s.mode = "cubic";
  if (s.mode != "linear" && s.mode != "nearest" && s.mode != "cubic")
    n.refuse(fmt::format("attribute 'mode' is '{}', expected linear, nearest or cubic", s.mode));
  if (s.mode == "cubic" && dims != 2)
    n.refuse(
        fmt::format("attribute 'mode' is cubic, which is for two image dimensions, not {}", dims));
  if (s.outside != "zeros" && s.outside != "border" && s.outside != "reflection")
    n.refuse(fmt::format("attribute 'padding_mode' is '{}', expected zeros, border or reflection",
                         s.outside));
  return s;
}

// Thrown back at both ends, as often as it takes.
value reflected(const node& n, value at, double first, double last) {
  const auto length = last - first;
  if (length <= 0) return n.expanded(n.number_like(at, first), n.sizes(at));
  const auto on = fmod(abs(sub(at, n.number_like(at, first))), n.number_like(at, 2 * length));
  return add(minimum(on, sub(n.number_like(at, 2 * length), on)), n.number_like(at, first));
}

// One axis of x while grids are read.
struct sampled_axis {
  std::int64_t size;
  double first, last;  // where reflections happen
  value place;         // as many numbers as there are places
};

sampled_axis axis_at(const node& n, const sampling& how, value at, std::int64_t size) {
  const auto s = static_cast<double>(size);
  sampled_axis a{size, how.aligns ? 0 : -0.5, how.aligns ? s - 1 : s - 0.5, {}};
  const auto one = n.number_like(at, 1), half = n.number_like(at, 0.5);
  const auto from_0 = add(at, one);
  a.place = how.aligns ? mul(from_0, n.number_like(at, (s - 1) / 2))
                       : sub(mul(from_0, n.number_like(at, s / 2)), half);
  if (how.mode == "nearest") a.place = round(a.place);
  if (how.outside == "zeros") return a;
  const auto is_outside = logical_or(less(a.place, n.number_like(at, a.first)),
                                     greater(a.place, n.number_like(at, a.last)));
  a.place = where(
      is_outside,
      how.outside == "border" ? clip(a.place, 0, s - 1) : reflected(n, a.place, a.first, a.last),
      a.place);
  return a;
}

struct tap {
  value index, weight, is_inside;  // index: i64; weight: invalid, 1; is_inside: invalid, true
};

// Element `at` (whole numbers as floating point) of an axis, and what it counts.
tap tap_at(const node& n, const sampling& how, const sampled_axis& a, value at, value weight) {
  const auto last = static_cast<double>(a.size - 1);
  value is_inside;
  if (how.outside == "zeros")
    is_inside = logical_and(greater_equal(at, n.number_like(at, 0)),
                            less_equal(at, n.number_like(at, last)));
  if (how.outside == "reflection") at = reflected(n, at, a.first, a.last);
  return {cast(clip(at, 0, last), dtype::i64), weight, is_inside};
}

// Keys' polynomials for the four elements around a place, `t` behind the second one.
std::vector<value> cubic_weights(const node& n, value t) {
  constexpr double a = -0.75;
  const auto c = [&](double x) { return n.number_like(t, x); };
  const auto near = [&](value x) {  // |x| <= 1
    return add(mul(mul(sub(mul(c(a + 2), x), c(a + 3)), x), x), c(1));
  };
  const auto far = [&](value x) {  // 1 to 2
    return sub(mul(add(mul(sub(mul(c(a), x), c(5 * a)), x), c(8 * a)), x), c(4 * a));
  };
  const auto rest = sub(c(1), t);
  return {far(add(t, c(1))), near(t), near(rest), far(add(rest, c(1)))};
}

std::vector<tap> taps_along(const node& n, const sampling& how, const sampled_axis& a) {
  if (how.mode == "nearest") return {tap_at(n, how, a, a.place, {})};
  const auto below = floor(a.place);
  const auto behind = sub(a.place, below), one = n.number_like(below, 1);
  if (how.mode == "linear")
    return {tap_at(n, how, a, below, sub(one, behind)), tap_at(n, how, a, add(below, one), behind)};
  std::vector<tap> all;
  const auto weights = cubic_weights(n, behind);
  for (std::size_t k = 0; k < weights.size(); ++k)
    all.push_back(tap_at(n, how, a, add(below, n.number_like(below, static_cast<double>(k) - 1)),
                         weights[k]));
  return all;
}

// Of values that may be left out.
value both(value a, value b, value (*f)(value, value)) {
  return !a.is_valid() ? b : !b.is_valid() ? a : f(a, b);
}

// x [n, c, s..], grid [n, o.., d]: of each image the elements at d numbers, of which the first is
// for the last axis. All elements of a place lie side by side while they are read.
values grid_sample(node& n) {
  const auto x = n.in(0), grid = n.in(1);
  const auto s = n.sizes(x), g = n.sizes(grid);
  const auto dims = s.size() < 2 ? 0 : s.size() - 2;
  if ((dims != 2 && dims != 3) || g.size() != s.size() || g[0] != s[0] ||
      g.back() != static_cast<std::int64_t>(dims))
    n.refuse(fmt::format("a grid {} does not fit images {} of two or three dimensions",
                         to_string(spec(grid)), to_string(spec(x))));
  if (std::ranges::count(s, 0) > 0)
    n.refuse(fmt::format("images {} have no elements", to_string(spec(x))));
  const auto how = sampling_of(n, dims);
  std::int64_t places = 1, elements = 1;
  for (std::size_t i = 0; i < dims; ++i) places *= g[1 + i], elements *= s[2 + i];
  const auto numbers =
      n.reshaped(n.converted(grid, spec(x).type), {s[0], places, static_cast<std::int64_t>(dims)});
  integers to_last(s.size()), from_last{0, static_cast<std::int64_t>(s.size()) - 1};
  to_last.back() = 1;
  for (std::size_t i = 0; i < dims; ++i) {
    to_last[1 + i] = static_cast<std::int64_t>(2 + i);
    from_last.push_back(static_cast<std::int64_t>(1 + i));
  }
  auto rows = n.reshaped(transpose(x, to_last), {s[0] * elements, s[1]});
  // Places outside read a row of zeros behind all others.
  const auto nothing = n.number(static_cast<double>(s[0] * elements), dtype::i64);
  if (how.outside == "zeros") rows = pad(rows, {0, 0}, {1, 0});
  // All choices of one tap from each axis.
  std::vector<tap> all{{constant(n.g, n.made<std::int64_t>(dtype::i64, {s[0], 1},
                                                           [&](std::size_t i) {
                                                             return static_cast<std::int64_t>(i) *
                                                                    elements;
                                                           })),
                        {},
                        {}}};
  auto step = elements;
  for (std::size_t i = 0; i < dims; ++i) {
    const auto at = static_cast<std::int64_t>(dims - 1 - i);
    const auto one = n.reshaped(
        slice(numbers, {range{}, range{}, range{.begin = at, .end = at + 1}}), {s[0], places});
    step /= s[2 + i];
    const auto along = taps_along(n, how, axis_at(n, how, one, s[2 + i]));
    std::vector<tap> more;
    for (const auto& before : all)
      for (const auto& t : along)
        more.push_back(
            {add(before.index, mul(t.index, n.number(static_cast<double>(step), dtype::i64))),
             both(before.weight, t.weight, [](value a, value b) { return mul(a, b); }),
             both(before.is_inside, t.is_inside,
                  [](value a, value b) { return logical_and(a, b); })});
    all = std::move(more);
  }
  value sum;
  for (const auto& t : all) {
    auto part =
        gather(rows, t.is_inside.is_valid() ? where(t.is_inside, t.index, nothing) : t.index);
    if (t.weight.is_valid()) part = mul(part, expand_dims(t.weight, {2}));
    sum = sum.is_valid() ? add(sum, part) : part;
  }
  integers made{s[0]};
  for (std::size_t i = 0; i < dims; ++i) made.push_back(g[1 + i]);
  made.push_back(s[1]);
  return {transpose(n.reshaped(sum, made), from_last)};
}

// theta [n, d, d + 1], a size of n, c, s..: [n, s.., d], each place of an image as numbers from -1
// to 1, turned by the matrix of its image.
values affine_grid(node& n) {
  const auto theta = n.in(0);
  const auto t = n.sizes(theta), s = n.known_integers(1);
  const auto dims = s.size() < 2 ? 0 : s.size() - 2;
  const auto d = static_cast<std::int64_t>(dims);
  if ((dims != 2 && dims != 3) || t != integers{s[0], d, d + 1})
    n.refuse(fmt::format("matrices {} do not fit a size of [{}]", to_string(spec(theta)),
                         fmt::join(s, ", ")));
  const bool aligns = n.integer("align_corners", 0) != 0;
  std::int64_t places = 1;
  for (std::size_t i = 0; i < dims; ++i)
    if (s[2 + i] < 1 || __builtin_mul_overflow(places, s[2 + i], &places))
      n.refuse(fmt::format("a size of [{}] is not supported", fmt::join(s, ", ")));
  const auto base = n.made<double>(dtype::f64, {places, d + 1}, [&](std::size_t i) {
    auto place = static_cast<std::int64_t>(i) / (d + 1);
    const auto column = static_cast<std::int64_t>(i) % (d + 1);
    if (column == d) return 1.0;
    for (std::int64_t k = 0; k < column; ++k)
      place /= s[s.size() - 1 - static_cast<std::size_t>(k)];
    const auto size = s[s.size() - 1 - static_cast<std::size_t>(column)];
    const auto at = static_cast<double>(place % size), length = static_cast<double>(size);
    if (aligns) return size == 1 ? -1.0 : 2 * at / (length - 1) - 1;
    return (2 * at + 1) / length - 1;
  });
  const auto grid = matmul(n.converted(constant(n.g, base), spec(theta).type), theta, false, true);
  integers made{s[0]};
  made.insert(made.end(), s.begin() + 2, s.end());
  made.push_back(d);
  return {n.reshaped(grid, made)};
}

}  // namespace

void add_grids(rules& r) {
  r["GridSample"] = widening(grid_sample);
  r["AffineGrid"] = widening(affine_grid);
}

}  // namespace troupe::onnx
