#pragma once
// A disk, as a table of primitives: whoever keeps files gets one passed in, so that a simulator can
// put its own there and crash between any two calls. Each call is one system call or nearly so;
// what must be durable is synced by the caller.
//
// Paths are as the caller's system writes them, with '/' between names. Errors are one line that
// names the path, what was done and why it failed. Their codes:
//   not_found  nothing of that name
//   denied     create(exclusive): it exists; lock(): somebody else holds it
//   usage      the path cannot be used so: a folder or a pipe in place of a file, no permission,
//              read-only
//   failed     the disk: full, broken, ...
//
// Threading: calls of a host disk come from any thread, it has no state; a file and a lock have one
// owner.
//
// DSK-1  Contents are durable after disk_file::sync(); names (created, renamed, removed) after
//        sync_folder() of the folder that holds them. Before that a crash of the machine may keep
//        or lose each of them, and cut contents short.
// DSK-2  rename() within a folder is atomic: whoever looks, even after a crash, finds the old file
//        or the new one.
// DSK-3  Only regular files are opened, and no call waits for another process.

#include "troupe/schema/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// Closed without a word when it is destroyed; close() says whether all went well.
class disk_file {
 public:
  virtual ~disk_file() = default;
  // Behind what was written before. All of it, or an error and a part of it.
  virtual result<void> write(std::span<const std::byte> bytes) = 0;
  virtual result<void> sync() = 0;
  // May report a write that failed late. Nothing else is called afterwards.
  virtual result<void> close() = 0;
};

// Held until it is destroyed; the end of the process ends it too.
class disk_lock {
 public:
  virtual ~disk_lock() = default;
};

class disk {
 public:
  enum class create_mode : std::uint8_t {
    replace,    // a file of that name becomes empty
    exclusive,  // a file of that name is an error (denied); of several callers one succeeds
  };

  virtual ~disk() = default;
  virtual result<std::unique_ptr<disk_file>> create(const std::string& path, create_mode mode) = 0;
  // All of a file; more than `bytes_max` is an error.
  virtual result<std::vector<std::byte>> read(const std::string& path, std::uint64_t bytes_max) = 0;
  virtual result<std::uint64_t> size(const std::string& path) = 0;  // of a file, in bytes
  virtual result<void> rename(const std::string& from, const std::string& to) = 0;
  // A file or an empty folder.
  virtual result<void> remove(const std::string& path) = 0;
  virtual result<std::vector<std::string>> list(const std::string& folder) = 0;  // names, sorted
  // And its parents; may exist.
  virtual result<void> make_folder(const std::string& path) = 0;
  virtual result<void> sync_folder(const std::string& path) = 0;  // not its parents
  // Of a file, made if need be.
  virtual result<std::unique_ptr<disk_lock>> lock(const std::string& path) = 0;
};

inline constexpr std::string_view temporary_suffix = ".tmp";
// Small enough to be still in the cache when it is written, after `seen` had it.
inline constexpr std::size_t write_piece_bytes = std::size_t{1} << 20;

// The pieces one after the other as one file, so that a reader finds the old bytes or the new ones:
// into path + ".tmp", sync, rename, sync of the folder. `seen` gets the bytes in order as they are
// written. On an error the temporary file is removed, and `path` is as it was (or new, where only
// the sync of the folder failed). One writer of a path at a time.
inline result<void> write_whole(disk& d, const std::string& path,
                                std::span<const std::span<const std::byte>> pieces,
                                const std::function<void(std::span<const std::byte>)>& seen = {}) {
  const auto temporary = path + std::string(temporary_suffix);
  auto file = d.create(temporary, disk::create_mode::replace);
  if (!file) return std::move(file.error());
  const auto fill = [&]() -> result<void> {
    for (const auto& piece : pieces)
      for (auto rest = piece; !rest.empty();) {
        const auto next = rest.first(std::min(rest.size(), write_piece_bytes));
        rest = rest.subspan(next.size());
        if (seen) seen(next);
        if (auto ok = (*file)->write(next); !ok) return ok;
      }
    if (auto ok = (*file)->sync(); !ok) return ok;
    if (auto ok = (*file)->close(); !ok) return ok;
    return d.rename(temporary, path);
  };
  if (auto ok = fill(); !ok) {
    file->reset();
    // The error that counts is the first one.
    [[maybe_unused]] const auto removed = d.remove(temporary);
    return ok;
  }
  const auto slash = path.rfind('/');
  return d.sync_folder(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
}

}  // namespace troupe
