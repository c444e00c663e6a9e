#pragma once
// The shared libraries that tests load (tests/actors/process/loaded_library.cpp).

#include "tests/support/source_folder.hpp"

#include <string>

namespace troupe::test {

inline std::string loaded_library(const std::string& name) {
  return build_folder() + "/bin/libloaded_" + name + ".so";
}

}  // namespace troupe::test
