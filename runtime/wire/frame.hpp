#pragma once
// The frame: what a connection between two nodes carries, and its incremental codec.
//
//   offset  bytes  field (integers are little-endian)
//        0      4  magic "TRPF"
//        4      2  version of this format; magic and version never change place
//        6      1  kind
//        7      1  flags: bit 0, the payload has a checksum; bit 1, it stays where it is; bit 2,
//                  who sends this frame can read the memory of who gets it; the others are 0
//        8      4  header length:  bounded by kind, see below
//       12      4  payload length: bounded by kind, see below
//       16      8  sequence on its lane; 0: not numbered
//       24      8  ack: every sequence of the other direction up to here has arrived
//       32      8  checksum of the payload (XXH3-64) with flag bit 0, its address in the sender's
//                  memory with bit 1, else 0
//       40     16  room for a keyed checksum; 0
//       56      8  checksum of the header: XXH3-64(header, seed = XXH3-64(bytes 0..55 of this
//                  prelude))
//       64         header (Cap'n Proto, or the fixed formats of runtime/wire/handshake.hpp), then
//       the
//                  raw payload, unless it stays
//
// A payload that stays is not on the wire: the receiver, a process of the same machine, reads it
// out of the sender's memory, which lies there unchanged until the frame is acknowledged or its
// connection has ended, which the receiver can see there (actors/net/peer_memory.hpp). Only who has
// said that it can (bit 2) is sent such frames. What stays has no checksum.
//
// The codec is pure: no socket, no clock. The decoder tells its reader where the next bytes go, so
// that the payload of a chunk is read from the socket into the tensor that it belongs to:
//
//   for (;;) {
//     switch (decoder.next()) {
//       case need_bytes:     n = readv(fd, decoder.space()); decoder.filled(n); break;
//       case header_ready:   decoder.deliver_to(destination), or read_in_place() of what stays,
//                            or decoder.discard(); break;
//       case frame_complete: use decoder.prelude(), decoder.header(), decoder.payload(); break;
//       case failed:         decoder.fault() says why: close the connection, count it.
//     }
//   }
//
// Threading: none of its own; one owner.
//
// FR-1  Nothing is allocated for a length before it is within the limits, and a header beyond the
//       read-ahead takes memory only as its bytes arrive (64 KiB, then at most twice what has
//       arrived).
// FR-2  header_ready comes after the header's checksum was found right, and only for a payload of
//       at least one byte.
// FR-3  frame_complete comes after the payload's checksum was found right, also for a discarded
//       payload.
// FR-4  A decoder that has failed stays failed and takes no further byte.
// FR-5  Every byte sequence is answered by events or one fault: never a crash, an endless loop or a
//       read out of bounds.
// FR-6  header() is aligned to 8 bytes, as Cap'n Proto asks.
// FR-7  A payload that stays is a fault (bad flags) where nobody has said that it can be read.

#include "troupe/schema/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// The numbers are on the wire.
enum class frame_kind : std::uint8_t {
  hello = 1,
  proof = 2,
  refuse = 3,
  identity = 4,
  control = 5,
  chunk = 6
};
inline constexpr std::uint8_t frame_kind_last = 6;
std::string_view to_string(frame_kind k) noexcept;

inline constexpr std::uint32_t frame_magic = 0x46505254;  // "TRPF"
inline constexpr std::uint16_t frame_version = 2;
inline constexpr std::size_t prelude_bytes = 64;
inline constexpr std::uint8_t flag_payload_checksum = 1;
inline constexpr std::uint8_t flag_payload_stays = 2;
inline constexpr std::uint8_t flag_reads_memory = 4;

// Hello, proof, refuse: before anybody is trusted.
inline constexpr std::uint32_t handshake_header_max = 1024;
inline constexpr std::uint32_t header_max = 64 * 1024;                 // identity, chunk
inline constexpr std::uint32_t control_header_max = 16 * 1024 * 1024;  // a plan travels in one
// Chunk only; the others have none.
inline constexpr std::uint32_t payload_max = 1024 * 1024;

// Before the peer is proven only the first frames may come; afterwards only the others.
enum class frame_trust : std::uint8_t { stranger, peer };

struct frame_prelude {
  std::uint16_t version = frame_version;
  frame_kind kind = frame_kind::control;
  std::uint8_t flags = 0;
  std::uint32_t header_length = 0;
  std::uint32_t payload_length = 0;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  std::uint64_t payload_checksum = 0;
  std::uint64_t payload_address = 0;  // of one that stays; else 0

  bool payload_stays() const noexcept { return payload_address != 0; }
};

// Why a connection was given up. `none` counts nothing.
enum class frame_fault : std::uint8_t {
  none,
  bad_magic,    // not our protocol at all
  bad_version,  // prelude().version says which
  bad_kind,     // unknown, or a stranger sent what only a proven peer may, or the other way round
  bad_flags,    // a reserved bit or byte is set
  header_too_long,
  payload_too_long,  // also: a payload where the kind has none
  bad_header_checksum,
  bad_payload_checksum,
  truncated,   // the connection ended inside a frame (finish())
  unreadable,  // a payload that stays could not be read
  protection,  // TLS: missing, not wanted, or its bytes were changed (actors/net/tls_channel.hpp)
};
inline constexpr std::size_t frame_fault_count = 12;
std::string_view to_string(frame_fault f) noexcept;

