#pragma once
// Where the sources of the test program that runs are.

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace troupe::test {

// As CMake wrote it beside the program. Throws std::runtime_error where that is missing.
inline std::string source_folder() {
  const auto file =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "source_folder.txt";
  std::ifstream in(file);
  std::string folder;
  std::getline(in, folder);
  if (folder.empty()) throw std::runtime_error(file.string() + " is missing: run CMake again");
  return folder;
}

}  // namespace troupe::test
