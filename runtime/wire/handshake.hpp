#pragma once
// The first frames of a connection: two processes prove to each other that they hold the cluster's
// token, then say who they are.
//
//   initiator (connects)        acceptor
//   hello ------------------>   <----------------- hello      at once, both
//   proof ------------------>                                 after the other's hello
//                               <----------------- proof      after the initiator's proof was right
//   identity --------------->                                 after the acceptor's proof was right
//                               <-------------- identity      after its owner said accept()
//
//   hello     version u16, lane u8 (acceptor: 255), length of the name u8, 4 bytes 0, nonce[32],
//             name of the cluster
//   proof     HMAC-SHA256(token, label of the prover's role, initiator's hello, acceptor's hello,
//   and
//             the binding of a protected connection): 32 bytes
//   refuse    refusal u8, a reason for people; the connection ends after it
//   identity  Cap'n Proto (schema/wire.capnp)
//
// Nothing of variable format is parsed before the proof. The acceptor proves second, so that a
// stranger who only connects learns nothing to guess a token from. All of it runs inside of TLS
// where the connection is protected (actors/net/tls_channel.hpp). Without TLS, who can change bytes
// on the way can still take over a proven connection: the proof keeps strangers and mistaken
// neighbours out.
//
// Pure: time and randomness are passed in. Frames come from a frame_decoder, which has checked
// lengths and checksums.
//
// HS-1  established only if the peer proved the same token over both hellos, in the other role:
//       neither a replayed proof (our nonce is new) nor our own one, sent back, is accepted; and
//       over the same protected connection: who stands between two of them cannot pass proofs on.
// HS-2  A frame out of order, of a wrong length or with wrong contents ends in `refused`; no input
//       crashes or allocates beyond it.
// HS-3  Unless finished within handshake_timeout_ns it ends in `refused`.
// HS-4  After refused or established nothing changes any more.

#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/runtime/wire/frame.hpp"
#include "troupe/runtime/wire/secret.hpp"
#include "troupe/schema/error.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// Of what nodes say; frame_version is that of the envelope.
inline constexpr std::uint16_t protocol_version = 2;
inline constexpr std::size_t cluster_name_max = 64;
inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::int64_t handshake_timeout_ns = 2'000'000'000;
using handshake_nonce = std::array<std::byte, nonce_bytes>;

enum class handshake_role : std::uint8_t { initiator, acceptor };

struct handshake_options {
  handshake_role role = handshake_role::initiator;
  std::string cluster;  // 1..64 bytes
  secret token;         // empty: none, on both sides
  member_info self;
  handshake_nonce nonce{};  // fresh and unpredictable for every connection
  // Initiator: which lane of which link this connection is to be, whether the link begins with it,
  // and how much has arrived on the lane before.
  troupe::lane lane = lane::control;
  std::uint64_t link = 0;
  bool begins = true;
  std::uint64_t received = 0;
  node_id expected{};  // 0: whoever answers
  memory_probe probe{};
};

struct handshake_frame {
  frame_kind kind;
  std::vector<std::byte> header;
};

enum class refusal : std::uint8_t {
  none,
  malformed,
  wrong_version,
  wrong_cluster,
  wrong_token,
  itself,
  timed_out,
  lost,
  crossing,    // by its owner: the lane is being dialled from there, or stands
  forgotten,   // by its owner: the link that the connection is for was given up there
  held_dead,   // by its owner: and the peer was, too
  protection,  // by the connection: one end wants TLS and the other does not, or it went wrong
};
inline constexpr std::size_t refusal_count = 12;
std::string_view to_string(refusal r) noexcept;
// The header of a frame `refuse`.
std::vector<std::byte> encode_refusal(refusal why, std::string_view reason);

class handshake {
 public:
  enum class status : std::uint8_t {
    running,
    decide,       // acceptor: peer() is known; accept() or refuse() comes next
    established,  // peer(), peer_received()
    refused,      // why(), reason(); send what take_outgoing() has, then close
  };

  handshake(handshake_options options, std::int64_t now_ns);

  // What the protected connection is known by (channel::binding()), before the first frame came;
  // empty: it is not protected.
  void bind_to(std::span<const std::byte> binding) {
    binding_.assign(binding.begin(), binding.end());
  }
  status on_frame(frame_kind kind, std::span<const std::byte> header);
  status on_time(std::int64_t now_ns);
  std::int64_t deadline_ns() const noexcept { return deadline_ns_; }
  // The connection broke or its bytes were no frames (channel_handler::on_closed).
  status on_closed(const error& why, frame_fault fault);

  // Acceptor, in `decide`: the peer may come in; `received`: every sequence of its lane that has
  // arrived here on that link.
  void accept(std::uint64_t received);
  void refuse(refusal why, std::string text);

  // Frames to send now, in order. Ask after the constructor and after every call.
  std::vector<handshake_frame> take_outgoing();

  status state() const noexcept { return status_; }
  // The peer holds the token: its channel may carry larger frames.
  bool is_proven() const noexcept { return step_ >= step::identity; }
  troupe::lane lane() const noexcept { return options_.lane; }
  // From `decide` on.
  const member_info& peer() const noexcept { return peer_->member; }
  const memory_probe& peer_probe() const noexcept { return peer_->probe; }
  // Every sequence that we sent on this lane of this link, up to here, has arrived there.
  std::uint64_t peer_received() const noexcept { return begins() ? 0 : peer_->received; }
  // The link that the connection is for, and whether it begins with it: the initiator's word.
  std::uint64_t link() const noexcept { return is_acceptor() ? peer_->link : options_.link; }
  bool begins() const noexcept { return is_acceptor() ? peer_->begins : options_.begins; }
  // Acceptor: the peer means to reach another life than this one; it shall learn who answers here.
  bool expects_another() const noexcept {
    return raw(peer_->expected) != 0 && peer_->expected != options_.self.id;
  }
  // When refused: why, and whether it was the peer that refused.
  refusal why() const noexcept { return refusal_; }
  bool is_by_peer() const noexcept { return is_by_peer_; }
  const error& reason() const noexcept { return *reason_; }

 private:
  enum class step : std::uint8_t { hello, proof, identity, owner, done };

  bool is_acceptor() const noexcept { return options_.role == handshake_role::acceptor; }

  void send_hello();
  void send_identity();
  void on_hello(std::span<const std::byte> header);
  void on_proof(std::span<const std::byte> header);
  void on_identity(std::span<const std::byte> header);
  void on_refuse(std::span<const std::byte> header);
  void send(frame_kind kind, std::vector<std::byte> header);
  void end(refusal why, error_code code, std::string text, bool tells_peer);
  void malformed(std::string text);
  std::array<std::byte, 32> proof_of(handshake_role prover) const;

  handshake_options options_;
  std::int64_t deadline_ns_;
  std::vector<std::byte> own_hello_, peer_hello_, binding_;
  std::vector<handshake_frame> outgoing_;
  std::optional<identity> peer_;
  std::optional<error> reason_;
  refusal refusal_ = refusal::none;
  bool is_by_peer_ = false;
  step step_ = step::hello;
  status status_ = status::running;
};

}  // namespace troupe
