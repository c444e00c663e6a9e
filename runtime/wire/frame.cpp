#include "troupe/runtime/wire/frame.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace troupe {
namespace {

// Enough for hundreds of credits or a dozen headers in one read.
constexpr std::size_t read_ahead_bytes = 64 * 1024;
// Behind a payload: the next prelude and header, and little of the next payload, which would be
// copied.
constexpr std::size_t short_read_ahead_bytes = 2 * 1024;
constexpr std::size_t seed_bytes = prelude_bytes - 8;

template <class T>
void put(std::byte* at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    at[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <class T>
T get(const std::byte* at) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(value);
}

std::uint32_t header_limit(frame_kind k) noexcept {
  switch (k) {
    case frame_kind::hello:
    case frame_kind::proof:
    case frame_kind::refuse: return handshake_header_max;
    case frame_kind::identity:
    case frame_kind::chunk: return header_max;
    case frame_kind::control: return control_header_max;
  }
  return 0;
}

std::uint32_t payload_limit(frame_kind k) noexcept {
  return k == frame_kind::chunk ? payload_max : 0;
}

// A refusal may come at any time before the link is up.
bool may_send(frame_trust trust, frame_kind k) noexcept {
  const bool first = k == frame_kind::hello || k == frame_kind::proof;
  return k == frame_kind::refuse || first == (trust == frame_trust::stranger);
}

std::uint64_t header_checksum(std::uint64_t seed, std::span<const std::byte> header) noexcept {
  return XXH3_64bits_withSeed(header.data(), header.size(), seed);
}

}  // namespace

struct frame_decoder::checksum_state {
  XXH3_state_t xxh;
};

std::string_view to_string(frame_kind k) noexcept {
  constexpr std::string_view names[] = {"none",     "hello",   "proof", "refuse",
                                        "identity", "control", "chunk"};
  const auto i = static_cast<std::size_t>(k);
  return i <= frame_kind_last ? names[i] : "unknown";
}

std::string_view to_string(frame_fault f) noexcept {
  constexpr std::string_view names[frame_fault_count] = {"none",
                                                         "bad magic",
                                                         "bad version",
                                                         "bad kind",
                                                         "bad flags",
                                                         "header too long",
                                                         "payload too long",
                                                         "bad header checksum",
                                                         "bad payload checksum",
                                                         "truncated",
                                                         "unreadable payload",
                                                         "bad protection"};
  return names[static_cast<std::size_t>(f)];
}

std::uint64_t fault_counters::total() const noexcept {
  return std::accumulate(by_fault.begin() + 1, by_fault.end(), std::uint64_t{0});
}

std::array<std::byte, prelude_bytes> make_prelude(const frame_fields& fields,
                                                  std::span<const std::byte> header,
                                                  std::span<const std::byte> payload,
                                                  bool checksum_payload) {
  expects(header.size() <= header_limit(fields.kind),
          "a frame's header is longer than its kind allows");
  expects(payload.size() <= payload_limit(fields.kind),
          "a frame's payload is longer than its kind allows");
  const bool stays = fields.payload_stays && !payload.empty();
  const bool has_checksum = checksum_payload && !payload.empty() && !stays;
  std::array<std::byte, prelude_bytes> p{};
  put(p.data(), frame_magic);
  put(p.data() + 4, frame_version);
  put(p.data() + 6, static_cast<std::uint8_t>(fields.kind));
  put(p.data() + 7, static_cast<std::uint8_t>((has_checksum ? flag_payload_checksum : 0) |
                                              (stays ? flag_payload_stays : 0) |
                                              (fields.reads_memory ? flag_reads_memory : 0)));
  put(p.data() + 8, static_cast<std::uint32_t>(header.size()));
  put(p.data() + 12, static_cast<std::uint32_t>(payload.size()));
  put(p.data() + 16, fields.sequence);
  put(p.data() + 24, fields.ack);
  put(p.data() + 32, has_checksum ? std::uint64_t{XXH3_64bits(payload.data(), payload.size())}
                     : stays      ? std::uint64_t{reinterpret_cast<std::uintptr_t>(payload.data())}
                                  : std::uint64_t{0});
  put(p.data() + seed_bytes, header_checksum(XXH3_64bits(p.data(), seed_bytes), header));
  return p;
}

std::vector<std::byte> encode_frame(const frame_fields& fields, std::span<const std::byte> header,
                                    std::span<const std::byte> payload, bool checksum_payload) {
  const auto p = make_prelude(fields, header, payload, checksum_payload);
  std::vector<std::byte> bytes;
  bytes.reserve(p.size() + header.size() + payload.size());
  bytes.insert(bytes.end(), p.begin(), p.end());
  bytes.insert(bytes.end(), header.begin(), header.end());
  if (!fields.payload_stays) bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

frame_decoder::frame_decoder(frame_trust trust) : trust_(trust) {}
frame_decoder::~frame_decoder() = default;
frame_decoder::frame_decoder(frame_decoder&&) noexcept = default;
frame_decoder& frame_decoder::operator=(frame_decoder&&) noexcept = default;

std::array<std::span<std::byte>, 2> frame_decoder::space() {
  expects(state_ != state::decide && state_ != state::failed, "frame_decoder::space() out of turn");
  if (ahead_ == nullptr) ahead_ = std::make_unique_for_overwrite<std::byte[]>(read_ahead_bytes);
  // What is left is part of a prelude or of a header that fits, so it moves once per frame at most.
  if (begin_ != 0) {
    std::memmove(ahead_.get(), ahead_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<std::byte> rest(ahead_.get() + end_, read_ahead_bytes - end_);
  if (state_ == state::payload && !discards_)
    return {payload_.subspan(payload_done_),
            rest.first(std::min(rest.size(), short_read_ahead_bytes))};
  if (state_ == state::header && is_long_header()) {
    return {aside_room(), rest.first(std::min(rest.size(), short_read_ahead_bytes))};
  }
  return {std::span<std::byte>{}, rest};
}

void frame_decoder::filled(std::size_t n) {
  if (state_ == state::payload && !discards_) {
    const std::size_t direct = std::min(n, payload_.size() - payload_done_);
    add_to_checksum(payload_.subspan(payload_done_, direct));
    payload_done_ += direct;
    n -= direct;
  } else if (state_ == state::header && is_long_header()) {
    const std::size_t direct = std::min(n, aside_room().size());
    header_done_ += direct;
    n -= direct;
  }
  expects(n <= read_ahead_bytes - end_, "more bytes than frame_decoder::space() had room for");
  end_ += n;
}

frame_decoder::event frame_decoder::next() {
  expects(state_ != state::decide, "frame_decoder::next() before deliver_to() or discard()");
  if (state_ == state::failed) return event::failed;
  if (state_ == state::complete) {
    header_ = {};
    payload_ = {};
    // A plan's 16 MiB are not kept for the headers of a few hundred bytes that follow.
    if (aside_.size() * 8 > read_ahead_bytes) aside_ = {};
    state_ = state::prelude;
  }
  if (state_ == state::prelude) {
    if (buffered_bytes() < prelude_bytes) return event::need_bytes;
    if (!parse_prelude()) return event::failed;
    state_ = state::header;
  }
  if (state_ == state::header) {
    const event e = take_header();
    if (e != event::frame_complete) return e;
  }
  return take_payload();
}

bool frame_decoder::parse_prelude() {
  const std::byte* p = ahead_.get() + begin_;
  if (get<std::uint32_t>(p) != frame_magic) return fail(frame_fault::bad_magic) != event::failed;
  prelude_.version = get<std::uint16_t>(p + 4);
  if (prelude_.version != frame_version) return fail(frame_fault::bad_version) != event::failed;
  const auto kind = get<std::uint8_t>(p + 6);
  prelude_.kind = static_cast<frame_kind>(kind);
  if (kind == 0 || kind > frame_kind_last || !may_send(trust_, prelude_.kind))
    return fail(frame_fault::bad_kind) != event::failed;
  prelude_.flags = get<std::uint8_t>(p + 7);
  prelude_.header_length = get<std::uint32_t>(p + 8);
  prelude_.payload_length = get<std::uint32_t>(p + 12);
  prelude_.sequence = get<std::uint64_t>(p + 16);
  prelude_.ack = get<std::uint64_t>(p + 24);
  const bool has_checksum = (prelude_.flags & flag_payload_checksum) != 0,
             stays = (prelude_.flags & flag_payload_stays) != 0;
  const auto about_payload = get<std::uint64_t>(p + 32);
  prelude_.payload_checksum = has_checksum ? about_payload : 0;
  prelude_.payload_address = stays ? about_payload : 0;
  if (prelude_.header_length > header_limit(prelude_.kind))
    return fail(frame_fault::header_too_long) != event::failed;
  if (prelude_.payload_length > payload_limit(prelude_.kind))
    return fail(frame_fault::payload_too_long) != event::failed;
  constexpr auto known_flags = flag_payload_checksum | flag_payload_stays | flag_reads_memory;
  const bool is_flagged_right =
      (prelude_.flags & ~known_flags) == 0 && !(has_checksum && stays) &&
      (has_checksum || stays ? prelude_.payload_length > 0 : about_payload == 0) &&
      (!stays || (admits_staying_ && about_payload != 0));
  if (!is_flagged_right || get<std::uint64_t>(p + 40) != 0 || get<std::uint64_t>(p + 48) != 0)
    return fail(frame_fault::bad_flags) != event::failed;
  header_seed_ = XXH3_64bits(p, seed_bytes);
  header_checksum_ = get<std::uint64_t>(p + seed_bytes);
  begin_ += prelude_bytes;
  header_done_ = 0;
  return true;
}

// frame_complete here means: the header is done, and nobody needs to be asked for a destination.
frame_decoder::event frame_decoder::take_header() {
  const std::size_t length = prelude_.header_length;
  if (is_long_header()) {
    while (header_done_ < length && begin_ != end_) {
      const auto room = aside_room();
      const std::size_t n = std::min(room.size(), end_ - begin_);
      std::memcpy(room.data(), ahead_.get() + begin_, n);
      header_done_ += n;
      begin_ += n;
    }
    if (header_done_ < length) return event::need_bytes;
    header_ = aside().first(length);
    if (header_checksum(header_seed_, header_) != header_checksum_)
      return fail(frame_fault::bad_header_checksum);
  } else {
    if (buffered_bytes() < length) return event::need_bytes;
    const std::span<const std::byte> found(ahead_.get() + begin_, length);
    if (header_checksum(header_seed_, found) != header_checksum_)
      return fail(frame_fault::bad_header_checksum);
    // Copied, because the read-ahead moves on while the payload arrives, and because of FR-6.
    if (aside_.size() * 8 < length) aside_.resize((length + 7) / 8);
    if (length > 0) std::memcpy(aside().data(), found.data(), length);
    header_ = aside().first(length);
    begin_ += length;
  }
  payload_done_ = 0;
  discards_ = true;  // until deliver_to()
  state_ = prelude_.payload_length == 0 ? state::payload : state::decide;
  return state_ == state::decide ? event::header_ready : event::frame_complete;
}

void frame_decoder::deliver_to(std::span<std::byte> destination) {
  expects(state_ == state::decide && !prelude_.payload_stays(),
          "frame_decoder::deliver_to() without header_ready, or of what stays");
  expects(destination.size() == prelude_.payload_length,
          "a payload's destination has another length than the payload");
  payload_ = destination;
  discards_ = false;
  begin_payload();
}

void frame_decoder::discard() {
  expects(state_ == state::decide, "frame_decoder::discard() without header_ready");
  begin_payload();
}

void frame_decoder::read_in_place(std::span<std::byte> destination) {
  expects(state_ == state::decide && prelude_.payload_stays(),
          "frame_decoder::read_in_place() without header_ready, or of what does not stay");
  expects(destination.size() == prelude_.payload_length,
          "a payload's destination has another length than the payload");
  payload_ = destination;
  begin_payload();
}

void frame_decoder::begin_payload() {
  state_ = state::payload;
  if (prelude_.payload_stays()) payload_done_ = prelude_.payload_length;
  if ((prelude_.flags & flag_payload_checksum) == 0) return;
  if (checksum_ == nullptr) checksum_ = std::make_unique<checksum_state>();
  XXH3_64bits_reset(&checksum_->xxh);
}

// As the bytes arrive, while they are still in the cache.
void frame_decoder::add_to_checksum(std::span<const std::byte> bytes) {
  if ((prelude_.flags & flag_payload_checksum) != 0 && !bytes.empty())
    XXH3_64bits_update(&checksum_->xxh, bytes.data(), bytes.size());
}

frame_decoder::event frame_decoder::take_payload() {
  const std::size_t n = std::min(prelude_.payload_length - payload_done_, buffered_bytes());
  if (n > 0) {
    const std::span<const std::byte> found(ahead_.get() + begin_, n);
    add_to_checksum(found);
    if (!discards_) std::memcpy(payload_.data() + payload_done_, found.data(), n);
    payload_done_ += n;
    begin_ += n;
  }
  if (payload_done_ < prelude_.payload_length) return event::need_bytes;
  if ((prelude_.flags & flag_payload_checksum) != 0 &&
      XXH3_64bits_digest(&checksum_->xxh) != prelude_.payload_checksum)
    return fail(frame_fault::bad_payload_checksum);
  state_ = state::complete;
  return event::frame_complete;
}

bool frame_decoder::is_long_header() const noexcept {
  return prelude_.header_length > read_ahead_bytes;
}

std::span<std::byte> frame_decoder::aside() noexcept {
  return {reinterpret_cast<std::byte*>(aside_.data()), aside_.size() * 8};
}

// Where the rest of a long header goes. FR-1: room for as much again as has arrived.
std::span<std::byte> frame_decoder::aside_room() {
  const std::size_t length = prelude_.header_length;
  if (header_done_ == aside().size()) {
    const std::size_t wanted = std::min(length, std::max(read_ahead_bytes, 2 * header_done_));
    aside_.resize((wanted + 7) / 8);
  }
  return aside().first(std::min(aside().size(), length)).subspan(header_done_);
}

frame_decoder::event frame_decoder::fail(frame_fault f) noexcept {
  fault_ = f;
  state_ = state::failed;
  header_ = {};
  payload_ = {};
  return event::failed;
}

frame_fault frame_decoder::finish() {
  const bool is_at_boundary =
      (state_ == state::prelude || state_ == state::complete) && buffered_bytes() == 0;
  if (state_ != state::failed && !is_at_boundary) fail(frame_fault::truncated);
  return fault_;
}

error frame_decoder::fault_error() const {
  const auto refused = [](std::string what) { return error(error_code::failed, std::move(what)); };
  switch (fault_) {
    case frame_fault::none: return refused("nothing is wrong");
    case frame_fault::bad_magic:
      return refused(
          "the peer does not speak Troupe's protocol (its bytes do not begin like a frame)");
    case frame_fault::bad_version:
      return refused(fmt::format(
          "the peer speaks frame version {}, this node version {}: run the same release on both",
          prelude_.version, frame_version));
    case frame_fault::bad_kind:
      return refused(fmt::format(
          "the peer sent a frame of kind {} ({}), which may not come {}",
          static_cast<unsigned>(prelude_.kind), to_string(prelude_.kind),
          trust_ == frame_trust::stranger ? "before it has proven itself" : "any more"));
    case frame_fault::bad_flags:
      return refused("the peer set flags that this release does not know");
    case frame_fault::header_too_long:
      return refused(fmt::format(
          "the peer announced a header of {} bytes in a frame of kind {}; at most {} may come",
          prelude_.header_length, to_string(prelude_.kind), header_limit(prelude_.kind)));
    case frame_fault::payload_too_long:
      return refused(fmt::format(
          "the peer announced a payload of {} bytes in a frame of kind {}; at most {} may come",
          prelude_.payload_length, to_string(prelude_.kind), payload_limit(prelude_.kind)));
    case frame_fault::bad_header_checksum:
      return refused("a frame's header was damaged on the way (checksum)");
    case frame_fault::bad_payload_checksum:
      return refused("a frame's payload was damaged on the way (checksum)");
    case frame_fault::truncated: return refused("the connection ended in the middle of a frame");
    case frame_fault::unreadable:
      return refused("a payload in the peer's memory could not be read");
    case frame_fault::protection:
      return refused("the connection's protection is missing, or failed");
  }
  return refused("unknown fault");
}

}  // namespace troupe
