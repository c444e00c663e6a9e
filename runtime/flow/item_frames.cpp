#include "troupe/runtime/flow/item_frames.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {
namespace {

enum item_flags : std::uint8_t {
  has_value = 1,
  ends_ticket = 2,
  has_label = 4,   // one of its own
  same_label = 8,  // as the item before it
  is_born = 16,    // when is noted
};
constexpr unsigned kind_shift = 5;  // item_kind: two bits

// Its value is a state, of whatever type the edge's items are.
bool is_state(item_kind k) noexcept { return k == item_kind::load || k == item_kind::cut; }

void write_head(byte_writer& w, frame_kind kind, std::uint32_t edge) {
  w.number(kind);
  w.number(edge);
}
frame_head read_head(byte_reader& r) {
  const auto kind = r.number<frame_kind>();
  return {kind, r.number<std::uint32_t>()};
}

void write_items(byte_writer& w, std::uint32_t edge, std::vector<flow_item>& items, bool is_last,
                 const far_end& far, std::int64_t now_ns) {
  write_head(w, frame_kind::items, edge);
  w.number(is_last);
  w.number(far.same_clock);
  w.number(std::uint64_t{items.size()});
  const std::string* label = nullptr;
  for (auto& it : items) {
    const auto& o = it.origin;
    std::uint8_t flags = 0;
    if (it.value) flags |= has_value;
    if (o.ends_ticket) flags |= ends_ticket;
    if (o.born_ns != 0) flags |= is_born;
    const bool is_same = o.label != nullptr && o.label.get() == label;
    if (o.label != nullptr) flags |= is_same ? same_label : has_label;
    label = o.label.get();
    flags |= static_cast<std::uint8_t>(static_cast<unsigned>(o.kind) << kind_shift);
    w.number(flags);
    w.number(o.number);
    w.number(o.source);
    w.number(o.ticket);
    w.number(std::uint64_t{it.bytes});
    if (o.born_ns != 0) w.number(far.same_clock ? o.born_ns : now_ns - o.born_ns);
    if ((flags & has_label) != 0) w.text(*o.label);
    if (!it.value) continue;
    if (is_state(o.kind))
      write_tensor(w, it.value.get<tensor>());
    else
      far.codec->write(w, it.value);
  }
}

template <class Write>
tensor frame_of(Write write) {
  byte_writer counts;
  write(counts);
  auto frame = tensor::make({dtype::u8, {static_cast<std::int64_t>(counts.size())}});
  byte_writer w(frame.bytes());
  write(w);
  return frame;
}

}  // namespace

result<tensor> items_frame(std::uint32_t edge, std::vector<flow_item>& items, bool is_last,
                           const far_end& far, std::int64_t now_ns, std::size_t bytes_max) {
  byte_writer counts;
  write_items(counts, edge, items, is_last, far, now_ns);
  if (counts.size() > bytes_max)
    return error(error_code::failed,
                 fmt::format("{:.1f} GiB of items at once are more than go to another process "
                             "({:.1f} GiB): make them smaller",
                             double(counts.size()) / double(1U << 30),
                             double(bytes_max) / double(1U << 30)));
  auto frame = tensor::make({dtype::u8, {static_cast<std::int64_t>(counts.size())}});
  byte_writer w(frame.bytes());
  write_items(w, edge, items, is_last, far, now_ns);
  expects(w.size() == counts.size(), "items do not change while they are written");
  return frame;
}

tensor taken_frame(std::uint32_t edge, std::uint64_t items, std::uint64_t bytes) {
  return frame_of([=](byte_writer& w) {
    write_head(w, frame_kind::taken, edge);
    w.number(items);
    w.number(bytes);
  });
}

tensor closed_frame(std::uint32_t edge) {
  return frame_of([=](byte_writer& w) { write_head(w, frame_kind::closed, edge); });
}

std::optional<frame_head> head_of(const tensor& frame) {
  if (!frame || frame.type() != dtype::u8) return std::nullopt;
  byte_reader r(frame);
  auto head = read_head(r);
  if (head.kind == frame_kind::items) read_value(r, head.is_last);
  const bool is_known = head.kind == frame_kind::items || head.kind == frame_kind::taken ||
                        head.kind == frame_kind::closed;
  if (r.failed() || !is_known) return std::nullopt;
  return head;
}

std::optional<read_frame_items> items_of(const tensor& frame, const far_end& far,
                                         std::int64_t now_ns) {
  byte_reader r(frame);
  if (read_head(r).kind != frame_kind::items) return std::nullopt;
  read_frame_items all;
  read_value(r, all.is_last);
  bool same_clock = false;
  read_value(r, same_clock);
  const auto n = r.count();
  std::shared_ptr<const std::string> label;
  for (std::size_t i = 0; i < n && !r.failed(); ++i) {
    flow_item it;
    const auto flags = r.number<std::uint8_t>();
    it.origin.ends_ticket = (flags & ends_ticket) != 0;
    it.origin.kind = static_cast<item_kind>((flags >> kind_shift) & 3U);
    if ((flags >> kind_shift) > 3U || (it.origin.kind != item_kind::item && !far.has_marks))
      return std::nullopt;
    it.origin.number = r.number<std::uint64_t>();
    it.origin.source = r.number<std::uint32_t>();
    it.origin.ticket = r.number<std::uint32_t>();
    it.bytes = r.number<std::uint64_t>();
    if ((flags & is_born) != 0) {
      const auto t = r.number<std::int64_t>();
      // Of another clock its age is known: the way here does not count.
      it.origin.born_ns =
          same_clock ? t
                     : now_ns - std::clamp<std::int64_t>(t, 0, std::max<std::int64_t>(0, now_ns));
    }
    if ((flags & has_label) != 0)
      label = std::make_shared<const std::string>(r.text());
    else if ((flags & same_label) == 0)
      label = nullptr;
    it.origin.label = label;
    if ((flags & has_value) != 0 && is_state(it.origin.kind)) {
      auto state = read_tensor(r);
      if (r.failed() || !state || state.type() != dtype::u8) return std::nullopt;
      it.value = any_value(std::move(state));
    } else if ((flags & has_value) != 0) {
      if (far.codec == nullptr) return std::nullopt;
      it.value = far.codec->read(r);
    }
    all.items.push_back(std::move(it));
  }
  if (r.failed() || r.left() > 0) return std::nullopt;
  return all;
}

std::optional<taken_counts> taken_of(const tensor& frame) {
  byte_reader r(frame);
  if (read_head(r).kind != frame_kind::taken) return std::nullopt;
  taken_counts t;
  t.items = r.number<std::uint64_t>();
  t.bytes = r.number<std::uint64_t>();
  if (r.failed() || r.left() > 0) return std::nullopt;
  return t;
}

}  // namespace troupe
