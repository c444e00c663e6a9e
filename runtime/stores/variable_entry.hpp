#pragma once
// One variable of a store: its value, what optimizers keep beside it, and what an update makes of
// it.
//
// An entry is never changed: an update makes a new one, out of place, so whoever has an entry reads
// one version of it. The memory of the version before is written by the next update, once nobody
// else has it.
//
// UE-1  updated() is a pure function of the entry and of its arguments: equal updates in equal
//       order give equal bits, those of a synchronous training with one worker.
//
// Threading: values; an entry is read by any thread. updated() is called for one update of a
// variable at a time.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace troupe {

struct kept_tensor {
  tensor now;
  tensor spare{};  // memory of the version before
};

struct optimizer_state {
  optimizer_spec optimizer{};      // which made it
  std::uint64_t updates = 0;       // gradients that it has applied
  std::vector<kept_tensor> slots;  // in the order of slots_of()
};

struct variable_entry {
  kept_tensor value;
  std::map<std::string, optimizer_state, std::less<>> states{};  // by their names
};

// What a run tells of one update.
struct update_operands {
  tensor operand;
  tensor rate{}, when{};  // none where the update has none
};

// Whether `when` lets the update be made.
bool is_made(const update_operands& with);
// Errors: usage: another size; slots of this name that another optimizer made. Throws
// std::bad_alloc.
result<variable_entry> updated(const variable_entry& before, const graph_update& u,
                               const update_operands& with);

}  // namespace troupe
