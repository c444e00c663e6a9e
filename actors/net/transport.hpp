#pragma once
// How a node's links reach other nodes: listen, connect, frames in both directions, and time. TCP
// is one implementation, with or without TLS, a simulated network another; a link sees no
// difference, but for binding().
//
// Threading: every call and every callback happens on the transport's own thread (that of its
// io_loop). No callback comes from within a call: they come later, from the loop.
//
// TR-1  Frames of one channel arrive in the order in which they were sent, each once, unchanged or
//       not at all.
// TR-2  on_closed comes at most once, as the last callback of a channel, and not after close(),
//       abort() or destruction.
// TR-3  A channel may be closed, aborted or destroyed from within any of its callbacks, and its
//       handler with it.
// TR-4  A payload tensor is kept until its bytes are with the kernel, or encrypted (or the channel
//       is gone), and no longer. One that stays, because the peer reads it where it is
//       (let_peer_read() here, and read_peer_memory() there, which every frame from there tells),
//       is kept by who sent it, unchanged, until the frame is acknowledged or the channel is
//       closed, aborted or destroyed: the channel then withdraws its word (PE-3 of
//       actors/net/peer_memory.hpp), so that the peer takes nothing for it that it is not, and
//       counts what it could not read as a fault of the connection.
// TR-5  Until trust_peer() a channel takes only the small first frames, and counts as one of a
//       limited number of strangers.
// TR-6  Bytes that are no frame close the channel (on_closed) and are counted by their fault;
//       nothing else is harmed.
// TR-7  A channel that is to be protected (actors/net/tls_context.hpp) sends no frame and gives
// none
//       before it is, but for one `refuse`, by which the other end says in plain bytes why it does
//       not go on.

#include "troupe/actors/net/peer_memory.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/text/address.hpp"
#include "troupe/runtime/wire/frame.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace troupe {

struct outgoing_frame {
  frame_kind kind = frame_kind::control;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  std::vector<std::byte> header;
  // The payload: `length` bytes of a tensor, read when they are written to the socket.
  tensor payload;
  std::size_t offset = 0;
  std::size_t length = 0;
};

struct received_frame {
  frame_kind kind = frame_kind::control;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  std::span<const std::byte> header;  // aligned to 8 bytes; valid during the callback
  // Where payload_destination put it; empty if discarded or none.
  std::span<std::byte> payload;
  std::uint32_t payload_length = 0;
};

class channel_handler {
 public:
  virtual ~channel_handler() = default;
  // A frame with a payload has begun (its header is intact): where its payload goes, exactly
  // payload_length bytes that stay valid until on_frame, on_closed or the end of the channel.
  // Empty: discard it (on_frame still comes).
  virtual std::span<std::byte> payload_destination(frame_kind kind,
                                                   std::span<const std::byte> header,
                                                   std::uint32_t payload_length) = 0;
  virtual void on_frame(const received_frame& frame) = 0;
  // The peer closed, the connection broke (unreachable), or the bytes were no frames (failed; fault
  // says which).
  virtual void on_closed(const error& why, frame_fault fault) = 0;
};

struct channel_options {
  // Bound of what the kernel holds, sent or not; 0: the system's.
  std::size_t send_buffer_bytes = 0;
  // Bound of what the kernel holds and has not sent yet; 0: the system's.
  std::size_t unsent_bytes = 0;
};

class channel {
 public:
  virtual ~channel() = default;  // as abort(), unless close() came before

  // Frames go to `handler` from now on; nothing is read before the first call. The handler outlives
  // the channel or the next start().
  virtual void start(channel_handler& handler) = 0;
  // Queues the frame. What one callback sends is gathered and written when it returns. After close,
  // abort or on_closed it is dropped.
  virtual void send(outgoing_frame frame) = 0;
  // Bytes of queued frames that are not with the kernel yet.
  virtual std::size_t unsent_bytes() const = 0;
  // Calls `fn` whenever unsent_bytes() has fallen to `low_bytes` or below after having been above.
  virtual void on_writable(std::size_t low_bytes, std::function<void()> fn) = 0;
  // The peer has proven itself: larger frames, and no longer a stranger (TR-5).
  virtual void trust_peer() = 0;
  virtual void configure(const channel_options& options) = 0;
  // The peer's memory can be read from here: large payloads need not be sent, if the peer keeps
  // them until they are acknowledged.
  virtual void read_peer_memory(const peer_memory&) {}
  // And ours from there: `word` is what the peer was told to look at. Withdrawn at the latest when
  // the channel ends.
  virtual void let_peer_read(own_probe) {}
  // What is sent now, or waits to be, may stay where it is: at once, or from the peer's first word
  // that it reads. Who sends keeps it (TR-4).
  virtual bool payloads_may_stay() const { return false; }
  // What the protected connection is known by, equal at both ends and nowhere else; empty where it
  // is not protected. From the first frame on.
  virtual std::vector<std::byte> binding() const { return {}; }
  // Both ends are on this machine, by their addresses, and what is sent need not go over the
  // socket.
  virtual bool is_within_machine() const { return false; }
  // No further callback; what is queued is still written for a short while in the background, then
  // the connection ends.
  virtual void close() = 0;
  // No further callback; the connection ends at once, what is queued is dropped.
  virtual void abort() = 0;
  // Of the other end, numeric.
  virtual const address& peer_address() const = 0;
  // Of this end, numeric: by which the other end reached it, or which the route to there has. Empty
  // where the network has no such thing.
  virtual address local_address() const { return {}; }
};

enum class timer_id : std::uint64_t {};  // 0 is none

class transport {
 public:
  using accept_handler = std::function<void(std::unique_ptr<channel>)>;
  using connect_handler = std::function<void(result<std::unique_ptr<channel>>)>;

  virtual ~transport() = default;

  // Accepts connections on `at`; returns the address with the actual port. usage: address not of
  // this machine, port in use.
  virtual result<address> listen(const address& at, accept_handler on_accept) = 0;
  virtual void stop_listening() = 0;
  // Calls back once: a channel, or unreachable (refused, no route, unknown name) or timed_out after
  // `timeout_ns`.
  virtual void connect(const address& to, std::int64_t timeout_ns,
                       connect_handler on_connected) = 0;

  // Monotonic.
  virtual std::int64_t now_ns() const = 0;
  // Calls `fn` once, `delay_ns` from now or up to a millisecond later.
  virtual timer_id after(std::int64_t delay_ns, std::function<void()> fn) = 0;
  // Its callback will not come; unknown and past ids are fine.
  virtual void cancel(timer_id id) = 0;

  // Of all channels so far.
  virtual const fault_counters& faults() const = 0;
};

}  // namespace troupe
