// libFuzzer over everything that reads bytes of a connection: the frame decoder, the handshake, the
// bodies of frames.
//
// The first byte chooses what the rest is: raw bytes of a stream; frames whose checksums are made
// right, so that what lies behind them is reached; or the frames of a handshake, some genuine and
// some not. A property that does not hold traps; memory and undefined behaviour are the sanitizers'
// part.

#include "tests/fuzz/fuzz_input.hpp"
#include "tests/support/frame_reader.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/runtime/wire/frame.hpp"
#include "troupe/runtime/wire/handshake.hpp"

#include <cstdint>
#include <cstdlib>
#include <span>

using namespace troupe;

namespace {

using input = test::fuzz_input;
using test::check;

void raw_stream(input in) {
  const auto trust = in.byte() % 2 == 0 ? frame_trust::stranger : frame_trust::peer;
  const bool discards = in.byte() % 4 == 0;
  const std::size_t piece = 1 + in.size();
  test::frame_reader r(trust);
  if (in.byte() % 2 == 0) r.decoder.admit_payloads_that_stay();
  r.read(in.rest(), piece, discards);
  check(r.is_aligned);
  const bool failed = r.decoder.fault() != frame_fault::none;
  check(r.read({}, 1) ==
        (failed ? frame_decoder::event::failed : frame_decoder::event::need_bytes));
  check(r.decoder.finish() == frame_fault::none || !r.decoder.fault_error().message().empty());
}

void read_body(const test::read_frame& f) {
  // Aligned, as the decoder's header is.
  std::vector<std::uint64_t> words((f.header.size() + 7) / 8);
  if (!f.header.empty()) std::memcpy(words.data(), f.header.data(), f.header.size());
  const std::span<const std::byte> header(reinterpret_cast<const std::byte*>(words.data()),
                                          f.header.size());
  if (f.prelude.kind == frame_kind::control) {
    if (const auto m = decode_control(header)) check(!encode(*m).empty());
  } else if (f.prelude.kind == frame_kind::chunk) {
    if (const auto m = decode_chunk(header)) check(!encode(*m).empty());
  } else if (f.prelude.kind == frame_kind::identity) {
    if (const auto m = decode_identity(header)) check(!encode(*m).empty());
  }
}

void right_frames(input in) {
  constexpr frame_kind kinds[] = {frame_kind::control, frame_kind::chunk, frame_kind::identity};
  const std::size_t piece = 1 + in.size();
  std::vector<std::byte> stream;
  std::size_t sent = 0;
  for (; !in.is_empty() && sent < 8; ++sent) {
    const auto kind = kinds[in.byte() % 3];
    const bool has_checksum = in.byte() % 2 == 0;
    const auto payload = kind == frame_kind::chunk ? in.bytes(in.byte()) : std::vector<std::byte>{};
    const auto one =
        encode_frame({kind, in.size(), in.size()}, in.bytes(in.size()), payload, has_checksum);
    stream.insert(stream.end(), one.begin(), one.end());
  }
  test::frame_reader r(frame_trust::peer);
  check(r.read(stream, piece) == frame_decoder::event::need_bytes);
  check(r.frames.size() == sent && r.decoder.finish() == frame_fault::none);
  for (const auto& f : r.frames) read_body(f);
}

handshake_options options(handshake_role role) {
  handshake_options o;
  o.role = role;
  o.cluster = "lab";
  o.token = "secret";
  o.nonce[0] = role == handshake_role::initiator ? std::byte{1} : std::byte{2};
  o.self.id = role == handshake_role::initiator ? node_id{1} : node_id{2};
  return o;
}

// The peer holds the token and says what the input says in place of some of its frames.
void first_frames(input in) {
  const auto own = in.byte() % 2 == 0 ? handshake_role::initiator : handshake_role::acceptor;
  const auto other =
      own == handshake_role::initiator ? handshake_role::acceptor : handshake_role::initiator;
  handshake h(options(own), 0);
  handshake peer(options(other), 0);
  bool proof_was_genuine = false;
  for (int i = 0; i < 8; ++i) {
    auto said = peer.take_outgoing();
    if (said.empty())
      said.push_back(
          {static_cast<frame_kind>(1 + in.byte() % frame_kind_last), in.bytes(in.byte())});
    for (auto& f : said) {
      const auto what = in.byte() % 4;
      const bool is_proof = f.kind == frame_kind::proof;
      if (what == 1) f.header = in.bytes(in.size());
      if (what == 2 && !f.header.empty())
        f.header[in.size() % f.header.size()] ^= static_cast<std::byte>(1 + in.byte() % 255);
      if (what == 3) f.kind = static_cast<frame_kind>(1 + in.byte() % frame_kind_last);
      proof_was_genuine = proof_was_genuine ||
                          (is_proof && f.kind == frame_kind::proof && (what == 0 || what == 3));
      h.on_frame(f.kind, f.header);
    }
    if (h.state() == handshake::status::decide && in.byte() % 4 != 0) h.accept(in.size());
    for (const auto& f : h.take_outgoing()) peer.on_frame(f.kind, f.header);
    if (peer.state() == handshake::status::decide) peer.accept(0);
  }
  h.on_time(h.deadline_ns());
  check(h.state() == handshake::status::established || h.state() == handshake::status::refused);
  check(h.state() == handshake::status::refused ? !h.reason().message().empty() : h.is_proven());
  if (!proof_was_genuine) check(!h.is_proven());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(std::as_bytes(std::span(data, size)));
  switch (in.byte() % 3) {
    case 0: raw_stream(in); break;
    case 1: right_frames(in); break;
    default: first_frames(in); break;
  }
  return 0;
}
