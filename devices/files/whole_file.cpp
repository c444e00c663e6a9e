#include "troupe/devices/files/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe::host {
namespace {

error os_error(std::string_view doing, const std::string& path) {
  const int number = errno;
  return {number == ENOENT ? error_code::not_found : error_code::usage,
          fmt::format("{} {}: {}", doing, path, std::strerror(number))};
}

// Opens a regular file. Without O_NONBLOCK, opening a pipe would wait for somebody to write.
result<int> open_regular(const std::string& path, const std::string& what, struct stat& info) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return os_error("cannot open " + what, path);
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  ::close(fd);
  return error(error_code::usage, fmt::format("{} {} is not a regular file", what, path));
}

result<std::vector<std::byte>> read_opened(int fd, std::size_t bytes_max, const std::string& path) {
  auto bytes = read_some(fd, bytes_max);
  if (!bytes) return os_error("cannot read", path);
  return std::move(*bytes);
}

}  // namespace

int descriptor::close() noexcept { return ::close(std::exchange(fd_, -1)); }

std::optional<std::vector<std::byte>> read_some(int fd, std::size_t bytes_max) {
  std::vector<std::byte> bytes(bytes_max);
  std::size_t have = 0;
  while (have < bytes_max) {
    const auto got = ::read(fd, bytes.data() + have, bytes_max - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto put =
        ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

result<std::vector<std::byte>> read_beginning(const std::string& path, std::size_t bytes_max,
                                              const std::string& what) {
  struct stat info{};
  const auto opened = open_regular(path, what, info);
  if (!opened) return opened.error();
  const descriptor file(*opened);
  return read_opened(file.get(), bytes_max, path);
}

result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t bytes_max,
                                         const std::string& what) {
  struct stat info{};
  const auto opened = open_regular(path, what, info);
  if (!opened) return opened.error();
  const descriptor file(*opened);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > bytes_max)
    return error(error_code::usage, fmt::format("{} {} has {} bytes, expected at most {}", what,
                                                path, size, bytes_max));
  return read_opened(file.get(), size, path);
}

result<std::string> replaceable(const std::string& path) {
  std::error_code failed;
  namespace fs = std::filesystem;
  // What a link leads to is replaced, not the link.
  const auto target =
      fs::is_symlink(path, failed) ? fs::weakly_canonical(path, failed).string() : path;
  const auto status = fs::status(target, failed);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return error(error_code::usage,
                 fmt::format("cannot write {}: it is {}, not a file", path,
                             fs::is_directory(status) ? "a folder" : "a device or a pipe"));
  const auto folder = fs::path(target).parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
    return os_error("cannot write", path);
  return target;
}

result<void> replace_file(const std::string& given,
                          std::span<const std::span<const std::byte>> pieces) {
  const auto target = replaceable(given);
  if (!target) return target.error();
  const auto& path = *target;
  // The process and a number: whoever dies here leaves a file that nobody else trips over.
  std::string temporary;
  int fd = -1;
  for (int attempt = 0; attempt < 100 && fd < 0; ++attempt) {
    temporary = fmt::format("{}.{}-{}.tmp", path, ::getpid(), attempt);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) break;
  }
  descriptor file(fd);
  if (file.get() < 0) return os_error("cannot write", path);
  const auto give_up = [&](error e) {
    ::unlink(temporary.c_str());
    return e;
  };
  for (const auto& piece : pieces)
    if (!write_all(file.get(), piece)) return give_up(os_error("cannot write", path));
  if (::fsync(file.get()) != 0 || file.close() != 0) return give_up(os_error("cannot write", path));
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return give_up(os_error("cannot write", path));
  const auto folder = std::filesystem::path(path).parent_path();
  const descriptor directory(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || ::fsync(directory.get()) != 0)
    return os_error("cannot make durable", path);
  return {};
}

}  // namespace troupe::host
