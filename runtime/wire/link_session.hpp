#pragma once
// The state of a link to one life of one peer: what was sent and not acknowledged, what was
// received, on each of two lanes.
//
// A link loses connections but no frames. Each lane numbers its frames 1, 2, ... for the life of
// the link, keeps them until the peer acknowledges them, and starts again after the last one that
// arrived when its connection is replaced. Whoever owns the session moves frames between it and a
// transport:
//
//   to send             send(lane, ...)                        number and keep it
//   lane can write      while (f = next_to_write(lane)) ...    write it with the ack that
//                                                              take_ack(lane) gives
//   frame came          arrived(lane, sequence, bytes, now)    deliver it only on `deliver`
//   with every frame    acknowledged(lane, ack)                releases what the peer has
//   ack_due(lane, now)  send an unnumbered frame (sequence 0) with take_ack(lane); e.g. the
//                       heartbeat
//   connection made     connected(lane, peer's received)       both sides tell received(lane) first
//   connection ended    lost(lane, now); then poll(now) says when to dial
//
// LS-1  Every numbered frame is delivered once and in order on its lane, however often the
//       connection is replaced.
// LS-2  A frame's header, tensor and address (&frame) stay until the peer acknowledged it, it is
//       withdrawn, or the link is closed.
// LS-3  A sequence <= the last one received is dropped and counted. One beyond the next is a gap:
//       an error of this connection, which is closed and replaced.
// LS-4  An acknowledgement of what was never sent, or a peer that forgot what it acknowledged, ends
//       the link: it is not the life that we knew.
// LS-5  Memory is bounded: unacknowledged control frames by link_options (beyond it the link
//       fails), data by its credits.
// LS-6  After a loss the side with the smaller node id dials at once. The other waits dial_grace_ns
//       for it, then dials too, so that both sides learn quickly when there is nobody any more.
// LS-7  A frame of another life (sender or receiver) is dropped and counted.
// LS-8  What was withdrawn keeps its number and holds no memory: whoever still has to get the frame
//       gets an empty one. Where payloads stay in memory for the peer to read them (FR-7 of
//       runtime/wire/frame.hpp), a frame that its connection has keeps what it holds until it is
//       acknowledged or, after that connection, withdrawn again.
// Ends: close(), when membership says that the peer is dead or has left.
// Threading: one owner. Time is passed in, monotonic, in nanoseconds.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/runtime/wire/frame.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::size_t lane_count = 2;

enum class lane_state : std::uint8_t { connecting, up, lost, closed };
std::string_view to_string(lane_state s) noexcept;

// A numbered frame on its way. The payload is `length` bytes of the tensor from `offset`.
struct sent_frame {
  std::uint64_t sequence = 0;
  frame_kind kind = frame_kind::control;
  std::vector<std::byte> header;
  tensor payload;
  std::size_t offset = 0;
  std::size_t length = 0;

  std::size_t size_bytes() const noexcept { return prelude_bytes + header.size() + length; }
};

// Part of a tensor that travels in one frame.
struct chunk_part {
  std::size_t offset = 0;
  std::size_t length = 0;
  friend bool operator==(const chunk_part&, const chunk_part&) = default;
};
// Calls f(chunk_part) for each chunk of `total` bytes, in order: at most payload_max each, one of
// length 0 for an empty tensor.
template <class F>
void for_each_chunk(std::size_t total, F&& f) {
  std::size_t offset = 0;
  do {
    const auto length = std::min<std::size_t>(total - offset, payload_max);
    f(chunk_part{offset, length});
    offset += length;
  } while (offset < total);
}

// Why something that arrived was not used.
enum class drop_reason : std::uint8_t {
  duplicate,
  gap,
  stale_generation,
  unknown_job,
  other_epoch,
  unknown_edge
};
inline constexpr std::size_t drop_reason_count = 6;
std::string_view to_string(drop_reason r) noexcept;