// Faults counted by kind, for the debug tool.
struct fault_counters {
  std::array<std::uint64_t, frame_fault_count> by_fault{};

  void count(frame_fault f) noexcept { ++by_fault[static_cast<std::size_t>(f)]; }
  std::uint64_t of(frame_fault f) const noexcept { return by_fault[static_cast<std::size_t>(f)]; }
  std::uint64_t total() const noexcept;
};

// What a sender fills in; lengths and checksums come from the bytes.
struct frame_fields {
  frame_kind kind = frame_kind::control;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  bool reads_memory = false;   // we can read the receiver's memory
  bool payload_stays = false;  // and it ours: the payload, if there is one, is not sent
};

// The prelude that stands in front of `header` and `payload`, which stay where they are. Lengths
// within the limits of the kind are the caller's duty (expects).
std::array<std::byte, prelude_bytes> make_prelude(const frame_fields& fields,
                                                  std::span<const std::byte> header,
                                                  std::span<const std::byte> payload,
                                                  bool checksum_payload);
// The whole frame in one piece, for small ones and tests; without a payload that stays.
std::vector<std::byte> encode_frame(const frame_fields& fields, std::span<const std::byte> header,
                                    std::span<const std::byte> payload = {},
                                    bool checksum_payload = true);

class frame_decoder {
 public:
  enum class event : std::uint8_t { need_bytes, header_ready, frame_complete, failed };

  explicit frame_decoder(frame_trust trust = frame_trust::stranger);
  ~frame_decoder();
  frame_decoder(frame_decoder&&) noexcept;
  frame_decoder& operator=(frame_decoder&&) noexcept;

  // Frames after the current one come from a proven peer.
  void trust_peer() noexcept { trust_ = frame_trust::peer; }
  // Payloads may stay in the peer's memory from now on (FR-7).
  void admit_payloads_that_stay() noexcept { admits_staying_ = true; }

  // Where the next bytes go, after need_bytes: first the rest of a payload (or nothing), then
  // read-ahead. Behind a payload the read-ahead is short, so that little of the next payload is
  // copied. At least one byte in all.
  std::array<std::span<std::byte>, 2> space();
  // The reader has written `n` bytes to space(), first piece first.
  void filled(std::size_t n);
  // What follows from the bytes that are here. After header_ready, deliver_to() or discard() comes
  // first.
  event next();

  // Of the current frame: valid from header_ready or frame_complete to the next call of next().
  const frame_prelude& prelude() const noexcept { return prelude_; }
  std::span<const std::byte> header() const noexcept { return header_; }
  // Where the payload was delivered; empty if it was discarded or there is none.
  std::span<std::byte> payload() const noexcept { return payload_; }

  // The payload goes to `destination`, which is payload_length bytes long and stays valid until
  // frame_complete.
  void deliver_to(std::span<std::byte> destination);
  void discard();
  // A payload that stays, which the reader has copied to `destination` itself.
  void read_in_place(std::span<std::byte> destination);
  // ... or could not: fails (unreadable).
  void unreadable() noexcept { (void)fail(frame_fault::unreadable); }

  // The stream has ended: none at a boundary between frames, else truncated (or the fault it failed
  // with before).
  frame_fault finish();
  frame_fault fault() const noexcept { return fault_; }
  // "connection sent ...": what was wrong, for people.
  error fault_error() const;
  std::size_t buffered_bytes() const noexcept { return end_ - begin_; }

 private:
  enum class state : std::uint8_t { prelude, header, decide, payload, complete, failed };
  struct checksum_state;

  bool parse_prelude();
  event take_header();
  event take_payload();
  void begin_payload();
  void add_to_checksum(std::span<const std::byte> bytes);
  bool is_long_header() const noexcept;
  std::span<std::byte> aside() noexcept;
  std::span<std::byte> aside_room();
  event fail(frame_fault f) noexcept;

  std::unique_ptr<std::byte[]> ahead_;  // read-ahead; bytes [begin_, end_) are not used up yet
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<std::uint64_t> aside_;  // the header, aligned
  std::size_t header_done_ = 0;       // bytes of a header that is longer than the read-ahead
  std::unique_ptr<checksum_state> checksum_;
  frame_prelude prelude_;
  std::uint64_t header_checksum_ = 0;
  std::uint64_t header_seed_ = 0;
  std::span<const std::byte> header_;
  std::span<std::byte> payload_;
  std::size_t payload_done_ = 0;
  bool discards_ = false;
  bool admits_staying_ = false;
  state state_ = state::prelude;
  frame_fault fault_ = frame_fault::none;
  frame_trust trust_;
};

}  // namespace troupe
