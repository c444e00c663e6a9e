#pragma once
// Shared libraries of users' ops (runtime/graph/op_library.hpp), from files. What is loaded stays
// for the life of the process.

#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/schema/error.hpp"

#include <string>

namespace troupe {

// A shared library that has been opened; it stays so.
struct opened_library {
  void* handle = nullptr;
  void* find(const char* symbol) const;  // null: it has none of that name
};
// Errors: not_found (no such file), usage (no shared library, or not a whole one).
result<opened_library> open_library(const std::string& file);

// Loads the file and adds its ops; of one that has stages only (runtime/flow/stage_library.hpp),
// nothing. Errors: not_found (no such file), usage (no shared library, or
// one without an entry; those of add_ops()).
result<void> load_ops(op_table& ops, kernel_table& kernels, const std::string& file);

}  // namespace troupe
