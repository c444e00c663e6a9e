#pragma once
// How often a test of one thread repeats itself. ThreadSanitizer has nothing to find there and takes ten times as long, so it
// sees a tenth; the other builds see all.

#include <cstdint>

namespace troupe {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t repetitions(std::uint64_t all) { return all / 10; }
#else
constexpr std::uint64_t repetitions(std::uint64_t all) { return all; }
#endif

}  // namespace troupe
