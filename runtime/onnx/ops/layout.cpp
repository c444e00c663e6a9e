#include "troupe/devices/half.hpp"
#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace troupe::onnx {
namespace {

values reshape_rule(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  const auto wanted = n.has(1) ? n.known_integers(1) : n.list("shape");
  const bool zero_is_zero = n.integer("allowzero", 0) != 0;
  const auto& s = spec(x).shape;
  if (!zero_is_zero && s.elements() != 0) return {reshape(x, wanted)};
  // Of no elements: what is left open is what makes as many, if there is one answer.
  auto dims = wanted;
  std::int64_t known = 1;
  std::optional<std::size_t> open;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !zero_is_zero) {
      if (i >= s.rank())
        n.refuse(fmt::format("a shape of [{}] copies size {} of {}, which does not exist",
                             fmt::join(wanted, ", "), i, to_string(spec(x))));
      dims[i] = s.size(i);
    }
    if (dims[i] < -1 || (dims[i] == -1 && open))
      n.refuse(fmt::format("[{}] is not a shape: a size is below -1, or more than one is -1",
                           fmt::join(wanted, ", ")));
    if (dims[i] == -1)
      open = i;
    else if (__builtin_mul_overflow(known, dims[i], &known))
      n.refuse(fmt::format("a shape of [{}] has too many elements", fmt::join(wanted, ", ")));
  }
  if (open) {
    if (known == 0 || s.elements() % known != 0)
      n.refuse(fmt::format("{} cannot become [{}]", to_string(spec(x)), fmt::join(wanted, ", ")));
    dims[*open] = s.elements() / known;
  }
  return {n.reshaped(x, dims)};
}

values flatten(node& n) {
  const auto x = n.in(0);
  const auto& s = spec(x).shape;
  const auto rank = static_cast<std::int64_t>(s.rank());
  auto axis = n.integer("axis", 1);
  if (axis < -rank || axis > rank)
    n.refuse(fmt::format("attribute 'axis' is {}, and operand 0 is {}", axis, to_string(spec(x))));
  if (axis < 0) axis += rank;
  integers dims{1, 1};
  for (std::size_t i = 0; i < s.rank(); ++i)
    dims[i < static_cast<std::size_t>(axis) ? 0 : 1] *= s.size(i);
  return {n.reshaped(x, dims)};
}

values squeeze(node& n) {
  const auto x = n.in(0);
  const auto& s = spec(x).shape;
  const bool has_axes = n.has(1) || n.has("axes");
  auto axes = n.axes(n.has(1) ? n.known_integers(1) : n.list("axes"), s.rank());
  if (!has_axes)
    for (std::size_t i = 0; i < s.rank(); ++i)
      if (s[i] == dim{1, 0}) axes.push_back(static_cast<std::int64_t>(i));
  integers dims;
  for (std::size_t i = 0; i < s.rank(); ++i) {
    if (!std::ranges::binary_search(axes, static_cast<std::int64_t>(i)))
      dims.push_back(s.size(i));
    else if (s.size(i) != 1)
      n.refuse(fmt::format("axis {} of {} is not of size 1", i, to_string(spec(x))));
  }
  return {n.reshaped(x, dims)};
}

values unsqueeze(node& n) {
  const auto x = n.in(0);
  const auto axes = n.has(1) ? n.known_integers(1) : n.list("axes");
  if (axes.empty()) return {x};
  return {expand_dims(x, n.axes(axes, spec(x).shape.rank() + axes.size()))};
}

values transpose_rule(node& n) {
  const auto x = n.in(0);
  const auto order = n.list("perm");
  return {spec(x).shape.rank() < 2 && order.size() <= spec(x).shape.rank() ? x
                                                                           : transpose(x, order)};
}

values concat_rule(node& n) {
  std::vector<value> parts;
  for (std::size_t i = 0; i < n.inputs(); ++i) parts.push_back(n.in(i));
  if (parts.empty()) n.refuse("operands are missing");
  const auto axis = n.opset < 4 ? n.integer("axis", 1) : n.integer("axis");
  return {concat(parts, axis)};
}

values split_rule(node& n) {
  const auto x = n.in(0);
  const auto axis = n.axis(n.integer("axis", 0), spec(x).shape.rank());
  auto sizes = n.has(1) ? n.known_integers(1) : n.list("split");
  const auto parts = static_cast<std::int64_t>(n.outputs());
  if (const auto said = n.integer("num_outputs", parts); said != parts)
    n.refuse(fmt::format("attribute 'num_outputs' is {}, and there are {} outputs", said, parts));
  if (sizes.empty()) {
    const auto all = n.sizes(x)[axis];
    // Since opset 18 the last part may be shorter.
    if (parts == 0 || (n.opset < 18 && all % parts != 0))
      n.refuse(fmt::format("{} elements along axis {} cannot be {} equal parts", all, axis, parts));
    const auto each = (all + parts - 1) / parts;
    for (std::int64_t i = 0; i < parts; ++i)
      sizes.push_back(std::clamp<std::int64_t>(all - i * each, 0, each));
  }
  if (sizes.size() != n.outputs())
    n.refuse(fmt::format("there are {} sizes for {} outputs", sizes.size(), n.outputs()));
  return split(x, sizes, static_cast<std::int64_t>(axis));
}

