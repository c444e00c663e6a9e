#pragma once
// Plans whose large bytes travel apart from them: weights and data that a program holds as
// constants. A plan names them by their content, so that each goes to a node once, however many
// workers have it, and again for no later epoch of the job.
//
//   coordinator                                a node
//   encode_apart(plan) -> bytes, blobs
//   place_part{bytes}                     -->  decode_apart(bytes) -> what it lacks
//   on want_blob: a piece of one          <->  blob_pull (runtime/jobs/blob_pull.hpp)
//                                              give() each, finish() -> the plan
//
// Threading: values. Errors: usage: bytes that are no plan, or blobs that do not fit.

#include "troupe/runtime/plan/blob_id.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// Attributes with fewer bytes stay in the plan.
inline constexpr std::size_t apart_bytes_min = std::size_t{64} << 10;
// Of one, and of all that a plan names.
inline constexpr std::uint64_t blob_bytes_max = std::uint64_t{16} << 30;

struct apart_plan {
  std::vector<std::byte> bytes;  // the plan without its blobs
  blob_map blobs;
};
// `known`: of what was encoded before, whose bytes need not be read again; grows.
class known_blobs {
 public:
  blob_id id(const shared_bytes& bytes);

 private:
  // By where they lie; held, so that nothing else comes to lie there.
  std::map<const std::byte*, std::pair<blob_id, shared_bytes>> ids_;
};
apart_plan encode_apart(const plan& p, known_blobs& known);

// A plan as decoded, which may lack blobs.
class unfinished_plan {
 public:
  const blob_map& blobs() const noexcept { return blobs_; }  // empty bytes: not given yet
  // Bytes of that id; the caller has seen to it. Nothing where the plan does not name it.
  void give(const blob_id& id, shared_bytes bytes);
  bool is_whole() const noexcept;
  // Of all blobs that it names.
  std::uint64_t blob_bytes() const noexcept;
  // Requires is_whole(). Errors: usage: PL-1 to PL-12.
  result<plan> finish();

 private:
  friend result<unfinished_plan> decode_apart(std::span<const std::byte> bytes);
  struct place {
    std::uint32_t actor = 0, op = 0;
    std::string attribute;
    blob_id id;
  };
  plan plan_;
  std::vector<place> places_;
  blob_map blobs_;
};
// Also of what encode() has written.
result<unfinished_plan> decode_apart(std::span<const std::byte> bytes);

}  // namespace troupe
