#pragma once
// Windows that move over the last two dimensions of an image: what convolutions and pooling have in
// common. Only runtime/graph/ops/ includes this.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <array>

namespace troupe::ops {

// As attributes: "strides", "before", "after", "dilations"; and "window", of pooling.
struct windows {
  std::array<std::int64_t, 2> size{1, 1}, strides{1, 1}, before{0, 0}, after{0, 0}, dilations{1, 1};
  bool rounds_up = false;  // a last window may reach beyond the padding

  // An error: a number that makes no sense. Without strides: `size`, where pooling; else 1.
  static result<windows> read(const attributes& attrs, bool is_pooling);
  void write(attributes& attrs) const;

  // Positions along an axis of this length; nullopt: the window is longer than image and padding.
  std::optional<std::int64_t> positions(std::size_t axis, std::int64_t length) const noexcept;
  // Padding, most of it behind, so that there are ceil(length / stride) positions.
  void pad_to_same(std::size_t axis, std::int64_t length) noexcept;
};

// [n, channels, height, width], all exact but n. An error's text: what is wrong with it.
std::optional<std::string> why_no_image(std::string_view name, const tensor_spec& s,
                                        dtype_set types = floating);

}  // namespace troupe::ops
