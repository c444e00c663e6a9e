// A wall clock that jumps: LD_PRELOAD it, and once the file CLOCK_JUMP_FILE is there,
// CLOCK_REALTIME is off by CLOCK_JUMP_SECONDS. The monotonic clock goes on as it did, as when an
// administrator or a time server sets a machine's clock.
#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace {

std::time_t jump() {
  const char *file = std::getenv("CLOCK_JUMP_FILE"), *seconds = std::getenv("CLOCK_JUMP_SECONDS");
  return file != nullptr && seconds != nullptr && ::access(file, F_OK) == 0 ? std::atol(seconds)
                                                                            : 0;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* at) noexcept {
  static const auto original =
      reinterpret_cast<decltype(&clock_gettime)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = original(clock, at);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    at->tv_sec += jump();
  return result;
}

[[gnu::visibility("default")]] int gettimeofday(timeval* __restrict at, void* __restrict) noexcept {
  timespec now{};
  if (::clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  *at = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

[[gnu::visibility("default")]] std::time_t time(std::time_t* at) noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  if (at != nullptr) *at = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
