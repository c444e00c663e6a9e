#pragma once
// How often a test of one thread repeats itself. Which values come out, the release build finds
// with all of it; what the address sanitizer looks for is found in the same lines, seven times as
// slowly, by a fifth. ThreadSanitizer has nothing to find there and sees a tenth.

#include <cstdint>

namespace troupe {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t repetitions(std::uint64_t all) { return all / 10; }
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t repetitions(std::uint64_t all) { return all / 5; }
#else
constexpr std::uint64_t repetitions(std::uint64_t all) { return all; }
#endif

}  // namespace troupe
