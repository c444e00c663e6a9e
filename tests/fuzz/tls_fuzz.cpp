// libFuzzer over a protected connection: bytes of a stranger at either end, and those of a genuine
// peer of which some are changed on the way.
//
// The first byte chooses. A property that does not hold traps; memory and undefined behaviour are
// the sanitizers' part.

#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/actors/net/tls_channel.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

using namespace troupe;

namespace {

using input = test::fuzz_input;
using test::check;
using bytes = std::vector<std::byte>;

const std::shared_ptr<const tls_context>& context() {
  static const auto made = *tls_context::of_token("lab", secret("a token of twenty-five bytes"));
  return made;
}

bytes give(tls_channel& ch, std::span<const std::byte> wire, std::size_t piece) {
  bytes said, room(20'000);
  while (!wire.empty() && ch.state() != tls_channel::status::failed &&
         ch.state() != tls_channel::status::closed) {
    const auto space = ch.wire_space();
    check(!space.empty());
    const auto n = std::min({wire.size(), space.size(), piece});
    std::ranges::copy(wire.first(n), space.begin());
    ch.wire_filled(n);
    wire = wire.subspan(n);
    while (const auto got = ch.read(room))
      said.insert(said.end(), room.begin(), room.begin() + static_cast<long>(got));
  }
  return said;
}

bytes take(tls_channel& ch) {
  const auto w = ch.to_wire();
  bytes out(w.begin(), w.end());
  ch.written(out.size());
  return out;
}

void has_a_reason(const tls_channel& ch) {
  if (ch.state() != tls_channel::status::failed) return;
  check(!ch.reason().empty() && ch.why() != refusal::none);
}

// Nobody who does not hold the token.
void stranger(input in) {
  tls_channel ch(context(), in.byte() % 2 == 0 ? tls_role::acceptor : tls_role::initiator);
  ch.start();
  (void)take(ch);
  const std::size_t piece = 1 + in.byte();
  check(give(ch, in.rest(), piece).empty());
  check(!ch.is_open());
  has_a_reason(ch);
}

// A peer that does, and somebody between the two.
void man_on_the_way(input in) {
  tls_channel a(context(), tls_role::initiator), b(context(), tls_role::acceptor);
  a.start();
  const std::size_t changes_from = in.byte() % 8;  // of the turns
  const std::size_t piece = 1 + in.size() % 5000;
  bytes forth(1 + in.size() % 40'000, std::byte{7}), back(1 + in.size() % 40'000, std::byte{9});
  bytes at_a, at_b;
  bool has_sent = false;
  for (std::size_t turn = 0; turn < 8; ++turn) {
    if (!has_sent && a.is_open() && b.is_open()) {
      has_sent = true;
      a.send(forth), a.flush();
      b.send(back), b.flush();
    }
    for (const bool is_forth : {true, false}) {
      auto wire = take(is_forth ? a : b);
      if (turn >= changes_from && !wire.empty() && !in.is_empty()) {
        const auto at = in.size() % wire.size();
        switch (in.byte() % 5) {
          case 0: wire[at] ^= static_cast<std::byte>(1 + in.byte() % 255); break;
          case 1: wire.erase(wire.begin() + static_cast<long>(at)); break;
          case 2: wire.resize(at); break;
          case 3: wire = in.bytes(in.byte()); break;
          default: break;
        }
      }
      const auto said = give(is_forth ? b : a, wire, piece);
      auto& all = is_forth ? at_b : at_a;
      all.insert(all.end(), said.begin(), said.end());
    }
  }
  const auto begins_with = [](const bytes& all, const bytes& part) {
    return part.size() <= all.size() && std::equal(part.begin(), part.end(), all.begin());
  };
  check(begins_with(forth, at_b) && begins_with(back, at_a));
  has_a_reason(a);
  has_a_reason(b);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(std::as_bytes(std::span(data, size)));
  if (in.byte() % 4 == 0)
    stranger(in);
  else
    man_on_the_way(in);
  return 0;
}
