#pragma once
// Which build of which library an op comes from, as nodes, plans and members say it: a library of a
// user's own ops (runtime/graph/op_library.hpp).

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe {

// Of a name, of a version: they stand in every member's record.
inline constexpr std::size_t library_text_bytes_max = 64;
inline constexpr std::size_t libraries_max = 16;  // of a process, of a plan

struct library_id {
  std::string name, version;
  std::uint64_t abi = 0;  // op_library_abi() of who built it
  friend auto operator<=>(const library_id&, const library_id&) = default;
};

}  // namespace troupe