values slice_rule(node& n) {
  const auto x = n.in(0);
  const auto rank = spec(x).shape.rank();
  const bool by_operands = n.opset >= 10;
  const auto get = [&](std::size_t i, std::string_view name) {
    return by_operands ? (n.has(i) ? n.known_integers(i) : integers{}) : n.list(name);
  };
  const auto starts = get(1, "starts"), ends = get(2, "ends");
  auto axes = get(3, "axes"), steps = by_operands ? get(4, "") : integers{};
  if (axes.empty())
    for (std::size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    n.refuse(fmt::format("{} starts, {} ends, {} axes and {} steps", starts.size(), ends.size(),
                         axes.size(), steps.size()));
  n.axes(axes, rank);  // each once
  std::vector<range> ranges(rank);
  constexpr auto last = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (steps[i] == 0) n.refuse("a step cannot be 0");
    // For slice() an end of `last` is as far as there are elements; here it is a place behind all
    // of them.
    const auto end = ends[i] == last && steps[i] < 0 ? last - 1 : ends[i];
    ranges[n.axis(axes[i], rank)] = {.begin = starts[i], .end = end, .step = steps[i]};
  }
  return {slice(x, ranges)};
}

// Along an axis, `count` elements: from place(0), place(1) and so on.
value taken(const node& n, value x, std::size_t axis, std::int64_t count,
            const std::function<std::int64_t(std::int64_t)>& place) {
  const auto at = n.made<std::int64_t>(
      dtype::i64, {count}, [&](std::size_t i) { return place(static_cast<std::int64_t>(i)); });
  return gather(x, constant(n.g, at), static_cast<std::int64_t>(axis));
}

// Elements before and behind each axis; since opset 18 only of those that are named.
std::pair<integers, integers> padding_of(const node& n, std::size_t rank) {
  const auto pads = n.opset >= 11 ? n.known_integers(1) : n.list(n.opset < 2 ? "paddings" : "pads");
  integers axes(rank);
  std::iota(axes.begin(), axes.end(), std::int64_t{0});
  if (n.has(3)) {
    axes = n.known_integers(3);
    n.axes(axes, rank);  // each once
  }
  if (pads.size() != 2 * axes.size())
    n.refuse(fmt::format("{} numbers of padding for {} axes", pads.size(), axes.size()));
  integers before(rank), after(rank);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto at = n.axis(axes[i], rank);
    before[at] = pads[i], after[at] = pads[axes.size() + i];
  }
  return {before, after};
}

// Of which of `size` elements a place of an axis is a copy; places below 0 are before the first.
std::int64_t copied_place(std::string_view mode, std::int64_t k, std::int64_t size) {
  if (mode == "edge") return std::clamp<std::int64_t>(k, 0, size - 1);
  const auto period = mode == "wrap" ? size : std::max<std::int64_t>(2 * (size - 1), 1);
  const auto at = (k % period + period) % period;
  return at < size ? at : period - at;
}

values pad_rule(node& n) {
  auto x = n.in(0);
  const auto rank = spec(x).shape.rank();
  const auto mode = n.text("mode", "constant");
  auto [before, after] = padding_of(n, rank);
  const auto with = n.opset >= 11 ? (n.has(2) ? n.known_number(2) : 0) : n.real("value", 0);
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    n.refuse(
        fmt::format("attribute 'mode' is '{}', expected constant, reflect, edge or wrap", mode));
  std::vector<range> kept(rank);  // a negative padding takes elements away
  for (std::size_t i = 0; i < rank; ++i) {
    const auto size = spec(x).shape.size(i);
    if (before[i] < -size || after[i] < -size ||
        std::min<std::int64_t>(before[i], 0) + std::min<std::int64_t>(after[i], 0) < -size)
      n.refuse(fmt::format("padding of {} and {} takes more than the {} elements of axis {}",
                           before[i], after[i], size, i));
    if (before[i] < 0) kept[i].begin = -before[i], before[i] = 0;
    if (after[i] < 0) kept[i].end = after[i], after[i] = 0;
  }
  x = slice(x, kept);
  if (mode == "constant") return {pad(x, before, after, with)};
  for (std::size_t i = 0; i < rank; ++i) {
    if (before[i] == 0 && after[i] == 0) continue;
    const auto size = n.sizes(x)[i];
    if (size < 1) n.refuse(fmt::format("axis {} has no elements to copy", i));
    if (before[i] > (std::int64_t{1} << 20) || after[i] > (std::int64_t{1} << 20))
      n.refuse("the padding is too large");
    x = taken(n, x, i, before[i] + size + after[i],
              [&](std::int64_t at) { return copied_place(mode, at - before[i], size); });
  }
  return {x};
}

