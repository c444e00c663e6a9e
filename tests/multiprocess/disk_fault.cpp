// A disk that fails, or a process that dies, at one operation: LD_PRELOAD it. Operations on what
// lies in DISK_FAULT_FOLDER are counted from 1 and told in the file DISK_FAULT_LOG, "write PATH" a
// line. At number DISK_FAULT_AT happens what DISK_FAULT says:
//
//   kill        the process is killed before it
//   torn        the same, and half of what a write has to write is written
//   EIO, ENOSPC the operation fails so, and all that follow work again
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

template <class F>
F* original(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

const std::string& variable(const char* name, std::string& kept) {
  if (const char* value = std::getenv(name); value != nullptr && kept.empty()) kept = value;
  return kept;
}

bool is_ours(const std::string& path) {
  static std::string folder;
  static const bool is_given = !variable("DISK_FAULT_FOLDER", folder).empty();
  return is_given && path.starts_with(folder);
}

std::string path_of(int fd) {
  char path[4096];
  const auto n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n < 0 ? std::string() : std::string(path, static_cast<std::size_t>(n));
}

enum class fate { none, fail, tear };

// What becomes of this operation; may not return.
fate decide(const char* operation, const std::string& path) {
  static std::atomic<long> count = 0;
  static std::string at, fault, log;
  static const long number = std::atol(variable("DISK_FAULT_AT", at).c_str());
  static const int out = original<int(const char*, int, ...)>("open")(
      variable("DISK_FAULT_LOG", log).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  variable("DISK_FAULT", fault);
  const bool is_it = ++count == number;
  const auto line = std::string(operation) + " " + path + "\n";
  if (original<decltype(::write)>("write")(out, line.data(), line.size()) < 0) ::abort();
  if (!is_it) return fate::none;
  if (fault == "torn" && std::strcmp(operation, "write") == 0) return fate::tear;
  if (fault == "kill" || fault == "torn") ::kill(::getpid(), SIGKILL);
  errno = fault == "ENOSPC" ? ENOSPC : EIO;
  return fate::fail;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] ssize_t write(int fd, const void* bytes, std::size_t size) {
  static const auto real = original<decltype(::write)>("write");
  if (fd <= 2) return real(fd, bytes, size);
  const auto path = path_of(fd);
  if (!is_ours(path)) return real(fd, bytes, size);
  const auto f = decide("write", path);
  if (f == fate::fail) return -1;
  if (f == fate::none) return real(fd, bytes, size);
  (void)!real(fd, bytes, size / 2);
  ::kill(::getpid(), SIGKILL);
  return -1;
}

[[gnu::visibility("default")]] int fsync(int fd) {
  static const auto real = original<decltype(::fsync)>("fsync");
  const auto path = path_of(fd);
  return is_ours(path) && decide("sync", path) != fate::none ? -1 : real(fd);
}

[[gnu::visibility("default")]] int rename(const char* from, const char* to) noexcept {
  static const auto real = original<decltype(::rename)>("rename");
  return is_ours(to) && decide("rename", to) != fate::none ? -1 : real(from, to);
}

[[gnu::visibility("default")]] int mkdir(const char* path, mode_t mode) noexcept {
  static const auto real = original<decltype(::mkdir)>("mkdir");
  return is_ours(path) && decide("mkdir", path) != fate::none ? -1 : real(path, mode);
}

[[gnu::visibility("default")]] int open(const char* path, int flags, ...) {
  static const auto real = original<int(const char*, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const bool is_new = (flags & O_CREAT) != 0;
  return is_new && is_ours(path) && decide("create", path) != fate::none ? -1
                                                                         : real(path, flags, mode);
}

[[gnu::visibility("default")]] int unlink(const char* path) noexcept {
  static const auto real = original<decltype(::unlink)>("unlink");
  return is_ours(path) && decide("unlink", path) != fate::none ? -1 : real(path);
}

[[gnu::visibility("default")]] int remove(const char* path) noexcept {
  static const auto real = original<decltype(::remove)>("remove");
  return is_ours(path) && decide("remove", path) != fate::none ? -1 : real(path);
}

}  // extern "C"
