#pragma once
// Where the test program that runs comes from: its sources, and the folder that it was built in.

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

// Where the test program was built: its folder include/ leads to the headers.
inline std::string build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string();
}

}  // namespace troupe::test
