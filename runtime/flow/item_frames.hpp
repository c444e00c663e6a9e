#pragma once
// What goes from process to process along an edge: items, how many of them were taken, and that
// nobody needs more. Each is a tensor of u8, since that is what a stream of two processes carries.
//
// IFR-1 Whatever bytes come, reading ends with a value or with an error.
// Threading: values. Ownership: items keep the frame of which their tensors are parts.
// Source of the format: this file; both ends have the same version of Troupe.

#include "troupe/runtime/flow/item.hpp"
#include "troupe/runtime/flow/value_codec.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe {

enum class frame_kind : std::uint8_t { items = 1, taken = 2, closed = 3 };

struct frame_head {
  frame_kind kind = frame_kind::items;
  std::uint32_t edge = 0;
  bool is_last = false;  // of items: no more come by that edge
};

// The other end of an edge that leads to another process.
struct far_end {
  const value_codec* codec = nullptr;  // of its items; null: they are empty, ends of tickets
  bool same_clock = false;             // both processes read one clock
  bool has_marks = false;              // it is of a lane: what is no item comes by it, too
};

// `now_ns`: of this process. Errors (failed): more than `bytes_max`. Throws std::bad_alloc.
result<tensor> items_frame(std::uint32_t edge, std::vector<flow_item>& items, bool is_last,
                           const far_end& far, std::int64_t now_ns, std::size_t bytes_max);
// Of all that ever came by that edge.
tensor taken_frame(std::uint32_t edge, std::uint64_t items, std::uint64_t bytes);
tensor closed_frame(std::uint32_t edge);

// nullopt: it is no frame.
std::optional<frame_head> head_of(const tensor& frame);

struct read_frame_items {
  std::vector<flow_item> items;
  bool is_last = false;
};
struct taken_counts {
  std::uint64_t items = 0, bytes = 0;
};
// Of a frame of that kind; nullopt: it is none.
std::optional<read_frame_items> items_of(const tensor& frame, const far_end& far,
                                         std::int64_t now_ns);
std::optional<taken_counts> taken_of(const tensor& frame);

}  // namespace troupe
