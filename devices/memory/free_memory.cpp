#include "troupe/devices/memory/free_memory.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace troupe {

bool return_free_memory() {
#if defined(__GLIBC__)
  constexpr std::int64_t rest_ns = 1'000'000'000;
  static std::atomic<std::int64_t> last_ns{0};  // 0: never
  const auto now =
      std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  auto last = last_ns.load(std::memory_order_relaxed);
  if (last != 0 && now - last < rest_ns) return false;
  // Somebody else does it just now.
  if (!last_ns.compare_exchange_strong(last, now, std::memory_order_relaxed)) return false;
  malloc_trim(0);
#endif
  return true;
}

}  // namespace troupe
