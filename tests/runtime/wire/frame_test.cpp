#include "troupe/runtime/wire/frame.hpp"

#include "tests/support/frame_reader.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

using namespace troupe;
using test::frame_reader;
using event = frame_decoder::event;

namespace {

std::vector<std::byte> some_bytes(std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

void append(std::vector<std::byte>& to, const std::vector<std::byte>& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

struct sample {
  frame_fields fields;
  std::vector<std::byte> header, payload;
  bool has_checksum = true;
};

std::vector<sample> samples() {
  return {
      {{frame_kind::control, 1, 0}, some_bytes(40), {}},
      // Leaves everything behind it misaligned.
      {{frame_kind::chunk, 2, 7}, some_bytes(200), some_bytes(13)},
      {{frame_kind::chunk, 3, 8}, some_bytes(201), some_bytes(payload_max)},
      {{frame_kind::control, 4, 9}, {}, {}},
      {{frame_kind::chunk, 5, 9}, some_bytes(header_max), some_bytes(70'000), false},
      {{frame_kind::control, 6, 9}, some_bytes(300'001), {}},
      {{frame_kind::identity, 0, 0}, some_bytes(100), {}},
      {{frame_kind::chunk, ~0ull, ~0ull}, {}, some_bytes(1)},
  };
}

std::vector<std::byte> encoded(const std::vector<sample>& all) {
  std::vector<std::byte> stream;
  for (const auto& s : all)
    append(stream, encode_frame(s.fields, s.header, s.payload, s.has_checksum));
  return stream;
}

frame_fault fault_of(std::span<const std::byte> bytes, frame_trust trust = frame_trust::peer) {
  frame_reader r(trust);
  r.read(bytes, 4096);
  return r.decoder.fault();
}

// A control frame of 8 bytes with `value` written over it at `at`.
template <class T>
std::vector<std::byte> with(std::size_t at, T value) {
  auto bytes = encode_frame({frame_kind::control, 1, 0}, some_bytes(8));
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(frame)

BOOST_AUTO_TEST_CASE(FR_2_FR_3_FR_6_frames_come_back_whole_whatever_the_size_of_the_pieces) {
  const auto all = samples();
  const auto stream = encoded(all);
  for (const std::size_t piece : {1ul, 7ul, 63ul, 64ul, 65ul, 4096ul, 65'536ul, 10'000'000ul}) {
    frame_reader r(frame_trust::peer);
    BOOST_TEST((r.read(stream, piece) == event::need_bytes));
    BOOST_TEST(to_string(r.decoder.finish()) == "none");
    BOOST_REQUIRE_EQUAL(r.frames.size(), all.size());
    BOOST_TEST(r.is_aligned);
    BOOST_TEST(r.headers_ready == 4);
    for (std::size_t i = 0; i < all.size(); ++i) {
      BOOST_TEST((r.frames[i].prelude.kind == all[i].fields.kind));
      BOOST_TEST(r.frames[i].prelude.sequence == all[i].fields.sequence);
      BOOST_TEST(r.frames[i].prelude.ack == all[i].fields.ack);
      BOOST_TEST((r.frames[i].header == all[i].header));
      BOOST_TEST((r.frames[i].payload == all[i].payload));
    }
  }
}

BOOST_AUTO_TEST_CASE(discarded_payloads_do_not_disturb_what_follows) {
  const auto all = samples();
  frame_reader r(frame_trust::peer);
  BOOST_TEST((r.read(encoded(all), 10'000, true) == event::need_bytes));
  BOOST_REQUIRE_EQUAL(r.frames.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    BOOST_TEST((r.frames[i].header == all[i].header));
    BOOST_TEST(r.frames[i].payload.empty());
  }
}

BOOST_AUTO_TEST_CASE(the_bytes_of_a_payload_go_straight_to_their_destination) {
  const auto payload = some_bytes(payload_max);
  const auto bytes = encode_frame({frame_kind::chunk, 1, 0}, some_bytes(100), payload);
  frame_decoder d(frame_trust::peer);
  BOOST_TEST((d.next() == event::need_bytes));
  std::memcpy(d.space()[1].data(), bytes.data(), prelude_bytes + 100);
  d.filled(prelude_bytes + 100);
  BOOST_TEST((d.next() == event::header_ready));
  std::vector<std::byte> destination(payload_max);
  d.deliver_to(destination);
  BOOST_TEST((d.next() == event::need_bytes));
  BOOST_TEST(d.space()[0].data() == destination.data());
  BOOST_TEST(d.space()[0].size() == payload_max);
  BOOST_TEST(d.space()[1].size() < 4096);
}

BOOST_AUTO_TEST_CASE(each_fault_has_its_name) {
  BOOST_TEST(to_string(fault_of(with<std::uint32_t>(0, 0x20544547))) == "bad magic");
  BOOST_TEST(to_string(fault_of(with<std::uint16_t>(4, 1))) == "bad version");
  BOOST_TEST(to_string(fault_of(with<std::uint8_t>(6, 0))) == "bad kind");
  BOOST_TEST(to_string(fault_of(with<std::uint8_t>(6, 7))) == "bad kind");
  BOOST_TEST(to_string(fault_of(with<std::uint8_t>(7, 2))) == "bad flags");
  // A checksum of no payload.
  BOOST_TEST(to_string(fault_of(with<std::uint8_t>(7, 1))) == "bad flags");
  BOOST_TEST(to_string(fault_of(with<std::uint64_t>(48, 1))) == "bad flags");
  BOOST_TEST(to_string(fault_of(with<std::uint32_t>(8, 0xffffffff))) == "header too long");
  BOOST_TEST(to_string(fault_of(with<std::uint32_t>(12, 1))) == "payload too long");
  BOOST_TEST(to_string(fault_of(with<std::uint64_t>(16, 2))) == "bad header checksum");
  BOOST_TEST(to_string(fault_of(with<std::uint8_t>(prelude_bytes + 3, 0))) ==
             "bad header checksum");
  auto chunk = encode_frame({frame_kind::chunk, 1, 0}, some_bytes(8), some_bytes(100));
  chunk.back() ^= std::byte{1};
  BOOST_TEST(to_string(fault_of(chunk)) == "bad payload checksum");
}

BOOST_AUTO_TEST_CASE(limits_hold_to_the_byte) {
  auto length = [](frame_kind kind, std::uint32_t header, std::uint32_t payload,
                   frame_trust trust) {
    auto bytes = encode_frame({kind, 0, 0}, {});
    std::memcpy(bytes.data() + 8, &header, 4);
    std::memcpy(bytes.data() + 12, &payload, 4);
    return to_string(fault_of(bytes, trust));
  };
  BOOST_TEST(length(frame_kind::hello, handshake_header_max, 0, frame_trust::stranger) == "none");
  BOOST_TEST(length(frame_kind::hello, handshake_header_max + 1, 0, frame_trust::stranger) ==
             "header too long");
  BOOST_TEST(length(frame_kind::chunk, header_max, payload_max, frame_trust::peer) == "none");
  BOOST_TEST(length(frame_kind::chunk, header_max + 1, 0, frame_trust::peer) == "header too long");
  BOOST_TEST(length(frame_kind::chunk, 0, payload_max + 1, frame_trust::peer) ==
             "payload too long");
  BOOST_TEST(length(frame_kind::control, control_header_max, 0, frame_trust::peer) == "none");
  BOOST_TEST(length(frame_kind::control, control_header_max + 1, 0, frame_trust::peer) ==
             "header too long");
}

BOOST_AUTO_TEST_CASE(a_stranger_may_send_the_first_frames_only_and_a_peer_the_others_only) {
  for (const auto kind : {frame_kind::hello, frame_kind::proof, frame_kind::refuse,
                          frame_kind::identity, frame_kind::control, frame_kind::chunk}) {
    const bool first = kind == frame_kind::hello || kind == frame_kind::proof;
    const auto bytes = encode_frame({kind, 0, 0}, some_bytes(8));
    const bool refuse = kind == frame_kind::refuse;
    BOOST_TEST(to_string(fault_of(bytes, frame_trust::stranger)) ==
               (first || refuse ? "none" : "bad kind"));
    BOOST_TEST(to_string(fault_of(bytes, frame_trust::peer)) ==
               (!first || refuse ? "none" : "bad kind"));
  }
}

BOOST_AUTO_TEST_CASE(FR_1_an_announced_length_takes_no_memory_until_its_bytes_come) {
  auto bytes = encode_frame({frame_kind::control, 1, 0}, {});
  std::memcpy(bytes.data() + 8, &control_header_max, 4);
  frame_reader r(frame_trust::peer);
  r.read(bytes, 64);
  std::size_t arrived = 0;
  while (arrived < 1'000'000) {
    std::size_t room = 0;
    for (const auto& s : r.decoder.space()) room += s.size();
    BOOST_REQUIRE_LE(room, std::max<std::size_t>(arrived, 65'536) + 65'536);
    r.read(some_bytes(10'000), 10'000);
    arrived += 10'000;
  }
}

BOOST_AUTO_TEST_CASE(FR_7_a_payload_that_stays_is_an_address_and_a_fault_where_nobody_reads) {
  const auto payload = some_bytes(70'000);
  auto stream = encode_frame(
      {.kind = frame_kind::chunk, .sequence = 1, .reads_memory = true, .payload_stays = true},
      some_bytes(100), payload);
  BOOST_TEST(stream.size() == prelude_bytes + 100);
  BOOST_TEST(to_string(fault_of(stream)) == "bad flags");
  append(stream, encode_frame({frame_kind::chunk, 2, 0}, some_bytes(10), some_bytes(5)));
  for (const bool discards : {false, true})
    for (const std::size_t piece : {1ul, 64ul, 4096ul}) {
      frame_reader r(frame_trust::peer);
      r.decoder.admit_payloads_that_stay();
      BOOST_TEST((r.read(stream, piece, discards) == event::need_bytes));
      BOOST_TEST(to_string(r.decoder.finish()) == "none");
      BOOST_REQUIRE_EQUAL(r.frames.size(), 2u);
      const auto& p = r.frames[0].prelude;
      BOOST_TEST(p.payload_stays());
      BOOST_TEST(p.payload_address == reinterpret_cast<std::uintptr_t>(payload.data()));
      BOOST_TEST(p.payload_length == payload.size());
      BOOST_TEST((p.flags & flag_reads_memory) != 0);
      BOOST_TEST(r.frames[0].payload.size() == (discards ? 0 : payload.size()));
      BOOST_TEST((r.frames[1].payload == (discards ? std::vector<std::byte>{} : some_bytes(5))));
      BOOST_TEST((r.frames[1].prelude.flags & flag_reads_memory) == 0);
    }
}

BOOST_AUTO_TEST_CASE(FR_7_what_stays_has_an_address_and_no_checksum_and_is_not_empty) {
  const auto fault = [](std::uint8_t flags, std::uint32_t payload_length, std::uint64_t about) {
    auto bytes = with<std::uint8_t>(7, flags);
    bytes[6] = static_cast<std::byte>(frame_kind::chunk);
    std::memcpy(bytes.data() + 12, &payload_length, 4);
    std::memcpy(bytes.data() + 32, &about, 8);
    frame_reader r(frame_trust::peer);
    r.decoder.admit_payloads_that_stay();
    r.read(bytes, 4096);
    return std::string(to_string(r.decoder.fault()));
  };
  BOOST_TEST(fault(flag_payload_stays, 100, 0) == "bad flags");
  BOOST_TEST(fault(flag_payload_stays, 0, 4096) == "bad flags");
  BOOST_TEST(fault(flag_payload_stays | flag_payload_checksum, 100, 4096) == "bad flags");
  BOOST_TEST(fault(0, 100, 4096) == "bad flags");
  // The first that is wrong with it.
  BOOST_TEST(fault(flag_payload_stays, 100, 4096) == "bad header checksum");
  // One that its reader could not read has failed, and says so.
  frame_decoder d(frame_trust::peer);
  d.admit_payloads_that_stay();
  const auto payload = some_bytes(20);
  const auto bytes =
      encode_frame({.kind = frame_kind::chunk, .sequence = 1, .payload_stays = true}, {}, payload);
  BOOST_TEST((d.next() == event::need_bytes));
  std::memcpy(d.space()[1].data(), bytes.data(), bytes.size());
  d.filled(bytes.size());
  BOOST_TEST((d.next() == event::header_ready));
  d.unreadable();
  BOOST_TEST((d.next() == event::failed));
  BOOST_TEST(to_string(d.finish()) == "unreadable payload");
}

BOOST_AUTO_TEST_CASE(FR_4_a_failed_decoder_stays_failed) {
  frame_reader r(frame_trust::peer);
  BOOST_TEST((r.read(with<std::uint32_t>(0, 1), 4096) == event::failed));
  BOOST_TEST((r.read(encoded(samples()), 4096) == event::failed));
  BOOST_TEST(r.frames.empty());
  BOOST_TEST(to_string(r.decoder.finish()) == "bad magic");
}

BOOST_AUTO_TEST_CASE(a_stream_that_ends_inside_a_frame_is_truncated) {
  const auto frame = encode_frame({frame_kind::chunk, 1, 0}, some_bytes(30), some_bytes(500));
  for (const std::size_t n : {1ul, 63ul, 64ul, 93ul, 94ul, 300ul, frame.size() - 1}) {
    frame_reader r(frame_trust::peer);
    r.read(std::span(frame).first(n), 4096);
    BOOST_TEST(to_string(r.decoder.finish()) == "truncated");
  }
  frame_reader r(frame_trust::peer);
  r.read(frame, 4096);
  BOOST_TEST(to_string(r.decoder.finish()) == "none");
}

BOOST_AUTO_TEST_CASE(trust_begins_with_the_next_frame) {
  frame_reader r(frame_trust::stranger);
  r.read(encode_frame({frame_kind::proof, 0, 0}, some_bytes(32)), 4096);
  r.decoder.trust_peer();
  r.read(encode_frame({frame_kind::control, 1, 0}, some_bytes(32)), 4096);
  BOOST_TEST(r.frames.size() == 2);
}

BOOST_AUTO_TEST_CASE(the_text_of_a_version_fault_names_both_versions) {
  frame_reader r(frame_trust::stranger);
  r.read(with<std::uint16_t>(4, 77), 4096);
  BOOST_TEST(r.decoder.fault_error().message().find("version 77, this node version 2") !=
             std::string::npos);
}

// The checksums are XXH3-64 over what the header of frame.hpp says, so that other programs can read
// the format.
BOOST_AUTO_TEST_CASE(a_known_frame_has_known_bytes) {
  const auto p = make_prelude({frame_kind::chunk, 0x0102030405060708, 9}, {},
                              std::vector<std::byte>(3, std::byte{'a'}), true);
  const char* head =
      "TRPF\x02\x00\x06\x01\x00\x00\x00\x00\x03\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\x09";
  BOOST_TEST(std::memcmp(p.data(), head, 25) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
