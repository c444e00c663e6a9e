#include "troupe/runtime/graph/ops/nn/windows.hpp"

#include <algorithm>

namespace troupe::ops {

namespace {

constexpr std::int64_t number_max = std::int64_t{1} << 31;  // so that products of two fit

}  // namespace

result<windows> windows::read(const attributes& attrs, bool is_pooling) {
  windows w;
  const auto get = [&](std::string_view name, auto& to, std::int64_t least) -> result<void> {
    const auto all = attrs.integers(name);
    if (all.empty()) return {};
    if (all.size() != 2)
      return error(
          error_code::usage,
          fmt::format("{}: expected two numbers, height and width, not {}", name, all.size()));
    for (const auto n : all)
      if (n < least || n > number_max)
        return error(error_code::usage,
                     fmt::format("{}: {} is not from {} to 2^31", name, n, least));
    to = {all[0], all[1]};
    return {};
  };
  if (is_pooling) {
    if (attrs.integers("window").empty())
      return error(error_code::usage, "window: expected two numbers, height and width");
    if (auto ok = get("window", w.size, 1); !ok) return std::move(ok.error());
    w.strides = w.size;
  }
  for (const auto& [name, to, least] :
       {std::tuple("strides", &w.strides, 1), std::tuple("before", &w.before, 0),
        std::tuple("after", &w.after, 0), std::tuple("dilations", &w.dilations, 1)})
    if (auto ok = get(name, *to, least); !ok) return std::move(ok.error());
  w.rounds_up = attrs.integer("round_up") != 0;
  return w;
}

void windows::write(attributes& attrs) const {
  const auto set = [&](const char* name, const std::array<std::int64_t, 2>& from) {
    attrs.set(name, std::vector<std::int64_t>{from[0], from[1]});
  };
  set("strides", strides), set("before", before), set("after", after), set("dilations", dilations);
  if (rounds_up) attrs.set("round_up", std::int64_t{1});
}

std::optional<std::int64_t> windows::positions(std::size_t axis,
                                               std::int64_t length) const noexcept {
  const auto padded = std::min(length, number_max) + before[axis] + after[axis];
  const auto reach = (size[axis] - 1) * dilations[axis] + 1;
  if (length > number_max || reach > padded) return std::nullopt;
  const auto room = padded - reach;
  if (!rounds_up) return room / strides[axis] + 1;
  const auto n = (room + strides[axis] - 1) / strides[axis] + 1;
  // None begins behind the image.
  return (n - 1) * strides[axis] >= length + before[axis] ? n - 1 : n;
}

void windows::pad_to_same(std::size_t axis, std::int64_t length) noexcept {
  // What read() refuses afterwards.
  if (const auto most = std::max({strides[axis], dilations[axis], size[axis], length}),
      least = std::min(strides[axis], dilations[axis]);
      most > number_max || least < 1)
    return;
  const auto wanted = (length + strides[axis] - 1) / strides[axis];
  const auto all = std::max<std::int64_t>(
      (wanted - 1) * strides[axis] + (size[axis] - 1) * dilations[axis] + 1 - length, 0);
  before[axis] = all / 2;
  after[axis] = all - before[axis];
}

std::optional<std::string> why_no_image(std::string_view name, const tensor_spec& s,
                                        dtype_set types) {
  if (!types.has(s.type)) return fmt::format("{} must be {}", name, to_string(types));
  if (s.shape.rank() != 4)
    return fmt::format("{} must have rank 4: [images, channels, height, width]", name);
  for (std::size_t i = 1; i < 4; ++i)
    if (s.shape[i].symbol != 0)
      return fmt::format("{}: only the number of images may be a bound", name);
  return std::nullopt;
}

}  // namespace troupe::ops
