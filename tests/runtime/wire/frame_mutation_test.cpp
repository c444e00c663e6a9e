// Hostile bytes, from a seed: whatever is done to frames, a decoder answers with frames or one
// fault.

#include "troupe/runtime/wire/frame.hpp"

#include "tests/support/frame_reader.hpp"
#include "tests/support/repetitions.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

using namespace troupe;
using test::frame_reader;

namespace {

constexpr int mutations = 100'000;

class mutator {
 public:
  explicit mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  std::vector<std::byte> bytes(std::size_t n) {
    std::vector<std::byte> out(n);
    for (auto& b : out) b = static_cast<std::byte>(random_());
    return out;
  }

  // One to four good frames, small so that the mutation hits something that matters.
  std::vector<std::byte> stream(std::size_t& frames) {
    std::vector<std::byte> out;
    frames = 1 + below(4);
    for (std::size_t i = 0; i < frames; ++i) {
      const bool is_chunk = below(2) == 0;
      const auto one =
          encode_frame({is_chunk ? frame_kind::chunk : frame_kind::control, random_(), random_()},
                       bytes(below(64)), is_chunk ? bytes(below(200)) : std::vector<std::byte>{});
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  void mutate(std::vector<std::byte>& s) {
    const std::size_t at = below(s.size());
    switch (below(6)) {
      case 0: s[at] ^= static_cast<std::byte>(1u << below(8)); break;
      case 1: s.resize(at); break;
      case 2: {  // a length, anything from huge to nearly right
        const std::uint32_t length = below(2) == 0 ? static_cast<std::uint32_t>(random_())
                                                   : static_cast<std::uint32_t>(below(2'000'000));
        std::memcpy(s.data() + (below(2) == 0 ? 8 : 12), &length, 4);
        break;
      }
      case 3: {  // a part comes twice
        const std::size_t n = 1 + below(s.size() - at);
        const std::vector<std::byte> part(s.begin() + static_cast<std::ptrdiff_t>(at),
                                          s.begin() + static_cast<std::ptrdiff_t>(at + n));
        s.insert(s.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
        break;
      }
      case 4: {  // random bytes in between
        const auto noise = bytes(1 + below(100));
        s.insert(s.begin() + static_cast<std::ptrdiff_t>(at), noise.begin(), noise.end());
        break;
      }
      default: s.erase(s.begin() + static_cast<std::ptrdiff_t>(at)); break;
    }
  }

 private:
  std::mt19937_64 random_;
};

// Sequence and checksums of good frames are random, so a damaged frame that looks like a good one
// is not by chance one.
bool all_are_of(const std::vector<test::read_frame>& found,
                const std::vector<test::read_frame>& good) {
  return std::all_of(found.begin(), found.end(), [&](const test::read_frame& f) {
    return std::any_of(good.begin(), good.end(), [&](const test::read_frame& g) {
      return f.prelude.sequence == g.prelude.sequence && f.prelude.ack == g.prelude.ack &&
             f.header == g.header && f.payload == g.payload;
    });
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(frame_mutation)

BOOST_AUTO_TEST_CASE(FR_5_mutated_frames_are_refused_and_never_delivered_changed) {
  fault_counters faults;
  for (int seed = 0; seed < mutations; ++seed) {
    mutator m(static_cast<std::uint64_t>(seed));
    std::size_t sent = 0;
    auto stream = m.stream(sent);
    frame_reader good(frame_trust::peer);
    good.read(stream, stream.size());
    BOOST_REQUIRE_EQUAL(good.frames.size(), sent);

    m.mutate(stream);
    frame_reader bad(frame_trust::peer);
    bad.read(stream, 1 + m.below(300), m.below(8) == 0);
    for (auto& f : bad.frames)  // of discarded payloads there is nothing to compare
      if (f.payload.empty() && f.prelude.payload_length > 0)
        for (const auto& g : good.frames)
          if (g.prelude.sequence == f.prelude.sequence) f.payload = g.payload;
    if (!all_are_of(bad.frames, good.frames))
      BOOST_FAIL("a changed frame was delivered, seed " << seed);
    faults.count(bad.decoder.finish());
  }
  // The mutations reach every check of the decoder; whether memory can be read is told by who reads
  // it.
  for (std::size_t f = 1; f < frame_fault_count; ++f)
    if (static_cast<frame_fault>(f) != frame_fault::unreadable &&
        static_cast<frame_fault>(f) != frame_fault::protection)  // no fault of a frame
      BOOST_TEST(faults.by_fault[f] > 0, to_string(static_cast<frame_fault>(f))
                                             << " was never provoked");
  BOOST_TEST(faults.total() > std::uint64_t{mutations} * 3 / 4);
}

BOOST_AUTO_TEST_CASE(FR_5_random_bytes_are_no_frame) {
  for (std::uint64_t seed = 0; seed < repetitions(10'000); ++seed) {
    mutator m(seed);
    frame_reader r(m.below(2) == 0 ? frame_trust::peer : frame_trust::stranger);
    r.read(m.bytes(64 + m.below(500)), 1 + m.below(100));
    BOOST_REQUIRE(r.frames.empty());
    BOOST_REQUIRE_EQUAL(to_string(r.decoder.fault()), "bad magic");
  }
}

BOOST_AUTO_TEST_SUITE_END()
