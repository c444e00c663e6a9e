#pragma once
// A temporary folder of this process, removed with everything in it at the end of its life.

#include "troupe/schema/error.hpp"

#include <filesystem>
#include <memory>
#include <string>

#include <stdlib.h>

namespace troupe {

class scratch_folder {
 public:
  static result<std::shared_ptr<scratch_folder>> make(const std::string& prefix) {
    std::error_code failed;
    auto pattern = (std::filesystem::temp_directory_path(failed) / (prefix + "-XXXXXX")).string();
    if (failed || ::mkdtemp(pattern.data()) == nullptr)
      return error(error_code::failed, "no temporary folder can be made: " + pattern +
                                           " (set TMPDIR to a folder that can be written)");
    return std::shared_ptr<scratch_folder>(new scratch_folder(pattern));
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const noexcept { return path_; }

 private:
  explicit scratch_folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace troupe