struct lane_counters {
  std::uint64_t frames_out = 0, bytes_out = 0;  // handed to a connection for the first time
  std::uint64_t frames_in = 0, bytes_in = 0;    // delivered
  std::uint64_t resent = 0;
  std::uint64_t connections = 0;
};

struct link_options {
  // A control frame is small but for plans; a peer that takes none of so many for its whole lease
  // is as good as dead.
  std::size_t control_frames_max = 65'536;
  std::size_t control_bytes_max = std::size_t{256} << 20;
  std::uint32_t ack_frames = 64;                 // an ack is due after so many frames,
  std::size_t ack_bytes = std::size_t{4} << 20;  // or bytes,
  std::int64_t ack_delay_ns = 20'000'000;        // or so long after the first one
  std::int64_t dial_grace_ns = 20'000'000;       // LS-6
  // After a dial that failed; membership's lease ends the retries.
  std::int64_t dial_retry_ns = 100'000'000;
};

class link_session {
 public:
  link_session(node_id self, node_id peer, const link_options& options = {},
               const planted_bugs* bugs = nullptr);

  node_id self() const noexcept { return self_; }
  node_id peer() const noexcept { return peer_; }
  // LS-6: this side dials at once.
  bool dials_first() const noexcept { return raw(self_) < raw(peer_); }

  // --- connections -------------------------------------------------------------------------------
  lane_state state(lane l) const noexcept { return at(l).state; }
  // Both lanes are up.
  bool is_up() const noexcept;
  bool is_closed() const noexcept { return at(lane::control).state == lane_state::closed; }
  // The last sequence received: what we tell the peer before anything else on a new connection.
  std::uint64_t received(lane l) const noexcept { return at(l).received; }
  // A connection stands, and the peer has received up to `peer_received`; it replaces an earlier
  // one. next_to_write() goes on behind that. An error ends the link (LS-4).
  result<void> connected(lane l, std::uint64_t peer_received);
  // False where connected() would refuse: the peer spoke before it received what it has
  // acknowledged since (its dial crossed ours), or it is not the life that we knew.
  bool can_connect(lane l, std::uint64_t peer_received) const noexcept {
    return at(l).state != lane_state::closed && peer_received >= at(l).acked &&
           peer_received <= at(l).written_max;
  }
  // The connection ended or is given up. On a lane that is not up: nothing.
  void lost(lane l, std::int64_t now_ns);
  // The lane is being dialled; connected() or dial_failed() follows.
  void dialing(lane l);
  void dial_failed(lane l, std::int64_t now_ns);
  // A lost lane that is to be dialled now.
  bool dial_due(lane l, std::int64_t now_ns) const noexcept;
  // The next time at which dial_due() or ack_due() becomes true by time alone.
  std::optional<std::int64_t> next_deadline_ns() const noexcept;
  // Lets everything go, kept tensors as well. Nothing follows.
  void close();

  // --- sending -----------------------------------------------------------------------------------
  // Numbers the frame and keeps it; it goes out by next_to_write(), now or after the next
  // connection. Error: LS-5, the link is to be given up. On a closed link: unreachable.
  result<void> send(lane l, frame_kind kind, std::vector<std::byte> header, tensor payload = {},
                    chunk_part part = {});
  // The next frame for the lane's connection, counted as handed over; null: none, or no connection.
  const sent_frame* next_to_write(lane l);
  bool has_to_write(lane l) const noexcept;
  // The peer has everything up to `sequence`. Old news is fine. Error: LS-4.
  result<void> acknowledged(lane l, std::uint64_t sequence);
  // Lets go of kept frames whose header `is_over` says so of (LS-8): nobody would use them any
  // more. `payloads_stay`: the peer may be about to read those of frames that the lane's connection
  // has.
  template <class F>
  void withdraw(lane l, F&& is_over, bool payloads_stay = false) {
    auto& d = at(l);
    const auto stay_until = payloads_stay && d.state == lane_state::up ? d.written : 0;
    for (auto& f : d.kept)
      if (f.sequence > stay_until && !f.header.empty() &&
          is_over(std::span<const std::byte>(f.header)))
        make_empty(d, f);
  }
  std::uint64_t acknowledged_frames(lane l) const noexcept { return at(l).acked; }
  std::size_t unacknowledged_frames(lane l) const noexcept { return at(l).kept.size(); }
  std::size_t unacknowledged_bytes(lane l) const noexcept { return at(l).kept_bytes; }
  std::size_t unacknowledged_payload_bytes(lane l) const noexcept {
    return at(l).kept_payload_bytes;
  }

