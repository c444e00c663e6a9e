#pragma once
// Large bytes of a plan, by their content (runtime/plan/plan_blobs.hpp).

#include "troupe/schema/attributes.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace troupe {

// XXH3's 128 bits, and how many bytes there are.
struct blob_id {
  std::uint64_t low = 0, high = 0, bytes = 0;
  friend auto operator<=>(const blob_id&, const blob_id&) = default;
};
blob_id id_of(std::span<const std::byte> bytes) noexcept;

using blob_map = std::map<blob_id, shared_bytes>;

}  // namespace troupe
