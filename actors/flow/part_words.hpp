#pragma once
// What the program of a topology and the nodes that run parts of it say to each other
// (gate_actor.hpp says when). A word is a byte that says which, and the fields of one of these
// (runtime/flow/value_codec.hpp).
//
// Threading: values. Both have the same version of Troupe: links see to that.

#include "troupe/runtime/flow/stage_counters.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class part_word : std::uint8_t {
  place = 1,  // program: place_word
  refused,    // node: refused_word; it has left the topology
  unlinked,   // node: text_word: no stream to that process yet; asked again, it tries again
  placed,     // node: nothing; its streams are bound
  again,      // program: nothing; try again what was unlinked
  start,      // program: nothing
  counts,     // node: counts_word, now and then, and before `over`
  over,       // node: nothing; its stages are over
  failed,     // node: refused_word
  end,        // program: refused_word: how it ended (code 0: well); what still runs ends
};

struct place_word {
  std::uint32_t own = 0;  // who the node is, of the processes
  std::uint64_t topology = 0;
  topology_description what;
  static constexpr auto fields =
      troupe::fields<&place_word::own, &place_word::topology, &place_word::what>("own", "topology",
                                                                                 "what");
};
struct refused_word {
  std::uint8_t code = 0;
  std::string why;
  static constexpr auto fields =
      troupe::fields<&refused_word::code, &refused_word::why>("code", "why");
};
struct text_word {
  std::string text;
  static constexpr auto fields = troupe::fields<&text_word::text>("text");
};
struct stage_count {
  std::uint32_t stage = 0;
  bool is_over = false, is_blocked = false;
  std::uint64_t items_in = 0, items_out = 0, bytes_in = 0, bytes_out = 0, skipped = 0, dropped = 0,
                restarts = 0, measured = 0, measured_ns = 0, calls = 0, blocked_ns = 0;
  float busy = 0;
  static constexpr auto fields =
      troupe::fields<&stage_count::stage, &stage_count::is_over, &stage_count::is_blocked,
                     &stage_count::items_in, &stage_count::items_out, &stage_count::bytes_in,
                     &stage_count::bytes_out, &stage_count::skipped, &stage_count::dropped,
                     &stage_count::restarts, &stage_count::measured, &stage_count::measured_ns,
                     &stage_count::calls, &stage_count::blocked_ns, &stage_count::busy>(
          "stage", "is_over", "is_blocked", "items_in", "items_out", "bytes_in", "bytes_out",
          "skipped", "dropped", "restarts", "measured", "measured_ns", "calls", "blocked_ns",
          "busy");
};
struct counts_word {
  std::vector<stage_count> stages;
  static constexpr auto fields = troupe::fields<&counts_word::stages>("stages");
};

// Of a stage that runs here; and what is told of one elsewhere becomes its counters' content.
stage_count count_of(std::uint32_t stage, const stage_counters& c, float busy);
void keep_count(const stage_count& from, stage_counters& c);

std::vector<std::byte> word_bytes(part_word kind);
template <class Body>
std::vector<std::byte> word_bytes(part_word kind, const Body& body) {
  auto bytes = bytes_of(body);
  bytes.insert(bytes.begin(), static_cast<std::byte>(kind));
  return bytes;
}
// nullopt: it is none.
std::optional<part_word> word_of(std::span<const std::byte> bytes);
template <class Body>
std::optional<Body> body_of(std::span<const std::byte> bytes) {
  return bytes.empty() ? std::nullopt : value_of<Body>(bytes.subspan(1));
}

}  // namespace troupe