// The middle of x, or x in the middle of zeros, axis by axis.
values center_crop_pad(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto wanted = n.known_integers(1);
  auto axes = n.list("axes");
  if (!n.has("axes"))
    for (std::size_t i = 0; i < s.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  n.axes(axes, s.size());  // each once
  if (axes.size() != wanted.size())
    n.refuse(fmt::format("{} sizes for {} axes", wanted.size(), axes.size()));
  std::vector<range> kept(s.size());
  integers before(s.size()), after(s.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto at = n.axis(axes[i], s.size());
    if (wanted[i] < 0) n.refuse(fmt::format("a size cannot be {}", wanted[i]));
    if (wanted[i] < s[at]) {
      const auto first = (s[at] - wanted[i]) / 2;
      kept[at] = {.begin = first, .end = first + wanted[i]};
    } else {
      before[at] = (wanted[i] - s[at]) / 2, after[at] = wanted[i] - s[at] - before[at];
    }
  }
  return {pad(slice(x, kept), before, after)};
}

values tile_rule(node& n) {
  if (n.opset < 6) n.refuse("before opset 6 it is not supported");
  return {tile(n.in(0), n.known_integers(1))};
}

values expand(node& n) { return {n.expanded(n.in(0), n.known_integers(1))}; }

values depth_to_space(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto b = n.integer("blocksize");
  const auto mode = n.text("mode", "DCR");
  if (s.size() != 4 || b < 1 || b > (1 << 15) || s[1] % (b * b) != 0)
    n.refuse(fmt::format("blocks of {} do not fit {}", b, to_string(spec(x))));
  if (mode != "DCR" && mode != "CRD")
    n.refuse(fmt::format("attribute 'mode' is '{}', expected DCR or CRD", mode));
  const auto depth = s[1] / (b * b);
  const auto parts =
      mode == "DCR" ? transpose(n.reshaped(x, {s[0], b, b, depth, s[2], s[3]}), {0, 3, 4, 1, 5, 2})
                    : transpose(n.reshaped(x, {s[0], depth, b, b, s[2], s[3]}), {0, 1, 4, 2, 5, 3});
  return {n.reshaped(parts, {s[0], depth, s[2] * b, s[3] * b})};
}

values space_to_depth(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  const auto b = n.integer("blocksize");
  if (s.size() != 4 || b < 1 || b > (1 << 15) || s[2] % b != 0 || s[3] % b != 0)
    n.refuse(fmt::format("blocks of {} do not fit {}", b, to_string(spec(x))));
  const auto mode = n.text("mode", "DCR");  // since opset 28
  if (mode != "DCR" && mode != "CRD")
    n.refuse(fmt::format("attribute 'mode' is '{}', expected DCR or CRD", mode));
  const auto blocks = n.reshaped(x, {s[0], s[1], s[2] / b, b, s[3] / b, b});
  const auto parts =
      mode == "DCR" ? transpose(blocks, {0, 3, 5, 1, 2, 4}) : transpose(blocks, {0, 1, 3, 5, 2, 4});
  return {n.reshaped(parts, {s[0], s[1] * b * b, s[2] / b, s[3] / b})};
}

values trilu(node& n) {
  const auto x = n.in(0);
  const auto s = n.sizes(x);
  if (s.size() < 2) n.refuse(fmt::format("operand 0 {} is no matrix", to_string(spec(x))));
  const bool is_upper = n.integer("upper", 1) != 0;
  const auto rows = s[s.size() - 2], columns = s.back();
  // Beyond, nothing changes.
  const auto k = std::clamp(n.has(1) ? n.known_integer(1) : 0, -rows - 1, columns + 1);
  const auto mask = n.made<boolean>(dtype::boolean, {rows, columns}, [&](std::size_t i) {
    const auto row = static_cast<std::int64_t>(i) / columns,
               column = static_cast<std::int64_t>(i) % columns;
    return boolean(is_upper ? column - row >= k : column - row <= k);
  });
  return {where(constant(n.g, mask), x, n.number_like(x, 0))};
}

}  // namespace

void add_layout(rules& r) {
  r["Reshape"] = reshape_rule;
  r["Flatten"] = flatten;
  r["Squeeze"] = squeeze;
  r["Unsqueeze"] = unsqueeze;
  r["Transpose"] = transpose_rule;
  r["Concat"] = concat_rule;
  r["Split"] = split_rule;
  r["Slice"] = slice_rule;
  r["Pad"] = pad_rule;
  r["Tile"] = tile_rule;
  r["Expand"] = expand;
  r["DepthToSpace"] = depth_to_space;
  r["SpaceToDepth"] = space_to_depth;
  r["Trilu"] = trilu;
  r["CenterCropPad"] = center_crop_pad;
}

}  // namespace troupe::onnx
