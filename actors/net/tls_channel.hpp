#pragma once
// One end of a connection that is protected by TLS 1.3, as bytes in and bytes out: what a socket
// carries on one side, what the program says on the other.
//
//   tls_channel ch(context, tls_role::initiator);
//   write ch.to_wire() to the socket, ch.written(n); read from it into ch.wire_space(),
//   ch.wire_filled(n); then ch.read(): until is_open() it gives no bytes and goes on with the
//   handshake.
//
// TLS-1  Bytes that read() gives are those that the peer's send() was given, in that order, each
//       once, from the first on: what was changed, left out, repeated or put in on the way ends the
//       channel (failed), and it stays so.
// TLS-2  is_open() only if the peer has shown that it holds the token, or a certificate that the CA
//       has signed, and only with an exchange of fresh keys.
// TLS-3  A failure of the handshake at the acceptor that comes before its first answer leaves no
// byte
//       in to_wire(): who uses it may tell the reason in plain bytes.
// TLS-4  Takes a bounded amount of memory: about 32 KiB in OpenSSL, and until it is open as much as
//       the first message says, at most 128 KiB; the space for bytes of the wire (a record until
//       allow_large_reads()), and what send() has encrypted and nobody has written.
// TLS-5  Keys for sending change after `rekey_records` records, long before the limit of AES-GCM
//       (RFC 8446, 5.5).
//
// Threading: none of its own; one owner. No socket, no clock but OpenSSL's for the dates in
// certificates.

#include "troupe/actors/net/tls_context.hpp"
#include "troupe/runtime/wire/handshake.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class tls_role : std::uint8_t { initiator, acceptor };

class tls_channel {
 public:
  static constexpr std::size_t record_bytes = 16 * 1024;
  static constexpr std::uint64_t rekey_records_default = std::uint64_t{1} << 22;  // 64 GiB

  enum class status : std::uint8_t {
    handshaking,
    open,
    closed,  // the peer has said that nothing more comes
    failed,  // why(), reason()
  };

  tls_channel(std::shared_ptr<const tls_context> context, tls_role role,
              std::uint64_t rekey_records = rekey_records_default);
  ~tls_channel();
  tls_channel(const tls_channel&) = delete;
  tls_channel& operator=(const tls_channel&) = delete;

  // The initiator's first bytes; nothing at the acceptor.
  void start();

  // Room for at least one byte of the wire. What was filled before and is not used up stays.
  std::span<std::byte> wire_space();
  void wire_filled(std::size_t n);
  void allow_large_reads();
  // Goes on with what came from the wire: plain bytes go to `to`. 0: none are here, or the state
  // has changed; ask state() then.
  std::size_t read(std::span<std::byte> to);
  // Whether read() may go on without bytes of the wire.
  bool has_input() const noexcept;

  // Encrypts, when open; what does not fill a record waits for flush() or the next call.
  void send(std::span<const std::byte> plain);
  void flush();
  // Says that nothing more will be sent (close_notify), when open.
  void close();
  std::span<const std::byte> to_wire() const noexcept;
  void written(std::size_t n);

  status state() const noexcept { return status_; }
  bool is_open() const noexcept { return status_ == status::open; }
  // Equal at both ends of this connection and nowhere else (RFC 9266, tls-exporter). From open on.
  std::array<std::byte, 32> binding() const;
  // How often this end has changed the keys that it sends with.
  std::uint64_t key_changes() const noexcept { return key_changes_; }

  // When failed: for the peer and for people.
  refusal why() const noexcept { return why_; }
  const std::string& reason() const noexcept { return reason_; }
  // Whether it will be so the next time, too: what was changed on the way may not be.
  bool is_verdict() const noexcept { return is_verdict_; }
  // Whether the other end knows by what is in to_wire(), or has said it itself.
  bool has_answered() const noexcept;

 private:
  struct engine;
  friend struct tls_hooks;

  void handshake_on();
  void write_record(std::span<const std::byte> plain);
  void fail();
  void note(refusal why, std::string text);

  std::shared_ptr<const tls_context> context_;
  tls_role role_;
  std::unique_ptr<engine> engine_;
  status status_ = status::handshaking;
  refusal why_ = refusal::none;
  std::string reason_;
  bool is_verdict_ = true;
  std::vector<std::byte> gathered_;  // less than a record
  std::uint64_t rekey_records_;
  std::uint64_t records_ = 0;  // since keys were changed
  std::uint64_t key_changes_ = 0;
};

}  // namespace troupe
