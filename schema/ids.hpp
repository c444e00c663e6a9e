#pragma once
// Logical identities of everything that crosses a file, a process or an actor boundary.
//
// Identity is not location: an id says who, a table elsewhere says where. Nodes and jobs
// have strong types; actors, edges, ports and tasks are indices of a plan (runtime/plan/plan.hpp).

#include <compare>
#include <cstdint>
#include <functional>

namespace troupe {

// One life of one process in a cluster: a new life is a new id.
enum class node_id : std::uint64_t {};
enum class job_id : std::uint64_t {};  // one run of one plan

template <class Id>
  requires std::is_enum_v<Id>
constexpr auto raw(Id id) noexcept {
  return static_cast<std::underlying_type_t<Id>>(id);
}

// What a message belongs to. Tags of one edge ascend; an op fires once per tag.
// Fields that are still always 0 stand here from the first day because they stand on the wire.
struct tag {
  std::uint64_t step = 0;
  // In loops: the iterations of the loops around (runtime/plan/loop_rules.hpp); 0: in none.
  std::uint64_t frame = 0;
  std::uint32_t run = 0;
  std::uint32_t iteration = 0;
  // Marks the first step that is not in cut `mark` any more (0: no mark). It travels with whatever
  // is computed from the marked item and is not part of the tag's identity.
  std::uint32_t mark = 0;
  std::uint16_t micro_batch = 0;
  // A dead token: what it would carry lies in a branch that is not taken or in a loop that has
  // ended, and this is the level of the outermost such (1, 2, ...; 0: alive). Its item has no
  // tensor. It is not part of the tag's identity.
  std::uint16_t dead = 0;

  friend constexpr std::strong_ordering operator<=>(const tag& a, const tag& b) noexcept {
    if (const auto c = a.step <=> b.step; c != 0) return c;
    if (const auto c = a.run <=> b.run; c != 0) return c;
    if (const auto c = a.micro_batch <=> b.micro_batch; c != 0) return c;
    if (const auto c = a.frame <=> b.frame; c != 0) return c;
    return a.iteration <=> b.iteration;
  }
  friend constexpr bool operator==(const tag& a, const tag& b) noexcept { return (a <=> b) == 0; }
};

}  // namespace troupe
