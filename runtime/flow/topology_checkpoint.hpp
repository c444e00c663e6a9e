#pragma once
// What is kept of a topology so that another process goes on where this one was: how far its
// sources are, what its stages have learnt, what its shapes hold, and the items that wait between
// stages. It is made while everybody stands still between two calls (flow_group_keeping.cpp). Items
// that cannot be written, and those of replicas on nodes, have gone their way before: sources stand
// still for that long.
//
//   FOLDER/NAME.checkpoint   the newest one; whole or not there
//   FOLDER/NAME.lock         held by the program that runs the topology
//
// TCK-1  read_checkpoint(checkpoint_bytes(c)) is c. Of any other bytes it is an error of one line;
//        one changed bit is noticed.
// TCK-2  A topology that goes on from a checkpoint makes what it would have made after it: its
//        committing ends have each item once: files that they write. Other functions that do
//        something outside, such as for_each, may see the items since the checkpoint twice, and
//        what send_lines() gave a socket that broke with its process may be lost.
// A file that was whole when its program was killed is taken back, and is whole again at the end;
// one that was moved away meanwhile is an error. stop(), and a drain by a tool, are ends: nothing
// is kept after them. Functions are those of the program that goes on, also where replace() had
// brought another one. What it asks of a program: files that are read stay as they are (positions
// count items; those that were read may go); a function that changes what it holds by reference is
// not seen to; an end of one's own advances its `state` after it has written. Items of types that
// cannot be written, those that are neither numbers, texts, tensors, containers of such nor structs
// that list their fields, are let through before: SIGTERM then waits for them. A second signal
// leaves the checkpoint before. A checkpoint costs a sync of each file that is written, and a halt:
// some seconds apart it is not seen.
//
// Threading: values.
// Source: states of processes and of the channels between them at one moment, as of Chandy and
// Lamport (Distributed Snapshots, 1985); that moment is one at which all stand still.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/item.hpp"
#include "troupe/runtime/flow/value_codec.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class flow_graph;
struct flow_edge_info;

struct kept_stage {
  std::string name, kind;
  std::string layout;  // of its state and of the items that it holds
  bool is_over = false;
  std::uint64_t made = 0;      // by a source
  std::uint64_t failures = 0;  // that were borne
  tensor state;                // of stage::keep(); may be empty
  static constexpr auto fields =
      troupe::fields<&kept_stage::name, &kept_stage::kind, &kept_stage::layout,
                     &kept_stage::is_over, &kept_stage::made, &kept_stage::failures,
                     &kept_stage::state>("name", "kind", "layout", "is_over", "made", "failures",
                                         "state");
};

struct kept_edge {
  std::uint32_t from = 0, from_port = 0, to = 0, to_port = 0;
  bool has_ended = false, end_told = false, is_closed = false;
  tensor items;  // kept_items(); empty: none wait
  static constexpr auto fields =
      troupe::fields<&kept_edge::from, &kept_edge::from_port, &kept_edge::to, &kept_edge::to_port,
                     &kept_edge::has_ended, &kept_edge::end_told, &kept_edge::is_closed,
                     &kept_edge::items>("from", "from_port", "to", "to_port", "has_ended",
                                        "end_told", "is_closed", "items");
};

struct topology_checkpoint {
  std::string topology;
  std::uint64_t number = 0;     // 1: the first one of the topology, in whatever process
  std::int64_t saved_unix = 0;  // seconds
  std::uint64_t items = 0;      // that its sources have made
  std::vector<kept_stage> stages;
  std::vector<kept_edge> edges;
  static constexpr auto fields =
      troupe::fields<&topology_checkpoint::topology, &topology_checkpoint::number,
                     &topology_checkpoint::saved_unix, &topology_checkpoint::items,
                     &topology_checkpoint::stages, &topology_checkpoint::edges>(
          "topology", "number", "saved_unix", "items", "stages", "edges");
};

// By stage.
std::vector<bool> over_in(const topology_checkpoint& c);
// Named so that it does not hide bytes_of() of values.
std::vector<std::byte> checkpoint_bytes(const topology_checkpoint& c);
// failed: `name` (a path) is damaged, or of another version.
result<topology_checkpoint> read_checkpoint(std::span<const std::byte> bytes,
                                            const std::string& name);

// usage: some stage of `g`, which was checked, cannot be kept: with its line, and what to do.
result<void> check_checkpoint(const flow_graph& g);

// Whether items that wait there can be in a checkpoint; others have gone their way before.
bool items_may_wait(const flow_graph& g, const flow_edge_info& e);

// --- where they are kept -------------------------------------------------------------------------

struct topology_checkpoint_options {
  std::string folder{};  // empty: none are made
  std::int64_t every_ns = 10'000'000'000;
  // Go on with the checkpoint of a topology of this name, if there is one. Without it, one that is
  // there is an error, so that nobody loses it.
  bool resume = false;
};

class disk;
class disk_lock;

// The checkpoint of one topology on a disk, which this process holds as long as this lives.
class checkpoint_place {
 public:
  // Makes the folder, and reads what is there. Errors: usage: a checkpoint is there, and is not to
  // be resumed; denied: another process runs that topology; those of read_checkpoint().
  static result<checkpoint_place> open(disk& d, const topology_checkpoint_options& o,
                                       const std::string& topology);
  checkpoint_place(checkpoint_place&&) noexcept;
  checkpoint_place& operator=(checkpoint_place&&) noexcept;
  ~checkpoint_place();

  // What was there; it may be taken once.
  std::optional<topology_checkpoint> found;
  result<void> write(topology_checkpoint c);
  // The topology is done: the next one of that name begins anew.
  result<void> remove();
  const std::string& path() const noexcept { return path_; }

 private:
  checkpoint_place();
  disk* disk_ = nullptr;
  std::unique_ptr<disk_lock> lock_;
  std::string topology_, path_;
  std::uint64_t number_ = 0;
};

}  // namespace troupe
