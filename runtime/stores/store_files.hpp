#pragma once
// Variables of a store as tensors of a file, and back.
//
// A value is named as its variable; what an optimizer keeps beside it is "NAME#STATE/TYPE/SLOT", as
// "w#adam/adam/first_moment", and the gradients that it has applied, i64[], "NAME#STATE/TYPE/
// updates". So a file without optimizers is what other frameworks read and write.
//
// SF-1  variables_of(tensors_of(view)) has the values and states of the view.
// SF-2  Whatever the names, types and shapes: variables that fit together, or an error that names
//       the file and the tensor.
//
// Threading: pure functions.

#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/stores/store_state.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Of a variable: one of a graph, which is no other thing in files.
bool is_stored_name(std::string_view name) noexcept;

std::vector<named_tensor> tensors_of(const store_view& view, bool with_optimizers);

struct loaded_variable {
  std::string name;
  variable_entry entry;
  // Why no variable can be it: its type, or slots that do not fit. Empty: one can.
  std::string problem{};
};
// Of slots that say no state ("w#velocity", as checkpoints of trainings have them): the optimizer
// that made them, and how many gradients it has applied.
struct unnamed_state {
  std::string optimizer;
  std::uint64_t updates = 0;
};
// In order of their names. usage: a file whose tensors' names do not fit together (SF-2).
result<std::vector<loaded_variable>> variables_of(std::vector<named_tensor> tensors,
                                                  std::string_view file,
                                                  const unnamed_state& unnamed = {});

struct fitted {
  std::vector<stored_variable> changes;
  std::vector<std::string> missing;  // of the store, which the file has not
  std::vector<std::string> unused;   // of the file, which the store has not
};
// What a store with these variables takes of a file; one without any takes all. usage: shapes or
// types that differ, each named; no variable at all; a problem of one that the store would take.
result<fitted> fit(std::vector<loaded_variable> loaded, const store_view& there,
                   std::string_view file);

}  // namespace troupe
