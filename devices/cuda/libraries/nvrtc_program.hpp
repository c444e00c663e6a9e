#pragma once
// From CUDA C++ source to a binary for a chip, by NVRTC, kept in memory and in a folder.
//
// Sources may include "troupe/devices/element_ops.hpp" and what that includes: headers are texts in
// the program itself, and those of the C++ standard library a few lines of our own, since neither
// need be on the machine that runs.
//
// Threading: any; compilations of one program wait for each other.
//
// NP-1  The key of an entry is a hash of source, headers, chip, options and NVRTC's version: what
//       was made by others is never taken.
// NP-2  A file of the folder is written beside it and renamed; one that is cut off, changed or
//       foreign is passed over and made anew.
// NP-3  A folder that cannot be written is no error: binaries are then kept in memory alone.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::cuda {

using binary = std::shared_ptr<const std::vector<char>>;

// Files of binaries (NP-2): "TRKB", version, size, hash, bytes.
class binary_folder {
 public:
  explicit binary_folder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  // nullopt: none, or none that is whole.
  std::optional<std::vector<char>> read(std::string_view key) const;
  bool write(std::string_view key, std::span<const char> bytes) const;
  std::filesystem::path file_of(std::string_view key) const;

 private:
  std::filesystem::path folder_;  // empty: none
};

struct compiler_stats {
  std::uint64_t compiled = 0, from_memory = 0, from_folder = 0;
};

class kernel_compiler {
 public:
  // `folder`: for binaries; empty: in memory alone. Error: there is no NVRTC.
  static result<std::unique_ptr<kernel_compiler>> make(std::filesystem::path folder);
  ~kernel_compiler();

  // For compute capability major.minor; where NVRTC does not know it, PTX of the newest one below
  // that it knows, which the driver compiles. `what` names the source in errors, which have NVRTC's
  // own words.
  result<binary> compile(const std::string& source, int major, int minor, std::string_view what);
  compiler_stats stats() const;
  std::string version() const;

 private:
  struct api;
  kernel_compiler(std::unique_ptr<api> a, std::filesystem::path folder);
  result<binary> compile_now(const std::string& source, const std::string& architecture,
                             std::string_view what) const;

  std::unique_ptr<api> api_;
  binary_folder folder_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, binary> kept_;
  compiler_stats stats_;
};

}  // namespace troupe::cuda
