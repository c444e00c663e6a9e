#pragma once
// Files as a whole: read up to a limit, or written so that a reader sees the old bytes or the new
// ones. devices/files/, runtime/onnx/ and runtime/flow/ only.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::host {

// An open file of the system, closed with its owner; negative: none.
class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  descriptor& operator=(descriptor&&) = delete;
  ~descriptor() {
    if (fd_ >= 0) close();
  }
  int get() const noexcept { return fd_; }
  // Closing may report a write that failed late: negative, and errno.
  int close() noexcept;

 private:
  int fd_;
};

// Up to `bytes_max` bytes, fewer at the end of the file. nullopt: errno says why.
std::optional<std::vector<std::byte>> read_some(int fd, std::size_t bytes_max);
// All of them, however many calls that takes. False: errno says why.
bool write_all(int fd, std::span<const std::byte> bytes);

// The first `bytes_max` bytes, or fewer where the file is shorter. `what` is for errors ("training
// images").
result<std::vector<std::byte>> read_beginning(const std::string& path, std::size_t bytes_max,
                                              const std::string& what);
// All of it; more than `bytes_max` is an error.
result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t bytes_max,
                                         const std::string& what);

// Where replace_file() would write: `path`, or what it links to. An error where that is no regular
// file or its folder cannot be written.
result<std::string> replaceable(const std::string& path);
// The pieces one after the other: into a temporary file in the same folder, fsync, rename over
// `path`, fsync of the folder. On an error the temporary file is removed and `path` is as it was.
result<void> replace_file(const std::string& path,
                          std::span<const std::span<const std::byte>> pieces);

}  // namespace troupe::host
