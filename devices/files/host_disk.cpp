#include "troupe/devices/files/host_disk.hpp"

#include "troupe/devices/files/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

namespace troupe {
namespace {

namespace fs = std::filesystem;

error_code code_of(int number) noexcept {
  switch (number) {
    case ENOENT: return error_code::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case ENOTEMPTY:
    case EEXIST:
    case ELOOP:
    case ENXIO:  // a pipe that nobody reads
    case ENAMETOOLONG: return error_code::usage;
    default: return error_code::failed;
  }
}

error os_error(std::string_view doing, const std::string& path, int number = errno) {
  return {code_of(number), fmt::format("cannot {} {}: {}", doing, path, std::strerror(number))};
}

class host_lock final : public disk_lock {
 public:
  explicit host_lock(host::descriptor file) : file_(std::move(file)) {}

 private:
  host::descriptor file_;  // the lock is its open file's
};

class host_file final : public disk_file {
 public:
  host_file(host::descriptor file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  result<void> write(std::span<const std::byte> bytes) override {
    if (!host::write_all(file_.get(), bytes)) return os_error("write", path_);
    return {};
  }
  result<void> sync() override {
    if (::fsync(file_.get()) != 0) return os_error("make durable", path_);
    return {};
  }
  result<void> close() override {
    // Linux has closed it even where a signal interrupted the call.
    if (file_.close() != 0 && errno != EINTR) return os_error("close", path_);
    return {};
  }

 private:
  host::descriptor file_;
  std::string path_;
};

// Opens a regular file. Without O_NONBLOCK, opening a pipe would wait for somebody at its other
// end.
result<host::descriptor> open_regular(const std::string& path, int flags, std::string_view doing) {
  host::descriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666));
  struct stat info{};
  if (file.get() < 0 && errno == EEXIST)
    return error(error_code::denied, fmt::format("cannot create {}: it exists already", path));
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return os_error(doing, path);
  if (!S_ISREG(info.st_mode))
    return error(error_code::usage,
                 fmt::format("cannot {} {}: it is not a regular file", doing, path));
  return file;
}

class host_disk final : public disk {
 public:
  result<std::unique_ptr<disk_file>> create(const std::string& path, create_mode mode) override {
    auto file = open_regular(
        path, O_WRONLY | O_CREAT | (mode == create_mode::exclusive ? O_EXCL : O_TRUNC), "write");
    if (!file) return std::move(file.error());
    return std::unique_ptr<disk_file>(std::make_unique<host_file>(std::move(*file), path));
  }

  result<std::vector<std::byte>> read(const std::string& path, std::uint64_t bytes_max) override {
    const auto file = open_regular(path, O_RDONLY, "read");
    if (!file) return file.error();
    struct stat info{};
    if (::fstat(file->get(), &info) != 0) return os_error("read", path);
    const auto bytes = static_cast<std::uint64_t>(info.st_size);
    if (bytes > bytes_max)
      return error(error_code::usage,
                   fmt::format("cannot read {}: it has {} bytes, expected at most {}", path, bytes,
                               bytes_max));
    try {
      auto all = host::read_some(file->get(), bytes);
      if (!all) return os_error("read", path);
      return std::move(*all);
    } catch (const std::exception&) {  // bad_alloc, or more than a vector may have
      return error(error_code::failed,
                   fmt::format("cannot read {}: no memory for {} bytes", path, bytes));
    }
  }

  result<std::uint64_t> size(const std::string& path) override {
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0) return os_error("look at", path);
    if (!S_ISREG(info.st_mode))
      return error(error_code::usage, fmt::format("{} is not a regular file", path));
    return static_cast<std::uint64_t>(info.st_size);
  }

  result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return os_error(fmt::format("rename {} to", from), to);
    return {};
  }

  result<void> remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0) return os_error("remove", path);
    return {};
  }

  result<std::vector<std::string>> list(const std::string& folder) override {
    std::error_code failed;
    std::vector<std::string> names;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
      names.push_back(at->path().filename().string());
    if (failed) return os_error("list", folder, failed.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  result<void> make_folder(const std::string& path) override {
    std::error_code failed;
    fs::create_directories(path, failed);
    if (failed) return os_error("make the folder", path, failed.value());
    return {};
  }

  result<void> sync_folder(const std::string& path) override {
    const host::descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems, mostly over the network, have no such thing.
    const auto is_unknown = [](int number) {
      return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
    };
    if (folder.get() < 0 || (::fsync(folder.get()) != 0 && !is_unknown(errno)))
      return os_error("make durable the folder", path);
    return {};
  }

  result<std::unique_ptr<disk_lock>> lock(const std::string& path) override {
    auto file = open_regular(path, O_RDWR | O_CREAT | O_NOFOLLOW, "lock");
    if (!file) return std::move(file.error());
    int locked = -1;
    do locked = ::flock(file->get(), LOCK_EX | LOCK_NB);
    while (locked != 0 && errno == EINTR);
    if (locked != 0 && errno == EWOULDBLOCK)
      return error(error_code::denied,
                   fmt::format("cannot lock {}: another program holds it", path));
    if (locked != 0) return os_error("lock", path);
    return std::unique_ptr<disk_lock>(std::make_unique<host_lock>(std::move(*file)));
  }
};

}  // namespace

std::unique_ptr<disk> make_host_disk() { return std::make_unique<host_disk>(); }

}  // namespace troupe
