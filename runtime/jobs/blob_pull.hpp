#pragma once
// What a node has of the blobs of a job's plan (runtime/plan/plan_blobs.hpp), and what it asks the
// coordinator for: one blob after the other, piece by piece, a few pieces ahead of what has come.
//
//   call        does
//   want        from then on those are asked for, of `from`
//   on_piece    the next bytes of the blob at hand; a piece that is not the next one says nothing
//
// BP-1  At most `ahead` pieces are asked for and have not come, so a coordinator sends no more than
//       that to a node at a time.
// BP-2  A blob is there when all of its bytes are, and have its id.
// Threading: values; the node's.

#include "troupe/runtime/plan/blob_id.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

class blob_pull {
 public:
  static constexpr std::size_t ahead = 4;

  void want(node_id from, const std::vector<blob_id>& ids);
  // What is here and not wanted goes.
  void forget_others();
  // They need not come.
  void have(const blob_map& blobs);
  // To be sent to from(), each once.
  std::vector<want_blob> take_requests(job_id job);
  // Errors: failed: the coordinator does not have it, or its bytes are other ones; it is asked for
  // no more, and what is wanted never comes.
  result<void> on_piece(node_id from, blob_piece p);

  node_id from() const noexcept { return from_; }
  bool has_all() const;
  // nullptr: it is not there.
  const shared_bytes* find(const blob_id& id) const;

 private:
  struct coming {
    blob_id id;
    std::vector<std::byte> bytes;
    std::uint64_t asked = 0;  // bytes of it
  };

  bool is_wanted(const blob_id& id) const;

  node_id from_{};
  std::vector<blob_id> wanted_;
  blob_map here_;
  std::optional<coming> coming_, parked_;  // parked: half of one that may be wanted again
};

// The piece that `w` asks for.
blob_piece piece_of(const want_blob& w, const blob_map& blobs);

}  // namespace troupe
