#pragma once
// What a node keeps of a variable, in memory, from one epoch of a job to the next: versions with
// their optimizer state.
//
// It is where the shard's own slots are, so that nothing is copied when an epoch ends, whatever
// ends it.
//
// Threading: the shard's actor while there is one, else the node. The actor's end lies between the
// two.
//
// KS-1  A version that is listed is whole: values and optimizer state were written completely, and
//       nobody writes them.
// KS-2  What is kept without older versions (asynchronous) is torn from the moment in which an
//       apply in place begins until it is done: is_torn then, and nothing of it is used.

#include "troupe/devices/tensor.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct kept_version {
  // Nullopt: the slot holds nothing that anybody may go back to.
  std::optional<std::uint64_t> version;
  tensor values;
  std::vector<tensor> state;  // the optimizer's slots, in its order

  // Whether all of it is there, for an optimizer with this many slots.
  bool is_whole(std::size_t slots) const noexcept;
};

struct kept_shard {
  std::vector<kept_version> slots;
  // By worker, in the newest version: all its gradients of steps below.
  std::vector<std::uint64_t> applied;
  bool is_torn = false;
};

// As its node tells the coordinator.
struct kept_report {
  std::string variable;
  std::vector<std::uint64_t> versions;  // ascending
  std::vector<std::uint64_t> applied;
  friend bool operator==(const kept_report&, const kept_report&) = default;
};

// Nothing is listed of what is torn.
kept_report report_of(const std::string& variable, const kept_shard& k);

}  // namespace troupe
