#include "troupe/runtime/wire/link_session.hpp"

#include <fmt/format.h>

#include <tuple>

namespace troupe {

std::string_view to_string(lane_state s) noexcept {
  static constexpr std::string_view names[] = {"connecting", "up", "lost", "closed"};
  return names[static_cast<std::size_t>(s)];
}

std::string_view to_string(drop_reason r) noexcept {
  static constexpr std::string_view names[] = {"duplicate",   "gap",         "stale generation",
                                               "unknown job", "other epoch", "unknown edge"};
  return names[static_cast<std::size_t>(r)];
}

link_session::link_session(node_id self, node_id peer, const link_options& options,
                           const planted_bugs* bugs)
    : self_(self), peer_(peer), options_(options), bugs_(bugs) {
  expects(self != peer, "a link joins two lives");
}

// --- connections ---------------------------------------------------------------------------------

bool link_session::is_up() const noexcept {
  return at(lane::control).state == lane_state::up && at(lane::data).state == lane_state::up;
}

result<void> link_session::connected(lane l, std::uint64_t peer_received) {
  auto& d = at(l);
  if (d.state == lane_state::closed)
    return error(error_code::unreachable,
                 fmt::format("the link to node {:x} has ended", raw(peer_)));
  if (peer_received < d.acked || peer_received > d.written_max) {
    return error(
        error_code::failed,
        fmt::format(
            "node {:x} says on the {} lane that it has {} frames; it acknowledged {} of the {} sent before",
            raw(peer_), to_string(l), peer_received, d.acked, d.written_max));
  }
  release(d, peer_received);
  d.written = bugs_ != nullptr && bugs_->resends_nothing ? std::max(d.written, peer_received)
                                                         : peer_received;
  d.state = lane_state::up;
  // The peer learned received(l) while connecting.
  d.unacked_frames = 0;
  d.unacked_bytes = 0;
  d.owes_ack = false;
  ++d.counters.connections;
  return {};
}

void link_session::lost(lane l, std::int64_t now_ns) {
  auto& d = at(l);
  if (d.state != lane_state::up) return;
  d.state = lane_state::lost;
  d.dial_at_ns = dials_first() ? now_ns : now_ns + options_.dial_grace_ns;
}

void link_session::dialing(lane l) {
  if (auto& d = at(l); d.state == lane_state::lost) d.state = lane_state::connecting;
}

void link_session::dial_failed(lane l, std::int64_t now_ns) {
  auto& d = at(l);
  // The peer's own dial was faster, or the link has ended.
  if (d.state != lane_state::connecting) return;
  d.state = lane_state::lost;
  d.dial_at_ns = now_ns + options_.dial_retry_ns;
}

bool link_session::dial_due(lane l, std::int64_t now_ns) const noexcept {
  return at(l).state == lane_state::lost && now_ns >= at(l).dial_at_ns;
}

std::optional<std::int64_t> link_session::next_deadline_ns() const noexcept {
  std::optional<std::int64_t> next;
  const auto consider = [&](std::int64_t t) { next = next ? std::min(*next, t) : t; };
  for (const auto& d : lanes_) {
    if (d.state == lane_state::lost) consider(d.dial_at_ns);
    if (d.state == lane_state::up && d.owes_ack) consider(d.ack_at_ns);
  }
  return next;
}

void link_session::close() {
  for (auto& d : lanes_) {
    d.state = lane_state::closed;
    d.kept.clear();
    d.kept_bytes = 0;
    d.kept_payload_bytes = 0;
  }
  credits_.clear();
}

// --- sending -------------------------------------------------------------------------------------

result<void> link_session::send(lane l, frame_kind kind, std::vector<std::byte> header,
                                tensor payload, chunk_part part) {
  auto& d = at(l);
  if (d.state == lane_state::closed)
    return error(error_code::unreachable,
                 fmt::format("the link to node {:x} has ended", raw(peer_)));
  sent_frame frame{d.acked + d.kept.size() + 1, kind,        std::move(header),
                   std::move(payload),          part.offset, part.length};
  const auto size = frame.size_bytes();
  if (l == lane::control && (d.kept.size() >= options_.control_frames_max ||
                             d.kept_bytes + size > options_.control_bytes_max)) {
    return error(
        error_code::failed,
        fmt::format(
            "node {:x} has not acknowledged {} control frames ({} bytes), which is the limit: giving it up",
            raw(peer_), d.kept.size(), d.kept_bytes));
  }
  d.kept.push_back(std::move(frame));
  d.kept_bytes += size;
  d.kept_payload_bytes += part.length;
  return {};
}

bool link_session::has_to_write(lane l) const noexcept {
  const auto& d = at(l);
  return d.state == lane_state::up && d.written < d.acked + d.kept.size();
}

const sent_frame* link_session::next_to_write(lane l) {
  if (!has_to_write(l)) return nullptr;
  auto& d = at(l);
  const auto& frame = d.kept[d.written - d.acked];
  d.written = frame.sequence;
  if (frame.sequence > d.written_max) {
    d.written_max = frame.sequence;
    ++d.counters.frames_out;
    d.counters.bytes_out += frame.size_bytes();
  } else {
    ++d.counters.resent;
  }
  return &frame;
}

result<void> link_session::acknowledged(lane l, std::uint64_t sequence) {
  auto& d = at(l);
  if (sequence <= d.acked) return {};
  if (d.state == lane_state::closed) return {};
  // Beyond `written` is possible: what was still on the way in the connection before has arrived
  // after all.
  if (sequence > d.written_max) {
    return error(
        error_code::failed,
        fmt::format("node {:x} acknowledges frame {} of the {} lane, but only {} were sent",
                    raw(peer_), sequence, to_string(l), d.written_max));
  }
  release(d, sequence);
  d.written = std::max(d.written, sequence);
  return {};
}

void link_session::release(lane_data& d, std::uint64_t sequence) {
  for (; d.acked < sequence; ++d.acked) {
    d.kept_bytes -= d.kept.front().size_bytes();
    d.kept_payload_bytes -= d.kept.front().length;
    d.kept.pop_front();
  }
}

// As a bare acknowledgement is: a frame without a header, which its receiver counts and does
// nothing with.
void link_session::make_empty(lane_data& d, sent_frame& f) {
  d.kept_bytes -= f.size_bytes() - prelude_bytes;
  d.kept_payload_bytes -= f.length;
  f = {f.sequence, frame_kind::control, {}, {}, 0, 0};
}

// --- receiving -----------------------------------------------------------------------------------

link_session::arrival link_session::arrived(lane l, std::uint64_t sequence, std::size_t bytes,
                                            std::int64_t now_ns) {
  auto& d = at(l);
  if (sequence != 0 && sequence <= d.received) {
    count_drop(drop_reason::duplicate);
    // The peer did not know that we have it: say so at once.
    d.owes_ack = true;
    d.ack_at_ns = now_ns;
    return arrival::drop;
  }
  if (!would_deliver(l, sequence)) {
    count_drop(drop_reason::gap);
    return arrival::close;
  }
  ++d.counters.frames_in;
  d.counters.bytes_in += bytes;
  if (sequence == 0) return arrival::deliver;
  d.received = sequence;
  ++d.unacked_frames;
  d.unacked_bytes += bytes;
  if (!d.owes_ack) {
    d.owes_ack = true;
    d.ack_at_ns = now_ns + options_.ack_delay_ns;
  }
  if (d.unacked_frames >= options_.ack_frames || d.unacked_bytes >= options_.ack_bytes)
    d.ack_at_ns = now_ns;
  return arrival::deliver;
}

std::uint64_t link_session::take_ack(lane l) noexcept {
  auto& d = at(l);
  d.unacked_frames = 0;
  d.unacked_bytes = 0;
  d.owes_ack = false;
  return d.received;
}

bool link_session::ack_due(lane l, std::int64_t now_ns) const noexcept {
  const auto& d = at(l);
  return d.state == lane_state::up && d.owes_ack && now_ns >= d.ack_at_ns;
}

bool link_session::admits(node_id sender, node_id receiver) noexcept {
  if (sender == peer_ && receiver == self_) return true;
  count_drop(drop_reason::stale_generation);
  return false;
}

// --- credits -------------------------------------------------------------------------------------

namespace {

auto edge_of(const credit_return& c) noexcept { return std::tuple(raw(c.job), c.epoch, c.edge); }

}  // namespace

// Returns are appended, and merged when they are taken: no search on the way of a credit.
void link_session::return_credit(job_id job, std::uint32_t epoch, std::uint32_t edge,
                                 std::uint32_t n) {
  if (n == 0 || is_closed()) return;
  const credit_return c{job, epoch, edge, n};
  if (!credits_.empty() && edge_of(credits_.back()) == edge_of(c)) {
    credits_.back().count += n;
    return;
  }
  credits_.push_back(c);
  // Without a connection they wait; then there is one entry an edge, and merging stays rare by
  // doubling.
  if (credits_.size() >= merge_credits_at_) {
    merge_credits();
    merge_credits_at_ = std::max<std::size_t>(256, 2 * credits_.size());
  }
}

std::vector<credit_return> link_session::take_credits() {
  merge_credits();
  std::vector<credit_return> out;
  out.swap(credits_);
  return out;
}

void link_session::merge_credits() {
  std::sort(credits_.begin(), credits_.end(),
            [](const auto& a, const auto& b) { return edge_of(a) < edge_of(b); });
  std::size_t end = 0;
  for (const auto& c : credits_) {
    if (end > 0 && edge_of(credits_[end - 1]) == edge_of(c))
      credits_[end - 1].count += c.count;
    else
      credits_[end++] = c;
  }
  credits_.resize(end);
}

}  // namespace troupe
