#pragma once
// A temporary folder of the benchmark, removed with what is in it.

#include "troupe/schema/error.hpp"

#include <filesystem>
#include <string>

#include <stdlib.h>

namespace troupe {

class bench_folder {
 public:
  bench_folder() {
    std::error_code failed;
    path_ = (std::filesystem::temp_directory_path(failed) / "troupe-bench-XXXXXX").string();
    if (failed || ::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~bench_folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  bench_folder(const bench_folder&) = delete;
  bench_folder& operator=(const bench_folder&) = delete;

  result<std::string> path() const {
    if (path_.empty())
      return error(error_code::failed,
                   "no temporary folder can be made (set TMPDIR to a folder that can be written)");
    return path_;
  }

 private:
  std::string path_;
};

}  // namespace troupe
