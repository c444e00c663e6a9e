#pragma once
// Shared libraries of users' ops (runtime/graph/op_library.hpp), from files. What is loaded stays
// for the life of the process.

#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/schema/error.hpp"

#include <string>

namespace troupe {

// Loads the file and adds its ops. Errors: not_found (no such file), usage (no shared library, or
// one without an entry; those of add_ops()).
result<void> load_ops(op_table& ops, kernel_table& kernels, const std::string& file);

}  // namespace troupe