  // --- receiving ---------------------------------------------------------------------------------
  enum class arrival : std::uint8_t {
    deliver,
    drop,   // a duplicate: counted
    close,  // a gap: counted; close the connection and call lost()
  };
  // A whole frame arrived. Sequence 0 (not numbered) is always delivered.
  arrival arrived(lane l, std::uint64_t sequence, std::size_t bytes, std::int64_t now_ns);
  // Whether the frame that would arrive next with this sequence will be delivered: asked before its
  // payload is read.
  bool would_deliver(lane l, std::uint64_t sequence) const noexcept {
    return sequence == 0 || sequence == at(l).received + 1;
  }
  // The ack to put into a frame that goes out now on this lane.
  std::uint64_t take_ack(lane l) noexcept;
  bool ack_due(lane l, std::int64_t now_ns) const noexcept;
  // Something has arrived since the last ack that we gave.
  bool owes_ack(lane l) const noexcept { return at(l).state == lane_state::up && at(l).owes_ack; }
  // The generation check of a message of a job: LS-7.
  bool admits(node_id sender, node_id receiver) noexcept;

  // --- credits -----------------------------------------------------------------------------------
  // A consumer here gave back `n` credits of an edge whose producer is at the peer.
  void return_credit(job_id job, std::uint32_t epoch, std::uint32_t edge, std::uint32_t n = 1);
  bool has_credits() const noexcept { return !credits_.empty(); }
  // All that were given back since the last call, one entry an edge, in order of (job, epoch,
  // edge).
  std::vector<credit_return> take_credits();

  // --- counters ----------------------------------------------------------------------------------
  void count_drop(drop_reason r) noexcept { ++drops_[static_cast<std::size_t>(r)]; }
  std::uint64_t drops(drop_reason r) const noexcept { return drops_[static_cast<std::size_t>(r)]; }
  const lane_counters& counters(lane l) const noexcept { return at(l).counters; }

 private:
  struct lane_data {
    lane_state state = lane_state::connecting;
    std::deque<sent_frame> kept;  // sequences acked + 1, acked + 2, ...
    std::size_t kept_bytes = 0, kept_payload_bytes = 0;
    std::uint64_t acked = 0;        // by the peer
    std::uint64_t written = 0;      // handed to the current connection up to here
    std::uint64_t written_max = 0;  // to any connection
    std::uint64_t received = 0;
    std::uint32_t unacked_frames = 0;  // received since the last ack that we sent
    std::size_t unacked_bytes = 0;
    std::int64_t ack_at_ns = 0;
    std::int64_t dial_at_ns = 0;
    bool owes_ack = false;
    lane_counters counters;
  };
  lane_data& at(lane l) noexcept { return lanes_[static_cast<std::size_t>(l)]; }
  const lane_data& at(lane l) const noexcept { return lanes_[static_cast<std::size_t>(l)]; }
  void release(lane_data& d, std::uint64_t sequence);
  static void make_empty(lane_data& d, sent_frame& f);
  void merge_credits();

  node_id self_;
  node_id peer_;
  link_options options_;
  const planted_bugs* bugs_;  // tests only
  std::array<lane_data, lane_count> lanes_;
  std::vector<credit_return> credits_;
  std::size_t merge_credits_at_ = 256;
  std::array<std::uint64_t, drop_reason_count> drops_{};
};

}  // namespace troupe
